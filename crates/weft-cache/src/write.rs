//! Writing through the cache.
//!
//! A request is cut into pieces of at most 1 MiB, and a piece into runs of blocks that are treated
//! alike: *absorbed* (the cache takes the write, and the origin gets it later) or *passed* (the
//! origin takes it, and then the cache is updated). A writer has exclusive access to its blocks.

use crate::data::Data;
use crate::device::CachedDevice;
use crate::origin::Link;
use crate::policy::BlockKey;
use crate::ranges::{FILL_SUBS_MAX, RangeId};
use crate::regions::{Intent, RegionKey};
use crate::state::CacheState;
use crate::stats::Count;
use crate::store::{Allocate, Store};
use crate::{Error, Mode, Result, SUB_BLOCK_BYTES};
use crc32c::crc32c;
use std::ops::Range;

const SUB: u64 = SUB_BLOCK_BYTES as u64;

/// A change of the origin that passes the cache, while it is in progress.
#[must_use]
pub(crate) struct OriginChange {
    regions: Vec<RegionKey>,
    subs: RangeId,
}

impl CachedDevice {
    pub(crate) fn write(&self, data: Data<'_>, offset: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done;
            // Pieces end at block boundaries, whatever the block size.
            let end = (at / SUB / FILL_SUBS_MAX + 1) * FILL_SUBS_MAX * SUB;
            let len = (end - at).min(data.len() - done);
            self.write_piece(data.part(done, done + len), at)?;
            done += len;
        }
        Ok(())
    }

    fn write_piece(&self, data: Data<'_>, offset: u64) -> Result<()> {
        let cache = &*self.cache;
        let nr = self.origin.nr;
        if self.origin.link() == Link::Gone {
            return self.write_without_cache(data, offset);
        }
        cache.commit_if_much().or_else(|error| self.pass_if_failed(error))?;
        self.throttle(data.len())?;
        let (block_bytes, stream) = {
            let mut st = cache.lock();
            let stream = st.admission.observe(nr, offset, data.len());
            (u64::from(st.log.sb.block_bytes), stream)
        };
        let end = offset + data.len();
        let blocks = offset / block_bytes..end.div_ceil(block_bytes);
        let origin = &self.origin;
        let entered = cache.enter_writer(origin, &blocks, |_| !origin.mode().writes_back())?;
        let Some((st, id)) = entered else { return self.write_without_cache(data, offset) };
        let mode = self.origin.mode();
        let absorbs = |st: &CacheState, block: u64| {
            let slot = st.residency.lookup(BlockKey::new(nr, block));
            mode.writes_back() || slot.is_some_and(|slot| st.residency.masks(slot).dirty != 0)
        };
        let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
        for block in blocks {
            let absorb = absorbs(&st, block);
            match runs.last_mut() {
                Some((run, same)) if *same == absorb => run.end = block + 1,
                _ => runs.push((block..block + 1, absorb)),
            }
        }
        drop(st);
        let result = runs.into_iter().try_for_each(|(run, absorb)| {
            let from = (run.start * block_bytes).max(offset);
            let to = (run.end * block_bytes).min(end);
            let part = data.part(from - offset, to - offset);
            if absorb {
                self.absorb(part, from, mode, stream)
            } else {
                self.pass(part, from, mode, stream)
            }
        });
        cache.leave_writer(id);
        result
    }

    /// Writes to the origin, from which the cache was detached.
    fn write_without_cache(&self, data: Data<'_>, offset: u64) -> Result<()> {
        let device = &self.origin.device;
        match data {
            Data::Bytes(bytes) => device.write_at(bytes, offset),
            Data::Zeroes(len) => device.write_zeroes(offset, len),
        }
        .map_err(|e| self.origin.failed(&self.cache.counters, e))
    }

    /// Writes to the cache; the origin gets the data later.
    fn absorb(&self, data: Data<'_>, offset: u64, mode: Mode, stream: bool) -> Result<()> {
        let cache = &*self.cache;
        let end = offset + data.len();
        let subs = offset / SUB..end.div_ceil(SUB);
        let aligned = offset.is_multiple_of(SUB)
            && (end.is_multiple_of(SUB) || end == self.origin.id.len_bytes);
        let zero = aligned && matches!(data, Data::Zeroes(_));
        let mut whole;
        let bytes = match data {
            _ if zero => &[][..],
            Data::Bytes(bytes) if aligned && end.is_multiple_of(SUB) => bytes,
            _ => {
                whole = vec![0; ((subs.end - subs.start) * SUB) as usize];
                match self.read_bases(&subs, offset, end, &mut whole) {
                    // A sector of the origin cannot be read, and maybe not one of those written.
                    Err(Error::Origin { .. }) if !self.any_dirty(&subs) => {
                        return self.pass(data, offset, mode, stream);
                    }
                    read => read?,
                }
                let from = (offset - subs.start * SUB) as usize;
                data.copy_to(&mut whole[from..from + data.len() as usize]);
                &whole[..]
            }
        };
        let how = Store { dirty: true, allocate: Allocate::All, zero };
        loop {
            if cache.store(self.origin.nr, &subs, bytes, how)? {
                cache.wake_writeback();
                return Ok(());
            }
            cache.counters.throttled_writes.add(1);
            if !cache.make_room()? {
                break;
            }
        }
        // No slot is available, not even after writing back: the origin takes the write, if the
        // cache has no older dirty version of it.
        if self.any_dirty(&subs) {
            let why = "the cache is full of dirty data".to_owned();
            return Err(Error::StillDirty { dirty_bytes: cache.lock().dirty.bytes(), why });
        }
        self.pass(data, offset, mode, stream)
    }

    /// Returns true if a block of these sub-blocks has dirty data.
    fn any_dirty(&self, subs: &Range<u64>) -> bool {
        let st = self.cache.lock();
        let per_block = st.log.sb.subs() as u64;
        (subs.start / per_block..subs.end.div_ceil(per_block)).any(|block| {
            let slot = st.residency.lookup(BlockKey::new(self.origin.nr, block));
            slot.is_some_and(|slot| st.residency.masks(slot).dirty != 0)
        })
    }

    /// Reads the present content of the first and the last sub-block, as far as they are written in
    /// part, into `whole`. The caller is their writer.
    fn read_bases(&self, subs: &Range<u64>, offset: u64, end: u64, whole: &mut [u8]) -> Result<()> {
        if !offset.is_multiple_of(SUB) {
            self.read_base(subs.start, &mut whole[..SUB_BLOCK_BYTES])?;
        }
        let one = subs.end - subs.start == 1 && !offset.is_multiple_of(SUB);
        if !end.is_multiple_of(SUB) && end != self.origin.id.len_bytes && !one {
            let last = whole.len() - SUB_BLOCK_BYTES;
            self.read_base(subs.end - 1, &mut whole[last..])?;
        }
        Ok(())
    }

    /// Reads the present content of a sub-block that is written in part. The caller is its writer.
    fn read_base(&self, sub: u64, out: &mut [u8]) -> Result<()> {
        let at = sub * SUB;
        let len = (self.origin.id.len_bytes - at).min(SUB) as usize;
        self.read_for_writer(&mut out[..len], at)
    }

    /// Reads one sub-block without starting a fill, and without waiting for writers.
    fn read_for_writer(&self, out: &mut [u8], at: u64) -> Result<()> {
        let cache = &*self.cache;
        let sub = at / SUB;
        let mut pinned = crate::pins::Pinned::new(&cache.pins);
        let found = {
            let st = cache.lock();
            let per_block = st.log.sb.subs() as u64;
            let bit = (sub % per_block) as usize;
            st.residency.lookup(BlockKey::new(self.origin.nr, sub / per_block)).and_then(|slot| {
                let masks = st.residency.masks(slot);
                if masks.valid >> bit & 1 == 0 {
                    return None;
                }
                pinned.pin(slot);
                let offset = st.log.sb.slot_offset(slot) + bit as u64 * SUB;
                let dirty = masks.dirty >> bit & 1 != 0;
                Some((slot, offset, st.residency.crc(slot, bit), masks.zero >> bit & 1 != 0, dirty))
            })
        };
        let origin = &*self.origin;
        match found {
            Some((_, _, _, true, _)) => out.fill(0),
            Some((slot, offset, crc, false, dirty)) => {
                let mut data = vec![0; SUB_BLOCK_BYTES];
                let intact = match cache.read_cache(&mut data, offset) {
                    Ok(()) => crc32c(&data) == crc,
                    Err(error) if dirty => return Err(error),
                    Err(_) => false,
                };
                if intact {
                    out.copy_from_slice(&data[..out.len()]);
                } else if dirty {
                    cache.counters.dirty_damaged.add(1);
                    let (label, offset) = (origin.id.label.clone(), sub * SUB);
                    return Err(Error::DirtyDamaged { label, offset, len_bytes: SUB, slot });
                } else {
                    cache.counters.heals.add(1);
                    origin
                        .device
                        .read_at(out, at)
                        .map_err(|e| origin.failed(&cache.counters, e))?;
                }
            }
            None => {
                origin.device.read_at(out, at).map_err(|e| origin.failed(&cache.counters, e))?;
            }
        }
        Ok(())
    }

    /// Writes to the origin, and updates the cache.
    fn pass(&self, data: Data<'_>, offset: u64, mode: Mode, stream: bool) -> Result<()> {
        let cache = &*self.cache;
        let end = offset + data.len();
        let change = self.enter_origin(offset, end)?;
        let origin = &*self.origin;
        let written = match data {
            Data::Bytes(bytes) => origin.device.write_at(bytes, offset),
            Data::Zeroes(len) => origin.device.write_zeroes(offset, len),
        };
        let epoch = origin.count_write();
        let written = written.map_err(|e| origin.failed(&cache.counters, e));
        let failed = cache.lock().health.failed.is_some();
        let keep = written.is_ok()
            && !failed
            && matches!(
                mode,
                Mode::WriteThrough | Mode::WriteAround | Mode::WriteBack | Mode::WriteOnly
            );
        let updated = if keep { self.update(data, offset, mode, stream) } else { Ok(()) };
        if !keep || updated.is_err() {
            self.drop_cached(offset, end);
        }
        self.leave_origin(&change, epoch);
        written
    }

    /// Updates the cache after a write to the origin. On an error, the cached blocks may be stale
    /// and must be dropped.
    fn update(&self, data: Data<'_>, offset: u64, mode: Mode, stream: bool) -> Result<()> {
        let cache = &*self.cache;
        let end = offset + data.len();
        let origin_end = self.origin.id.len_bytes;
        let whole_end = if end == origin_end { end.div_ceil(SUB) } else { end / SUB };
        let whole = offset.div_ceil(SUB)..whole_end;
        let nr = self.origin.nr;
        if whole.start < whole.end {
            let zero = matches!(data, Data::Zeroes(_));
            // Zeroes are cheap to read from the origin, so only cached blocks are updated.
            let allocate = if mode == Mode::WriteThrough && !zero {
                Allocate::Admitted { stream }
            } else {
                Allocate::None
            };
            let how = Store { dirty: false, allocate, zero };
            let (from, to) = (whole.start * SUB, (whole.end * SUB).min(end));
            match data.part(from - offset, to - offset) {
                Data::Bytes(bytes) if bytes.len() as u64 == (whole.end - whole.start) * SUB => {
                    cache.store(nr, &whole, bytes, how)?;
                }
                Data::Bytes(bytes) => {
                    // The origin's last sub-block, padded with zeroes.
                    let mut padded = bytes.to_vec();
                    padded.resize(((whole.end - whole.start) * SUB) as usize, 0);
                    cache.store(nr, &whole, &padded, how)?;
                }
                Data::Zeroes(_) => {
                    cache.store(nr, &whole, &[], how)?;
                }
            }
        }
        // The ends, if they are cached: patched in place or dropped.
        let mut ends = vec![offset / SUB, (end - 1) / SUB];
        ends.dedup();
        for sub in ends.into_iter().filter(|sub| !whole.contains(sub)) {
            let (from, to) = ((sub * SUB).max(offset), ((sub + 1) * SUB).min(end));
            let cached = {
                let st = cache.lock();
                let per_block = st.log.sb.subs() as u64;
                let slot = st.residency.lookup(BlockKey::new(nr, sub / per_block));
                slot.is_some_and(|slot| {
                    st.residency.masks(slot).valid >> (sub % per_block) & 1 != 0
                })
            };
            if cached {
                let mut content = vec![0; SUB_BLOCK_BYTES];
                self.read_base(sub, &mut content)?;
                let part = data.part(from - offset, to - offset);
                part.copy_to(&mut content[(from - sub * SUB) as usize..(to - sub * SUB) as usize]);
                let how = Store { dirty: false, allocate: Allocate::None, zero: false };
                cache.store(nr, &(sub..sub + 1), &content, how)?;
            }
        }
        Ok(())
    }

    /// Drops the sub-blocks that overlap this byte range from the cache, after a write that passed
    /// to the origin. None of them is dirty: a block with dirty data absorbs the write.
    fn drop_cached(&self, start: u64, end: u64) {
        self.each_cached(start, end, |st, slot, mask| {
            let dirty = st.residency.masks(slot).dirty & mask;
            assert_eq!(dirty, 0, "slot {slot}: a write passed under dirty data");
            st.invalidate(slot, mask);
        });
    }

    /// Updates the cache after the origin has zeroed or discarded this range of whole blocks: clean
    /// sub-blocks are dropped, and dirty ones become zeroes that stay dirty.
    ///
    /// They must stay: a durable record may say that their last flushed version exists only in the
    /// cache, while the origin has the zeroes only in its volatile cache, and below them an older
    /// version, to which it may also return by ignoring a discard. If the next record removed them,
    /// a power cut of the origin would lose what was flushed. So write-back removes them, as it does
    /// all dirty data, after a flush of the origin.
    pub(crate) fn zero_cached(&self, start: u64, end: u64) {
        self.each_cached(start, end, |st, slot, mask| {
            let dirty = st.residency.masks(slot).dirty & mask;
            if dirty != 0 {
                st.zero_dirty(slot, dirty);
            }
            st.invalidate(slot, mask & !dirty);
        });
    }

    /// Calls `change` with the slot of each cached block that overlaps this byte range, and its
    /// sub-blocks that overlap it.
    fn each_cached(&self, start: u64, end: u64, change: impl Fn(&mut CacheState, u32, u16)) {
        let mut st = self.cache.lock();
        let block_bytes = u64::from(st.log.sb.block_bytes);
        let blocks = start / block_bytes..end.div_ceil(block_bytes);
        let change_one = |st: &mut CacheState, slot: u32, block: u64| {
            let base = block * block_bytes / SUB;
            let mut mask = 0;
            for bit in 0..block_bytes / SUB {
                let at = (base + bit) * SUB;
                mask |= u16::from(at < end && at + SUB > start) << bit;
            }
            change(st, slot, mask);
        };
        let nr = self.origin.nr;
        if blocks.end - blocks.start > u64::from(st.residency.len()) {
            for slot in 0..st.residency.len() {
                let key = st.residency.key(slot).filter(|key| key.origin() == nr);
                if let Some(key) = key.filter(|key| blocks.contains(&key.block())) {
                    change_one(&mut st, slot, key.block());
                }
            }
            return;
        }
        for block in blocks {
            let key = BlockKey::new(nr, block);
            match st.residency.lookup(key) {
                Some(slot) => change_one(&mut st, slot, block),
                None => {
                    if let Some(loading) = &mut st.residency.loading {
                        loading.supersede(key);
                    }
                }
            }
        }
    }

    /// Announces a change of the origin. Every request that changes it, except write-back, calls
    /// this first, as the writer of the blocks. When this returns, no durable clean record of the
    /// changed range will be trusted after a crash: the range is then read from the origin. A cache
    /// that has failed cannot announce anything: while it has data that exists nowhere else, no
    /// change is allowed; and before it is marked as out of date, no change of a range of which it
    /// may have a durable clean record.
    pub(crate) fn enter_origin(&self, start: u64, end: u64) -> Result<OriginChange> {
        let cache = &*self.cache;
        let usable = cache.lock().check_usable();
        usable.or_else(|error| self.pass_if_failed(error))?;
        let nr = self.origin.nr;
        let mut st = cache.lock();
        let shift = st.origins.of(nr).region_shift;
        let regions: Vec<RegionKey> =
            (start >> shift..=(end - 1) >> shift).map(|r| RegionKey::new(nr, r as u32)).collect();
        for key in &regions {
            st.dirty.regions.update(*key, |region| region.writers += 1);
        }
        let subs = st.requests.passing.enter(nr, start / SUB..end.div_ceil(SUB));
        let change = OriginChange { regions, subs };
        if !cache.options.persistence {
            return Ok(change);
        }
        let keys = &change.regions;
        if st.health.failed.is_none() {
            keys.iter().for_each(|key| st.dirty.regions.want(*key));
        }
        let durable = |st: &CacheState| {
            keys.iter().all(|key| st.dirty.regions.intent(*key) == Intent::Durable)
        };
        let block_bytes = u64::from(st.log.sb.block_bytes);
        let mut blocks = start / block_bytes..end.div_ceil(block_bytes);
        let urgent = !durable(&st)
            && (blocks.end - blocks.start > 4096
                || blocks.any(|block| st.may_be_believed(BlockKey::new(nr, block))));
        drop(st);
        if !urgent {
            return Ok(change);
        }
        let announced = cache.commit().or_else(|error| {
            self.pass_if_failed(error)?;
            let marked = cache.mark_untrusted();
            if cache.options.pass_when_failed { Ok(()) } else { marked }
        });
        if let Err(error) = announced {
            self.leave_origin(&change, 0);
            return Err(error);
        }
        debug_assert!(cache.lock().health.failed.is_some() || durable(&cache.lock()));
        Ok(change)
    }

    /// Ends the change, after the cache was updated; it was the origin's write number `epoch`.
    pub(crate) fn leave_origin(&self, change: &OriginChange, epoch: u64) {
        let mut st = self.cache.lock();
        let now_ms = st.now_ms;
        for key in &change.regions {
            st.dirty.regions.update(*key, |region| {
                region.writers -= 1;
                region.written = region.written.max(epoch);
                region.written_ms = now_ms;
            });
        }
        st.requests.passing.leave(change.subs);
        drop(st);
        self.cache.notify();
    }

    /// Returns `Ok` if the cache device has failed and no data exists only there: requests then
    /// bypass it. Otherwise returns `error`.
    pub(crate) fn pass_if_failed(&self, error: Error) -> Result<()> {
        let st = self.cache.lock();
        if st.health.failed.is_some()
            && !st.health.closed
            && st.dirty.subs() == 0
            && st.dirty.held_slots() == 0
        {
            return Ok(());
        }
        Err(error)
    }
}
