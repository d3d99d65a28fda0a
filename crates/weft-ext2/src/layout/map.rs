//! The block map of an inode: twelve slots that point at data, then trees of one, two and three
//! levels of indirect blocks.

use super::geometry::Geometry;
use super::inode::{DIRECT_SLOTS, SLOT_INDIRECT};

/// The position of the pointer to one block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapPath {
    /// Slot of the inode.
    pub slot: usize,
    /// Levels of indirect blocks.
    pub depth: usize,
    /// Index in the indirect block of each level, from the inode on.
    pub index: [usize; 3],
}

impl MapPath {
    /// Returns the position of the pointer to block `n` of a file, with `p` pointers to an indirect
    /// block; `None` past the longest file.
    pub fn new(n: u64, p: u64) -> Option<Self> {
        let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let direct = DIRECT_SLOTS as u64;
        if n < direct {
            return Some(Self { slot: at(n), depth: 0, index: [0; 3] });
        }
        let n = n - direct;
        if n < p {
            return Some(Self { slot: SLOT_INDIRECT, depth: 1, index: [at(n), 0, 0] });
        }
        let n = n - p;
        if n < p * p {
            let index = [at(n / p), at(n % p), 0];
            return Some(Self { slot: SLOT_INDIRECT + 1, depth: 2, index });
        }
        let n = n - p * p;
        if n < p * p * p {
            let index = [at(n / (p * p)), at(n / p % p), at(n % p)];
            return Some(Self { slot: SLOT_INDIRECT + 2, depth: 3, index });
        }
        None
    }

    /// The indexes in the indirect blocks on the way, from the inode on.
    pub fn indexes(&self) -> &[usize] {
        self.index.get(..self.depth).unwrap_or(&[])
    }
}

/// Returns the number of bytes that an inode's map can hold.
pub(crate) fn mappable_bytes(geometry: &Geometry) -> u64 {
    let p = u64::from(geometry.pointers_per_block());
    (DIRECT_SLOTS as u64 + p + p * p + p * p * p) * u64::from(geometry.block_bytes)
}
