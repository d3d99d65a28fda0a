//! The state of a mounted volume in memory.

use super::bits::Bits;
use crate::layout::{Geometry, GroupDesc, SUPERBLOCK_BYTES, Superblock, bytes};
use hashbrown::HashMap;
use smallvec::SmallVec;
use weft_patch::{BlockNr, Op, PatchId, Pending};
use weft_unix::{Error, Result};
use weft_vfs::Ino;

/// One block group: its descriptor, and its bitmaps once they were needed.
#[derive(Debug)]
pub(super) struct Group {
    pub desc: GroupDesc,
    pub blocks: Option<Box<Bits>>,
    pub inodes: Option<Box<Bits>>,
    /// Set if the counts differ from those of the descriptor block.
    pub dirty: bool,
}

/// The state of a volume: superblock, groups, reservations, and freed blocks and inodes that wait.
#[derive(Debug)]
pub(crate) struct Volume {
    pub geometry: Geometry,
    pub sb: Superblock,
    /// Free blocks of all groups, as their descriptors say.
    pub free_blocks: u64,
    pub free_inodes: u64,
    pub(super) groups: Vec<Group>,
    pub(super) dirty_groups: SmallVec<[u32; 8]>,
    pub(super) pending_blocks: Pending,
    pub(super) pending_inodes: Pending,
    /// Attribute blocks whose count of inodes was lowered by changes that may not be durable.
    pub(super) unshared: Vec<(u32, PatchId)>,
    /// Reservations of files: first block and length, busy in the bitmap.
    pub(super) windows: HashMap<u32, (u32, u32)>,
    /// Inodes on the disk's list of orphaned inodes, the head last (with a journal).
    pub(super) orphans: Vec<Ino>,
    /// Free blocks that are held while the device is told of them.
    pub(super) held_blocks: u64,
    /// The description of the first damage that was found.
    pub damage: Option<String>,
    pub(super) zeroes: Box<[u8]>,
}

impl Volume {
    /// Reads superblock and descriptors. `device_bytes` must hold the volume.
    pub fn load(op: &mut Op<'_>, sb: Superblock, device_bytes: u64) -> Result<Self> {
        if sb.len_bytes() > device_bytes {
            return Err(Error::corrupt(
                "superblock",
                0,
                format!(
                    "the volume has {} bytes but the device only {device_bytes}",
                    sb.len_bytes()
                ),
            ));
        }
        let geometry = sb.geometry();
        let mut groups = Vec::new();
        let (mut free_blocks, mut free_inodes) = (0_u64, 0_u64);
        for group in 0..geometry.groups {
            let (block, offset) = geometry.desc_position(group);
            let desc = op.peek(BlockNr(block))?.get(offset..).map(GroupDesc::parse);
            let desc = desc.unwrap_or_default();
            desc.check(group, &geometry)?;
            free_blocks += u64::from(desc.free_blocks);
            free_inodes += u64::from(desc.free_inodes);
            groups.push(Group { desc, blocks: None, inodes: None, dirty: false });
        }
        Ok(Self {
            zeroes: vec![0; geometry.block_bytes as usize].into_boxed_slice(),
            geometry,
            sb,
            free_blocks,
            free_inodes,
            groups,
            dirty_groups: SmallVec::new(),
            pending_blocks: Pending::default(),
            pending_inodes: Pending::default(),
            unshared: Vec::new(),
            windows: HashMap::new(),
            orphans: Vec::new(),
            held_blocks: 0,
            damage: None,
        })
    }

    /// Returns the block size in bytes.
    pub fn block_bytes(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    /// Returns the block and the byte offset of the superblock.
    pub fn sb_position(&self) -> (BlockNr, usize) {
        if self.geometry.block_bytes == 1024 { (BlockNr(1), 0) } else { (BlockNr(0), 1024) }
    }

    /// Writes the superblock's fields.
    pub fn write_sb(&mut self, op: &mut Op<'_>, befores: &[PatchId]) -> Result<PatchId> {
        let (nr, offset) = self.sb_position();
        let mut raw = [0_u8; SUPERBLOCK_BYTES];
        raw.copy_from_slice(op.read_range(nr, offset..offset + SUPERBLOCK_BYTES)?);
        self.sb.encode_into(&mut raw);
        Ok(op.write(nr, offset, &raw, befores)?)
    }

    /// Writes the superblock's head of the list of orphaned inodes.
    pub fn write_last_orphan(&mut self, op: &mut Op<'_>) -> Result<PatchId> {
        let (nr, offset) = self.sb_position();
        Ok(op.write(nr, offset + 0xE8, &self.sb.last_orphan.to_le_bytes(), &[])?)
    }

    /// Brings the superblock's free counts up to date. Returns whether they changed.
    pub fn refresh_counts(&mut self) -> bool {
        let blocks = u32::try_from(self.free_blocks).unwrap_or(u32::MAX);
        let inodes = u32::try_from(self.free_inodes).unwrap_or(u32::MAX);
        let changed = (self.sb.free_blocks, self.sb.free_inodes) != (blocks, inodes);
        (self.sb.free_blocks, self.sb.free_inodes) = (blocks, inodes);
        changed
    }

    pub(super) fn touch(&mut self, group: u32) {
        let g = &mut self.groups[group as usize];
        if !g.dirty {
            g.dirty = true;
            self.dirty_groups.push(group);
        }
    }

    /// Checks that `block` can be the block of a file: on the volume, outside all metadata.
    pub fn check_block(&self, ino: Ino, block: u32) -> Result<()> {
        if self.is_data_block(block) {
            return Ok(());
        }
        Err(Error::corrupt(
            format!("inode {}", ino.0),
            u64::from(block),
            "a block pointer leads outside the volume or into its metadata",
        ))
    }

    /// Reports whether a block is one that files can have.
    pub fn is_data_block(&self, block: u32) -> bool {
        let Some((group, bit)) = self.geometry.block_group(u64::from(block)) else {
            return false;
        };
        let desc = &self.groups[group as usize].desc;
        let table = desc.inode_table;
        u64::from(bit) >= self.geometry.group_overhead_blocks(group)
            && block != desc.block_bitmap
            && block != desc.inode_bitmap
            && !(block >= table && block - table < self.geometry.inode_table_blocks())
    }

    /// Reads a number of an indirect block.
    pub(super) fn pointer(&self, op: &mut Op<'_>, nr: u32, index: usize) -> Result<u32> {
        Ok(bytes::get32(op.peek(BlockNr(u64::from(nr)))?, index * 4))
    }
}
