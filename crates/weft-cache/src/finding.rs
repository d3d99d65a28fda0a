//! The defects of a cache that an opening or a check finds.

use std::fmt;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Only performance is lost.
    Clean,
    /// Dirty data may be out of date or lost: the cache cannot be opened before a repair.
    Dirty,
}

/// A defect of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// One of the superblock's two copies is invalid. The other is enough.
    SuperblockCopy {
        /// 0 or 1.
        copy: u8,
        /// A description of the damage.
        problem: String,
    },
    /// Neither checkpoint has a valid header: only the log can be read.
    NoCheckpoint,
    /// A page of the newest checkpoint is damaged.
    CheckpointPage {
        /// `"intents"`, `"map"`, `"dirty entries"` or `"clean entries"`.
        what: &'static str,
        /// The page's index.
        index: u64,
    },
    /// The log ends before a point that was durable.
    LogDamaged {
        /// The number of the first block that is missing.
        end: u64,
        /// Number up to which the log was durable.
        durable: u64,
    },
    /// A slot's data does not match its checksum.
    Data {
        /// The slot.
        slot: u32,
        /// The origin's label.
        origin: String,
        /// Byte offset of the damaged part in the origin.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
        /// True if the data is dirty: only the cache has it.
        dirty: bool,
    },
    /// The superblock's newer copy is lost: its changes since the other copy are unknown.
    SuperblockOld {
        /// The evidence.
        problem: String,
    },
    /// A block of the last commit does not match that commit, and stays as it was before. After a
    /// power cut during a flush this is normal, as that flush never returned; otherwise the cache
    /// device has damaged the block.
    LastCommit {
        /// The origin's label.
        origin: String,
        /// Byte offset of that part in the origin.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// A dirty block that may be older than one whose record is missing; a repair keeps it.
    MaybeOutOfDate {
        /// The origin's label.
        origin: String,
        /// Byte offset of the block in the origin.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
}

impl Finding {
    /// Returns the severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::NoCheckpoint
            | Self::SuperblockOld { .. }
            | Self::LogDamaged { .. }
            | Self::MaybeOutOfDate { .. }
            | Self::Data { dirty: true, .. }
            | Self::CheckpointPage { what: "dirty entries", .. } => Severity::Dirty,
            Self::SuperblockCopy { .. }
            | Self::CheckpointPage { .. }
            | Self::LastCommit { .. }
            | Self::Data { .. } => Severity::Clean,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SuperblockCopy { copy, problem } => {
                write!(f, "superblock, copy {copy}: {problem}")
            }
            Self::SuperblockOld { problem } => write!(f, "superblock: {problem}"),
            Self::LastCommit { origin, offset, len_bytes } => {
                let end = offset + len_bytes;
                write!(
                    f,
                    "bytes {offset}..{end} of {origin:?} stay as they were before the last commit, \
                     which is not whole: the power went during it, or the cache device has damaged \
                     it"
                )
            }
            Self::NoCheckpoint => f.write_str("no checkpoint has a valid header"),
            Self::CheckpointPage { what, index } => {
                write!(f, "checkpoint: page {index} of the {what} is damaged")
            }
            Self::LogDamaged { end, durable } => {
                write!(f, "log: blocks {end} to {} are missing or damaged", durable - 1)
            }
            Self::Data { slot, origin, offset, len_bytes, dirty } => {
                let kind = if *dirty { "dirty" } else { "clean" };
                let end = offset + len_bytes;
                write!(
                    f,
                    "slot {slot}: {kind} bytes {offset}..{end} of {origin:?} do not match their checksum"
                )
            }
            Self::MaybeOutOfDate { origin, offset, len_bytes } => {
                let end = offset + len_bytes;
                write!(f, "dirty bytes {offset}..{end} of {origin:?} may be out of date")
            }
        }
    }
}
