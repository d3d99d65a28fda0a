//! ext2 and ext3 volumes: the on-disk layout, and the file system on the ordered-write engine.
//!
//! [`layout`] describes what lies on the disk, as plain types with their offsets; it acts on
//! nothing. Everything it parses is checked before it is handed out, and bad input gives an
//! [`Error`] that names the structure and its block, never a panic.

#![warn(missing_docs)]

mod error;
mod fs;
pub mod fsck;
pub mod layout;
pub mod mkfs;
mod volume;

pub use error::{Error, Result};
pub use fs::{Atime, Ext2, OpenOptions};
