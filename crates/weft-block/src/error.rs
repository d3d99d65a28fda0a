//! One error type for every device. A variant exists only where a caller would act differently.

use std::io;
use std::path::PathBuf;

/// The result of a block operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a block operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system or the simulated medium failed the request.
    #[error("{op} of {len_bytes} bytes at offset {offset} failed: {source}")]
    Io {
        /// `"read"`, `"write"`, `"flush"`, `"discard"`, ...
        op: &'static str,
        /// Byte offset of the request on the device.
        offset: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The request reaches past the end of the device.
    #[error(
        "{op} of {len_bytes} bytes at offset {offset} reaches past the end of the device at {device_bytes}"
    )]
    OutOfRange {
        /// The request, such as `"read"`.
        op: &'static str,
        /// Byte offset of the request.
        offset: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
        /// Length of the device in bytes.
        device_bytes: u64,
    },
    /// A change was asked of a device opened for reading only.
    #[error("the device is read-only")]
    ReadOnly,
    /// Another process holds the device for writing (or we want to write and it is held at all).
    #[error("{path} is in use by another process; unmount it or wait for that process to end")]
    Locked {
        /// The image or block special file.
        path: PathBuf,
    },
    /// The same, by this very process.
    #[error("{path} is open in this process already; use that, or close it first")]
    LockedHere {
        /// The image or block special file.
        path: PathBuf,
    },
    /// The kernel uses the file: writes would damage what it keeps there.
    #[error("{path} is in use: {by}; {remedy}")]
    InUse {
        /// The image or block special file.
        path: PathBuf,
        /// The use.
        by: String,
        /// How it is ended.
        remedy: String,
    },
    /// A path could not be opened as a device.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The path that was given.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A structure on the device (a partition table, a log, ...) is damaged.
    #[error("{structure} at byte {offset}: {problem}")]
    Corrupt {
        /// The structure's name, such as `"GPT header"`.
        structure: &'static str,
        /// The offset of the structure on the device, in bytes.
        offset: u64,
        /// The damage.
        problem: String,
    },
    /// A part of what was found is of a kind that is not read (a compression, an encryption).
    #[error("{structure} at byte {offset}: {what} is not supported")]
    Unsupported {
        /// The structure's name, such as `"NDIF chunk"`.
        structure: &'static str,
        /// The offset of the structure on the device, in bytes.
        offset: u64,
        /// The unsupported feature.
        what: String,
    },
    /// A description of a device names something that does not exist or makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A text that describes no device, whatever is there.
    #[error("{part:?} in {text:?}: {problem}")]
    Description {
        /// The whole text.
        text: String,
        /// The part of it that cannot be parsed.
        part: String,
        /// The reason.
        problem: String,
    },
}

impl Error {
    /// Makes an [`Error::Io`].
    pub fn io(op: &'static str, offset: u64, len_bytes: u64, source: io::Error) -> Self {
        Self::Io { op, offset, len_bytes, source }
    }

    /// The errno nearest to this error, for fronts that speak errno.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            Self::Io { source, .. } | Self::Open { source, .. } => {
                source.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
            }
            Self::ReadOnly => Errno::ROFS.raw_os_error(),
            Self::Locked { .. } | Self::LockedHere { .. } | Self::InUse { .. } => {
                Errno::BUSY.raw_os_error()
            }
            Self::OutOfRange { .. } | Self::Corrupt { .. } => Errno::IO.raw_os_error(),
            Self::Unsupported { .. } => Errno::OPNOTSUPP.raw_os_error(),
            Self::Invalid(_) | Self::Description { .. } => Errno::INVAL.raw_os_error(),
        }
    }
}
