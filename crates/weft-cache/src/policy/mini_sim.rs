//! Finds the best window for W-TinyLFU by trying several at once, each on a small model of the cache.
//!
//! C. Waldspurger, T. Saemundsson, I. Ahmad, N. Park: "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017: a cache with one slot in `rate` that sees one key in `rate`, chosen by
//! a hash, has nearly the hit ratio of the whole. So a policy with each of a few windows is run on
//! such a sample, and the window of the best is taken. Caffeine's simulator has it as a strategy,
//! too.
//!
//! The hill climber of "Adaptive Software Cache Management" (Middleware 2018), which Caffeine uses,
//! compares the hit ratio of a sample of ten uses a slot with that of the sample before and moves the
//! window by a sixteenth of the cache: a trace has to be a hundred times as long as the cache before the
//! window has come from one end to the other, and in a large cache, where a sample is long, it never
//! does. On traces of databases it fell 10 points of hit ratio below LRU so, and further with more slots.
//! Shorter samples and longer steps cure that, and lose 4 points on loops.

use super::w_tiny_lfu::WTinyLfu;
use super::{BlockKey, Policy, SlotNr};
use hashbrown::HashMap;

/// The candidate windows, as fractions of the slots. A cache begins with the first.
const WINDOWS: [f64; 6] = [0.01, 0.2, 0.4, 0.6, 0.8, 0.99];
/// Number of slots of a model; a cache with fewer is modelled whole.
const MODEL_SLOTS: u32 = 512;
/// Number of uses a slot after which the models are compared.
const PERIOD: u64 = 2;
/// The factor by which the hits of earlier periods are weighted down after each period.
const FADE: f64 = 0.7;
/// Minimum gain in hits, as a fraction of the uses, for which the window is changed: moving the
/// border has a cost.
const GAIN_MIN: f64 = 0.01;

/// Models of a cache, one for each window.
#[derive(Debug)]
pub(super) struct MiniSim {
    models: Vec<Model>,
    /// One key in `rate` is in the sample.
    rate: u64,
    /// Number of uses in a period, and of those in the present one.
    period: u64,
    uses: u64,
    /// The faded number of uses to which the models' scores refer.
    seen: f64,
    best: usize,
}

impl MiniSim {
    pub(super) fn new(slots: u32) -> MiniSim {
        let rate = slots.div_ceil(MODEL_SLOTS).max(1);
        let model_slots = (slots / rate).max(1);
        MiniSim {
            models: WINDOWS.map(|window| Model::new(model_slots, window)).into(),
            rate: rate.into(),
            period: (u64::from(model_slots) * PERIOD).max(10),
            uses: 0,
            seen: 0.0,
            best: 0,
        }
    }

    /// Counts a use of a block. At the end of a period, returns the best window as a fraction of
    /// the slots.
    pub(super) fn count(&mut self, key: BlockKey) -> Option<f64> {
        // The bits that choose keys must be independent of those that the sketch uses.
        if !weft_block::mix(key.0 ^ 0x51ed_270b).is_multiple_of(self.rate) {
            return None;
        }
        for model in &mut self.models {
            model.access(key);
        }
        self.uses += 1;
        if self.uses < self.period {
            return None;
        }
        self.seen = self.seen * FADE + self.uses as f64;
        self.uses = 0;
        for model in &mut self.models {
            model.score = model.score * FADE + model.hits as f64;
            model.hits = 0;
        }
        let scores = self.models.iter().map(|model| model.score).enumerate();
        // Of equal scores the first is taken: `max_by` would take the last.
        let (best, score) = scores.rev().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        if score - self.models[self.best].score > GAIN_MIN * self.seen {
            self.best = best;
        }
        Some(WINDOWS[self.best])
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.models.iter().map(Model::memory_bytes).sum()
    }
}

/// A cache without data under the policy with a fixed window.
#[derive(Debug)]
struct Model {
    policy: WTinyLfu,
    index: HashMap<BlockKey, SlotNr>,
    /// The block of each slot that was ever used.
    keys: Vec<BlockKey>,
    /// Hits in this period, and the faded hits of earlier periods.
    hits: u64,
    score: f64,
}

impl Model {
    fn new(slots: u32, window: f64) -> Model {
        Model {
            policy: WTinyLfu::with_fixed_window(slots, window),
            index: HashMap::new(),
            keys: Vec::new(),
            hits: 0,
            score: 0.0,
        }
    }

    fn access(&mut self, key: BlockKey) {
        if let Some(&slot) = self.index.get(&key) {
            self.hits += 1;
            self.policy.hit(slot, key);
            return;
        }
        let slot = if self.keys.len() < self.policy.slots() as usize {
            self.keys.push(key);
            SlotNr(self.keys.len() as u32 - 1)
        } else {
            let keys = &self.keys;
            let key_of = |slot: SlotNr| keys[slot.index()];
            let Some(slot) = self.policy.evict(key, &mut |_| true, &key_of) else { return };
            self.index.remove(&self.keys[slot.index()]);
            self.keys[slot.index()] = key;
            slot
        };
        self.index.insert(key, slot);
        self.policy.insert(slot, key);
    }

    fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes()
            + self.keys.capacity() * size_of::<BlockKey>()
            + self.index.capacity() * (size_of::<(BlockKey, SlotNr)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the windows chosen while the blocks of a trace are used.
    fn windows(slots: u32, trace: impl Iterator<Item = u64>) -> Vec<f64> {
        let mut models = MiniSim::new(slots);
        trace.filter_map(|block| models.count(BlockKey::new(0, block))).collect()
    }

    #[test]
    fn recency_wants_a_large_window_and_a_loop_a_small_one() {
        // Each block is used again shortly after its first use, and then never.
        let recent = (0..200_000_u64).flat_map(|n| [n, n.saturating_sub(300)]);
        assert!(*windows(1000, recent).last().unwrap() >= 0.6);
        let looped = (0..400_000).map(|at| at % 1500);
        assert_eq!(windows(1000, looped).last(), Some(&0.01));
    }

    #[test]
    fn a_window_is_found_in_a_few_times_the_slots() {
        let recent = (0..100_000_u64).flat_map(|n| [n, n.saturating_sub(3000)]);
        let windows = windows(10_000, recent);
        let found = windows.iter().position(|window| *window >= 0.6).expect("it is found");
        assert!(found < 4, "after {found} periods of {PERIOD} uses a slot");
    }

    #[test]
    fn models_are_small_whatever_the_cache_is() {
        for slots in [1, 7, 512, 513, 100_000, 1 << 28] {
            let models = MiniSim::new(slots);
            assert!(models.models.iter().all(|model| model.policy.slots() <= MODEL_SLOTS));
            assert!(models.memory_bytes() < 256 << 10, "{slots}: {}", models.memory_bytes());
        }
    }
}
