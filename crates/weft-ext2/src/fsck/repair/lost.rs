//! Inodes outside the tree: those without a name get one in lost+found, directories in a loop are
//! taken out of it, and files on the list of orphaned inodes lose the blocks past their end.

use super::repairer::Repairer;
use crate::Result;
use crate::fsck::found::{DirBlock, KIND_DIRECTORY};
use crate::fsck::pass::Pass;
use crate::fsck::problem::Place;
use crate::fsck::{entries, start};
use crate::layout::bytes::{get32, put32};
use crate::layout::{DIRECT_SLOTS, Dirents, Inode, ROOT_INO, SLOT_INDIRECT};
use hashbrown::HashSet;

/// The inodes on the superblock's chain, as far as it makes sense.
pub(super) fn orphans(pass: &Pass<'_>) -> Result<HashSet<u32>> {
    let mut all = HashSet::new();
    let mut next = pass.superblock.last_orphan;
    while next >= pass.volume.geometry.first_inode && all.insert(next) {
        let Some(slot) = start::inode_slot(&pass.volume, &pass.found, next)? else { break };
        next = get32(&slot, 0x14);
    }
    Ok(all)
}

impl Repairer<'_> {
    /// Removes the name of a directory that lies in a loop.
    pub(super) fn leave_parent(&mut self, ino: u32) -> Result<()> {
        let parent = self.pass.found.dirs.get(&ino).map_or(0, |dir| dir.parent);
        if parent == 0 {
            return Ok(());
        }
        let blocks: Vec<u32> = self
            .pass
            .found
            .dir_blocks
            .iter()
            .filter(|block| block.ino == parent)
            .map(|block| block.block)
            .collect();
        let filetype = self.filetype();
        for block in blocks {
            self.volume().update(u64::from(block), |content| {
                let at = Dirents::new(content, filetype)
                    .map_while(std::result::Result::ok)
                    .find(|r| r.ino == ino && r.name != b"." && r.name != b"..")
                    .map(|r| r.offset);
                if let Some(at) = at {
                    entries::clear(content, at);
                }
            })?;
        }
        Ok(())
    }

    /// Gives an inode a name in lost+found, if there is one with room.
    pub(super) fn reattach(&mut self, ino: u32) -> Result<()> {
        let filetype = self.filetype();
        let mut content = Vec::new();
        let mut lost_found = 0;
        for at in self.pass.found.dir_blocks.iter().filter(|at| at.ino == ROOT_INO) {
            self.volume().read(u64::from(at.block), &mut content)?;
            let entry = Dirents::new(&content, filetype)
                .map_while(std::result::Result::ok)
                .find(|r| r.ino != 0 && r.name == b"lost+found");
            if let Some(entry) = entry {
                lost_found = entry.ino;
            }
        }
        if self.pass.found.inode(lost_found).kind != KIND_DIRECTORY || lost_found == ino {
            return Ok(());
        }
        let kind = self.pass.found.inode(ino).kind;
        let name = self.free_name(lost_found, ino)?;
        for at in self.pass.found.dir_blocks.iter().filter(|at| at.ino == lost_found) {
            self.volume().read(u64::from(at.block), &mut content)?;
            if entries::insert(&mut content, ino, kind, name.as_bytes(), filetype) {
                return self.volume().write(u64::from(at.block), &content);
            }
        }
        // Full: one block more.
        let Some(slot) = start::inode_slot(self.volume(), &self.pass.found, lost_found)? else {
            return Ok(());
        };
        let Ok(inode) = Inode::parse(&slot) else { return Ok(()) };
        let used = self.pass.found.dir_blocks.iter().filter(|at| at.ino == lost_found);
        let logical = used.map(|at| at.logical + 1).max().unwrap_or(0);
        if inode.block.get(logical as usize).is_none_or(|&b| b != 0) || logical >= 12 {
            return Ok(());
        }
        let Some(block) = self.allocate() else { return Ok(()) };
        let mut content = entries::empty(self.volume().block_len());
        entries::insert(&mut content, ino, kind, name.as_bytes(), filetype);
        self.volume().write(u64::from(block), &content)?;
        let block_bytes = self.volume().geometry.block_bytes;
        self.slot(lost_found, |slot| {
            put32(slot, 0x28 + 4 * logical as usize, block);
            put32(slot, 0x04, (logical + 1) * block_bytes);
            let sectors = get32(slot, 0x1C);
            put32(slot, 0x1C, sectors.saturating_add(block_bytes / 512));
        })?;
        self.pass.found.dir_blocks.push(DirBlock { ino: lost_found, logical, block });
        Ok(())
    }

    /// `#12` for inode 12, or `#12-1` and so on if there is such a name already.
    fn free_name(&self, lost_found: u32, ino: u32) -> Result<String> {
        let mut taken = HashSet::new();
        let mut content = Vec::new();
        let stem = format!("#{ino}");
        for at in self.pass.found.dir_blocks.iter().filter(|at| at.ino == lost_found) {
            self.volume().read(u64::from(at.block), &mut content)?;
            for record in Dirents::new(&content, self.filetype()).map_while(std::result::Result::ok)
            {
                if record.ino != 0 && record.name.starts_with(stem.as_bytes()) {
                    taken.insert(record.name.to_vec());
                }
            }
        }
        let mut name = stem.clone();
        let mut n = 0;
        while taken.contains(name.as_bytes()) {
            n += 1;
            name = format!("{stem}-{n}");
        }
        Ok(name)
    }

    /// Removes the blocks past a file's end: a truncation was interrupted by the crash.
    pub(super) fn cut_tail(&self, ino: u32) -> Result<()> {
        let Some(slot) = start::inode_slot(self.volume(), &self.pass.found, ino)? else {
            return Ok(());
        };
        let Ok(inode) = Inode::parse(&slot) else { return Ok(()) };
        let geometry = &self.volume().geometry;
        let keep = inode.size_bytes.div_ceil(u64::from(geometry.block_bytes));
        let pointers = u64::from(geometry.pointers_per_block());
        let mut at = 0_u64;
        for (slot, &block) in inode.block.iter().enumerate() {
            let level = if slot < DIRECT_SLOTS { 0 } else { slot - SLOT_INDIRECT + 1 };
            self.cut(ino, block, Place::Slot(slot), level, at, keep)?;
            at += (0..level).fold(1, |n, _| n * pointers);
        }
        Ok(())
    }

    /// Clears a pointer if all blocks it leads to lie past block `keep`, or else those below it
    /// that do.
    fn cut(
        &self,
        ino: u32,
        block: u32,
        place: Place,
        level: usize,
        at: u64,
        keep: u64,
    ) -> Result<()> {
        let pointers = u64::from(self.volume().geometry.pointers_per_block());
        let spans = (0..level).fold(1, |n, _| n * pointers);
        if block == 0 || at + spans <= keep {
            return Ok(());
        }
        if at >= keep {
            return self.set_pointer(ino, place, 0);
        }
        let mut table = Vec::new();
        self.volume().read(u64::from(block), &mut table)?;
        for index in 0..table.len() / 4 {
            let next = get32(&table, 4 * index);
            let place = Place::Entry { block: u64::from(block), index };
            let from = at + index as u64 * (spans / pointers);
            self.cut(ino, next, place, level - 1, from, keep)?;
        }
        Ok(())
    }
}
