//! Block group descriptors: 32 bytes each, in a table behind the superblock.

use super::bytes::{get16, get32, put16, put32};
use super::geometry::Geometry;
use weft_unix::{Error, Result};

/// One block group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupDesc {
    /// 0x00: block of the block bitmap.
    pub block_bitmap: u32,
    /// 0x04: block of the inode bitmap.
    pub inode_bitmap: u32,
    /// 0x08: first block of the inode table.
    pub inode_table: u32,
    /// 0x0C: free blocks.
    pub free_blocks: u16,
    /// 0x0E: free inodes.
    pub free_inodes: u16,
    /// 0x10: directories.
    pub used_dirs: u16,
    /// 0x12: flags (of `uninit_bg`; 0 on volumes this crate changes).
    pub flags: u16,
}

impl GroupDesc {
    /// Offset of [`free_blocks`](Self::free_blocks) within the descriptor; free inodes and used
    /// directories follow it.
    pub const FREE_BLOCKS_OFFSET: usize = 0x0C;

    /// Reads the fields, without judging them: see [`check`](Self::check).
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            block_bitmap: get32(bytes, 0x00),
            inode_bitmap: get32(bytes, 0x04),
            inode_table: get32(bytes, 0x08),
            free_blocks: get16(bytes, 0x0C),
            free_inodes: get16(bytes, 0x0E),
            used_dirs: get16(bytes, 0x10),
            flags: get16(bytes, 0x12),
        }
    }

    /// Puts the fields over a descriptor's bytes.
    pub fn encode_into(&self, bytes: &mut [u8]) {
        put32(bytes, 0x00, self.block_bitmap);
        put32(bytes, 0x04, self.inode_bitmap);
        put32(bytes, 0x08, self.inode_table);
        put16(bytes, 0x0C, self.free_blocks);
        put16(bytes, 0x0E, self.free_inodes);
        put16(bytes, 0x10, self.used_dirs);
        put16(bytes, 0x12, self.flags);
    }

    /// The three counts as they lie from [`FREE_BLOCKS_OFFSET`](Self::FREE_BLOCKS_OFFSET) on.
    #[must_use]
    pub fn encode_counts(&self) -> [u8; 6] {
        let mut out = [0; 6];
        put16(&mut out, 0, self.free_blocks);
        put16(&mut out, 2, self.free_inodes);
        put16(&mut out, 4, self.used_dirs);
        out
    }

    /// Checks that bitmaps and inode table lie within group `group` and apart from each other
    /// and from the superblock and descriptors.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, group: u32, geometry: &Geometry) -> Result<()> {
        let (desc_block, _) = geometry.desc_position(group);
        let bad = |problem: String| {
            Err(Error::corrupt(format!("descriptor of group {group}"), desc_block, problem))
        };
        let first = geometry.group_first_block(group) + geometry.group_overhead_blocks(group);
        let end = geometry.group_first_block(group) + geometry.group_blocks(group);
        let table_blocks = u64::from(geometry.inode_table_blocks());
        let (bb, ib) = (u64::from(self.block_bitmap), u64::from(self.inode_bitmap));
        let table = u64::from(self.inode_table);
        for (what, block) in [("block bitmap", bb), ("inode bitmap", ib)] {
            if block < first || block >= end {
                return bad(format!(
                    "its {what} is at block {block}, outside blocks {first} to {}",
                    end - 1
                ));
            }
            if block >= table && block < table + table_blocks {
                return bad(format!("its {what} is at block {block}, inside the inode table"));
            }
        }
        if bb == ib {
            return bad(format!("both bitmaps are at block {bb}"));
        }
        if table < first || table + table_blocks > end {
            return bad(format!(
                "its inode table is at blocks {table} to {}, outside blocks {first} to {}",
                table + table_blocks - 1,
                end - 1
            ));
        }
        Ok(())
    }
}
