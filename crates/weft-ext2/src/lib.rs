//! ext2 and ext3 volumes: the on-disk layout, making, checking and repairing them, and the file
//! system on the ordered-write engine.
//!
//! [`layout`] describes what lies on the disk, as plain types with their offsets; it acts on
//! nothing. Everything it parses is checked before it is handed out, and bad input gives an
//! [`Error`] that names the structure and its block, never a panic.
//!
//! [`Ext2`] is a mounted volume, a [`weft_vfs::FileSystem`]. It is made of two halves. `fs` has the
//! logic of any format of the Unix shape: names and link counts, open files, and what must be
//! durable before what. `volume` has the micro-operations that know where ext2 keeps things
//! (allocate a block, map one, insert an entry, ...), each of which takes the patches it must
//! follow and returns the patch it made. Another format of that shape writes the second half.

#![warn(missing_docs)]

mod error;
mod fs;
pub mod fsck;
pub mod layout;
pub mod mkfs;
mod volume;

pub use error::{Error, Result};
pub use fs::{Atime, Ext2, OpenOptions};
