//! Errors of using or replaying a journal.

/// The result of a journal operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a journal operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device that holds the log, or the volume it is replayed to, failed.
    #[error(transparent)]
    Device(#[from] weft_block::Error),
    /// Replay could not write a block of the volume.
    #[error("cannot replay journal block to block {block} of the volume: {source}")]
    Replay {
        /// The volume's block.
        block: u64,
        /// The writer's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The journal's superblock is invalid.
    #[error("journal superblock: {0}")]
    BadSuperblock(String),
    /// The journal uses features this code does not know.
    #[error("journal uses unknown {kind} features {names}")]
    UnknownFeatures {
        /// `"incompatible"` or `"read-only-compatible"`.
        kind: &'static str,
        /// The bits by name where they have one.
        names: String,
    },
    /// A block in the middle of the log is damaged: transactions after it exist and cannot be
    /// replayed. `fsck --repair` replays the transactions before it.
    #[error("journal is damaged: {0}")]
    Damaged(super::Damage),
    /// A block number lies outside the log.
    #[error("log block {block} is outside the log of {len_blocks} blocks")]
    OutsideLog {
        /// The requested number.
        block: u32,
        /// Length of the log.
        len_blocks: u32,
    },
    /// A transaction breaks a rule of the format.
    #[error("cannot build a transaction: {0}")]
    BadTransaction(String),
}
