//! Pins: a pinned slot is being read without the lock, so it is given to no other block.

use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of readers of the slots, counted for groups of slots. Incremented under the state's
/// lock, decremented without it.
#[derive(Debug)]
pub(crate) struct Pins(Vec<AtomicU32>);

impl Pins {
    pub(crate) fn new() -> Self {
        Self((0..4096).map(|_| AtomicU32::new(0)).collect())
    }

    fn of(&self, slot: u32) -> &AtomicU32 {
        &self.0[slot as usize % self.0.len()]
    }

    pub(crate) fn pin(&self, slot: u32) {
        self.of(slot).fetch_add(1, Ordering::Acquire);
    }

    pub(crate) fn unpin(&self, slot: u32) {
        self.of(slot).fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn pinned(&self, slot: u32) -> bool {
        self.of(slot).load(Ordering::Acquire) != 0
    }
}
