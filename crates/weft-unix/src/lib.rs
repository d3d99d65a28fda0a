//! The mounted front of any format of the Unix shape: inodes with numbers, blocks mapped by them,
//! directories of names.
//!
//! [`UnixFs`] is a [`weft_vfs::FileSystem`] over a [`weft_patch::Engine`]: names and link counts,
//! renames, open files and inodes without names, reading and writing, holes, attributes and ACLs,
//! space that comes back, syncs; and for each change the patches that it must follow. Where things
//! lie on the disk it does not know. A format says so, by the micro-operations of [`Format`].
//!
//! # What a format writes
//!
//! | | |
//! |---|---|
//! | its layout | on-disk structures as plain types, and reading them with checks |
//! | the [`Format`] | inodes, the map of a file's blocks, directory entries, allocation |
//! | opening | what of the volume must be looked at before, and said at the end ([`UnixFs::close`]) |
//! | mkfs, check and repair | outside of this crate |
//!
//! Extended attributes, flags, lists of orphans, discarding and kept space have defaults for a format
//! without them.
//!
//! # Order
//!
//! The front states for every change what it must follow, for soft updates:
//!
//! - a pointer follows the block's content and its bit in the bitmap; the inode follows its pointers;
//! - a name follows its inode; a count goes up before the name, and down after the name is gone;
//! - an old name goes after the new one can be reached from the root;
//! - a freed block or inode is taken again only when what freed it is durable: the format keeps it in
//!   a list of [`Pending`] ones until then.
//!
//! A format adds what its own structures need: that a record follows the lengths that lead to it, for
//! example. With a journal the engine makes each operation one transaction, and the same patches serve.

#![warn(missing_docs)]

mod attr;
mod attributes;
mod data;
mod error;
mod flags;
mod format;
mod front;
mod life;
mod moved;
mod names;
mod node;
mod pending;
mod plug;
mod readdir;
mod rename;
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
pub use node::{Attribute, Inode, Node, Patches, push_patch};
pub use pending::Pending;
pub use state::{Nodes, State};
