//! MFS, the file system of the first Macintosh: one directory, folders that only the Finder draws,
//! and a block map of 12 bits a block that chains the blocks of each file.
//!
//! - [`layout`] has the on-disk structures.
//! - [`mkfs()`] makes a volume, [`check()`] checks and repairs one.
//! - [`Mfs`] is a volume as a [`FileSystem`](weft_vfs::FileSystem).
//!
//! The format of a disk does not follow from its size: both MFS and HFS are on disks of 400, 800
//! and 1,440 KiB.

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
