//! Ghosts: keys of recently evicted blocks, in 4.1 bytes a block.
//!
//! S3-FIFO's ghost queue holds keys only. Here it is the hash table that the paper proposes
//! (section 4.2): sixteen entries a bucket, each a 16-bit tag of the key and the *epoch* of its
//! insertion. An entry ends with its epoch; an epoch is 1/128 of the queue, so the queue is first
//! in, first out up to that granularity, and exactly so if it holds up to 128 keys. Two keys of a
//! bucket share a tag once in 65,536 pairs: another key is taken for a ghost about once in 5,000.

use super::BlockKey;

const WAYS: usize = 16;
/// Table entries for each 16 ghosts: a bucket is 73 % full on average. The oldest ghosts of a
/// bucket that overflows are forgotten early.
const ROOM: usize = 22;
/// The same in a small table, in which next to no bucket overflows.
const ROOM_SMALL: usize = 64;
const SMALL: u32 = 1 << 16;
/// Number of epochs that a full queue spans.
const EPOCHS: u32 = 128;
/// Maximum span: beyond it the oldest epoch ends, though the queue is not full (because many ghosts
/// were used again). The rest of 256 is the time in which the sweep clears entries of ended epochs.
const SPAN_MAX: u8 = 192;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// 0: free.
    tags: [u16; WAYS],
    epochs: [u8; WAYS],
}

/// A queue of keys that forgets the oldest, of bounded size.
#[derive(Debug)]
pub(crate) struct Ghost {
    capacity: u32,
    buckets: Vec<Bucket>,
    /// Number of live entries of each epoch.
    counts: Box<[u32; 256]>,
    len: u32,
    oldest: u8,
    newest: u8,
    /// Number of insertions in the newest epoch.
    inserted: u32,
    swept: usize,
}

impl Ghost {
    /// Creates a queue of `capacity` keys.
    pub(crate) fn new(capacity: u32) -> Ghost {
        let room = if capacity > SMALL { ROOM } else { ROOM_SMALL };
        let entries = capacity as usize * room / 16;
        Ghost {
            capacity,
            buckets: vec![Bucket::default(); entries.div_ceil(WAYS)],
            counts: Box::new([0; 256]),
            len: 0,
            oldest: 0,
            newest: 0,
            inserted: 0,
            swept: 0,
        }
    }

    /// Adds a key as the newest; a key that is present already becomes the newest.
    pub(crate) fn insert(&mut self, key: BlockKey) {
        if self.capacity == 0 {
            return;
        }
        self.remove(key);
        self.turn_epoch();
        let (at, tag) = self.locate(key);
        let way = self.vacate(at);
        self.buckets[at].tags[way] = tag;
        self.buckets[at].epochs[way] = self.newest;
        self.counts[usize::from(self.newest)] += 1;
        self.len += 1;
        self.inserted += 1;
        while self.len - self.counts[usize::from(self.oldest)] >= self.capacity {
            self.end_oldest();
        }
        self.sweep();
    }

    /// Returns true if the key is present.
    pub(crate) fn contains(&self, key: BlockKey) -> bool {
        self.find(key).is_some()
    }

    /// Removes the key. Returns true if it was present.
    pub(crate) fn remove(&mut self, key: BlockKey) -> bool {
        let Some((at, way)) = self.find(key) else {
            return false;
        };
        self.clear(at, way);
        true
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>() + size_of_val(&*self.counts)
    }

    fn locate(&self, key: BlockKey) -> (usize, u16) {
        let hash = key.hash();
        let at = (u128::from(hash) * self.buckets.len() as u128) >> 64;
        // The low bits: those that chose the bucket are the high ones.
        (at as usize, (hash as u16).max(1))
    }

    fn find(&self, key: BlockKey) -> Option<(usize, usize)> {
        if self.buckets.is_empty() {
            return None;
        }
        let (at, tag) = self.locate(key);
        let bucket = &self.buckets[at];
        let way = (0..WAYS).find(|&way| bucket.tags[way] == tag && self.lives(bucket.epochs[way]));
        way.map(|way| (at, way))
    }

    fn lives(&self, epoch: u8) -> bool {
        self.age(epoch) <= self.age(self.oldest)
    }

    fn age(&self, epoch: u8) -> u8 {
        self.newest.wrapping_sub(epoch)
    }

    /// Returns a free entry of a bucket; if there is none, frees its oldest one.
    fn vacate(&mut self, at: usize) -> usize {
        let bucket = &self.buckets[at];
        let free = (0..WAYS).find(|&way| bucket.tags[way] == 0 || !self.lives(bucket.epochs[way]));
        if let Some(way) = free {
            return way;
        }
        let oldest = (0..WAYS).max_by_key(|&way| self.age(bucket.epochs[way]));
        let way = oldest.unwrap_or(0);
        self.clear(at, way);
        way
    }

    /// Frees the entry of a live ghost.
    fn clear(&mut self, at: usize, way: usize) {
        let bucket = &mut self.buckets[at];
        bucket.tags[way] = 0;
        self.counts[usize::from(bucket.epochs[way])] -= 1;
        self.len -= 1;
    }

    fn turn_epoch(&mut self) {
        if self.inserted < self.capacity.div_ceil(EPOCHS) {
            return;
        }
        if self.age(self.oldest) >= SPAN_MAX {
            self.end_oldest();
        }
        self.newest = self.newest.wrapping_add(1);
        self.inserted = 0;
    }

    fn end_oldest(&mut self) {
        self.len -= std::mem::take(&mut self.counts[usize::from(self.oldest)]);
        if self.oldest != self.newest {
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// Clears entries of ended epochs, bucket after bucket: all before the number of an epoch is
    /// used again, as the queue has fewer buckets than half its capacity.
    fn sweep(&mut self) {
        self.swept = (self.swept + 1) % self.buckets.len();
        let mut bucket = self.buckets[self.swept];
        for way in 0..WAYS {
            if !self.lives(bucket.epochs[way]) {
                bucket.tags[way] = 0;
            }
        }
        self.buckets[self.swept] = bucket;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn key(n: u64) -> BlockKey {
        BlockKey::new(1, n)
    }

    /// Compares with a plain queue, with ghosts that are removed again, over many turns of the
    /// epochs.
    #[test]
    fn a_short_queue_is_exactly_first_in_first_out() {
        let mut ghost = Ghost::new(100);
        let mut model = VecDeque::new();
        let mut x = 1_u64;
        for round in 0..100_000_u64 {
            x = BlockKey(x).hash();
            let n = x % 300;
            if round % 3 == 0 {
                let there = model.iter().position(|&m| m == n);
                assert_eq!(ghost.remove(key(n)), there.is_some(), "round {round}");
                there.map(|at| model.remove(at));
            } else {
                model.retain(|&m| m != n);
                model.push_back(n);
                if model.len() > 100 {
                    model.pop_front();
                }
                ghost.insert(key(n));
            }
            assert_eq!(ghost.len as usize, model.len(), "round {round}");
        }
    }

    #[test]
    fn a_long_queue_keeps_its_length_up_to_an_epoch() {
        let capacity = 100_000_u64;
        let mut ghost = Ghost::new(capacity as u32);
        let last = 1_000_000;
        for n in 0..last {
            ghost.insert(key(n));
        }
        let held = |from: u64, to: u64| (from..to).filter(|&n| ghost.contains(key(n))).count();
        // All except the few whose bucket overflowed.
        let young = held(last - capacity * 9 / 10, last);
        assert!(young > 88_000, "{young} of 90,000");
        let old = held(last - 2 * capacity, last - capacity - 5_000);
        assert!(old < 60, "{old} of 95,000 that should be forgotten");
        let strangers = held(last, last + capacity);
        assert!(strangers < 60, "{strangers} of 100,000 taken for others");
        assert!(ghost.memory_bytes() as u64 <= capacity * 42 / 10 + 2048);
    }
}
