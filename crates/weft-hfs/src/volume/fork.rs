//! Reading and changing the content of forks.
//!
//! Order: data and overflow records before the file's record, which has the fork's length and its
//! first extents; when a fork is cut, the file's record before the overflow records, and both
//! before the blocks are used again.

use super::file::File;
use super::map::{ForkMap, Run};
use super::state::Volume;
use crate::btree::Befores;
use crate::layout::{BLOCK_BYTES, Extent, ExtentKey, FORK_MAX_BYTES, Fork};
use crate::store::Store;
use crate::{Error, Result};
use alloc::vec::Vec;

/// The most bytes that are reserved after a growing fork.
const WINDOW_MAX_BYTES: u32 = 8 << 20;

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Returns the volume block at which an allocation block begins.
    pub(crate) fn block_of(&self, alloc_block: u32) -> u64 {
        u64::from(self.mdb.first_block) + u64::from(alloc_block) * self.mdb.blocks_per_alloc()
    }

    /// Returns the contiguous part of `len` bytes from `offset` on: volume block, byte within it,
    /// number of bytes.
    fn piece(&self, map: &ForkMap, offset: u32, len: u32) -> Option<(u64, usize, u32)> {
        let size = self.mdb.alloc_block_bytes;
        let Run { at, extent } = map.find(offset / size)?;
        // Both fit: a fork has at most 2^31-1 bytes.
        let within = u64::from(offset) - u64::from(at) * u64::from(size);
        let run_bytes = u64::from(extent.count) * u64::from(size);
        let block = self.block_of(u32::from(extent.start)) + within / BLOCK_BYTES as u64;
        let len = u32::try_from(run_bytes - within).unwrap_or(u32::MAX).min(len);
        Some((block, usize::try_from(within % BLOCK_BYTES as u64).unwrap_or(0), len))
    }

    /// Reads from byte `offset` of a fork on; returns the number of bytes, smaller than `buf` only
    /// at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Device`].
    pub fn read<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let want = file.readable(fork, offset, buf.len());
        let Some(buf) = buf.get_mut(..want).filter(|buf| !buf.is_empty()) else { return Ok(0) };
        if let Some(n) = file.ahead.read(fork, offset, buf) {
            return Ok(n);
        }
        self.map(s, file, fork)?;
        let left = u64::from(file.len_bytes(fork)).saturating_sub(offset);
        if let Some(mut more) = file.ahead.plan(fork, offset, want, left)
            // The part that is read ahead may be damaged, and the requested part not.
            && self.read_pieces(s, file, fork, offset, &mut more, S::read_data).is_ok()
        {
            if let Some(part) = more.get(..want) {
                buf.copy_from_slice(part);
            }
            file.ahead.keep(fork, offset, want, more);
            return Ok(want);
        }
        self.read_pieces(s, file, fork, offset, buf, S::read_data)?;
        Ok(want)
    }

    /// Fills `buf` with bytes within the fork's length: calls `read` with each contiguous part of
    /// it, and the volume block and the byte within it at which the part begins.
    pub(crate) fn read_pieces<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        offset: u64,
        buf: &mut [u8],
        mut read: impl FnMut(&mut S, u64, usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let offset = u32::try_from(offset).map_err(|_| Error::TooLarge)?;
        let map = self.map(s, file, fork)?;
        let mut done = 0_u32;
        let mut rest = buf;
        while !rest.is_empty() {
            let left = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let Some((block, within, n)) = self.piece(map, offset + done, left) else {
                return Err(Error::corrupt("a fork", 0, "its extents end before its length"));
            };
            let (now, later) = rest.split_at_mut(n as usize);
            read(s, block, within, now)?;
            rest = later;
            done += n;
        }
        Ok(())
    }

    /// Writes all of `data` at byte `offset` of a fork. The gap between the end and a later offset
    /// becomes zero.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`]; nothing has changed then.
    pub fn write<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        offset: u64,
        data: &[u8],
    ) -> Result<P> {
        if data.is_empty() {
            return Ok(S::DURABLE);
        }
        let end = offset.checked_add(data.len() as u64).and_then(|e| u32::try_from(e).ok());
        let Some(end) = end.filter(|&e| e <= FORK_MAX_BYTES) else { return Err(Error::TooLarge) };
        let Ok(offset) = u32::try_from(offset) else { return Err(Error::TooLarge) };
        self.check_writable()?;
        file.content_changes();
        self.map(s, file, fork)?;
        let mut waits = Befores::new();
        let len = file.len_bytes(fork);
        if end > len {
            let gap = u64::from(offset.saturating_sub(len));
            let zeroed = s.zeroes_before(file.id(), gap / BLOCK_BYTES as u64);
            let zero_end = self.make_room(s, file, fork, end, zeroed, &mut waits)?;
            if offset > len {
                self.zero(s, file, fork, len, offset.min(zero_end), &mut waits)?;
            }
        }
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let left = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let map = self.map(s, file, fork)?;
            let Some((block, within, n)) = self.piece(map, at, left) else {
                return Err(Error::corrupt("a fork", 0, "its extents end before its length"));
            };
            let (now, later) = rest.split_at(n as usize);
            // Blocks wholly after the old end are fresh: their old content belongs to no file.
            let block_start = at - u32::try_from(within).unwrap_or(0);
            let fresh_from = len.next_multiple_of(BLOCK_BYTES as u32);
            if block_start >= fresh_from || at + n <= fresh_from {
                let fresh = block_start >= fresh_from;
                waits.push(s.write_data(block, file.id(), within, now, fresh)?);
            } else {
                let (old, new) = now.split_at((fresh_from - at) as usize);
                waits.push(s.write_data(block, file.id(), within, old, false)?);
                let fresh_block =
                    block + (u64::from(fresh_from - block_start)) / BLOCK_BYTES as u64;
                waits.push(s.write_data(fresh_block, file.id(), 0, new, true)?);
            }
            rest = later;
            at += n;
        }
        let sizes = file.record.fork_mut(fork);
        sizes.len_bytes = sizes.len_bytes.max(end);
        if file.record.modified != self.now {
            file.record.modified = self.now;
            self.touch();
        }
        if end > len {
            return self.write_record(s, file, &waits);
        }
        // Data that is overwritten is not ordered with the date.
        let dated = self.write_record(s, file, &[])?;
        if !s.is_atomic() {
            return Ok(dated);
        }
        // The record may lie in a journaled block, which belongs to no file: a sync of the file
        // waits for it here.
        waits.push(dated);
        s.join(&waits)
    }

    /// Makes a fork `len_bytes` long: the part behind the old end reads as zeroes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn set_len<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        len_bytes: u64,
    ) -> Result<P> {
        let new = u32::try_from(len_bytes).ok().filter(|&n| n <= FORK_MAX_BYTES);
        let Some(new) = new else { return Err(Error::TooLarge) };
        self.check_writable()?;
        file.content_changes();
        self.map(s, file, fork)?;
        let len = file.len_bytes(fork);
        let mut waits = Befores::new();
        if new > len {
            let zero_end = self.make_room(s, file, fork, new, true, &mut waits)?;
            self.zero(s, file, fork, len, new.min(zero_end), &mut waits)?;
        }
        file.record.fork_mut(fork).len_bytes = new;
        file.record.modified = self.now;
        self.touch();
        self.space.drop_window((file.id(), fork));
        let keep = new.div_ceil(self.mdb.alloc_block_bytes);
        // A file without a name keeps its blocks: on the disk it may still have its name.
        if keep < self.map(s, file, fork)?.blocks() && !file.deleted {
            return self.cut(s, file, fork, keep, &waits);
        }
        self.write_record(s, file, &waits)
    }

    /// Allocates space for `len_bytes` to a fork, without making it longer.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn grow<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        len_bytes: u64,
    ) -> Result<P> {
        let Some(len) = u32::try_from(len_bytes).ok().filter(|&n| n <= FORK_MAX_BYTES) else {
            return Err(Error::TooLarge);
        };
        self.check_writable()?;
        self.map(s, file, fork)?;
        let mut waits = Befores::new();
        self.make_room(s, file, fork, len, false, &mut waits)?;
        self.touch();
        self.write_record(s, file, &waits)
    }

    /// Makes bytes of a fork zero that have space already.
    fn zero<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        from: u32,
        to: u32,
        waits: &mut Befores<P>,
    ) -> Result<()> {
        const ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        let id = file.id();
        let mut at = from;
        while at < to {
            let map = self.map(s, file, fork)?;
            let Some((block, within, n)) = self.piece(map, at, to - at) else {
                return Err(Error::corrupt("a fork", 0, "its extents end before its length"));
            };
            if within > 0 {
                let n = n.min(BLOCK_BYTES as u32 - u32::try_from(within).unwrap_or(0));
                let bytes = ZEROES.get(..n as usize).unwrap_or(&ZEROES);
                waits.push(s.write_data(block, id, within, bytes, false)?);
                at += n;
            } else {
                let blocks = n.div_ceil(BLOCK_BYTES as u32);
                waits.push(s.zero_data(block, id, u64::from(blocks))?);
                at = at.saturating_add(blocks * BLOCK_BYTES as u32);
            }
        }
        Ok(())
    }

    /// Allocates the blocks that a fork of `len_bytes` lacks. The record is not written. Many
    /// blocks are zeroed if `zeroed` is set. Returns the offset in the fork from which it is zero
    /// for that reason.
    pub(crate) fn make_room<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        len_bytes: u32,
        zeroed: bool,
        waits: &mut Befores<P>,
    ) -> Result<u32> {
        let id = file.id();
        let size = self.mdb.alloc_block_bytes;
        let want = len_bytes.div_ceil(size);
        let (has, goal, records, runs) = {
            let map = self.map(s, file, fork)?;
            let goal = map.runs.last().map(|run| run.extent.end());
            (map.blocks(), goal, map.records.len(), map.runs.len())
        };
        let Some(more) = want.checked_sub(has).filter(|&n| n > 0) else { return Ok(u32::MAX) };
        self.space.settle(s);
        let clump = match u32::from(file.record.clump_bytes) {
            0 => self.mdb.clump_bytes,
            own => own,
        };
        // A fork that has grown long gets a long window.
        let keep = (clump / size).max(has.min(WINDOW_MAX_BYTES / size)).min(u32::from(u16::MAX));
        let blocks = u64::from(more) * self.mdb.blocks_per_alloc();
        let zeroed = zeroed && s.zeroes_before(id, blocks);
        let taken = match zeroed {
            true => self.take_zeroed(s, (id, fork), goal, (more, more), keep)?,
            false => self.space.take((id, fork), goal, more, keep)?,
        };
        let deleted = file.deleted;
        if !deleted && runs + taken.len() > 3 {
            // At most a record for each extent, and a node for each few of them.
            let new_records = (runs + taken.len()).div_ceil(3).saturating_sub(records) + 1;
            let nodes = u32::try_from(new_records / 8 + 2).unwrap_or(u32::MAX)
                + u32::from(self.extents.header.depth)
                + 1;
            if let Err(e) = self.need_extents_nodes(s, nodes) {
                match e {
                    // They are zeroed: the next attempt takes them.
                    Error::Unzeroed if zeroed => self.keep_zeroed((id, fork), taken),
                    _ => self.space.put_back(&taken),
                }
                return Err(e);
            }
        }
        if !deleted {
            self.space.use_up(&taken);
        }
        if zeroed {
            self.zero_taken(s, id, &taken, waits)?;
        }
        let changed = append(file.map_mut(fork), &taken);
        self.store_map(s, file, fork, changed, waits)?;
        self.touch();
        Ok(if zeroed { has * size } else { u32::MAX })
    }

    /// Writes the records of a fork's map from record `first` on to the file's record and the
    /// extents file.
    fn store_map<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        first: usize,
        waits: &mut Befores<P>,
    ) -> Result<()> {
        let size = self.mdb.alloc_block_bytes;
        let map = file.map_mut(fork);
        let (blocks, own) = (map.blocks(), map.record(0).1);
        let others: Vec<_> = (first.max(1)..map.records.len()).map(|i| map.record(i)).collect();
        let sizes = file.record.fork_mut(fork);
        sizes.space_bytes = blocks.saturating_mul(size);
        sizes.extents = own;
        if file.deleted {
            return Ok(());
        }
        for (at, extents) in others {
            let key = Self::overflow_key(file.id(), fork, at)?;
            let value = ExtentKey::encode_record(&extents);
            waits.push(self.put_extents(s, &key, &value, &[])?);
        }
        Ok(())
    }

    /// Cuts a fork down to `keep` allocation blocks, and writes the file's record.
    fn cut<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        fork: Fork,
        keep: u32,
        waits: &[P],
    ) -> Result<P> {
        let old = self.map(s, file, fork)?.clone();
        let (map, freed) = cut_map(&old, keep);
        let size = self.mdb.alloc_block_bytes;
        let sizes = file.record.fork_mut(fork);
        sizes.space_bytes = map.blocks().saturating_mul(size);
        sizes.extents = map.record(0).1;
        let records = map.records.len();
        *file.map_mut(fork) = map.clone();
        let cleared = self.write_record(s, file, waits)?;
        let mut all = Befores::from_slice(&[cleared]);
        for i in (1..old.records.len()).rev() {
            let (at, was) = old.record(i);
            let key = Self::overflow_key(file.id(), fork, at)?;
            if i >= records {
                all.extend(self.remove_extents(s, &key, &[cleared])?);
            } else if map.record(i).1 != was {
                let value = ExtentKey::encode_record(&map.record(i).1);
                all.push(self.put_extents(s, &key, &value, &[cleared])?);
            }
        }
        let gone = s.join(&all)?;
        self.free_extents(s, &freed, gone);
        Ok(cleared)
    }

    /// Gives up the windows reserved after the forks of a file.
    pub fn close_file(&mut self, id: u32) {
        for fork in Fork::ALL {
            self.space.drop_window((id, fork));
        }
    }

    /// Frees blocks on the disk; they can be allocated again when `cleared` is durable.
    pub(crate) fn free_extents<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        extents: &[Extent],
        cleared: P,
    ) {
        let per = self.mdb.blocks_per_alloc();
        self.space.let_go(extents);
        for extent in extents {
            s.free(self.block_of(u32::from(extent.start)), u64::from(extent.count) * per, cleared);
        }
        self.space.release(s, extents, cleared);
        self.space.settle(s);
    }
}

/// Appends extents to a map; returns the first record that changed.
pub(super) fn append(map: &mut ForkMap, extents: &[Extent]) -> usize {
    if map.records.is_empty() {
        map.records.push(0);
    }
    let first = map.records.len() - 1;
    for &extent in extents {
        if let Some(last) = map.runs.last_mut()
            && last.extent.end() == u32::from(extent.start)
            && let Some(count) = last.extent.count.checked_add(extent.count)
        {
            last.extent.count = count;
            continue;
        }
        let at = map.blocks();
        map.runs.push(Run { at, extent });
        match map.records.last_mut() {
            Some(count) if *count < 3 => *count += 1,
            _ => map.records.push(1),
        }
    }
    first
}

/// Returns the map of the first `keep` blocks, and the extents of the others.
fn cut_map(map: &ForkMap, keep: u32) -> (ForkMap, Vec<Extent>) {
    let mut kept = ForkMap::default();
    let mut freed = Vec::new();
    let mut runs = map.runs.iter();
    for &count in &map.records {
        let mut in_record = 0;
        for run in runs.by_ref().take(usize::from(count)) {
            let Extent { start, count } = run.extent;
            // Not greater than the count, which has 16 bits.
            let here =
                u16::try_from(keep.saturating_sub(run.at).min(u32::from(count))).unwrap_or(count);
            if here > 0 {
                kept.runs.push(Run { at: run.at, extent: Extent { start, count: here } });
                in_record += 1;
            }
            if here < count {
                freed.push(Extent { start: start.saturating_add(here), count: count - here });
            }
        }
        if in_record > 0 || kept.records.is_empty() {
            kept.records.push(in_record);
        }
    }
    (kept, freed)
}
