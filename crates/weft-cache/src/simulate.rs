//! Simulates a cache without data: runs the policies over a trace to count hits.
//!
//! The policy code is the cache's own. The parts that the cache adds are left out: pins, dirty
//! blocks, admission.

use crate::policy::{BlockKey, Policy, PolicyKind, SlotNr};
use hashbrown::HashMap;

/// A cache that holds no data, only block keys.
#[derive(Debug)]
pub struct CacheModel {
    policy: Box<dyn Policy>,
    index: HashMap<BlockKey, SlotNr>,
    /// The block of each slot, while it is held.
    blocks: Vec<Option<BlockKey>>,
    free: Vec<SlotNr>,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Number of block uses.
    pub requests: u64,
    /// Number of uses that found their block in the cache.
    pub hits: u64,
}

impl Hits {
    /// Returns the hits as a fraction of the requests, 0 to 1.
    pub fn ratio(self) -> f64 {
        self.hits as f64 / self.requests.max(1) as f64
    }
}

impl CacheModel {
    /// Creates an empty cache of `slots` blocks.
    pub fn new(kind: PolicyKind, slots: u32) -> CacheModel {
        CacheModel::with(kind.build(slots))
    }

    /// Creates an empty cache under a policy that holds nothing yet.
    pub fn with(policy: Box<dyn Policy>) -> CacheModel {
        let slots = policy.slots();
        CacheModel {
            policy,
            index: HashMap::new(),
            blocks: vec![None; slots as usize],
            free: (0..slots).rev().map(SlotNr).collect(),
        }
    }

    /// Uses a block, which is inserted if it was not in the cache. Returns true if it was.
    pub fn access(&mut self, key: BlockKey) -> bool {
        if let Some(&slot) = self.index.get(&key) {
            self.policy.hit(slot, key);
            return true;
        }
        if let Some(slot) = self.free_slot(key) {
            self.index.insert(key, slot);
            self.blocks[slot.index()] = Some(key);
            self.policy.insert(slot, key);
        }
        false
    }

    fn free_slot(&mut self, key: BlockKey) -> Option<SlotNr> {
        let place = self.policy.place(key);
        let free = if place.len() == self.blocks.len() {
            self.free.pop()
        } else {
            let mut place = place.map(SlotNr);
            place.find(|slot| self.blocks[slot.index()].is_none())
        };
        free.or_else(|| {
            let blocks = &self.blocks;
            let key_of = |slot: SlotNr| blocks[slot.index()].unwrap_or(BlockKey(0));
            let slot = self.policy.evict(key, &mut |_| true, &key_of)?;
            let old = self.blocks[slot.index()].take()?;
            self.index.remove(&old);
            Some(slot)
        })
    }
}

/// Counts the hits of a sequence of block uses in an initially empty cache of `slots` blocks.
pub fn hits(kind: PolicyKind, slots: u32, trace: impl IntoIterator<Item = BlockKey>) -> Hits {
    let mut cache = CacheModel::new(kind, slots);
    let mut counts = Hits::default();
    for key in trace {
        counts.requests += 1;
        counts.hits += u64::from(cache.access(key));
    }
    counts
}

/// Counts the hits of each pair of policy and size, on all processors.
pub fn hits_of_each(runs: &[(PolicyKind, u32)], trace: &[BlockKey]) -> Vec<Hits> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(&(kind, slots)) = runs.get(at) else {
                return done;
            };
            done.push((at, hits(kind, slots, trace.iter().copied())));
        }
    };
    let mut counts = vec![Hits::default(); runs.len()];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(runs.len())).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(done) => done.into_iter().for_each(|(at, hits)| counts[at] = hits),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    counts
}
