//! The mounted front of any format of the Unix shape: inodes with numbers, blocks mapped by them,
//! directories of names.
//!
//! [`UnixFs`] is a [`weft_vfs::FileSystem`] over a [`weft_patch::Engine`]: names and link counts,
//! renames, open files and inodes without names, reading and writing, holes, attributes and ACLs,
//! reuse of freed space, syncs; and for each change the patches that it must follow. The layout on
//! the disk belongs to a format, which implements the micro-operations of [`Format`].
//!
//! # The parts of a format
//!
//! | | |
//! |---|---|
//! | layout | on-disk structures as plain types, and parsing them with checks |
//! | [`Inodes`] | reading, writing and allocating inodes |
//! | [`FileBlocks`], [`Symlinks`] | the map of a file's blocks and their allocation; targets of links |
//! | [`Directories`] | entries of directories |
//! | [`Orphans`], [`Attributes`], [`Discard`] | optional: their methods have defaults |
//! | [`Format`] | the volume as a whole: its limits, counts and flags |
//! | opening, closing | recovery; the mark of a clean volume, after [the last change](UnixFs::close) |
//! | mkfs, check and repair | outside of this crate |
//!
//! `crates/weft-crash/tests/it/plain` is a complete format of this kind, in a few hundred lines, to
//! begin from; `weft-ext2` is the large one.
//!
//! # Order
//!
//! For soft updates, the front gives each change the patches that it must follow:
//!
//! - a pointer follows the block's content and its bit in the bitmap; the inode follows its pointers;
//! - a name follows its inode; a count goes up before the name, and down after the name is gone
//!   (module `counts`);
//! - a name that is removed before any write has contained it waits for nothing, and nothing for it
//!   (module `name_changes`);
//! - an old name goes after the new one can be reached from the root;
//! - a freed block or inode is allocated again only when the change that freed it is durable: the
//!   format keeps it in a list of [`Pending`](weft_patch::Pending) ones until then.
//!
//! A format adds the order that its own structures need: a record follows the lengths that lead to
//! it, for example. With a journal the engine makes each operation one transaction, and the same
//! patches serve.

//! # Reading
//!
//! No lock is held while a block is read from the device, so that a cold block on a slow volume
//! delays only those who need it. What reads ([`UnixFs::look`]) is tried again when a block was
//! missing. A change states what it will read, and a format adds the blocks that it usually changes
//! ([`Inodes::want_inode`], [`Directories::want_room`], [`FileBlocks::want_cut`]); these are brought
//! into memory before it begins. A format that asks for nothing works, and others wait for its reads.

#![warn(missing_docs)]

mod attr;
mod attributes;
mod corrections;
mod counts;
mod data;
mod error;
mod flags;
mod format;
mod front;
mod life;
mod moved;
mod name_changes;
mod names;
mod needs;
mod node;
mod nodes;
mod plug;
mod readdir;
mod rename;
mod restore;
mod space;
mod state;
mod sync;
mod trim;

pub use error::{Error, Result};
pub use format::{
    Attributes, Directories, Discard, FileBlocks, FlagSupport, Format, Found, HeldExtents, Inodes,
    Limits, Listed, Listing, Orphans, Run, Space, Symlinks, TrimBounds, Unmapped,
};
pub use front::{Atime, UnixFs};
pub use needs::Need;
pub use node::{Attribute, Inode, Node, Patches, push_patch};
pub use nodes::Nodes;
pub use state::State;
