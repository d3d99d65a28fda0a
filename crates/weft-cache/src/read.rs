//! Reading through the cache.
//!
//! A request is cut into pieces of at most 1 MiB. Under the lock, each piece is planned: which
//! parts are in slots (neighbours that are adjacent in the cache are one part), which are being
//! filled by another request, which must come from the origin (one part for each run). The slots
//! are pinned and the fills entered. Then the lock is released, and the parts are read.

use crate::device::CachedDevice;
use crate::fills::{FillId, Purpose};
use crate::origin::Link;
use crate::pins::Pinned;
use crate::policy::{BlockKey, SlotNr};
use crate::ranges::FILL_SUBS_MAX;
use crate::staging::Piece;
use crate::state::CacheState;
use crate::stats::Count;
use crate::{Error, Mode, Result, SUB_BLOCK_BYTES};
use crc32c::crc32c;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::sync::Arc;

const SUB: u64 = SUB_BLOCK_BYTES as u64;

/// The source of a part of a piece.
#[derive(Debug)]
enum From {
    /// The cache device, at this offset.
    Slot { offset: u64 },
    /// The same, not yet verified against these checksums.
    Unverified { offset: u64, crcs: Vec<u32> },
    /// The cache has a record that the part is zeroes.
    Zeroes,
    /// The origin; the data goes into the cache.
    Fill(FillId),
    /// The origin.
    Origin,
    /// Another request's fill.
    Other(FillId),
    /// Staged read-ahead; with a fill, it goes into the cache.
    Staged { piece: Piece, fill: Option<FillId> },
}

impl From {
    /// Returns true if the data was not in the cache when the read began.
    fn is_missing(&self) -> bool {
        !matches!(self, Self::Slot { .. } | Self::Unverified { .. } | Self::Zeroes)
    }
}

#[derive(Debug)]
struct Part {
    subs: Range<u64>,
    from: From,
}

/// The outcome of reading a part.
enum Outcome {
    Read,
    /// The state has changed meanwhile: plan again.
    Again,
}

impl CachedDevice {
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let end = (at / SUB + FILL_SUBS_MAX) * SUB;
            let len = ((end - at) as usize).min(rest.len());
            let (piece, tail) = rest.split_at_mut(len);
            self.read_piece(piece, at)?;
            rest = tail;
            at += len as u64;
        }
        Ok(())
    }

    fn read_piece(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let cache = &*self.cache;
        let subs = offset / SUB..(offset + buf.len() as u64).div_ceil(SUB);
        // Parts that were read are not read again when the rest is planned anew.
        let mut from = subs.start;
        let mut stream = None;
        'plan: loop {
            let mut pinned = Pinned::new(&cache.pins);
            let Some(parts) = self.plan(from..subs.end, &mut pinned, &mut stream)? else {
                let read = self.origin.device.read_at(buf, offset);
                return read.map_err(|e| self.origin.failed(&cache.counters, e));
            };
            let mut parts = parts.into_iter();
            while let Some(part) = parts.next() {
                let start = (part.subs.start * SUB).max(offset);
                let end = (part.subs.end * SUB).min(offset + buf.len() as u64);
                let wanted = &mut buf[(start - offset) as usize..(end - offset) as usize];
                let next = part.subs.end;
                let outcome = self.read_part(part, wanted, start, stream.unwrap_or(false));
                match outcome {
                    Ok(Outcome::Read) => from = next,
                    Ok(Outcome::Again) => {
                        self.abandon(parts);
                        continue 'plan;
                    }
                    Err(error) => {
                        self.abandon(parts);
                        return Err(error);
                    }
                }
            }
            return Ok(());
        }
    }

    /// Ends the fills that were entered for parts that are not read.
    fn abandon(&self, parts: impl Iterator<Item = Part>) {
        let mut st = self.cache.lock();
        for part in parts {
            if let From::Fill(id) | From::Staged { fill: Some(id), .. } = part.from {
                st.requests.fills.end(id);
            }
        }
        drop(st);
        self.cache.notify();
    }

    /// Plans the parts of a piece. `stream`: whether the piece is part of a long stream, set by the
    /// first plan. Returns `None` if the origin was detached.
    fn plan(
        &self,
        subs: Range<u64>,
        pinned: &mut Pinned<'_>,
        stream: &mut Option<bool>,
    ) -> Result<Option<SmallVec<[Part; 4]>>> {
        let cache = &*self.cache;
        let nr = self.origin.nr;
        let mut st = cache.lock();
        if self.origin.link() == Link::Gone {
            return Ok(None);
        }
        if st.health.closed {
            return Err(Error::Closed);
        }
        let planned_before = stream.is_some();
        let stream = *stream.get_or_insert_with(|| {
            st.admission.observe(nr, subs.start * SUB, (subs.end - subs.start) * SUB)
        });
        let mode = self.origin.mode();
        let fills = mode.fills() && st.health.failed.is_none();
        let per_block = st.log.sb.subs() as u64;
        let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
        let mut at = subs.start;
        while at < subs.end {
            let key = BlockKey::new(nr, at / per_block);
            let block_end = (at / per_block + 1) * per_block;
            let end = block_end.min(subs.end);
            match st.residency.lookup(key) {
                Some(slot) => self.plan_block(&mut st, &mut parts, pinned, at..end, slot, mode),
                None => {
                    cache.counters.misses.add(1);
                    plan_missing(&st, &mut parts, nr, at..end, fills);
                }
            }
            at = end;
        }
        if fills {
            let parts = plan_fills(&mut st, nr, parts, stream);
            let prefetch = if planned_before {
                None
            } else {
                let missing = parts.iter().any(|part| part.from.is_missing());
                let end = self.origin.id.len_bytes.div_ceil(SUB);
                st.readahead.observe(nr, &subs, end, missing, stream)
            };
            drop(st);
            cache.queue_prefetch(&self.origin, prefetch);
            return Ok(Some(parts));
        }
        for part in parts.iter().filter(|part| matches!(part.from, From::Origin)) {
            let blocks = part.subs.start / per_block..part.subs.end.div_ceil(per_block);
            cache.counters.bypasses.add(blocks.end - blocks.start);
        }
        Ok(Some(parts))
    }

    fn plan_block(
        &self,
        st: &mut CacheState,
        parts: &mut SmallVec<[Part; 4]>,
        pinned: &mut Pinned<'_>,
        subs: Range<u64>,
        slot: u32,
        mode: Mode,
    ) {
        let cache = &*self.cache;
        let per_block = st.log.sb.subs() as u64;
        let masks = st.residency.masks(slot);
        let written =
            st.requests.writers.contains(BlockKey::new(self.origin.nr, subs.start / per_block));
        // In pass-through mode, or after a failure, the cache serves only data that exists nowhere
        // else.
        let unused = mode == Mode::PassThrough && !written || st.health.failed.is_some();
        let fills = mode.fills() && st.health.failed.is_none();
        let base = st.log.sb.slot_offset(slot);
        let mut hit = false;
        for at in subs {
            let sub = (at % per_block) as usize;
            // While a block is being written, the cache and the origin differ. In any mode, it is
            // read from where the write goes first; otherwise a reader could see the new version
            // there, and the next reader the old version here.
            let passed = written && st.requests.passing.overlaps(self.origin.nr, &(at..at + 1));
            let served = if unused || passed { masks.dirty } else { masks.valid };
            if served >> sub & 1 == 0 {
                plan_missing(st, parts, self.origin.nr, at..at + 1, fills);
                continue;
            }
            hit = true;
            let offset = base + sub as u64 * SUB;
            let verified = masks.verified >> sub & 1 != 0 && !cache.options.verify_always;
            let last = parts.last_mut();
            if masks.zero >> sub & 1 != 0 {
                match last {
                    Some(Part { subs, from: From::Zeroes }) => subs.end += 1,
                    _ => parts.push(Part { subs: at..at + 1, from: From::Zeroes }),
                }
            } else if verified {
                match last {
                    Some(Part { subs, from: From::Slot { offset: first } })
                        if *first + (subs.end - subs.start) * SUB == offset =>
                    {
                        subs.end += 1;
                    }
                    _ => parts.push(Part { subs: at..at + 1, from: From::Slot { offset } }),
                }
            } else {
                let crc = st.residency.crc(slot, sub);
                match last {
                    Some(Part { subs, from: From::Unverified { offset: first, crcs } })
                        if *first + (subs.end - subs.start) * SUB == offset =>
                    {
                        subs.end += 1;
                        crcs.push(crc);
                    }
                    _ => {
                        let from = From::Unverified { offset, crcs: vec![crc] };
                        parts.push(Part { subs: at..at + 1, from });
                    }
                }
            }
        }
        if hit {
            pinned.pin(slot);
            cache.counters.hits.add(1);
            if let Some(key) = st.residency.key(slot) {
                st.residency.policy.hit(SlotNr(slot), key);
            }
        } else {
            cache.counters.misses.add(1);
        }
    }

    /// Reads a part into `buf`. `stream`: the piece is part of a long stream.
    fn read_part(&self, part: Part, buf: &mut [u8], at: u64, stream: bool) -> Result<Outcome> {
        let cache = &*self.cache;
        let first = part.subs.start * SUB;
        match part.from {
            From::Slot { offset } => {
                if let Err(error) = cache.read_cache(buf, offset + (at - first)) {
                    return self.unreadable(&part.subs, error).map(|()| Outcome::Again);
                }
                cache.counters.hit_bytes.add(buf.len() as u64);
            }
            From::Zeroes => {
                cache.counters.hit_bytes.add(buf.len() as u64);
                buf.fill(0);
            }
            From::Unverified { offset, crcs } => {
                return self.read_unverified(&part.subs, offset, &crcs, buf, at);
            }
            From::Origin => {
                cache.counters.miss_bytes.add(buf.len() as u64);
                let origin = &*self.origin;
                cache
                    .read_origin(origin, buf, at)
                    .map_err(|e| origin.failed(&cache.counters, e))?;
            }
            From::Fill(id) => {
                cache.counters.miss_bytes.add(buf.len() as u64);
                let origin = &*self.origin;
                let failed = |e| origin.failed(&cache.counters, e);
                let data = match cache.fetch(origin, id, &part.subs) {
                    Ok(data) => data,
                    // The sector that cannot be read may be one that was not asked for.
                    Err(error) if buf.len() as u64 == (part.subs.end - part.subs.start) * SUB => {
                        return Err(failed(error));
                    }
                    Err(error) => {
                        tracing::debug!(%error, at, "a block is read in part, as all of it cannot be");
                        cache.read_origin(origin, buf, at).map_err(failed)?;
                        return Ok(Outcome::Read);
                    }
                };
                buf.copy_from_slice(&data[(at - first) as usize..][..buf.len()]);
                cache.hand_to_filler(&self.origin, id, &data);
            }
            From::Other(id) => return Ok(self.wait_for_fill(id, &part.subs, buf, at, stream)),
            From::Staged { piece, fill } => {
                cache.counters.staged_bytes.add(buf.len() as u64);
                self.read_staged(&part.subs, &piece, fill, buf, at);
            }
        }
        Ok(Outcome::Read)
    }

    /// Copies staged data, and passes it to its fill.
    fn read_staged(
        &self,
        subs: &Range<u64>,
        piece: &Piece,
        fill: Option<FillId>,
        buf: &mut [u8],
        at: u64,
    ) {
        let cache = &*self.cache;
        cache.counters.hit_bytes.add(buf.len() as u64);
        buf.copy_from_slice(piece.bytes(at, buf.len()));
        if let Some(id) = fill {
            let len = (subs.end - subs.start) * SUB;
            let data = Arc::new(piece.bytes(subs.start * SUB, len as usize).to_vec());
            cache.lock().requests.fills.ready(id, Arc::clone(&data));
            cache.notify();
            cache.hand_to_filler(&self.origin, id, &data);
        }
    }

    fn wait_for_fill(
        &self,
        id: FillId,
        subs: &Range<u64>,
        buf: &mut [u8],
        at: u64,
        stream: bool,
    ) -> Outcome {
        let cache = &*self.cache;
        let mut st = cache.lock();
        loop {
            let Some(fill) = st.requests.fills.get(id) else { return Outcome::Again };
            if subs.clone().any(|sub| fill.cancelled(sub)) {
                return Outcome::Again;
            }
            if let Some(data) = &fill.data {
                let piece = Piece { first: fill.subs.start, data: Arc::clone(data) };
                let staged = fill.purpose == Purpose::Staged;
                if staged && self.origin.mode().fills() && st.health.failed.is_none() {
                    // This miss is judged as if the reader had come after the end of the fill.
                    let from = From::Staged { piece, fill: None };
                    let parts = smallvec![Part { subs: subs.clone(), from }];
                    let parts = plan_fills(&mut st, self.origin.nr, parts, stream);
                    drop(st);
                    self.read_all_staged(parts, buf, at);
                } else {
                    drop(st);
                    self.read_staged(subs, &piece, None, buf, at);
                }
                return Outcome::Read;
            }
            st = cache.wait(st);
        }
    }

    /// Reads consecutive parts that are all staged.
    fn read_all_staged(&self, parts: SmallVec<[Part; 4]>, buf: &mut [u8], at: u64) {
        let end = at + buf.len() as u64;
        for part in parts {
            let From::Staged { piece, fill } = part.from else { continue };
            let (from, to) = ((part.subs.start * SUB).max(at), (part.subs.end * SUB).min(end));
            let wanted = &mut buf[(from - at) as usize..(to - at) as usize];
            self.read_staged(&part.subs, &piece, fill, wanted, from);
        }
    }

    /// Reads whole sub-blocks and verifies their checksums.
    fn read_unverified(
        &self,
        subs: &Range<u64>,
        offset: u64,
        crcs: &[u32],
        buf: &mut [u8],
        at: u64,
    ) -> Result<Outcome> {
        let cache = &*self.cache;
        let mut data = vec![0; crcs.len() * SUB_BLOCK_BYTES];
        if let Err(error) = cache.read_cache(&mut data, offset) {
            return self.unreadable(subs, error).map(|()| Outcome::Again);
        }
        let bad =
            data.chunks_exact(SUB_BLOCK_BYTES).zip(crcs).position(|(d, crc)| crc32c(d) != *crc);
        let good = bad.unwrap_or(crcs.len());
        let nr = self.origin.nr;
        {
            let mut st = cache.lock();
            let per_block = st.log.sb.subs() as u64;
            for (sub, crc) in (subs.start..).zip(&crcs[..good]) {
                st.mark_verified(
                    BlockKey::new(nr, sub / per_block),
                    (sub % per_block) as usize,
                    *crc,
                );
            }
        }
        if let Some(bad) = bad {
            return self.mismatch(subs.start + bad as u64, crcs[bad]).map(|()| Outcome::Again);
        }
        cache.counters.hit_bytes.add(buf.len() as u64);
        let first = subs.start * SUB;
        buf.copy_from_slice(&data[(at - first) as usize..][..buf.len()]);
        Ok(Outcome::Read)
    }

    /// Handles a failed read of the cache device: sub-blocks that the origin has as well are
    /// dropped, to be read from there. A device that fails often is marked as failed. `Ok`: to be
    /// planned again.
    fn unreadable(&self, subs: &Range<u64>, error: Error) -> Result<()> {
        const READ_ERRORS_MAX: u32 = 16;
        let cache = &*self.cache;
        let nr = self.origin.nr;
        let mut st = cache.lock();
        let per_block = st.log.sb.subs() as u64;
        for sub in subs.clone() {
            let key = BlockKey::new(nr, sub / per_block);
            while st.requests.writers.contains(key) {
                st = cache.wait(st);
            }
            let Some(slot) = st.residency.lookup(key) else { continue };
            let bit = 1 << (sub % per_block);
            if st.residency.masks(slot).dirty & bit != 0 {
                return Err(error);
            }
            st.invalidate(slot, bit);
        }
        st.health.read_errors += 1;
        let often = st.health.read_errors > READ_ERRORS_MAX && st.health.failed.is_none();
        drop(st);
        if often {
            cache.fail(error);
        }
        Ok(())
    }

    /// Handles a cached sub-block that did not match its checksum: it is dropped if the origin has
    /// it; otherwise an error is returned. `Ok`: to be planned again.
    pub(crate) fn mismatch(&self, sub: u64, crc: u32) -> Result<()> {
        let cache = &*self.cache;
        let mut st = cache.lock();
        let per_block = st.log.sb.subs() as u64;
        let key = BlockKey::new(self.origin.nr, sub / per_block);
        let bit = (sub % per_block) as usize;
        // It may have been overwritten while it was read.
        while st.requests.writers.contains(key) {
            st = cache.wait(st);
        }
        let Some(slot) = st.residency.lookup(key) else { return Ok(()) };
        let masks = st.residency.masks(slot);
        let same = masks.valid >> bit & 1 != 0 && st.residency.crc(slot, bit) == crc;
        if !same || (masks.verified >> bit & 1 != 0 && !cache.options.verify_always) {
            return Ok(());
        }
        if masks.dirty >> bit & 1 != 0 {
            cache.counters.dirty_damaged.add(1);
            return Err(Error::DirtyDamaged {
                label: self.origin.id.label.clone(),
                offset: sub * SUB,
                len_bytes: SUB,
                slot,
            });
        }
        cache.counters.heals.add(1);
        tracing::warn!(
            origin = self.origin.id.label,
            at = sub * SUB,
            "a damaged clean block is read from the origin again"
        );
        st.invalidate(slot, 1 << bit);
        Ok(())
    }
}

/// Plans sub-blocks that are not in the cache. `staged`: staged data may be read.
fn plan_missing(
    st: &CacheState,
    parts: &mut SmallVec<[Part; 4]>,
    nr: u16,
    subs: Range<u64>,
    staged: bool,
) {
    let staged = staged && !st.requests.fills.staging.is_empty();
    for at in subs {
        let filling =
            if st.requests.fills.is_empty() { None } else { st.requests.fills.covering(nr, at) };
        if let Some((id, _)) = filling {
            match parts.last_mut() {
                Some(Part { subs, from: From::Other(last) }) if *last == id => subs.end += 1,
                _ => parts.push(Part { subs: at..at + 1, from: From::Other(id) }),
            }
            continue;
        }
        let piece = if staged { st.requests.fills.staging.get(nr, at) } else { None };
        match (piece, parts.last_mut()) {
            (Some(piece), Some(Part { subs, from: From::Staged { piece: last, .. } }))
                if subs.end == at && Arc::ptr_eq(&last.data, &piece.data) =>
            {
                subs.end += 1;
            }
            (Some(piece), _) => {
                let from = From::Staged { piece: piece.clone(), fill: None };
                parts.push(Part { subs: at..at + 1, from });
            }
            (None, Some(Part { subs, from: From::Origin })) if subs.end == at => subs.end += 1,
            (None, _) => parts.push(Part { subs: at..at + 1, from: From::Origin }),
        }
    }
}

/// Turns missing and staged parts into fills where their blocks are admitted.
fn plan_fills(
    st: &mut CacheState,
    nr: u16,
    parts: SmallVec<[Part; 4]>,
    stream: bool,
) -> SmallVec<[Part; 4]> {
    let per_block = st.log.sb.subs() as u64;
    let mut planned = SmallVec::new();
    for part in parts {
        let staged = match &part.from {
            From::Origin => None,
            From::Staged { piece, .. } => Some(piece.clone()),
            _ => {
                planned.push(part);
                continue;
            }
        };
        // Adjacent blocks with the same decision are one part.
        let mut run: Option<(Range<u64>, bool)> = None;
        let mut at = part.subs.start;
        while at < part.subs.end {
            let block = at / per_block;
            let end = ((block + 1) * per_block).min(part.subs.end);
            // A block being written is updated or dropped by its writer.
            let fill = if st.requests.writers.overlaps(nr, &(block..block + 1)) {
                st.counters.bypasses.add(1);
                false
            } else if staged.is_some() && st.requests.fills.demanded(nr, &(at..end)) {
                false
            } else {
                st.admits(BlockKey::new(nr, block), (end - at) as u32, stream)
            };
            match &mut run {
                Some((run, same)) if *same == fill => run.end = end,
                _ => {
                    let done = run.take();
                    planned.extend(done.map(|run| missed_part(st, nr, run, staged.as_ref())));
                    run = Some((at..end, fill));
                }
            }
            at = end;
        }
        planned.extend(run.map(|run| missed_part(st, nr, run, staged.as_ref())));
    }
    planned
}

fn missed_part(
    st: &mut CacheState,
    nr: u16,
    (subs, fill): (Range<u64>, bool),
    staged: Option<&Piece>,
) -> Part {
    let fill = fill.then(|| st.requests.fills.begin(nr, subs.clone()));
    let from = match (staged, fill) {
        (Some(piece), fill) => From::Staged { piece: piece.clone(), fill },
        (None, Some(id)) => From::Fill(id),
        (None, None) => From::Origin,
    };
    Part { subs, from }
}

impl CacheState {
    /// Marks a sub-block as verified, if its checksum is still the same.
    pub(crate) fn mark_verified(&mut self, key: BlockKey, sub: usize, crc: u32) {
        let Some(slot) = self.residency.lookup(key) else { return };
        let masks = self.residency.masks(slot);
        if masks.valid >> sub & 1 != 0 && self.residency.crc(slot, sub) == crc {
            let verified = masks.verified | 1 << sub;
            self.set_masks(slot, crate::slots::Masks { verified, ..masks });
        }
    }
}
