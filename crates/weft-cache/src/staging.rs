//! Staging: read-ahead that has no slot and waits in memory for its reader.
//!
//! A full cache has no free slot for a prefetch, and none is taken from another block for data that
//! no reader has asked for. The data of such a prefetch is staged here, and a read takes it from
//! here instead of the origin; admission and the policy treat that read as the miss that it is.
//!
//! # Invariants
//!
//! - A sub-block is staged only while the origin holds the same data. Every request that changes
//!   the origin, or the content that readers of the origin get, calls
//!   [`Fills::cancel`](crate::fills::Fills::cancel), which drops the sub-blocks from here, under
//!   the lock under which it enters as their writer; during the write, no data of these blocks is
//!   staged.
//! - No data here belongs to an origin that is not attached.
//! - No more than [`Staging::limit`] is staged, besides the data that the prefetch threads are
//!   processing. A stream that has staged data may stage more only up to its share of that.
//! - Data that its stream has read past, or whose stream is forgotten, is dropped first; each
//!   prefetch begins with that.

use crate::SUB_BLOCK_BYTES;
use crate::ranges::{FILL_SUBS_MAX, place};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Data that was read from an origin in one request.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// The first sub-block of the data.
    pub(crate) first: u64,
    pub(crate) data: Arc<Vec<u8>>,
}

impl Piece {
    /// Returns `len` bytes from byte `at` of the origin on.
    pub(crate) fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let from = at - self.first * SUB_BLOCK_BYTES as u64;
        &self.data[from as usize..][..len]
    }
}

#[derive(Debug)]
struct Entry {
    stream: u64,
    piece: Piece,
    end: u64,
    /// A bit for each sub-block that still equals the origin's.
    live: [u64; FILL_SUBS_MAX as usize / 64],
    since_ms: u64,
}

/// The position of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// The end of its reads.
    pub(crate) next: u64,
    /// Whether the stream is idle compared with the others.
    pub(crate) idle: bool,
}

/// Staged data of all origins.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// By origin and first sub-block, and a number.
    map: BTreeMap<(u64, u64), Entry>,
    next: u64,
    bytes: u64,
    limit: u64,
}

impl Staging {
    /// Sets the maximum of staged data, in bytes.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns true if a stream may stage `len_bytes` more. `progress` returns the position of a
    /// stream, or `None` if it is forgotten; `slack` is the distance from its end, in sub-blocks,
    /// within which a stream may still read.
    pub(crate) fn has_room(
        &mut self,
        stream: u64,
        len_bytes: u64,
        slack: u64,
        progress: impl Fn(u64) -> Option<Progress>,
    ) -> bool {
        self.drop_passed(slack, &progress);
        if self.bytes + len_bytes > self.limit {
            self.drop_passed(0, &progress);
        }
        if self.bytes + len_bytes > self.limit {
            self.retain(|entry| {
                entry.stream == stream || progress(entry.stream).is_some_and(|p| !p.idle)
            });
        }
        let own: u64 = self.map.values().filter(|e| e.stream == stream).map(Entry::bytes).sum();
        let mut streams: BTreeSet<u64> = self.map.values().map(|entry| entry.stream).collect();
        streams.insert(stream);
        let share = self.limit / streams.len() as u64;
        self.bytes + len_bytes <= self.limit && (own == 0 || own + len_bytes <= share)
    }

    /// Drops data that its stream has read past.
    pub(crate) fn drop_passed(&mut self, slack: u64, progress: impl Fn(u64) -> Option<Progress>) {
        self.retain(|entry| progress(entry.stream).is_some_and(|p| p.next < entry.end + slack));
    }

    /// Drops data that was staged before `than_ms`: its reader is idle.
    pub(crate) fn drop_older(&mut self, than_ms: u64) {
        self.retain(|entry| entry.since_ms >= than_ms);
    }

    /// Drops the staged data of an origin.
    pub(crate) fn forget(&mut self, origin: u16) {
        let bytes = &mut self.bytes;
        self.map.retain(|(at, _), entry| {
            let stays = at >> 48 != u64::from(origin);
            *bytes -= if stays { 0 } else { entry.bytes() };
            stays
        });
    }

    /// Returns true if data of an origin is staged.
    pub(crate) fn any_of(&self, origin: u16) -> bool {
        self.map.keys().any(|(at, _)| at >> 48 == u64::from(origin))
    }

    /// Stages those sub-blocks of `piece` for which `live` returns true.
    pub(crate) fn put(
        &mut self,
        origin: u16,
        stream: u64,
        piece: Piece,
        now_ms: u64,
        live: impl Fn(u64) -> bool,
    ) {
        let first = piece.first;
        let end = first + (piece.data.len() / SUB_BLOCK_BYTES) as u64;
        debug_assert!(end - first <= FILL_SUBS_MAX);
        let mut entry = Entry { stream, piece, end, live: Default::default(), since_ms: now_ms };
        (first..end).filter(|sub| live(*sub)).for_each(|sub| entry.set(sub, true));
        if entry.is_dead() {
            return;
        }
        self.bytes += entry.bytes();
        self.map.insert((place(origin, first), self.next), entry);
        self.next += 1;
    }

    /// Returns the staged piece that contains a sub-block.
    pub(crate) fn get(&self, origin: u16, sub: u64) -> Option<&Piece> {
        let range = Self::range(origin, &(sub..sub + 1));
        let mut entries = self.map.range(range).map(|(_, entry)| entry);
        entries.find(|entry| entry.end > sub && entry.is_live(sub)).map(|entry| &entry.piece)
    }

    /// Drops sub-blocks.
    pub(crate) fn cut(&mut self, origin: u16, subs: &Range<u64>) {
        if self.map.is_empty() {
            return;
        }
        let mut dead = Vec::new();
        for (at, entry) in self.map.range_mut(Self::range(origin, subs)) {
            for sub in subs.start.max(entry.piece.first)..subs.end.min(entry.end) {
                entry.set(sub, false);
            }
            if entry.is_dead() {
                dead.push(*at);
            }
        }
        for at in dead {
            if let Some(entry) = self.map.remove(&at) {
                self.bytes -= entry.bytes();
            }
        }
    }

    /// Returns the range of keys of the entries that may overlap `subs`.
    fn range(origin: u16, subs: &Range<u64>) -> Range<(u64, u64)> {
        let first = subs.start.saturating_sub(FILL_SUBS_MAX);
        (place(origin, first), 0)..(place(origin, subs.end), 0)
    }

    fn retain(&mut self, stays: impl Fn(&Entry) -> bool) {
        let bytes = &mut self.bytes;
        self.map.retain(|_, entry| {
            let stays = stays(entry);
            *bytes -= if stays { 0 } else { entry.bytes() };
            stays
        });
    }
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.piece.data.len() as u64
    }

    fn bit(&self, sub: u64) -> (usize, u64) {
        let at = sub - self.piece.first;
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn is_live(&self, sub: u64) -> bool {
        let (word, bit) = self.bit(sub);
        self.live[word] & bit != 0
    }

    fn set(&mut self, sub: u64, live: bool) {
        let (word, bit) = self.bit(sub);
        self.live[word] = if live { self.live[word] | bit } else { self.live[word] & !bit };
    }

    fn is_dead(&self) -> bool {
        self.live.iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn piece(first: u64, subs: u64) -> Piece {
        Piece { first, data: Arc::new(vec![first as u8; subs as usize * SUB_BLOCK_BYTES]) }
    }

    fn at(next: u64) -> Option<Progress> {
        Some(Progress { next, idle: false })
    }

    #[test]
    fn what_is_cut_is_staged_no_more_and_the_rest_is() {
        let mut staging = Staging::default();
        staging.set_limit(MIB);
        staging.put(1, 7, piece(100, 100), 0, |sub| sub != 105);
        let there = |s: &Staging, sub| s.get(1, sub).is_some();
        assert!(there(&staging, 100) && there(&staging, 199) && !there(&staging, 105));
        assert!(!there(&staging, 99) && !there(&staging, 200) && staging.get(0, 100).is_none());
        staging.cut(0, &(0..1000));
        staging.cut(1, &(0..101));
        staging.cut(1, &(163..165));
        for sub in 100..200 {
            assert_eq!(there(&staging, sub), ![100, 105, 163, 164].contains(&sub), "{sub}");
        }
        // It was changed and read ahead again: two pieces overlap.
        staging.put(1, 7, piece(150, 20), 0, |sub| (163..165).contains(&sub));
        assert_eq!(staging.get(1, 163).map(|p| p.first), Some(150));
        assert_eq!(staging.get(1, 162).map(|p| p.first), Some(100));
        staging.cut(1, &(0..u64::MAX >> 17));
        assert!(staging.is_empty() && staging.bytes == 0);
    }

    #[test]
    fn origins_are_forgotten_one_at_a_time() {
        let mut staging = Staging::default();
        for origin in 0..3 {
            staging.put(origin, 1, piece(0, 16), 0, |_| true);
        }
        staging.forget(1);
        assert!(staging.get(1, 0).is_none());
        assert!(staging.get(0, 0).is_some() && staging.get(2, 15).is_some());
        assert_eq!(staging.bytes, 2 * 16 * SUB_BLOCK_BYTES as u64);
    }

    #[test]
    fn a_stream_recycles_what_it_has_read_past_first() {
        let mut staging = Staging::default();
        staging.set_limit(4 * MIB);
        for step in 0..100_u64 {
            let next = step * 256;
            assert!(staging.has_room(1, MIB, 64, |_| at(next)), "{step}");
            staging.put(0, 1, piece(next, 256), 0, |_| true);
            assert!(staging.bytes <= 2 * MIB, "{}", staging.bytes);
        }
        assert!(staging.has_room(1, MIB, 64, |_| None));
        assert!(staging.is_empty(), "the stream is forgotten");
    }

    #[test]
    fn streams_share_and_an_idle_one_gives_way() {
        let mut staging = Staging::default();
        staging.set_limit(4 * MIB);
        let fill = |staging: &mut Staging, stream: u64, idle: Option<u64>| {
            let mut pieces = 0;
            let progress = |s| Some(Progress { next: 0, idle: Some(s) == idle });
            while staging.has_room(stream, MIB, 0, progress) {
                let first = stream * 1_000_000 + staging.next * 256;
                staging.put(0, stream, piece(first, 256), 0, |_| true);
                pieces += 1;
            }
            pieces
        };
        assert_eq!(fill(&mut staging, 1, None), 4);
        assert_eq!(fill(&mut staging, 2, None), 0, "there is no room, and nobody's is taken");
        assert_eq!(fill(&mut staging, 2, Some(1)), 4, "the other is idle");
        staging.forget(0);
        staging.put(0, 1, piece(1_000_000, 256), 0, |_| true);
        assert_eq!(fill(&mut staging, 2, None), 2);
        assert_eq!(fill(&mut staging, 1, None), 1);
        staging.drop_older(1);
        assert!(staging.is_empty() && staging.bytes == 0);
    }
}
