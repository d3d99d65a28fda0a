//! A group's bitmap in memory: the bits that the disk has as used, and those that may not be taken
//! now.
//!
//! Invariants: `busy` holds every bit of `used`; the bits from `len` on are set in both; `avail`
//! is the number of clear bits of `busy`, `free` that of `used`.

/// Used and busy bits of one group.
#[derive(Debug)]
pub(crate) struct Bits {
    used: Box<[u64]>,
    busy: Box<[u64]>,
    len: u32,
    avail: u32,
    free: u32,
    /// No clear busy bit below this one.
    low: u32,
    /// The bit behind the last run taken, where the next file starts.
    pub cursor: u32,
}

impl Bits {
    /// Makes the bits of a group of `len` bits from its bitmap block.
    pub fn new(block: &[u8], len: u32) -> Self {
        let words = len.div_ceil(64) as usize;
        let mut used = vec![0_u64; words].into_boxed_slice();
        for (word, bytes) in used.iter_mut().zip(block.chunks(8)) {
            let mut raw = [0_u8; 8];
            raw[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(raw);
        }
        if let Some(last) = used.last_mut()
            && !len.is_multiple_of(64)
        {
            *last |= u64::MAX << (len % 64);
        }
        let free: u32 = used.iter().map(|w| w.count_zeros()).sum();
        Self { busy: used.clone(), used, len, avail: free, free, low: 0, cursor: 0 }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    /// Bits that can be taken now.
    pub fn avail(&self) -> u32 {
        self.avail
    }

    /// Bits the disk has as free.
    pub fn free(&self) -> u32 {
        self.free
    }

    pub fn is_used(&self, bit: u32) -> bool {
        bit >= self.len || self.used[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets or clears busy bits (of a reservation, or freed ones that may be taken again).
    pub fn set_busy(&mut self, start: u32, len: u32, on: bool) {
        for_words(start, len.min(self.len.saturating_sub(start)), |word, mask| {
            let w = &mut self.busy[word];
            if on {
                self.avail -= (mask & !*w).count_ones();
                *w |= mask;
            } else {
                let clear = mask & !self.used[word];
                self.avail += (clear & *w).count_ones();
                *w &= !clear;
                if clear != 0 {
                    self.low = self.low.min(word as u32 * 64);
                }
            }
        });
    }

    /// Marks bits as used (and busy). They must be free on disk.
    pub fn take(&mut self, start: u32, len: u32) {
        self.set_busy(start, len, true);
        for_words(start, len, |word, mask| {
            debug_assert_eq!(self.used[word] & mask, 0, "a used block is taken");
            self.used[word] |= mask;
        });
        self.free -= len;
    }

    /// Marks used bits as free on disk; they stay busy until
    /// [`set_busy`](Self::set_busy)`(.., false)`.
    pub fn give(&mut self, start: u32, len: u32) {
        for_words(start, len, |word, mask| {
            debug_assert_eq!(self.used[word] & mask, mask, "a free block is freed");
            self.used[word] &= !mask;
        });
        self.free += len;
    }

    /// The first bit from `from` on that can be taken.
    pub fn find_free(&mut self, from: u32) -> Option<u32> {
        let from = from.max(self.low);
        let mut word = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while let Some(w) = self.busy.get(word) {
            let clear = !w & mask;
            if clear != 0 {
                let bit = word as u32 * 64 + clear.trailing_zeros();
                if from == self.low {
                    self.low = bit;
                }
                return Some(bit);
            }
            mask = u64::MAX;
            word += 1;
        }
        None
    }

    /// Returns the number of bits in a row from `from` on, at most `max`, that can be taken.
    pub fn free_run(&self, from: u32, max: u32) -> u32 {
        let mut len = 0;
        let mut at = from;
        while len < max && at < self.len {
            let set = self.busy[at as usize / 64] >> (at % 64);
            let run = set.trailing_zeros().min(64 - at % 64);
            len += run;
            at += run;
            if run == 0 || !at.is_multiple_of(64) {
                break;
            }
        }
        len.min(max)
    }

    /// The first run of at least `want` bits from `from` on, cut to `want`.
    pub fn find_run(&mut self, from: u32, want: u32) -> Option<u32> {
        let mut at = from;
        loop {
            let start = self.find_free(at)?;
            let run = self.free_run(start, want);
            if run >= want {
                return Some(start);
            }
            at = start + run + 1;
            if at >= self.len {
                return None;
            }
        }
    }
}

/// Calls `each` with the words (of 64 bits) of a range of bits, and the bits of each.
fn for_words(start: u32, len: u32, mut each: impl FnMut(usize, u64)) {
    let mut at = start;
    let end = start + len;
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let mask = if n == 64 { u64::MAX } else { ((1 << n) - 1) << (at % 64) };
        each(at as usize / 64, mask);
        at += n;
    }
}

/// Calls `each` with the 32-bit words of a range of bits, as the byte offset and mask of a bit
/// patch.
pub(crate) fn for_words32<E>(
    start: u32,
    len: u32,
    mut each: impl FnMut(usize, u32) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = start;
    let end = start + len;
    while at < end {
        let n = (32 - at % 32).min(end - at);
        let mask = if n == 32 { u32::MAX } else { ((1 << n) - 1) << (at % 32) };
        each(at as usize / 32 * 4, mask)?;
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model_avail(model: &[bool]) -> u32 {
        u32::try_from(model.iter().filter(|b| !**b).count()).unwrap()
    }

    proptest! {
        /// Compares it with a plain array of booleans.
        #[test]
        fn behaves_like_an_array(
            block in prop::collection::vec(any::<u8>(), 40),
            len in 1_u32..320,
            queries in prop::collection::vec((0_u32..330, 1_u32..70, any::<bool>()), 1..60),
        ) {
            let mut bits = Bits::new(&block, len);
            let mut model: Vec<bool> = (0..len)
                .map(|i| block[i as usize / 8] >> (i % 8) & 1 == 1)
                .collect();
            prop_assert_eq!(bits.avail(), model_avail(&model));
            for (from, want, take) in queries {
                let free = (from..len).find(|&i| !model[i as usize]);
                prop_assert_eq!(bits.find_free(from), free);
                let run_at = |i: u32| (i..len).take_while(|&j| !model[j as usize]).count() as u32;
                if from < len {
                    prop_assert_eq!(bits.free_run(from, want), run_at(from).min(want));
                }
                let run = (from..len).find(|&i| run_at(i) >= want);
                prop_assert_eq!(bits.find_run(from, want), run);
                if let Some(start) = run {
                    if take {
                        bits.take(start, want);
                        model[start as usize..(start + want) as usize].fill(true);
                    }
                } else if from < len && model[from as usize] && bits.is_used(from) {
                    bits.give(from, 1);
                    prop_assert_ne!(bits.find_free(from), Some(from));
                    bits.set_busy(from, 1, false);
                    model[from as usize] = false;
                }
                prop_assert_eq!(bits.avail(), model_avail(&model));
                prop_assert_eq!(bits.free(), bits.avail());
            }
        }

        #[test]
        fn words_cover_a_range(start in 0_u32..200, len in 1_u32..200) {
            let mut seen = Vec::new();
            for_words32(start, len, |at, mask| {
                for bit in 0..32 {
                    if mask >> bit & 1 == 1 {
                        seen.push(at as u32 * 8 + bit);
                    }
                }
                Ok::<(), ()>(())
            }).unwrap();
            prop_assert_eq!(seen, (start..start + len).collect::<Vec<_>>());
        }
    }
}
