//! Ranges of blocks or sub-blocks with an operation in progress. There are as many as threads that
//! operate on them, so a list is enough.

use crate::policy::BlockKey;
use std::ops::Range;

/// The longest fill, in sub-blocks (1 MiB).
pub(crate) const FILL_SUBS_MAX: u64 = 256;

/// Returns origin and sub-block as one number.
pub(crate) fn place(origin: u16, sub: u64) -> u64 {
    u64::from(origin) << 48 | sub
}

/// Identifies a range that was entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeId(u64);

#[derive(Debug)]
struct Entry {
    id: RangeId,
    origin: u16,
    blocks: Range<u64>,
    marked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ranges {
    list: Vec<Entry>,
    next: u64,
}

impl Ranges {
    /// Returns true if any of these blocks of an origin is in a range.
    pub(crate) fn overlaps(&self, origin: u16, blocks: &Range<u64>) -> bool {
        self.list.iter().any(|entry| entry.overlaps(origin, blocks))
    }

    /// Marks the ranges that overlap these blocks.
    pub(crate) fn mark(&mut self, origin: u16, blocks: &Range<u64>) {
        let overlapping = self.list.iter_mut().filter(|entry| entry.overlaps(origin, blocks));
        overlapping.for_each(|entry| entry.marked = true);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn contains(&self, key: BlockKey) -> bool {
        self.overlaps(key.origin(), &(key.block()..key.block() + 1))
    }

    pub(crate) fn enter(&mut self, origin: u16, blocks: Range<u64>) -> RangeId {
        let id = RangeId(self.next);
        self.next += 1;
        self.list.push(Entry { id, origin, blocks, marked: false });
        id
    }

    /// Removes a range. Returns its origin and blocks if it was marked.
    pub(crate) fn leave(&mut self, id: RangeId) -> Option<(u16, Range<u64>)> {
        let at = self.list.iter().position(|entry| entry.id == id)?;
        let entry = self.list.swap_remove(at);
        entry.marked.then_some((entry.origin, entry.blocks))
    }
}

impl Entry {
    fn overlaps(&self, origin: u16, blocks: &Range<u64>) -> bool {
        self.origin == origin && self.blocks.start < blocks.end && self.blocks.end > blocks.start
    }
}
