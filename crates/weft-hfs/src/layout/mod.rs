//! The on-disk structures of an HFS volume, as plain types.
//!
//! Source: Apple, *Inside Macintosh: Files* (1992), chapter 2, "Data Organization on Volumes".
//! Field names in the documentation are the ones used there. All numbers are big-endian; a
//! *block* here is a 512-byte logical block of the volume, an *allocation block* a multiple of it.

mod bytes;
mod catalog;
mod extent;
mod finder;
mod mdb;
mod name;
mod node;

pub(crate) use bytes::{changed, get, get8, get16, get32, put, put16, put32};
pub use catalog::{
    CatalogKey, CatalogRecord, DIRECTORY_BYTES, DirectoryRecord, FILE_BYTES, FileFlags, FileRecord,
    ForkSizes, MOVE_MARK, THREAD_BYTES, ThreadRecord,
};
pub use extent::{EXTENT_RECORD_BYTES, Extent, ExtentKey, ExtentRecord, Fork};
pub use finder::{DInfo, DXInfo, FInfo, FXInfo, Point, Rect, finder_flags};
pub use mdb::{
    Attributes, CLUMP_MAX_BYTES, MDB_BLOCK, MDB_BYTES, Mdb, NEXT_ID_AHEAD, SIGNATURE_HFS,
    SIGNATURE_HFS_PLUS,
};
pub use name::{Name, VOLUME_NAME_MAX_BYTES};
pub use node::{
    HEADER_MAP_BYTES, HEADER_MAP_OFFSET, HEADER_RECORD_OFFSET, HEADER_TYPE_OFFSET, Header,
    MAP_NODE_BYTES, NODE_BYTES, NodeDescriptor, NodeKind, RECORDS_OFFSET,
};

/// Bytes of a logical block, the unit a device writes atomically.
pub const BLOCK_BYTES: usize = 512;

/// The id of the root's parent, which is no folder.
pub const ROOT_PARENT_ID: u32 = 1;
/// The id of the root folder.
pub const ROOT_ID: u32 = 2;
/// The id of the extents overflow file.
pub const EXTENTS_ID: u32 = 3;
/// The id of the catalog file.
pub const CATALOG_ID: u32 = 4;
/// The id of the file that owns the bad blocks.
pub const BAD_BLOCKS_ID: u32 = 5;
/// The first id that a file or folder can have.
pub const FIRST_ID: u32 = 16;

/// Most bytes of a fork.
pub const FORK_MAX_BYTES: u32 = i32::MAX.unsigned_abs();

/// Seconds from 1904, the HFS epoch, to 1970.
pub const EPOCH_1904_SECS: i64 = 2_082_844_800;
