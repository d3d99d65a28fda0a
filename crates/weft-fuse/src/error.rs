//! Errors of mounting, with messages that say what to do.

use std::io;
use std::path::PathBuf;

/// The reason why a volume could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no FUSE.
    #[error(
        "/dev/fuse does not exist: load the kernel module (modprobe fuse), or give the container \
         the device (--device /dev/fuse)"
    )]
    NoDevice,
    /// `/dev/fuse` exists but may not be opened.
    #[error("/dev/fuse cannot be opened: {0}; see its permissions and group")]
    Device(#[source] io::Error),
    /// The program with which users other than root mount is missing.
    #[error(
        "fusermount3 is not installed, and only root can mount without it: install the package \
         fuse3"
    )]
    NoFusermount,
    /// `allow_other` must be permitted by the administrator.
    #[error(
        "other users may not be let in: put the line user_allow_other into /etc/fuse.conf, or \
         mount without allow_other"
    )]
    AllowOther,
    /// The mount point is missing.
    #[error("the mount point {0} does not exist: make the directory first")]
    NoMountpoint(PathBuf),
    /// The mount point is a file.
    #[error("the mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    /// The kernel or `fusermount3` refused.
    #[error("cannot mount on {mountpoint}: {source}")]
    Mount {
        /// The mount point.
        mountpoint: PathBuf,
        /// The error of the kernel or `fusermount3`.
        source: io::Error,
    },
    /// Requests over io_uring were asked for, and are not possible.
    #[error("no requests over io_uring: {0}")]
    IoUring(String),
    /// Programs use the mount.
    #[error("{0} is in use: end the programs that have files or a working directory there")]
    Busy(PathBuf),
    /// The kernel or `fusermount3` refused.
    #[error("cannot unmount {mountpoint}: {source}")]
    Unmount {
        /// The mount point.
        mountpoint: PathBuf,
        /// The error of the kernel or `fusermount3`.
        source: io::Error,
    },
    /// The connection to the kernel broke, or a thread could not be started.
    #[error("serving {mountpoint}: {source}")]
    Serve {
        /// The mount point.
        mountpoint: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The last writes at the end of the mount failed.
    #[error("the volume could not be brought to rest: {0}")]
    Volume(#[source] weft_vfs::Error),
}

/// The result of mounting.
pub type Result<T, E = Error> = std::result::Result<T, E>;
