//! Errors of a volume; callers of the file plug get the errno that an error maps to.

use std::borrow::Cow;

/// The result of a call on an ext2 volume.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call on a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The superblock does not carry the ext2 magic: this is some other format, or nothing.
    #[error("not an ext2 volume: the superblock's magic is {found:#06x}, not 0xef53")]
    NotExt2 {
        /// The value in the magic's place.
        found: u16,
    },
    /// A structure on the volume contradicts itself or the others.
    #[error("{structure} in block {block}: {problem}")]
    Corrupt {
        /// The structure, such as `"inode 12"`.
        structure: Cow<'static, str>,
        /// The block it lies in (0 where it names none).
        block: u64,
        /// The fault.
        problem: Cow<'static, str>,
    },
    /// The volume uses incompatible features this crate does not know; they are named.
    #[error("the volume uses features that are not supported: {features}")]
    Incompatible {
        /// Their names, as mke2fs spells them, separated by commas.
        features: String,
    },
    /// The volume can only be read (unknown read-only-compatible features, or damage), but
    /// writing was asked for.
    #[error("the volume can only be opened read-only: {0}")]
    ReadOnly(String),
    /// An argument (of mkfs, of open) makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] weft_block::Error),
    /// The engine failed, mostly because the device did.
    #[error(transparent)]
    Engine(#[from] weft_patch::Error),
    /// A call of the file plug failed for a reason a caller acts on.
    #[error(transparent)]
    Vfs(#[from] weft_vfs::Error),
}

impl Error {
    /// Makes an [`Error::Corrupt`].
    pub fn corrupt(
        structure: impl Into<Cow<'static, str>>,
        block: u64,
        problem: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Corrupt { structure: structure.into(), block, problem: problem.into() }
    }
}

impl From<weft_unix::Error> for Error {
    fn from(error: weft_unix::Error) -> Self {
        match error {
            weft_unix::Error::Corrupt { structure, block, problem } => {
                Self::Corrupt { structure, block, problem }
            }
            weft_unix::Error::Invalid(message) => Self::Invalid(message),
            weft_unix::Error::Device(e) => Self::Device(e),
            weft_unix::Error::Engine(e) => Self::Engine(e),
            weft_unix::Error::Vfs(e) => Self::Vfs(e),
            // Errors that the front gains later are for callers, not for this crate.
            other => Self::Vfs(other.into()),
        }
    }
}

impl From<Error> for weft_vfs::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Corrupt { .. } | Error::NotExt2 { .. } => {
                Self::Corrupt(Cow::Owned(error.to_string()))
            }
            Error::Incompatible { .. } => Self::Unsupported("features of the volume"),
            Error::ReadOnly(_) => Self::ReadOnly,
            Error::Invalid(message) => Self::Io { errno: 22, message },
            Error::Device(e) => Self::Io { errno: e.errno(), message: e.to_string() },
            Error::Engine(weft_patch::Error::ReadOnly) => Self::ReadOnly,
            Error::Engine(weft_patch::Error::WouldWait) => Self::WouldBlock,
            Error::Engine(e) => Self::Io { errno: e.errno(), message: e.to_string() },
            Error::Vfs(e) => e,
        }
    }
}
