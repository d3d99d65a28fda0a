//! A reader of a store for the archive parsers, which read from one header to the next, with
//! prefetch.
//!
//! While headers follow each other closely, the prefetch doubles with each read; where they are far
//! apart, it is little more than a header.

use std::io::{Error as IoError, Read, Result as IoResult, Seek, SeekFrom};

use weft_vfs::check_interrupt;

use crate::store::Store;

/// Minimum and maximum bytes of one read.
const AHEAD: (usize, usize) = (2 << 10, 128 << 10);

/// A cursor over a store; see the module page.
pub(super) struct Cursor {
    store: Box<dyn Store>,
    /// The byte at which the archive begins for its parser; positions are relative to it.
    base: u64,
    at: u64,
    /// Length from `base` on, in bytes.
    len: u64,
    /// The prefetched data, and its offset in the store.
    window: Vec<u8>,
    window_at: u64,
    ahead: usize,
}

impl Cursor {
    /// Returns a cursor over all of a store of `len` bytes.
    pub(super) fn new(store: Box<dyn Store>, len: u64) -> Self {
        let (window, ahead) = (Vec::new(), AHEAD.0);
        Self { store, base: 0, at: 0, len, window, window_at: 0, ahead }
    }

    /// Returns the part from byte `start` of the store on, as an archive of its own.
    pub(super) fn rest_from(self, start: u64) -> Self {
        let len = (self.base + self.len).saturating_sub(start);
        Self { base: start, at: 0, len, ..self }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn into_store(self) -> Box<dyn Store> {
        self.store
    }

    pub(super) fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// Reads the window from byte `at` of the store on.
    fn fill(&mut self, at: u64) -> crate::Result<()> {
        check_interrupt()?;
        let end = self.window_at + self.window.len() as u64;
        let is_close = at >= self.window_at && at.saturating_sub(end) <= self.ahead as u64;
        self.ahead = if is_close { (self.ahead * 2).min(AHEAD.1) } else { AHEAD.0 };
        self.window.resize(self.ahead, 0);
        self.window_at = at;
        let got = self.store.read_at(at, &mut self.window);
        self.window.truncate(*got.as_ref().unwrap_or(&0));
        got.map(drop)
    }
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> IoResult<usize> {
        let at = self.base.saturating_add(self.at);
        let in_window = |this: &Self| {
            let from = usize::try_from(at.checked_sub(this.window_at)?).ok()?;
            (from < this.window.len()).then_some(from)
        };
        let mut from = in_window(self);
        if from.is_none() {
            if buf.len() >= AHEAD.1 {
                let got = self.store.read_at(at, buf).map_err(IoError::other)?;
                self.at += got as u64;
                return Ok(got);
            }
            if self.fill(at).is_err() {
                check_interrupt().map_err(IoError::other)?;
                // The prefetched part may be damaged while the requested part is not.
                let got = self.store.read_at(at, buf).map_err(IoError::other)?;
                self.at += got as u64;
                return Ok(got);
            }
            from = in_window(self);
        }
        let Some(from) = from else { return Ok(0) };
        let got = buf.len().min(self.window.len() - from);
        buf[..got].copy_from_slice(&self.window[from..from + got]);
        self.at += got as u64;
        Ok(got)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> IoResult<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
