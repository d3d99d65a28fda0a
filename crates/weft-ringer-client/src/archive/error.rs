//! The errors of an archive.

/// Why a request to an archive failed. Names the archive and the object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Not a URL of an archive.
    #[error("{url}: {why}; write file:///PATH or s3://BUCKET/PREFIX")]
    Url {
        /// The URL that was given.
        url: String,
        /// The error in it.
        why: &'static str,
    },
    /// The object is not there.
    #[error("archive {archive} does not have {object}")]
    Absent {
        /// The archive.
        archive: String,
        /// The object.
        object: String,
    },
    /// The object has other bytes than its name requires.
    #[error("archive {archive} returned wrong bytes for {object}")]
    Wrong {
        /// The archive.
        archive: String,
        /// The object.
        object: String,
    },
    /// Permission was denied: there are no credentials, or others are needed.
    #[error("archive {archive} refused access to {object}: {why}")]
    Denied {
        /// The archive.
        archive: String,
        /// The object.
        object: String,
        /// The answer of the archive.
        why: String,
    },
    /// There is no room.
    #[error("archive {archive} has no room for {object}: {why}")]
    Full {
        /// The archive.
        archive: String,
        /// The object.
        object: String,
        /// The answer of the archive.
        why: String,
    },
    /// The archive did not answer in time.
    #[error("archive {archive} timed out after {limit_millis} ms on {object}")]
    Silent {
        /// The archive.
        archive: String,
        /// The object.
        object: String,
        /// The time limit, in milliseconds.
        limit_millis: u128,
    },
    /// The archive belongs to another cell, or to none.
    #[error("{archive} is not the expected archive of this cell: {why}")]
    Foreign {
        /// The archive.
        archive: String,
        /// The content of its marker.
        why: String,
    },
    /// Another error.
    #[error("archive {archive}, {object}: {why}")]
    Failed {
        /// The archive.
        archive: String,
        /// The object.
        object: String,
        /// The error.
        why: String,
    },
}

/// The result of a request to an archive.
pub type Result<T, E = ArchiveError> = std::result::Result<T, E>;
