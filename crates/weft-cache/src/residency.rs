//! Residency: which block is in which slot.
//!
//! Invariants:
//! - a used slot's key leads to it through the index, and no other slot has the key; the index for
//!   the next size, while it is built, agrees with it for the slots entered so far;
//! - a free slot is unused, not held and not pinned; an unused slot in limbo waits for that;
//! - a slot is given to another block only when it is clean, not held and not pinned;
//! - while a checkpoint is being loaded, a slot that is taken is known, and a block that leaves its
//!   slot supersedes its entry.
//!
//! The counts that depend on the masks of a slot belong to others, so the masks are changed by
//! [`CacheState::set_masks`](crate::state::CacheState::set_masks) only.

use crate::bitmap::Bitmap;
use crate::format::record::Record;
use crate::index::Index;
use crate::loading::Loading;
use crate::pins::Pins;
use crate::policy::{BlockKey, Policy, Saving, SlotNr};
use crate::slots::{Masks, SlotTable};
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct Residency {
    slots: SlotTable,
    index: Index,
    /// The index for the cache's next size while it is built, and the number of slots entered in
    /// it.
    next_index: Option<(Index, u32)>,
    pub(crate) policy: Box<dyn Policy>,
    /// Unused slots that are held or pinned.
    limbo: Vec<u32>,
    pins: Arc<Pins>,
    /// End of the slots that may be given to blocks, while the cache is being shrunk.
    slot_limit: u32,
    /// The checkpoint whose clean entries are not all loaded yet.
    pub(crate) loading: Option<Loading>,
}

impl Residency {
    /// Creates the residency of an empty cache: no slot is used, and none is free yet.
    pub(crate) fn new(slots: u32, subs: usize, policy: Box<dyn Policy>, pins: Arc<Pins>) -> Self {
        Self {
            slots: SlotTable::new(slots, subs),
            index: Index::new(slots),
            next_index: None,
            policy,
            limbo: Vec::new(),
            pins,
            slot_limit: u32::MAX,
            loading: None,
        }
    }

    /// Returns the slot that holds a block.
    pub(crate) fn lookup(&self, key: BlockKey) -> Option<u32> {
        self.index.get(key, |slot| self.slots.key(slot))
    }

    pub(crate) fn slots(&self) -> &SlotTable {
        &self.slots
    }

    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len()
    }

    /// Returns the number of used slots.
    pub(crate) fn used(&self) -> u32 {
        self.index.len()
    }

    pub(crate) fn key(&self, slot: u32) -> Option<BlockKey> {
        self.slots.key(slot)
    }

    pub(crate) fn masks(&self, slot: u32) -> Masks {
        self.slots.masks(slot)
    }

    pub(crate) fn crc(&self, slot: u32, sub: usize) -> u32 {
        self.slots.crc(slot, sub)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.index.memory_bytes() + self.policy.memory_bytes()
    }

    /// Changes the masks, for the state, which changes the counts that depend on them.
    pub(crate) fn set_masks(&mut self, slot: u32, masks: Masks) {
        self.slots.set_masks(slot, masks);
    }

    pub(crate) fn set_crc(&mut self, slot: u32, sub: usize, crc: u32) {
        self.slots.set_crc(slot, sub, crc);
    }

    pub(crate) fn set_touched(&mut self, slot: u32, on: bool) {
        self.slots.set_touched(slot, on);
    }

    pub(crate) fn begin_snapshot(&mut self) {
        self.slots.begin_snapshot();
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.slots.end_snapshot();
    }

    pub(crate) fn take_snapshot(&mut self, slot: u32) -> Record {
        self.slots.take_snapshot(slot)
    }

    /// Passes some of the used slots to `out`, in the policy's order, as [`Policy::save_some`]
    /// does.
    pub(crate) fn save_some(
        &mut self,
        saving: &mut Saving,
        most: usize,
        mut out: impl FnMut(&SlotTable, u32, u8),
    ) -> bool {
        let Self { policy, slots, .. } = self;
        let key_of = |slot: SlotNr| slots.key(slot.0).unwrap_or(BlockKey(u64::MAX));
        policy.save_some(saving, most, &key_of, &mut |slot, state| out(slots, slot.0, state))
    }

    /// Enters a block and its reserved slot into the index.
    pub(crate) fn enter(&mut self, slot: u32, key: BlockKey) {
        debug_assert!(self.slots.key(slot).is_none() && self.lookup(key).is_none());
        self.index.insert(key, slot);
        if let Some((next, _)) = self.next_index.as_mut().filter(|(_, known)| slot < *known) {
            next.insert(key, slot);
        }
        self.slots.set_key(slot, Some(key));
    }

    /// Takes the block of a slot out of the index. The slot is reserved afterwards.
    pub(crate) fn leave(&mut self, slot: u32, key: BlockKey) {
        let there = self.index.remove(key, |slot| self.slots.key(slot));
        debug_assert!(there, "a used slot is in the index");
        if let Some((next, _)) = self.next_index.as_mut().filter(|(_, known)| slot < *known) {
            next.remove(key, |slot| self.slots.key(slot));
        }
        self.slots.set_key(slot, None);
    }

    /// Marks the entry of this block as superseded, in the checkpoint that is being loaded.
    pub(crate) fn supersede(&mut self, key: BlockKey) {
        if let Some(loading) = &mut self.loading {
            loading.supersede(key);
        }
    }

    /// Returns the first slot from `from` on that is known to the loading of a checkpoint.
    pub(crate) fn next_known(&self, from: u32) -> Option<u32> {
        self.loading.as_ref()?.known.next_set(from..self.len())
    }

    /// Releases a reserved slot: it is free as soon as it is not held or pinned any more.
    pub(crate) fn release(&mut self, slot: u32) {
        debug_assert!(self.slots.key(slot).is_none() && !self.slots.free.get(slot));
        if slot >= self.slots.len() {
            return;
        }
        if self.slots.masks(slot).held == 0 && !self.pins.pinned(slot) {
            self.slots.free.set(slot);
        } else {
            self.limbo.push(slot);
        }
    }

    /// Frees the unused slots that are not held or pinned any more.
    pub(crate) fn sweep_limbo(&mut self) {
        for slot in std::mem::take(&mut self.limbo) {
            if slot < self.slots.len() {
                self.release(slot);
            }
        }
    }

    /// Clears the list of slots that wait to be freed, when all unused slots are being freed.
    pub(crate) fn clear_limbo(&mut self) {
        self.limbo.clear();
    }

    pub(crate) fn is_free(&self, slot: u32) -> bool {
        self.slots.free.get(slot)
    }

    /// Frees an unused slot while the cache is being recovered.
    pub(crate) fn set_free(&mut self, slot: u32) {
        self.slots.free.set(slot);
    }

    /// Reserves a slot while the cache is being recovered, free or not.
    pub(crate) fn reserve(&mut self, slot: u32) {
        self.slots.free.clear(slot);
    }

    /// Frees all slots except `used`, while the cache is being recovered.
    pub(crate) fn free_all_except(&mut self, used: &Bitmap) {
        self.slots.free = used.complement();
    }

    /// Limits the slots that may be given to blocks to those below `limit`.
    pub(crate) fn set_slot_limit(&mut self, limit: u32) {
        self.slot_limit = limit;
    }

    /// Takes a free slot. While a checkpoint is being loaded, the slot is marked as known: no entry
    /// covers it, and it must not be taken for one whose entry is lost.
    fn take_free(&mut self, place: Range<u32>) -> Option<u32> {
        let slot = self.slots.take_free(place)?;
        if let Some(loading) = &mut self.loading {
            loading.known.set(slot);
        }
        Some(slot)
    }

    /// Reserves a free slot for a block.
    pub(crate) fn take_free_slot(&mut self, key: BlockKey) -> Option<u32> {
        let place = self.policy.place(key);
        let place = place.start..place.end.min(self.slot_limit);
        if let Some(slot) = self.take_free(place.clone()) {
            return Some(slot);
        }
        if self.limbo.is_empty() {
            return None;
        }
        self.sweep_limbo();
        self.take_free(place)
    }

    /// Chooses a block to evict for another, with `own` one of the same origin. Returns its slot;
    /// the policy has forgotten it.
    pub(crate) fn choose_victim(&mut self, key: BlockKey, own: bool) -> Option<u32> {
        let (slots, pins, limit) = (&self.slots, &self.pins, self.slot_limit);
        let mut may = |slot: SlotNr| {
            let masks = slots.masks(slot.0);
            let is_own = || slots.key(slot.0).is_some_and(|k| k.origin() == key.origin());
            masks.dirty == 0
                && masks.held == 0
                && !pins.pinned(slot.0)
                && slot.0 < limit
                && (!own || is_own())
        };
        let key_of = |slot: SlotNr| slots.key(slot.0).unwrap_or(BlockKey(u64::MAX));
        let slot = self.policy.evict(key, &mut may, &key_of)?.0;
        debug_assert!(self.policy.place(key).contains(&slot), "a block outside its set");
        Some(slot)
    }

    /// Enters up to `most` more slots into the index for `slots` slots. Returns false once all are
    /// entered.
    pub(crate) fn fill_next_index(&mut self, slots: u32, most: u32) -> bool {
        let (next, known) = self.next_index.get_or_insert_with(|| (Index::new(slots), 0));
        let all = self.slots.len().min(slots);
        let end = known.saturating_add(most).min(all);
        for slot in *known..end {
            if let Some(key) = self.slots.key(slot) {
                next.insert(key, slot);
            }
        }
        *known = if end == all { u32::MAX } else { end };
        end < all
    }

    /// Changes the number of slots. Slots that are removed are unused and not held, and the index
    /// for the new number is complete. The remaining work moves memory by the page, where it moves
    /// any, and initialises the new part.
    pub(crate) fn resize(&mut self, slots: u32) {
        if let Some((index, _)) = self.next_index.take() {
            self.index = index;
        }
        let before = self.slots.len();
        self.limbo.retain(|slot| *slot < slots);
        self.slots.resize(slots);
        self.policy.resize(slots);
        for slot in before..slots {
            self.slots.free.set(slot);
        }
        self.slot_limit = u32::MAX;
    }

    /// Checks the invariants of the slots and the index; for tests.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        let mut used = 0;
        for slot in 0..self.slots.len() {
            let masks = self.slots.masks(slot);
            if let Some(key) = self.slots.key(slot) {
                used += 1;
                assert_eq!(self.lookup(key), Some(slot), "the index leads to the slot");
                assert!(!self.slots.free.get(slot), "a used slot is not free");
                assert_ne!(masks.valid, 0);
            } else {
                assert_eq!(masks.valid | masks.dirty, 0);
                assert!(!(self.slots.free.get(slot) && masks.held != 0), "a free slot is held");
            }
        }
        assert_eq!(used, self.index.len());
    }
}
