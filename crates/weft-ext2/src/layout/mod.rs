//! The structures of an ext2/ext3 volume, as plain types with their offsets in bytes.
//!
//! Sources: the Linux kernel's ext4 documentation (*Data Structures and Algorithms*,
//! `Documentation/filesystems/ext4/`), and what e2fsprogs writes. All numbers on disk are little
//! endian. Nothing here reads or writes a device: parsers take bytes and give values (or an
//! [`Error`](crate::Error)), encoders put values over the bytes of a structure and leave fields
//! they do not know as they were.

mod acl;
pub mod bytes;
mod dirent;
mod features;
mod geometry;
mod group;
mod htree;
mod inode;
mod map;
mod superblock;
mod xattr;

pub use acl::{acl_from_disk, acl_to_disk};
pub use dirent::{
    DIRENT_HEADER_BYTES, DIRENT_NAME_MAX_BYTES, Dirents, RawDirent, dirent_len, file_type_code,
    file_type_kind, put_dirent,
};
pub use features::{Compat, Features, Incompat, RoCompat};
pub use geometry::{GROUP_DESC_BYTES, Geometry};
pub use group::GroupDesc;
pub use htree::{HtreeRoot, is_htree_root};
pub use inode::{
    BAD_INO, BLOCK_SLOTS, DIRECT_SLOTS, FAST_SYMLINK_MAX_BYTES, GOOD_OLD_FIRST_INO,
    GOOD_OLD_INODE_BYTES, Inode, InodeFlags, JOURNAL_INO, LINK_MAX, RESIZE_INO, ROOT_INO,
    SLOT_DOUBLE, SLOT_INDIRECT, SLOT_TRIPLE, WANT_EXTRA_BYTES,
};
pub(crate) use map::{MapPath, mappable_bytes};
pub use superblock::{
    BACKUP_SUPERBLOCK_OFFSET, CreatorOs, MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State,
    Superblock,
};
pub use xattr::{
    XATTR_BLOCK_HEADER_BYTES, XATTR_ENTRY_BYTES, XATTR_MAGIC, Xattr, XattrIndex, XattrRegion,
    encode_xattr_block, encode_xattr_inode, parse_xattr_block, parse_xattr_inode, xattr_block_hash,
    xattr_block_refcount, xattr_entry_hash,
};
