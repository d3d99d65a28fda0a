//! The library of weft: builds a storage stack from a description.
//!
//! A [`Volume`] is a handle of an opened volume, with [`File`]s and patchgroups ([`Group`]): see
//! [`handle`]. Below it, a [`Stack`] is device, write engine and file system. [`mkfs`] makes volumes,
//! [`check`] checks and repairs them, [`transfer`] moves trees between the host, volumes and tar
//! streams, [`Stack::mount`] mounts one; [`mod@format`] recognises volumes by their content and
//! [`volume`] reads `IMAGE:/path`. The library never prints and never reads the environment; the
//! command (`weft-cli`) does.
//!
//! The crates below are re-exported: [`block`], [`patch`], [`vfs`], [`ext2`].
//!
//! ```
//! use weft::ext2::mkfs::MkfsOptions;
//! use weft::vfs::Walker;
//! use weft::{Options, Stack};
//!
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("v.img");
//! # let image = image.to_str().ok_or("UTF-8")?;
//! weft::mkfs::make(image, Some(16 << 20), false, &MkfsOptions::ext2())?;
//!
//! let stack = Stack::open(image, &Options::default())?;
//! Walker::new(stack.fs()).write_file(b"/greeting", b"hello", 0o644)?;
//! stack.close()?; // durable, and marked clean
//!
//! let stack = Stack::open(image, &Options::read_only())?;
//! assert_eq!(Walker::new(stack.fs()).read_file(b"/greeting")?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod attach_ioctl;
pub mod cache;
pub mod check;
pub mod format;
pub mod handle;
pub mod image;
pub mod metrics;
pub mod mkfs;
pub mod mount_options;
pub mod mounts;
pub mod networks;
pub mod source;
pub mod transfer;
pub mod volume;

mod check_volume;
#[cfg(feature = "ringer")]
pub mod control;
mod directory_lock;
pub mod ending;
mod error;
mod ext;
mod holder;
mod info;
mod mac;
mod mount;
mod open;
mod order;
mod registry;
mod shown;
mod stack;
mod tree;

pub use error::{Error, Result};
pub use handle::{File, Group, Volume};
pub use holder::{Holder, holder_of};
pub use info::{ExtInfo, MacInfo, VolumeInfo};
pub use mount::{AtFailure, Session};
pub use open::Options;
pub use order::Order;
pub use registry::info;
pub use shown::{shown, shown_lines};
pub use source::{CELL_STORE, HOST_DIRECTORY};
pub use stack::Stack;
pub use tree::Tree;

pub use weft_block as block;
pub use weft_ext2 as ext2;
pub use weft_hfs as hfs;
pub use weft_nbd as nbd;
pub use weft_net as net;
pub use weft_order as patchgroups;
pub use weft_patch as patch;
#[cfg(feature = "ringer")]
pub use weft_ringer as ringer;
#[cfg(feature = "ringer")]
pub use weft_ringer_client as ringer_client;
#[cfg(feature = "ringer")]
pub use weft_ringer_net as ringer_net;
#[cfg(feature = "ringer")]
pub use weft_ringer_server as ringer_server;
pub use weft_transform as transform;
pub use weft_vfs as vfs;

/// The example of docs/library.md, which is tested with those of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
#[derive(Debug)]
pub struct LibraryPage;
