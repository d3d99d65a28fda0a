//! Errors of packing and unpacking.

use crate::macroman;
use std::io;

/// The result of packing or unpacking.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a file could not be packed or unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are not valid in the format.
    #[error("{structure} at byte {at}: {problem}")]
    Corrupt {
        /// The structure's name, such as `"MacBinary header"`.
        structure: &'static str,
        /// The offset of the structure, in bytes.
        at: u64,
        /// The problem with the structure.
        problem: String,
    },
    /// A checksum is wrong: the content is not the one that was packed.
    #[error("{structure}: its checksum is {found:#06x} and should be {expected:#06x}")]
    Checksum {
        /// The summed structure, such as `"BinHex data fork"`.
        structure: &'static str,
        /// The checksum in the file.
        expected: u16,
        /// The checksum of the content.
        found: u16,
    },
    /// The format cannot hold the given file.
    #[error("{format} cannot hold {what}")]
    CannotHold {
        /// The format's name.
        format: &'static str,
        /// The part that does not fit, with its size.
        what: String,
    },
    /// A fork does not have the length it was announced with.
    #[error("the {fork} fork was announced with {announced} bytes and has {found}")]
    Length {
        /// `"data"` or `"resource"`.
        fork: &'static str,
        /// The length in the [`Meta`](super::Meta).
        announced: u64,
        /// The number of bytes read; one more than announced if there were too many.
        found: u64,
    },
    /// A text is not UTF-8, or has a character that MacRoman does not have. The offset is in bytes.
    #[error("the text cannot be converted: {0}")]
    Text(#[from] macroman::Error),
}

pub(super) fn corrupt(structure: &'static str, at: u64, problem: impl Into<String>) -> Error {
    Error::Corrupt { structure, at, problem: problem.into() }
}
