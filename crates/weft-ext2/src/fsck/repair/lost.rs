//! Inodes outside the tree: directories in a loop are taken out of it, and files on the list of orphaned
//! inodes lose the blocks past their end.

use super::repairer::Repairer;
use crate::Result;
use crate::fsck::pass::Pass;
use crate::fsck::problem::Place;
use crate::fsck::{entries, start};
use crate::layout::bytes::get32;
use crate::layout::{DIRECT_SLOTS, Dirents, Inode, SLOT_INDIRECT};
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
