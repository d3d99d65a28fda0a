//! Requests in progress, each as a range of blocks or sub-blocks of an origin.
//!
//! Invariants:
//! - a block has one writer at most;
//! - while a commit gathers its records, no write begins that overwrites dirty sub-blocks in place,
//!   and it gathers them when none is in progress.

use crate::fills::Fills;
use crate::ranges::Ranges;

#[derive(Default)]
pub(crate) struct Requests {
    /// Blocks being written, each by one writer.
    pub(crate) writers: Ranges,
    /// Sub-blocks whose origin is being changed by a passed request: the writers of their blocks
    /// update the cache afterwards.
    pub(crate) passing: Ranges,
    /// Blocks whose origin is being changed by a request that drops them from the cache afterwards:
    /// until then they may be dirty, and must not be written back over the request's data.
    pub(crate) changing: Ranges,
    /// Blocks being written back.
    pub(crate) cleaning: Ranges,
    /// Sub-blocks being read from the origin.
    pub(crate) fills: Fills,
    /// Number of writes in progress that overwrite dirty sub-blocks in place.
    in_place: u32,
    /// True while a commit waits for `in_place` to become 0; writes in place do not begin meanwhile.
    gathering: bool,
}

impl Requests {
    /// Returns true while a commit waits for the writes in place.
    pub(crate) fn gathering(&self) -> bool {
        self.gathering
    }

    /// Begins or ends the wait of a commit for the writes in place.
    pub(crate) fn set_gathering(&mut self, on: bool) {
        debug_assert!(on || self.in_place == 0, "the commit has waited");
        self.gathering = on;
    }

    /// Returns true while writes overwrite dirty sub-blocks in place.
    pub(crate) fn any_in_place(&self) -> bool {
        self.in_place > 0
    }

    /// Begins a write that overwrites dirty sub-blocks in place.
    pub(crate) fn begin_in_place(&mut self) {
        debug_assert!(!self.gathering, "a commit waits for these writes");
        self.in_place += 1;
    }

    /// Ends a write that overwrote dirty sub-blocks in place.
    pub(crate) fn end_in_place(&mut self) {
        self.in_place -= 1;
    }
}
