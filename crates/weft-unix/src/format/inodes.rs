//! Inodes of a format, and its list of those without names.

use crate::{Inode, Node, Nodes, Patches, Result};
use std::fmt::Debug;
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{FileKind, Ino, Time};

/// Inodes: reading, writing, allocating and freeing them.
pub trait Inodes: Sized {
    /// The part of an inode that only this format has (pointers, the index of a directory).
    type Node: Debug + Send;

    /// Reports whether a file can have the number `ino`.
    fn can_hold(&self, ino: Ino) -> bool;

    /// Reads and checks the inode `ino`. Returns the fields of any format, and the format's own
    /// part.
    ///
    /// # Errors
    /// [`FsError::Stale`](weft_vfs::Error::Stale) if the inode is free;
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it fails a check.
    fn read_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(Inode, Self::Node)>;

    /// Writes an inode as one change, and returns its patch.
    ///
    /// # Errors
    /// Those of the engine.
    fn write_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Allocates the number of a new inode of this kind, near its directory `parent`. Adds the
    /// patches that the inode must follow to `befores`.
    ///
    /// # Errors
    /// [`FsError::NoSpace`](weft_vfs::Error::NoSpace) if no inode is free.
    fn alloc_inode(
        &mut self,
        op: &mut Op<'_>,
        parent: &Node<Self>,
        kind: FileKind,
        befores: &mut Patches,
    ) -> Result<Ino>;

    /// Returns the format's own part of a new inode in directory `parent`. Rounds the times in
    /// `inode` to those that the volume can hold, and adds the flags that are inherited from
    /// `parent`.
    fn new_node(&mut self, inode: &mut Inode, kind: FileKind, parent: &Node<Self>) -> Self::Node;

    /// Writes a new inode for the first time, with the [attributes that were
    /// placed](super::Attributes::place_attributes), and returns its patch.
    ///
    /// # Errors
    /// Those of the engine.
    fn init_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Frees a new inode that no entry ever named, with the attributes that were placed.
    ///
    /// # Errors
    /// Those of the engine.
    fn abandon_inode(&mut self, op: &mut Op<'_>, node: &Node<Self>) -> Result<()>;

    /// Frees the number of an inode. `cleared` is the patch that cleared the inode, after its last
    /// name; the number is allocated again only when that patch is durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), and those of the engine.
    fn free_inode(&mut self, op: &mut Op<'_>, node: &Node<Self>, cleared: PatchId) -> Result<()>;

    /// Asks for the blocks that a change of an inode usually changes (see [`Op::want`]): its own, and
    /// those of the maps from which it allocates. By default asks for none, and they are read under
    /// the engine's lock, while all others wait.
    ///
    /// # Errors
    /// [`Error::NotInMemory`](weft_patch::Error::NotInMemory), and those of a read.
    fn want_inode(&mut self, op: &mut Op<'_>, node: &Node<Self>) -> Result<()> {
        let _ = (op, node);
        Ok(())
    }

    /// Asks, as [`want_inode`](Self::want_inode) does, for the blocks that a new inode of this kind
    /// in directory `parent` changes.
    ///
    /// # Errors
    /// As [`want_inode`](Self::want_inode).
    fn want_new_inode(
        &mut self,
        op: &mut Op<'_>,
        parent: &Node<Self>,
        kind: FileKind,
    ) -> Result<()> {
        let _ = (op, parent, kind);
        Ok(())
    }

    /// Returns `time` rounded to one that the inode can hold.
    fn storable(&self, node: &Node<Self>, time: Time) -> Time;

    /// Reports whether the volume has all that the format's own part of an inode says, so that the
    /// inode may be dropped from memory.
    fn is_settled(&self, op: &Op<'_>, node: &Node<Self>) -> bool {
        let _ = (op, node);
        true
    }
}

/// The list, on the volume, of inodes that live without a name. A recovery finds them there.
///
/// By default there is none, and a crash leaks these inodes.
pub trait Orphans: Inodes {
    /// Adds `ino`, which is in `nodes`, to the list, as the commit policy needs it. The caller
    /// writes the inode.
    ///
    /// # Errors
    /// [`FsError::Stale`](weft_vfs::Error::Stale) if the inode is not in memory, and those of the
    /// engine.
    fn add_orphan(
        &mut self,
        op: &mut Op<'_>,
        nodes: &mut Nodes<Self>,
        ino: Ino,
        policy: Policy,
    ) -> Result<()> {
        let _ = (op, nodes, ino, policy);
        Ok(())
    }

    /// Removes `ino`, which got a name or is deleted, from the list. The caller writes the inode.
    ///
    /// # Errors
    /// Those of the engine.
    fn remove_orphan(&mut self, op: &mut Op<'_>, nodes: &mut Nodes<Self>, ino: Ino) -> Result<()> {
        let _ = (op, nodes, ino);
        Ok(())
    }
}
