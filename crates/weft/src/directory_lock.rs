//! The lock that keeps two processes of weft out of one directory of the host.

use crate::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Locks a directory against other processes of weft; `None` if one of them holds the lock.
pub(crate) fn lock_directory(path: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::host("open", path, e))?;
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(fd)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(Error::host("lock", path, e)),
    }
}

/// Returns true if no process of weft has the directory of a source open.
pub(crate) fn is_free(path: &Path) -> bool {
    !matches!(lock_directory(path), Ok(None))
}
