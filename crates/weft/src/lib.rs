//! Puts a storage stack together from a description: what a Rust user of weft imports.
//!
//! [`format`] recognises what is in a volume by its content, [`volume`] reads `IMAGE:/path`, and
//! [`transfer`] moves trees between the host, volumes and tar streams. The library never prints
//! and never reads the environment; the command (`weft-cli`) does.
//!
//! The rooms below are re-exported: [`block`], [`vfs`], [`ext2`].
//!
//! ```
//! use weft::vfs::{MemFs, Walker};
//!
//! // Any file system will do; a volume's is weft::Stack's.
//! let fs = MemFs::new();
//! Walker::new(&fs).write_file(b"/greeting", b"hello", 0o644)?;
//! assert_eq!(Walker::new(&fs).read_file(b"/greeting")?, b"hello");
//! # Ok::<(), weft::vfs::Error>(())
//! ```
#![warn(missing_docs)]

pub mod format;
pub mod transfer;
pub mod volume;

mod error;

pub use error::{Error, Result};

pub use weft_block as block;
pub use weft_ext2 as ext2;
pub use weft_patch as patch;
pub use weft_vfs as vfs;
