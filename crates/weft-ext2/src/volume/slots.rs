//! The slots of inodes: reading and writing them.

use super::state::Volume;
use crate::layout::{Inode, InodeFlags, WANT_EXTRA_BYTES};
use std::ops::Range;
use weft_block::SECTOR_BYTES;
use weft_patch::{BlockNr, Op, PatchId};
use weft_unix::{Error, Result};

/// The largest inode slot: a block.
const MAX_SLOT_BYTES: usize = 4096;

/// Length of a part of the inode table that is read together: the files of one directory have their
/// inodes side by side, and a request takes hardly longer for it. (Linux reads as much on volumes
/// of 4 KiB blocks.)
const TABLE_PART_BYTES: u32 = 128 << 10;

impl Volume {
    /// Returns the block and the byte offset of an inode's slot.
    pub fn inode_position(&self, ino: u32) -> Result<(BlockNr, usize)> {
        let (group, index) = self.geometry.inode_group(ino).ok_or_else(|| {
            Error::corrupt(format!("inode {ino}"), 0, "its number is outside the volume")
        })?;
        let table = self.groups[group as usize].desc.inode_table;
        let (block, offset) = self.geometry.inode_position(table, index);
        Ok((BlockNr(block), offset))
    }

    /// Returns the blocks of the part of the inode table that an inode lies in. The table is divided
    /// into parts of equal length.
    fn table_part(&self, ino: u32) -> Option<Range<BlockNr>> {
        let (group, index) = self.geometry.inode_group(ino)?;
        let len = TABLE_PART_BYTES / self.geometry.block_bytes;
        let from = index * self.geometry.inode_bytes / TABLE_PART_BYTES * len;
        let to = (from + len).min(self.geometry.inode_table_blocks());
        let table = self.groups[group as usize].desc.inode_table;
        Some(BlockNr(u64::from(table + from))..BlockNr(u64::from(table + to)))
    }

    /// Reads an inode, which may be free.
    pub fn read_raw_inode(&mut self, op: &mut Op<'_>, ino: u32) -> Result<Inode> {
        let (nr, offset) = self.inode_position(ino)?;
        if op.cached(nr).is_none()
            && let Some(part) = self.table_part(ino)
        {
            op.read_ahead(part);
        }
        let slot_bytes = self.geometry.inode_bytes as usize;
        let slot = op.peek(nr)?.get(offset..offset + slot_bytes).unwrap_or_default();
        let inode = Inode::parse(slot)
            .map_err(|problem| Error::corrupt(format!("inode {ino}"), nr.0, problem))?;
        let foreign = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA | InodeFlags::EA_INODE;
        if inode.flags.intersects(foreign) && inode.links > 0 {
            return Err(Error::corrupt(
                format!("inode {ino}"),
                nr.0,
                format!("its flags {:#x} are not ext2's", inode.flags.bits()),
            ));
        }
        Ok(inode)
    }

    /// Writes an inode's fields as one change.
    pub fn write_raw_inode(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        inode: &Inode,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, offset) = self.inode_position(ino)?;
        let slot_bytes = self.geometry.inode_bytes as usize;
        let len = inode.fields_len_bytes(slot_bytes);
        let mut slot = [0_u8; 256];
        let slot = &mut slot[..slot_bytes.min(256)];
        slot.copy_from_slice(op.peek(nr)?.get(offset..offset + slot.len()).unwrap_or_default());
        inode.encode_into(slot);
        Ok(op.write(nr, offset, &slot[..len.min(slot.len())], befores)?)
    }

    /// Writes the whole slot of a new inode: its fields, and zeroes over the rest.
    pub(super) fn init_raw_inode(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        inode: &Inode,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, offset) = self.inode_position(ino)?;
        let mut slot = [0_u8; MAX_SLOT_BYTES];
        let slot = &mut slot[..(self.geometry.inode_bytes as usize).min(MAX_SLOT_BYTES)];
        inode.encode_into(slot);
        Ok(op.write(nr, offset, slot, befores)?)
    }

    /// Returns the extra size of new inodes in bytes.
    pub fn new_extra_bytes(&self) -> u16 {
        let room = self.geometry.inode_bytes.saturating_sub(128);
        if room == 0 {
            return 0;
        }
        let want = WANT_EXTRA_BYTES.max(self.sb.want_extra_isize).max(self.sb.min_extra_isize);
        u16::try_from(room).map_or(want, |room| want.min(room))
    }

    /// Reads the bytes of the slot from the end of the fields on, where attributes can lie.
    pub fn read_inode_tail(&self, op: &mut Op<'_>, ino: u32, inode: &Inode) -> Result<Vec<u8>> {
        let (nr, offset) = self.inode_position(ino)?;
        let from = 128 + usize::from(inode.extra_bytes);
        let to = self.geometry.inode_bytes as usize;
        if to <= 128 || from >= to || inode.extra_bytes == 0 {
            return Ok(Vec::new());
        }
        Ok(op.peek(nr)?.get(offset + from..offset + to).unwrap_or_default().to_vec())
    }

    /// Returns the number of bytes of that part that attributes may be written to: those in the
    /// sector of the fields. In an inode of several sectors a torn write could bring an entry
    /// without its value.
    pub fn inode_tail_room_bytes(&self, inode: &Inode) -> usize {
        let from = 128 + usize::from(inode.extra_bytes);
        if inode.extra_bytes == 0 {
            return 0;
        }
        let slot_bytes = self.geometry.inode_bytes as usize;
        let to = if from < SECTOR_BYTES { slot_bytes.min(SECTOR_BYTES) } else { slot_bytes };
        to.saturating_sub(from)
    }

    /// Writes an inode's fields and the attributes behind them as one change.
    pub(super) fn write_raw_inode_with_tail(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        inode: &Inode,
        tail: &[u8],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, offset) = self.inode_position(ino)?;
        let from = 128 + usize::from(inode.extra_bytes);
        let mut slot = op.read_range(nr, offset..offset + from + tail.len())?.to_vec();
        inode.encode_into(&mut slot);
        slot[from..].copy_from_slice(tail);
        Ok(op.write(nr, offset, &slot, befores)?)
    }
}
