//! The errors of a volume.

use alloc::string::String;
use core::fmt;

/// The result of a call of this crate's core.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of a volume operation. A variant exists for each errno a caller acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The device holds no HFS volume: the signature word found, 0 if it is too short for one or
    /// empty there.
    NotHfs {
        /// The word found in place of `BD`.
        found: u16,
    },
    /// A structure of the volume is damaged.
    Corrupt {
        /// The damaged structure.
        structure: String,
        /// The 512-byte block of the volume that holds it; 0 if that is not known.
        block: u64,
        /// The problem with the structure.
        problem: String,
    },
    /// No such file or folder.
    NotFound,
    /// The name is taken.
    Exists,
    /// The item is not a folder, and the operation needs one.
    NotADirectory,
    /// The item is a folder, and the operation needs a file.
    IsADirectory,
    /// The folder has items.
    NotEmpty,
    /// A name of more than 31 bytes (27 for a volume), in MacRoman.
    NameTooLong,
    /// A name that HFS does not allow, and the reason.
    BadName(&'static str),
    /// No room on the volume: for data, or for the catalog to grow.
    NoSpace,
    /// Blocks must be zeroed before the operation, which has changed nothing: see
    /// [`Store::zeroes_before`](crate::store::Store::zeroes_before).
    Unzeroed,
    /// A block is not in memory, and the operation, which has changed nothing, is tried again when
    /// it is.
    NotInMemory,
    /// A fork would grow past 2^31-1 bytes.
    TooLarge,
    /// The volume is read-only, or locked.
    ReadOnly,
    /// A folder has 65,535 items, or the volume has used all its ids.
    TooMany(&'static str),
    /// An invalid argument or state, in words.
    Invalid(String),
    /// A call that is invalid on every volume.
    Refused(&'static str),
    /// No item with this id exists any more.
    Stale(u32),
    /// The device failed.
    Device {
        /// The errno that describes the failure best.
        errno: i32,
        /// The operation that failed, and its location.
        message: String,
    },
}

impl Error {
    /// Damage found in `structure`, which lies in volume block `block`.
    pub fn corrupt(structure: impl Into<String>, block: u64, problem: impl Into<String>) -> Self {
        Self::Corrupt { structure: structure.into(), block, problem: problem.into() }
    }

    /// The errno nearest to this error, as Linux numbers it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::Exists => 17,
            Self::NotADirectory => 20,
            Self::IsADirectory => 21,
            Self::NotHfs { .. } | Self::BadName(_) | Self::Invalid(_) | Self::Refused(_) => 22,
            Self::TooLarge => 27,
            Self::NoSpace => 28,
            // The operation is to be tried again.
            Self::Unzeroed | Self::NotInMemory => 11,
            Self::ReadOnly => 30,
            Self::TooMany(_) => 31,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::Stale(_) => 116,
            Self::Corrupt { .. } => 117,
            Self::Device { errno, .. } => *errno,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHfs { found: 0 } => f.write_str(
                "no HFS volume: there is no volume header, and no copy of one at the end",
            ),
            Self::NotHfs { found } => write!(f, "no HFS volume: its signature is {found:#06x}"),
            // Block 0 is a boot block: the location is not known.
            Self::Corrupt { structure, block: 0, problem } => write!(f, "{structure}: {problem}"),
            Self::Corrupt { structure, block, problem } => {
                write!(f, "{structure} in block {block}: {problem}")
            }
            Self::NotFound => f.write_str("no such file or folder"),
            Self::Exists => f.write_str("the name is taken"),
            Self::NotADirectory => f.write_str("not a folder"),
            Self::IsADirectory => f.write_str("a folder"),
            Self::NotEmpty => f.write_str("the folder is not empty"),
            Self::NameTooLong => {
                f.write_str("the name is longer than HFS allows (31 bytes, a volume's 27)")
            }
            Self::BadName(why) => write!(f, "no HFS name: {why}"),
            Self::NoSpace => f.write_str("no space left on the volume"),
            Self::Unzeroed => f.write_str("new blocks are not zeroed yet"),
            Self::NotInMemory => f.write_str("a block is not in memory yet"),
            Self::TooLarge => f.write_str("a fork of an HFS file has at most 2147483647 bytes"),
            Self::ReadOnly => f.write_str("the volume is read-only"),
            Self::TooMany(what) => write!(f, "the volume has no room for more {what}"),
            Self::Invalid(why) => f.write_str(why),
            Self::Refused(why) => f.write_str(why),
            Self::Stale(id) => write!(f, "there is no item {id} any more"),
            Self::Device { message, .. } => f.write_str(message),
        }
    }
}

impl core::error::Error for Error {}

#[cfg(feature = "std")]
impl From<Error> for weft_vfs::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound => Self::NotFound,
            Error::Exists => Self::Exists,
            Error::NotADirectory => Self::NotADirectory,
            Error::IsADirectory => Self::IsADirectory,
            Error::NotEmpty => Self::NotEmpty,
            Error::NameTooLong => Self::NameTooLong,
            Error::BadName(why) => Self::Invalid(why),
            Error::NoSpace => Self::NoSpace,
            // `change` tries it again.
            Error::Unzeroed | Error::NotInMemory => Self::Busy,
            Error::TooLarge => Self::TooLarge,
            Error::ReadOnly => Self::ReadOnly,
            Error::TooMany(_) => Self::TooManyLinks,
            Error::NotHfs { .. } | Error::Corrupt { .. } => {
                Self::Corrupt(alloc::string::ToString::to_string(&error).into())
            }
            Error::Invalid(message) => Self::Io { errno: 22, message },
            Error::Refused(why) => Self::Invalid(why),
            Error::Stale(id) => Self::Stale(u64::from(id)),
            Error::Device { errno, message } => Self::Io { errno, message },
        }
    }
}
