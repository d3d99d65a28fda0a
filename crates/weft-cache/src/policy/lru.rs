//! Least recently used, exactly: one list, a hit moves the slot to its hot end.

use super::ghost::Ghost;
use super::links::{Links, List};
use super::{ASKS_MAX, BlockKey, Policy, SLOTS_MAX, Saving, SlotNr};

/// Least recently used.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    list: List,
    /// Keys that were evicted or bypassed; only kept once admission by reuse needs it.
    ghost: Option<Ghost>,
}

impl Lru {
    /// Creates a policy for `slots` slots, all free.
    pub fn new(slots: u32) -> Lru {
        Lru { links: Links::new(slots), list: List::new(1), ghost: None }
    }
}

impl Policy for Lru {
    fn hit(&mut self, slot: SlotNr, _key: BlockKey) {
        if self.links.list_of(slot).is_some() {
            self.links.heat(&mut self.list, slot);
        }
    }

    fn insert(&mut self, slot: SlotNr, key: BlockKey) {
        if let Some(ghost) = &mut self.ghost {
            ghost.remove(key);
        }
        if self.links.list_of(slot).is_some() {
            self.links.heat(&mut self.list, slot);
        } else if slot.0 < self.slots() {
            self.links.push_hot(&mut self.list, slot);
        }
    }

    fn remove(&mut self, slot: SlotNr, _key: BlockKey) {
        if self.links.list_of(slot).is_some() {
            self.links.unlink(&mut self.list, slot);
        }
    }

    fn evict(
        &mut self,
        _new: BlockKey,
        may: &mut dyn FnMut(SlotNr) -> bool,
        key_of: &dyn Fn(SlotNr) -> BlockKey,
    ) -> Option<SlotNr> {
        for _ in 0..self.list.len().min(ASKS_MAX) {
            let slot = self.list.coldest()?;
            if may(slot) {
                self.links.unlink(&mut self.list, slot);
                if let Some(ghost) = &mut self.ghost {
                    ghost.insert(key_of(slot));
                }
                return Some(slot);
            }
            self.links.heat(&mut self.list, slot);
        }
        None
    }

    fn missed(&mut self, key: BlockKey) {
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
        _key_of: &dyn Fn(SlotNr) -> BlockKey,
        out: &mut dyn FnMut(SlotNr, u8),
    ) -> bool {
        if saving.at.replace(0).is_none() {
            self.links.walk(&self.list);
        }
        for _ in 0..most {
            let Some(slot) = self.links.step() else { return false };
            if saving.first(slot) {
                out(slot, 0);
            }
        }
        true
    }

    fn restore(&mut self, slot: SlotNr, _state: u8, _key: BlockKey) {
        if slot.0 < self.slots() && self.links.list_of(slot).is_none() {
            self.links.push_cold(&mut self.list, slot);
        }
    }

    fn resize(&mut self, slots: u32) {
        let slots = slots.min(SLOTS_MAX);
        for slot in slots..self.slots() {
            self.remove(SlotNr(slot), BlockKey(0));
        }
        self.links.resize(slots);
    }

    fn slots(&self) -> u32 {
        self.links.slots()
    }

    fn held(&self) -> u32 {
        self.list.len()
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.ghost.as_ref().map_or(0, Ghost::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict(lru: &mut Lru) -> Option<u32> {
        lru.evict(BlockKey(0), &mut |_| true, &|s| BlockKey(u64::from(s.0))).map(|slot| slot.0)
    }

    #[test]
    fn a_hit_makes_a_slot_the_last_to_go() {
        let mut lru = Lru::new(3);
        for slot in 0..3 {
            lru.insert(SlotNr(slot), BlockKey(u64::from(slot)));
        }
        lru.hit(SlotNr(0), BlockKey(0));
        assert_eq!(evict(&mut lru), Some(1));
        lru.remove(SlotNr(2), BlockKey(2));
        assert_eq!(evict(&mut lru), Some(0));
        assert_eq!(evict(&mut lru), None);
    }
}
