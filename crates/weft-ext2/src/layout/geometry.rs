//! The positions of block groups, descriptors and inodes. Made from a checked superblock, so its
//! arithmetic cannot overflow.

use super::features::{Compat, Features, RoCompat};

/// Size of a descriptor without the `64bit` feature.
pub const GROUP_DESC_BYTES: usize = 32;

/// The fixed measures of a volume. All block numbers count from the start of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Block size in bytes: 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Blocks of the volume, those before `first_data_block` included.
    pub blocks: u64,
    /// The block that holds the superblock: 1 with 1 KiB blocks, otherwise 0.
    pub first_data_block: u32,
    /// Blocks of a group (the last one may have fewer).
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Inodes of the volume.
    pub inodes: u32,
    /// Size of an inode in bytes: a power of two from 128 to the block size.
    pub inode_bytes: u32,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// Number of groups.
    pub groups: u32,
    /// Blocks reserved behind the descriptor table for it to grow into.
    pub reserved_gdt_blocks: u32,
    /// The first meta group whose descriptors lie in itself (`meta_bg`); those of the groups before
    /// it lie behind the superblocks. `u32::MAX` without the feature.
    pub first_meta_group: u32,
    /// The groups that hold the backups under `sparse_super2`.
    pub backup_groups: [u32; 2],
    /// The feature sets (they decide where backups lie).
    pub features: Features,
}

impl Geometry {
    /// Descriptors in one block.
    #[must_use]
    pub fn descs_per_block(&self) -> u32 {
        self.block_bytes / 32
    }

    /// Blocks of the descriptor table (of one copy of it).
    #[must_use]
    pub fn desc_blocks(&self) -> u32 {
        self.groups.div_ceil(self.descs_per_block())
    }

    /// Block and byte offset of the primary copy of a group's descriptor.
    #[must_use]
    pub fn desc_position(&self, group: u32) -> (u64, usize) {
        let per_block = self.descs_per_block();
        (self.desc_block(group / per_block), (group % per_block) as usize * GROUP_DESC_BYTES)
    }

    /// The primary copy of block `index` of the descriptor table.
    #[must_use]
    pub fn desc_block(&self, index: u32) -> u64 {
        if index < self.first_meta_group {
            return u64::from(self.first_data_block) + 1 + u64::from(index);
        }
        self.meta_desc_block(index * self.descs_per_block())
    }

    /// The other copies of block `index` of the descriptor table.
    #[must_use]
    pub fn desc_backups(&self, index: u32) -> Vec<u64> {
        if index < self.first_meta_group {
            let holders = (1..self.groups).filter(|&group| self.has_super(group));
            return holders
                .map(|group| self.group_first_block(group) + 1 + u64::from(index))
                .collect();
        }
        let first = index * self.descs_per_block();
        let holders = [first + 1, first + self.descs_per_block() - 1];
        let holders = holders.into_iter().filter(|&group| group < self.groups);
        holders.map(|group| self.meta_desc_block(group)).collect()
    }

    /// Returns the block of a group that can hold a copy of the descriptors of its meta group.
    fn meta_desc_block(&self, group: u32) -> u64 {
        self.group_first_block(group) + u64::from(self.has_super(group))
    }

    /// Reports whether a group holds a copy of superblock and descriptors.
    #[must_use]
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) || group == 1 {
            return true;
        }
        [3_u32, 5, 7].iter().any(|&base| {
            let mut n = group;
            while n.is_multiple_of(base) {
                n /= base;
            }
            n == 1
        })
    }

    /// First block of a group.
    #[must_use]
    pub fn group_first_block(&self, group: u32) -> u64 {
        u64::from(self.first_data_block) + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group: fewer in the last one.
    #[must_use]
    pub fn group_blocks(&self, group: u32) -> u64 {
        let first = self.group_first_block(group);
        self.blocks.saturating_sub(first).min(u64::from(self.blocks_per_group))
    }

    /// Blocks that superblock, descriptors and their reserve take at the start of a group.
    #[must_use]
    pub fn group_overhead_blocks(&self, group: u32) -> u64 {
        let superblocks = u64::from(self.has_super(group));
        let per_block = self.descs_per_block();
        if group / per_block < self.first_meta_group {
            let descs = self.desc_blocks().min(self.first_meta_group);
            return superblocks * (1 + u64::from(descs) + u64::from(self.reserved_gdt_blocks));
        }
        // The first two groups and the last one of a meta group hold its block of descriptors.
        let within = group % per_block;
        superblocks + u64::from(within <= 1 || within == per_block - 1)
    }

    /// Blocks of one group's inode table.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.block_bytes / self.inode_bytes)
    }

    /// The group of a block, and its bit in that group's bitmap; `None` outside the volume.
    #[must_use]
    pub fn block_group(&self, block: u64) -> Option<(u32, u32)> {
        if block >= self.blocks {
            return None;
        }
        let rel = block.checked_sub(u64::from(self.first_data_block))?;
        let per_group = u64::from(self.blocks_per_group);
        Some((u32::try_from(rel / per_group).ok()?, u32::try_from(rel % per_group).ok()?))
    }

    /// Reports whether a number is one of a group's blocks at all (a pointer to it may still be
    /// wrong: see the allocator's map of metadata blocks).
    #[must_use]
    pub fn contains_block(&self, block: u64) -> bool {
        block > u64::from(self.first_data_block) && block < self.blocks
    }

    /// The group of an inode, and its bit in that group's bitmap; `None` if there is no such
    /// inode.
    #[must_use]
    pub fn inode_group(&self, ino: u32) -> Option<(u32, u32)> {
        if ino > self.inodes {
            return None;
        }
        let index = ino.checked_sub(1)?;
        Some((index / self.inodes_per_group, index % self.inodes_per_group))
    }

    /// The inode with bit `index` in `group`'s bitmap.
    #[must_use]
    pub fn inode_number(&self, group: u32, index: u32) -> u32 {
        group * self.inodes_per_group + index + 1
    }

    /// Block and byte offset of the inode with bit `index` in a group whose inode table starts
    /// at `inode_table`.
    #[must_use]
    pub fn inode_position(&self, inode_table: u32, index: u32) -> (u64, usize) {
        let per_block = self.block_bytes / self.inode_bytes;
        (
            u64::from(inode_table) + u64::from(index / per_block),
            ((index % per_block) * self.inode_bytes) as usize,
        )
    }

    /// Block numbers that fit in one indirect block.
    #[must_use]
    pub fn pointers_per_block(&self) -> u32 {
        self.block_bytes / 4
    }

    /// The largest size of a regular file in bytes: what triple indirection can map, and what
    /// the count of 512-byte units (32 bits) can hold with all its indirect blocks.
    #[must_use]
    pub fn max_file_bytes(&self) -> u64 {
        let block = u64::from(self.block_bytes);
        let p = u64::from(self.pointers_per_block());
        let mapped = 12 + p + p * p + p * p * p;
        // Blocks that 2^32 - 1 units of 512 bytes allow, less the indirect blocks they need.
        let all = u64::from(u32::MAX) / (block / 512);
        let rest = all.saturating_sub(12);
        let indirect = 1 + 1 + (rest.div_ceil(p)) + 1 + rest.div_ceil(p * p);
        mapped.min(all.saturating_sub(indirect)) * block
    }
}
