//! A device that holds a request back until the test says go on: for races that must happen.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use weft_block::{BlockDevice, Change, Filter, Result};

/// Where a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A read that has its data already, and has not returned.
    ReadDone,
    /// A write that has not started.
    WriteStart,
    /// A write that is done, and has not returned.
    WriteDone,
}

#[derive(Default)]
struct State {
    /// Hold the next request of this kind that touches this range.
    armed: Option<(At, std::ops::Range<u64>)>,
    held: bool,
    released: bool,
}

/// Another device with a gate.
pub struct GateDevice<D> {
    inner: D,
    state: Mutex<State>,
    changed: Condvar,
}

/// A test that waits longer than this has found that nobody comes.
const PATIENCE: Duration = Duration::from_secs(20);

impl<D: BlockDevice> GateDevice<D> {
    pub fn new(inner: D) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Holds the next request of a kind that touches `range`.
    pub fn arm(&self, at: At, range: std::ops::Range<u64>) {
        *self.state.lock().unwrap() = State { armed: Some((at, range)), ..State::default() };
    }

    /// Waits until a request is held.
    pub fn wait_held(&self) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) =
            self.changed.wait_timeout_while(state, PATIENCE, |s| !s.held).unwrap();
        assert!(!timeout.timed_out(), "no such request came");
    }

    /// Lets the held request go on, and holds nothing any more.
    pub fn release(&self) {
        let mut state = self.state.lock().unwrap();
        state.armed = None;
        state.released = true;
        self.changed.notify_all();
    }

    fn pass(&self, at: At, offset: u64, len_bytes: u64) {
        let mut state = self.state.lock().unwrap();
        let touches = |r: &std::ops::Range<u64>| offset < r.end && offset + len_bytes > r.start;
        if !state.armed.as_ref().is_some_and(|(a, range)| *a == at && touches(range)) {
            return;
        }
        state.armed = None;
        state.held = true;
        self.changed.notify_all();
        let (_state, timeout) =
            self.changed.wait_timeout_while(state, PATIENCE, |s| !s.released).unwrap();
        assert!(!timeout.timed_out(), "the test does not go on");
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
