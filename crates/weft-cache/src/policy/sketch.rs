//! Estimates how often each key was used lately: a count-min sketch of 4-bit counters that ages.
//!
//! G. Einziger, R. Friedman, B. Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! Transactions on Storage 13(4), 2017; the layout is that of the Caffeine library. A key has four
//! counters, all in one cache line of 64 bytes, and its estimate is the smallest. After ten times
//! as many additions as the cache has slots all counters are halved, so what was popular long ago
//! is forgotten.
//!
//! In a cache of up to a million slots the sketch has Caffeine's size, at least eight bytes a slot,
//! and its plain update: all four counters are incremented. The collisions are part of the algorithm
//! there. In a loop longer than the cache every candidate was used once in the sample and every
//! victim's count has aged to nothing, so with exact counts the admission would let all pass. The
//! sketch of a larger cache has two bytes a slot. There collisions would drown what is counted, and
//! only the smallest counters are incremented (Estan and Varghese's conservative update); it costs up
//! to a point of hit ratio.
//!
//! A *doorkeeper*, a Bloom filter for keys used once, would need memory of its own; it is left out,
//! as it is in Caffeine.

use super::BlockKey;

/// Number of counters of a row in a block: 2 words of 16.
const ROW_COUNTERS: u64 = 32;
const COUNTER_MAX: u64 = 15;
/// Maximum size of a sketch with Caffeine's size: for caches of a million slots.
const FULL_BYTES_MAX: u64 = 8 << 20;
const LOW_BITS: u64 = 0x1111_1111_1111_1111;
const ALL_BUT_HIGH_BITS: u64 = 0x7777_7777_7777_7777;

/// A block is a cache line: four rows of two words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block([u64; 8]);

/// The frequencies of keys.
#[derive(Debug)]
pub(super) struct Sketch {
    blocks: Vec<Block>,
    /// Whether only the smallest counters of a key are incremented.
    conservative: bool,
    additions: u64,
    sample: u64,
}

impl Sketch {
    /// Creates a sketch for a cache of `slots` slots.
    pub(super) fn new(slots: u32) -> Sketch {
        // Caffeine's simulator rounds up to a power of two, and its sample with it.
        let words = u64::from(slots).next_power_of_two();
        if words * 8 <= FULL_BYTES_MAX {
            Sketch::with(words * 8, words, false)
        } else {
            Sketch::compact(slots)
        }
    }

    /// Creates the sketch of a large cache: two bytes a slot.
    pub(super) fn compact(slots: u32) -> Sketch {
        let slots = u64::from(slots);
        Sketch::with(slots * 2, slots, true)
    }

    fn with(bytes: u64, sampled: u64, conservative: bool) -> Sketch {
        let blocks = bytes.div_ceil(size_of::<Block>() as u64).max(1);
        Sketch {
            blocks: vec![Block::default(); blocks as usize],
            conservative,
            additions: 0,
            sample: (sampled * 10).max(10),
        }
    }

    /// Counts a use of the key.
    pub(super) fn add(&mut self, key: BlockKey) {
        let (at, nibbles) = self.locate(key);
        let block = &mut self.blocks[at];
        let least = nibbles.map(|n| n.get(block)).into_iter().min().unwrap_or(0);
        if least == COUNTER_MAX {
            return;
        }
        let below = if self.conservative { least + 1 } else { COUNTER_MAX };
        for nibble in nibbles {
            if nibble.get(block) < below {
                block.0[nibble.word] += 1 << nibble.shift;
            }
        }
        self.additions += 1;
        if self.additions >= self.sample {
            self.halve();
        }
    }

    /// Returns the estimated number of uses of the key, 0 to 15: rarely more than the true one, and
    /// less only because of ageing.
    pub(super) fn estimate(&self, key: BlockKey) -> u8 {
        let (at, nibbles) = self.locate(key);
        let block = &self.blocks[at];
        nibbles.map(|n| n.get(block)).into_iter().min().unwrap_or(0) as u8
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    fn locate(&self, key: BlockKey) -> (usize, [Nibble; 4]) {
        let hash = key.hash();
        let at = (u128::from(hash) * self.blocks.len() as u128) >> 64;
        // The low bits: those that chose the block are the high ones.
        let nibble = |row: usize| {
            let counter = hash >> (5 * row) & (ROW_COUNTERS - 1);
            Nibble { word: row * 2 + (counter >> 4) as usize, shift: (counter & 15) * 4 }
        };
        (at as usize, [nibble(0), nibble(1), nibble(2), nibble(3)])
    }

    fn halve(&mut self) {
        let mut odd = 0;
        for word in self.blocks.iter_mut().flat_map(|block| &mut block.0) {
            odd += u64::from((*word & LOW_BITS).count_ones());
            *word = *word >> 1 & ALL_BUT_HIGH_BITS;
        }
        self.additions = self.additions.saturating_sub(odd / 4) / 2;
    }
}

#[derive(Clone, Copy)]
struct Nibble {
    word: usize,
    shift: u64,
}

impl Nibble {
    fn get(self, block: &Block) -> u64 {
        block.0[self.word] >> self.shift & COUNTER_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> BlockKey {
        BlockKey::new(0, n)
    }

    #[test]
    fn an_estimate_is_never_too_low_and_seldom_too_high() {
        // As many keys as slots, two uses on average, no ageing yet.
        let slots = 10_000;
        let mut sketch = Sketch::new(slots);
        let uses = |n: u64| (BlockKey(n).hash() % 4) as u8;
        for n in 0..u64::from(slots) {
            for _ in 0..uses(n) {
                sketch.add(key(n));
            }
        }
        let mut over = 0;
        for n in 0..u64::from(slots) {
            let estimate = sketch.estimate(key(n));
            assert!(estimate >= uses(n), "key {n}: {estimate} < {}", uses(n));
            over += u32::from(estimate > uses(n));
        }
        assert!(over < slots / 20, "{over} of {slots} too high");
    }

    #[test]
    fn popularity_fades() {
        let mut sketch = Sketch::new(1_000);
        for _ in 0..20 {
            sketch.add(key(7));
        }
        assert_eq!(sketch.estimate(key(7)), 15);
        for n in 0..40_000 {
            sketch.add(key(1_000 + n));
        }
        assert!(sketch.estimate(key(7)) < 4);
    }

    #[test]
    fn a_large_cache_pays_two_bytes_a_slot() {
        assert_eq!(Sketch::new((1 << 19) + 1).memory_bytes(), 8 << 20);
        assert_eq!(Sketch::new((1 << 20) + 1).memory_bytes(), (2 << 20) + 64);
        assert_eq!(Sketch::new(1 << 24).memory_bytes(), 2 << 24);
    }
}
