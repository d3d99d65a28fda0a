//! A device whose changes stay in memory.

use crate::{BlockDevice, Change, Extent, Filter, Geometry, Result};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit that is kept, in bytes.
const PAGE: usize = 4096;

type Pages = HashMap<u64, Box<[u8; PAGE]>>;

/// Another device, read through the changes made here; it is never written itself. Whoever needs
/// to change a volume in order to look at it (to replay its journal, say) does it in one of these.
///
/// Memory grows with the number of pages of 4 KiB that are changed. A flush does nothing.
///
/// ```
/// use weft_block::{BlockDevice, MemoryDevice, Overlay};
///
/// let disk = MemoryDevice::new(1 << 20);
/// let view = Overlay::new(&disk);
/// view.write_at(b"not there", 4090)?;
/// let mut seen = [0; 9];
/// view.read_at(&mut seen, 4090)?;
/// assert_eq!(&seen, b"not there");
/// disk.read_at(&mut seen, 4090)?;
/// assert_eq!(seen, [0; 9]);
/// # Ok::<(), weft_block::Error>(())
/// ```
#[derive(Debug)]
pub struct Overlay<D> {
    inner: D,
    changed: Mutex<Pages>,
}

impl<D: BlockDevice> Overlay<D> {
    /// Starts without changes.
    pub fn new(inner: D) -> Self {
        Self { inner, changed: Mutex::default() }
    }

    fn changed(&self) -> MutexGuard<'_, Pages> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page as the inner device has it; zeroes past its end.
    fn inner_page(&self, page: u64) -> Result<Box<[u8; PAGE]>> {
        let mut content = Box::new([0; PAGE]);
        let start = page * PAGE as u64;
        let len = (self.inner.geometry().len_bytes - start).min(PAGE as u64);
        self.inner.read_at(&mut content[..usize::try_from(len).unwrap_or(PAGE)], start)?;
        Ok(content)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut changed = self.changed();
        for (page, within, range) in parts(offset, buf.len()) {
            let content = match changed.entry(page) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(self.inner_page(page)?)
                }
            };
            let len = range.len();
            content[within..within + len].copy_from_slice(&buf[range]);
        }
        Ok(())
    }
}

/// The parts of a byte range that lie in one page each: page, offset in it, range of the buffer.
fn parts(
    offset: u64,
    len_bytes: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        // Below the page size.
        let within = (at % PAGE as u64) as usize;
        let len = (PAGE - within).min(len_bytes - done);
        let part = (at / PAGE as u64, within, done..done + len);
        done += len;
        (len > 0).then_some(part)
    })
}

impl<D: BlockDevice> Filter for Overlay<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_geometry(&self) -> Geometry {
        Geometry { read_only: false, ..self.inner.geometry() }
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buf, offset)?;
        let changed = self.changed();
        if changed.is_empty() {
            return Ok(());
        }
        for (page, within, range) in parts(offset, buf.len()) {
            if let Some(content) = changed.get(&page) {
                let len = range.len();
                buf[range].copy_from_slice(&content[within..within + len]);
            }
        }
        Ok(())
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        change.check(self.inner.geometry().len_bytes)?;
        change.apply_by_writes(|buf, at| self.write(buf, at))
    }

    fn filter_flush(&self) -> Result<()> {
        Ok(())
    }

    fn filter_zeroes_are_fast(&self) -> bool {
        false
    }

    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        let page_bytes = PAGE as u64;
        let pages = offset / page_bytes..offset.saturating_add(len_bytes).div_ceil(page_bytes);
        let changed = self.changed().keys().filter(|page| pages.contains(page)).min().copied();
        let changed = changed.map(|page| page * page_bytes..(page + 1) * page_bytes);
        Ok(self.inner.extent_at(offset, len_bytes)?.under(offset, changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, MemoryDevice, ReadOnly, Rng};

    #[test]
    fn it_reads_like_a_device_that_was_written() {
        let len_bytes = 3 * PAGE + 700;
        let mut rng = Rng::new(7);
        let base: Vec<u8> = (0..len_bytes).map(|_| rng.below(256) as u8).collect();
        let disk = MemoryDevice::new(len_bytes as u64);
        disk.write_at(&base, 0).unwrap();
        let view = Overlay::new(ReadOnly::new(&disk));
        let mut model = base.clone();
        for _ in 0..500 {
            let offset = rng.index(len_bytes);
            let len = rng.index(len_bytes - offset + 1).min(2 * PAGE);
            if rng.below(2) == 0 {
                let byte = rng.below(256) as u8;
                model[offset..offset + len].fill(byte);
                view.write_at(&vec![byte; len], offset as u64).unwrap();
            } else {
                let mut got = vec![0; len];
                view.read_at(&mut got, offset as u64).unwrap();
                assert!(got == model[offset..offset + len], "{len} bytes at {offset}");
            }
        }
        let past = view.write_at(&[0; 2], len_bytes as u64 - 1);
        assert!(matches!(past, Err(Error::OutOfRange { .. })), "{past:?}");
        let mut now = vec![0; len_bytes];
        disk.read_at(&mut now, 0).unwrap();
        assert!(now == base, "the device below is as it was");
    }
}
