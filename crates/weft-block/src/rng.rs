//! The one source of randomness for simulators and workloads: seeded, and the same on every
//! machine and in every later version, because a seed printed by a failing test must replay.
//!
//! The generator is xoshiro256** by Blackman and Vigna, its state filled by SplitMix64, both
//! published in the public domain at <https://prng.di.unimi.it/>. Not for secrets.

/// A seeded stream of pseudo-random numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of SplitMix64: a good mix of all bits of `x`, also used as a hash of a number.
#[must_use]
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream that `seed` names.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        let state = std::array::from_fn(|_| {
            let word = mix(at);
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word
        });
        Self { state }
    }

    /// A stream of its own for part `number` of what this one is for: drawing more from one part
    /// does not shift what another draws.
    #[must_use]
    pub fn stream(seed: u64, number: u64) -> Self {
        Self::new(mix(seed) ^ mix(number ^ 0x5bd1_e995))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number in `0..bound`, or 0 if `bound` is 0. The bias is below 2^-32 for bounds that fit
    /// 32 bits, which no simulator notices.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into something of `len` elements; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `of` out of `out_of` draws.
    pub fn chance(&mut self, of: u64, out_of: u64) -> bool {
        self.below(out_of) < of
    }

    /// One element, or `None` of an empty slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.index(from.len()))
    }

    /// Fills `buf` with random bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for piece in buf.chunks_mut(8) {
            piece.copy_from_slice(&self.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        // Values fixed at the first release: a change would make every printed seed worthless.
        let mut rng = Rng::new(1);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [12_966_619_160_104_079_557, 9_600_361_134_598_540_522, 10_590_380_919_521_690_900]
        );
    }

    #[test]
    fn draws_stay_below_their_bound_and_reach_all_of_it() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 6];
        for _ in 0..6000 {
            seen[rng.index(6)] += 1;
        }
        assert!(seen.iter().all(|&n| n > 800), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
