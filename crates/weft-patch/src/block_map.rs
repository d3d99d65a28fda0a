//! The map from block numbers to buffers. Adjacent blocks share an entry, as they are mostly used
//! in a row: a map with an entry a block was a tenth of the time of writing a file.

use crate::BlockNr;
use crate::graph::{KEPT, NONE};
use hashbrown::HashMap;

/// Number of blocks of an entry: its slots fill a line of the processor's cache.
const PER_ENTRY: u64 = 16;

#[derive(Debug)]
struct Entry {
    slots: [u32; PER_ENTRY as usize],
    used: u32,
}

/// A map of block numbers to indices of buffers, never [`NONE`].
#[derive(Debug, Default)]
pub(crate) struct BlockMap {
    entries: HashMap<u64, Entry>,
    len: usize,
}

fn place(nr: BlockNr) -> (u64, usize) {
    (nr.0 / PER_ENTRY, (nr.0 % PER_ENTRY) as usize)
}

impl BlockMap {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, nr: BlockNr) -> Option<u32> {
        let (key, slot) = place(nr);
        let index = self.entries.get(&key)?.slots[slot];
        (index != NONE).then_some(index)
    }

    /// Adds a block that is not in the map yet.
    pub fn insert(&mut self, nr: BlockNr, index: u32) {
        let (key, slot) = place(nr);
        let empty = || Entry { slots: [NONE; PER_ENTRY as usize], used: 0 };
        let entry = self.entries.entry(key).or_insert_with(empty);
        debug_assert!(entry.slots[slot] == NONE && index != NONE, "{nr:?} is there already");
        entry.slots[slot] = index;
        entry.used += 1;
        self.len += 1;
    }

    /// Removes a block.
    pub fn remove(&mut self, nr: BlockNr) {
        let (key, slot) = place(nr);
        let Some(entry) = self.entries.get_mut(&key) else { return };
        debug_assert!(entry.slots[slot] != NONE, "{nr:?} is not there");
        entry.slots[slot] = NONE;
        entry.used -= 1;
        self.len -= 1;
        if entry.used == 0 {
            self.entries.remove(&key);
        }
    }

    /// Changes the buffer of a block that is in the map.
    pub fn replace(&mut self, nr: BlockNr, index: u32) {
        let (key, slot) = place(nr);
        if let Some(entry) = self.entries.get_mut(&key) {
            debug_assert!(entry.slots[slot] != NONE && index != NONE, "{nr:?} is not there");
            entry.slots[slot] = index;
        }
    }

    /// Gives back memory that is far more than the map needs.
    pub fn shrink(&mut self) {
        if self.entries.capacity() > KEPT && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    pub fn values(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.values().flat_map(|entry| entry.slots).filter(|&index| index != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn is_a_map(steps in prop::collection::vec((0_u64..80, any::<bool>()), 0..300)) {
            let mut map = BlockMap::default();
            let mut model = BTreeMap::new();
            for (at, (nr, far)) in steps.into_iter().enumerate() {
                let nr = if far { u64::MAX - nr } else { nr };
                if model.remove(&nr).is_some() {
                    map.remove(BlockNr(nr));
                } else {
                    model.insert(nr, at as u32);
                    map.insert(BlockNr(nr), at as u32);
                }
                prop_assert_eq!(map.get(BlockNr(nr)), model.get(&nr).copied());
                prop_assert_eq!(map.len(), model.len());
            }
            let mut all: Vec<u32> = map.values().collect();
            all.sort_unstable();
            let mut expected: Vec<u32> = model.values().copied().collect();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
            prop_assert_eq!(map.entries.is_empty(), model.is_empty());
        }
    }
}
