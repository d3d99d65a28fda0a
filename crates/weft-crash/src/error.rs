//! Why an exploration could not be carried out. What it *finds* is no error but a
//! [`Violation`](crate::Violation).

/// The result of a step of an exploration.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step of an exploration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text of a workload or of a crash state is not understood.
    #[error("{0}")]
    Syntax(String),
    /// An operation makes no sense where it stands.
    #[error("operation {number} ({op}): {problem}")]
    Model {
        /// Its place in the workload, from 1.
        number: usize,
        /// The operation.
        op: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A device failed.
    #[error(transparent)]
    Block(#[from] weft_block::Error),
    /// The file system under test refused what it should have done.
    #[error("{what}: {source}")]
    Fs {
        /// What was asked of it.
        what: String,
        /// What it said.
        source: weft_vfs::Error,
    },
    /// The volume could not be made, mounted, checked or repaired.
    #[error("{0}")]
    Target(String),
    /// Another program could not be run.
    #[error("cannot run {program}: {source}")]
    Tool {
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn fs(what: impl Into<String>) -> impl FnOnce(weft_vfs::Error) -> Self {
        let what = what.into();
        move |source| Self::Fs { what, source }
    }
}
