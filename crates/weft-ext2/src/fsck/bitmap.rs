//! A row of bits, one for each block or inode of the volume.

/// Bits, all clear at first. Bits past the end read as clear and cannot be set.
#[derive(Debug, Clone)]
pub(super) struct Bitmap {
    words: Vec<u64>,
    len: u64,
}

impl Bitmap {
    pub(super) fn new(len: u64) -> Self {
        let words = usize::try_from(len.div_ceil(64)).unwrap_or(0);
        Self { words: vec![0; words], len }
    }

    fn word(bit: u64) -> (usize, u64) {
        (usize::try_from(bit / 64).unwrap_or(usize::MAX), 1 << (bit % 64))
    }

    /// Sets a bit; whether it was clear.
    pub(super) fn set(&mut self, bit: u64) -> bool {
        if bit >= self.len {
            return false;
        }
        let (word, mask) = Self::word(bit);
        match self.words.get_mut(word) {
            Some(w) if *w & mask == 0 => {
                *w |= mask;
                true
            }
            _ => false,
        }
    }

    /// Sets `count` bits from `first` on.
    pub(super) fn set_run(&mut self, first: u64, count: u64) {
        for bit in first..first.saturating_add(count).min(self.len) {
            self.set(bit);
        }
    }

    /// The 64 bits from `bit` on, lowest first.
    pub(super) fn bits64(&self, bit: u64) -> u64 {
        let (word, shift) = (usize::try_from(bit / 64).unwrap_or(usize::MAX), bit % 64);
        let low = self.words.get(word).copied().unwrap_or(0) >> shift;
        if shift == 0 {
            return low;
        }
        low | self.words.get(word.saturating_add(1)).copied().unwrap_or(0) << (64 - shift)
    }

    /// The first clear bit from `from` on.
    pub(super) fn first_clear(&self, from: u64) -> Option<u64> {
        let mut bit = from;
        while bit < self.len {
            let clear = (!self.bits64(bit)).trailing_zeros();
            if clear < 64 {
                return Some(bit + u64::from(clear)).filter(|&b| b < self.len);
            }
            bit += 64;
        }
        None
    }
}

/// Bit `bit` of a bitmap as it lies on disk.
pub(super) fn disk_bits64(map: &[u8], bit: u64) -> u64 {
    let at = usize::try_from(bit / 8).unwrap_or(usize::MAX);
    let mut bytes = [0; 8];
    let rest = map.get(at..).unwrap_or_default();
    let n = rest.len().min(8);
    if let (Some(to), Some(from)) = (bytes.get_mut(..n), rest.get(..n)) {
        to.copy_from_slice(from);
    }
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let mut map = Bitmap::new(130);
        assert!(map.set(5) && !map.set(5) && !map.set(130));
        map.set_run(60, 200);
        assert_eq!(map.bits64(128), 3);
        assert_eq!(map.bits64(60), !0);
        assert_eq!(map.bits64(4), 2 | 0xff << 56);
        assert_eq!(map.first_clear(5), Some(6));
        assert_eq!(map.first_clear(60), None);
        assert_eq!(disk_bits64(&[0, 1, 2], 8), 0x201);
    }
}
