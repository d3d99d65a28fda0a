//! Ranges of blocks that something is being done to. There are as many as threads doing it, so a
//! list is enough.

use crate::policy::BlockKey;
use std::ops::Range;

/// Names a range that was entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeId(u64);

#[derive(Debug, Default)]
pub(crate) struct Ranges {
    list: Vec<(RangeId, u16, Range<u64>)>,
    next: u64,
}

impl Ranges {
    /// Whether any of these blocks of an origin is in a range.
    pub(crate) fn overlaps(&self, origin: u16, blocks: &Range<u64>) -> bool {
        self.list
            .iter()
            .any(|(_, o, r)| *o == origin && r.start < blocks.end && r.end > blocks.start)
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
        self.list.push((id, origin, blocks));
        id
    }

    pub(crate) fn leave(&mut self, id: RangeId) {
        self.list.retain(|(other, ..)| *other != id);
    }
}
