//! The error type of every file system: an errno for the caller, and a message.

use std::borrow::Cow;

/// The result of a file-system call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a file-system call failed, with a variant for each errno that a caller handles.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `ENOENT`
    #[error("no such file or directory")]
    NotFound,
    /// `EEXIST`
    #[error("file exists")]
    Exists,
    /// `ENOTDIR`
    #[error("not a directory")]
    NotADirectory,
    /// `EISDIR`
    #[error("is a directory")]
    IsADirectory,
    /// `ENOTEMPTY`
    #[error("directory not empty")]
    NotEmpty,
    /// `ENAMETOOLONG`
    #[error("name too long")]
    NameTooLong,
    /// `EACCES`
    #[error("permission denied")]
    Access,
    /// `EPERM`
    #[error("operation not permitted")]
    NotPermitted,
    /// `ENOSPC`
    #[error("no space left on the volume")]
    NoSpace,
    /// `EFBIG`
    #[error("file too large")]
    TooLarge,
    /// `ENOTTY`: the file knows no such command
    #[error("no such command for this file")]
    UnknownCommand,
    /// `EMLINK`
    #[error("too many links")]
    TooManyLinks,
    /// `ELOOP`
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// `EROFS`
    #[error("read-only file system")]
    ReadOnly,
    /// `EINVAL`
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// `ENXIO`: no data or hole at or after the offset of a seek
    #[error("no such address")]
    NoAddress,
    /// `ENODATA`: no such extended attribute
    #[error("no such attribute")]
    NoAttribute,
    /// `ERANGE`: the caller's buffer is too small
    #[error("buffer too small")]
    Range,
    /// `ESTALE`: no inode has this number any more
    #[error("stale inode number {0}")]
    Stale(u64),
    /// `EBUSY`
    #[error("busy")]
    Busy,
    /// `EAGAIN`: the file is locked by another owner, or the call would wait where it must not
    #[error("the call would wait")]
    WouldBlock,
    /// `EINTR`
    #[error("interrupted")]
    Interrupted,
    /// `EDEADLK`: each would wait for the other
    #[error("waiting for the lock would never end")]
    Deadlock,
    /// `ENOLCK`
    #[error("too many locks")]
    NoLocks,
    /// `EXDEV`
    #[error("crosses a volume")]
    CrossDevice,
    /// `EOVERFLOW`: a number does not fit where the format keeps it
    #[error("value too large for the format: {0}")]
    Overflow(&'static str),
    /// `EOPNOTSUPP`
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// `EUCLEAN`: the volume's structures are damaged; the message names structure and place
    #[error("damaged volume: {0}")]
    Corrupt(Cow<'static, str>),
    /// `ENOKEY`: the content is encrypted, and this mount does not have the key; the message names
    /// both
    #[error("{0}")]
    NoKey(String),
    /// `EKEYREJECTED`: authentication failed: the stored data were not encrypted with this key for
    /// this file and position; the message names them
    #[error("{0}")]
    KeyRejected(String),
    /// Any other error of a lower layer, with the closest errno (usually `EIO`).
    #[error("{message}")]
    Io {
        /// The errno for the caller.
        errno: i32,
        /// The operation that failed, and its object.
        message: String,
    },
}

impl Error {
    /// Returns the errno of this error, as Linux numbers it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::Interrupted => 4,
            Self::NoAddress => 6,
            Self::WouldBlock => 11,
            Self::Access => 13,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::CrossDevice => 18,
            Self::NotADirectory => 20,
            Self::IsADirectory => 21,
            Self::Invalid(_) => 22,
            Self::UnknownCommand => 25,
            Self::TooLarge => 27,
            Self::NoSpace => 28,
            Self::ReadOnly => 30,
            Self::TooManyLinks => 31,
            Self::Range => 34,
            Self::Deadlock => 35,
            Self::NameTooLong => 36,
            Self::NoLocks => 37,
            Self::NotEmpty => 39,
            Self::SymlinkLoop => 40,
            Self::NoAttribute => 61,
            Self::Overflow(_) => 75,
            Self::Unsupported(_) => 95,
            Self::Stale(_) => 116,
            Self::Corrupt(_) => 117,
            Self::NoKey(_) => 126,
            Self::KeyRejected(_) => 129,
            Self::Io { errno, .. } => *errno,
        }
    }
}
