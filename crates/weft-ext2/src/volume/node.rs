//! Inodes in memory, and their conversion from and to the fields of a slot.

use super::dir::index::DirIndex;
use super::state::Volume;
use crate::layout::{BLOCK_SLOTS, Inode as RawInode, InodeFlags};
use smallvec::SmallVec;
use weft_patch::PatchId;
use weft_unix::Inode;
use weft_vfs::{FileFlags, Ino, Time};

/// An inode in memory.
pub(crate) type Node = weft_unix::Node<Volume>;

/// Returns an inode's number as the volume writes it; one that no volume has if it does not fit.
pub(crate) fn number(ino: Ino) -> u32 {
    u32::try_from(ino.0).unwrap_or(u32::MAX)
}

/// The part of an inode that only ext2 has.
#[derive(Debug, Default)]
pub(crate) struct Ext2Inode {
    /// Block numbers; device number or the target of a fast symbolic link.
    pub block: [u32; BLOCK_SLOTS],
    /// The attribute block.
    pub file_acl: u32,
    /// The time of deletion, or the next inode in the list of orphaned inodes.
    pub dtime: u32,
    /// Bytes used of the slot behind the first 128.
    pub extra_bytes: u16,
    /// The attributes that lie in the slot of a new inode.
    pub new_tail: Vec<u8>,
    /// The leaf last used: its first file block, and its block.
    pub leaf: Option<(u64, u32)>,
    /// Indirect blocks made by the operation in progress, which writes the inode at its end: until
    /// then no pointer on the volume leads to them.
    pub unreached: SmallVec<[u32; 4]>,
    /// The goal for the next block; 0 if there is none.
    pub goal: u64,
    pub dir: Option<Box<DirIndex>>,
    /// The change that removed the directory's hash tree.
    pub unindexed: PatchId,
    /// Changes of the directory's records that span sectors (weft makes none, others do). All
    /// others must follow in a later write: a torn one could bring half of both.
    pub spanning: PatchId,
}

/// Divides an inode between the front and the format.
pub(crate) fn split(raw: &RawInode) -> (Inode, Ext2Inode) {
    let inode = Inode {
        mode: raw.mode,
        uid: raw.uid,
        gid: raw.gid,
        links: u32::from(raw.links),
        size_bytes: raw.size_bytes,
        blocks_512: u64::from(raw.blocks_512),
        atime: raw.atime,
        mtime: raw.mtime,
        ctime: raw.ctime,
        btime: raw.btime,
        flags: FileFlags::from_bits_retain(raw.flags.bits()),
        generation: raw.generation,
        rdev: raw.rdev(),
    };
    let own = Ext2Inode {
        block: raw.block,
        file_acl: raw.file_acl,
        dtime: raw.dtime,
        extra_bytes: raw.extra_bytes,
        ..Ext2Inode::default()
    };
    (inode, own)
}

/// Returns the fields of an inode's slot.
pub(super) fn raw(node: &Node) -> RawInode {
    let (inode, own) = (&node.inode, &node.own);
    RawInode {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        size_bytes: inode.size_bytes,
        atime: inode.atime,
        ctime: inode.ctime,
        mtime: inode.mtime,
        btime: inode.btime,
        dtime: own.dtime,
        links: u16::try_from(inode.links).unwrap_or(u16::MAX),
        blocks_512: u32::try_from(inode.blocks_512).unwrap_or(u32::MAX),
        flags: InodeFlags::from_bits_retain(inode.flags.bits()),
        block: own.block,
        generation: inode.generation,
        file_acl: own.file_acl,
        extra_bytes: own.extra_bytes,
    }
}

/// Returns `time` rounded to one that an inode with so many extra bytes can hold.
pub(super) fn storable(extra_bytes: u16, time: Time) -> Time {
    RawInode { extra_bytes, ..RawInode::default() }.storable(time)
}
