//! A sparse device in memory, with snapshots that cost next to nothing.
//!
//! [`Image`] is the content: pages of [`PAGE_BYTES`] shared by reference count, in chunks that are
//! shared too, so that cloning an image of any size copies one small map and changing a page of
//! the clone copies one chunk of pointers and one page. [`MemoryDevice`] is an image behind a lock.
//!
//! Invariant: no byte at or past `len_bytes` is ever set, and a page that is missing reads as
//! zeroes.

use crate::{BlockDevice, Extent, ExtentKind, Geometry, Result, SECTOR_BYTES, check_range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The unit in which images share memory, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Pages in one chunk of the map.
const CHUNK_PAGES: usize = 64;

/// The content of one page.
pub type Page = [u8; PAGE_BYTES];

#[derive(Debug, Clone)]
struct Chunk([Option<Arc<Page>>; CHUNK_PAGES]);

impl Default for Chunk {
    fn default() -> Self {
        Self([const { None }; CHUNK_PAGES])
    }
}

/// The content of a device: sparse, and cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Image {
    len_bytes: u64,
    chunks: BTreeMap<u64, Arc<Chunk>>,
}

/// Splits a byte range at page ends: page number, offset within it, bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let n = (PAGE_BYTES - within).min(len - done);
        done += n;
        Some((at / PAGE_BYTES as u64, within, n))
    })
}

impl Image {
    /// An image of zeroes.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self { len_bytes, chunks: BTreeMap::new() }
    }

    /// An image of everything that `device` holds now.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn copy_of(device: &dyn BlockDevice) -> Result<Self> {
        let mut image = Self::new(device.geometry().len_bytes);
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        while at < image.len_bytes {
            let n = usize::try_from(image.len_bytes - at).unwrap_or(usize::MAX).min(buf.len());
            device.read_at(&mut buf[..n], at)?;
            image.write(&buf[..n], at)?;
            at += n as u64;
        }
        Ok(image)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// A page's content, or `None` where it was never written and reads as zeroes.
    #[must_use]
    pub fn page(&self, number: u64) -> Option<&Page> {
        self.page_arc(number).map(|p| &**p)
    }

    fn page_arc(&self, number: u64) -> Option<&Arc<Page>> {
        let chunk = self.chunks.get(&(number / CHUNK_PAGES as u64))?;
        chunk.0[(number % CHUNK_PAGES as u64) as usize].as_ref()
    }

    fn page_mut(&mut self, number: u64) -> &mut Page {
        let chunk = self.chunks.entry(number / CHUNK_PAGES as u64).or_default();
        let slot = &mut Arc::make_mut(chunk).0[(number % CHUNK_PAGES as u64) as usize];
        Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; PAGE_BYTES])))
    }

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_range("read", offset, buf.len() as u64, self.len_bytes)?;
        let mut rest = buf;
        for (number, within, n) in pieces(offset, rest.len()) {
            let (piece, tail) = rest.split_at_mut(n);
            match self.page(number) {
                Some(page) => piece.copy_from_slice(&page[within..within + n]),
                None => piece.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    /// Writes `buf` at byte `offset`. Zeroes over a page that is missing leave it missing.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn write(&mut self, buf: &[u8], offset: u64) -> Result<()> {
        check_range("write", offset, buf.len() as u64, self.len_bytes)?;
        let mut rest = buf;
        for (number, within, n) in pieces(offset, rest.len()) {
            let (piece, tail) = rest.split_at(n);
            rest = tail;
            if self.page(number).is_none() && piece.iter().all(|&b| b == 0) {
                continue;
            }
            self.page_mut(number)[within..within + n].copy_from_slice(piece);
        }
        Ok(())
    }

    /// Makes a range read as zeroes and gives back the memory of whole pages.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn zero(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        check_range("write zeroes", offset, len_bytes, self.len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let page = PAGE_BYTES as u64;
        let end = offset + len_bytes;
        // Only pages that exist cost anything: a range of any size is quick on a sparse image.
        let first_chunk = offset / page / CHUNK_PAGES as u64;
        let last_chunk = (end - 1) / page / CHUNK_PAGES as u64;
        let present: Vec<u64> = self.chunks.range(first_chunk..=last_chunk).map(|c| *c.0).collect();
        for number in present {
            for slot in 0..CHUNK_PAGES as u64 {
                let at = (number * CHUNK_PAGES as u64 + slot) * page;
                let (from, to) = (at.max(offset), at.saturating_add(page).min(end));
                let Some(chunk) = self.chunks.get_mut(&number) else { break };
                if from >= to || chunk.0[slot as usize].is_none() {
                    continue;
                }
                let slot = &mut Arc::make_mut(chunk).0[slot as usize];
                if to - from == page {
                    *slot = None;
                } else if let Some(content) = slot {
                    Arc::make_mut(content)[(from - at) as usize..(to - at) as usize].fill(0);
                }
            }
        }
        Ok(())
    }

    /// The first run of bytes from `offset` on that all hold memory, or all do not; of at most
    /// `len_bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        check_range("look", offset, len_bytes, self.len_bytes)?;
        let (page, per_chunk) = (PAGE_BYTES as u64, CHUNK_PAGES as u64);
        let end = offset + len_bytes;
        let kind_of = |has: bool| if has { ExtentKind::Data } else { ExtentKind::Hole };
        let first = self.page(offset / page).is_some();
        let mut number = offset / page;
        while number.saturating_mul(page) < end && self.page(number).is_some() == first {
            let chunk = number / per_chunk;
            number = match self.chunks.range(chunk..).next() {
                Some((key, _)) if *key == chunk => number + 1,
                // Whole chunks are missing: on to the next there is.
                Some((key, _)) => key * per_chunk,
                None => break,
            };
        }
        let past = self.chunks.range(number / per_chunk..).next().is_none();
        let stop = if past && !first { end } else { number.saturating_mul(page).min(end) };
        Ok(Extent { len_bytes: stop - offset, kind: kind_of(first) })
    }

    /// The numbers of the pages that do not share memory with `base`'s: all that differ, and
    /// perhaps some that were written with the content they had.
    #[must_use]
    pub fn pages_apart(&self, base: &Self) -> Vec<u64> {
        let keys: BTreeSet<u64> = self.chunks.keys().chain(base.chunks.keys()).copied().collect();
        let mut apart = Vec::new();
        for key in keys {
            let (a, b) = (self.chunks.get(&key), base.chunks.get(&key));
            if let (Some(a), Some(b)) = (a, b)
                && Arc::ptr_eq(a, b)
            {
                continue;
            }
            for slot in 0..CHUNK_PAGES {
                let a = a.and_then(|c| c.0[slot].as_ref());
                let b = b.and_then(|c| c.0[slot].as_ref());
                let same = match (a, b) {
                    (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                    (None, None) => true,
                    _ => false,
                };
                if !same {
                    apart.push(key * CHUNK_PAGES as u64 + slot as u64);
                }
            }
        }
        apart
    }

    /// The pages that hold memory, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.chunks.iter().flat_map(|(key, chunk)| {
            let first = key * CHUNK_PAGES as u64;
            let slots = chunk.0.iter().enumerate();
            slots.filter_map(move |(i, p)| p.as_ref().map(|p| (first + i as u64, &**p)))
        })
    }
}

/// A device in memory.
#[derive(Debug, Default)]
pub struct MemoryDevice {
    image: RwLock<Image>,
}

impl MemoryDevice {
    /// A device of zeroes. Memory is taken only for what is written.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self::from_image(Image::new(len_bytes))
    }

    /// A device that holds `image`.
    #[must_use]
    pub fn from_image(image: Image) -> Self {
        Self { image: RwLock::new(image) }
    }

    /// Returns the present content. Later writes do not change it.
    #[must_use]
    pub fn snapshot(&self) -> Image {
        self.shared().clone()
    }

    /// Makes the device longer; the new part reads as zeroes. A shorter length changes nothing.
    pub fn grow(&self, len_bytes: u64) {
        let mut image = self.exclusive();
        image.len_bytes = image.len_bytes.max(len_bytes);
    }

    // A panic of another thread cannot leave an image half-changed in a way that matters more
    // than the panic itself, so poison is passed over.
    fn shared(&self) -> RwLockReadGuard<'_, Image> {
        self.image.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Image> {
        self.image.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.shared().len_bytes,
            logical_block_bytes: SECTOR_BYTES as u32,
            physical_block_bytes: PAGE_BYTES as u32,
            read_only: false,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.shared().read(buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.read_at(buf, offset).map(|()| true)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.exclusive().write(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.exclusive().zero(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.exclusive().zero(offset, len_bytes)
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.shared().extent(offset, len_bytes)
    }

    fn zeroes_are_fast(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_keeps_its_content_and_names_what_changed() {
        let device = MemoryDevice::new(10 << 20);
        device.write_at(&[1; 9000], 4000).unwrap();
        let before = device.snapshot();
        device.write_at(&[2; 10], 8192).unwrap();
        device.write_at(&[3; 10], 5 << 20).unwrap();
        let after = device.snapshot();
        assert_eq!(after.pages_apart(&before), [2, 5 << 20 >> 12]);
        assert_eq!(before.pages_apart(&before.clone()), [0_u64; 0]);
        let mut byte = [0];
        before.read(&mut byte, 8192).unwrap();
        assert_eq!(byte, [1]);
    }

    #[test]
    fn extents_follow_the_pages_that_hold_memory() {
        let device = MemoryDevice::new(100 << 20);
        for page in [0_u64, 1, 63, 64, 5000] {
            device.write_at(&[1], page * 4096).unwrap();
        }
        let mut runs = Vec::new();
        let mut at = 0;
        while at < 100 << 20 {
            let extent = device.extent_at(at, (100 << 20) - at).unwrap();
            runs.push((extent.kind == ExtentKind::Data, extent.len_bytes / 4096));
            at += extent.len_bytes;
        }
        let rest = (100 << 20) / 4096 - 5001;
        let want = [(true, 2), (false, 61), (true, 2), (false, 4935), (true, 1), (false, rest)];
        assert_eq!(runs, want);
        let part = device.extent_at(4100, 50).unwrap();
        assert_eq!(part, Extent { len_bytes: 50, kind: ExtentKind::Data });
        assert_eq!(device.extent_at(8191, 50).unwrap().len_bytes, 1);
        assert!(device.extent_at(0, (100 << 20) + 1).is_err());
    }

    #[test]
    fn an_absurd_size_costs_nothing() {
        let device = MemoryDevice::new(u64::MAX);
        device.write_at(&[9], u64::MAX - 1).unwrap();
        device.write_zeroes(1, u64::MAX - 3).unwrap();
        assert_eq!(device.snapshot().pages().count(), 1);
        device.discard(0, u64::MAX).unwrap();
        let mut byte = [1];
        device.read_at(&mut byte, u64::MAX - 1).unwrap();
        assert_eq!(byte, [0]);
    }
}
