//! Adaptive W-TinyLFU: a window for new blocks, a main part for frequent ones, and an admission
//! between them.
//!
//! G. Einziger, R. Friedman, B. Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! Transactions on Storage 13(4), 2017, and "Adaptive Software Cache Management", Middleware 2018;
//! the parameters are those of the Caffeine library. A new block enters the *window*, a least
//! recently used list of 1 % of the slots at first. The block that falls out of it contends with
//! the coldest block of the main part: the one used less often (by the [sketch](super::sketch)) is
//! evicted. The main part is a segmented list: *probation*, and after a hit *protected* (80 % of
//! it). The border of the window is moved to where small [models](super::mini_sim) of the cache have
//! the most hits, so recency and frequency share the slots as suits the workload.
//!
//! Caffeine's simulator lets the window shrink to nothing, and then refuses new blocks at once.
//! Here it keeps a slot: a block must be put somewhere, and one that is used twice in a row is a
//! hit. On the trace w106 that is worth 0.6 points of hit ratio; with an empty window the two are
//! within 0.03.
//!
//! A slot costs eight bytes of links, and two (in caches of up to a million slots, eight to
//! sixteen) of sketch.

use super::ghost::Ghost;
use super::links::{Links, List};
use super::mini_sim::MiniSim;
use super::sketch::Sketch;
use super::{ASKS_MAX, BlockKey, Policy, SLOTS_MAX, Saving, SlotNr};

const WINDOW: u8 = 1;
const PROBATION: u8 = 2;
const PROTECTED: u8 = 3;
/// Slots moved across the border of the window in one call; a change of the window is spread over
/// many calls, so that none is long.
const MOVES_MAX: u32 = 64;
/// Marks a saved state as this policy's: the list and 4 bits of frequency are below.
const SAVED: u8 = 0x40;

/// Window, probation and protected lists, and the frequencies of keys.
#[derive(Debug)]
pub struct WTinyLfu {
    links: Links,
    window: List,
    probation: List,
    protected: List,
    sketch: Sketch,
    /// Finds the best window; `None` in the models themselves.
    models: Option<Box<MiniSim>>,
    /// Target size of the window in slots; `window_max` approaches it.
    window_target: u32,
    window_max: u32,
    protected_max: u32,
    /// Keys that were evicted or bypassed; only kept once admission by reuse needs it.
    ghost: Option<Ghost>,
}

/// Returns a fraction of the slots, at least one.
fn window_slots(slots: u32, window: f64) -> u32 {
    ((f64::from(slots) * window) as u32).clamp(1, slots.max(1))
}

impl WTinyLfu {
    /// Creates a policy for `slots` slots, all free.
    pub fn new(slots: u32) -> WTinyLfu {
        let slots = slots.min(SLOTS_MAX);
        WTinyLfu { models: Some(Box::new(MiniSim::new(slots))), ..WTinyLfu::unadapted(slots) }
    }

    /// Creates a policy with a window of fixed size.
    pub(super) fn with_fixed_window(slots: u32, window: f64) -> WTinyLfu {
        let mut policy = WTinyLfu::unadapted(slots);
        let window = window_slots(policy.slots(), window);
        policy.window_target = window;
        policy.window_max = window;
        policy.protected_max = (u64::from(policy.slots() - window) * 8 / 10) as u32;
        policy
    }

    fn unadapted(slots: u32) -> WTinyLfu {
        let slots = slots.min(SLOTS_MAX);
        let main = (u64::from(slots) * 99 / 100) as u32;
        let window_max = (slots - main).max(1);
        WTinyLfu {
            links: Links::new(slots),
            window: List::new(WINDOW),
            probation: List::new(PROBATION),
            protected: List::new(PROTECTED),
            sketch: Sketch::new(slots),
            models: None,
            window_target: window_max,
            window_max,
            protected_max: (u64::from(main) * 8 / 10) as u32,
            ghost: None,
        }
    }

    #[cfg(test)]
    pub(super) fn with_compact_sketch(slots: u32) -> WTinyLfu {
        WTinyLfu { sketch: Sketch::compact(slots), ..WTinyLfu::new(slots) }
    }

    /// Returns the present maximum size of the window, in slots.
    pub fn window_slots(&self) -> u32 {
        self.window_max
    }

    fn demote(&mut self) {
        while self.protected.len() > self.protected_max
            && let Some(slot) = self.protected.coldest()
        {
            self.links.unlink(&mut self.protected, slot);
            self.links.push_hot(&mut self.probation, slot);
        }
    }

    /// Counts a use for the models, and moves the border of the window towards its target.
    fn adapt(&mut self, key: BlockKey) {
        if let Some(window) = self.models.as_mut().and_then(|models| models.count(key)) {
            let most = (self.window_max + self.protected_max).max(1);
            self.window_target = window_slots(self.slots(), window).min(most);
        }
        let target = self.window_target;
        for _ in 0..MOVES_MAX {
            if self.window_max < target {
                self.window_max += 1;
                self.protected_max -= 1;
                self.demote();
                if let Some(slot) = self.probation.coldest() {
                    self.links.unlink(&mut self.probation, slot);
                    self.links.push_hot(&mut self.window, slot);
                }
            } else if self.window_max > target {
                self.window_max -= 1;
                self.protected_max += 1;
                if let Some(slot) = self.window.coldest() {
                    self.links.unlink(&mut self.window, slot);
                    self.links.push_cold(&mut self.probation, slot);
                }
            } else {
                break;
            }
        }
    }

    fn list(&mut self, tag: u8) -> &mut List {
        match tag {
            WINDOW => &mut self.window,
            PROBATION => &mut self.probation,
            _ => &mut self.protected,
        }
    }

    fn take(&mut self, slot: SlotNr) -> Option<u8> {
        let tag = self.links.list_of(slot)?;
        match tag {
            WINDOW => self.links.unlink(&mut self.window, slot),
            PROBATION => self.links.unlink(&mut self.probation, slot),
            _ => self.links.unlink(&mut self.protected, slot),
        }
        Some(tag)
    }

    /// Removes and returns a slot that `may` accepts. Every turn passes one slot to `may`, and no
    /// slot twice before all were passed.
    fn choose(
        &mut self,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr> {
        // Refused slots move to the hot ends: these are the numbers of slots not tried yet.
        let mut probation_left = self.probation.len();
        let mut protected_left = self.protected.len();
        for _ in 0..self.held().min(ASKS_MAX) {
            let victim = match (probation_left, protected_left) {
                (1.., _) => self.probation.coldest(),
                (0, 1..) => self.protected.coldest(),
                (0, 0) => None,
            };
            let candidate = self.window.coldest();
            let contender = candidate.filter(|_| self.window.len() >= self.window_max);
            let frequency = |slot| self.sketch.estimate(key_of(slot));
            let slot = match (contender, victim) {
                (Some(contender), Some(victim)) if frequency(contender) <= frequency(victim) => {
                    contender
                }
                (_, Some(victim)) => victim,
                (_, None) => candidate?,
            };
            let tag = self.take(slot)?;
            if may(slot) {
                // A contender that won leaves the window.
                if let Some(contender) = contender.filter(|&contender| contender != slot) {
                    self.take(contender);
                    self.put_hot(PROBATION, contender);
                }
                return Some(slot);
            }
            match tag {
                PROBATION => probation_left -= 1,
                PROTECTED => protected_left -= 1,
                _ => {}
            }
            // A refused contender that lost still leaves the window.
            let to = if contender == Some(slot) { PROBATION } else { tag };
            self.put_hot(to, slot);
        }
        None
    }

    fn put_hot(&mut self, tag: u8, slot: SlotNr) {
        match tag {
            WINDOW => self.links.push_hot(&mut self.window, slot),
            PROBATION => self.links.push_hot(&mut self.probation, slot),
            _ => self.links.push_hot(&mut self.protected, slot),
        }
    }
}

impl Policy for WTinyLfu {
    fn hit(&mut self, slot: SlotNr, key: BlockKey) {
        let Some(tag) = self.links.list_of(slot) else {
            return;
        };
        self.sketch.add(key);
        match tag {
            WINDOW => self.links.heat(&mut self.window, slot),
            PROTECTED => self.links.heat(&mut self.protected, slot),
            _ => {
                self.links.unlink(&mut self.probation, slot);
                self.links.push_hot(&mut self.protected, slot);
                self.demote();
            }
        }
        self.adapt(key);
    }

    fn insert(&mut self, slot: SlotNr, key: BlockKey) {
        if slot.0 >= self.slots() {
            return;
        }
        self.take(slot);
        self.sketch.add(key);
        if let Some(ghost) = &mut self.ghost {
            ghost.remove(key);
        }
        self.links.push_hot(&mut self.window, slot);
        while self.window.len() > self.window_max
            && let Some(slot) = self.window.coldest()
        {
            self.links.unlink(&mut self.window, slot);
            self.links.push_hot(&mut self.probation, slot);
        }
        self.adapt(key);
    }

    fn remove(&mut self, slot: SlotNr, _key: BlockKey) {
        self.take(slot);
    }

    fn evict(
        &mut self,
        _new: BlockKey,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr> {
        let slot = self.choose(may, key_of)?;
        if let Some(ghost) = &mut self.ghost {
            ghost.insert(key_of(slot));
        }
        Some(slot)
    }

    fn missed(&mut self, key: BlockKey) {
        self.sketch.add(key);
        let slots = self.slots();
        self.ghost.get_or_insert_with(|| Ghost::new(slots)).insert(key);
    }

    fn seen_before(&self, key: BlockKey) -> bool {
        self.ghost.as_ref().is_some_and(|ghost| ghost.contains(key))
    }

    fn save_some(
        &mut self,
        saving: &mut Saving,
        most: usize,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
        out: &mut dyn FnMut(SlotNr, u8),
    ) -> bool {
        let mut left = most;
        loop {
            let (tag, list) = match saving.queue {
                0 => (PROTECTED, &self.protected),
                1 => (WINDOW, &self.window),
                2 => (PROBATION, &self.probation),
                _ => return false,
            };
            if saving.at.replace(0).is_none() {
                self.links.walk(list);
            }
            while let Some(slot) = self.links.step() {
                if saving.first(slot) {
                    out(slot, SAVED | tag << 4 | self.sketch.estimate(key_of(slot)));
                }
                left -= 1;
                if left == 0 {
                    return true;
                }
            }
            saving.queue += 1;
            saving.at = None;
        }
    }

    fn restore(&mut self, slot: SlotNr, state: u8, key: BlockKey) {
        if slot.0 >= self.slots() || self.links.list_of(slot).is_some() {
            return;
        }
        let ours = state & 0xc0 == SAVED;
        let mut tag = if ours { state >> 4 & 3 } else { PROBATION };
        let full = match tag {
            WINDOW => self.window.len() >= self.window_max,
            PROTECTED => self.protected.len() >= self.protected_max,
            _ => false,
        };
        if tag == 0 || full {
            tag = PROBATION;
        }
        if ours {
            for _ in self.sketch.estimate(key)..state & 15 {
                self.sketch.add(key);
            }
        }
        match tag {
            WINDOW => self.links.push_cold(&mut self.window, slot),
            PROTECTED => self.links.push_cold(&mut self.protected, slot),
            _ => self.links.push_cold(&mut self.probation, slot),
        }
    }

    fn resize(&mut self, slots: u32) {
        let mut resized = WTinyLfu::new(slots);
        let slots = resized.slots();
        for tag in [PROTECTED, WINDOW, PROBATION] {
            while let Some(slot) = self.list(tag).coldest() {
                self.take(slot);
                if slot.0 < slots {
                    resized.put_hot(tag, slot);
                }
            }
        }
        resized.demote();
        while resized.window.len() > resized.window_max
            && let Some(slot) = resized.window.coldest()
        {
            resized.links.unlink(&mut resized.window, slot);
            resized.links.push_hot(&mut resized.probation, slot);
        }
        *self = resized;
    }

    fn slots(&self) -> u32 {
        self.links.slots()
    }

    fn held(&self) -> u32 {
        self.window.len() + self.probation.len() + self.protected.len()
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes()
            + self.sketch.memory_bytes()
            + self.models.as_ref().map_or(0, |models| models.memory_bytes())
            + self.ghost.as_ref().map_or(0, Ghost::memory_bytes)
    }
}
