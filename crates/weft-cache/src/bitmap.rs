//! A bit for each slot.

use std::ops::Range;

#[derive(Debug, Clone, Default)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    len: u32,
    set: u32,
}

impl Bitmap {
    /// Creates a map with all bits clear.
    pub(crate) fn new(len: u32) -> Self {
        Self { words: vec![0; (len as usize).div_ceil(64)], len, set: 0 }
    }

    /// Returns the number of set bits.
    pub(crate) fn count(&self) -> u32 {
        self.set
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * 8
    }

    pub(crate) fn get(&self, bit: u32) -> bool {
        self.words.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    /// Sets a bit. Returns true if it was clear. A bit past the end is ignored.
    pub(crate) fn set(&mut self, bit: u32) -> bool {
        if bit >= self.len {
            return false;
        }
        let word = &mut self.words[bit as usize / 64];
        let mask = 1 << (bit % 64);
        let new = *word & mask == 0;
        *word |= mask;
        self.set += u32::from(new);
        new
    }

    /// Clears a bit. Returns true if it was set.
    pub(crate) fn clear(&mut self, bit: u32) -> bool {
        if !self.get(bit) {
            return false;
        }
        self.words[bit as usize / 64] &= !(1 << (bit % 64));
        self.set -= 1;
        true
    }

    /// Returns the first set bit in a range.
    pub(crate) fn next_set(&self, range: Range<u32>) -> Option<u32> {
        let end = range.end.min(self.len);
        if self.set == 0 || range.start >= end {
            return None;
        }
        let mut index = range.start as usize / 64;
        let mut word = self.words[index] & (u64::MAX << (range.start % 64));
        loop {
            if word != 0 {
                let bit = index as u32 * 64 + word.trailing_zeros();
                return (bit < end).then_some(bit);
            }
            index += 1;
            if index as u64 * 64 >= u64::from(end) {
                return None;
            }
            word = self.words[index];
        }
    }

    pub(crate) fn resize(&mut self, len: u32) {
        for bit in len..self.len {
            self.clear(bit);
        }
        self.words.resize((len as usize).div_ceil(64), 0);
        self.len = len;
    }

    /// Returns the map's bytes, eight bits each, the lowest bit first.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.words.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Sets the bits that are set in `bytes`, from bit `first` (a multiple of 64) on.
    pub(crate) fn set_bytes(&mut self, first: u32, bytes: &[u8]) {
        debug_assert!(first.is_multiple_of(64));
        let words = self.words.iter_mut().skip(first as usize / 64);
        for (word, bytes) in words.zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word |= u64::from_le_bytes(whole);
        }
        self.trim();
    }

    /// Returns the map of the bits that are clear in this one.
    pub(crate) fn complement(&self) -> Self {
        let words = self.words.iter().map(|word| !word).collect();
        let mut map = Self { words, len: self.len, set: 0 };
        map.trim();
        map
    }

    /// Clears the bits past the end, and counts the set bits.
    fn trim(&mut self) {
        if let Some(last) = self.words.last_mut()
            && !self.len.is_multiple_of(64)
        {
            *last &= (1 << (self.len % 64)) - 1;
        }
        self.set = self.words.iter().map(|word| word.count_ones()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set(len in 1_u32..300, bits in proptest::collection::vec((any::<bool>(), 0_u32..300), 0..200), range in (0_u32..300, 0_u32..300)) {
            let mut map = Bitmap::new(len);
            let mut model = std::collections::BTreeSet::new();
            for (on, bit) in bits {
                if on {
                    prop_assert_eq!(map.set(bit), bit < len && model.insert(bit));
                } else {
                    prop_assert_eq!(map.clear(bit), model.remove(&bit));
                }
            }
            prop_assert_eq!(map.count() as usize, model.len());
            let range = range.0..range.1;
            let first = model.iter().copied().find(|bit| range.contains(bit));
            prop_assert_eq!(map.next_set(range), first);
            let mut copy = Bitmap::new(len);
            let bytes: Vec<u8> = map.bytes().collect();
            copy.set_bytes(0, &bytes);
            prop_assert_eq!(copy.words, map.words.clone());
            let clear = map.complement();
            prop_assert_eq!(clear.count(), len - map.count());
            prop_assert!((0..len).all(|bit| clear.get(bit) != map.get(bit)));
        }
    }
}
