//! The index of a directory in memory: the positions of its names, and the room in its blocks.

use super::record::Place;
use crate::layout::dirent_len;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use weft_patch::{BlockNr, Op, PatchId};

/// The classes of gaps by their size, in units of 4 bytes up to the longest entry.
const CLASSES: usize = dirent_len(255) / 4 + 1;

/// Names whose clearing is not durable, by their hashes.
#[derive(Debug, Default)]
pub(crate) struct Cleared {
    pub by_hash: HashMap<u64, PatchId>,
    /// The number of names at which those whose clearing is durable are forgotten.
    forget_at: usize,
}

impl Cleared {
    pub fn note(&mut self, op: &Op<'_>, hash: u64, cleared: PatchId) {
        self.by_hash.insert(hash, cleared);
        if self.by_hash.len() >= self.forget_at {
            self.by_hash.retain(|_, patch| !op.is_durable(*patch));
            self.forget_at = (2 * self.by_hash.len()).max(16);
        }
    }

    fn all_durable(&self, op: &Op<'_>) -> bool {
        self.by_hash.values().all(|patch| op.is_durable(*patch))
    }
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub hash: u64,
    pub offset: u32,
    pub ino: u32,
}

/// The contents of a directory's blocks: the position of each name, and the room in each block.
#[derive(Debug)]
pub(crate) struct DirIndex {
    pub names: HashTable<Slot>,
    pub hasher: DefaultHashBuilder,
    pub blocks: Vec<u32>,
    /// The largest gap of each block, in bytes.
    pub room: Vec<u16>,
    /// For each size of a gap, the first block that may have one.
    pub first_with: [u32; CLASSES],
    pub dotdot: Place,
    pub cleared: Cleared,
}

impl DirIndex {
    /// Makes the index of an empty directory without blocks.
    pub fn new() -> Self {
        Self {
            names: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            blocks: Vec::new(),
            room: Vec::new(),
            first_with: [u32::MAX; CLASSES],
            dotdot: Place { nr: BlockNr(0), at: 0, offset: 0 },
            cleared: Cleared::default(),
        }
    }

    /// Reports whether the blocks on the disk say all that it knows.
    pub fn is_settled(&self, op: &Op<'_>) -> bool {
        self.cleared.all_durable(op)
    }

    pub fn set_room(&mut self, block: usize, room: usize) {
        if let Some(r) = self.room.get_mut(block) {
            *r = u16::try_from(room).unwrap_or(u16::MAX);
        }
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        for first in &mut self.first_with[..=(room / 4).min(CLASSES - 1)] {
            *first = (*first).min(block);
        }
    }

    /// Returns the first block with a gap of `need` bytes.
    pub fn block_with(&mut self, need: usize) -> Option<usize> {
        let first = &mut self.first_with[(need / 4).min(CLASSES - 1)];
        let found = self.room.iter().skip(*first as usize).position(|r| usize::from(*r) >= need);
        let at = found.map_or(self.room.len(), |i| *first as usize + i);
        *first = u32::try_from(at).unwrap_or(u32::MAX);
        found.map(|_| at)
    }
}
