//! Records of a directory block: their positions, and the bytes that a change of one relies on.

use crate::layout::{DIRENT_HEADER_BYTES, RawDirent};
use smallvec::SmallVec;
use std::ops::Range;
use weft_patch::{BlockNr, PatchId};

/// The unit within which a write is not torn.
pub(super) const SECTOR: usize = 512;
/// The smallest record that can hold a name.
pub(super) const MIN_RECORD: usize = 12;

/// The position of an entry: its block, and its byte offsets in the block and in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub nr: BlockNr,
    pub at: usize,
    pub offset: u32,
}

/// An entry whose structure is written and whose inode number is not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserved {
    pub place: Place,
    pub hash: u64,
    pub structure: PatchId,
}

/// The bytes of a block that lead to a record: the lengths of the records before it in its sector.
/// Those of sectors before do not matter, as every sector begins with a record.
#[derive(Debug, Default)]
pub(super) struct Lengths(pub SmallVec<[Range<usize>; 32]>);

impl Lengths {
    /// Adds the length of a record that a walk has come to.
    pub fn pass(&mut self, record: &RawDirent<'_>) {
        if record.offset.is_multiple_of(SECTOR) {
            self.0.clear();
        }
        self.0.push(record.offset + 4..record.offset + 6);
    }

    /// Adds the whole header of a record: its inode number and the length of its name decide, too.
    pub fn whole(&mut self, record: &RawDirent<'_>) {
        self.0.push(record.offset..record.offset + DIRENT_HEADER_BYTES);
    }
}

/// The sector of its block that a byte lies in.
pub(super) fn sector(at: usize) -> usize {
    at / SECTOR
}
