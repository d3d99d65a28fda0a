//! The content of a file in memory: a sparse map of pages, which copies of it share until one is
//! changed.
//!
//! Invariants: a page that is missing reads as zeroes; in a mounted file every byte at or past the
//! file's size is zero within an allocated page, and no page lies past it, so that growing a file
//! needs no work. In a snapshot that is being built there may be such bytes (data that reached the
//! disk before the size did); `passes_end` is true then.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::page::Page;
use crate::{Error, Result, SeekFrom};

/// Unit of allocation, in bytes.
pub(super) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = PAGE_BYTES as usize;

#[derive(Debug, Default, Clone)]
pub(super) struct Content {
    pub(super) size_bytes: u64,
    pages: Arc<BTreeMap<u64, Arc<Page>>>,
    /// There may be bytes other than zero past the size.
    passes_end: bool,
}

impl Content {
    /// Allocated pages.
    pub(super) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = usize::try_from(self.size_bytes.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(buf.len());
        each_page(offset, len as u64, |nr, within, at| {
            let out = &mut buf[at..at + within.len()];
            match self.pages.get(&nr) {
                Some(page) => out.copy_from_slice(&page.bytes()[within]),
                None => out.fill(0),
            }
        });
        len
    }

    /// Writes until `budget` pages are taken; returns the bytes written.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], budget: &mut u64) -> usize {
        let mut done = 0;
        each_page(offset, data.len() as u64, |nr, within, at| {
            if done < at {
                return; // the volume filled up on an earlier page
            }
            let len = within.len();
            if let Some(page) = self.page(nr, budget) {
                page.bytes_mut()[within].copy_from_slice(&data[at..at + len]);
                done = at + len;
            }
        });
        if done > 0 {
            self.size_bytes = self.size_bytes.max(offset + done as u64);
        }
        done
    }

    /// Returns the page, allocated if necessary; `None` if the budget is used up.
    fn page(&mut self, nr: u64, budget: &mut u64) -> Option<&mut Page> {
        use std::collections::btree_map::Entry;
        match Arc::make_mut(&mut self.pages).entry(nr) {
            Entry::Occupied(e) => Some(Arc::make_mut(e.into_mut())),
            Entry::Vacant(_) if *budget == 0 => None,
            Entry::Vacant(e) => {
                *budget -= 1;
                Some(Arc::make_mut(e.insert(Arc::default())))
            }
        }
    }

    /// Returns a page, if it is allocated.
    pub(super) fn shared_page(&self, nr: u64) -> Option<&Arc<Page>> {
        self.pages.get(&nr)
    }

    /// Returns the allocated pages in order.
    pub(super) fn shared_pages(&self) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.pages.iter().map(|(&nr, page)| (nr, page))
    }

    /// Replaces a page; without one there is a hole. The size stays.
    pub(super) fn set_page(&mut self, nr: u64, page: Option<Arc<Page>>) {
        let pages = Arc::make_mut(&mut self.pages);
        match page {
            Some(page) => {
                pages.insert(nr, page);
                self.passes_end |=
                    nr.saturating_add(1).saturating_mul(PAGE_BYTES) > self.size_bytes;
            }
            None => drop(pages.remove(&nr)),
        }
    }

    /// Writes without changing the size, also past the end.
    pub(super) fn write_keeping_size(&mut self, offset: u64, data: &[u8]) {
        let (size_bytes, mut budget) = (self.size_bytes, u64::MAX);
        self.write(offset, data, &mut budget);
        self.passes_end |= self.size_bytes > size_bytes;
        self.size_bytes = size_bytes;
    }

    /// Returns true if [`trim`](Self::trim) may have something to do.
    pub(super) fn passes_end(&self) -> bool {
        self.passes_end
    }

    /// Removes all bytes past the end.
    pub(super) fn trim(&mut self) {
        if std::mem::take(&mut self.passes_end) {
            self.cut(self.size_bytes);
        }
    }

    pub(super) fn truncate(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            self.cut(size_bytes);
        }
        self.size_bytes = size_bytes;
    }

    /// Makes all bytes from `end` on zero.
    fn cut(&mut self, end: u64) {
        let keep = end.div_ceil(PAGE_BYTES);
        if self.pages.last_key_value().is_some_and(|(&last, _)| last >= keep) {
            Arc::make_mut(&mut self.pages).split_off(&keep);
        }
        let tail = usize::try_from(end % PAGE_BYTES).unwrap_or(0);
        let last = end / PAGE_BYTES;
        if tail > 0
            && self.pages.contains_key(&last)
            && let Some(page) = Arc::make_mut(&mut self.pages).get_mut(&last)
        {
            Arc::make_mut(page).bytes_mut()[tail..].fill(0);
        }
    }

    /// Makes a range read as zeroes; whole pages are freed.
    pub(super) fn zero(&mut self, offset: u64, len_bytes: u64) {
        let end = offset.saturating_add(len_bytes);
        let (first, last) = (offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        let touched: Vec<u64> = self.pages.range(first..last).map(|(&nr, _)| nr).collect();
        if touched.is_empty() {
            return;
        }
        let pages = Arc::make_mut(&mut self.pages);
        for nr in touched {
            let start = nr * PAGE_BYTES;
            let from = usize::try_from(offset.saturating_sub(start)).unwrap_or(PAGE).min(PAGE);
            let to = usize::try_from(end - start).unwrap_or(PAGE).min(PAGE);
            if from == 0 && to == PAGE {
                pages.remove(&nr);
            } else if let Some(page) = pages.get_mut(&nr) {
                Arc::make_mut(page).bytes_mut()[from..to].fill(0);
            }
        }
    }

    /// Allocates all pages of a range.
    pub(super) fn allocate(&mut self, offset: u64, len_bytes: u64, budget: &mut u64) -> Result<()> {
        let (first, last) = (offset / PAGE_BYTES, (offset + len_bytes).div_ceil(PAGE_BYTES));
        let have = self.pages.range(first..last).count() as u64;
        if (last - first) - have > *budget {
            return Err(Error::NoSpace);
        }
        for nr in first..last {
            self.page(nr, budget);
        }
        Ok(())
    }

    pub(super) fn seek(&self, from: SeekFrom) -> Result<u64> {
        let (SeekFrom::Data(at) | SeekFrom::Hole(at)) = from;
        if at >= self.size_bytes {
            return Err(Error::NoAddress);
        }
        let first = at / PAGE_BYTES;
        match from {
            SeekFrom::Data(_) => match self.pages.range(first..).next() {
                Some((&nr, _)) if nr * PAGE_BYTES < self.size_bytes => Ok(at.max(nr * PAGE_BYTES)),
                _ => Err(Error::NoAddress),
            },
            SeekFrom::Hole(_) => {
                let mut hole = first;
                for (&nr, _) in self.pages.range(first..) {
                    if nr != hole {
                        break;
                    }
                    hole += 1;
                }
                Ok(at.max(hole * PAGE_BYTES).min(self.size_bytes))
            }
        }
    }
}

/// Calls `each` with page number, range within the page, and offset from the start of the run.
fn each_page(offset: u64, len: u64, mut each: impl FnMut(u64, std::ops::Range<usize>, usize)) {
    let mut done = 0;
    while done < len {
        let at = offset + done;
        let within = at % PAGE_BYTES;
        let step = (PAGE_BYTES - within).min(len - done);
        // Both below PAGE_BYTES; `done` is below the length of a slice.
        each(at / PAGE_BYTES, within as usize..(within + step) as usize, done as usize);
        done += step;
    }
}
