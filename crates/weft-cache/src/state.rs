//! The state of a cache behind one lock: the slots, the index, the policy, the regions, and the
//! operations in progress. Nothing here does I/O.
//!
//! Invariants, in addition to those of the parts:
//! - a used slot's key leads to it through the index, and no other slot has the key;
//! - a slot's state differs from what the log has been given only if the slot is touched, and a
//!   touched slot is in `pending`;
//! - a slot is given to another block only when it is clean, not held and not pinned;
//! - `dirty_subs` and the regions count the dirty sub-blocks of all slots.

use crate::admission::{Admission, AdmissionOptions, Place, Verdict};
use crate::fills::Fills;
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::index::Index;
use crate::loading::Loading;
use crate::origin::Origin;
use crate::policy::{BlockKey, Policy, SlotNr};
use crate::ranges::{RangeId, Ranges};
use crate::readahead::ReadAhead;
use crate::regions::{Intent, RegionKey, Regions};
use crate::slots::{Masks, SlotTable};
use crate::stats::{Count, Counters};
use crate::tail::Last;
use crate::{Error, ORIGINS_MAX, OriginId, Result, SUB_BLOCK_BYTES};
use hashbrown::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Numbers of readers of the slots, counted for groups of slots. Incremented under the state's
/// lock, decremented without it.
#[derive(Debug)]
pub(crate) struct Pins(Vec<AtomicU32>);

impl Pins {
    pub(crate) fn new() -> Self {
        Self((0..4096).map(|_| AtomicU32::new(0)).collect())
    }

    fn of(&self, slot: u32) -> &AtomicU32 {
        &self.0[slot as usize % self.0.len()]
    }

    pub(crate) fn pin(&self, slot: u32) {
        self.of(slot).fetch_add(1, Ordering::Acquire);
    }

    pub(crate) fn unpin(&self, slot: u32) {
        self.of(slot).fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn pinned(&self, slot: u32) -> bool {
        self.of(slot).load(Ordering::Acquire) != 0
    }
}

/// Positions in the log, in block numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogPosition {
    /// The oldest block that recovery needs.
    pub(crate) tail: u64,
    /// The next block to be written.
    pub(crate) next: u64,
    /// The end of the durable part: all blocks with lower numbers are flushed.
    pub(crate) durable: u64,
    /// The sequence number of the newest checkpoint.
    pub(crate) checkpoint: u64,
}

/// State of an origin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OriginState {
    pub(crate) region_shift: u32,
    pub(crate) used_slots: u32,
    pub(crate) dirty_subs: u64,
    /// Maximum number of slots, 0 for all.
    pub(crate) quota_slots: u64,
    /// Whether records of this origin are trusted.
    pub(crate) known: bool,
}

pub(crate) struct State {
    pub(crate) slots: SlotTable,
    pub(crate) index: Index,
    /// The index for the cache's next size while it is built, and the number of slots entered in
    /// it.
    next_index: Option<(Index, u32)>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) admission: Admission,
    pub(crate) readahead: ReadAhead,
    pub(crate) regions: Regions,
    pub(crate) origins: [OriginState; ORIGINS_MAX],
    /// The attached origins, by number.
    pub(crate) attached: [Option<Arc<Origin>>; ORIGINS_MAX],
    /// Origins whose devices were detached, and `CachedDevice::held` of each device.
    pub(crate) without_cache: Vec<(OriginId, Weak<()>)>,
    /// Touched slots, in the order in which they were touched.
    pub(crate) pending: Vec<u32>,
    /// Whether the next flush must commit pending changes.
    pub(crate) must_commit: bool,
    /// Blocks that left the index since the last commit: a durable record may still refer to them.
    pub(crate) removed: HashSet<BlockKey>,
    /// Blocks that left the index before the commit in progress, and after the one before.
    pub(crate) removed_committing: HashSet<BlockKey>,
    /// Unused slots that are held or pinned.
    limbo: Vec<u32>,
    pub(crate) pins: Arc<Pins>,
    /// Blocks being written, each by one writer.
    pub(crate) writers: Ranges,
    /// Sub-blocks whose origin is being changed by a passed request: the writers of their blocks
    /// update the cache afterwards.
    pub(crate) passing: Ranges,
    /// Blocks whose origin is being changed by a request that drops them from the cache afterwards:
    /// until then they may be dirty, and must not be written back over the request's data.
    pub(crate) changing: Ranges,
    /// Blocks being written back.
    pub(crate) cleaning: Ranges,
    pub(crate) fills: Fills,
    pub(crate) loading: Option<Loading>,
    pub(crate) dirty_subs: u64,
    pub(crate) held_slots: u64,
    /// Slots of the commit in progress, each with the sub-blocks that were held before for durable
    /// records.
    pub(crate) held_before: Vec<(u32, u16)>,
    /// Number of writes in progress that overwrite dirty sub-blocks in place.
    pub(crate) in_place: u32,
    /// Whether a commit waits for `in_place` to become 0; no such writes may begin meanwhile.
    pub(crate) gathering: bool,
    pub(crate) sb: Superblock,
    pub(crate) log: LogPosition,
    /// A batch at the log's end, found by recovery, that may be incomplete.
    pub(crate) last_batch: Option<Last>,
    /// Number of dirty sub-blocks, found by recovery, of origins that the superblock has no record
    /// of.
    pub(crate) orphans: u64,
    /// Number of blocks dropped without a log record. Until a checkpoint that began after them, the
    /// reason for their drop (intents, an origin being forgotten) must stay, so that recovery drops
    /// them again.
    pub(crate) unlogged_drops: u64,
    /// Number of failed reads of the cache device.
    pub(crate) read_errors: u32,
    /// Whether the superblock says that clean blocks are not to be trusted.
    pub(crate) marked_untrusted: bool,
    /// The reason why the cache device is not used any more.
    pub(crate) failed: Option<String>,
    pub(crate) closed: bool,
    /// Whether the content of the cache outlives this opening.
    pub(crate) persistent: bool,
    /// End of the slots that may be given to blocks, while the cache is being shrunk.
    pub(crate) slot_limit: u32,
    /// Whether a commit has gathered its records and is not durable yet.
    pub(crate) commit_running: bool,
    /// Origins whose blocks are being forgotten, each with the next slot to examine.
    pub(crate) forgetting: Vec<(u16, u32)>,
    /// Slots with dirty data that does not match its checksum.
    pub(crate) damaged: HashSet<u32>,
    pub(crate) now_ms: u64,
    pub(crate) last_commit_ms: u64,
    /// Region at which write-back continues.
    pub(crate) elevator: RegionKey,
    pub(crate) counters: Arc<Counters>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sb", &self.sb)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Creates the state of an empty cache: no slot is used, and none is free yet.
    pub(crate) fn new(
        sb: Superblock,
        policy: Box<dyn Policy>,
        pins: Arc<Pins>,
        counters: Arc<Counters>,
    ) -> Self {
        let mut origins = [OriginState::default(); ORIGINS_MAX];
        for (state, entry) in origins.iter_mut().zip(&sb.origins) {
            if let Some(entry) = entry {
                state.region_shift = entry.region_shift;
                state.quota_slots = entry.quota_slots;
                state.known = !entry.forgetting;
            }
        }
        let forgotten = sb.origins.iter().enumerate();
        let forgotten = forgotten.filter(|(_, e)| e.as_ref().is_some_and(|e| e.forgetting));
        let forgetting = forgotten.map(|(nr, _)| (nr as u16, 0)).collect();
        Self {
            slots: SlotTable::new(sb.slots, sb.subs()),
            index: Index::new(sb.slots),
            next_index: None,
            policy,
            admission: Admission::new(AdmissionOptions::default(), 0),
            readahead: ReadAhead::default(),
            regions: Regions::default(),
            origins,
            attached: [const { None }; ORIGINS_MAX],
            without_cache: Vec::new(),
            pending: Vec::new(),
            must_commit: false,
            removed: HashSet::new(),
            removed_committing: HashSet::new(),
            limbo: Vec::new(),
            pins,
            writers: Ranges::default(),
            passing: Ranges::default(),
            changing: Ranges::default(),
            cleaning: Ranges::default(),
            fills: Fills::default(),
            loading: None,
            dirty_subs: 0,
            held_slots: 0,
            held_before: Vec::new(),
            in_place: 0,
            gathering: false,
            sb,
            log: LogPosition::default(),
            last_batch: None,
            orphans: 0,
            unlogged_drops: 0,
            read_errors: 0,
            marked_untrusted: false,
            failed: None,
            closed: false,
            persistent: true,
            slot_limit: u32::MAX,
            commit_running: false,
            forgetting,
            damaged: HashSet::new(),
            now_ms: 0,
            last_commit_ms: 0,
            elevator: RegionKey(0),
            counters,
        }
    }

    /// Returns the attached origin with this number.
    pub(crate) fn attached(&self, nr: u16) -> Option<Arc<Origin>> {
        self.attached.get(usize::from(nr)).cloned().flatten()
    }

    /// Returns the slot that holds a block.
    pub(crate) fn lookup(&self, key: BlockKey) -> Option<u32> {
        self.index.get(key, |slot| self.slots.key(slot))
    }

    /// Returns the region that contains a block.
    pub(crate) fn region_of(&self, key: BlockKey) -> RegionKey {
        let shift = self.origins[usize::from(key.origin() & 15)].region_shift;
        let byte = u128::from(key.block()) * u128::from(self.sb.block_bytes);
        RegionKey::new(key.origin(), (byte >> shift) as u32)
    }

    /// Returns the number of bytes that exist only in the cache.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_subs * SUB_BLOCK_BYTES as u64
    }

    /// Notes that a slot's change has to be logged.
    pub(crate) fn touch(&mut self, slot: u32) {
        if !self.persistent {
            return;
        }
        self.counters.metadata_updates.add(1);
        let masks = self.slots.masks(slot);
        self.must_commit |= (masks.dirty | masks.held) != 0;
        if self.slots.touched(slot) {
            self.counters.batched_updates.add(1);
            return;
        }
        // The first change of a batch, and each that overflows a block of the log, begins a write.
        let per_block = 4000 / crate::format::record::padded_bytes(self.sb.subs());
        self.counters.batched_updates.add(u64::from(!self.pending.len().is_multiple_of(per_block)));
        self.slots.set_touched(slot, true);
        self.pending.push(slot);
    }

    /// Changes the masks of a slot, and the counts that depend on them.
    pub(crate) fn set_masks(&mut self, slot: u32, masks: Masks) {
        let before = self.slots.masks(slot);
        self.slots.set_masks(slot, masks);
        match (before.held != 0, masks.held != 0) {
            (false, true) => self.held_slots += 1,
            (true, false) => self.held_slots -= 1,
            _ => {}
        }
        let (was, is) = (before.dirty.count_ones(), masks.dirty.count_ones());
        if was == is {
            return;
        }
        let Some(key) = self.slots.key(slot) else {
            debug_assert!(false, "an unused slot is not dirty");
            return;
        };
        let now_ms = self.now_ms;
        self.dirty_subs = self.dirty_subs + u64::from(is) - u64::from(was);
        let origin = &mut self.origins[usize::from(key.origin() & 15)];
        origin.dirty_subs = origin.dirty_subs + u64::from(is) - u64::from(was);
        self.regions.update(self.region_of(key), |region| {
            if region.dirty == 0 {
                region.dirty_since_ms = now_ms;
            }
            region.dirty = region.dirty + is - was;
        });
    }

    /// Maps a block to a reserved slot.
    pub(crate) fn map(&mut self, slot: u32, key: BlockKey, masks: Masks) {
        debug_assert!(self.slots.key(slot).is_none() && self.lookup(key).is_none());
        self.index.insert(key, slot);
        if let Some((next, _)) = self.next_index.as_mut().filter(|(_, known)| slot < *known) {
            next.insert(key, slot);
        }
        self.slots.set_key(slot, Some(key));
        self.origins[usize::from(key.origin() & 15)].used_slots += 1;
        let held = self.slots.masks(slot).held;
        self.set_masks(slot, Masks { held, ..masks });
    }

    /// Empties a slot and returns its block; sub-blocks that durable records refer to stay held.
    /// The slot is reserved afterwards.
    fn empty(&mut self, slot: u32) -> Option<BlockKey> {
        let key = self.slots.key(slot)?;
        let masks = self.slots.masks(slot);
        self.set_masks(slot, Masks { valid: masks.valid, held: masks.held, ..Masks::default() });
        self.damaged.remove(&slot);
        let there = self.index.remove(key, |slot| self.slots.key(slot));
        debug_assert!(there, "a used slot is in the index");
        if let Some((next, _)) = self.next_index.as_mut().filter(|(_, known)| slot < *known) {
            next.remove(key, |slot| self.slots.key(slot));
        }
        self.slots.set_key(slot, None);
        self.set_masks(slot, Masks { held: masks.held, ..Masks::default() });
        self.origins[usize::from(key.origin() & 15)].used_slots -= 1;
        Some(key)
    }

    /// Removes a slot's block from the cache.
    pub(crate) fn unmap(&mut self, slot: u32) {
        let Some(key) = self.slots.key(slot) else { return };
        self.policy.remove(SlotNr(slot), key);
        self.unmap_from_policy(slot, key);
        self.release(slot);
    }

    fn unmap_from_policy(&mut self, slot: u32, key: BlockKey) {
        self.empty(slot);
        if self.persistent {
            self.removed.insert(key);
        }
        if let Some(loading) = &mut self.loading {
            loading.supersede(key);
        }
        self.touch(slot);
    }

    /// Does as [`unmap`](Self::unmap) while the log is replayed, without a new log record.
    pub(crate) fn unmap_replayed(&mut self, slot: u32) {
        if let Some(key) = self.slots.key(slot) {
            self.policy.remove(SlotNr(slot), key);
            self.empty(slot);
            self.set_masks(slot, Masks::default());
            if let Some(loading) = &mut self.loading {
                loading.supersede(key);
            }
        }
    }

    /// Removes sub-blocks from the cache; with the last one, the block.
    pub(crate) fn invalidate(&mut self, slot: u32, subs: u16) {
        let masks = self.slots.masks(slot);
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

    /// Does as [`invalidate`](Self::invalidate) for clean sub-blocks that any recovery would drop
    /// as well, without a log record. There may be more of them than the log has room for.
    pub(crate) fn drop_unlogged(&mut self, slot: u32, subs: u16) {
        let Some(key) = self.slots.key(slot) else { return };
        self.unlogged_drops += 1;
        let masks = self.slots.masks(slot);
        let valid = masks.valid & !subs;
        if valid != 0 {
            let (dirty, zero) = (masks.dirty & valid, masks.zero & valid);
            self.set_masks(slot, Masks { valid, dirty, zero, ..masks });
            return;
        }
        self.policy.remove(SlotNr(slot), key);
        self.empty(slot);
        if let Some(loading) = &mut self.loading {
            loading.supersede(key);
        }
        self.release(slot);
    }

    /// Drops the clean sub-blocks of a slot that has no writer. They are logged only where
    /// necessary, as for [`drop_unlogged`](Self::drop_unlogged): intents keep the rest from being
    /// trusted.
    fn drop_clean(&mut self, slot: u32) {
        let masks = self.slots.masks(slot);
        let clean = masks.valid & !masks.dirty;
        if clean != 0 && masks.held == 0 && self.persistent {
            self.drop_unlogged(slot, clean);
        } else {
            self.invalidate(slot, clean);
        }
    }

    /// Drops the clean sub-blocks of these blocks; of those being written, when their writer has
    /// finished.
    pub(crate) fn drop_clean_blocks(&mut self, origin: u16, blocks: Range<u64>) {
        self.writers.mark(origin, &blocks);
        for block in blocks {
            let key = BlockKey::new(origin, block);
            if let Some(slot) = self.lookup(key).filter(|_| !self.writers.contains(key)) {
                self.drop_clean(slot);
            }
        }
    }

    /// Ends a write: its blocks may have a new writer.
    pub(crate) fn leave_writer(&mut self, id: RangeId) {
        if let Some((origin, blocks)) = self.writers.leave(id) {
            self.drop_clean_blocks(origin, blocks);
        }
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

    /// Returns true if slots are held that a commit may free.
    pub(crate) fn commit_would_free(&self) -> bool {
        self.held_slots > 0
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

    /// Decides whether `subs` sub-blocks that the origin has enter the cache as well. `stream`:
    /// they are part of a long stream.
    pub(crate) fn admits(&mut self, key: BlockKey, subs: u32, stream: bool) -> bool {
        let place = self.place_for(key);
        let bytes = u64::from(subs) * SUB_BLOCK_BYTES as u64;
        let verdict =
            self.admission.judge(&mut *self.policy, key, bytes, stream, place, self.now_ms);
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
        if self.lookup(key).is_some() {
            Place::Own
        } else if self.is_over_quota(key) || self.slots.free_count() == 0 {
            Place::Taken
        } else {
            Place::Free
        }
    }

    /// Returns true if the block's origin has used up its quota of slots.
    fn is_over_quota(&self, key: BlockKey) -> bool {
        let origin = &self.origins[usize::from(key.origin() & 15)];
        origin.quota_slots != 0 && u64::from(origin.used_slots) >= origin.quota_slots
    }

    /// Reserves a free slot for a block.
    pub(crate) fn take_free_slot(&mut self, key: BlockKey) -> Option<u32> {
        if self.is_over_quota(key) {
            return None;
        }
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

    /// Reserves a slot for a block: a free one, or that of a block that it evicts.
    pub(crate) fn take_slot(&mut self, key: BlockKey) -> Option<u32> {
        if let Some(slot) = self.take_free_slot(key) {
            return Some(slot);
        }
        let over = self.is_over_quota(key);
        let (slots, pins, limit) = (&self.slots, &self.pins, self.slot_limit);
        let mut may = |slot: SlotNr| {
            let masks = slots.masks(slot.0);
            let own = || slots.key(slot.0).is_some_and(|k| k.origin() == key.origin());
            masks.dirty == 0
                && masks.held == 0
                && !pins.pinned(slot.0)
                && slot.0 < limit
                && (!over || own())
        };
        let key_of = |slot: SlotNr| slots.key(slot.0).unwrap_or(BlockKey(u64::MAX));
        let slot = self.policy.evict(key, &mut may, &key_of)?.0;
        debug_assert!(self.policy.place(key).contains(&slot), "a block outside its set");
        let evicted = self.slots.key(slot)?;
        self.counters.evictions.add(1);
        self.unmap_from_policy(slot, evicted);
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
        self.pending.retain(|slot| *slot < slots);
        self.slots.resize(slots);
        self.policy.resize(slots);
        for slot in before..slots {
            self.slots.free.set(slot);
        }
        self.slot_limit = u32::MAX;
    }

    /// Returns true if a clean record of this block may be durable, and so trusted after a crash.
    /// Blocks that were dropped without a log record are not tracked.
    pub(crate) fn may_be_believed(&self, key: BlockKey) -> bool {
        self.loading.is_some()
            || self.unlogged_drops > 0
            || self.lookup(key).is_some()
            || self.removed.contains(&key)
            || self.removed_committing.contains(&key)
    }

    /// Returns the first sub-block that is dirty, and not zeroes, in a byte range of an origin.
    pub(crate) fn first_dirty(&self, nr: u16, offset: u64, len_bytes: u64) -> Option<Range<u64>> {
        let (block_bytes, sub) = (u64::from(self.sb.block_bytes), SUB_BLOCK_BYTES as u64);
        let shift = self.origins[usize::from(nr)].region_shift;
        let end = offset + len_bytes;
        let dirty = self.regions.of(nr).filter(|(_, region)| region.dirty > 0);
        for (region, _) in dirty {
            let first = u64::from(region.region()) << shift;
            let (from, to) = (first.max(offset), (first + (1 << shift)).min(end));
            if from >= to {
                continue;
            }
            for block in from / block_bytes..to.div_ceil(block_bytes) {
                let Some(slot) = self.lookup(BlockKey::new(nr, block)) else { continue };
                let masks = self.slots.masks(slot);
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
        self.regions.intent(self.region_of(key))
    }

    /// Applies a record that was read from the device. Its slot is reserved.
    pub(crate) fn recover(&mut self, record: &Record, key: BlockKey) {
        for (sub, crc) in record.crcs.iter().enumerate().take(self.sb.subs()) {
            self.slots.set_crc(record.slot, sub, *crc);
        }
        let (valid, dirty, zero) = (record.valid, record.dirty, record.zero);
        self.map(record.slot, key, Masks { valid, dirty, zero, ..Masks::default() });
        // The record is durable: its dirty sub-blocks are held.
        self.set_masks(record.slot, Masks { valid, dirty, zero, held: dirty, verified: 0 });
    }

    /// Returns an error if the cache is closed or has failed.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.closed {
            return Err(Error::Closed);
        }
        match &self.failed {
            Some(why) => Err(Error::Failed { dirty_bytes: self.dirty_bytes(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Checks all invariants; for tests.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        let mut dirty = 0;
        let mut used = 0;
        for slot in 0..self.slots.len() {
            let masks = self.slots.masks(slot);
            if let Some(key) = self.slots.key(slot) {
                used += 1;
                assert_eq!(self.lookup(key), Some(slot), "the index leads to the slot");
                assert!(!self.slots.free.get(slot), "a used slot is not free");
                assert_ne!(masks.valid, 0);
                dirty += u64::from(masks.dirty.count_ones());
            } else {
                assert_eq!(masks.valid | masks.dirty, 0);
                assert!(!(self.slots.free.get(slot) && masks.held != 0), "a free slot is held");
            }
        }
        assert_eq!(used, self.index.len());
        assert_eq!(dirty, self.dirty_subs);
    }
}
