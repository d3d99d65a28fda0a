//! Errors of cache operations. A variant exists only where a caller would act differently.

use std::io;

/// The result of a cache operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a cache operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache device failed a request.
    #[error("cache device: {0}")]
    CacheDevice(#[source] weft_block::Error),
    /// The origin failed a request.
    #[error("origin {label:?}: {source}")]
    Origin {
        /// The origin's label.
        label: String,
        /// The error of its device.
        source: weft_block::Error,
    },
    /// There is no cache on the device.
    #[error("not a weft cache: {0}")]
    NotACache(&'static str),
    /// The cache was made by a later version of weft, or with a feature this one does not know.
    #[error("the cache needs a later version of weft: {0}")]
    Incompatible(String),
    /// A structure of the cache is damaged, and dirty data may be lost with it. `check` reports
    /// more, `repair` keeps all that is provably good.
    #[error(
        "{structure} at byte {offset} of the cache is damaged: {problem}; dirty data may be lost, so the cache is not opened before a repair"
    )]
    Damaged {
        /// The structure's name.
        structure: &'static str,
        /// Its byte offset on the cache device.
        offset: u64,
        /// A description of the damage.
        problem: String,
    },
    /// The cache device is shorter than the cache on it: its end is missing.
    #[error(
        "the cache takes {len_bytes} bytes, and its device has only {device_bytes}: the end of it is missing, and dirty data may be lost with it"
    )]
    Shortened {
        /// Length of the cache.
        len_bytes: u64,
        /// Length of its device.
        device_bytes: u64,
    },
    /// Data that exists only in the cache does not match its checksum.
    #[error("dirty block at bytes {offset}..{end} of origin {label:?} is damaged in the cache (slot {slot})", end = offset + len_bytes)]
    DirtyDamaged {
        /// The origin's label.
        label: String,
        /// The block's byte offset in the origin.
        offset: u64,
        /// Length of the damaged part, in bytes.
        len_bytes: u64,
        /// The slot that holds the block.
        slot: u32,
    },
    /// The cache has records of other origins than the one given.
    #[error("the cache belongs to {known}; the origin given is {given}")]
    OtherOrigin {
        /// The origins that the cache has records of.
        known: String,
        /// The origin that was given.
        given: String,
    },
    /// The origin is not in the state in which the cache left it.
    #[error(
        "origin {label:?} was changed without the cache: {why}; {dirty_bytes} bytes of it are dirty in the cache"
    )]
    OriginChanged {
        /// The origin's label.
        label: String,
        /// The difference that was found.
        why: String,
        /// Bytes that exist only in the cache.
        dirty_bytes: u64,
    },
    /// The origin has another length than when the cache left it.
    #[error(
        "origin {label:?} had {was_bytes} bytes and has {is_bytes}; {dirty_bytes} bytes of it are dirty in the cache{}",
        if *lost_bytes > 0 { format!(", {lost_bytes} of them behind its new end") } else { String::new() }
    )]
    OriginResized {
        /// The origin's label.
        label: String,
        /// The recorded length.
        was_bytes: u64,
        /// The present length.
        is_bytes: u64,
        /// Bytes that exist only in the cache.
        dirty_bytes: u64,
        /// Bytes of dirty data for which the origin has no room.
        lost_bytes: u64,
    },
    /// The origin is attached already, or the device that was detached from it is still in use.
    #[error(
        "origin {0:?} is in use: it is attached to this cache, or a device that was detached from it is still open; drop that device first"
    )]
    OriginBusy(String),
    /// The cache has no record of this origin.
    #[error("the cache does not know an origin {0:?}")]
    UnknownOrigin(String),
    /// The cache device has failed while it held data that exists nowhere else.
    #[error(
        "the cache device has failed and holds {dirty_bytes} bytes that are nowhere else: {why}"
    )]
    Failed {
        /// Bytes that exist only in the cache.
        dirty_bytes: u64,
        /// The first failure.
        why: String,
    },
    /// The cache device has failed, and marking it as out of date failed as well. If the origin
    /// were changed where the cache has clean blocks, the cache would serve stale ones when it is
    /// opened again.
    #[error(
        "the cache device has failed and cannot be marked as out of date, so what it may hold is not \
         changed ({why}); use the origin without the cache, and never with this one again"
    )]
    Unmarked {
        /// The reason why marking it failed.
        why: String,
    },
    /// Dirty data cannot be written to the origin at present; it stays in the cache.
    #[error("{dirty_bytes} dirty bytes cannot be written back: {why}")]
    StillDirty {
        /// Bytes that still exist only in the cache.
        dirty_bytes: u64,
        /// The origin's last error, or the condition that is waited for.
        why: String,
    },
    /// The cache was opened for reading only.
    #[error("the cache is open for reading only")]
    ReadOnly,
    /// The cache has been closed.
    #[error("the cache is closed")]
    Closed,
    /// An option is invalid, or conflicts with another one.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Makes an [`Error::Damaged`].
    pub(crate) fn damaged(
        structure: &'static str,
        offset: u64,
        problem: impl Into<String>,
    ) -> Self {
        Self::Damaged { structure, offset, problem: problem.into() }
    }
}

/// The error that a user of the cached device gets.
impl From<Error> for weft_block::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::CacheDevice(source) | Error::Origin { source, .. } => source,
            Error::ReadOnly => Self::ReadOnly,
            Error::DirtyDamaged { offset, len_bytes, .. } => {
                Self::io("read", offset, len_bytes, io::Error::other(error.to_string()))
            }
            other => Self::io("cached request", 0, 0, io::Error::other(other.to_string())),
        }
    }
}
