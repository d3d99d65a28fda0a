//! The errors of this crate: each names the image, the path and the action that failed.

use std::io;
use std::path::PathBuf;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, could not be opened, or is in use.
    #[error(transparent)]
    Block(#[from] weft_block::Error),
    /// The source holds nothing that weft can read.
    #[error("{image} holds no file system that weft knows; it looks like {saw}")]
    Unrecognised {
        /// The source that was opened.
        image: String,
        /// A description of the content that was found.
        saw: String,
    },
    /// The format's own code refused the volume or found it damaged.
    #[error("{image}: {message}")]
    Volume {
        /// The source that was opened.
        image: String,
        /// The message of the format's code.
        message: String,
    },
    /// A call on a path in a volume failed.
    #[error("cannot {action} {path} in the volume: {source}")]
    File {
        /// The action that failed, as a verb: `"read"`, `"make"`, ...
        action: &'static str,
        /// The path in the volume, as [`shown`](crate::shown()) shows it.
        path: String,
        /// The error of the file system.
        source: weft_vfs::Error,
    },
    /// A call on the host's file system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Host {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The path on the host.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A tar stream is damaged, or has something that weft does not put into a volume.
    #[error("tar stream: {0}")]
    Tar(String),
    /// The request is impossible in the present state.
    #[error("{0}")]
    Invalid(String),
    /// An argument is wrong in itself.
    #[error("{0}")]
    Usage(String),
    /// An argument is missing without which nothing is done.
    #[error("{message}")]
    Missing {
        /// What is missing, of what, and why.
        message: String,
        /// The option of the command that gives it.
        option: &'static str,
    },
    /// Something would be lost, and that it may be was not asked for.
    #[error("{message}; it is overwritten only if that is asked for")]
    Unasked {
        /// What would be lost.
        message: String,
        /// The option of the command that asks for it, and what that does.
        option: &'static str,
    },
    /// A mount could not be made or ended with an error.
    #[error("{0}")]
    Mount(String),
    /// The caller of a transfer ended it; what was being copied is removed again.
    #[error("stopped while {0} was copied, which is incomplete and not kept")]
    Stopped(String),
    /// A handle was used whose volume is closed, or that is closed itself.
    #[error("{0} is closed")]
    Closed(&'static str),
    /// A handle was used in a process that was forked from the one that made it.
    #[error(
        "{0} belongs to another process, and cannot be used after a fork: open it in this process, once the \
         other has closed it"
    )]
    OtherProcess(&'static str),
    /// A patchgroup of a volume in process was asked for what only one of a mount has.
    #[error(
        "only on a mount: a group of a volume in process takes the changes of threads, has no label, \
         and fsync waits"
    )]
    NeedsMount,
    /// A patchgroup of a volume in process was to be aborted, and is of a kind that cannot be.
    #[error("the changes of this patchgroup cannot be undone: it is of another kind")]
    NotUndoable,
    /// A patchgroup refused a call, or its changes could not be made durable.
    #[error(transparent)]
    Group(#[from] weft_patch::Error),
    /// A patchgroup of a mount did, or one that can be aborted.
    #[error(transparent)]
    MountedGroup(#[from] weft_order::Error),
}

impl Error {
    /// Makes an [`Error::File`] for a path in a volume.
    pub fn file(action: &'static str, path: &[u8], source: weft_vfs::Error) -> Self {
        let shown = crate::shown(path);
        let path = if path.first() == Some(&b'/') { shown } else { format!("/{shown}") };
        Self::File { action, path, source }
    }

    /// Makes an [`Error::Host`].
    pub fn host(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Host { action, path: path.into(), source: source.into() }
    }

    /// The errno nearest to this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Stopped(_) => rustix::io::Errno::INTR.raw_os_error(),
            Self::NeedsMount => rustix::io::Errno::OPNOTSUPP.raw_os_error(),
            Self::Block(e) => e.errno(),
            Self::File { source, .. } => source.errno(),
            Self::Host { source, .. } => {
                source.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())
            }
            Self::Unrecognised { .. }
            | Self::Tar(_)
            | Self::Invalid(_)
            | Self::Usage(_)
            | Self::Missing { .. }
            | Self::Unasked { .. }
            | Self::NotUndoable => rustix::io::Errno::INVAL.raw_os_error(),
            Self::Volume { .. } | Self::Mount(_) => rustix::io::Errno::IO.raw_os_error(),
            Self::Closed(_) | Self::OtherProcess(_) => rustix::io::Errno::BADF.raw_os_error(),
            Self::Group(e) => e.errno(),
            Self::MountedGroup(e) => e.errno(),
        }
    }
}
