//! Errors of a mounted volume; callers of the file plug get the errno that an error maps to.

use std::borrow::Cow;

/// The result of a call on a mounted volume.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call on a mounted volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// A rule inside weft was broken, or an argument makes no sense.
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

impl From<Error> for weft_vfs::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Corrupt { .. } => Self::Corrupt(Cow::Owned(error.to_string())),
            Error::Invalid(message) => Self::Io { errno: 22, message },
            Error::Device(e) => Self::Io { errno: e.errno(), message: e.to_string() },
            Error::Engine(weft_patch::Error::ReadOnly) => Self::ReadOnly,
            Error::Engine(weft_patch::Error::WouldWait) => Self::WouldBlock,
            Error::Engine(e) => Self::Io { errno: e.errno(), message: e.to_string() },
            Error::Vfs(e) => e,
        }
    }
}
