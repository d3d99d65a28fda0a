//! Undo data: rolls a soft patch back in a copy of its block.
//!
//! A patch keeps its pieces sorted and disjoint. A block that many operations change before it is
//! written, a bitmap or a directory, has hundreds of them, and every change searches them.

use crate::graph::KEPT;
use std::ops::Range;

/// Maximum size of undo data that needs no allocation: half of it is this small.
pub(crate) const INLINE_UNDO_BYTES: usize = 8;

/// The unit in which bits are changed.
pub(crate) const WORD_BYTES: usize = 4;

/// A change within one block: a byte range, or bits of one little-endian 32-bit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Bytes { offset: usize, len: usize },
    Bits { offset: usize, mask: u32 },
}

impl Change {
    /// Returns the change of these bytes.
    pub fn of(range: &Range<usize>) -> Self {
        Self::Bytes { offset: range.start, len: range.len() }
    }

    /// Returns the size of its undo data, in bytes.
    pub fn undo_bytes(self) -> usize {
        match self {
            Self::Bytes { len, .. } => len,
            Self::Bits { .. } => 4,
        }
    }

    /// Returns the byte range that it changes, from and to.
    pub fn range(self) -> (usize, usize) {
        match self {
            Self::Bytes { offset, len } => (offset, offset + len),
            Self::Bits { offset, .. } => (offset, offset + 4),
        }
    }

    /// Returns the bits that it changes: words of the block, each with the bits of it.
    pub fn words(self) -> impl Iterator<Item = (usize, u32)> {
        let (start, end) = self.range();
        let bits = move |word: usize| match self {
            Self::Bytes { .. } => {
                let (from, to) = (word * WORD_BYTES, (word + 1) * WORD_BYTES);
                let (before, behind) = (start.saturating_sub(from), to.saturating_sub(end));
                (u32::MAX << (8 * before)) & (u32::MAX >> (8 * behind))
            }
            Self::Bits { offset, mask } => {
                let shift = 8 * (offset % WORD_BYTES);
                let first = word == offset / WORD_BYTES;
                if first { mask << shift } else { mask >> (32 - shift) }
            }
        };
        (start / WORD_BYTES..end.div_ceil(WORD_BYTES))
            .map(move |word| (word, bits(word)))
            .filter(|(_, mask)| *mask != 0)
    }

    /// Returns true if both change a bit.
    fn meets(self, other: Self) -> bool {
        let meets = |(word, mask)| other.words().any(|(w, m)| w == word && m & mask != 0);
        self.words().any(meets)
    }
}

/// The undo data of one range.
#[derive(Debug)]
enum Undo {
    Small([u8; INLINE_UNDO_BYTES]),
    Large(Box<[u8]>),
    /// Flip these bits of the little-endian word.
    Flip(u32),
}

impl Undo {
    fn bytes(old: &[u8]) -> Self {
        if old.len() > INLINE_UNDO_BYTES {
            return Self::Large(old.into());
        }
        let mut small = [0; INLINE_UNDO_BYTES];
        small[..old.len()].copy_from_slice(old);
        Self::Small(small)
    }
}

#[derive(Debug)]
struct Piece {
    offset: u16,
    len: u16,
    undo: Undo,
}

impl Piece {
    fn new(start: usize, end: usize, undo: Undo) -> Self {
        // A whole block of 64 KiB is the one length that does not fit; Options refuse it.
        let fits = "offsets and lengths within a block fit 16 bits";
        let offset = u16::try_from(start).expect(fits);
        Self { offset, len: u16::try_from(end - start).expect(fits), undo }
    }

    fn start(&self) -> usize {
        usize::from(self.offset)
    }

    fn end(&self) -> usize {
        self.start() + usize::from(self.len)
    }

    fn change(&self) -> Change {
        let (offset, len) = (self.start(), self.len.into());
        match self.undo {
            Undo::Flip(mask) => Change::Bits { offset, mask },
            _ => Change::Bytes { offset, len },
        }
    }

    fn is_flip(&self) -> bool {
        matches!(self.undo, Undo::Flip(_))
    }

    fn covers(&self, start: usize, end: usize) -> bool {
        self.start() <= start && end <= self.end()
    }

    fn apply(&self, content: &mut [u8]) {
        let range = &mut content[self.start()..self.end()];
        match &self.undo {
            Undo::Small(bytes) => range.copy_from_slice(&bytes[..range.len()]),
            Undo::Large(bytes) => range.copy_from_slice(bytes),
            Undo::Flip(mask) => {
                for (byte, flips) in range.iter_mut().zip(mask.to_le_bytes()) {
                    *byte ^= flips;
                }
            }
        }
    }
}

/// The undo data of one patch.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Returns the pieces that a range overlaps, as a range of indices.
    fn met(&self, start: usize, end: usize) -> std::ops::Range<usize> {
        let from = self.0.partition_point(|p| p.end() <= start);
        let to = from + self.0[from..].partition_point(|p| p.start() < end);
        from..to
    }

    /// Returns the range from the first byte to the end of the last piece.
    pub fn hull(&self) -> (u16, u16) {
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) => (first.offset, last.offset + last.len),
            _ => (0, 0),
        }
    }

    /// Returns the size of the undo data, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.iter().map(|p| usize::from(p.len)).sum()
    }

    /// Returns the changes that they undo.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.0.iter().map(Piece::change)
    }

    /// Returns the number of bytes that the patch has changed of those at `offset`, if writing `bytes`
    /// there takes back its changes of them.
    pub fn taken_back_by(&self, offset: usize, bytes: &[u8]) -> Option<usize> {
        let end = offset + bytes.len();
        let mut len = 0;
        for piece in &self.0[self.met(offset, end)] {
            let (from, to) = (piece.start().max(offset), piece.end().min(end));
            let old = match &piece.undo {
                Undo::Small(old) => &old[..],
                Undo::Large(old) => old,
                Undo::Flip(_) => return None,
            };
            if old[from - piece.start()..to - piece.start()] != bytes[from - offset..to - offset] {
                return None;
            }
            len += to - from;
        }
        Some(len)
    }

    /// Returns true if `change` overlaps a change of the patch. Different bits do not overlap.
    pub fn overlap(&self, change: Change) -> bool {
        let (start, end) = change.range();
        self.0[self.met(start, end)].iter().any(|p| match (&p.undo, change) {
            (Undo::Flip(theirs), Change::Bits { offset, mask }) if p.start() == offset => {
                theirs & mask != 0
            }
            (Undo::Flip(_), _) | (_, Change::Bits { .. }) => p.change().meets(change),
            _ => true,
        })
    }

    /// Returns true if one piece covers the whole of `change`.
    pub fn cover(&self, change: Change) -> bool {
        let (start, end) = change.range();
        let [piece] = &self.0[self.met(start, end)] else { return false };
        match (&piece.undo, change) {
            (Undo::Flip(theirs), Change::Bits { offset, mask }) => {
                piece.start() == offset && theirs & mask == mask
            }
            (Undo::Flip(_), Change::Bytes { .. }) => false,
            _ => piece.covers(start, end),
        }
    }

    /// Returns true if [`add`](Self::add) can take `change`: not if bits overlap a part of a byte
    /// range, since a change of other bits of the word need not wait for this patch.
    pub fn can_take(&self, change: Change) -> bool {
        let (start, end) = change.range();
        let met = &self.0[self.met(start, end)];
        match change {
            Change::Bytes { .. } => {
                met.iter().all(|p| !p.is_flip() || (start <= p.start() && p.end() <= end))
            }
            Change::Bits { offset, .. } => match met {
                [] => true,
                [p] if p.is_flip() => p.start() == offset,
                [p] => p.covers(start, end),
                _ => false,
            },
        }
    }

    /// Records the undo data of `change`, `content` being the block before the change. Returns the
    /// bytes of undo data added.
    pub fn add(&mut self, change: Change, content: &[u8]) -> usize {
        debug_assert!(self.can_take(change));
        let (start, end) = change.range();
        let met = self.met(start, end);
        match (&mut self.0[met.clone()], change) {
            ([], Change::Bits { mask, .. }) => {
                self.0.insert(met.start, Piece::new(start, end, Undo::Flip(mask)));
                end - start
            }
            ([], Change::Bytes { .. }) => {
                let undo = Undo::bytes(&content[start..end]);
                self.0.insert(met.start, Piece::new(start, end, undo));
                end - start
            }
            ([Piece { undo: Undo::Flip(theirs), .. }], Change::Bits { mask, .. }) => {
                *theirs ^= mask;
                0
            }
            ([piece], _) if !piece.is_flip() && piece.covers(start, end) => 0,
            (pieces, _) => {
                // Several pieces become one, with the content from before all of them.
                let whole_start = pieces[0].start().min(start);
                let whole_end = pieces[pieces.len() - 1].end().max(end);
                let mut old = content.to_vec();
                let mut replaced = 0;
                for piece in pieces {
                    piece.apply(&mut old);
                    replaced += usize::from(piece.len);
                }
                let undo = Undo::bytes(&old[whole_start..whole_end]);
                self.0.splice(met, [Piece::new(whole_start, whole_end, undo)]);
                whole_end - whole_start - replaced
            }
        }
    }

    /// Rolls the patch back in a copy of its block.
    pub fn apply(&self, content: &mut [u8]) {
        self.0.iter().for_each(|piece| piece.apply(content));
    }
}

/// The undo data of all patches. Lists are reused, so that a patch seldom allocates one.
#[derive(Debug, Default)]
pub(crate) struct UndoArena {
    lists: Vec<Pieces>,
    free: Vec<u32>,
    /// Size of the undo data in memory, in bytes.
    pub len_bytes: usize,
}

impl UndoArena {
    /// Maximum capacity, in pieces, of a released list.
    const KEEP: usize = 64;

    pub fn make(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.lists.push(Pieces::default());
            u32::try_from(self.lists.len() - 1).expect("fewer than 2^32 patches in memory")
        })
    }

    pub fn get(&self, list: u32) -> &Pieces {
        &self.lists[list as usize]
    }

    pub fn add(&mut self, list: u32, change: Change, content: &[u8]) -> usize {
        let added = self.lists[list as usize].add(change, content);
        self.len_bytes += added;
        added
    }

    pub fn release(&mut self, list: u32) {
        let pieces = &mut self.lists[list as usize];
        self.len_bytes -= pieces.len_bytes();
        pieces.0.clear();
        pieces.0.shrink_to(if self.free.len() < KEPT { Self::KEEP } else { 0 });
        self.free.push(list);
    }
}

impl UndoArena {
    /// Gives the memory of the arena back if no list is in use.
    pub fn shrink(&mut self) {
        if self.lists.len() > KEPT && self.free.len() == self.lists.len() {
            (self.lists, self.free) = Default::default();
        }
    }

    /// Returns the size of the arena, without the undo data.
    pub fn arena_bytes(&self) -> usize {
        self.lists.capacity() * size_of::<Pieces>() + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: usize = 64;

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..BLOCK, 1..24_usize)
                .prop_map(|(offset, len)| Change::Bytes { offset, len: len.min(BLOCK - offset) }),
            (0..BLOCK / 4, 1..=u32::MAX)
                .prop_map(|(word, mask)| Change::Bits { offset: word * 4, mask }),
        ]
    }

    proptest! {
        /// Rolling a patch back gives the old block, except for bits that others flipped meanwhile
        /// in words of which it flipped other bits.
        #[test]
        fn rolling_back_gives_the_old_block(
            old in proptest::collection::vec(any::<u8>(), BLOCK),
            changes in proptest::collection::vec((change(), any::<u8>()), 1..40),
            others in proptest::collection::vec((0..BLOCK / 4, any::<u32>()), 0..8),
        ) {
            let (mut pieces, mut content, mut bytes) = (Pieces::default(), old.clone(), 0);
            // Bits of others, which the patch may not change.
            let mut taken = [0_u8; BLOCK];
            for (change, value) in changes {
                let touched = pieces.overlap(change);
                prop_assert!(touched || !pieces.cover(change), "what is covered is touched");
                if !pieces.can_take(change) {
                    prop_assert!(!pieces.cover(change), "what is covered can be taken");
                    continue;
                }
                bytes += pieces.add(change, &content);
                prop_assert_eq!(bytes, pieces.len_bytes());
                match change {
                    Change::Bytes { offset, len } => {
                        content[offset..offset + len].fill(value);
                        taken[offset..offset + len].fill(0xFF);
                    }
                    Change::Bits { offset, mask } => {
                        for (i, flips) in mask.to_le_bytes().into_iter().enumerate() {
                            content[offset + i] ^= flips;
                            taken[offset + i] |= flips;
                        }
                    }
                }
                prop_assert!(pieces.0.windows(2).all(|w| w[0].end() <= w[1].start()), "disjoint");
            }
            let mut expected = old;
            for (word, mask) in others {
                for (i, flips) in mask.to_le_bytes().into_iter().enumerate() {
                    let at = word * 4 + i;
                    let free = flips & !taken[at];
                    content[at] ^= free;
                    expected[at] ^= free;
                }
            }
            pieces.apply(&mut content);
            prop_assert_eq!(content, expected);
        }
    }

    #[test]
    fn a_change_has_its_bits_and_no_others() {
        let words = |change: Change| change.words().collect::<Vec<_>>();
        assert_eq!(words(Change::Bytes { offset: 4, len: 8 }), [(1, !0), (2, !0)]);
        assert_eq!(words(Change::Bytes { offset: 5, len: 2 }), [(1, 0x00FF_FF00)]);
        assert_eq!(words(Change::Bytes { offset: 7, len: 2 }), [(1, 0xFF00_0000), (2, 0xFF)]);
        assert_eq!(words(Change::Bits { offset: 8, mask: 0x81 }), [(2, 0x81)]);
        let across = Change::Bits { offset: 9, mask: 0x8000_0001 };
        assert_eq!(words(across), [(2, 0x100), (3, 0x80)]);
        assert_eq!(words(Change::Bits { offset: 8, mask: 0 }), []);
        assert!(across.meets(Change::Bytes { offset: 9, len: 1 }));
        assert!(!across.meets(Change::Bytes { offset: 10, len: 2 }));
        assert!(across.meets(Change::Bits { offset: 12, mask: 0x80 }));
        assert!(!across.meets(Change::Bits { offset: 12, mask: 0x7F }));
    }

    #[test]
    fn bits_that_meet_a_part_of_a_byte_range_are_not_taken() {
        let mut pieces = Pieces::default();
        pieces.add(Change::Bytes { offset: 0, len: 6 }, &[0; BLOCK]);
        assert!(pieces.can_take(Change::Bits { offset: 0, mask: 1 }), "within it");
        assert!(!pieces.can_take(Change::Bits { offset: 4, mask: 1 }), "half within it");
        pieces.add(Change::Bits { offset: 8, mask: 1 }, &[0; BLOCK]);
        assert!(!pieces.can_take(Change::Bytes { offset: 10, len: 4 }), "half of the word");
        assert!(pieces.can_take(Change::Bytes { offset: 5, len: 7 }), "the whole word");
    }
}
