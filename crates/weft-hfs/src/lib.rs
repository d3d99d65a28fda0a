//! Classic Macintosh volumes: HFS and MFS, with both forks of their files.
//!
//! # HFS
//!
//! - [`layout`] has the on-disk structures of a volume.
//! - [`btree`] changes its B*-trees so that a power cut leaves them whole.
//! - [`volume`] is the lower interface: items by parent and name, byte ranges of either fork.
//! - [`mkfs`] makes volumes, [`fsck`] checks and repairs them.
//! - `Hfs` is a volume as a `FileSystem` over the engine, `Mac` its paths and open files.
//! - [`streams`] gives access to the resource forks, Finder information and dates of HFS, MFS and
//!   HFS Plus files.
//! - [`view`] shows them as files, for programs that know one fork only.
//! - [`store`] is the interface of the core to the platform's block device.
//!
//! # Beside it
//!
//! - [`macroman`] is the character set, and names as Unix writes them.
//! - [`relstring`] is the order of names.
//! - [`interchange`] packs both forks of a file for other systems, and unpacks them.
//! - [`mfs`] is the complete file system of the first Macintosh.
//! - [`hfsplus`] reads the successor of HFS.
//!
//! # Rules for a front
//!
//! - **Names have aliases** (letters in another case, companions), and the kernel knows of one
//!   spelling. So a mount looks names up anew each time, except on a volume that is read-only.
//! - **Dates are local time**, without a zone: the library takes an offset, and the command
//!   determines it once. With a fixed clock, volumes are reproducible.
//! - **Damage does not end a listing**: it goes on past items that cannot be read, and
//!   [`MacVolume::passed_over`](streams::MacVolume::passed_over) lists these.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use weft_block::MemoryDevice;
//! use weft_hfs::layout::{Fork, Name};
//! use weft_hfs::mkfs::{MkfsOptions, mkfs};
//! use weft_hfs::{Hfs, Mac, OpenOptions};
//! use weft_vfs::{FileSystem, OpenFlags};
//!
//! let device = Arc::new(MemoryDevice::new(4 << 20));
//! mkfs(&*device, &MkfsOptions::new(Name::new(b"Disk")?, 0))?;
//! let volume = Hfs::open(device, OpenOptions::default())?;
//!
//! let mac = Mac::new(Arc::clone(&volume));
//! mac.create_file(b"Game", *b"APPL", *b"GAME")?;
//! let mut icons = mac.open(b"Game", Fork::Resource, OpenFlags::READ | OpenFlags::WRITE)?;
//! icons.write(b"icons")?;
//! icons.close()?;
//! volume.unmount()?; // durable, and marked clean
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate is `no_std` with `alloc` and without `unsafe`; the feature `std` (on unless switched
//! off) adds what needs devices and the engine.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

pub mod btree;
mod error;
#[cfg(feature = "std")]
mod fs;
pub mod fsck;
#[cfg(feature = "std")]
pub mod hfsplus;
#[cfg(feature = "std")]
pub mod interchange;
pub mod layout;
pub mod macroman;
pub mod mfs;
pub mod mkfs;
#[cfg(feature = "std")]
pub mod owners;
#[cfg(feature = "std")]
mod permissions;
pub mod relstring;
pub mod store;
#[cfg(feature = "std")]
pub mod streams;
#[cfg(feature = "std")]
pub mod view;
pub mod volume;

pub use error::{Error, Result};
#[cfg(feature = "std")]
pub use fs::{
    Hfs, ItemInfo, Mac, MacFile, OpenOptions, VolumeInfo, format_journal, has_copy_of_header,
    replay_journal, unix_now,
};
#[cfg(feature = "std")]
pub use permissions::Permissions;
