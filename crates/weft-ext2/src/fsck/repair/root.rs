//! What everything else hangs on: the root directory, the journal's inode, and where a group's metadata
//! lies.

use super::repairer::Repairer;
use crate::Result;
use crate::fsck::problem::{JournalFix, Problem};
use crate::fsck::volume::Volume;
use crate::fsck::{entries, journal, start};
use crate::layout::bytes::get32;
use crate::layout::{Compat, Dirents, GroupDesc, Incompat, Inode, JOURNAL_INO, ROOT_INO};
use crate::superblock;

/// The runs of blocks that are marked in use and belong to nothing.
pub(super) fn leaked_blocks(problems: &[Problem]) -> Vec<(u32, u32)> {
    let runs = problems.iter().filter_map(|problem| match problem {
        Problem::BlockBitmap { first, len, leaked: true } => Some((*first, *len)),
        _ => None,
    });
    runs.collect()
}

impl Repairer<'_> {
    /// Restores the journal's inode if it is lost and the superblock has a copy of its map. Returns
    /// whether it did.
    pub(super) fn restore_journal(&self, problems: &[Problem]) -> Result<bool> {
        let lost = problems
            .iter()
            .any(|problem| matches!(problem, Problem::Journal { fix: JournalFix::Restore, .. }));
        let Some(inode) = journal::backup_inode(&self.pass.superblock).filter(|_| lost) else {
            return Ok(false);
        };
        if start::inode_slot(self.volume(), &self.pass.found, JOURNAL_INO)?.is_none() {
            // First its group's descriptor.
            return Ok(false);
        }
        let time = self.seconds();
        let inode = Inode { atime: time, mtime: time, ctime: time, ..inode };
        self.slot(JOURNAL_INO, |slot| {
            slot.fill(0);
            inode.encode_into(slot);
        })?;
        Ok(true)
    }

    /// Makes the volume one without a journal. (Its inode is emptied as one that must not be in use.)
    pub(super) fn remove_journal(&self) -> Result<()> {
        superblock::update(self.volume().device, |sb, _| {
            sb.features.compat.remove(Compat::HAS_JOURNAL);
            sb.features.incompat.remove(Incompat::RECOVER);
            sb.journal_inode = 0;
            sb.journal_device = 0;
            sb.journal_uuid = [0; 16];
            sb.journal_backup_type = 0;
            sb.journal_backup = [0; 17];
        })
    }

    /// Makes a root directory, of the first block of the old one if that is still there.
    pub(super) fn make_root(&mut self) -> Result<()> {
        let block = match self.old_root_block()? {
            Some(block) => {
                self.pass.found.blocks.set(u64::from(block));
                block
            }
            None => {
                let Some(block) = self.allocate() else { return Ok(()) };
                let mut content = entries::empty(self.volume().block_len());
                entries::rebuild_first(&mut content, ROOT_INO, ROOT_INO, self.filetype());
                self.volume().write(u64::from(block), &content)?;
                block
            }
        };
        let inode = self.directory_inode(0o755, block);
        self.slot(ROOT_INO, |slot| {
            slot.fill(0);
            inode.encode_into(slot);
        })
    }

    /// A new directory of one block, with its own two names.
    pub(super) fn directory_inode(&self, perm: u16, block: u32) -> Inode {
        let block_bytes = self.volume().geometry.block_bytes;
        let time = self.seconds();
        let mut inode = Inode {
            mode: 0o040_000 | perm,
            links: 2,
            size_bytes: u64::from(block_bytes),
            blocks_512: block_bytes / 512,
            atime: time,
            mtime: time,
            ctime: time,
            ..Inode::default()
        };
        inode.block[0] = block;
        inode
    }

    /// Looks for the first block of the lost root directory among those that belong to nothing: it names
    /// the root as itself and as its parent.
    fn old_root_block(&self) -> Result<Option<u32>> {
        let filetype = self.filetype();
        let mut content = Vec::new();
        for &(first, len) in &self.leaked {
            for block in first..first.saturating_add(len) {
                self.volume().read(u64::from(block), &mut content)?;
                let mut records = Dirents::new(&content, filetype);
                let mut names_root = |name: &[u8]| matches!(records.next(), Some(Ok(r)) if r.ino == ROOT_INO && r.name == name);
                if names_root(b".") && names_root(b"..") && records.all(|r| r.is_ok()) {
                    return Ok(Some(block));
                }
            }
        }
        Ok(None)
    }

    /// The descriptor of a group with its metadata where mke2fs puts it, if that is there. Only for the
    /// first group, whose root directory shows it: there are no copies of the descriptors of a small
    /// volume.
    pub(super) fn usual_descriptor(&self, group: u32) -> Result<Option<GroupDesc>> {
        let geometry = &self.volume().geometry;
        let first = geometry.group_first_block(group) + geometry.group_overhead_blocks(group);
        let Ok(first) = u32::try_from(first) else { return Ok(None) };
        let desc = GroupDesc {
            block_bitmap: first,
            inode_bitmap: first.saturating_add(1),
            inode_table: first.saturating_add(2),
            ..GroupDesc::default()
        };
        if group != 0 || desc.check(group, geometry).is_err() {
            return Ok(None);
        }
        Ok(has_root_at(self.volume(), desc.inode_table)?.then_some(desc))
    }
}

/// Reports whether an inode table that begins at a block has a root directory in it.
fn has_root_at(volume: &Volume<'_>, table: u32) -> Result<bool> {
    let geometry = &volume.geometry;
    let (block, offset) = geometry.inode_position(table, ROOT_INO - 1);
    let mut content = Vec::new();
    volume.read(block, &mut content)?;
    let slot = content.get(offset..offset + geometry.inode_bytes as usize).unwrap_or_default();
    let Ok(inode) = Inode::parse(slot) else { return Ok(false) };
    let data = u64::from(inode.block[0]);
    if inode.mode & 0o170_000 != 0o040_000 || !geometry.contains_block(data) {
        return Ok(false);
    }
    volume.read(data, &mut content)?;
    Ok(get32(&content, 0) == ROOT_INO)
}
