//! A device that can be frozen: a view of what it held at one moment, while it goes on changing.
//!
//! While a [`Snapshot`] lives, each write to its device keeps the pages it overwrites, up to a
//! budget; past that the snapshot is lost, not the write. Without one, nothing is kept and writes
//! go straight through.
//!
//! # Invariants
//!
//! - A page is kept before its first overwriting write starts, under the lock that reads of the
//!   snapshot take: a read sees every page as it was.
//! - There is at most one snapshot.

use crate::{BlockDevice, Change, Error, Extent, Filter, Geometry, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The unit that is kept, in bytes.
const PAGE: u64 = 4096;

/// The pages that a snapshot keeps.
#[derive(Debug, Default)]
struct Kept {
    pages: HashMap<u64, Box<[u8]>>,
    budget_pages: usize,
    /// The budget was used up.
    lost: bool,
}

/// Another device, which can be frozen.
#[derive(Debug)]
pub struct SnapshotDevice<D> {
    inner: D,
    frozen: AtomicBool,
    kept: Mutex<Option<Kept>>,
}

/// The content of a [`SnapshotDevice`] at the time it was frozen. Reads fail once more has been
/// overwritten since than may be kept.
#[derive(Debug)]
pub struct Snapshot<D> {
    device: Arc<SnapshotDevice<D>>,
}

impl<D: BlockDevice> SnapshotDevice<D> {
    /// Wraps `inner`.
    pub fn new(inner: D) -> Self {
        Self { inner, frozen: AtomicBool::new(false), kept: Mutex::new(None) }
    }

    /// Freezes the device as it is, keeping at most `budget_bytes` of what is overwritten from now
    /// on. `None` if it is frozen already. No write may be under way.
    pub fn freeze(self: &Arc<Self>, budget_bytes: usize) -> Option<Snapshot<D>> {
        let mut kept = self.kept();
        if kept.is_some() {
            return None;
        }
        *kept = Some(Kept { budget_pages: budget_bytes / PAGE as usize, ..Kept::default() });
        self.frozen.store(true, Ordering::SeqCst);
        Some(Snapshot { device: Arc::clone(self) })
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: BlockDevice> Filter for SnapshotDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    /// Makes the change; if there is a snapshot, the pages that it overwrites are kept first.
    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        if !self.frozen.load(Ordering::SeqCst) {
            return change.apply(&self.inner);
        }
        let mut guard = self.kept();
        if let Some(kept) = guard.as_mut().filter(|kept| !kept.lost) {
            let device_bytes = self.inner.geometry().len_bytes;
            let end = change.offset.saturating_add(change.len_bytes).min(device_bytes);
            for page in change.offset / PAGE..end.div_ceil(PAGE) {
                if kept.pages.contains_key(&page) {
                    continue;
                }
                if kept.pages.len() >= kept.budget_pages {
                    kept.lost = true;
                    kept.pages = HashMap::new();
                    break;
                }
                let at = page * PAGE;
                let len = PAGE.min(device_bytes - at);
                let mut old = vec![0; usize::try_from(len).unwrap_or(0)].into_boxed_slice();
                self.inner.read_at(&mut old, at)?;
                kept.pages.insert(page, old);
            }
        }
        change.apply(&self.inner)
    }
}

impl<D: BlockDevice> Filter for Snapshot<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.device.inner
    }

    fn filter_geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.device.inner.geometry() }
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let guard = self.device.kept();
        let lost = || Error::Invalid("the snapshot is lost: too much was written".into());
        let kept = guard.as_ref().filter(|kept| !kept.lost).ok_or_else(lost)?;
        self.device.inner.read_at(buf, offset)?;
        let end = offset + buf.len() as u64;
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let Some(old) = kept.pages.get(&page) else { continue };
            let at = page * PAGE;
            let from = offset.max(at);
            let to = end.min(at + old.len() as u64);
            let part = |base: u64| {
                usize::try_from(from - base).unwrap_or(0)..usize::try_from(to - base).unwrap_or(0)
            };
            if let (Some(to), Some(from)) = (buf.get_mut(part(offset)), old.get(part(at))) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn filter_change(&self, _: Change<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn filter_flush(&self) -> Result<()> {
        Ok(())
    }

    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        let guard = self.device.kept();
        let lost = || Error::Invalid("the snapshot is lost: too much was written".into());
        let kept = guard.as_ref().filter(|kept| !kept.lost).ok_or_else(lost)?;
        let pages = offset / PAGE..offset.saturating_add(len_bytes).div_ceil(PAGE);
        let first = kept.pages.keys().filter(|page| pages.contains(page)).min();
        let first = first.map(|page| page * PAGE..(page + 1) * PAGE);
        Ok(self.device.inner.extent_at(offset, len_bytes)?.under(offset, first))
    }
}

impl<D> Drop for Snapshot<D> {
    fn drop(&mut self) {
        self.device.frozen.store(false, Ordering::SeqCst);
        *self.device.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::rng::Rng;
    use std::io::IoSlice;

    fn all(device: &dyn BlockDevice) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes).unwrap()];
        device.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_snapshot_stays_as_it_was() {
        let device = Arc::new(SnapshotDevice::new(MemoryDevice::new(40_000)));
        device.write_at(&[1; 40_000], 0).unwrap();
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let before = all(&*device);
            let snapshot = device.freeze(1 << 20).unwrap();
            assert!(device.freeze(1 << 20).is_none(), "there is one already");
            for _ in 0..30 {
                let offset = rng.below(39_000);
                let len = 1 + rng.below(40_000 - offset);
                let bytes = vec![u8::try_from(rng.below(256)).unwrap(); len as usize];
                match rng.below(4) {
                    0 => device.write_zeroes(offset, len).unwrap(),
                    1 => {
                        let (a, b) = bytes.split_at(bytes.len() / 2);
                        let parts = [IoSlice::new(a), IoSlice::new(b)];
                        device.write_vectored_at(&parts, offset).unwrap();
                    }
                    _ => device.write_at(&bytes, offset).unwrap(),
                }
                let mut part = vec![0; len as usize];
                snapshot.read_at(&mut part, offset).unwrap();
                let at = offset as usize;
                assert!(part == before[at..at + part.len()], "seed {seed}");
            }
            assert!(all(&snapshot) == before, "seed {seed}");
            assert!(all(&*device) != before, "seed {seed}");
        }
    }

    #[test]
    fn past_its_budget_a_snapshot_is_lost_and_the_write_is_not() {
        let device = Arc::new(SnapshotDevice::new(MemoryDevice::new(100_000)));
        let snapshot = device.freeze(2 * PAGE as usize).unwrap();
        device.write_at(&[7; 8192], 0).unwrap();
        assert!(snapshot.read_at(&mut [0; 10], 0).is_ok());
        device.write_at(&[7; 100], 50_000).unwrap();
        assert!(snapshot.read_at(&mut [0; 10], 0).is_err());
        let mut byte = [0];
        device.read_at(&mut byte, 50_000).unwrap();
        assert_eq!(byte, [7]);
        drop(snapshot);
        assert!(device.freeze(1).is_some(), "it can be frozen again");
    }
}
