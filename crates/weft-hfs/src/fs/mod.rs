//! An HFS volume as a [`FileSystem`], over the engine.
//!
//! Inode numbers are the ids of the catalog. As files have no threads, a file's number leads to it
//! only while its node is in memory: while the front end has a reference on it.
//!
//! A change begins an engine operation first and takes the state's lock second, and ends both when
//! it is done.

mod attr;
mod cut;
mod data;
mod hfs;
mod journal;
mod lower;
mod mac;
mod mac_file;
mod names;
mod node;
mod open;
mod plug;
mod read;
mod store;
mod streams;
mod xattr;

pub use hfs::Hfs;
pub use journal::{format_journal, replay_journal};
pub use lower::{ItemInfo, VolumeInfo};
pub use mac::Mac;
pub use mac_file::MacFile;
pub use open::{OpenOptions, has_copy_of_header, unix_now};

#[cfg(doc)]
use weft_vfs::FileSystem;
