//! The file plug: a [`FileSystem`] is a tree of inodes with byte ranges, attributes and names, and
//! every front of weft (the FUSE mount, the command, the library) speaks to one.
//!
//! The shape is that of the FUSE low-level interface: calls name inodes, not paths; a call that
//! returns an [`Entry`] takes one *reference* on its inode, given back by
//! [`forget`](FileSystem::forget). An inode whose last name is gone stays usable until its last
//! reference and its last open [`Handle`] are gone.
//!
//! All calls block, and may come from many threads at once.
//!
//! A file system on top of another is a [`Layer`]: it defines the calls that it changes, and all
//! others go to the one below.
//!
//! - [`path`] walks paths in process, for the command and the library.
//! - [`access`] decides permissions where no kernel does; [`acl`] keeps access control lists in step
//!   with modes.
//! - [`memfs`] is a complete file system in memory: the model.
//! - [`hostdir`] is a directory of the host; [`host_file`] makes and replaces files of the host as a
//!   whole.
//! - [`Synchronous`] is a layer under which changes are durable when their calls return.
//! - [`conformance`] is the suite that every implementation goes through.
//!
//! ```
//! use weft_vfs::{Caller, CommandAnswer, FileSystem, Handle, MemFs};
//! let fs = MemFs::new();
//! let file = fs.mknod(&Caller::ROOT, fs.root(), b"greeting", weft_vfs::FileKind::Regular, 0o644, 0)?;
//! fs.write(&Caller::ROOT, file.attr.ino, Handle::NONE, 0, b"hello")?;
//! assert_eq!(fs.getattr(file.attr.ino)?.size_bytes, 5);
//! fs.forget(file.attr.ino, 1);
//! # Ok::<(), weft_vfs::Error>(())
//! ```

#![warn(missing_docs)]

pub mod access;
pub mod acl;
mod acl_text;
mod calls;
pub mod conformance;
mod defaults;
mod error;
mod fs;
mod handles;
pub mod host_file;
pub mod hostdir;
mod interrupt;
mod invalidate;
mod layer;
mod lock;
pub mod memfs;
mod mutex;
mod name;
pub mod path;
mod quiet;
mod synchronous;
mod types;

pub use defaults::{copy_by_reading, seek_without_holes};
pub use error::{Error, Result};
pub use fs::FileSystem;
pub use handles::{HandleTable, StaleHandle};
pub use interrupt::{Interrupt, check_interrupt, current_interrupt, interruptible};
pub use invalidate::Invalidate;
pub use layer::Layer;
pub use lock::{FileLock, LockStyle};
pub use name::{NAME_MAX_BYTES, check_name};
pub use types::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, FallocateMode, FileFlags, FileKind,
    Handle, Ino, OpenFlags, Opened, RenameFlags, SeekFrom, SetAttr, SetTime, StatFs, Time,
    TrimRange, XattrSet,
};

pub use hostdir::{HostDir, HostDirOptions};
pub use memfs::{MemFs, MemLimits};
pub use path::{Node, Walker};
pub use quiet::{keeping_access_times, keeps_access_times};
pub use synchronous::Synchronous;
