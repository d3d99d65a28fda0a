//! Storing written data in the cache.
//!
//! A sub-block is overwritten in place unless a durable record marks it dirty: then its last
//! flushed version must stay, and the block moves to another slot together with its other
//! sub-blocks.

use crate::cache::Cache;
use crate::filling::Runs;
use crate::lock::Guard;
use crate::origin::{Link, Origin};
use crate::pins::Pinned;
use crate::policy::{BlockKey, SlotNr};
use crate::ranges::FILL_SUBS_MAX;
use crate::slots::Masks;
use crate::state::CacheState;
use crate::stats::Count;
use crate::{Error, Result, SUB_BLOCK_BYTES};
use crc32c::crc32c;
use std::ops::Range;

const SUB: u64 = SUB_BLOCK_BYTES as u64;

/// Options for storing data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Store {
    /// The data is dirty: the origin does not have it.
    pub(crate) dirty: bool,
    /// The uncached blocks that get a slot.
    pub(crate) allocate: Allocate,
    /// The data is all zeroes: only a flag is stored.
    pub(crate) zero: bool,
}

/// The uncached blocks that get a slot when they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocate {
    None,
    All,
    /// The blocks that are admitted.
    Admitted {
        /// The blocks are written by a long stream.
        stream: bool,
    },
}

/// The slot for the data of one block.
struct Target {
    block: u64,
    /// The sub-blocks that are stored.
    mask: u16,
    slot: u32,
    /// The slot that the block leaves, or `None` if it stays or is new.
    leaves: Option<u32>,
    new: bool,
    /// Sub-blocks that are copied to the new slot.
    moved: u16,
}

impl Cache {
    /// Stores sub-blocks `subs` of an origin. The caller has entered the blocks as their writer.
    /// Returns `Ok(false)` if there is no room; nothing was stored then.
    pub(crate) fn store(
        &self,
        nr: u16,
        subs: &Range<u64>,
        data: &[u8],
        how: Store,
    ) -> Result<bool> {
        debug_assert!(subs.end - subs.start <= FILL_SUBS_MAX || how.zero);
        let crcs: Vec<u32> = if how.zero {
            Vec::new()
        } else {
            data.chunks_exact(SUB_BLOCK_BYTES).map(crc32c).collect()
        };
        let mut pinned = Pinned::new(&self.pins);
        let mut st = self.lock();
        while st.requests.gathering() {
            st = self.wait(st);
        }
        // Checked after the wait: if the cache failed meanwhile, nothing may be overwritten.
        st.check_usable()?;
        let per_block = st.log.sb.subs() as u64;
        let Some(mut targets) = take_targets(&mut st, nr, subs, how, &mut pinned) else {
            return Ok(false);
        };
        let overwrites_dirty = targets
            .iter()
            .any(|t| !t.new && !how.zero && st.residency.masks(t.slot).dirty & t.mask != 0);
        if overwrites_dirty {
            st.requests.begin_in_place();
        }
        let place = (st.log.sb.data_offset, u64::from(st.log.sb.block_bytes));
        drop(st);

        let written = if how.zero {
            Ok(())
        } else {
            let mut runs = Runs::default();
            for t in &targets {
                for bit in (0..per_block).filter(|bit| t.mask >> bit & 1 != 0) {
                    let from = (t.block * per_block + bit - subs.start) * SUB;
                    runs.push(place.0 + u64::from(t.slot) * place.1 + bit * SUB, from as usize);
                }
            }
            runs.write(self, data)
        };
        // The overwritten data may be neither old nor new, and exists nowhere else: the cache
        // device is marked as failed before the next commit, so that no flush reports it durable.
        let written = if overwrites_dirty { written.map_err(|e| self.fail(e)) } else { written };
        let stored = written.is_ok();
        let written = written.and_then(|()| self.move_along(nr, &mut targets, place));

        let mut st = self.lock();
        if overwrites_dirty {
            st.requests.end_in_place();
        }
        for t in targets {
            let key = BlockKey::new(nr, t.block);
            if !stored || (t.new && written.is_err()) {
                give_up(&mut st, &t);
                continue;
            }
            publish(&mut st, &t, key, how);
            for bit in (0..per_block).filter(|bit| t.mask >> bit & 1 != 0) {
                let crc = if how.zero {
                    zero_crc()
                } else {
                    crcs[(t.block * per_block + bit - subs.start) as usize]
                };
                st.residency.set_crc(t.slot, bit as usize, crc);
            }
            st.touch(t.slot);
        }
        drop(st);
        self.notify();
        written.map(|()| true)
    }

    /// Copies the sub-blocks that move to another slot together with the written ones. Verifies
    /// their checksums: damaged data must not get a new one.
    fn move_along(
        &self,
        nr: u16,
        targets: &mut [Target],
        (data_offset, block_bytes): (u64, u64),
    ) -> Result<()> {
        for t in targets.iter_mut().filter(|t| t.moved != 0) {
            let Some(old) = t.leaves else { continue };
            let moved = t.moved;
            for bit in (0..16).filter(|bit| moved >> bit & 1 != 0) {
                let mut data = vec![0; SUB_BLOCK_BYTES];
                self.read_cache(&mut data, data_offset + u64::from(old) * block_bytes + bit * SUB)?;
                let (crc, dirty) = {
                    let mut st = self.lock();
                    let crc = st.residency.crc(old, bit as usize);
                    st.residency.set_crc(t.slot, bit as usize, crc);
                    (crc, st.residency.masks(old).dirty >> bit & 1 != 0)
                };
                if crc32c(&data) != crc {
                    if dirty {
                        self.counters.dirty_damaged.add(1);
                        let key = BlockKey::new(nr, t.block);
                        let (label, offset) = self.lock().place_of(key, bit);
                        return Err(Error::DirtyDamaged {
                            label,
                            offset,
                            len_bytes: SUB,
                            slot: old,
                        });
                    }
                    t.moved &= !(1 << bit);
                    continue;
                }
                self.write_cache(&data, data_offset + u64::from(t.slot) * block_bytes + bit * SUB)?;
            }
        }
        Ok(())
    }

    /// Enters blocks of an origin as their only writer, and keeps fills from storing data older
    /// than the write. If `cleaned` returns true, it also waits until no write-back of these blocks
    /// is in progress. Returns `None` if the origin was detached.
    pub(crate) fn enter_writer(
        &self,
        origin: &Origin,
        blocks: &Range<u64>,
        cleaned: impl Fn(&CacheState) -> bool,
    ) -> Result<Option<(Guard<'_, CacheState>, crate::ranges::RangeId)>> {
        let nr = origin.nr;
        let mut st = self.lock();
        loop {
            let link = origin.link();
            if link == Link::Gone {
                return Ok(None);
            }
            if st.health.closed {
                return Err(Error::Closed);
            }
            let wait = link == Link::Leaving
                || st.requests.writers.overlaps(nr, blocks)
                || (st.requests.cleaning.overlaps(nr, blocks) && cleaned(&st));
            if !wait {
                break;
            }
            st = self.wait(st);
        }
        let id = st.requests.writers.enter(nr, blocks.clone());
        let per_block = st.log.sb.subs() as u64;
        st.requests.fills.cancel(nr, &(blocks.start * per_block..blocks.end * per_block));
        Ok(Some((st, id)))
    }

    pub(crate) fn leave_writer(&self, id: crate::ranges::RangeId) {
        self.lock().leave_writer(id);
        self.notify();
    }
}

/// Returns the checksum of 4 KiB of zeroes.
pub(crate) fn zero_crc() -> u32 {
    const ZEROES: [u8; SUB_BLOCK_BYTES] = [0; SUB_BLOCK_BYTES];
    crc32c(&ZEROES)
}

/// Finds a slot for each block, or returns `None` if there are not enough.
fn take_targets(
    st: &mut CacheState,
    nr: u16,
    subs: &Range<u64>,
    how: Store,
    pinned: &mut Pinned<'_>,
) -> Option<Vec<Target>> {
    let per_block = st.log.sb.subs() as u64;
    let mut targets: Vec<Target> = Vec::new();
    for block in subs.start / per_block..subs.end.div_ceil(per_block) {
        let key = BlockKey::new(nr, block);
        let first = block * per_block;
        let mut mask = 0_u16;
        for sub in first.max(subs.start)..(first + per_block).min(subs.end) {
            mask |= 1 << (sub - first);
        }
        let slot = st.residency.lookup(key);
        let mut paid = false;
        if slot.is_none() {
            match how.allocate {
                Allocate::None => continue,
                Allocate::All => {}
                Allocate::Admitted { stream } => {
                    if !st.admits(key, mask.count_ones(), stream) {
                        continue;
                    }
                    paid = true;
                }
            }
        }
        if !paid && !how.zero {
            let bytes = u64::from(mask.count_ones()) * SUB;
            st.admission.charge(bytes, st.now_ms);
        }
        if let Some(slot) = slot {
            pinned.pin(slot);
            if how.zero || st.residency.masks(slot).held & mask == 0 {
                targets.push(Target { block, mask, slot, leaves: None, new: false, moved: 0 });
                continue;
            }
        }
        match st.take_slot(key) {
            Some(new) => {
                let moved = slot.map_or(0, |old| {
                    let masks = st.residency.masks(old);
                    masks.valid & !mask & !masks.zero
                });
                targets.push(Target { block, mask, slot: new, leaves: slot, new: true, moved });
            }
            // Data that the origin has need not be in the cache; but an older version must not be.
            None if !how.dirty => {
                if let Some(old) = slot {
                    st.invalidate(old, mask);
                }
            }
            None => {
                for t in targets.iter().filter(|t| t.new) {
                    st.residency.release(t.slot);
                }
                return None;
            }
        }
    }
    Some(targets)
}

/// Makes the target slot's new content the content of the block.
fn publish(st: &mut CacheState, t: &Target, key: BlockKey, how: Store) {
    let before = match t.leaves {
        Some(old) => {
            let masks = st.residency.masks(old);
            st.unmap(old);
            let kept = t.moved | masks.zero;
            for bit in (0..16).filter(|bit| masks.zero >> bit & 1 != 0) {
                st.residency.set_crc(t.slot, bit, zero_crc());
            }
            let (valid, dirty) = (masks.valid & kept, masks.dirty & kept);
            Masks { valid, dirty, held: 0, zero: masks.zero, verified: kept }
        }
        None if t.new => Masks::default(),
        None => st.residency.masks(t.slot),
    };
    let set = |mask: u16, on: bool| if on { mask | t.mask } else { mask & !t.mask };
    let after = Masks {
        valid: before.valid | t.mask,
        dirty: set(before.dirty, how.dirty),
        zero: set(before.zero, how.zero),
        verified: before.verified | t.mask,
        held: before.held,
    };
    if t.new {
        st.map(t.slot, key, after);
        st.residency.policy.insert(SlotNr(t.slot), key);
    } else {
        st.set_masks(t.slot, after);
        st.residency.policy.hit(SlotNr(t.slot), key);
        // What was damaged may be replaced now; if not, the next write-back finds it again.
        st.dirty.forget_damage(t.slot);
    }
}

/// Handles a failed write of the cache device: the content of the slot is unknown, or data that
/// should have moved there is damaged.
fn give_up(st: &mut CacheState, t: &Target) {
    if t.new {
        st.residency.release(t.slot);
        if let Some(old) = t.leaves {
            // It is unchanged since before the write.
            debug_assert!(st.residency.key(old).is_some());
        }
        return;
    }
    let masks = st.residency.masks(t.slot);
    // A partly overwritten dirty sub-block is detected by its checksum, and the cache has failed.
    let verified = masks.verified & !t.mask;
    st.set_masks(t.slot, Masks { verified, ..masks });
    st.invalidate(t.slot, t.mask & !masks.dirty);
}
