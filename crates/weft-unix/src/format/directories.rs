//! Entries of directories.

use super::Inodes;
use crate::{Node, Result};
use std::fmt::Debug;
use std::ops::Range;
use weft_patch::{Op, PatchId};
use weft_vfs::{FileKind, Ino};

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<P> {
    /// The inode that it names.
    pub ino: Ino,
    /// Its position in the directory.
    pub place: P,
}

/// One name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The inode that it names.
    pub ino: Ino,
    /// The kind of file, if the entry holds it.
    pub kind: Option<FileKind>,
    /// The range of the [listing](Listing)'s bytes that is the name.
    pub name: Range<usize>,
    /// The cursor behind it.
    pub next: u64,
}

/// A part of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// The bytes of all names.
    pub names: Vec<u8>,
    /// The entries, `.` and `..` among them.
    pub entries: Vec<Listed>,
    /// The cursor to go on from; `None` at the end.
    pub next: Option<u64>,
}

/// Directories: finding, listing, adding and removing entries.
///
/// A new entry is two changes: [`reserve`](Self::reserve) makes the record, and
/// [`fill`](Self::fill) writes its inode number.
pub trait Directories: Inodes {
    /// The position of an entry in its directory.
    type Place: Debug + Copy + Send;
    /// An entry whose record is there and that names no inode yet.
    type Reserved: Debug + Send;

    /// Loads the [parent](Node::parent) of a directory, and the rest of what the format needs to
    /// search it, unless it is in memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn load_dir(&mut self, op: &mut Op<'_>, node: &mut Node<Self>) -> Result<()>;

    /// Reports whether a loaded directory has no name but `.` and `..`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn is_empty(&self, op: &mut Op<'_>, node: &mut Node<Self>) -> Result<bool>;

    /// Finds a name other than `.` and `..`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn find(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        name: &[u8],
    ) -> Result<Option<Found<Self::Place>>>;

    /// Lists at most `max` entries of a directory from `cursor` on; 0 is the cursor of the first
    /// one. May return fewer before the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn list(
        &self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        cursor: u64,
        max: usize,
    ) -> Result<Listing>;

    /// Makes the content of a new directory below `parent`. Adds the patches that the inode must
    /// follow to its [`born_after`](Node::born_after).
    ///
    /// # Errors
    /// [`FsError::NoSpace`](weft_vfs::Error::NoSpace).
    fn init_dir(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, parent: Ino) -> Result<()>;

    /// Makes the record of an entry for a file of this kind, and grows the directory if it has no
    /// room. A crash may leave the record: it names no inode.
    ///
    /// # Errors
    /// [`FsError::NoSpace`](weft_vfs::Error::NoSpace).
    fn reserve(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        name: &[u8],
        kind: FileKind,
    ) -> Result<Self::Reserved>;

    /// Asks for the block of a directory that has room for the name (see [`Op::want`]). By default
    /// asks for nothing.
    ///
    /// # Errors
    /// [`Error::NotInMemory`](weft_patch::Error::NotInMemory), and those of a read.
    fn want_room(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, name: &[u8]) -> Result<()> {
        let _ = (op, node, name);
        Ok(())
    }

    /// Returns the position of a reserved entry.
    fn place(&self, reserved: &Self::Reserved) -> Self::Place;

    /// Returns a number for the position of an entry, which no other entry of the directory has at the
    /// same time. An entry that gets the position later overwrites it: its changes follow the removal.
    /// By default nothing is known of positions.
    fn position(&self, place: Self::Place) -> Option<u64> {
        let _ = place;
        None
    }

    /// Removes the entry at `place` as [`clear`](Self::clear) does, as a part of the change `named` that
    /// gave it its inode number, if that has not been written yet: then the volume never has the entry.
    /// Returns false, and changes nothing, if that is not possible, as by default.
    ///
    /// # Errors
    /// Those of the engine.
    fn take_back(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        place: Self::Place,
        named: PatchId,
    ) -> Result<bool> {
        let _ = (op, node, place, named);
        Ok(false)
    }

    /// Writes the inode number of a reserved entry, atomically, and returns the patch.
    ///
    /// # Errors
    /// Those of the engine.
    fn fill(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        reserved: Self::Reserved,
        ino: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Makes the entry at `place` name the inode and the kind of file in `to`, atomically, and
    /// returns the patch.
    ///
    /// # Errors
    /// Those of the engine.
    fn overwrite(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        place: Self::Place,
        to: (Ino, FileKind),
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Removes the entry at `place`, and returns the patch: in a change that follows it the name is
    /// gone.
    ///
    /// # Errors
    /// Those of the engine.
    fn clear(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        place: Self::Place,
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Makes `..` name the directory `parent`, and returns the patch.
    ///
    /// # Errors
    /// Those of the engine.
    fn set_parent(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        parent: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId>;
}
