//! MFS, the file system of the first Macintosh: one directory, no folders but those that the
//! Finder draws, a block map of 12 bits a block that chains the blocks of each file.
//!
//! - [`layout`] is what lies where.
//! - [`mkfs()`] makes a volume, [`check()`] checks and repairs one.
//! - [`Mfs`] is a volume as a [`FileSystem`](weft_vfs::FileSystem).
//!
//! Its kind cannot be told from its size: MFS is on disks of 400, 800 and 1,440 KiB, and so is
//! HFS.

pub mod layout;

#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod forks;
#[cfg(feature = "std")]
mod fs;
#[cfg(feature = "std")]
mod mkfs;
#[cfg(feature = "std")]
mod plug;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod streams;
#[cfg(feature = "std")]
mod volume;

#[cfg(feature = "std")]
pub use check::{Report, check};
#[cfg(feature = "std")]
pub use fs::{Mfs, OpenOptions};
#[cfg(feature = "std")]
pub use mkfs::{MkfsOptions, mkfs};
