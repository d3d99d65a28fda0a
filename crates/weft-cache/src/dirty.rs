//! The dirty state: how much data exists only in the cache, where, and how far write-back is.
//!
//! Invariants:
//! - `subs` and the regions count the dirty sub-blocks of all slots;
//! - `held_slots` counts the slots with held sub-blocks;
//! - a damaged slot is used, and has dirty data.

use crate::SUB_BLOCK_BYTES;
use crate::regions::{RegionKey, Regions};
use crate::slots::Masks;
use hashbrown::HashSet;

#[derive(Debug)]
pub(crate) struct Dirty {
    pub(crate) regions: Regions,
    subs: u64,
    held_slots: u64,
    /// Number of dirty sub-blocks, found by recovery, of origins that the superblock has no record
    /// of.
    orphans: u64,
    /// Slots with dirty data that does not match its checksum.
    damaged: HashSet<u32>,
    /// Region at which write-back continues.
    elevator: RegionKey,
}

impl Default for Dirty {
    fn default() -> Self {
        Self {
            regions: Regions::default(),
            subs: 0,
            held_slots: 0,
            orphans: 0,
            damaged: HashSet::new(),
            elevator: RegionKey(0),
        }
    }
}

impl Dirty {
    /// Returns the number of dirty sub-blocks.
    pub(crate) fn subs(&self) -> u64 {
        self.subs
    }

    /// Returns the number of bytes that exist only in the cache.
    pub(crate) fn bytes(&self) -> u64 {
        self.subs * SUB_BLOCK_BYTES as u64
    }

    /// Returns true if data exists only in the cache, or may according to a durable record.
    pub(crate) fn any_or_held(&self) -> bool {
        self.subs > 0 || self.held_slots > 0
    }

    /// Returns the number of slots with held sub-blocks: a commit may free them.
    pub(crate) fn held_slots(&self) -> u64 {
        self.held_slots
    }

    /// Counts a change of the held sub-blocks of a slot.
    pub(crate) fn count_held(&mut self, before: Masks, after: Masks) {
        match (before.held != 0, after.held != 0) {
            (false, true) => self.held_slots += 1,
            (true, false) => self.held_slots -= 1,
            _ => {}
        }
    }

    /// Counts a change of the number of dirty sub-blocks of a block in this region.
    pub(crate) fn count_dirty(&mut self, region: RegionKey, was: u32, is: u32, now_ms: u64) {
        self.subs = self.subs + u64::from(is) - u64::from(was);
        self.regions.update(region, |region| {
            if region.dirty == 0 {
                region.dirty_since_ms = now_ms;
            }
            region.dirty = region.dirty + is - was;
        });
    }

    pub(crate) fn orphans(&self) -> u64 {
        self.orphans
    }

    /// Counts dirty sub-blocks of an origin that the superblock has no record of.
    pub(crate) fn count_orphans(&mut self, subs: u32) {
        self.orphans += u64::from(subs);
    }

    pub(crate) fn is_damaged(&self, slot: u32) -> bool {
        self.damaged.contains(&slot)
    }

    /// Notes that a slot's dirty data does not match its checksum.
    pub(crate) fn mark_damaged(&mut self, slot: u32) {
        self.damaged.insert(slot);
    }

    /// Forgets the damage of a slot that is emptied.
    pub(crate) fn forget_damage(&mut self, slot: u32) {
        self.damaged.remove(&slot);
    }

    /// Returns the region at which write-back continues.
    pub(crate) fn elevator(&self) -> RegionKey {
        self.elevator
    }

    /// Lets write-back continue behind a region.
    pub(crate) fn continue_behind(&mut self, region: RegionKey) {
        self.elevator = RegionKey(region.0 + 1);
    }
}
