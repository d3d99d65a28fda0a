//! Errors of the engine.

use crate::{BlockNr, PatchGroupError};

/// The result of an engine call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An engine error. The device's errors are passed on with the block they concern.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed; the change stays in memory and is tried again by the next sync.
    #[error("block {nr}: {message}")]
    Device {
        /// The first block of the failed request.
        nr: BlockNr,
        /// The device's errno.
        errno: i32,
        /// The device's error message.
        message: String,
    },
    /// A flush of the device failed: blocks written since the last flush are written again.
    #[error("flushing the device failed: {message}")]
    Flush {
        /// The device's errno.
        errno: i32,
        /// The device's error message.
        message: String,
    },
    /// A block number is beyond the end of the device.
    #[error("block {nr} is beyond the end of the device, which has {len_blocks} blocks")]
    OutOfRange {
        /// The requested block.
        nr: BlockNr,
        /// Number of blocks of the device.
        len_blocks: u64,
    },
    /// A block is not in memory, and the operation will be tried again when it is: see
    /// [`Engine::look`](crate::Engine::look).
    #[error("block {nr} is not in memory yet")]
    NotInMemory {
        /// The block.
        nr: BlockNr,
    },
    /// The call would wait, in a thread that must not: see
    /// [`without_waiting`](crate::without_waiting).
    #[error("the call would wait")]
    WouldWait,
    /// A change extends beyond the end of its block.
    #[error("a change of {len_bytes} bytes at offset {offset} does not fit in block {nr}")]
    BadRange {
        /// The block.
        nr: BlockNr,
        /// Byte offset within the block.
        offset: usize,
        /// Length in bytes.
        len_bytes: usize,
    },
    /// A change was requested on a read-only device.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The engine, or the device, panicked while it wrote: nothing is written any more. Durable
    /// changes stay durable, and opening the volume again recovers it.
    #[error(
        "writing was interrupted by an internal error; nothing is written until the volume is opened again"
    )]
    Halted,
    /// The engine belongs to another process, from which this one was forked: see
    /// [`OwnerProcess`](crate::OwnerProcess).
    #[error(
        "the volume was opened by another process, and cannot be used after a fork: open it in this process, \
         once the other has closed it"
    )]
    OtherProcess,
    /// The options contradict each other or the device.
    #[error("{0}")]
    Invalid(String),
    /// A bug of the engine: what cannot be written stays in memory.
    #[error("internal error: {0}")]
    Internal(String),
    /// The journal cannot hold the operation.
    #[error("an operation of up to {needed} blocks does not fit in a journal of {available}")]
    JournalTooSmall {
        /// Number of log blocks that the operation may need.
        needed: u32,
        /// Number of log blocks in the journal.
        available: u32,
    },
    /// The journal's own structures are damaged.
    #[error("journal: {0}")]
    Journal(String),
    /// An operation of an atomic patchgroup may change more than the group may.
    #[error(
        "an operation of up to {needed} blocks, and the atomic patchgroup may change {left} more"
    )]
    AtomicTooLarge {
        /// The most blocks that the operation changes.
        needed: u32,
        /// Number of blocks that the group may still change.
        left: u32,
    },
    /// A patchgroup does not allow the call.
    #[error(transparent)]
    PatchGroup(#[from] PatchGroupError),
}

impl Error {
    pub(crate) fn device(nr: BlockNr, e: &weft_block::Error) -> Self {
        Self::Device { nr, errno: e.errno(), message: e.to_string() }
    }

    pub(crate) fn flush(e: &weft_block::Error) -> Self {
        Self::Flush { errno: e.errno(), message: e.to_string() }
    }

    /// Returns the errno nearest to this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Device { errno, .. } | Self::Flush { errno, .. } => *errno,
            Self::ReadOnly => 30,
            Self::OtherProcess => libc::EBADF,
            Self::Invalid(_) => 22,
            Self::NotInMemory { .. } | Self::WouldWait => 11,
            Self::OutOfRange { .. }
            | Self::BadRange { .. }
            | Self::Journal(_)
            | Self::Internal(_)
            | Self::Halted => 5,
            Self::JournalTooSmall { .. } => 28,
            Self::AtomicTooLarge { .. } => libc::EFBIG,
            Self::PatchGroup(e) => e.errno(),
        }
    }
}
