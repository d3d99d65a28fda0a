//! What a cache knows, behind one lock: the slots, the index, the policy, the regions, and what is
//! going on. Nothing here does I/O.
//!
//! Invariants, beside those of the parts:
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

/// How many readers are in the slots, counted for groups of slots. Taken under the state's lock,
/// given back without it.
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

/// Where the log stands, in numbers of blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogPosition {
    /// The oldest block that recovery needs.
    pub(crate) tail: u64,
    /// The next to be written.
    pub(crate) next: u64,
    /// All blocks with lower numbers are flushed.
    pub(crate) durable: u64,
    /// The sequence number of the newest checkpoint.
    pub(crate) checkpoint: u64,
}

/// What the state knows of an origin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OriginState {
    pub(crate) region_shift: u32,
    pub(crate) used_slots: u32,
    pub(crate) dirty_subs: u64,
    /// The most slots, 0 for all.
    pub(crate) quota_slots: u64,
    /// Its entries are believed.
    pub(crate) known: bool,
}

pub(crate) struct State {
    pub(crate) slots: SlotTable,
    pub(crate) index: Index,
    /// The index of the cache's next size while it is built, and how many slots it knows.
    next_index: Option<(Index, u32)>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) admission: Admission,
    pub(crate) readahead: ReadAhead,
    pub(crate) regions: Regions,
    pub(crate) origins: [OriginState; ORIGINS_MAX],
    /// By number; those that are attached.
    pub(crate) attached: [Option<Arc<Origin>>; ORIGINS_MAX],
    /// Origins whose devices were detached, and `CachedDevice::held` of each device.
    pub(crate) without_cache: Vec<(OriginId, Weak<()>)>,
    /// Touched slots, in the order in which they were.
    pub(crate) pending: Vec<u32>,
    /// Something pending is part of what a flush promises.
    pub(crate) must_commit: bool,
    /// Blocks that left the index since the last commit: a durable record may still name them.
    pub(crate) removed: HashSet<BlockKey>,
    /// The same, of the commit in progress.
    pub(crate) removed_committing: HashSet<BlockKey>,
    /// Slots that are unused, and held or pinned.
    limbo: Vec<u32>,
    pub(crate) pins: Arc<Pins>,
    /// Blocks being written, each by one writer.
    pub(crate) writers: Ranges,
    /// Sub-blocks whose origin is being changed by a request that passes the cache: the writers of
    /// their blocks bring the cache up to date afterwards.
    pub(crate) passing: Ranges,
    /// Blocks whose origin is being changed by a request that drops them from the cache afterwards: until
    /// then they may be dirty, and must not be written back over what the request brings.
    pub(crate) changing: Ranges,
    /// Blocks being written back.
    pub(crate) cleaning: Ranges,
    pub(crate) fills: Fills,
    pub(crate) loading: Option<Loading>,
    pub(crate) dirty_subs: u64,
    pub(crate) held_slots: u64,
    /// Slots of the commit in progress, each with what was held of it for durable records before.
    pub(crate) held_before: Vec<(u32, u16)>,
    /// Writes to dirty sub-blocks in place, in progress.
    pub(crate) in_place: u32,
    /// A commit waits for these, and no new ones may begin.
    pub(crate) gathering: bool,
    pub(crate) sb: Superblock,
    pub(crate) log: LogPosition,
    /// Recovery has found a batch at the log's end that may not be whole.
    pub(crate) last_batch: Option<Last>,
    /// Dirty sub-blocks that recovery has found of origins that the superblock does not know.
    pub(crate) orphans: u64,
    /// Blocks that were dropped, and the log was not told: until a checkpoint that began after
    /// that, what made them be dropped (intents, an origin's being forgotten) must stay, to drop
    /// them again.
    pub(crate) unlogged_drops: u64,
    /// Reads that the cache device failed.
    pub(crate) read_errors: u32,
    /// The superblock says that clean blocks are not to be believed.
    pub(crate) marked_untrusted: bool,
    /// Why the cache device is not used any more.
    pub(crate) failed: Option<String>,
    pub(crate) closed: bool,
    /// Whether anything outlives this opening.
    pub(crate) persistent: bool,
    /// Slots from here on are not given to blocks: the cache is being made smaller.
    pub(crate) slot_limit: u32,
    /// A commit has gathered, and is not durable yet.
    pub(crate) commit_running: bool,
    /// Origins whose blocks are being forgotten, each with the next slot to look at.
    pub(crate) forgetting: Vec<(u16, u32)>,
    /// Slots with dirty data that does not match its checksum.
    pub(crate) damaged: HashSet<u32>,
    pub(crate) now_ms: u64,
    pub(crate) last_commit_ms: u64,
    /// Where write-back goes on.
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
    /// An empty cache: no slot is used, and none is free yet.
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

    /// The attached origin with this number.
    pub(crate) fn attached(&self, nr: u16) -> Option<Arc<Origin>> {
        self.attached.get(usize::from(nr)).cloned().flatten()
    }

    /// The slot that holds a block.
    pub(crate) fn lookup(&self, key: BlockKey) -> Option<u32> {
        self.index.get(key, |slot| self.slots.key(slot))
    }

    /// The region a block lies in.
    pub(crate) fn region_of(&self, key: BlockKey) -> RegionKey {
        let shift = self.origins[usize::from(key.origin() & 15)].region_shift;
        let byte = u128::from(key.block()) * u128::from(self.sb.block_bytes);
        RegionKey::new(key.origin(), (byte >> shift) as u32)
    }

    /// Bytes that are nowhere but in the cache.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_subs * SUB_BLOCK_BYTES as u64
    }

    /// Notes that the log has to be told of a slot.
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
        // The first of a batch, and each that overflows a block of the log, begins a write.
        let per_block = 4000 / crate::format::record::padded_bytes(self.sb.subs());
        self.counters.batched_updates.add(u64::from(!self.pending.len().is_multiple_of(per_block)));
        self.slots.set_touched(slot, true);
        self.pending.push(slot);
    }

    /// Changes the masks of a slot, and what is counted by them.
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

    /// Puts a block into a reserved slot.
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

    /// Empties a slot, whatever was in it; what durable records hold of it stays held. The slot is
    /// reserved then.
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

    /// Takes a block out of the cache.
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

    /// As [`unmap`](Self::unmap) while the log is replayed: the log says so itself.
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

    /// Takes sub-blocks out of the cache; with the last one, the block.
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

    /// As [`invalidate`](Self::invalidate), of clean sub-blocks that any other recovery would drop
    /// as well: the log is not told. There may be more of them than it has room for.
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

    /// Drops what is clean in a slot that nobody writes to. The log is told only where it must be, as for
    /// [`drop_unlogged`](Self::drop_unlogged): intents keep the rest from being believed.
    fn drop_clean(&mut self, slot: u32) {
        let masks = self.slots.masks(slot);
        let clean = masks.valid & !masks.dirty;
        if clean != 0 && masks.held == 0 && self.persistent {
            self.drop_unlogged(slot, clean);
        } else {
            self.invalidate(slot, clean);
        }
    }

    /// Drops what is clean of these blocks; of those that somebody writes to now, when he is done.
    pub(crate) fn drop_clean_blocks(&mut self, origin: u16, blocks: Range<u64>) {
        self.writers.mark(origin, &blocks);
        for block in blocks {
            let key = BlockKey::new(origin, block);
            if let Some(slot) = self.lookup(key).filter(|_| !self.writers.contains(key)) {
                self.drop_clean(slot);
            }
        }
    }

    /// The only writer of some blocks is done.
    pub(crate) fn leave_writer(&mut self, id: RangeId) {
        if let Some((origin, blocks)) = self.writers.leave(id) {
            self.drop_clean_blocks(origin, blocks);
        }
    }

    /// Gives back a reserved slot: it is free as soon as nothing holds it.
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

    /// Frees what is not held and pinned any more.
    pub(crate) fn sweep_limbo(&mut self) {
        for slot in std::mem::take(&mut self.limbo) {
            if slot < self.slots.len() {
                self.release(slot);
            }
        }
    }

    /// Forgets which slots wait to be freed: all unused ones are being freed.
    pub(crate) fn clear_limbo(&mut self) {
        self.limbo.clear();
    }

    /// Whether unused slots wait for a commit that lets go of them.
    pub(crate) fn commit_would_free(&self) -> bool {
        self.held_slots > 0
    }

    /// A free slot. While a checkpoint is being loaded, it is known from now on: no entry tells of
    /// it, and it must not be taken for one whose entry is lost.
    fn take_free(&mut self, place: Range<u32>) -> Option<u32> {
        let slot = self.slots.take_free(place)?;
        if let Some(loading) = &mut self.loading {
            loading.known.set(slot);
        }
        Some(slot)
    }

    /// Whether `subs` sub-blocks that the origin has are put into the cache, too. `stream`: they
    /// are part of a long stream.
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

    /// As [`admits`](Self::admits) for a prefetch, which must not evict another block.
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

    /// Whether the block's origin has used up its quota of slots.
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

    /// A slot for a block: a free one, or that of a block that is given up. It is reserved.
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

    /// Enters some more slots into the index for `slots` slots. `false`: all are.
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

    /// Changes the number of slots. Those that go are unused and not held, and the index for the
    /// new number is complete. What is left to do moves memory by the page, where it moves at all,
    /// and writes what is new.
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

    /// Whether a clean record of this block may be durable, and so may be believed after a crash. What
    /// was dropped without telling the log is known by nobody.
    pub(crate) fn may_be_believed(&self, key: BlockKey) -> bool {
        self.loading.is_some()
            || self.unlogged_drops > 0
            || self.lookup(key).is_some()
            || self.removed.contains(&key)
            || self.removed_committing.contains(&key)
    }

    /// The first sub-block that is dirty, and not zeroes, among these bytes of an origin.
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

    /// The intent of the region of a block.
    pub(crate) fn intent(&self, key: BlockKey) -> Intent {
        self.regions.intent(self.region_of(key))
    }

    /// Takes a record that was read from the device. Its slot is reserved.
    pub(crate) fn recover(&mut self, record: &Record, key: BlockKey) {
        for (sub, crc) in record.crcs.iter().enumerate().take(self.sb.subs()) {
            self.slots.set_crc(record.slot, sub, *crc);
        }
        let (valid, dirty, zero) = (record.valid, record.dirty, record.zero);
        self.map(record.slot, key, Masks { valid, dirty, zero, ..Masks::default() });
        // The record is durable: what it calls dirty is held.
        self.set_masks(record.slot, Masks { valid, dirty, zero, held: dirty, verified: 0 });
    }

    /// Refuses further use of a cache that is closed or has failed.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.closed {
            return Err(Error::Closed);
        }
        match &self.failed {
            Some(why) => Err(Error::Failed { dirty_bytes: self.dirty_bytes(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Looks at everything; for tests.
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
