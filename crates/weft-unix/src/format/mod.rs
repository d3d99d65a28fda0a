//! The interface of a format: one trait for each part of it.
//!
//! | trait | the format | default |
//! |---|---|---|
//! | [`Inodes`] | reads, writes, allocates and frees inodes | |
//! | [`Orphans`] | lists, on the volume, the inodes that live without a name | no list |
//! | [`FileBlocks`] | maps, allocates and frees the blocks of files | |
//! | [`Symlinks`] | stores the targets of symbolic links | |
//! | [`Directories`] | finds, lists, adds and removes the entries of a directory | |
//! | [`Attributes`] | stores extended attributes | no attributes |
//! | [`Discard`] | holds free extents while the device discards them | no discarding |
//! | [`Format`] | all of these, and the volume as a whole | |
//!
//! A method that changes the volume makes one change. `op` is the operation that the change belongs
//! to, and `befores` are the patches that the change must follow; the method returns the patch that
//! it made. Where a parameter is a `&mut Patches`, the method adds the patches that a later change
//! must follow. Link counts, several names of an inode, open files and the order of an operation's
//! changes belong to the front.
//!
//! A [`BlockNr`](weft_patch::BlockNr) is a block of the volume, as the
//! [engine](weft_patch::Engine) counts them; `fbn` is a block of a file, counted from 0. Every
//! method that takes an `op` can also fail with the errors of the engine.

mod attributes;
mod blocks;
mod directories;
mod discard;
mod inodes;

pub use attributes::Attributes;
pub use blocks::{FileBlocks, Run, Symlinks, Unmapped};
pub use directories::{Directories, Found, Listed, Listing};
pub use discard::{Discard, HeldExtents, TrimBounds};
pub use inodes::{Inodes, Orphans};

use crate::{Node, Result};
use std::fmt::Debug;
use weft_patch::Op;
use weft_vfs::{FileFlags, FileKind, Ino};

/// The limits of a volume, fixed while it is mounted.
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
    /// The number of inodes that the volume can have: no path is longer.
    pub inodes_max: u64,
    /// The unit of times that new inodes hold, in nanoseconds.
    pub time_unit_nanos: u32,
    /// True if inodes have extended attributes.
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

/// A format of the Unix shape: inodes with numbers, blocks mapped by them, directories of names.
///
/// Its own methods are those of the volume as a whole.
pub trait Format:
    Inodes
    + Orphans
    + FileBlocks
    + Symlinks
    + Directories
    + Attributes
    + Discard
    + Debug
    + Send
    + Sized
    + 'static
{
    /// Returns the limits of the volume.
    fn limits(&self) -> Limits;

    /// Returns the space and inode counts.
    fn space(&self) -> Space;

    /// Returns the numbers of blocks and of inodes that can be allocated without waiting for a
    /// patch.
    fn at_once(&self) -> (u64, u64);

    /// Reports whether freed blocks or inodes wait for the patch that freed them.
    fn has_pending(&self) -> bool;

    /// Makes freed blocks and inodes available whose freeing is durable.
    fn settle(&mut self, op: &Op<'_>);

    /// Ends an operation: writes counts that it changed and did not write, for example.
    ///
    /// # Errors
    /// Those of the engine.
    fn finish(&mut self, op: &mut Op<'_>) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Reports whether the operation in progress has changed about as many blocks of metadata as it
    /// may. The front then goes on in another one.
    fn is_full(&self) -> bool {
        false
    }

    /// Asks for what [`write_summary`](Self::write_summary) changes (see [`Op::want`]). By default
    /// asks for nothing.
    ///
    /// # Errors
    /// [`Error::NotInMemory`](weft_patch::Error::NotInMemory).
    fn want_summary(&self, op: &mut Op<'_>) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Writes the summary of the volume (its free counts, for example), as part of a sync of
    /// everything.
    ///
    /// # Errors
    /// Those of the engine.
    fn write_summary(&mut self, op: &mut Op<'_>) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Notes damage that an operation could step over; `what` describes it.
    fn note_damage(&mut self, what: String);

    /// Returns the description of the first damage that was noted.
    fn damage(&self) -> Option<&str>;

    /// Returns the number of blocks that become free when the inode is deleted.
    fn blocks_of(&self, node: &Node<Self>) -> u64 {
        node.inode.blocks_512 / u64::from((self.limits().block_bytes / 512).max(1))
    }

    /// Returns the flags that an inode of this kind supports; `None` if the format has no flags.
    fn flags(&self, kind: FileKind) -> Option<FlagSupport> {
        let _ = kind;
        None
    }
}
