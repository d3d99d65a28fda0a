//! The writes that the server has acknowledged and not yet made durable: a server that comes back
//! after a crash may have lost any of them, so they are repeated.
//!
//! # Invariants
//!
//! - The fragments are disjoint, so that they can be written again in any order.
//! - Each byte has its last acknowledged value, from its acknowledgement to the first successful
//!   flush that was sent after it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The content of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Data(Arc<[u8]>),
    Zeroes(u64),
}

impl Content {
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(len) => *len,
        }
    }

    /// Returns the bytes of memory that it takes.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64 + FRAGMENT_OVERHEAD_BYTES,
            Self::Zeroes(_) => FRAGMENT_OVERHEAD_BYTES,
        }
    }

    /// Returns the part from `from` to `to`.
    fn part(&self, from: u64, to: u64) -> Self {
        match self {
            Self::Zeroes(_) => Self::Zeroes(to - from),
            // In bounds: both lie within its length.
            Self::Data(data) => Self::Data(data[from as usize..to as usize].into()),
        }
    }
}

#[derive(Debug, Clone)]
struct Fragment {
    content: Content,
    number: u64,
}

/// The most overhead of a write beside its data: a fragment of its own, and two more where it
/// splits others.
pub(crate) const WRITE_OVERHEAD_BYTES: u64 = 3 * FRAGMENT_OVERHEAD_BYTES;
const FRAGMENT_OVERHEAD_BYTES: u64 = 64;

/// The writes since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    fragments: BTreeMap<u64, Fragment>,
    memory_bytes: u64,
    /// The number of the next write.
    next: u64,
    /// There were changes since the last flush, including those that are not kept here.
    dirty: bool,
}

impl Unflushed {
    /// Returns the bytes of memory in use.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Returns the range from the first to the last byte that is not durable.
    pub fn range(&self) -> Option<Range<u64>> {
        let (first, _) = self.fragments.first_key_value()?;
        let (last, fragment) = self.fragments.last_key_value()?;
        Some(*first..last + fragment.content.len_bytes())
    }

    /// Returns true if a flush is necessary.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Records a change that need not be repeated if it is lost.
    pub fn touch(&mut self) {
        self.dirty = true;
    }

    /// Records an acknowledged write.
    pub fn add(&mut self, offset: u64, content: Content) {
        self.dirty = true;
        let len_bytes = content.len_bytes();
        if len_bytes == 0 {
            return;
        }
        let end = offset + len_bytes;
        self.cut_out(offset, end);
        self.insert(offset, Fragment { content, number: self.next });
        self.next += 1;
    }

    /// Removes a range from the fragments.
    fn cut_out(&mut self, start: u64, end: u64) {
        let before = self.fragments.range(..start).next_back();
        let first = before
            .filter(|(at, f)| **at + f.content.len_bytes() > start)
            .map_or(start, |(at, _)| *at);
        let overlapping: Vec<u64> = self.fragments.range(first..end).map(|(at, _)| *at).collect();
        for at in overlapping {
            let Some(old) = self.fragments.remove(&at) else { continue };
            self.memory_bytes -= old.content.memory_bytes();
            let old_end = at + old.content.len_bytes();
            if at < start {
                let content = old.content.part(0, start - at);
                self.insert(at, Fragment { content, number: old.number });
            }
            if old_end > end {
                let content = old.content.part(end - at, old_end - at);
                self.insert(end, Fragment { content, number: old.number });
            }
        }
    }

    fn insert(&mut self, at: u64, fragment: Fragment) {
        self.memory_bytes += fragment.content.memory_bytes();
        self.fragments.insert(at, fragment);
    }

    /// Returns a mark for a flush that is about to be sent: it covers all earlier writes.
    pub fn mark(&mut self) -> u64 {
        self.dirty = false;
        self.next
    }

    /// Removes the writes that a successful flush covers.
    pub fn flushed(&mut self, mark: u64) {
        self.fragments.retain(|_, f| f.number >= mark);
        self.memory_bytes = self.fragments.values().map(|f| f.content.memory_bytes()).sum();
        self.dirty |= !self.fragments.is_empty();
    }

    /// Returns all fragments, to be written again.
    pub fn all(&self) -> Vec<(u64, Content)> {
        self.fragments.iter().map(|(at, f)| (*at, f.content.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Write(u64, u64, u8),
        Zeroes(u64, u64),
        Mark,
        Flushed,
    }

    proptest! {
        #[test]
        fn every_unflushed_byte_is_kept_with_its_last_value(
            ops in prop::collection::vec(prop_oneof![
                4 => (0..200_u64, 0..40_u64, 1..=255_u8).prop_map(|(a, n, b)| Op::Write(a, n, b)),
                1 => (0..200_u64, 0..60_u64).prop_map(|(a, n)| Op::Zeroes(a, n)),
                1 => Just(Op::Mark),
                1 => Just(Op::Flushed),
            ], 0..60)
        ) {
            let mut log = Unflushed::default();
            // For each byte its last value, and the number of its write until a flush sent since
            // then succeeds.
            let mut model = vec![(None, 0_u64); 300];
            let (mut clock, mut pending) = (0, None);
            for op in ops {
                clock += 1;
                match op {
                    Op::Write(at, len, byte) => {
                        log.add(at, Content::Data(vec![byte; len as usize].into()));
                        model[at as usize..(at + len) as usize].fill((Some(byte), clock));
                    }
                    Op::Zeroes(at, len) => {
                        log.add(at, Content::Zeroes(len));
                        model[at as usize..(at + len) as usize].fill((Some(0), clock));
                    }
                    Op::Mark => pending = Some((log.mark(), clock)),
                    Op::Flushed => if let Some((mark, at)) = pending.take() {
                        log.flushed(mark);
                        for (byte, since) in &mut model {
                            if *since < at {
                                *byte = None;
                            }
                        }
                    },
                }
                let mut kept = vec![None; 300];
                let mut memory = 0;
                for (at, content) in log.all() {
                    memory += content.memory_bytes();
                    for i in 0..content.len_bytes() {
                        let slot = &mut kept[(at + i) as usize];
                        prop_assert!(slot.is_none(), "two fragments at {}", at + i);
                        *slot = Some(match &content {
                            Content::Data(d) => d[i as usize],
                            Content::Zeroes(_) => 0,
                        });
                    }
                }
                prop_assert_eq!(memory, log.memory_bytes());
                let want: Vec<_> = model.iter().map(|(b, _)| *b).collect();
                prop_assert_eq!(kept, want);
            }
        }
    }
}
