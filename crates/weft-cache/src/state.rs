//! The state of a cache behind one lock, in parts that each are one idea: the residency of blocks,
//! the dirty state, the log, the requests in progress and the origins. Nothing here does I/O.
//!
//! Here are the steps that span parts. Invariants, in addition to those of the parts:
//! - a slot's state differs from what the log has been given only if the slot is touched, and a
//!   touched slot is pending in the log;
//! - the dirty state and the origins count what the masks of all slots say: all changes of masks go
//!   through [`CacheState::set_masks`].

use crate::admission::{Admission, AdmissionOptions, Place, Verdict};
use crate::dirty::Dirty;
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::log::Log;
use crate::origins::Origins;
use crate::pins::Pins;
use crate::policy::{BlockKey, Policy, SlotNr};
use crate::ranges::RangeId;
use crate::readahead::ReadAhead;
use crate::regions::{Intent, RegionKey};
use crate::requests::Requests;
use crate::residency::Residency;
use crate::slots::Masks;
use crate::stats::{Count, Counters};
use crate::store::zero_crc;
use crate::{Error, Result, SUB_BLOCK_BYTES};
use std::ops::Range;
use std::sync::Arc;

/// The condition of the cache and its device.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The reason why the cache device is not used any more.
    pub(crate) failed: Option<String>,
    pub(crate) closed: bool,
    /// Number of failed reads of the cache device.
    pub(crate) read_errors: u32,
    /// Whether the superblock says that clean blocks are not to be trusted.
    pub(crate) marked_untrusted: bool,
}

pub(crate) struct CacheState {
    pub(crate) residency: Residency,
    pub(crate) dirty: Dirty,
    pub(crate) log: Log,
    pub(crate) requests: Requests,
    pub(crate) origins: Origins,
    pub(crate) health: Health,
    pub(crate) admission: Admission,
    pub(crate) readahead: ReadAhead,
    pub(crate) now_ms: u64,
    pub(crate) counters: Arc<Counters>,
}

impl std::fmt::Debug for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheState").field("log", &self.log).finish_non_exhaustive()
    }
}

impl CacheState {
    /// Creates the state of an empty cache: no slot is used, and none is free yet.
    pub(crate) fn new(
        sb: Superblock,
        policy: Box<dyn Policy>,
        pins: Arc<Pins>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            residency: Residency::new(sb.slots, sb.subs(), policy, pins),
            dirty: Dirty::default(),
            origins: Origins::new(&sb),
            log: Log::new(sb),
            requests: Requests::default(),
            health: Health::default(),
            admission: Admission::new(AdmissionOptions::default(), 0),
            readahead: ReadAhead::default(),
            now_ms: 0,
            counters,
        }
    }

    /// Notes that a slot's change has to be logged.
    pub(crate) fn touch(&mut self, slot: u32) {
        if !self.log.persistent() {
            return;
        }
        self.counters.metadata_updates.add(1);
        self.log.must_commit_if_dirty(self.residency.masks(slot));
        if self.residency.slots().touched(slot) {
            self.counters.batched_updates.add(1);
            return;
        }
        let joins = self.log.add_pending(slot);
        self.counters.batched_updates.add(u64::from(joins));
        self.residency.set_touched(slot, true);
    }

    /// Changes the masks of a slot, and the counts that depend on them.
    pub(crate) fn set_masks(&mut self, slot: u32, masks: Masks) {
        let before = self.residency.masks(slot);
        self.residency.set_masks(slot, masks);
        self.dirty.count_held(before, masks);
        let (was, is) = (before.dirty.count_ones(), masks.dirty.count_ones());
        if was == is {
            return;
        }
        let Some(key) = self.residency.key(slot) else {
            debug_assert!(false, "an unused slot is not dirty");
            return;
        };
        let origin = self.origins.of_mut(key.origin());
        origin.dirty_subs = origin.dirty_subs + u64::from(is) - u64::from(was);
        self.dirty.count_dirty(self.region_of(key), was, is, self.now_ms);
    }

    /// Maps a block to a reserved slot.
    pub(crate) fn map(&mut self, slot: u32, key: BlockKey, masks: Masks) {
        self.residency.enter(slot, key);
        self.origins.of_mut(key.origin()).used_slots += 1;
        let held = self.residency.masks(slot).held;
        self.set_masks(slot, Masks { held, ..masks });
    }

    /// Empties a slot; sub-blocks that durable records refer to stay held. The slot is reserved
    /// afterwards.
    fn empty(&mut self, slot: u32, key: BlockKey) {
        let masks = self.residency.masks(slot);
        self.set_masks(slot, Masks { valid: masks.valid, held: masks.held, ..Masks::default() });
        self.dirty.forget_damage(slot);
        self.residency.leave(slot, key);
        self.set_masks(slot, Masks { held: masks.held, ..Masks::default() });
        self.origins.of_mut(key.origin()).used_slots -= 1;
        self.residency.supersede(key);
    }

    /// Removes a slot's block from the cache.
    pub(crate) fn unmap(&mut self, slot: u32) {
        let Some(key) = self.residency.key(slot) else { return };
        self.residency.policy.remove(SlotNr(slot), key);
        self.unmap_from_policy(slot, key);
        self.residency.release(slot);
    }

    fn unmap_from_policy(&mut self, slot: u32, key: BlockKey) {
        self.empty(slot, key);
        self.log.add_removed(key);
        self.touch(slot);
    }

    /// Does as [`unmap`](Self::unmap) while the log is replayed, without a new log record.
    pub(crate) fn unmap_replayed(&mut self, slot: u32) {
        if let Some(key) = self.residency.key(slot) {
            self.residency.policy.remove(SlotNr(slot), key);
            self.empty(slot, key);
            self.set_masks(slot, Masks::default());
        }
    }

    /// Does as [`invalidate`](Self::invalidate) for clean sub-blocks that any recovery would drop
    /// as well, without a log record. There may be more of them than the log has room for.
    pub(crate) fn drop_unlogged(&mut self, slot: u32, subs: u16) {
        let Some(key) = self.residency.key(slot) else { return };
        self.log.count_unlogged_drop();
        let masks = self.residency.masks(slot);
        let valid = masks.valid & !subs;
        if valid != 0 {
            let (dirty, zero) = (masks.dirty & valid, masks.zero & valid);
            self.set_masks(slot, Masks { valid, dirty, zero, ..masks });
            return;
        }
        self.residency.policy.remove(SlotNr(slot), key);
        self.empty(slot, key);
        self.residency.release(slot);
    }

    /// Reserves a free slot for a block.
    pub(crate) fn take_free_slot(&mut self, key: BlockKey) -> Option<u32> {
        if self.is_over_quota(key) { None } else { self.residency.take_free_slot(key) }
    }

    /// Reserves a slot for a block: a free one, or that of a block that it evicts.
    pub(crate) fn take_slot(&mut self, key: BlockKey) -> Option<u32> {
        if let Some(slot) = self.take_free_slot(key) {
            return Some(slot);
        }
        let slot = self.residency.choose_victim(key, self.is_over_quota(key))?;
        let evicted = self.residency.key(slot)?;
        self.counters.evictions.add(1);
        self.unmap_from_policy(slot, evicted);
        Some(slot)
    }

    /// Changes the number of slots, as [`Residency::resize`] does.
    pub(crate) fn resize(&mut self, slots: u32) {
        self.log.forget_slots_from(slots);
        self.residency.resize(slots);
    }

    /// Returns true if a clean record of this block may be durable, and so trusted after a crash.
    /// Blocks that were dropped without a log record are not tracked.
    pub(crate) fn may_be_believed(&self, key: BlockKey) -> bool {
        self.residency.loading.is_some()
            || self.log.unlogged_drops() > 0
            || self.residency.lookup(key).is_some()
            || self.log.is_removed(key)
    }

    /// Returns the label of a block's origin, and the byte offset there of a sub-block.
    pub(crate) fn place_of(&self, key: BlockKey, sub: u64) -> (String, u64) {
        let entry = self.log.sb.origins.get(usize::from(key.origin())).and_then(Option::as_ref);
        let label =
            entry.map_or_else(|| format!("origin {}", key.origin()), |e| e.id.label.clone());
        let offset =
            key.block() * u64::from(self.log.sb.block_bytes) + sub * SUB_BLOCK_BYTES as u64;
        (label, offset)
    }

    /// Checks all invariants; for tests.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        self.residency.check_invariants();
        let slots = || 0..self.residency.len();
        let dirty = |slot| u64::from(self.residency.masks(slot).dirty.count_ones());
        assert_eq!(slots().map(dirty).sum::<u64>(), self.dirty.subs());
        let touched = slots().filter(|slot| self.residency.slots().touched(*slot));
        assert_eq!(touched.count(), self.log.pending().len(), "touched slots are pending");
    }

    /// Returns the region that contains a block.
    pub(crate) fn region_of(&self, key: BlockKey) -> RegionKey {
        let shift = self.origins.of(key.origin()).region_shift;
        let byte = u128::from(key.block()) * u128::from(self.log.sb.block_bytes);
        RegionKey::new(key.origin(), (byte >> shift) as u32)
    }

    /// Removes sub-blocks from the cache; with the last one, the block.
    pub(crate) fn invalidate(&mut self, slot: u32, subs: u16) {
        let masks = self.residency.masks(slot);
        let valid = masks.valid & !subs;
        if valid == masks.valid {
            return;
        }
        if valid == 0 {
            self.unmap(slot);
            return;
        }
        let (dirty, zero) = (masks.dirty & valid, masks.zero & valid);
        let verified = masks.verified & valid;
        self.set_masks(slot, Masks { valid, dirty, zero, verified, held: masks.held });
        self.touch(slot);
    }

    /// Replaces dirty sub-blocks by zeroes, which are dirty as well.
    pub(crate) fn zero_dirty(&mut self, slot: u32, subs: u16) {
        let masks = self.residency.masks(slot);
        assert_eq!(masks.dirty & subs, subs, "slot {slot}: only dirty data becomes dirty zeroes");
        for sub in (0..16).filter(|sub| subs >> sub & 1 != 0) {
            self.residency.set_crc(slot, sub, zero_crc());
        }
        let (zero, verified) = (masks.zero | subs, masks.verified | subs);
        self.set_masks(slot, Masks { zero, verified, ..masks });
        // If other sub-blocks are damaged, the next write-back finds that again.
        self.dirty.forget_damage(slot);
        self.touch(slot);
    }

    /// Drops the clean sub-blocks of a slot that has no writer. They are logged only where
    /// necessary, as for [`drop_unlogged`](Self::drop_unlogged): intents keep the rest from being
    /// trusted.
    fn drop_clean(&mut self, slot: u32) {
        let masks = self.residency.masks(slot);
        let clean = masks.valid & !masks.dirty;
        if clean != 0 && masks.held == 0 && self.log.persistent() {
            self.drop_unlogged(slot, clean);
        } else {
            self.invalidate(slot, clean);
        }
    }

    /// Drops the clean sub-blocks of these blocks; of those being written, when their writer has
    /// finished.
    pub(crate) fn drop_clean_blocks(&mut self, origin: u16, blocks: Range<u64>) {
        self.requests.writers.mark(origin, &blocks);
        for block in blocks {
            let key = BlockKey::new(origin, block);
            if let Some(slot) =
                self.residency.lookup(key).filter(|_| !self.requests.writers.contains(key))
            {
                self.drop_clean(slot);
            }
        }
    }

    /// Ends a write: its blocks may have a new writer.
    pub(crate) fn leave_writer(&mut self, id: RangeId) {
        if let Some((origin, blocks)) = self.requests.writers.leave(id) {
            self.drop_clean_blocks(origin, blocks);
        }
    }

    /// Decides whether `subs` sub-blocks that the origin has enter the cache as well. `stream`:
    /// they are part of a long stream.
    pub(crate) fn admits(&mut self, key: BlockKey, subs: u32, stream: bool) -> bool {
        let place = self.place_for(key);
        let bytes = u64::from(subs) * SUB_BLOCK_BYTES as u64;
        let verdict = self.admission.judge(
            &mut *self.residency.policy,
            key,
            bytes,
            stream,
            place,
            self.now_ms,
        );
        let refused = match verdict {
            Verdict::Admit => return true,
            Verdict::Sequential => &self.counters.bypasses_sequential,
            Verdict::FirstUse => &self.counters.bypasses_first_use,
            Verdict::OverBudget => &self.counters.bypasses_over_budget,
        };
        refused.add(1);
        self.counters.bypasses.add(1);
        false
    }

    /// Does as [`admits`](Self::admits) for a prefetch, which must not evict another block.
    pub(crate) fn admits_prefetch(&mut self, key: BlockKey, subs: u32, stream: bool) -> bool {
        self.place_for(key) != Place::Taken && self.admits(key, subs, stream)
    }

    fn place_for(&self, key: BlockKey) -> Place {
        if self.residency.lookup(key).is_some() {
            Place::Own
        } else if self.is_over_quota(key) || self.residency.slots().free_count() == 0 {
            Place::Taken
        } else {
            Place::Free
        }
    }

    /// Returns true if the block's origin has used up its quota of slots.
    fn is_over_quota(&self, key: BlockKey) -> bool {
        let origin = &self.origins.of(key.origin());
        origin.quota_slots != 0 && u64::from(origin.used_slots) >= origin.quota_slots
    }

    /// Returns the first sub-block that is dirty, and not zeroes, in a byte range of an origin.
    pub(crate) fn first_dirty(&self, nr: u16, offset: u64, len_bytes: u64) -> Option<Range<u64>> {
        let (block_bytes, sub) = (u64::from(self.log.sb.block_bytes), SUB_BLOCK_BYTES as u64);
        let shift = self.origins.of(nr).region_shift;
        let end = offset + len_bytes;
        let dirty = self.dirty.regions.of(nr).filter(|(_, region)| region.dirty > 0);
        for (region, _) in dirty {
            let first = u64::from(region.region()) << shift;
            let (from, to) = (first.max(offset), (first + (1 << shift)).min(end));
            if from >= to {
                continue;
            }
            for block in from / block_bytes..to.div_ceil(block_bytes) {
                let Some(slot) = self.residency.lookup(BlockKey::new(nr, block)) else { continue };
                let masks = self.residency.masks(slot);
                let data = masks.dirty & !masks.zero;
                let subs = (0..16_u64).filter(|bit| data >> bit & 1 != 0);
                let places = subs.map(|bit| block * block_bytes + bit * sub);
                if let Some(at) = places.into_iter().find(|at| *at < end && at + sub > offset) {
                    return Some(at..at + sub);
                }
            }
        }
        None
    }

    /// Returns the intent of a block's region.
    pub(crate) fn intent(&self, key: BlockKey) -> Intent {
        self.dirty.regions.intent(self.region_of(key))
    }

    /// Applies a record that was read from the device. Its slot is reserved.
    pub(crate) fn recover(&mut self, record: &Record, key: BlockKey) {
        for (sub, crc) in record.crcs.iter().enumerate().take(self.log.sb.subs()) {
            self.residency.set_crc(record.slot, sub, *crc);
        }
        let (valid, dirty, zero) = (record.valid, record.dirty, record.zero);
        self.map(record.slot, key, Masks { valid, dirty, zero, ..Masks::default() });
        // The record is durable: its dirty sub-blocks are held.
        self.set_masks(record.slot, Masks { valid, dirty, zero, held: dirty, verified: 0 });
    }

    /// Returns an error if the cache is closed or has failed.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.health.closed {
            return Err(Error::Closed);
        }
        match &self.health.failed {
            Some(why) => Err(Error::Failed { dirty_bytes: self.dirty.bytes(), why: why.clone() }),
            None => Ok(()),
        }
    }
}
