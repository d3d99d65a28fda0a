//! S3-FIFO: three queues, first in, first out; a hit only increments a counter.
//!
//! J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak: "FIFO Queues are All You Need for Cache
//! Eviction", SOSP 2023. A new block enters the *small* queue, a tenth of the cache. When its turn
//! comes there, it goes on to the *main* queue if it was hit at least twice, else it is evicted and
//! its key enters the *ghost* queue (as many keys as 0.9 of the cache). A block whose key is a
//! ghost enters the main queue at once. In the main queue a block that was hit since its last turn
//! has another (up to three). So a scan passes through a tenth of the cache and leaves the rest.
//!
//! As in the authors' simulator (libCacheSim since December 2024), blocks that come while the cache
//! has never been full enter the main queue once the small one has its tenth; in the paper all of
//! them queue up in the small one.
//!
//! A slot costs four bytes of queue, a byte of state and 3.7 of ghosts.

use super::fifo::Fifo;
use super::ghost::Ghost;
use super::{ASKS_MAX, BlockKey, Policy, SLOTS_MAX, Saving, SlotNr};

/// Maximum of the hit counter.
const FREQUENCY_MAX: u8 = 3;
/// Hits in the small queue that promote a block to the main one.
const PROMOTE_AT: u8 = 2;
/// Maximum number of stale entries of a slot in a queue.
const STALE_MAX: u8 = 3;
/// Marks a saved state as this policy's; the queue and the frequency are below.
const SAVED: u8 = 0x10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

/// A slot in a byte, from the low bits: frequency, queue (0: not held), and how many stale entries
/// it has in the small and in the main queue; two bits each.
#[derive(Clone, Copy, Debug, Default)]
struct State(u8);

impl State {
    fn frequency(self) -> u8 {
        self.0 & 3
    }

    fn set_frequency(&mut self, frequency: u8) {
        self.0 = self.0 & !3 | frequency.min(FREQUENCY_MAX);
    }

    fn queue(self) -> Option<Queue> {
        match self.0 >> 2 & 3 {
            1 => Some(Queue::Small),
            2 => Some(Queue::Main),
            _ => None,
        }
    }

    fn set_queue(&mut self, queue: Option<Queue>) {
        let bits = match queue {
            None => 0,
            Some(Queue::Small) => 1,
            Some(Queue::Main) => 2,
        };
        self.0 = self.0 & !(3 << 2) | bits << 2;
    }

    fn stale(self, queue: Queue) -> u8 {
        self.0 >> Self::shift(queue) & 3
    }

    fn set_stale(&mut self, queue: Queue, stale: u8) {
        let shift = Self::shift(queue);
        self.0 = self.0 & !(3 << shift) | stale << shift;
    }

    fn shift(queue: Queue) -> u32 {
        match queue {
            Queue::Small => 4,
            Queue::Main => 6,
        }
    }
}

/// Small, main and ghost queues.
#[derive(Debug)]
pub struct S3Fifo {
    states: Vec<State>,
    small: Fifo,
    main: Fifo,
    small_held: u32,
    main_held: u32,
    ghost: Ghost,
    /// Whether a slot was ever evicted.
    was_full: bool,
}

impl S3Fifo {
    /// Creates a policy for `slots` slots, all free.
    pub fn new(slots: u32) -> S3Fifo {
        let slots = slots.min(SLOTS_MAX);
        S3Fifo {
            states: vec![State::default(); slots as usize],
            small: Fifo::default(),
            main: Fifo::default(),
            small_held: 0,
            main_held: 0,
            ghost: Ghost::new(ghosts(slots)),
            was_full: false,
        }
    }

    fn state(&self, slot: SlotNr) -> State {
        self.states.get(slot.index()).copied().unwrap_or_default()
    }

    fn small_target(&self) -> u32 {
        (self.slots() / 10).max(1)
    }

    fn parts(&mut self, queue: Queue) -> (&mut Fifo, &mut u32) {
        match queue {
            Queue::Small => (&mut self.small, &mut self.small_held),
            Queue::Main => (&mut self.main, &mut self.main_held),
        }
    }

    /// Puts a slot that is not held at the newest end of a queue.
    fn enter(&mut self, queue: Queue, slot: SlotNr, frequency: u8) {
        let mut state = self.states[slot.index()];
        state.set_queue(Some(queue));
        state.set_frequency(frequency);
        let stale = state.stale(queue);
        let (fifo, held) = self.parts(queue);
        *held += 1;
        if stale == STALE_MAX {
            // Its newest stale entry becomes live again: the slot left only a moment ago, three
            // times over.
            state.set_stale(queue, stale - 1);
        } else {
            fifo.push(slot);
        }
        self.states[slot.index()] = state;
    }

    /// Removes the oldest slot of a queue.
    fn leave(&mut self, queue: Queue) -> Option<(SlotNr, u8)> {
        loop {
            let slot = self.parts(queue).0.pop()?;
            let state = &mut self.states[slot.index()];
            let stale = state.stale(queue);
            if stale > 0 {
                state.set_stale(queue, stale - 1);
                continue;
            }
            let frequency = state.frequency();
            state.set_queue(None);
            *self.parts(queue).1 -= 1;
            return Some((slot, frequency));
        }
    }

    /// Returns the oldest slot of the small queue that was not hit twice and that `may` accepts;
    /// slots that were hit twice move to the main queue.
    fn evict_small(&mut self, may: &mut dyn FnMut(SlotNr) -> bool) -> Option<SlotNr> {
        for _ in 0..self.small_held.min(ASKS_MAX) {
            let (slot, frequency) = self.leave(Queue::Small)?;
            if frequency >= PROMOTE_AT {
                self.enter(Queue::Main, slot, 0);
            } else if may(slot) {
                return Some(slot);
            } else {
                self.enter(Queue::Small, slot, frequency);
            }
        }
        None
    }

    /// Returns the oldest slot of the main queue that was not hit and that `may` accepts; slots
    /// that were hit have another turn. However many were hit, the walk ends after [`ASKS_MAX`]
    /// turns.
    fn evict_main(&mut self, may: &mut dyn FnMut(SlotNr) -> bool) -> Option<SlotNr> {
        let mut turns = 0;
        let mut asks = 0;
        // A slot has up to three turns before `may` is called for it, and others are passed to it
        // again.
        while asks < (self.main_held.saturating_mul(4)).min(ASKS_MAX) {
            let (slot, frequency) = self.leave(Queue::Main)?;
            if frequency > 0 && turns < ASKS_MAX {
                turns += 1;
                self.enter(Queue::Main, slot, frequency - 1);
            } else if may(slot) {
                return Some(slot);
            } else {
                asks += 1;
                self.enter(Queue::Main, slot, frequency);
            }
        }
        None
    }

    /// Drops all stale entries, and those of slots from `slots` on, which no longer exist.
    fn forget_stale(&mut self, slots: u32) {
        let states = &self.states;
        for (queue, fifo) in [(Queue::Small, &mut self.small), (Queue::Main, &mut self.main)] {
            let mut stale: Vec<u8> = states.iter().map(|state| state.stale(queue)).collect();
            fifo.retain(|slot| {
                let live = stale[slot.index()] == 0;
                stale[slot.index()] = stale[slot.index()].saturating_sub(1);
                live && slot.0 < slots
            });
        }
        self.small_held = self.small.len() as u32;
        self.main_held = self.main.len() as u32;
        for state in &mut self.states {
            state.set_stale(Queue::Small, 0);
            state.set_stale(Queue::Main, 0);
        }
    }

    /// Drops the stale entries of a queue when they are many: amortised over the removals that made
    /// them.
    fn tidy(&mut self, queue: Queue) {
        let (fifo, held) = match queue {
            Queue::Small => (&mut self.small, self.small_held),
            Queue::Main => (&mut self.main, self.main_held),
        };
        if fifo.len() <= held as usize + held as usize / 8 + 1024 {
            return;
        }
        fifo.retain(|slot| {
            let state = &mut self.states[slot.index()];
            let stale = state.stale(queue);
            state.set_stale(queue, stale.saturating_sub(1));
            stale == 0
        });
    }
}

fn ghosts(slots: u32) -> u32 {
    (u64::from(slots) * 9 / 10) as u32
}

impl Policy for S3Fifo {
    fn hit(&mut self, slot: SlotNr, _key: BlockKey) {
        if let Some(state) = self.states.get_mut(slot.index()) {
            state.set_frequency(state.frequency() + 1);
        }
    }

    fn insert(&mut self, slot: SlotNr, key: BlockKey) {
        if slot.0 >= self.slots() {
            return;
        }
        self.remove(slot, key);
        let known = self.ghost.remove(key);
        let filling = !self.was_full && self.small_held >= self.small_target();
        let queue = if known || filling { Queue::Main } else { Queue::Small };
        self.enter(queue, slot, 0);
    }

    fn remove(&mut self, slot: SlotNr, _key: BlockKey) {
        if let Some(queue) = self.state(slot).queue() {
            let state = &mut self.states[slot.index()];
            state.set_queue(None);
            state.set_stale(queue, state.stale(queue) + 1);
            *self.parts(queue).1 -= 1;
            self.tidy(queue);
        }
    }

    fn evict(
        &mut self,
        _new: BlockKey,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr> {
        self.was_full = true;
        let main_target = self.slots() - self.small_target();
        if self.main_held <= main_target
            && let Some(slot) = self.evict_small(may)
        {
            self.ghost.insert(key_of(slot));
            return Some(slot);
        }
        if let Some(slot) = self.evict_main(may) {
            return Some(slot);
        }
        if let Some(slot) = self.evict_small(may) {
            self.ghost.insert(key_of(slot));
            return Some(slot);
        }
        // Slots that could be evicted from the small queue may have moved to the main one.
        self.evict_main(may)
    }

    fn missed(&mut self, key: BlockKey) {
        self.ghost.insert(key);
    }

    fn seen_before(&self, key: BlockKey) -> bool {
        self.ghost.contains(key)
    }

    fn save_some(
        &mut self,
        saving: &mut Saving,
        most: usize,
        _key_of: &dyn Fn(SlotNr) -> BlockKey,
        out: &mut dyn FnMut(SlotNr, u8),
    ) -> bool {
        let mut left = most;
        loop {
            let (queue, fifo, bit) = match saving.queue {
                0 => (Queue::Main, &self.main, 4),
                1 => (Queue::Small, &self.small, 0),
                _ => return false,
            };
            while let Some((number, slot)) = fifo.before(saving.at.unwrap_or(u64::MAX)) {
                saving.at = Some(number);
                let state = self.states[slot.index()];
                // In the order from the newest, the first entry of a slot is the live one.
                if state.queue() == Some(queue) && saving.first(slot) {
                    out(slot, SAVED | bit | state.frequency());
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

    fn restore(&mut self, slot: SlotNr, state: u8, _key: BlockKey) {
        if slot.0 >= self.slots() || self.state(slot).queue().is_some() {
            return;
        }
        // The state of another policy: the main queue keeps the order.
        let ours = state & 0xf0 == SAVED;
        let queue = if ours && state & 4 == 0 { Queue::Small } else { Queue::Main };
        let held = &mut self.states[slot.index()];
        held.set_queue(Some(queue));
        held.set_frequency(if ours { state & 3 } else { 0 });
        let stale = held.stale(queue);
        if stale == STALE_MAX {
            held.set_stale(queue, stale - 1);
        }
        let (fifo, count) = self.parts(queue);
        *count += 1;
        if stale < STALE_MAX {
            fifo.push_oldest(slot);
        }
    }

    fn resize(&mut self, slots: u32) {
        let slots = slots.min(SLOTS_MAX);
        if slots < self.slots() {
            self.forget_stale(slots);
        }
        self.was_full &= slots <= self.slots();
        self.states.resize(slots as usize, State::default());
        self.states.shrink_to_fit();
        self.ghost = Ghost::new(ghosts(slots));
    }

    fn slots(&self) -> u32 {
        self.states.len() as u32
    }

    fn held(&self) -> u32 {
        self.small_held + self.main_held
    }

    fn memory_bytes(&self) -> usize {
        self.states.capacity()
            + self.small.memory_bytes()
            + self.main.memory_bytes()
            + self.ghost.memory_bytes()
    }
}
