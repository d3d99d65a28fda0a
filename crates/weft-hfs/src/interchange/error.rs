//! Why a file could not be packed or unpacked.

use crate::macroman;
use std::io;

/// The result of packing or unpacking.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file could not be packed or unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are not what the format asks for.
    #[error("{structure} at byte {at}: {problem}")]
    Corrupt {
        /// The structure's name, such as `"MacBinary header"`.
        structure: &'static str,
        /// Where it begins, in bytes.
        at: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A checksum is wrong: the content is not what was packed.
    #[error("{structure}: its checksum is {found:#06x} and should be {expected:#06x}")]
    Checksum {
        /// What was summed, such as `"BinHex data fork"`.
        structure: &'static str,
        /// What the file says.
        expected: u16,
        /// What comes of the content.
        found: u16,
    },
    /// A format has no place for what it was given.
    #[error("{format} cannot hold {what}")]
    CannotHold {
        /// The format's name.
        format: &'static str,
        /// What, with its size.
        what: String,
    },
    /// A fork does not have the length it was announced with.
    #[error("the {fork} fork was announced with {announced} bytes and has {found}")]
    Length {
        /// `"data"` or `"resource"`.
        fork: &'static str,
        /// What the [`Meta`](super::Meta) said.
        announced: u64,
        /// How many bytes there were; one more than announced if there were too many.
        found: u64,
    },
    /// A text is not UTF-8, or has a character that MacRoman has not. The place is in bytes.
    #[error("the text cannot be converted: {0}")]
    Text(#[from] macroman::Error),
}

pub(super) fn corrupt(structure: &'static str, at: u64, problem: impl Into<String>) -> Error {
    Error::Corrupt { structure, at, problem: problem.into() }
}
