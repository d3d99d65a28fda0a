//! The device below a filter in tests.

use crate::{BlockDevice, Error, Extent, Geometry, MemoryDevice, Result};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Length in bytes: no multiple of a sector.
const LEN_BYTES: u64 = (1 << 20) + 700;

/// A device in memory that records the calls made to it, knows which changes no flush has covered,
/// and fails when it is told to. Its block sizes are unusual, to be seen again above.
#[derive(Debug)]
pub struct Probe {
    memory: MemoryDevice,
    read_only: bool,
    fails: AtomicBool,
    calls: Mutex<Vec<&'static str>>,
    changes: AtomicU64,
    unflushed: AtomicU64,
}

impl Probe {
    /// A device of about a megabyte of zeroes.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a fixture, made by name")]
    pub fn new() -> Self {
        Self {
            memory: MemoryDevice::new(LEN_BYTES),
            read_only: false,
            fails: AtomicBool::new(false),
            calls: Mutex::default(),
            changes: AtomicU64::new(0),
            unflushed: AtomicU64::new(0),
        }
    }

    /// The same, for reading only, and not all zeroes.
    ///
    /// # Panics
    /// Never: memory can be written.
    #[must_use]
    pub fn read_only() -> Self {
        let new = Self { read_only: true, ..Self::new() };
        new.memory.write_at(&super::pattern(1, 300_000), 5000).expect("memory can be written");
        new
    }

    /// Makes every read, change and flush fail with `EIO` from now on, or no more.
    pub fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    /// Returns the names of the calls since the last time this was asked.
    #[must_use]
    pub fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how often the content was changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Returns how many of these changes no flush has covered.
    pub fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::SeqCst)
    }

    fn record(&self, call: &'static str) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Records a call that reaches the medium, and fails it if that was asked for.
    fn request(&self, call: &'static str) -> Result<()> {
        self.record(call);
        if self.fails.load(Ordering::SeqCst) {
            let eio = std::io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error());
            return Err(Error::io(call, 0, 0, eio));
        }
        Ok(())
    }

    fn change(&self, call: &'static str) -> Result<()> {
        self.request(call)?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.unflushed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods, reason = "a default would record another call")]
impl BlockDevice for Probe {
    fn geometry(&self) -> Geometry {
        self.record("geometry");
        Geometry {
            len_bytes: LEN_BYTES,
            logical_block_bytes: 1024,
            physical_block_bytes: 16_384,
            read_only: self.read_only,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.request("read_at")?;
        self.memory.read_at(buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.request("read_at_nowait")?;
        self.memory.read_at_nowait(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.change("write_at")?;
        self.memory.write_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.change("write_vectored_at")?;
        self.memory.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> Result<()> {
        let covered = self.unflushed();
        self.request("flush")?;
        self.unflushed.fetch_sub(covered.min(self.unflushed()), Ordering::SeqCst);
        Ok(())
    }

    /// Leaves the content as it is: a filter that takes a discard for zeroes is found.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.change("discard")?;
        crate::check_range("discard", offset, len_bytes, LEN_BYTES)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.change("write_zeroes")?;
        self.memory.write_zeroes(offset, len_bytes)
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.record("extent_at");
        self.memory.extent_at(offset, len_bytes)
    }

    fn zeroes_are_fast(&self) -> bool {
        self.record("zeroes_are_fast");
        true
    }

    fn check_whole(&self) -> Result<()> {
        self.record("check_whole");
        Ok(())
    }
}
