//! Errors that prevent an exploration. Its *findings* are no errors but
//! [`Violation`](crate::Violation)s.

/// The result of a step of an exploration.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a step of an exploration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text of a workload or of a crash state cannot be parsed.
    #[error("{0}")]
    Syntax(String),
    /// An operation is impossible in its position.
    #[error("operation {number} ({op}): {problem}")]
    Model {
        /// Its position in the workload, from 1.
        number: usize,
        /// The operation.
        op: String,
        /// The reason.
        problem: String,
    },
    /// A device failed.
    #[error(transparent)]
    Block(#[from] weft_block::Error),
    /// The file system under test refused an operation that it should have done.
    #[error("{what}: {source}")]
    Fs {
        /// The requested operation.
        what: String,
        /// The file system's error.
        source: weft_vfs::Error,
    },
    /// The volume could not be created, mounted, checked or repaired.
    #[error("{0}")]
    Target(String),
    /// Another program could not be run.
    #[error("cannot run {program}: {source}")]
    Tool {
        /// The program.
        program: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn fs(what: impl Into<String>) -> impl FnOnce(weft_vfs::Error) -> Self {
        let what = what.into();
        move |source| Self::Fs { what, source }
    }
}
