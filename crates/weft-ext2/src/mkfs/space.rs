//! The blocks that are taken while a volume is made: the metadata at the start of each group, and
//! the runs allocated behind it.

use crate::layout::{GROUP_DESC_BYTES, Geometry, GroupDesc};
use crate::{Error, Result};

/// Blocks in use. Runs are handed out in rising order only.
#[derive(Debug)]
pub(super) struct Space<'a> {
    geometry: &'a Geometry,
    /// Runs taken behind the groups' metadata: first block and length. Rising.
    taken: Vec<(u64, u64)>,
}

impl<'a> Space<'a> {
    pub(super) fn new(geometry: &'a Geometry) -> Self {
        Self { geometry, taken: Vec::new() }
    }

    /// Returns a group's descriptor with the positions of its bitmaps and inode table.
    pub(super) fn desc(&self, group: u32) -> GroupDesc {
        let first =
            self.geometry.group_first_block(group) + self.geometry.group_overhead_blocks(group);
        let block = |i: u64| u32::try_from(first + i).unwrap_or(u32::MAX);
        GroupDesc {
            block_bitmap: block(0),
            inode_bitmap: block(1),
            inode_table: block(2),
            ..GroupDesc::default()
        }
    }

    /// Blocks of metadata at the start of a group.
    fn metadata_blocks(&self, group: u32) -> u64 {
        self.geometry.group_overhead_blocks(group)
            + 2
            + u64::from(self.geometry.inode_table_blocks())
    }

    /// Takes the first free block from `goal` on.
    pub(super) fn take(&mut self, goal: u64) -> Result<u64> {
        let after = self.taken.last().map_or(0, |&(first, len)| first + len);
        let mut block = goal.max(after).max(u64::from(self.geometry.first_data_block));
        loop {
            let Some((group, index)) = self.geometry.block_group(block) else {
                return Err(Error::Invalid("the volume is too small for its journal".into()));
            };
            let metadata = self.metadata_blocks(group);
            if u64::from(index) >= metadata {
                break;
            }
            block += metadata - u64::from(index);
        }
        match self.taken.last_mut() {
            Some((first, len)) if *first + *len == block => *len += 1,
            _ => self.taken.push((block, 1)),
        }
        Ok(block)
    }

    /// The bitmap of a group, with bits past its end set, and its number of free blocks.
    pub(super) fn bitmap(&self, group: u32) -> (Vec<u8>, u32) {
        let blocks = self.geometry.group_blocks(group);
        let first = self.geometry.group_first_block(group);
        let mut map = vec![0; self.geometry.block_bytes as usize];
        let mut used = set(&mut map, 0, self.metadata_blocks(group).min(blocks));
        for &(run, len) in &self.taken {
            let from = run.max(first);
            let to = (run + len).min(first + blocks);
            if from < to {
                used += set(&mut map, from - first, to - from);
            }
        }
        let free = u32::try_from(blocks.saturating_sub(used)).unwrap_or(0);
        let bits = u64::from(self.geometry.block_bytes) * 8;
        set(&mut map, blocks, bits.saturating_sub(blocks));
        (map, free)
    }

    /// The first group from which on `blocks` blocks are free, at best the middle one, as mke2fs
    /// places a journal.
    pub(super) fn middle(&self, blocks: u64) -> u64 {
        let mut free = 0;
        for group in (0..self.geometry.groups).rev() {
            free += self.geometry.group_blocks(group).saturating_sub(self.metadata_blocks(group));
            if free > blocks && group <= self.geometry.groups / 2 {
                return self.geometry.group_first_block(group);
            }
        }
        0
    }

    /// The descriptor table.
    pub(super) fn desc_table(&self, descs: &[GroupDesc]) -> Vec<u8> {
        let len = self.geometry.desc_blocks() as usize * self.geometry.block_bytes as usize;
        let mut table = vec![0; len];
        for (desc, slot) in descs.iter().zip(table.chunks_exact_mut(GROUP_DESC_BYTES)) {
            desc.encode_into(slot);
        }
        table
    }
}

/// Sets `len` bits of `map` from bit `from` on; returns `len`.
pub(super) fn set(map: &mut [u8], from: u64, len: u64) -> u64 {
    let mut bit = from;
    let end = from + len;
    while bit < end {
        let Some(byte) = usize::try_from(bit / 8).ok().and_then(|i| map.get_mut(i)) else { break };
        if bit.is_multiple_of(8) && bit + 8 <= end {
            *byte = 0xff;
            bit += 8;
        } else {
            *byte |= 1 << (bit % 8);
            bit += 1;
        }
    }
    len
}
