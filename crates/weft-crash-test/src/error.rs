//! The errors of this crate.

use std::path::PathBuf;

/// The errors of a crash test. That a state fails its check is no error but a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no model of this name.
    #[error("unknown model {0:?}: the models are posix, ext4-ordered, xfs-like and btrfs-like")]
    UnknownModel(String),
    /// A file is no recording, or is damaged.
    #[error("{path}: not a recording of weft crash run: {problem}")]
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file is no log of writes, or is damaged.
    #[error("{path}: not a log of dm-log-writes that can be searched: {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// The defect, and its place.
        source: weft_block::Error,
    },
    /// A log does not fit the volume that it is said to have been written to.
    #[error(
        "{path}: entry {entry} changes bytes {offset} to {end} of a volume of {volume_bytes} bytes"
    )]
    LogBeyondVolume {
        /// The log.
        path: PathBuf,
        /// The entry, from 0.
        entry: u64,
        /// The first byte that it changes.
        offset: u64,
        /// The first byte behind those.
        end: u64,
        /// The length of the volume.
        volume_bytes: u64,
    },
    /// A log has no mark of this text.
    #[error("{path}: no mark {mark:?}; the marks are: {marks}")]
    NoMark {
        /// The log.
        path: PathBuf,
        /// The mark that was asked for.
        mark: String,
        /// Those that there are.
        marks: String,
    },
    /// The text of a crash state cannot be read.
    #[error("{0:?} is no state of this recording (a state is an epoch and units, such as 3:0-4,6)")]
    State(String),
    /// A command of the user could not be tested.
    #[error("not tested: {0}")]
    NotTested(String),
    /// A volume cannot be made, read or mounted.
    #[error("{0}")]
    Volume(String),
    /// A pattern of calls or paths cannot be read.
    #[error("{pattern:?}: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason why it cannot be read.
        problem: String,
    },
    /// A power cut of that kind would take nothing.
    #[error("nothing is lost: {0}")]
    NothingToLose(String),
    /// The mount that was asked could not do it.
    #[error("{0}")]
    Refused(String),
    /// The directory could not be written.
    #[error("the directory is not up to date: {0}")]
    Directory(String),
    /// A process was killed and is still there, so that nothing was taken away under it.
    #[error("nothing is lost: process {0} was killed and does not end")]
    StillRunning(u32),
    /// The folder could not be mounted: there is no FUSE here, or it may not be used.
    #[error("FUSE cannot be used here: {0}")]
    NoFuse(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file system in memory refused a state.
    #[error("{what}: {source}")]
    Fs {
        /// What was tried.
        what: String,
        /// Its error.
        source: weft_vfs::Error,
    },
    /// A worker process failed, or the mount in it.
    #[error(transparent)]
    Sandbox(#[from] crate::sandbox::Error),
}

/// The result of a fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Says what was tried when a system call failed.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Says what was tried when the file system in memory refused it.
    pub(crate) fn fs(what: impl Into<String>) -> impl FnOnce(weft_vfs::Error) -> Self {
        let what = what.into();
        move |source| Self::Fs { what, source }
    }
}
