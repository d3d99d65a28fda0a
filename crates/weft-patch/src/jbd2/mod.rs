//! The JBD2 journal format, as ext3 and ext4 use it: codec, recovery, and the blocks of a commit.
//! It is independent of any file system: a log is a sequence of blocks ([`LogMap`]) in a volume's
//! own blocks, on an external journal device, or in a file beside the volume.
//!
//! Layout facts are from Linux `Documentation/filesystems/ext4/journal.rst` and the headers of
//! e2fsprogs. All integers on disk are big-endian.
//!
//! ```text
//! log block   0              first ..                                          maxlen
//!             superblock     [ descriptor | data .. | revoke | commit ]* ring, wraps to `first`
//! ```
//!
//! # Invariants
//!
//! - Every log block that is not a data copy starts with a [`Header`] that carries the sequence
//!   number of its transaction; a data copy that would look like one is *escaped*.
//! - A transaction is valid exactly if its commit block is; transactions are numbered without gaps
//!   (modulo 2³²), so the log ends at the first block that does not fit.
//! - A revoke record of transaction `t` cancels copies of that block in transactions up to and
//!   with `t`. A block must therefore not be written and revoked in one transaction.
//! - [`Log::recover`] changes the volume only, so that it can be interrupted and repeated; the log
//!   is emptied by [`Log::reset`] after the volume has been flushed.
//! - The codec ([`superblock`], [`descriptor`], [`revoke`], [`commit`]) does no I/O and never
//!   panics, whatever the bytes.

mod be;
mod checksum;
pub mod commit;
pub mod descriptor;
mod error;
mod header;
mod log;
mod map;
mod recover;
pub mod revoke;
pub mod superblock;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use header::{BlockType, HEADER_BYTES, Header, MAGIC};
pub use log::Log;
pub use map::LogMap;
pub use recover::{Damage, Recovery};
pub use superblock::{FORMAT_MAX_USERS, FormatOptions, Superblock, format_journal_superblock};
pub use writer::{Format, Transaction, build_transaction, commit_block, log_blocks_needed};
pub use {commit::CommitTime, superblock::Features};

/// Returns true if sequence number `a` is later than `b`, on the circle of 2³² numbers.
#[must_use]
pub fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}
