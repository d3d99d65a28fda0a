//! Reads and writes of the volume's blocks, through the blocks that a journal replayed in memory.

use crate::layout::{Geometry, GroupDesc};
use crate::{Error, Result};
use hashbrown::HashMap;
use weft_block::BlockDevice;

/// Bytes read at once where blocks are read in a row.
const CHUNK_BYTES: u64 = 1 << 20;

/// The volume as the check sees it.
pub(crate) struct Volume<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) geometry: Geometry,
    /// Blocks that the journal holds newer than their places; empty once it has been replayed.
    pub(crate) overlay: HashMap<u64, Box<[u8]>>,
}

impl Volume<'_> {
    /// Bytes of a block.
    pub(crate) fn block_len(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    /// Reads a block into `buf`, whose length is set.
    pub(crate) fn read(&self, block: u64, buf: &mut Vec<u8>) -> Result<()> {
        buf.resize(self.block_len(), 0);
        self.read_run(block, buf)
    }

    /// Reads blocks in a row; `buf` is a multiple of the block size.
    pub(super) fn read_run(&self, first: u64, buf: &mut [u8]) -> Result<()> {
        let len = self.block_len();
        let count = (buf.len() / len) as u64;
        if first.checked_add(count).is_none_or(|end| end > self.geometry.blocks) {
            return Err(Error::corrupt("block pointer", first, "out of the volume"));
        }
        self.device.read_at(buf, first * u64::from(self.geometry.block_bytes))?;
        if !self.overlay.is_empty() {
            for (block, to) in (first..).zip(buf.chunks_exact_mut(len)) {
                if let Some(newer) = self.overlay.get(&block) {
                    to.copy_from_slice(newer);
                }
            }
        }
        Ok(())
    }

    /// Writes a block in place.
    pub(super) fn write(&self, block: u64, content: &[u8]) -> Result<()> {
        debug_assert!(self.overlay.is_empty(), "the journal is replayed before a repair");
        if block >= self.geometry.blocks {
            return Err(Error::corrupt("block pointer", block, "out of the volume"));
        }
        Ok(self.device.write_at(content, block * u64::from(self.geometry.block_bytes))?)
    }

    /// Reads a block, lets `change` alter it, and writes it if it did.
    pub(super) fn update(&self, block: u64, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut buf = Vec::new();
        self.read(block, &mut buf)?;
        let before = buf.clone();
        change(&mut buf);
        if buf != before { self.write(block, &buf) } else { Ok(()) }
    }

    /// Reads the descriptor table's bytes.
    pub(super) fn descriptor_table(&self) -> Result<Vec<u8>> {
        let mut table = vec![0; self.geometry.desc_blocks() as usize * self.block_len()];
        for (index, block) in (0..).zip(table.chunks_exact_mut(self.block_len())) {
            self.read_run(self.geometry.desc_block(index), block)?;
        }
        Ok(table)
    }

    /// Writes the descriptor table's bytes to their primary copy.
    pub(super) fn write_descriptor_table(&self, table: &[u8]) -> Result<()> {
        for (index, block) in (0..).zip(table.chunks_exact(self.block_len())) {
            self.write(self.geometry.desc_block(index), block)?;
        }
        Ok(())
    }

    /// Reads the descriptors.
    pub(crate) fn descriptors(&self) -> Result<Vec<GroupDesc>> {
        Ok(self
            .descriptor_table()?
            .chunks_exact(crate::layout::GROUP_DESC_BYTES)
            .take(self.geometry.groups as usize)
            .map(GroupDesc::parse)
            .collect())
    }

    /// Calls `each` with every inode's number and slot, of the groups whose tables are `tables`
    /// (none for a group that cannot be read).
    pub(crate) fn for_each_inode(
        &self,
        tables: &[Option<u32>],
        mut each: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let geometry = &self.geometry;
        let per_block = geometry.block_bytes / geometry.inode_bytes;
        let chunk_blocks = CHUNK_BYTES / u64::from(geometry.block_bytes);
        let mut buf = Vec::new();
        for (group, table) in (0_u32..).zip(tables) {
            let Some(table) = table else { continue };
            let blocks = u64::from(geometry.inode_table_blocks());
            let mut done = 0;
            while done < blocks {
                let count = chunk_blocks.min(blocks - done);
                buf.resize(usize::try_from(count).unwrap_or(0) * self.block_len(), 0);
                self.read_run(u64::from(*table) + done, &mut buf)?;
                let first = u32::try_from(done).unwrap_or(u32::MAX) * per_block;
                for (index, slot) in (first..).zip(buf.chunks_exact(geometry.inode_bytes as usize))
                {
                    if index >= geometry.inodes_per_group {
                        break;
                    }
                    each(geometry.inode_number(group, index), slot)?;
                }
                done += count;
            }
        }
        Ok(())
    }
}
