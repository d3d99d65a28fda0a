//! The index from blocks to slots: a hash table of slot numbers with open addressing.
//!
//! A cell is four bytes: the slot's number plus one, and in the remaining bits a tag of the key's
//! hash, so that a probe reads a slot only when it is nearly sure to match. The table has a quarter
//! more cells than there are slots, so it takes five bytes a slot and never grows. A search begins
//! at the position given by the hash and goes on to the first empty cell; removing closes the gap.
//!
//! The keys are in the slot table: callers pass a function that returns them.

use crate::policy::BlockKey;

#[derive(Debug)]
pub(crate) struct Index {
    cells: Vec<u32>,
    /// Number of bits of a cell that hold the slot.
    slot_bits: u32,
    len: u32,
}

const EMPTY: u32 = 0;

impl Index {
    pub(crate) fn new(slots: u32) -> Self {
        // Up to 2^32 - 1 would not fit beside the empty mark, but there are at most 2^30 slots.
        let cells = u64::from(slots) + u64::from(slots) / 4 + 8;
        Self {
            cells: vec![EMPTY; usize::try_from(cells).unwrap_or(usize::MAX)],
            slot_bits: 32 - slots.leading_zeros(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.cells.len() * 4
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.cells.len() as u128) >> 64) as usize
    }

    /// Returns the cell of a slot whose key has this hash. The tag is taken from the low end of the
    /// hash, the position from the high end.
    fn cell(&self, hash: u64, slot: u32) -> u32 {
        let tag = (hash as u32).checked_shl(self.slot_bits).unwrap_or(0);
        tag | (slot + 1)
    }

    fn slot_of(&self, cell: u32) -> u32 {
        let mask = 1_u32.checked_shl(self.slot_bits).map_or(u32::MAX, |bit| bit - 1);
        (cell & mask) - 1
    }

    fn find(
        &self,
        key: BlockKey,
        key_of: impl Fn(u32) -> Option<BlockKey>,
    ) -> Option<(usize, u32)> {
        let hash = key.hash();
        let tag = (hash as u32).checked_shl(self.slot_bits).unwrap_or(0);
        let mask = 1_u32.checked_shl(self.slot_bits).map_or(u32::MAX, |bit| bit - 1);
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            if cell & !mask == tag {
                let slot = self.slot_of(cell);
                if key_of(slot) == Some(key) {
                    return Some((at, slot));
                }
            }
            at = if at + 1 == self.cells.len() { 0 } else { at + 1 };
        }
    }

    /// Returns the slot that holds `key`.
    pub(crate) fn get(
        &self,
        key: BlockKey,
        key_of: impl Fn(u32) -> Option<BlockKey>,
    ) -> Option<u32> {
        self.find(key, key_of).map(|(_, slot)| slot)
    }

    /// Adds a key that is not in the table. Each slot holds one key, so the table cannot be full.
    pub(crate) fn insert(&mut self, key: BlockKey, slot: u32) {
        let hash = key.hash();
        let cell = self.cell(hash, slot);
        let mut at = self.home(hash);
        while self.cells[at] != EMPTY {
            at = if at + 1 == self.cells.len() { 0 } else { at + 1 };
        }
        self.cells[at] = cell;
        self.len += 1;
        debug_assert!((self.len as usize) < self.cells.len());
    }

    /// Removes a key. Returns true if it was in the table.
    pub(crate) fn remove(
        &mut self,
        key: BlockKey,
        key_of: impl Fn(u32) -> Option<BlockKey>,
    ) -> bool {
        let Some((mut gap, _)) = self.find(key, &key_of) else { return false };
        let n = self.cells.len();
        let mut at = gap;
        loop {
            at = if at + 1 == n { 0 } else { at + 1 };
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            // A cell may move back to the gap unless its search begins behind the gap.
            let Some(other) = key_of(self.slot_of(cell)) else { continue };
            let home = self.home(other.hash());
            if (at + n - home) % n >= (at + n - gap) % n {
                self.cells[gap] = cell;
                gap = at;
            }
        }
        self.cells[gap] = EMPTY;
        self.len -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(slots in 1_u32..70, ops in proptest::collection::vec((any::<bool>(), 0_u64..90), 1..400)) {
            let mut index = Index::new(slots);
            let mut keys: Vec<Option<BlockKey>> = vec![None; slots as usize];
            let mut model: HashMap<BlockKey, u32> = HashMap::new();
            for (put, block) in ops {
                let key = BlockKey::new(3, block);
                let free = keys.iter().position(Option::is_none);
                match (put, model.get(&key).copied(), free) {
                    (true, None, Some(slot)) => {
                        keys[slot] = Some(key);
                        index.insert(key, slot as u32);
                        model.insert(key, slot as u32);
                    }
                    (false, Some(slot), _) => {
                        prop_assert!(index.remove(key, |s| keys[s as usize]));
                        keys[slot as usize] = None;
                        model.remove(&key);
                    }
                    (false, None, _) => prop_assert!(!index.remove(key, |s| keys[s as usize])),
                    _ => {}
                }
                for block in 0..90 {
                    let key = BlockKey::new(3, block);
                    prop_assert_eq!(index.get(key, |s| keys[s as usize]), model.get(&key).copied());
                }
                prop_assert_eq!(index.len() as usize, model.len());
            }
        }
    }

    #[test]
    fn it_takes_five_bytes_a_slot() {
        let index = Index::new(1 << 20);
        assert!(index.memory_bytes() <= 5 * (1 << 20) + 32, "{}", index.memory_bytes());
    }
}
