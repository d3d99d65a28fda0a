//! The volume as a whole: its limits, counts and flags, and the ends of operations.

use super::node::Node;
use super::state::Volume;
use crate::layout::{GroupDesc, InodeFlags, LINK_MAX, ROOT_INO};
use weft_patch::{BlockNr, Op};
use weft_unix::{FlagSupport, Format, Limits, Result, Space};
use weft_vfs::{FileFlags, FileKind, Ino};

/// Groups that one operation changes.
const GROUPS_MAX: usize = 8;

impl Format for Volume {
    fn limits(&self) -> Limits {
        let block_bytes = self.geometry.block_bytes;
        Limits {
            root: Ino(u64::from(ROOT_INO)),
            block_bytes,
            // Revision 0 has no feature that would tell others of longer files.
            file_max_bytes: match self.sb.revision {
                0 => u64::from(i32::MAX.unsigned_abs()),
                _ => self.geometry.max_file_bytes(),
            },
            target_max_bytes: block_bytes.min(4096) as usize - 1,
            name_max_bytes: 255,
            links_max: u32::from(LINK_MAX),
            inodes_max: u64::from(self.geometry.inodes),
            time_unit_nanos: if self.new_extra_bytes() >= 16 { 1 } else { 1_000_000_000 },
            // Revision 0 has none.
            has_attributes: self.sb.revision > 0,
        }
    }

    fn space(&self) -> Space {
        let geometry = &self.geometry;
        // As the kernel counts: the blocks of metadata are not the volume's.
        let per_group = 2 + u64::from(geometry.inode_table_blocks());
        let overhead: u64 = u64::from(geometry.first_data_block)
            + (0..geometry.groups)
                .map(|group| geometry.group_overhead_blocks(group) + per_group)
                .sum::<u64>();
        Space {
            blocks: geometry.blocks.saturating_sub(overhead),
            blocks_free: self.free_blocks,
            blocks_reserved: u64::from(self.sb.reserved_blocks),
            inodes: u64::from(geometry.inodes),
            inodes_free: self.free_inodes,
        }
    }

    fn at_once(&self) -> (u64, u64) {
        (self.blocks_at_once(), self.inodes_at_once())
    }

    fn has_pending(&self) -> bool {
        !self.pending_blocks.is_empty() || !self.pending_inodes.is_empty()
    }

    fn settle(&mut self, op: &Op<'_>) {
        for (start, len) in self.pending_blocks.take_durable(op) {
            self.set_range_busy(start, len, false);
        }
        for (ino, _) in self.pending_inodes.take_durable(op) {
            self.release_inode(ino);
        }
    }

    /// Writes the counts that the operation changed to their descriptors.
    fn finish(&mut self, op: &mut Op<'_>) -> Result<()> {
        while let Some(group) = self.dirty_groups.pop() {
            let g = &mut self.groups[group as usize];
            g.dirty = false;
            let (block, offset) = self.geometry.desc_position(group);
            let counts = g.desc.encode_counts();
            op.write(BlockNr(block), offset + GroupDesc::FREE_BLOCKS_OFFSET, &counts, &[])?;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.dirty_groups.len() >= GROUPS_MAX
    }

    fn want_summary(&self, op: &mut Op<'_>) -> Result<()> {
        Ok(op.want([self.sb_position().0])?)
    }

    fn write_summary(&mut self, op: &mut Op<'_>) -> Result<()> {
        if self.refresh_counts() {
            self.write_sb(op, &[])?;
        }
        Ok(())
    }

    fn note_damage(&mut self, what: String) {
        tracing::warn!("{what}");
        self.damage.get_or_insert(what);
    }

    fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    fn blocks_of(&self, node: &Node) -> u64 {
        // Others may share the block of attributes.
        let shared = u64::from(node.own.file_acl != 0);
        (node.inode.blocks_512 / self.sectors_per_block()).saturating_sub(shared)
    }

    fn flags(&self, kind: FileKind) -> Option<FlagSupport> {
        let flags = |flags: InodeFlags| FileFlags::from_bits_retain(flags.bits());
        Some(FlagSupport {
            visible: flags(InodeFlags::USER_VISIBLE),
            modifiable: flags(InodeFlags::USER_MODIFIABLE.of_kind(kind)),
            ever_modifiable: flags(InodeFlags::USER_MODIFIABLE),
        })
    }
}
