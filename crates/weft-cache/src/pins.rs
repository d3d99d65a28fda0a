//! Pins: a pinned slot is being read without the lock, so it is given to no other block.

use smallvec::SmallVec;
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

/// Slots that are kept from being given to other blocks.
pub(crate) struct Pinned<'a> {
    pins: &'a Pins,
    slots: SmallVec<[u32; 8]>,
}

impl<'a> Pinned<'a> {
    pub(crate) fn new(pins: &'a Pins) -> Self {
        Self { pins, slots: SmallVec::new() }
    }

    /// Pins a slot. To be called under the state's lock.
    pub(crate) fn pin(&mut self, slot: u32) {
        self.pins.pin(slot);
        self.slots.push(slot);
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for slot in &self.slots {
            self.pins.unpin(*slot);
        }
    }
}
