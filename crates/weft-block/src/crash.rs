//! A disk with a volatile write cache and a plug that can be pulled.
//!
//! Until a flush, a write lives in the cache only. When the power goes, each cached write is kept,
//! lost, or torn into its 512-byte sectors, as the seed says; for one sector the newest of the
//! kept writes wins, because a cache holds one version of a sector. That is all that a disk may do,
//! so every image left behind by [`CrashDevice::crash`] is a legal one, and all legal ones can
//! happen. ([`weft-crash`] enumerates them from a recording; this device is for running something
//! live and pulling the plug under it.)
//!
//! [`weft-crash`]: https://docs.rs/weft-crash

use crate::change::joined;
use crate::rng::Rng;
use crate::{
    BlockDevice, Change, ChangeKind, Error, Extent, Filter, Result, SECTOR_BYTES, check_range,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SECTOR: u64 = SECTOR_BYTES as u64;

/// The fate of the writes that were not flushed before a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashOutcome {
    /// Writes that reached the medium whole.
    pub kept: usize,
    /// Writes that are gone.
    pub lost: usize,
    /// Writes of which some sectors are there and some are not.
    pub torn: usize,
}

/// A cached write: whole sectors.
#[derive(Debug)]
struct Pending {
    first_sector: u64,
    data: Vec<u8>,
}

#[derive(Debug)]
struct Cache {
    pending: BTreeMap<u64, Pending>,
    next_number: u64,
    /// The number of the newest cached write of each sector.
    newest: BTreeMap<u64, u64>,
    bytes: usize,
    crashes: u64,
    off: bool,
}

/// Another device behind a volatile write cache.
#[derive(Debug)]
pub struct CrashDevice<D> {
    inner: D,
    seed: u64,
    capacity_bytes: usize,
    cache: Mutex<Cache>,
}

impl<D: BlockDevice> CrashDevice<D> {
    /// Puts a cache over `inner`. The same seed and the same requests in the same order give the
    /// same crashes. The cache holds any number of writes.
    pub fn new(inner: D, seed: u64) -> Self {
        Self::with_capacity(inner, seed, usize::MAX)
    }

    /// As [`new`](Self::new), with a cache that writes its oldest writes back by itself once it
    /// holds more than `capacity_bytes`.
    pub fn with_capacity(inner: D, seed: u64, capacity_bytes: usize) -> Self {
        let cache = Cache {
            pending: BTreeMap::new(),
            next_number: 0,
            newest: BTreeMap::new(),
            bytes: 0,
            crashes: 0,
            off: false,
        };
        Self { inner, seed, capacity_bytes, cache: Mutex::new(cache) }
    }

    /// Pulls the plug: settles what of the cache survived on the medium. Every request fails with
    /// `EIO` from now on until [`power_on`](Self::power_on).
    ///
    /// # Errors
    /// Those of the medium.
    pub fn crash(&self) -> Result<CrashOutcome> {
        let mut cache = self.cache();
        cache.off = true;
        cache.crashes += 1;
        let mut rng = Rng::stream(self.seed, cache.crashes);
        // A crash is mild or harsh as a whole: with one fixed chance, states in which almost all
        // or almost nothing survived would practically never be seen.
        let (keep, tear) = (rng.below(101), rng.below(101));
        let pending = std::mem::take(&mut cache.pending);
        cache.newest.clear();
        cache.bytes = 0;
        let mut outcome = CrashOutcome::default();
        for write in pending.into_values() {
            let sectors = write.data.len() / SECTOR_BYTES;
            if sectors > 1 && rng.chance(tear, 200) {
                outcome.torn += 1;
                for (i, sector) in write.data.chunks(SECTOR_BYTES).enumerate() {
                    if rng.chance(1, 2) {
                        self.write_out(write.first_sector + i as u64, sector)?;
                    }
                }
            } else if rng.chance(keep, 100) {
                outcome.kept += 1;
                self.write_out(write.first_sector, &write.data)?;
            } else {
                outcome.lost += 1;
            }
        }
        self.inner.flush()?;
        Ok(outcome)
    }

    /// Puts the plug back: the device works again, with what survived.
    pub fn power_on(&self) {
        self.cache().off = false;
    }

    /// Returns the number of writes that a crash now could lose.
    pub fn pending_writes(&self) -> usize {
        self.cache().pending.len()
    }

    /// The medium. What it holds is what a crash that loses everything leaves.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn powered(&self, op: &'static str, offset: u64, len: u64) -> Result<MutexGuard<'_, Cache>> {
        let cache = self.cache();
        if cache.off {
            let eio = io::Error::from_raw_os_error(Errno::IO.raw_os_error());
            return Err(Error::io(op, offset, len, eio));
        }
        Ok(cache)
    }

    /// Puts a write into the cache.
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut cache = self.powered("write", offset, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let (first_sector, end_sector) = (offset / SECTOR, end.div_ceil(SECTOR));
        let start = first_sector * SECTOR;
        let mut data = vec![0; ((end_sector - first_sector) * SECTOR) as usize];
        if start != offset || end != end_sector * SECTOR {
            // Part of a sector: the disk works in whole ones.
            let there = (end_sector * SECTOR).min(self.inner.geometry().len_bytes) - start;
            self.read_cached(&cache, &mut data[..there as usize], start)?;
        }
        let within = (offset - start) as usize;
        data[within..within + buf.len()].copy_from_slice(buf);
        let number = cache.next_number;
        cache.next_number += 1;
        cache.bytes += data.len();
        for sector in first_sector..end_sector {
            cache.newest.insert(sector, number);
        }
        cache.pending.insert(number, Pending { first_sector, data });
        while cache.bytes > self.capacity_bytes && !cache.pending.is_empty() {
            self.evict(&mut cache)?;
        }
        Ok(())
    }

    /// Writes the oldest cached write back.
    fn evict(&self, cache: &mut Cache) -> Result<()> {
        let Some((number, write)) = cache.pending.pop_first() else { return Ok(()) };
        cache.bytes -= write.data.len();
        let end = write.first_sector + (write.data.len() / SECTOR_BYTES) as u64;
        for sector in write.first_sector..end {
            if cache.newest.get(&sector) == Some(&number) {
                cache.newest.remove(&sector);
            }
        }
        self.write_out(write.first_sector, &write.data)
    }

    fn write_out(&self, first_sector: u64, data: &[u8]) -> Result<()> {
        let at = first_sector * SECTOR;
        // The last sector of a device whose length is no multiple of a sector is a short one.
        let fits = self.inner.geometry().len_bytes.saturating_sub(at).min(data.len() as u64);
        self.inner.write_at(&data[..fits as usize], at)
    }

    fn read_cached(&self, cache: &Cache, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buf, offset)?;
        let end = offset + buf.len() as u64;
        for (&sector, number) in cache.newest.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let Some(write) = cache.pending.get(number) else { continue };
            let within = (sector - write.first_sector) as usize * SECTOR_BYTES;
            let (from, to) = ((sector * SECTOR).max(offset), ((sector + 1) * SECTOR).min(end));
            let start = within + (from - sector * SECTOR) as usize;
            let n = (to - from) as usize;
            let at = (from - offset) as usize;
            buf[at..at + n].copy_from_slice(&write.data[start..start + n]);
        }
        Ok(())
    }
}

impl<D: BlockDevice> Filter for CrashDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let cache = self.powered("read", offset, buf.len() as u64)?;
        self.read_cached(&cache, buf, offset)
    }

    /// A discard does nothing: a discarded range may read as anything, its old content too.
    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        drop(self.powered(change.op(), change.offset, change.len_bytes)?);
        let geometry = self.inner.geometry();
        if geometry.read_only {
            return Err(Error::ReadOnly);
        }
        change.check(geometry.len_bytes)?;
        match change.kind {
            ChangeKind::Write(bufs) => self.write(&joined(bufs), change.offset),
            _ => change.apply_by_writes(|buf, at| self.write(buf, at)),
        }
    }

    fn filter_flush(&self) -> Result<()> {
        let mut cache = self.powered("flush", 0, 0)?;
        while let Some((number, write)) = cache.pending.pop_first() {
            if let Err(e) = self.write_out(write.first_sector, &write.data) {
                cache.pending.insert(number, write);
                return Err(e);
            }
            cache.bytes -= write.data.len();
        }
        cache.newest.clear();
        self.inner.flush()
    }

    fn filter_zeroes_are_fast(&self) -> bool {
        false
    }

    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        let cache = self.powered("look", offset, len_bytes)?;
        check_range("look", offset, len_bytes, self.inner.geometry().len_bytes)?;
        let sectors = offset / SECTOR..(offset + len_bytes).div_ceil(SECTOR);
        let pending = cache.newest.keys().filter(|sector| sectors.contains(sector)).min();
        let pending = pending.map(|sector| sector * SECTOR..(sector + 1) * SECTOR);
        Ok(self.inner.extent_at(offset, len_bytes)?.under(offset, pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::collections::BTreeSet;

    /// Two overlapping writes of four sectors over a flushed one; what is left, by sector.
    fn left_after(seed: u64) -> Vec<u8> {
        let device = CrashDevice::new(MemoryDevice::new(8192), seed);
        device.write_at(&[1; 2048], 0).unwrap();
        device.flush().unwrap();
        device.write_at(&[2; 2048], 0).unwrap();
        device.write_at(&[3; 1024], 1024).unwrap();
        let mut seen = [0; 2048];
        device.read_at(&mut seen, 0).unwrap();
        assert!(seen[..1024] == [2; 1024] && seen[1024..] == [3; 1024]);
        device.crash().unwrap();
        assert!(device.read_at(&mut seen, 0).is_err(), "the power is off");
        device.power_on();
        device.read_at(&mut seen, 0).unwrap();
        for sector in seen.chunks(512) {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector is whole");
        }
        seen.chunks(512).map(|s| s[0]).collect()
    }

    #[test]
    fn flushed_data_survives_and_every_legal_state_happens() {
        let states: BTreeSet<Vec<u8>> = (0..3000).map(left_after).collect();
        for state in &states {
            assert!(state.iter().all(|b| (1..=3).contains(b)), "{state:?}");
            assert!(state[..2].iter().all(|b| *b != 3), "{state:?}");
        }
        // Two sectors with two versions, two with three.
        assert_eq!(states.len(), 2 * 2 * 3 * 3);
        assert_eq!(left_after(17), left_after(17));
    }

    #[test]
    fn a_small_cache_writes_back_the_oldest() {
        let device = CrashDevice::with_capacity(MemoryDevice::new(8192), 1, 1024);
        for i in 0..4_u8 {
            device.write_at(&[i + 1; 512], u64::from(i) * 512).unwrap();
        }
        assert_eq!(device.pending_writes(), 2);
        let mut got = [0; 2048];
        device.inner().read_at(&mut got, 0).unwrap();
        assert!(got[..512] == [1; 512] && got[512..1024] == [2; 512] && got[1024..] == [0; 1024]);
        device.read_at(&mut got, 0).unwrap();
        assert_eq!(got[1536], 4);
    }
}
