//! Any weft [`FileSystem`](weft_vfs::FileSystem) as a FUSE mount.
//!
//! [`mount`] returns a [`Mount`]: threads answer the kernel until the mount is unmounted, from
//! outside (`umount`, `fusermount3 -u`), through an [`Unmounter`], or by a signal
//! ([`Mount::unmount_on_signals`]); [`Mount::join`] waits for that and unmounts the file system:
//! everything durable, the volume clean.
//!
//! # The cost of small operations
//!
//! Most of it is the way between the program and this process:
//!
//! - *Fewer requests* (`front`): no round trip to open or close anything, unless the file system is
//!   stateful; names, also absent ones, and attributes that the kernel may keep for a year; listings
//!   with attributes; writes of up to a mebibyte. A private mount of root (the default) spares the
//!   permission check's look at the directory.
//! - *Fewer wake-ups*: over io_uring (`ring`, [`MountOptions::io_uring`]) a request is answered on
//!   the CPU that made it, by a thread that waits there; over `/dev/fuse` (`serve`, `thread_pool`)
//!   one thread reads requests and answers short ones itself.
//! - *No wait for another's wait*: on both ways a request is only tried (`attempt`), if the file
//!   system can tell that it would wait, and is then answered by a thread of its own (`workers`).
//! - *What remains* is the kernel's: two requests a file for `security.capability`, at its first
//!   write and at `chown(2)` (none with [`MountOptions::xattrs`] off; `ls -l` asks for two attributes
//!   of each file), a lookup before each creation, one request for each call that sets owner, mode
//!   or times, two for a write that starts within a page that is not in the page cache, and, where
//!   the kernel checks permissions, the directory's attributes after each change of its names.
//!
//! A request whose caller is killed or interrupted ends for the caller at once, whatever the file system
//! still waits for (`front::waits`).
//!
//! The crate `fuser` mounts (also through `fusermount3`), negotiates the protocol, sends notices and
//! unmounts; the requests themselves are read and answered here (`serve`, `wire`), since the way in
//! which a thread waits for the next request determines most of a round trip's time.
//!
//! ```no_run
//! use std::sync::Arc;
//! let fs = Arc::new(weft_vfs::MemFs::new());
//! let mount = weft_fuse::mount(fs, "/mnt".as_ref(), &weft_fuse::MountOptions::default())?;
//! mount.unmount_on_signals()?;
//! mount.join()?;
//! # Ok::<(), weft_fuse::Error>(())
//! ```

#![warn(missing_docs)]

mod attempt;
mod error;
mod follow;
mod front;
mod handshake;
mod invalidate;
mod mount;
mod mountpoint;
mod options;
mod passthrough;
mod policy;
mod ring;
mod serve;
mod thread_pool;
mod wire;
mod workers;

pub use error::{Error, Result};
pub use mount::{Mount, Unmounter, mount};
pub use options::{IoUring, MountOptions};
