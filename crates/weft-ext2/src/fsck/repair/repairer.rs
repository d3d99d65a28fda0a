//! The changes of a volume under repair that all repairs are made of.

use super::lost_found::LostFound;
use crate::Result;
use crate::fsck::options::Repair;
use crate::fsck::pass::Pass;
use crate::fsck::problem::Place;
use crate::fsck::volume::Volume;
use crate::layout::Incompat;
use crate::layout::bytes::{put16, put32};
use hashbrown::HashSet;
use weft_vfs::Time;

/// A volume under repair, with the findings of its last check.
pub(super) struct Repairer<'d> {
    pub pass: Pass<'d>,
    pub how: Repair,
    pub time: u32,
    /// The block from which the search for a free one continues.
    pub search: u64,
    /// Inodes on the list of orphaned inodes: those with names were being cut.
    pub orphans: HashSet<u32>,
    /// Runs of blocks (first, length) that are marked in use and belong to nothing.
    pub leaked: Vec<(u32, u32)>,
    /// The directory for what has no name, once it was needed.
    pub lost_found: Option<LostFound>,
}

impl<'d> Repairer<'d> {
    pub(super) fn volume(&self) -> &Volume<'d> {
        &self.pass.volume
    }

    pub(super) fn filetype(&self) -> bool {
        self.volume().geometry.features.incompat.contains(Incompat::FILETYPE)
    }

    /// Changes an inode's slot.
    pub(super) fn slot(&self, ino: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let geometry = &self.volume().geometry;
        let Some((group, index)) = geometry.inode_group(ino) else { return Ok(()) };
        let table = self.pass.found.tables.get(group as usize).copied().flatten();
        let Some(table) = table else { return Ok(()) };
        let (block, offset) = geometry.inode_position(table, index);
        let len = geometry.inode_bytes as usize;
        self.volume().update(block, |content| {
            if let Some(slot) = content.get_mut(offset..offset + len) {
                change(slot);
            }
        })
    }

    /// The time of the repair.
    pub(super) fn seconds(&self) -> Time {
        Time { secs: self.time.into(), nanos: 0 }
    }

    /// Takes a block that belongs to nothing.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let block = self.pass.found.blocks.first_clear(self.search)?;
        self.pass.found.blocks.set(block);
        self.search = block + 1;
        u32::try_from(block).ok()
    }

    /// Marks an inode as deleted.
    pub(super) fn free_inode(&self, ino: u32) -> Result<()> {
        let time = self.time;
        self.slot(ino, |slot| {
            put16(slot, 0x1A, 0);
            put32(slot, 0x14, time.max(1));
        })
    }

    /// Sets a block pointer of an inode.
    pub(super) fn set_pointer(&self, ino: u32, place: Place, block: u32) -> Result<()> {
        match place {
            Place::Slot(slot) => self.slot(ino, |raw| put32(raw, 0x28 + 4 * slot, block)),
            Place::Attributes => self.slot(ino, |raw| put32(raw, 0x68, block)),
            Place::Entry { block: table, index } => {
                self.volume().update(table, |content| put32(content, 4 * index, block))
            }
        }
    }
}
