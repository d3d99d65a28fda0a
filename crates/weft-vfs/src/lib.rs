//! The file plug: a [`FileSystem`] is a tree of inodes with byte ranges, attributes and names, and
//! every front of weft (the FUSE mount, the command, the library) speaks to one.
//!
//! The shape is that of the FUSE low-level interface: calls name inodes, not paths; a call that
//! returns an [`Entry`] takes one *reference* on its inode, given back by
//! [`forget`](FileSystem::forget). An inode whose last name is gone stays usable until its last
//! reference and its last open [`Handle`] are gone.
//!
//! All calls block, and may come from many threads at once.

#![warn(missing_docs)]

mod error;
mod fs;
mod invalidate;
mod types;

pub use error::{Error, Result};
pub use fs::FileSystem;
pub use invalidate::Invalidate;
pub use types::{
    Attr, Caller, DirCursor, DirEntry, Entry, FallocateMode, FileKind, Handle, Ino, OpenFlags,
    Opened, RenameFlags, SeekFrom, SetAttr, SetTime, StatFs, Time, XattrSet,
};

/// The longest name of one path component, in bytes.
pub const NAME_MAX_BYTES: usize = 255;
