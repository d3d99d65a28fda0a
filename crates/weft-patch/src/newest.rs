//! An index of a block's pending changes: the newest soft patch of each bit.
//!
//! A change must follow all pending soft patches that changed bits which it changes or relies on. Each
//! of those that changed one bit follows the one before, so it is enough to follow the newest of
//! each bit. A block with few patches is searched for them; for one with many, that took 40 times
//! the time of the changes themselves where programs create and remove files of one directory.
//!
//! Entries are not removed when their patch is written: it is recognised as gone by its generation and
//! kind. Nothing older can be left of its bits then, as the older ones are written before it or with
//! it.

use crate::graph::{Graph, NONE};
use crate::undo::{Change, WORD_BYTES};

/// Bits of one word, and the newest patch of them.
#[derive(Debug)]
struct Part {
    mask: u32,
    patch: u32,
    generation: u32,
    /// The next part of the word, or of the free ones.
    next: u32,
}

/// The newest soft patch of each bit of a block.
#[derive(Debug)]
pub(crate) struct Newest {
    /// The first part of each word: of a word that changes as a whole, the only one.
    words: Box<[u32]>,
    parts: Vec<Part>,
    free: u32,
}

impl Newest {
    pub fn new(block_bytes: usize) -> Self {
        let words = std::iter::repeat_n(NONE, block_bytes / WORD_BYTES).collect();
        Self { words, parts: Vec::new(), free: NONE }
    }

    /// Returns the size in bytes of an index in which each word has a part.
    pub const fn len_bytes(block_bytes: usize) -> usize {
        block_bytes / WORD_BYTES * (size_of::<u32>() + size_of::<Part>())
    }

    /// Notes that `patch` contains the newest change of these bits, or follows it.
    pub fn note(&mut self, change: Change, patch: u32, generation: u32) {
        for (word, mask) in change.words() {
            self.retain(word, |part| {
                part.mask &= !mask;
                part.mask != 0
            });
            let part = Part { mask, patch, generation, next: self.words[word] };
            if self.free == NONE {
                self.words[word] = u32::try_from(self.parts.len()).expect("at most one a bit");
                self.parts.push(part);
            } else {
                self.words[word] = self.free;
                let free = &mut self.parts[self.free as usize];
                self.free = free.next;
                *free = part;
            }
        }
    }

    /// Calls `found` with the newest pending patch of each bit of a change; with one of several bits
    /// perhaps more than once.
    pub fn find(&mut self, graph: &Graph, change: Change, mut found: impl FnMut(u32)) {
        for (word, mask) in change.words() {
            self.retain(word, |part| {
                let pending = graph.is_soft(part.patch, part.generation);
                if pending && part.mask & mask != 0 {
                    found(part.patch);
                }
                pending
            });
        }
    }

    fn retain(&mut self, word: usize, mut keeps: impl FnMut(&mut Part) -> bool) {
        let (mut last, mut at) = (NONE, self.words[word]);
        while at != NONE {
            let part = &mut self.parts[at as usize];
            let next = part.next;
            if keeps(part) {
                last = at;
            } else {
                part.next = self.free;
                self.free = at;
                if last == NONE {
                    self.words[word] = next;
                } else {
                    self.parts[last as usize].next = next;
                }
            }
            at = next;
        }
    }
}
