//! Fills: data being read from an origin to be put into the cache.
//!
//! A fill is entered before the origin is read, and removed when its blocks are in the cache. A
//! write cancels the sub-blocks that it overlaps, so that no fill puts data into the cache that is
//! older than a write. Readers of the same blocks wait for the fill's data instead of reading the
//! origin again. Read-ahead that has no slot is staged beside them, and a write cancels that, too.

use crate::ranges::{FILL_SUBS_MAX, place};
use crate::staging::Staging;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Identifies a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FillId {
    /// Origin in the upper 16 bits, first sub-block in the rest.
    place: u64,
    number: u64,
}

/// The purpose of a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reader missed the blocks: the fill may evict other blocks.
    Demand,
    /// Read-ahead that was admitted: the fill takes free slots only.
    Ahead,
    /// Read-ahead that waits in memory for a reader, whose miss is judged like any other.
    Staged,
}

#[derive(Debug)]
pub(crate) struct Fill {
    /// The sub-blocks of the origin.
    pub(crate) subs: Range<u64>,
    cancelled: Vec<Range<u64>>,
    /// The purpose of the fill.
    pub(crate) purpose: Purpose,
    /// The origin's data, once it was read.
    pub(crate) data: Option<Arc<Vec<u8>>>,
}

impl Fill {
    /// Returns true if a write has overtaken the fill at `sub`.
    pub(crate) fn cancelled(&self, sub: u64) -> bool {
        self.cancelled.iter().any(|range| range.contains(&sub))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Fills {
    map: BTreeMap<FillId, Fill>,
    next: u64,
    pub(crate) staging: Staging,
}

impl Fills {
    pub(crate) fn begin(&mut self, origin: u16, subs: Range<u64>) -> FillId {
        self.begin_for(Purpose::Demand, origin, subs)
    }

    pub(crate) fn begin_for(&mut self, purpose: Purpose, origin: u16, subs: Range<u64>) -> FillId {
        debug_assert!(subs.end - subs.start <= FILL_SUBS_MAX);
        let id = FillId { place: place(origin, subs.start), number: self.next };
        self.next += 1;
        self.map.insert(id, Fill { subs, cancelled: Vec::new(), purpose, data: None });
        id
    }

    /// Returns the fills that overlap `subs`.
    fn overlapping(
        &self,
        origin: u16,
        subs: &Range<u64>,
    ) -> impl Iterator<Item = (&FillId, &Fill)> {
        let first = place(origin, subs.start.saturating_sub(FILL_SUBS_MAX));
        let end = place(origin, subs.end);
        let range = FillId { place: first, number: 0 }..FillId { place: end, number: 0 };
        let start = subs.start;
        self.map.range(range).filter(move |(_, fill)| fill.subs.end > start)
    }

    /// Returns the fill that will provide this sub-block.
    pub(crate) fn covering(&self, origin: u16, sub: u64) -> Option<(FillId, &Fill)> {
        self.overlapping(origin, &(sub..sub + 1))
            .find(|(_, fill)| !fill.cancelled(sub))
            .map(|(id, fill)| (*id, fill))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns true if the origin has a fill in progress.
    pub(crate) fn any_of(&self, origin: u16) -> bool {
        let first = FillId { place: place(origin, 0), number: 0 };
        self.map.range(first..).next().is_some_and(|(id, _)| id.place >> 48 == u64::from(origin))
    }

    pub(crate) fn get(&self, id: FillId) -> Option<&Fill> {
        self.map.get(&id)
    }

    /// Returns true if a fill that a reader has begun overlaps these sub-blocks.
    pub(crate) fn demanded(&self, origin: u16, subs: &Range<u64>) -> bool {
        self.overlapping(origin, subs).any(|(_, fill)| fill.purpose == Purpose::Demand)
    }

    /// Cancels these sub-blocks in all fills, and drops them from staging.
    pub(crate) fn cancel(&mut self, origin: u16, subs: &Range<u64>) {
        self.staging.cut(origin, subs);
        if self.map.is_empty() {
            return;
        }
        let ids: Vec<FillId> = self.overlapping(origin, subs).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(fill) = self.map.get_mut(&id) {
                fill.cancelled.push(subs.clone());
            }
        }
    }

    /// Stores the data that the origin returned.
    pub(crate) fn ready(&mut self, id: FillId, data: Arc<Vec<u8>>) {
        if let Some(fill) = self.map.get_mut(&id) {
            fill.data = Some(data);
        }
    }

    pub(crate) fn end(&mut self, id: FillId) -> Option<Fill> {
        self.map.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_part_is_brought_by_nobody_until_a_new_fill_begins() {
        let mut fills = Fills::default();
        let old = fills.begin(1, 10..20);
        assert_eq!(fills.covering(1, 19).map(|(id, _)| id), Some(old));
        assert!(fills.covering(1, 20).is_none() && fills.covering(0, 15).is_none());
        fills.cancel(1, &(14..16));
        assert!(fills.covering(1, 14).is_none());
        assert!(fills.covering(1, 16).is_some());
        let new = fills.begin(1, 14..15);
        assert_eq!(fills.covering(1, 14).map(|(id, _)| id), Some(new));
        fills.end(new);
        assert!(fills.covering(1, 14).is_none());
        assert!(fills.end(old).is_some_and(|fill| fill.cancelled(15) && !fill.cancelled(13)));
        assert!(fills.is_empty());
    }
}
