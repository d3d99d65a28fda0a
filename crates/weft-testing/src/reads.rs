//! A device that notes the reads that reach it, and holds them all back if the test wants that: for
//! the number of requests that something takes, and how many of them are in flight at a time.

use crate::LIMIT;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weft_block::{BlockDevice, Change, Filter, Result};

#[derive(Debug, Default)]
struct State {
    /// The byte ranges read since they were taken last.
    reads: Vec<Range<u64>>,
    holds: bool,
    held: usize,
}

/// Another device whose reads are noted.
#[derive(Debug)]
pub struct ReadsDevice<D> {
    inner: D,
    state: Mutex<State>,
    changed: Condvar,
}

impl<D: BlockDevice> ReadsDevice<D> {
    /// Puts itself before a device.
    pub fn new(inner: D) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Returns the byte ranges of the reads since the last call, in their order on the device.
    pub fn take(&self) -> Vec<Range<u64>> {
        let mut reads = std::mem::take(&mut self.lock().reads);
        reads.sort_unstable_by_key(|read| read.start);
        reads
    }

    /// Holds all reads from now on.
    pub fn hold(&self) {
        self.lock().holds = true;
    }

    /// Waits until `count` reads are held.
    ///
    /// # Panics
    /// If not so many come.
    pub fn wait_held(&self, count: usize) {
        let state = self.wait_while(|state| state.held < count);
        assert!(state.held >= count, "{} reads came at a time, and not {count}", state.held);
    }

    /// Lets the held reads go on, and holds none any more.
    pub fn release(&self) {
        self.lock().holds = false;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.lock(), LIMIT, |state| is_so(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl<D: BlockDevice> Filter for ReadsDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut state = self.lock();
        state.reads.push(offset..offset + buf.len() as u64);
        state.held += 1;
        drop(state);
        self.changed.notify_all();
        let mut state = self.wait_while(|state| state.holds);
        assert!(!state.holds, "the test does not let the read go on");
        state.held -= 1;
        drop(state);
        self.inner.read_at(buf, offset)
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        change.apply(&self.inner)
    }
}
