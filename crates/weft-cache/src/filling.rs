//! Filling: writes data that was read from the origin after a miss to the cache device.

use crate::cache::Cache;
use crate::fills::{FillId, Purpose};
use crate::origin::{Link, Origin};
use crate::pins::Pinned;
use crate::policy::{BlockKey, SlotNr};
use crate::slots::Masks;
use crate::stats::{Count, Timed};
use crate::{Result, SUB_BLOCK_BYTES};
use crc32c::crc32c;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SUB: u64 = SUB_BLOCK_BYTES as u64;

impl Cache {
    pub(crate) fn read_origin(
        &self,
        origin: &Origin,
        buf: &mut [u8],
        at: u64,
    ) -> weft_block::Result<()> {
        let counters = &self.counters;
        let _timed = Timed::new(&counters.origin_reads, &counters.origin_read_nanoseconds);
        origin.device.read_at(buf, at)
    }

    /// Reads the data of a fill from the origin: whole sub-blocks, with zeroes past the origin's
    /// end. A failed fill is ended.
    pub(crate) fn fetch(
        &self,
        origin: &Origin,
        id: FillId,
        subs: &Range<u64>,
    ) -> weft_block::Result<Arc<Vec<u8>>> {
        let mut data = vec![0; ((subs.end - subs.start) * SUB) as usize];
        let at = subs.start * SUB;
        let len = (origin.id.len_bytes - at).min(data.len() as u64) as usize;
        let read = self.read_origin(origin, &mut data[..len], at);
        let data = Arc::new(data);
        let mut st = self.lock();
        if read.is_ok() {
            st.requests.fills.ready(id, Arc::clone(&data));
        } else {
            st.requests.fills.end(id);
        }
        drop(st);
        self.notify();
        read.map(|()| data)
    }

    /// Puts a fill's data into the cache, by the fill thread if it takes the job, or else at once.
    pub(crate) fn hand_to_filler(&self, origin: &Arc<Origin>, id: FillId, data: &Arc<Vec<u8>>) {
        if !self.workers.take_fill(&self.options, origin, id, data) {
            self.put_fill(origin, id, data);
            self.end_fill(id);
        }
    }

    /// Puts a fill's data into the cache. A failure does not fail the reader's request.
    pub(crate) fn put_fill(&self, origin: &Origin, id: FillId, data: &[u8]) {
        let filled = self.try_fill(origin, id, data);
        if let Err(error) = filled.and_then(|()| self.commit_if_much()) {
            tracing::debug!(%error, "a block was not put into the cache");
        }
    }

    /// Ends a fill. A detach of the origin waits for this.
    pub(crate) fn end_fill(&self, id: FillId) {
        let mut st = self.lock();
        st.requests.fills.end(id);
        drop(st);
        self.notify();
    }

    fn try_fill(&self, origin: &Origin, id: FillId, data: &[u8]) -> Result<()> {
        let crcs: Vec<u32> = data.chunks_exact(SUB_BLOCK_BYTES).map(crc32c).collect();
        let nr = origin.nr;
        let mut pinned = Pinned::new(&self.pins);
        // (slot, whether it is new, first sub-block of the origin, mask of the slot's sub-blocks)
        let mut targets: Vec<(u32, bool, u64, u16)> = Vec::new();
        let mut st = self.lock();
        st.check_usable()?;
        if origin.link() != Link::Attached {
            return Ok(());
        }
        let per_block = st.log.sb.subs() as u64;
        let Some(fill) = st.requests.fills.get(id) else { return Ok(()) };
        let (subs, purpose) = (fill.subs.clone(), fill.purpose);
        let blocks = subs.start / per_block..subs.end.div_ceil(per_block);
        if st.requests.writers.overlaps(nr, &blocks) {
            self.counters.bypasses.add(blocks.end - blocks.start);
            return Ok(());
        }
        for block in blocks.clone() {
            let key = BlockKey::new(nr, block);
            let first = block * per_block;
            let mut mask = 0_u16;
            let slot = st.residency.lookup(key);
            // A sub-block that a durable record marks as dirty stays, valid or not, until a later
            // one is durable.
            let taken = slot.map_or(0, |slot| {
                let masks = st.residency.masks(slot);
                masks.valid | masks.held
            });
            let Some(fill) = st.requests.fills.get(id) else { return Ok(()) };
            for sub in first.max(subs.start)..(first + per_block).min(subs.end) {
                let bit = sub - first;
                if !fill.cancelled(sub) && taken >> bit & 1 == 0 {
                    mask |= 1 << bit;
                }
            }
            if mask == 0 {
                continue;
            }
            match slot {
                Some(slot) => {
                    pinned.pin(slot);
                    targets.push((slot, false, first, mask));
                }
                None => {
                    let slot = match purpose {
                        Purpose::Demand => st.take_slot(key),
                        Purpose::Ahead => st.take_free_slot(key),
                        Purpose::Staged => None,
                    };
                    match slot {
                        Some(slot) => targets.push((slot, true, first, mask)),
                        None => self.counters.bypasses.add(1),
                    }
                }
            }
        }
        let range = st.requests.writers.enter(nr, blocks);
        let sb = (st.log.sb.data_offset, u64::from(st.log.sb.block_bytes));
        drop(st);

        let mut runs = Runs::default();
        for (slot, _, first, mask) in &targets {
            let base = sb.0 + u64::from(*slot) * sb.1;
            for bit in (0..per_block).filter(|bit| mask >> bit & 1 != 0) {
                runs.push(base + bit * SUB, ((first + bit - subs.start) * SUB) as usize);
            }
        }
        let written = runs.write(self, data);

        let mut st = self.lock();
        for (slot, new, first, mask) in targets {
            let key = BlockKey::new(nr, first / per_block);
            if written.is_err() {
                if new {
                    st.residency.release(slot);
                }
                continue;
            }
            for bit in (0..per_block).filter(|bit| mask >> bit & 1 != 0) {
                st.residency.set_crc(slot, bit as usize, crcs[(first + bit - subs.start) as usize]);
            }
            if new {
                let masks = Masks { valid: mask, verified: mask, ..Default::default() };
                st.map(slot, key, masks);
                st.residency.policy.insert(SlotNr(slot), key);
            } else {
                let masks = st.residency.masks(slot);
                let (valid, verified) = (masks.valid | mask, masks.verified | mask);
                st.set_masks(slot, Masks { valid, verified, ..masks });
            }
            st.touch(slot);
            self.counters.fills.add(1);
        }
        st.leave_writer(range);
        drop(st);
        self.notify();
        written
    }
}

/// Sub-blocks to be written, with adjacent ones in one request.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Offset on the device, offset in the data, sub-blocks.
    list: SmallVec<[(u64, usize, usize); 4]>,
}

impl Runs {
    pub(crate) fn push(&mut self, offset: u64, from: usize) {
        match self.list.last_mut() {
            Some((o, f, n))
                if *o + *n as u64 * SUB == offset && *f + *n * SUB_BLOCK_BYTES == from =>
            {
                *n += 1;
            }
            _ => self.list.push((offset, from, 1)),
        }
    }

    pub(crate) fn write(&self, cache: &Cache, data: &[u8]) -> Result<()> {
        for (offset, from, subs) in &self.list {
            let bytes = &data[*from..from + subs * SUB_BLOCK_BYTES];
            cache.counters.data_bytes_written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            cache.write_cache(bytes, *offset)?;
        }
        Ok(())
    }
}
