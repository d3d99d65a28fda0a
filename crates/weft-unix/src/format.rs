//! What a format writes: one trait of micro-operations.
//!
//! Each makes one change on the volume, takes the patches that the change must follow (`befores`)
//! and returns the patch it made, or adds to a list of the caller what the next change must follow.
//! None of them knows of names in the plural, of link counts, open files or the order of an
//! operation's changes: these are the front's.
//!
//! Blocks are those of the [engine](weft_patch::Engine). Blocks of a file are counted from 0.

use crate::{Attribute, Inode, Node, Nodes, Patches, Result};
use std::fmt::Debug;
use std::ops::Range;
use weft_patch::{BlockNr, Op, PatchId, Policy};
use weft_vfs::{Error as FsError, FileFlags, FileKind, Ino, Time};

/// What a volume allows, fixed while it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The inode of the root directory.
    pub root: Ino,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// The longest file, in bytes.
    pub file_max_bytes: u64,
    /// The longest target of a symbolic link, in bytes.
    pub target_max_bytes: usize,
    /// The longest name, in bytes.
    pub name_max_bytes: u32,
    /// The most names that one inode can have.
    pub links_max: u32,
    /// How many inodes there can be: no path is longer.
    pub inodes_max: u64,
    /// The unit of times that new inodes hold, in nanoseconds.
    pub time_unit_nanos: u32,
    /// Whether inodes have extended attributes.
    pub has_attributes: bool,
}

/// Space and inode counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Blocks that files can have.
    pub blocks: u64,
    /// Those that are free.
    pub blocks_free: u64,
    /// Free ones that are kept for root.
    pub blocks_reserved: u64,
    /// Inodes that there can be.
    pub inodes: u64,
    /// Those that are free.
    pub inodes_free: u64,
}

/// Flags that `lsattr(1)` shows and `chattr(1)` changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagSupport {
    /// Those that can be seen.
    pub visible: FileFlags,
    /// Those that a user can change on an inode of the kind asked for.
    pub modifiable: FileFlags,
    /// Those that a user can change on some inode.
    pub ever_modifiable: FileFlags,
}

/// A run of a file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block on the volume; `None` for a hole.
    pub start: Option<BlockNr>,
    /// How many blocks follow each other on the volume, or are holes; at least 1.
    pub len: u64,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<P> {
    /// The inode that it names.
    pub ino: Ino,
    /// Where it lies.
    pub place: P,
}

/// Pointers that were cleared to make a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmapped {
    /// How many blocks of the file were looked at: a hole there already, or now.
    pub len: u64,
    /// The run of blocks that nothing points at any more; as long as `len`.
    pub freed: Option<BlockNr>,
    /// The change that cleared the pointers; `None` if they lie in the inode, which the caller
    /// writes.
    pub cleared: Option<PatchId>,
}

/// One name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The inode that it names.
    pub ino: Ino,
    /// What the entry says of its kind; it need not say anything.
    pub kind: Option<FileKind>,
    /// Where the name lies in the [listing](Listing)'s bytes.
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

/// Free extents that nobody takes until they are released.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldExtents {
    /// First block and length of each.
    pub extents: Vec<(BlockNr, u64)>,
    /// The block to go on from.
    pub next: u64,
}

/// Where free extents can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimBounds {
    /// Blocks of the volume that files can have.
    pub blocks: (u64, u64),
    /// The longest free extent there can be, in blocks.
    pub longest_blocks: u64,
}

/// A format of the Unix shape: inodes with numbers, blocks mapped by them, directories of names.
pub trait Format: Debug + Send + Sized + 'static {
    /// What the format keeps in memory of an inode, beside what every inode has.
    type Node: Debug + Send;
    /// Where an entry of a directory lies.
    type Place: Debug + Copy + Send;
    /// An entry whose record is there and names nothing yet.
    type Reserved: Debug + Send;
    /// What goes when a file is cut.
    type Cut: Debug + Send;

    // The volume.

    /// What the volume allows.
    fn limits(&self) -> Limits;

    /// Space and inode counts.
    fn space(&self) -> Space;

    /// Blocks, and inodes, that can be taken without waiting for anything.
    fn at_once(&self) -> (u64, u64);

    /// Whether blocks or inodes were freed and wait for the patch that freed them.
    fn has_pending(&self) -> bool;

    /// Makes freed blocks and inodes available whose freeing is durable.
    fn settle(&mut self, op: &Op<'_>);

    /// Ends an operation: counts that it changed and did not write, for example.
    ///
    /// # Errors
    /// Those of the engine.
    fn finish(&mut self, op: &mut Op<'_>) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Whether the operation under way has changed about as many blocks of metadata as it may, and
    /// should go on in another one.
    fn is_full(&self) -> bool {
        false
    }

    /// Brings up to date what the volume says of itself (free counts, for example), as part of a
    /// sync of everything.
    ///
    /// # Errors
    /// Those of the engine.
    fn write_summary(&mut self, op: &mut Op<'_>) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Notes damage that an operation could step over.
    fn note_damage(&mut self, what: String);

    /// The first damage that was noted.
    fn damage(&self) -> Option<&str>;

    // Inodes.

    /// Whether a file can have this number.
    fn can_hold(&self, ino: Ino) -> bool;

    /// Reads an inode and checks it.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is free; [`Error::Corrupt`](crate::Error::Corrupt).
    fn read_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(Inode, Self::Node)>;

    /// Writes an inode as one change.
    ///
    /// # Errors
    /// Those of the engine.
    fn write_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Takes the number of a new inode in directory `parent`, and adds to `befores` what the inode
    /// must follow.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    fn alloc_inode(
        &mut self,
        op: &mut Op<'_>,
        parent: &Node<Self>,
        kind: FileKind,
        befores: &mut Patches,
    ) -> Result<Ino>;

    /// What the format keeps of a new inode in directory `parent`. May change what the format holds
    /// in another way than asked (flags, times), and adds flags that are inherited.
    fn new_node(&mut self, inode: &mut Inode, kind: FileKind, parent: &Node<Self>) -> Self::Node;

    /// Writes a new inode for the first time, with the [attributes that were
    /// placed](Self::place_attributes).
    ///
    /// # Errors
    /// Those of the engine.
    fn init_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        befores: &[PatchId],
    ) -> Result<PatchId>;

    /// Gives back a new inode that nothing ever named, and the attributes that were placed.
    ///
    /// # Errors
    /// Those of the engine.
    fn abandon_inode(&mut self, op: &mut Op<'_>, node: &Node<Self>) -> Result<()>;

    /// Frees an inode's number; `cleared` removed its last name and cleared the inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), and those of the engine.
    fn free_inode(&mut self, op: &mut Op<'_>, node: &Node<Self>, cleared: PatchId) -> Result<()>;

    /// The time as an inode can hold it.
    fn storable(&self, node: &Node<Self>, time: Time) -> Time;

    /// Whether all that the format keeps of an inode is on the volume, so that it may be dropped.
    fn is_settled(&self, op: &Op<'_>, node: &Node<Self>) -> bool {
        let _ = (op, node);
        true
    }

    /// Notes where the volume finds an inode that lives without a name, if it keeps that. The caller
    /// writes the inode.
    ///
    /// # Errors
    /// Those of the engine.
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

    /// Takes an inode off that list: it got a name, or is deleted. The caller writes the inode.
    ///
    /// # Errors
    /// Those of the engine.
    fn remove_orphan(&mut self, op: &mut Op<'_>, nodes: &mut Nodes<Self>, ino: Ino) -> Result<()> {
        let _ = (op, nodes, ino);
        Ok(())
    }

    /// Blocks that come back when the inode is deleted.
    fn blocks_of(&self, node: &Node<Self>) -> u64 {
        node.inode.blocks_512 / u64::from((self.limits().block_bytes / 512).max(1))
    }

    /// What an inode's flags can be; `None` if the format has none.
    fn flags(&self, kind: FileKind) -> Option<FlagSupport> {
        let _ = kind;
        None
    }

    // Blocks of files.

    /// The run of blocks that starts with block `fbn` of a file, 1 to `max`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), [`FsError::TooLarge`].
    fn map(&self, op: &mut Op<'_>, node: &mut Node<Self>, fbn: u64, max: u64) -> Result<Run>;

    /// Takes blocks for the first part of a hole of `max` blocks at `fbn`. Adds to `after` what a
    /// pointer at them must follow, and to `befores` what the inode must follow already.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::TooLarge`].
    fn allocate(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        fbn: u64,
        max: u64,
        after: &mut Patches,
        befores: &mut Patches,
    ) -> Result<(BlockNr, u64)>;

    /// Points block `fbn` and those behind it at blocks that were [taken](Self::allocate) for them,
    /// and counts them. What was written to them is in `after`; what the inode must follow is added
    /// to `befores`.
    ///
    /// # Errors
    /// Those of the engine.
    fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        fbn: u64,
        run: (BlockNr, u64),
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()>;

    /// Clears the pointers of one run of at most `max` blocks. The caller frees what was pointed at.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), and those of the engine.
    fn unmap(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        fbn: u64,
        max: u64,
    ) -> Result<Unmapped>;

    /// Frees blocks, the pointer to which `cleared` has removed. They are taken again only when that
    /// is durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if one is free.
    fn free(&mut self, op: &mut Op<'_>, start: BlockNr, len: u64, cleared: PatchId) -> Result<()>;

    /// Begins to cut a file down to `keep` blocks: takes pointers out of the inode in memory and
    /// collects what else there is to free, from the end backwards and at most what one operation
    /// can free. Returns it with the number of blocks that the file still has. With `whole`, and if
    /// nothing is left, the inode's other possessions (attributes) go too: it is deleted.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn cut(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        keep: u64,
        whole: bool,
    ) -> Result<(Self::Cut, u64)>;

    /// Ends a cut: `written` is the change of the inode without what goes.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), and those of the engine.
    fn finish_cut(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        cut: Self::Cut,
        written: PatchId,
    ) -> Result<()>;

    /// Says on the volume, if it must be said, that there is a file of `size_bytes`. Adds to
    /// `befores` what the inode must follow.
    ///
    /// # Errors
    /// [`FsError::TooLarge`].
    fn allow_size(
        &mut self,
        op: &mut Op<'_>,
        size_bytes: u64,
        befores: &mut Patches,
    ) -> Result<()> {
        let _ = (op, size_bytes, befores);
        Ok(())
    }

    /// Keeps up to `want` free blocks behind the end of a file for it, in memory.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    fn keep_blocks(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, want: u64) -> Result<()> {
        let _ = (op, node, want);
        Ok(())
    }

    /// Gives up the blocks that are kept for a file.
    fn drop_kept_blocks(&mut self, ino: Ino) {
        let _ = ino;
    }

    // Symbolic links.

    /// Gives a new symbolic link its target.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    fn set_target(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, target: &[u8]) -> Result<()>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn target(&self, op: &mut Op<'_>, node: &Node<Self>) -> Result<Vec<u8>>;

    // Directories.

    /// Makes sure that a directory's [parent](Node::parent), and what else the format keeps of it, is
    /// in memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn load_dir(&mut self, op: &mut Op<'_>, node: &mut Node<Self>) -> Result<()>;

    /// Whether a loaded directory has no name but `.` and `..`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn is_empty(&self, op: &mut Op<'_>, node: &mut Node<Self>) -> Result<bool>;

    /// Finds a name (not `.` or `..`).
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn find(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        name: &[u8],
    ) -> Result<Option<Found<Self::Place>>>;

    /// At most `max` entries of a directory from `cursor` on. Fewer do not mean the end.
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

    /// Gives a new directory its content. What the inode must follow is added to
    /// [`born_after`](Node::born_after).
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    fn init_dir(&mut self, op: &mut Op<'_>, node: &mut Node<Self>, parent: Ino) -> Result<()>;

    /// Makes room for an entry, growing the directory if needed. A crash may leave it: it names
    /// nothing.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    fn reserve(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        name: &[u8],
        kind: FileKind,
    ) -> Result<Self::Reserved>;

    /// Where a reserved entry lies.
    fn place(&self, reserved: &Self::Reserved) -> Self::Place;

    /// Gives a reserved entry its inode, atomically.
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

    /// Makes an entry name another inode, atomically.
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

    /// Removes an entry. What follows the returned patch may count on the name being gone.
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

    /// Makes `..` name another directory.
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

    // Extended attributes.

    /// All attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn attributes(&mut self, op: &mut Op<'_>, node: &Node<Self>) -> Result<Vec<Attribute>> {
        let _ = (op, node);
        Ok(Vec::new())
    }

    /// Refuses names of attributes that the format cannot hold.
    ///
    /// # Errors
    /// [`FsError::Unsupported`], [`FsError::Range`].
    fn check_attribute_name(&self, name: &[u8]) -> Result<()> {
        let _ = name;
        Err(FsError::Unsupported("extended attributes").into())
    }

    /// Sets an attribute, or removes it if there is no value, and writes the inode with it, as one
    /// change.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Unsupported`].
    fn set_attribute(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<PatchId> {
        let _ = (op, node, name, value);
        Err(FsError::Unsupported("extended attributes").into())
    }

    /// Finds places for the attributes that a new inode begins with. What the inode must follow is
    /// added to [`born_after`](Node::born_after); nothing else is done if there are none.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    fn place_attributes(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        attributes: &[Attribute],
    ) -> Result<()> {
        let _ = (op, node);
        if attributes.is_empty() {
            return Ok(());
        }
        Err(FsError::Unsupported("extended attributes").into())
    }

    // Free space given back to the device.

    /// Where free extents can be; `None` if the format does not discard.
    fn trim_bounds(&self) -> Option<TrimBounds> {
        None
    }

    /// Takes free extents of `min_blocks` or more out of use, as many as go at a time. What was freed
    /// by a change that is not durable is not among them.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn hold_free(
        &mut self,
        op: &mut Op<'_>,
        blocks: Range<u64>,
        min_blocks: u64,
    ) -> Result<HeldExtents> {
        let _ = (op, min_blocks);
        Ok(HeldExtents { extents: Vec::new(), next: blocks.end })
    }

    /// Gives held extents back to use.
    fn release_free(&mut self, extents: &[(BlockNr, u64)]) {
        let _ = extents;
    }

    /// Whether so much is held that a change might find no room for that alone.
    fn is_held_up(&self) -> bool {
        false
    }
}
