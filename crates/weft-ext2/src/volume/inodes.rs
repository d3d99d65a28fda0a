//! Inodes: choosing one for a new file, writing it, freeing it.

use super::bits::{Bits, for_words32};
use super::node::{Ext2Inode, Node, number, raw, split, storable};
use super::state::Volume;
use crate::layout::{Inode as RawInode, InodeFlags, ROOT_INO};
use weft_patch::{BlockNr, Op, PatchId};
use weft_unix::{Error, Format as _, Inode, Inodes, Patches, Result, push_patch};
use weft_vfs::{Error as FsError, FileFlags, FileKind, Ino, Time};

impl Inodes for Volume {
    type Node = Ext2Inode;

    fn can_hold(&self, ino: Ino) -> bool {
        let ino = number(ino);
        ino == ROOT_INO || (self.geometry.first_inode..=self.geometry.inodes).contains(&ino)
    }

    fn read_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(Inode, Ext2Inode)> {
        let inode = self.read_raw_inode(op, number(ino))?;
        if inode.links == 0 {
            return Err(FsError::Stale(ino.0).into());
        }
        let problem = if inode.kind().is_none() {
            format!("its mode {:#o} has no valid file type", inode.mode)
        } else if inode.size_bytes > self.geometry.max_file_bytes() {
            format!("its size is {} bytes", inode.size_bytes)
        } else {
            return Ok(split(&inode));
        };
        let place = self.inode_position(number(ino))?.0.0;
        Err(Error::corrupt(format!("inode {}", ino.0), place, problem))
    }

    fn write_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let patch = self.write_raw_inode(op, number(node.ino), &raw(node), befores)?;
        // From here on the indirect blocks can be reached.
        node.own.unreached.clear();
        Ok(patch)
    }

    fn alloc_inode(
        &mut self,
        op: &mut Op<'_>,
        parent: &Node,
        kind: FileKind,
        befores: &mut Patches,
    ) -> Result<Ino> {
        self.drain_inodes(op);
        let (top, parent) = (is_top(parent), number(parent.ino));
        // A descriptor's count may have been wrong: reading the bitmap corrects it.
        for attempt in 0..=self.geometry.groups {
            let Some(group) = self.choose_group(parent, top, kind) else {
                if attempt == 0 {
                    self.settle(op);
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
                push_patch(befores, patch);
                Ok::<(), Error>(())
            })?;
            return Ok(Ino(u64::from(self.geometry.inode_number(group, index))));
        }
        Err(FsError::NoSpace.into())
    }

    fn new_node(&mut self, inode: &mut Inode, kind: FileKind, parent: &Node) -> Ext2Inode {
        let extra_bytes = self.new_extra_bytes();
        for time in [&mut inode.atime, &mut inode.mtime, &mut inode.ctime] {
            *time = storable(extra_bytes, *time);
        }
        inode.btime = inode.btime.filter(|_| extra_bytes >= 24).map(|t| storable(extra_bytes, t));
        let inherited = raw(parent).inherited_flags(kind);
        inode.flags |= FileFlags::from_bits_retain(inherited.bits());
        let mut own = Ext2Inode { extra_bytes, ..Ext2Inode::default() };
        if matches!(kind, FileKind::BlockDevice | FileKind::CharDevice) {
            let mut device = RawInode::default();
            device.set_rdev(inode.rdev);
            own.block = device.block;
        }
        own
    }

    fn init_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (ino, inode) = (number(node.ino), raw(node));
        node.own.unreached.clear();
        let fields = self.init_raw_inode(op, ino, &inode, befores)?;
        let tail = std::mem::take(&mut node.own.new_tail);
        if tail.is_empty() {
            return Ok(fields);
        }
        self.write_raw_inode_with_tail(op, ino, &inode, &tail, &[fields])
    }

    fn abandon_inode(&mut self, op: &mut Op<'_>, node: &Node) -> Result<()> {
        if node.own.file_acl != 0 {
            self.release_xattr_block(op, node.own.file_acl, PatchId::DURABLE)?;
        }
        self.free_inode_number(op, number(node.ino), Some(node.kind), PatchId::DURABLE)
    }

    fn free_inode(&mut self, op: &mut Op<'_>, node: &Node, cleared: PatchId) -> Result<()> {
        self.free_inode_number(op, number(node.ino), Some(node.kind), cleared)
    }

    fn want_inode(&mut self, op: &mut Op<'_>, node: &Node) -> Result<()> {
        let ino = number(node.ino);
        let (inode, _) = self.inode_position(ino)?;
        let attributes = (node.own.file_acl != 0).then_some(BlockNr(u64::from(node.own.file_acl)));
        op.want(attributes.into_iter().chain([inode]))?;
        let of_inode = self.geometry.inode_group(ino).map(|(group, _)| group);
        let of_blocks = self.geometry.block_group(self.goal(node)).map(|(group, _)| group);
        let of_blocks = of_blocks.filter(|group| Some(*group) != of_inode);
        [of_inode, of_blocks].into_iter().flatten().try_for_each(|group| self.want_maps(op, group))
    }

    fn want_new_inode(&mut self, op: &mut Op<'_>, parent: &Node, kind: FileKind) -> Result<()> {
        let Some(group) = self.choose_group(number(parent.ino), is_top(parent), kind) else {
            return Ok(());
        };
        self.want_maps(op, group)?;
        let free = self.inode_bits(op, group)?.find_free(0);
        let inode = free.map(|index| {
            let table = self.groups[group as usize].desc.inode_table;
            BlockNr(self.geometry.inode_position(table, index).0)
        });
        Ok(op.want(inode)?)
    }

    fn storable(&self, node: &Node, time: Time) -> Time {
        storable(node.own.extra_bytes, time)
    }

    fn is_settled(&self, op: &Op<'_>, node: &Node) -> bool {
        op.is_durable(node.own.unindexed)
            && op.is_durable(node.own.spanning)
            && node.own.dir.as_deref().is_none_or(|index| index.is_settled(op))
            // Its neighbours in the list of orphaned inodes change it where it is.
            && (node.own.dtime == 0 || !self.orphans.contains(&node.ino))
    }
}

/// Reports whether the directories in this one are spread over the volume.
fn is_top(dir: &Node) -> bool {
    let flags = InodeFlags::from_bits_retain(dir.inode.flags.bits());
    number(dir.ino) == ROOT_INO || flags.contains(InodeFlags::TOPDIR)
}

impl Volume {
    /// Asks for the bitmaps of a group, and its descriptor.
    pub(super) fn want_maps(&self, op: &mut Op<'_>, group: u32) -> Result<()> {
        let desc = &self.groups[group as usize].desc;
        let maps = [desc.block_bitmap, desc.inode_bitmap].map(|block| BlockNr(u64::from(block)));
        let descriptor = BlockNr(self.geometry.desc_position(group).0);
        Ok(op.want(maps.into_iter().chain([descriptor]))?)
    }

    /// Returns the inode bitmap of a group, read at its first use. Corrects the descriptor's count.
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

    /// Returns the number of inodes that can be allocated without waiting for a patch.
    pub fn inodes_at_once(&self) -> u64 {
        self.free_inodes.saturating_sub(self.pending_inodes.count())
    }

    /// Returns the group for a new inode in directory `parent`. Directories directly below the root
    /// are spread over the volume, others stay near their parent as long as its group is not worse
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

    /// Frees the number of an inode. `cleared` is the patch that cleared the inode, after its last
    /// entry.
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
            self.note_damage(format!("inode {ino} was in use but is marked free"));
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
}
