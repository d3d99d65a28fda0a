//! Changed frames, decoded, in the order of their last change: the least recently written frame
//! leaves memory first.

use std::collections::BTreeMap;

#[derive(Debug)]
struct Kept {
    plain: Vec<u8>,
    /// Its key in `order`.
    used: u64,
}

/// Changed frames by their index in the file.
#[derive(Debug, Default)]
pub(super) struct DirtyFrames {
    frames: BTreeMap<usize, Kept>,
    /// Indexes of frames by the time of their last change.
    order: BTreeMap<u64, usize>,
    clock: u64,
    /// The total length of all frames.
    bytes: u64,
}

impl DirtyFrames {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn contains(&self, at: usize) -> bool {
        self.frames.contains_key(&at)
    }

    pub(super) fn get(&self, at: usize) -> Option<&[u8]> {
        self.frames.get(&at).map(|kept| kept.plain.as_slice())
    }

    /// Returns the indexes of the frames, in the order of the file.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.frames.keys().copied()
    }

    /// Inserts a frame as the one changed last.
    pub(super) fn insert(&mut self, at: usize, plain: Vec<u8>) {
        self.remove(at);
        self.clock += 1;
        self.bytes += plain.len() as u64;
        self.order.insert(self.clock, at);
        self.frames.insert(at, Kept { plain, used: self.clock });
    }

    /// Returns a frame for modification, truncated or zero-extended to `len` bytes.
    pub(super) fn change(&mut self, at: usize, len: usize) -> &mut [u8] {
        let kept = self.frames.entry(at).or_insert(Kept { plain: Vec::new(), used: 0 });
        self.order.remove(&kept.used);
        self.clock += 1;
        kept.used = self.clock;
        self.order.insert(self.clock, at);
        self.bytes -= kept.plain.len() as u64;
        self.bytes += len as u64;
        kept.plain.resize(len, 0);
        &mut kept.plain
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Vec<u8>> {
        let kept = self.frames.remove(&at)?;
        self.order.remove(&kept.used);
        self.bytes -= kept.plain.len() as u64;
        Some(kept.plain)
    }

    /// Drops all frames from `at` on.
    pub(super) fn truncate(&mut self, at: usize) {
        for kept in self.frames.split_off(&at).into_values() {
            self.order.remove(&kept.used);
            self.bytes -= kept.plain.len() as u64;
        }
    }

    /// Returns the least recently changed frame.
    pub(super) fn oldest(&self) -> Option<usize> {
        self.order.first_key_value().map(|(_, at)| *at)
    }

    /// Drops all frames; returns the one changed last.
    pub(super) fn clear(&mut self) -> Option<(usize, Vec<u8>)> {
        let at = self.order.last_key_value().map(|(_, at)| *at);
        let newest = at.and_then(|at| Some((at, self.remove(at)?)));
        *self = Self::default();
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_bytes_add_up() {
        let mut dirty = DirtyFrames::default();
        dirty.insert(3, vec![3; 10]);
        dirty.insert(1, vec![1; 20]);
        dirty.insert(2, vec![2; 30]);
        assert_eq!((dirty.bytes(), dirty.oldest()), (60, Some(3)));
        assert_eq!(dirty.change(3, 12), [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0]);
        assert_eq!((dirty.bytes(), dirty.oldest()), (62, Some(1)));
        dirty.insert(1, vec![9; 5]);
        assert_eq!((dirty.bytes(), dirty.oldest(), dirty.len()), (47, Some(2), 3));
        assert_eq!(dirty.remove(2), Some(vec![2; 30]));
        dirty.truncate(3);
        assert_eq!((dirty.bytes(), dirty.places().collect::<Vec<_>>()), (5, vec![1]));
        assert_eq!(dirty.clear(), Some((1, vec![9; 5])));
        assert_eq!((dirty.bytes(), dirty.oldest(), dirty.len()), (0, None, 0));
    }
}
