//! Inodes: choosing one, freeing it, reading and writing its slot.

use super::bits::{Bits, for_words32};
use super::{Patches, Volume, number, push_patch};
use crate::layout::{Inode, InodeFlags, ROOT_INO, WANT_EXTRA_BYTES};
use weft_block::SECTOR_BYTES;
use weft_patch::{BlockNr, Op, PatchId};
use weft_unix::{Error, Result};
use weft_vfs::{Error as FsError, FileKind, Ino};

/// The largest inode slot: a block.
const MAX_SLOT_BYTES: usize = 4096;

impl Volume {
    /// The inode bitmap of a group, read at its first use. Corrects the descriptor's count.
    pub(super) fn inode_bits(&mut self, op: &mut Op<'_>, group: u32) -> Result<&mut Bits> {
        let g = &self.groups[group as usize];
        if g.inodes.is_none() {
            let len = self.geometry.inodes_per_group;
            let raw = op.peek(BlockNr(u64::from(g.desc.inode_bitmap)))?;
            let mut bits = Box::new(Bits::new(raw, len));
            let free = u16::try_from(bits.free()).unwrap_or(u16::MAX);
            if group == 0 {
                bits.set_busy(0, self.geometry.first_inode - 1, true);
            }
            let g = &mut self.groups[group as usize];
            self.free_inodes =
                (self.free_inodes + u64::from(free)).saturating_sub(u64::from(g.desc.free_inodes));
            g.desc.free_inodes = free;
            g.inodes = Some(bits);
        }
        self.groups[group as usize]
            .inodes
            .as_deref_mut()
            .ok_or_else(|| Error::Invalid("a bitmap that was just loaded is missing".into()))
    }

    fn inodes_avail(&self, group: u32) -> u32 {
        let g = &self.groups[group as usize];
        g.inodes.as_ref().map_or(u32::from(g.desc.free_inodes), |bits| bits.avail())
    }

    /// Inodes that can be taken without waiting for anything.
    pub fn inodes_at_once(&self) -> u64 {
        self.free_inodes.saturating_sub(self.pending_inodes.count())
    }

    /// Where an inode lies.
    pub fn inode_position(&self, ino: u32) -> Result<(BlockNr, usize)> {
        let (group, index) = self.geometry.inode_group(ino).ok_or_else(|| {
            Error::corrupt(format!("inode {ino}"), 0, "its number is outside the volume")
        })?;
        let table = self.groups[group as usize].desc.inode_table;
        let (block, offset) = self.geometry.inode_position(table, index);
        Ok((BlockNr(block), offset))
    }

    /// The group for a new inode in directory `parent`. Directories directly below the root are
    /// spread over the volume, others stay near their parent as long as its group is not worse
    /// off than the average; files go to their directory's group. (Orlov's rule, as in ext2.)
    fn choose_group(&self, parent: u32, top: bool, kind: FileKind) -> Option<u32> {
        let groups = self.geometry.groups;
        let home = self.geometry.inode_group(parent).map_or(0, |(group, _)| group);
        let desc = |group: u32| &self.groups[group as usize].desc;
        let average_inodes = u32::try_from(self.free_inodes / u64::from(groups)).unwrap_or(0);
        let average_blocks = u32::try_from(self.free_blocks / u64::from(groups)).unwrap_or(0);
        let near = (0..groups).map(|i| (home + i) % groups);
        if kind == FileKind::Directory {
            if top {
                let best = near
                    .clone()
                    .filter(|&g| {
                        self.inodes_avail(g) > 0
                            && self.inodes_avail(g) >= average_inodes
                            && self.group_avail(g) >= average_blocks
                    })
                    .min_by_key(|&g| desc(g).used_dirs);
                if best.is_some() {
                    return best;
                }
            } else {
                let min_inodes =
                    average_inodes.saturating_sub(self.geometry.inodes_per_group / 4).max(1);
                let min_blocks =
                    average_blocks.saturating_sub(self.geometry.blocks_per_group / 4).max(1);
                let found = near.clone().find(|&g| {
                    self.inodes_avail(g) >= min_inodes && self.group_avail(g) >= min_blocks
                });
                if found.is_some() {
                    return found;
                }
            }
        } else {
            let mut step = 1;
            let mut group = home;
            while step < groups {
                if self.inodes_avail(group) > 0 && self.group_avail(group) > 0 {
                    return Some(group);
                }
                group = (group + step) % groups;
                step *= 2;
            }
        }
        near.clone().find(|&g| self.inodes_avail(g) > 0)
    }

    /// Takes an inode for a new file in directory `parent`, and marks it in the bitmap.
    pub(super) fn take_inode(
        &mut self,
        op: &mut Op<'_>,
        parent: u32,
        parent_flags: InodeFlags,
        kind: FileKind,
        patches: &mut Patches,
    ) -> Result<u32> {
        self.drain_inodes(op);
        let top = parent == ROOT_INO || parent_flags.contains(InodeFlags::TOPDIR);
        // A descriptor's count may have been wrong: reading the bitmap corrects it.
        for attempt in 0..=self.geometry.groups {
            let Some(group) = self.choose_group(parent, top, kind) else {
                if attempt == 0 {
                    self.drain_all(op);
                    continue;
                }
                break;
            };
            let bits = self.inode_bits(op, group)?;
            let Some(index) = bits.find_free(0) else { continue };
            bits.take(index, 1);
            let g = &mut self.groups[group as usize];
            g.desc.free_inodes = g.desc.free_inodes.saturating_sub(1);
            if kind == FileKind::Directory {
                g.desc.used_dirs = g.desc.used_dirs.saturating_add(1);
            }
            self.free_inodes = self.free_inodes.saturating_sub(1);
            let bitmap = BlockNr(u64::from(self.groups[group as usize].desc.inode_bitmap));
            self.touch(group);
            for_words32(index, 1, |offset, mask| {
                let patch = op.flip(bitmap, offset, mask, &[])?;
                push_patch(patches, patch);
                Ok::<(), Error>(())
            })?;
            return Ok(self.geometry.inode_number(group, index));
        }
        Err(FsError::NoSpace.into())
    }

    /// Frees an inode's number; `cleared` removed the last entry and cleared the inode.
    pub fn free_inode_number(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        kind: Option<FileKind>,
        cleared: PatchId,
    ) -> Result<()> {
        let Some((group, index)) = self.geometry.inode_group(ino) else {
            return Err(Error::corrupt(format!("inode {ino}"), 0, "outside the volume"));
        };
        let bits = self.inode_bits(op, group)?;
        if !bits.is_used(index) {
            self.add_damage(format!("inode {ino} was in use but is marked free"));
            return Ok(());
        }
        bits.give(index, 1);
        let g = &mut self.groups[group as usize];
        g.desc.free_inodes = g.desc.free_inodes.saturating_add(1);
        if kind == Some(FileKind::Directory) {
            g.desc.used_dirs = g.desc.used_dirs.saturating_sub(1);
        }
        self.free_inodes += 1;
        let bitmap = BlockNr(u64::from(g.desc.inode_bitmap));
        self.touch(group);
        for_words32(index, 1, |offset, mask| {
            op.flip(bitmap, offset, mask, &[cleared])?;
            Ok::<(), Error>(())
        })?;
        self.pending_inodes.add(u64::from(ino), 1, cleared);
        Ok(())
    }

    /// Corrects a group's count of directories.
    pub fn correct_directory_count(&mut self, group: u32, by: i64) {
        let Some(g) = self.groups.get_mut(group as usize) else { return };
        let count = i64::from(g.desc.used_dirs).saturating_add(by).max(0);
        g.desc.used_dirs = u16::try_from(count).unwrap_or(u16::MAX);
        self.touch(group);
    }

    fn drain_inodes(&mut self, op: &Op<'_>) {
        while let Some((ino, _)) = self.pending_inodes.pop_durable(op) {
            self.release_inode(ino);
        }
    }

    pub(super) fn release_inode(&mut self, ino: u64) {
        if let Some((group, index)) = self.geometry.inode_group(number(Ino(ino)))
            && let Some(bits) = &mut self.groups[group as usize].inodes
        {
            bits.set_busy(index, 1, false);
        }
    }

    /// Reads an inode, whatever it says.
    pub fn read_raw_inode(&mut self, op: &mut Op<'_>, ino: u32) -> Result<Inode> {
        let (nr, offset) = self.inode_position(ino)?;
        let slot_bytes = self.geometry.inode_bytes as usize;
        let slot = op.peek(nr)?.get(offset..offset + slot_bytes).unwrap_or_default();
        let inode = Inode::parse(slot)
            .map_err(|problem| Error::corrupt(format!("inode {ino}"), nr.0, problem))?;
        let foreign = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA | InodeFlags::EA_INODE;
        if inode.flags.intersects(foreign) && inode.links > 0 {
            return Err(Error::corrupt(
                format!("inode {ino}"),
                nr.0,
                format!("its flags {:#x} belong to no ext2 volume", inode.flags.bits()),
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

    /// Writes the whole slot of a new inode: its fields, and nothing of what was there.
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

    /// The extra size that new inodes get.
    pub fn new_extra_bytes(&self) -> u16 {
        let room = self.geometry.inode_bytes.saturating_sub(128);
        if room == 0 {
            return 0;
        }
        let want = WANT_EXTRA_BYTES.max(self.sb.want_extra_isize).max(self.sb.min_extra_isize);
        u16::try_from(room).map_or(want, |room| want.min(room))
    }

    /// Bytes of the slot from the end of the fields on: where attributes can lie.
    pub fn read_inode_tail(&self, op: &mut Op<'_>, ino: u32, inode: &Inode) -> Result<Vec<u8>> {
        let (nr, offset) = self.inode_position(ino)?;
        let from = 128 + usize::from(inode.extra_bytes);
        let to = self.geometry.inode_bytes as usize;
        if to <= 128 || from >= to || inode.extra_bytes == 0 {
            return Ok(Vec::new());
        }
        Ok(op.peek(nr)?.get(offset + from..offset + to).unwrap_or_default().to_vec())
    }

    /// How many bytes of that part attributes are written to: those in the sector of the fields. In
    /// an inode of several sectors a torn write could bring an entry without its value.
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
