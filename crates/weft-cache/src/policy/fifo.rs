//! First in, first out queues of slots that a slot can leave from the middle: four bytes an entry.
//!
//! A queue is a chain of chunks of slot numbers. A slot that leaves before its turn leaves its
//! entry behind, *stale*; the owner counts the stale entries of each slot (three at most, in two
//! bits) and drops that many when they come up, as they are older than the live one.

use super::SlotNr;
use std::collections::VecDeque;

const CHUNK: usize = 1024;

/// A queue of slot numbers, live and stale.
#[derive(Debug)]
pub(super) struct Fifo {
    chunks: VecDeque<Box<[u32; CHUNK]>>,
    /// Position of the oldest entry in the first chunk.
    first: usize,
    /// Number of entries, live and stale.
    len: usize,
    /// The oldest entry's number; those of the others follow. It can decrease, so it begins high.
    oldest: u64,
}

impl Default for Fifo {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), first: 0, len: 0, oldest: 1 << 62 }
    }
}

impl Fifo {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds the newest entry.
    pub(super) fn push(&mut self, slot: SlotNr) {
        let at = self.first + self.len;
        if at == self.chunks.len() * CHUNK {
            self.chunks.push_back(Box::new([0; CHUNK]));
        }
        self.chunks[at / CHUNK][at % CHUNK] = slot.0;
        self.len += 1;
    }

    /// Adds an entry older than all others.
    pub(super) fn push_oldest(&mut self, slot: SlotNr) {
        if self.first == 0 {
            self.chunks.push_front(Box::new([0; CHUNK]));
            self.first = CHUNK;
        }
        self.first -= 1;
        self.oldest -= 1;
        self.chunks[0][self.first] = slot.0;
        self.len += 1;
    }

    /// Removes the oldest entry.
    pub(super) fn pop(&mut self) -> Option<SlotNr> {
        if self.len == 0 {
            return None;
        }
        let slot = self.chunks[0][self.first];
        self.first += 1;
        self.oldest += 1;
        self.len -= 1;
        if self.first == CHUNK {
            self.chunks.pop_front();
            self.first = 0;
        }
        Some(SlotNr(slot))
    }

    /// Returns the newest of the entries with numbers below `number`, and its number. An entry
    /// keeps its number until it leaves, or [`retain`](Self::retain) gives it a higher one.
    pub(super) fn before(&self, number: u64) -> Option<(u64, SlotNr)> {
        let behind = number.min(self.oldest + self.len as u64);
        let index = behind.checked_sub(self.oldest + 1)? as usize;
        let at = self.first + index;
        Some((behind - 1, SlotNr(self.chunks[at / CHUNK][at % CHUNK])))
    }

    /// Keeps the entries for which `keep` returns true; it is called from the oldest to the newest.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(SlotNr) -> bool) {
        for _ in 0..self.len {
            if let Some(slot) = self.pop()
                && keep(slot)
            {
                self.push(slot);
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<u32>()
            + self.chunks.capacity() * size_of::<Box<[u32; CHUNK]>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_across_chunks() {
        let mut fifo = Fifo::default();
        let mut model = VecDeque::new();
        for n in 0..10_000_u32 {
            if n % 7 == 0 {
                fifo.push_oldest(SlotNr(n));
                model.push_front(n);
            } else {
                fifo.push(SlotNr(n));
                model.push_back(n);
            }
            if n % 3 == 0 {
                assert_eq!(fifo.pop().map(|s| s.0), model.pop_front());
            }
        }
        fifo.retain(|slot| slot.0 % 2 == 0);
        model.retain(|n| n % 2 == 0);
        let mut number = u64::MAX;
        let newest = std::iter::from_fn(|| {
            let (at, slot) = fifo.before(number)?;
            number = at;
            Some(slot.0)
        });
        let newest: Vec<u32> = newest.collect();
        assert!(newest.iter().eq(model.iter().rev()));
        while let Some(n) = model.pop_front() {
            assert_eq!(fifo.pop(), Some(SlotNr(n)));
        }
        assert_eq!((fifo.pop(), fifo.len()), (None, 0));
    }
}
