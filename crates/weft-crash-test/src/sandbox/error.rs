//! The errors of workers and their commands.

use std::io;
use std::path::PathBuf;

/// The result of a call of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a worker could not do what it was asked for. How a command ended is no error: see
/// [`Ended`](super::Ended).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The worker process could not be started.
    #[error("cannot start a worker process: {0}")]
    Start(#[source] io::Error),
    /// The host allows no namespaces, and nothing else was asked for.
    #[error("no namespaces for a worker process: {0}")]
    NoNamespaces(String),
    /// The directory for mount points cannot be used.
    #[error("cannot make the mount point {}: {source}", path.display())]
    Mountpoint {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The worker has ended: it was killed, or it failed.
    #[error("the worker process has ended")]
    Gone,
    /// The worker did not answer in time.
    #[error("the worker process did not answer in time")]
    TimedOut,
    /// [`interrupt`](super::interrupt) was called.
    #[error("interrupted")]
    Interrupted,
    /// A message could not be sent or received.
    #[error("cannot exchange messages with the worker process: {0}")]
    Channel(#[source] io::Error),
    /// A message is longer than any may be, or its length is not that of a message.
    #[error("a message of {0} bytes is too long")]
    MessageTooLong(u64),
    /// A message is not what was expected.
    #[error("a message cannot be understood: {0}")]
    Message(#[from] serde_json::Error),
    /// The file system could not be mounted or unmounted.
    #[error(transparent)]
    Mount(#[from] weft_fuse::Error),
    /// A command could not be started.
    #[error("cannot start {command:?}: {source}")]
    Command {
        /// The shell line.
        command: String,
        /// The reason.
        source: io::Error,
    },
    /// A command was started, but its end or its output could not be waited for.
    #[error("cannot wait for a command: {0}")]
    Wait(#[source] io::Error),
}
