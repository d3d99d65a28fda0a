//! The seed's policy, kept as a baseline: set-associative, least recently used inside a set.
//!
//! As in the public code of DM-Cache: the slots are sets of `ways` neighbours. A block's set is the
//! hash of its number divided by 512, so 512 consecutive blocks share a set (and with fewer ways
//! than that evict each other). Inside the set the block takes an empty slot, or else that of the
//! least recently used clean block, or else of the least recently used dirty one, which has to be
//! written back first: the cache's `may` decides. A refused slot keeps its position in the order.
//!
//! A resize changes the sets and moves no block. A block outside its set stays until its slot is
//! needed by the set that the slot now belongs to; recovery inserts such blocks, too. So only the
//! choice of a slot respects the sets, and the cache asserts it there.
//!
//! A slot costs four bytes: the time of its last use, by the clock of its set.

use super::ghost::Ghost;
use super::{BlockKey, Policy, SLOTS_MAX, Saving, SlotNr};
use std::ops::Range;

/// Consecutive blocks that share a set, as a power of two.
const CONSECUTIVE_SHIFT: u32 = 9;
/// The clock of a set starts in the middle, so that restored blocks can be older than all others.
const CLOCK_START: u32 = 1 << 31;
/// Stamp of a free slot.
const FREE: u32 = 0;

/// Sets of ways.
#[derive(Debug)]
pub struct SetAssociative {
    ways: u32,
    /// Time of the last use of each slot, by its set's clock; 0 if it is free.
    stamps: Vec<u32>,
    /// The newest stamp given in each set.
    clocks: Vec<u32>,
    held: u32,
    ghost: Option<Ghost>,
}

impl SetAssociative {
    /// Creates a policy for `slots` slots in sets of `ways` (at least one). If the slots do not
    /// fill the last set, it has fewer ways.
    pub fn new(slots: u32, ways: u16) -> SetAssociative {
        let ways = u32::from(ways).max(1);
        let slots = slots.min(SLOTS_MAX);
        SetAssociative {
            ways,
            stamps: vec![FREE; slots as usize],
            clocks: vec![CLOCK_START; slots.div_ceil(ways) as usize],
            held: 0,
            ghost: None,
        }
    }

    fn set_of(&self, slot: SlotNr) -> Range<u32> {
        let start = slot.0 / self.ways * self.ways;
        start..(start + self.ways).min(self.slots())
    }

    /// Makes the slot the most recently used of its set.
    fn touch(&mut self, slot: SlotNr) {
        let clock = &mut self.clocks[(slot.0 / self.ways) as usize];
        if *clock == u32::MAX {
            let set = self.set_of(slot);
            let stamps = &mut self.stamps[set.start as usize..set.end as usize];
            self.clocks[(slot.0 / self.ways) as usize] = renumber(stamps);
        }
        let clock = &mut self.clocks[(slot.0 / self.ways) as usize];
        *clock += 1;
        self.stamps[slot.index()] = *clock;
    }

    /// Returns the held slots of a set, the least recently used first.
    fn coldest_first(&self, set: Range<u32>) -> Vec<SlotNr> {
        let stamp = |slot: &SlotNr| self.stamps[slot.index()];
        let mut slots: Vec<SlotNr> = set.map(SlotNr).filter(|slot| stamp(slot) != FREE).collect();
        slots.sort_unstable_by_key(stamp);
        slots
    }
}

/// Renumbers the stamps of a set in the same order, and returns the newest.
fn renumber(stamps: &mut [u32]) -> u32 {
    let mut order: Vec<usize> = (0..stamps.len()).filter(|&i| stamps[i] != FREE).collect();
    order.sort_unstable_by_key(|&i| stamps[i]);
    let mut clock = CLOCK_START;
    for at in order {
        clock += 1;
        stamps[at] = clock;
    }
    clock
}

impl Policy for SetAssociative {
    fn hit(&mut self, slot: SlotNr, _key: BlockKey) {
        if self.stamps.get(slot.index()).is_some_and(|&s| s != FREE) {
            self.touch(slot);
        }
    }

    fn insert(&mut self, slot: SlotNr, key: BlockKey) {
        let Some(stamp) = self.stamps.get(slot.index()) else {
            return;
        };
        self.held += u32::from(*stamp == FREE);
        if let Some(ghost) = &mut self.ghost {
            ghost.remove(key);
        }
        self.touch(slot);
    }

    fn remove(&mut self, slot: SlotNr, _key: BlockKey) {
        if let Some(stamp) = self.stamps.get_mut(slot.index()) {
            self.held -= u32::from(*stamp != FREE);
            *stamp = FREE;
        }
    }

    fn evict(
        &mut self,
        new: BlockKey,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr> {
        let slots = self.coldest_first(self.place(new));
        let slot = slots.into_iter().find(|&slot| may(slot))?;
        if let Some(ghost) = &mut self.ghost {
            ghost.insert(key_of(slot));
        }
        self.remove(slot, new);
        Some(slot)
    }

    fn missed(&mut self, key: BlockKey) {
        let slots = self.slots();
        self.ghost.get_or_insert_with(|| Ghost::new(slots)).insert(key);
    }

    fn seen_before(&self, key: BlockKey) -> bool {
        self.ghost.as_ref().is_some_and(|ghost| ghost.contains(key))
    }

    fn place(&self, key: BlockKey) -> Range<u32> {
        let sets = self.slots().div_ceil(self.ways);
        let group = BlockKey::new(key.origin(), key.block() >> CONSECUTIVE_SHIFT);
        let set = (u128::from(group.hash()) * u128::from(sets)) >> 64;
        self.set_of(SlotNr(set as u32 * self.ways))
    }

    fn save_some(
        &mut self,
        saving: &mut Saving,
        most: usize,
        _key_of: &dyn Fn(SlotNr) -> BlockKey,
        out: &mut dyn FnMut(SlotNr, u8),
    ) -> bool {
        // Whole sets, as the order is one within a set.
        let mut looked = 0;
        while saving.queue < self.slots() && looked < most {
            let set = self.set_of(SlotNr(saving.queue));
            looked += set.len();
            saving.queue = set.end;
            for slot in self.coldest_first(set).into_iter().rev() {
                if saving.first(slot) {
                    out(slot, 0);
                }
            }
        }
        saving.queue < self.slots()
    }

    fn restore(&mut self, slot: SlotNr, _state: u8, _key: BlockKey) {
        if self.stamps.get(slot.index()) != Some(&FREE) {
            return;
        }
        let set = self.set_of(slot);
        let stamps = &mut self.stamps[set.start as usize..set.end as usize];
        // A set never has 2^31 slots, so it does not run out of numbers downwards.
        let oldest = stamps.iter().copied().filter(|&s| s != FREE).min();
        self.stamps[slot.index()] = oldest.unwrap_or(CLOCK_START).saturating_sub(1).max(1);
        self.held += 1;
    }

    fn resize(&mut self, slots: u32) {
        let slots = slots.min(SLOTS_MAX);
        for slot in slots..self.slots() {
            self.remove(SlotNr(slot), BlockKey(0));
        }
        self.stamps.resize(slots as usize, FREE);
        let sets = slots.div_ceil(self.ways) as usize;
        self.clocks.resize(sets, CLOCK_START);
        self.stamps.shrink_to_fit();
    }

    fn slots(&self) -> u32 {
        self.stamps.len() as u32
    }

    fn held(&self) -> u32 {
        self.held
    }

    fn memory_bytes(&self) -> usize {
        (self.stamps.capacity() + self.clocks.capacity()) * size_of::<u32>()
            + self.ghost.as_ref().map_or(0, Ghost::memory_bytes)
    }
}
