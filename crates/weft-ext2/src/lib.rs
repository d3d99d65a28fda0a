//! ext2 and ext3 volumes: the on-disk layout, making, checking and repairing them, and the file
//! system on the ordered-write engine.
//!
//! [`layout`] describes the structures on the disk, as plain types with their offsets; it acts on
//! nothing. Everything it parses is checked before it is handed out, and bad input gives an
//! [`Error`] that names the structure and its block, never a panic.
//!
//! [`Ext2`] is a mounted volume, a [`weft_vfs::FileSystem`]. It is [`weft_unix`]'s front over
//! `volume`: the micro-operations that know where ext2 keeps things (allocate blocks, map one, fill
//! a directory entry, ...), each of which takes the patches it must follow and returns the patch it
//! made.
//!
//! ```
//! use std::sync::Arc;
//! use weft_block::MemoryDevice;
//! use weft_ext2::mkfs::{MkfsOptions, mkfs};
//! use weft_ext2::{Ext2, OpenOptions};
//! use weft_vfs::{FileSystem, Walker};
//!
//! let device = Arc::new(MemoryDevice::new(8 << 20));
//! mkfs(&*device, &MkfsOptions::ext2())?;
//! let volume = Ext2::open(device, OpenOptions::default())?;
//! Walker::new(&*volume).write_file(b"/greeting", b"hello", 0o644)?;
//! volume.unmount()?; // durable, and marked clean
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod error;
pub mod fsck;
mod heal;
mod journal;
pub mod layout;
pub mod mkfs;
mod mount;
pub mod owners;
mod superblock;
mod volume;

pub use error::{Error, Result};
pub use mount::{Ext2, OpenOptions};
pub use weft_unix::Atime;
