//! A device that holds a request back until the test says go on: for races that must happen.

use crate::LIMIT;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weft_block::{BlockDevice, Change, Filter, Result};

/// The point at which a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A read that has its data already, and has not returned.
    ReadDone,
    /// A write that has not started.
    WriteStart,
    /// A write that is done, and has not returned.
    WriteDone,
}

#[derive(Debug, Default)]
struct State {
    /// Hold the next request of this kind that touches this range.
    armed: Option<(At, Range<u64>)>,
    held: bool,
    released: bool,
}

/// Another device with a gate.
#[derive(Debug)]
pub struct GateDevice<D> {
    inner: D,
    state: Mutex<State>,
    changed: Condvar,
}

impl<D: BlockDevice> GateDevice<D> {
    /// Puts an open gate before a device.
    pub fn new(inner: D) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Holds the next request of a kind that touches `range`.
    pub fn arm(&self, at: At, range: Range<u64>) {
        *self.lock() = State { armed: Some((at, range)), ..State::default() };
    }

    /// Waits until a request is held.
    ///
    /// # Panics
    /// If none comes.
    pub fn wait_held(&self) {
        self.wait_while("no such request came", |s| !s.held);
    }

    /// Lets the held request go on, and holds nothing any more.
    pub fn release(&self) {
        let mut state = self.lock();
        state.armed = None;
        state.released = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, failure: &str, is_so: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), LIMIT, |s| is_so(s));
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{failure}");
    }

    fn pass(&self, at: At, offset: u64, len_bytes: u64) {
        let mut state = self.lock();
        let touches = |r: &Range<u64>| offset < r.end && offset + len_bytes > r.start;
        if !state.armed.as_ref().is_some_and(|(a, range)| *a == at && touches(range)) {
            return;
        }
        state.armed = None;
        state.held = true;
        self.changed.notify_all();
        drop(state);
        self.wait_while("the test does not go on", |s| !s.released);
    }
}

impl<D: BlockDevice> Filter for GateDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buf, offset)?;
        self.pass(At::ReadDone, offset, buf.len() as u64);
        Ok(())
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        self.pass(At::WriteStart, change.offset, change.len_bytes);
        change.apply(&self.inner)?;
        self.pass(At::WriteDone, change.offset, change.len_bytes);
        Ok(())
    }
}
