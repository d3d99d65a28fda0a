//! Tests of each policy against a plain model of it, and of all of them against the trait's
//! contract.

use super::*;
use crate::simulate::{self, CacheModel};
use crate::trace::synthetic::Workload;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};

const KINDS: [PolicyKind; 5] = [
    PolicyKind::S3Fifo,
    PolicyKind::WTinyLfu,
    PolicyKind::Lru,
    PolicyKind::SetAssociative { ways: 4 },
    PolicyKind::SEED,
];

fn key(n: u64) -> BlockKey {
    // Far apart, so that the set-associative policy uses several sets.
    BlockKey::new(3, n * 300)
}

/// The paper's algorithm 1 with the simulator's filling: lists of keys. The ghost queue is tested
/// on its own, as it sometimes takes another key for a ghost.
struct S3FifoModel {
    slots: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghost: ghost::Ghost,
    frequency: HashMap<u64, u8>,
    was_full: bool,
}

impl S3FifoModel {
    fn access(&mut self, x: u64) -> bool {
        if self.small.contains(&x) || self.main.contains(&x) {
            let frequency = self.frequency.entry(x).or_default();
            *frequency = (*frequency + 1).min(3);
            return true;
        }
        while self.small.len() + self.main.len() >= self.slots {
            self.was_full = true;
            if self.main.len() > self.slots - self.slots / 10 || self.small.is_empty() {
                self.evict_main();
            } else {
                self.evict_small();
            }
        }
        let known = self.ghost.remove(key(x));
        self.frequency.insert(x, 0);
        if known || !self.was_full && self.small.len() >= self.slots / 10 {
            self.main.push_back(x);
        } else {
            self.small.push_back(x);
        }
        false
    }

    fn evict_small(&mut self) {
        while let Some(t) = self.small.pop_front() {
            if self.frequency[&t] > 1 {
                self.frequency.insert(t, 0);
                self.main.push_back(t);
            } else {
                self.ghost.insert(key(t));
                return;
            }
        }
    }

    fn evict_main(&mut self) {
        while let Some(t) = self.main.pop_front() {
            match self.frequency[&t] {
                0 => return,
                f => self.frequency.insert(t, f - 1),
            };
            self.main.push_back(t);
        }
    }
}

/// Window, probation and protected lists of keys, the coldest first, as Caffeine's simulator keeps
/// them (its window never shrinks to nothing here). The sketch, and the models that choose the window, are
/// tested on their own.
struct WTinyLfuModel {
    slots: usize,
    window: Vec<u64>,
    probation: Vec<u64>,
    protected: Vec<u64>,
    window_max: usize,
    protected_max: usize,
    sketch: sketch::Sketch,
    models: mini_sim::MiniSim,
    target: usize,
}

impl WTinyLfuModel {
    fn new(slots: usize) -> WTinyLfuModel {
        let main = slots * 99 / 100;
        WTinyLfuModel {
            slots,
            window: vec![],
            probation: vec![],
            protected: vec![],
            window_max: slots - main,
            protected_max: main * 8 / 10,
            sketch: sketch::Sketch::new(slots as u32),
            models: mini_sim::MiniSim::new(slots as u32),
            target: slots - main,
        }
    }

    fn len(&self) -> usize {
        self.window.len() + self.probation.len() + self.protected.len()
    }

    fn access(&mut self, x: u64) -> bool {
        let was_full = self.len() == self.slots;
        let estimate = |sketch: &sketch::Sketch, n: u64| sketch.estimate(key(n));
        let take = |list: &mut Vec<u64>| {
            let at = list.iter().position(|&y| y == x);
            at.map(|at| list.remove(at)).is_some()
        };
        let hit = if take(&mut self.window) {
            self.window.push(x);
            true
        } else if take(&mut self.protected) {
            self.protected.push(x);
            true
        } else if take(&mut self.probation) {
            self.protected.push(x);
            self.demote();
            true
        } else {
            false
        };
        if !hit && was_full {
            let candidate = self.window.first().copied();
            if let Some(candidate) = candidate.filter(|_| self.window.len() >= self.window_max) {
                self.window.remove(0);
                let main = if self.probation.is_empty() {
                    &mut self.protected
                } else {
                    &mut self.probation
                };
                let wins = main.first().is_some_and(|&victim| {
                    estimate(&self.sketch, candidate) > estimate(&self.sketch, victim)
                });
                if wins {
                    main.remove(0);
                    self.probation.push(candidate);
                }
            } else if !self.probation.is_empty() {
                self.probation.remove(0);
            } else {
                self.protected.remove(0);
            }
        }
        self.sketch.add(key(x));
        if !hit {
            self.window.push(x);
            if self.window.len() > self.window_max {
                let oldest = self.window.remove(0);
                self.probation.push(oldest);
            }
        }
        self.adapt(x);
        hit
    }

    fn demote(&mut self) {
        while self.protected.len() > self.protected_max {
            self.probation.push(self.protected.remove(0));
        }
    }

    fn adapt(&mut self, x: u64) {
        if let Some(window) = self.models.count(key(x)) {
            let most = self.window_max + self.protected_max;
            self.target = ((self.slots as f64 * window) as usize).clamp(1, most.max(1));
        }
        // As many in one use as the policy moves.
        for _ in 0..64 {
            if self.window_max < self.target {
                self.window_max += 1;
                self.protected_max -= 1;
                self.demote();
                if !self.probation.is_empty() {
                    self.window.push(self.probation.remove(0));
                }
            } else if self.window_max > self.target {
                self.window_max -= 1;
                self.protected_max += 1;
                if !self.window.is_empty() {
                    self.probation.insert(0, self.window.remove(0));
                }
            }
        }
    }
}

/// Sets of keys, the least recently used first.
struct SetModel {
    ways: usize,
    sets: HashMap<u32, Vec<u64>>,
}

impl SetModel {
    fn access(&mut self, x: u64, set: u32) -> bool {
        let keys = self.sets.entry(set).or_default();
        let hit = keys.iter().position(|&y| y == x);
        match hit {
            Some(at) => drop(keys.remove(at)),
            None if keys.len() == self.ways => drop(keys.remove(0)),
            None => {}
        }
        keys.push(x);
        hit.is_some()
    }
}

/// Returns uses of keys with a popular part, a loop and a scan, from a seed.
fn uses(seed: u64, len: usize, universe: u64) -> Vec<u64> {
    let mut x = seed;
    let mut random = move || {
        x = BlockKey(x).hash();
        x
    };
    (0..len as u64)
        .map(|at| match random() % 8 {
            0..4 => random() % universe % (1 + random() % universe),
            4..7 => universe + at % (universe / 2),
            _ => 2 * universe + at,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn s3_fifo_is_the_papers(seed: u64, slots in 10_usize..90, universe in 20_u64..200) {
        let mut cache = CacheModel::new(PolicyKind::S3Fifo, slots as u32);
        let mut model = S3FifoModel {
            slots,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghost: ghost::Ghost::new(slots as u32 * 9 / 10),
            frequency: HashMap::new(),
            was_full: false,
        };
        for (at, x) in uses(seed, 4_000, universe).into_iter().enumerate() {
            prop_assert_eq!(cache.access(key(x)), model.access(x), "use {}", at);
        }
    }

    #[test]
    fn w_tiny_lfu_is_the_simulators(seed: u64, slots in 10_usize..300, universe in 20_u64..600) {
        let mut cache = CacheModel::new(PolicyKind::WTinyLfu, slots as u32);
        let mut model = WTinyLfuModel::new(slots);
        for (at, x) in uses(seed, 12_000, universe).into_iter().enumerate() {
            prop_assert_eq!(cache.access(key(x)), model.access(x), "use {}", at);
        }
    }

    #[test]
    fn set_associative_is_least_recently_used_in_each_set(seed: u64, sets in 1_u32..9) {
        let ways = 8;
        let slots = sets * ways;
        let mut cache = CacheModel::new(PolicyKind::SetAssociative { ways: 8 }, slots);
        let policy = SetAssociative::new(slots, 8);
        let mut model = SetModel { ways: 8, sets: HashMap::new() };
        for x in uses(seed, 4_000, 60) {
            let set = policy.place(key(x)).start / ways;
            prop_assert_eq!(cache.access(key(x)), model.access(x, set));
        }
    }

    #[test]
    fn lru_is_one_set(seed: u64, slots in 1_usize..60) {
        let mut cache = CacheModel::new(PolicyKind::Lru, slots as u32);
        let mut model = SetModel { ways: slots, sets: HashMap::new() };
        for x in uses(seed, 4_000, 60) {
            prop_assert_eq!(cache.access(key(x)), model.access(x, 0));
        }
    }

    /// Any mix of calls: only slots that are held and may be evicted are, each use of one is found,
    /// and the number of held slots is right.
    #[test]
    fn only_slots_that_may_go_are_given_up(
        seed: u64,
        which in 0..KINDS.len(),
        slots in 1_u32..200,
        refused in 0_u32..100,
    ) {
        let mut policy = KINDS[which].build(slots);
        let mut held: HashMap<SlotNr, BlockKey> = HashMap::new();
        let mut x = seed;
        for step in 0..3_000_u64 {
            x = BlockKey(x).hash();
            let slot = SlotNr((x >> 8) as u32 % slots);
            let new = key(x >> 32 & 0xff);
            let may = |slot: SlotNr| BlockKey(u64::from(slot.0) ^ seed).hash() % 100 >= u64::from(refused);
            match x % 8 {
                0 => {
                    policy.remove(slot, held.get(&slot).copied().unwrap_or(new));
                    held.remove(&slot);
                }
                1..4 => policy.hit(slot, held.get(&slot).copied().unwrap_or(new)),
                4 => policy.missed(new),
                _ => {
                    let place = policy.place(new);
                    let free = place.clone().map(SlotNr).find(|slot| !held.contains_key(slot));
                    let slot = free.or_else(|| {
                        let gone = policy.evict(new, &mut |slot| may(slot), &|slot| held[&slot]);
                        if let Some(slot) = gone {
                            assert!(may(slot), "step {step}: slot {slot} was refused");
                            assert!(place.contains(&slot.0), "step {step}: out of place");
                            assert!(held.remove(&slot).is_some(), "step {step}: slot {slot} is free");
                        } else {
                            let could = place.clone().map(SlotNr).filter(|&slot| may(slot));
                            assert_eq!(could.count(), 0, "step {step}: a slot could go");
                        }
                        gone
                    });
                    if let Some(slot) = slot {
                        policy.insert(slot, new);
                        held.insert(slot, new);
                    }
                }
            }
            prop_assert_eq!(policy.held() as usize, held.len(), "step {}", step);
        }
        // Until the last slot.
        let mut gone = HashSet::new();
        while policy.held() > 0 {
            let before = gone.len();
            // The set-associative policy evicts slots of the set of the block only.
            for n in 0..256 {
                let slot = policy.evict(key(n), &mut |_| true, &|slot| held[&slot]);
                if let Some(slot) = slot {
                    prop_assert!(held.contains_key(&slot) && gone.insert(slot));
                }
            }
            if gone.len() == before {
                break;
            }
        }
        let sets = KINDS[which] == PolicyKind::SetAssociative { ways: 4 };
        prop_assert!(policy.held() == 0 || sets);
    }

    /// A saved and restored policy evicts in the same order; the rest of a save is kept as well.
    #[test]
    fn a_restored_policy_gives_up_the_same_slots(seed: u64, which in 0..KINDS.len()) {
        let slots = 300;
        let mut policy = KINDS[which].build(slots);
        let mut held: HashMap<SlotNr, BlockKey> = HashMap::new();
        for x in uses(seed, 3_000, 500) {
            let new = key(x);
            let there = held.iter().find(|(_, k)| **k == new).map(|(slot, _)| *slot);
            if let Some(slot) = there {
                policy.hit(slot, new);
                continue;
            }
            let free = policy.place(new).map(SlotNr).find(|slot| !held.contains_key(slot));
            let slot = free.or_else(|| policy.evict(new, &mut |_| true, &|slot| held[&slot]));
            let slot = slot.expect("nothing is refused");
            held.insert(slot, new);
            policy.insert(slot, new);
        }
        let mut saved = Vec::new();
        policy.save(&|slot| held[&slot], &mut |slot, state| saved.push((slot, state)));
        prop_assert_eq!(saved.len(), held.len());
        // In parts, it is the same.
        let (mut parts, mut saving) = (Vec::new(), Saving::new(slots));
        while policy.save_some(&mut saving, 7, &|slot| held[&slot], &mut |slot, state| {
            parts.push((slot, state));
        }) {}
        prop_assert_eq!(&parts, &saved);
        let mut restored = KINDS[which].build(slots);
        for &(slot, state) in &saved {
            restored.restore(slot, state, held[&slot]);
            restored.restore(slot, state, held[&slot]);
        }
        prop_assert_eq!(restored.held(), policy.held());
        let mut again = Vec::new();
        restored.save(&|slot| held[&slot], &mut |slot, state| again.push((slot, state)));
        if KINDS[which] == PolicyKind::WTinyLfu {
            // Its window is back at its first size, and the collisions in the sketch differ.
            return Ok(());
        }
        prop_assert_eq!(&saved, &again);
        for n in 0..400 {
            let next = |policy: &mut Box<dyn Policy>| {
                policy.evict(key(n), &mut |_| true, &|slot| held[&slot])
            };
            prop_assert_eq!(next(&mut policy), next(&mut restored));
        }
    }

    #[test]
    fn a_resize_keeps_the_slots_that_remain(seed: u64, which in 0..KINDS.len(), to in 1_u32..200) {
        let slots = 100_u32;
        let mut policy = KINDS[which].build(slots);
        let mut held = HashMap::new();
        for x in uses(seed, 300, 100) {
            let free = policy.place(key(x)).map(SlotNr).find(|slot| !held.contains_key(slot));
            if let Some(slot) = free {
                held.insert(slot, key(x));
                policy.insert(slot, key(x));
                policy.hit(slot, key(x));
            }
        }
        policy.resize(to);
        held.retain(|slot, _| slot.0 < to);
        prop_assert_eq!((policy.slots(), policy.held() as usize), (to, held.len()));
        let mut kept = HashSet::new();
        policy.save(&|slot| held[&slot], &mut |slot, _| assert!(kept.insert(slot)));
        prop_assert_eq!(kept, held.keys().copied().collect::<HashSet<_>>());
    }
}

/// A policy that is used while it is saved passes out no slot twice, and all slots that were not
/// moved, in their order.
#[test]
fn a_policy_is_saved_while_it_is_used() {
    for (seed, kind) in (0..).zip(KINDS) {
        let slots = 512;
        let mut policy = kind.build(slots);
        for slot in 0..slots {
            policy.insert(SlotNr(slot), place_key(&*policy, slot));
        }
        let keys: Vec<BlockKey> = (0..slots).map(|slot| place_key(&*policy, slot)).collect();
        let key_of = |slot: SlotNr| keys[slot.index()];
        let mut before = Vec::new();
        policy.save(&key_of, &mut |slot, _| before.push(slot));
        let (mut saving, mut given, mut moved) = (Saving::new(slots), Vec::new(), HashSet::new());
        let mut random = uses(seed, 4096, u64::from(slots)).into_iter();
        while policy.save_some(&mut saving, 16, &key_of, &mut |slot, _| given.push(slot)) {
            for slot in random.by_ref().take(3).map(|x| SlotNr(x as u32 % slots)) {
                moved.insert(slot);
                match slot.0 % 3 {
                    0 => policy.hit(slot, key_of(slot)),
                    1 => policy.remove(slot, key_of(slot)),
                    _ => policy.insert(slot, key_of(slot)),
                }
            }
        }
        let unmoved = |all: &[SlotNr]| -> Vec<SlotNr> {
            all.iter().copied().filter(|slot| !moved.contains(slot)).collect()
        };
        // W-TinyLFU also moves slots that were not used.
        if kind != PolicyKind::WTinyLfu {
            assert_eq!(unmoved(&given), unmoved(&before), "{kind}");
        }
        let once: HashSet<_> = given.iter().collect();
        assert_eq!(once.len(), given.len(), "{kind}: a slot was given twice");
    }
}

/// Returns a key that may be put into this slot.
fn place_key(policy: &dyn Policy, slot: u32) -> BlockKey {
    (0..)
        .map(|n| key(u64::from(slot) << 20 | n))
        .find(|key| policy.place(*key).contains(&slot))
        .expect("some key")
}

/// A state that no policy or another one produced is restored without harm.
#[test]
fn any_state_is_restored_somehow() {
    for kind in KINDS {
        let mut policy = kind.build(256);
        for state in 0..=255_u8 {
            policy.restore(SlotNr(u32::from(state)), state, key(u64::from(state)));
            policy.restore(SlotNr(u32::MAX), state, key(0));
        }
        assert_eq!(policy.held(), 256, "{kind}");
    }
}

/// A slot that is filled and trimmed over and over costs no more than any other.
#[test]
fn trimming_one_slot_over_and_over_is_cheap_and_bounded() {
    for kind in KINDS {
        let slots = 1 << 20;
        let mut policy = kind.build(slots);
        let before = policy.memory_bytes();
        for n in 0..2_000_000_u64 {
            let new = key(n % 7);
            let slot = SlotNr(policy.place(new).start);
            policy.insert(slot, new);
            policy.remove(slot, new);
        }
        assert!(policy.memory_bytes() <= before + (1 << 16), "{kind}");
        assert_eq!(policy.held(), 0);
    }
}

/// The bound that the cache's 24 bytes a block leave.
#[test]
fn sixteen_million_slots_cost_ten_bytes_each() {
    let slots = 1 << 24;
    for kind in KINDS {
        let mut policy = kind.build(slots);
        for slot in 0..slots {
            policy.restore(SlotNr(slot), 0, key(u64::from(slot)));
        }
        let bytes = policy.memory_bytes() as f64 / f64::from(slots);
        assert!(bytes <= 10.01, "{kind}: {bytes:.2} bytes a slot");
    }
}

#[test]
fn admission_by_reuse_has_a_memory_in_every_policy() {
    for kind in KINDS {
        let mut policy = kind.build(1_000);
        assert!(!policy.seen_before(key(1)));
        policy.missed(key(1));
        assert!(policy.seen_before(key(1)), "{kind}");
        assert!(!policy.seen_before(key(2)), "{kind}");
    }
}

#[test]
fn names_and_codes_of_policies_come_back() {
    for kind in KINDS {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(PolicyKind::from_code(kind.to_code()), Some(kind));
    }
    for name in ["", "arc", "set-lru:0", "set-lru:-1", "set-lru:70000"] {
        assert!(name.parse::<PolicyKind>().is_err(), "{name}");
    }
    for code in [0, 4, 5, 1 << 16 | 1] {
        assert_eq!(PolicyKind::from_code(code), None);
    }
}

/// The small sketch of a large cache, in caches that are quickly simulated: it costs about a point.
#[test]
fn the_compact_sketch_costs_few_hits() {
    for workload in ["zipf:20000:0.9", "scan-mix:20000", "desk:10000"] {
        let workload: crate::trace::synthetic::Workload = workload.parse().unwrap();
        let ratio = |policy: WTinyLfu| {
            let mut cache = CacheModel::with(Box::new(policy));
            let uses = workload.blocks(5).take(300_000);
            uses.filter(|&block| cache.access(BlockKey(block))).count() as f64 / 300_000.0
        };
        let full = ratio(WTinyLfu::new(2_000));
        let compact = ratio(WTinyLfu::with_compact_sketch(2_000));
        assert!(compact > full - 0.015, "{workload}: {compact:.4}, with the full sketch {full:.4}");
    }
}

/// Under transactions recently used blocks are used again: LRU is hard to beat there, and was not
/// even reached while the window took a hundred uses a slot to be found.
#[test]
fn w_tiny_lfu_is_no_worse_than_lru_under_transactions_and_better_with_more_slots() {
    let workload: Workload = "oltp:50000".parse().unwrap();
    let trace: Vec<BlockKey> = workload.blocks(1).take(200_000).map(BlockKey).collect();
    let ratio = |kind, slots| simulate::hits(kind, slots, trace.iter().copied()).ratio();
    let mut before = 0.0;
    for slots in [600, 1200, 2400, 4800, 12_000] {
        let (ours, lru) = (ratio(PolicyKind::WTinyLfu, slots), ratio(PolicyKind::Lru, slots));
        assert!(ours > lru - 0.01, "{slots} slots: {ours:.4}, LRU {lru:.4}");
        assert!(ours > before, "{slots} slots: {ours:.4}, with fewer {before:.4}");
        before = ours;
    }
    // Its strength stays: a loop, of which LRU keeps nothing.
    let workload: Workload = "loop:1500".parse().unwrap();
    let trace = workload.blocks(1).take(60_000).map(BlockKey);
    assert!(simulate::hits(PolicyKind::WTinyLfu, 1000, trace).ratio() > 0.55);
}
