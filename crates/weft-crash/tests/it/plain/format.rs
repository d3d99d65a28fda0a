//! The plain format's volume: its bitmaps, and its counts.

use super::layout::{BLOCK_BITS, DIRECT, FIRST_DATA, INODE_BITS, MAGIC, inodes};
use std::collections::HashSet;
use weft_patch::{BlockNr, Op, PatchId, Pending};
use weft_unix::{Discard, Error, Format, Limits, Orphans, Patches, Result, Space, push_patch};
use weft_vfs::{Error as FsError, Ino};

#[derive(Debug)]
pub struct Plain {
    pub block_bytes: usize,
    blocks: u64,
    blocks_free: u64,
    inodes_free: u64,
    freed_blocks: Pending,
    freed_inodes: Pending,
    /// The numbers on these lists.
    busy: [HashSet<u64>; 2],
    damage: Option<String>,
}

pub const BLOCKS: usize = 0;
pub const INODES: usize = 1;

impl Plain {
    pub fn load(op: &mut Op<'_>, block_bytes: usize, blocks: u64) -> Result<Self> {
        if !op.peek(BlockNr(0))?.starts_with(MAGIC) {
            return Err(Error::corrupt("superblock", 0, "no plain volume"));
        }
        let ones = |op: &mut Op<'_>, nr| -> Result<u64> {
            Ok(op.peek(nr)?.iter().map(|byte| u64::from(byte.count_ones())).sum())
        };
        let used = [ones(op, BLOCK_BITS)?, ones(op, INODE_BITS)?];
        Ok(Self {
            block_bytes,
            blocks,
            blocks_free: blocks - used[BLOCKS],
            inodes_free: inodes(block_bytes) - used[INODES],
            freed_blocks: Pending::default(),
            freed_inodes: Pending::default(),
            busy: [HashSet::new(), HashSet::new()],
            damage: None,
        })
    }

    pub fn sectors(&self) -> u64 {
        self.block_bytes as u64 / 512
    }

    /// Takes the first free bit of a bitmap.
    pub fn take(&mut self, op: &mut Op<'_>, which: usize, befores: &mut Patches) -> Result<u64> {
        self.settle(op);
        let (nr, end) = if which == BLOCKS {
            (BLOCK_BITS, self.blocks)
        } else {
            (INODE_BITS, inodes(self.block_bytes))
        };
        let bits = op.peek(nr)?;
        let free = |n: &u64| bits[*n as usize / 8] >> (n % 8) & 1 == 0;
        let found = (0..end).filter(|n| !self.busy[which].contains(n)).find(free);
        let n = found.ok_or(FsError::NoSpace)?;
        push_patch(befores, op.flip(nr, n as usize / 32 * 4, 1 << (n % 32), &[])?);
        if which == BLOCKS {
            self.blocks_free -= 1;
        } else {
            self.inodes_free -= 1;
        }
        Ok(n)
    }

    pub fn give(&mut self, op: &mut Op<'_>, which: usize, n: u64, cleared: PatchId) -> Result<()> {
        let nr = if which == BLOCKS { BLOCK_BITS } else { INODE_BITS };
        op.flip(nr, n as usize / 32 * 4, 1 << (n % 32), &[cleared])?;
        self.busy[which].insert(n);
        if which == BLOCKS {
            op.free(BlockNr(n), cleared);
            self.blocks_free += 1;
            self.freed_blocks.add(n, 1, cleared);
        } else {
            self.inodes_free += 1;
            self.freed_inodes.add(n, 1, cleared);
        }
        Ok(())
    }
}

impl Orphans for Plain {}
impl Discard for Plain {}

impl Format for Plain {
    fn limits(&self) -> Limits {
        Limits {
            root: Ino(1),
            block_bytes: self.block_bytes as u32,
            file_max_bytes: ((DIRECT + self.block_bytes / 4) * self.block_bytes) as u64,
            target_max_bytes: self.block_bytes - 1,
            name_max_bytes: 255,
            links_max: u32::from(u16::MAX),
            inodes_max: inodes(self.block_bytes),
            time_unit_nanos: 1,
            has_attributes: true,
        }
    }

    fn space(&self) -> Space {
        Space {
            blocks: self.blocks - FIRST_DATA,
            blocks_free: self.blocks_free,
            blocks_reserved: 0,
            inodes: inodes(self.block_bytes),
            inodes_free: self.inodes_free,
        }
    }

    fn at_once(&self) -> (u64, u64) {
        (
            self.blocks_free.saturating_sub(self.freed_blocks.count()),
            self.inodes_free.saturating_sub(self.freed_inodes.count()),
        )
    }

    fn has_pending(&self) -> bool {
        !self.freed_blocks.is_empty() || !self.freed_inodes.is_empty()
    }

    fn settle(&mut self, op: &Op<'_>) {
        for (which, freed) in
            [&mut self.freed_blocks, &mut self.freed_inodes].into_iter().enumerate()
        {
            for (n, _) in freed.take_durable(op) {
                self.busy[which].remove(&n);
            }
        }
    }

    fn note_damage(&mut self, what: String) {
        self.damage.get_or_insert(what);
    }

    fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}
