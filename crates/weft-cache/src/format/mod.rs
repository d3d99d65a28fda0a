//! On-disk format of a cache. All numbers are little-endian; all structures are aligned to [`UNIT`]
//! (4 KiB) and carry a CRC32C, a sequence number and the cache's identity.
//!
//! ```text
//! 0      4 KiB   8 KiB                                                                  length
//! | super | super | log: a ring of blocks | checkpoint A | checkpoint B | slot 0, slot 1, ... |
//! ```
//!
//! | structure | written | atomicity |
//! |---|---|---|
//! | [`superblock`] | open, close, attach, detach, resize | each copy is written when the other is durable; the valid one with the higher sequence number is in effect |
//! | [`log`] | each commit | a batch is valid when each of its blocks is valid, in sequence, and the last is flagged as the last |
//! | [`checkpoint`] | log half full, close | its header is written after its pages are durable; the valid header with the higher sequence number is in effect |
//! | slots | fills and writes | none: a slot's content is valid according to a record with the checksum of its data |
//!
//! After a resize, the checkpoints lie after the slots if they do not fit in front.
//!
//! The state of the cache is the newest checkpoint and then the batches of the log from the
//! checkpoint's starting point on, in order. A record contains the whole state of one slot. The
//! last record of a slot is in effect; of two slots with the same block, the one recorded last. An
//! entry of the checkpoint is valid only if neither its slot nor its block occurs in the log after
//! it, since the checkpoint is taken while the cache serves requests.

pub mod checkpoint;
pub mod log;
pub mod record;
pub mod superblock;

use crc32c::{crc32c, crc32c_append};

/// Unit of the metadata, in bytes.
pub const UNIT: usize = 4096;

/// Returns the checksum of `bytes` as if the four bytes at `at` were zero.
pub(crate) fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let (before, rest) = bytes.split_at(at.min(bytes.len()));
    let after = rest.get(4..).unwrap_or_default();
    crc32c_append(crc32c_append(crc32c(before), &[0; 4]), after)
}

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
