//! Locks of ranges of a file, which belong to the open file description as flock(2)'s do
//! (`F_OFD_SETLK`, fcntl_locking(2)). `unsafe` because rustix has only those of a process.

use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// The locks are behind the end of every file: other programs, such as QEMU, lock bytes of the content
/// for purposes of their own.
const BASE_BYTES: u64 = 1 << 62;

/// Locks a range, for reading or for writing, without waiting.
///
/// # Errors
/// [`Errno::AGAIN`] if another has locked a part of it; others where the file system has no such locks.
pub(crate) fn lock(fd: impl AsFd, range: &Range<u64>, write: bool) -> rustix::io::Result<()> {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let start = signed(BASE_BYTES.saturating_add(range.start));
    let len = signed(range.end.saturating_sub(range.start)).min(i64::MAX - start);
    // SAFETY: all bytes zero are a valid `flock`, which consists of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = if write { libc::F_WRLCK } else { libc::F_RDLCK } as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = start;
    lock.l_len = len;
    loop {
        // SAFETY: the descriptor is open, and the kernel only reads the structure.
        let done = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &lock) };
        if done == 0 {
            return Ok(());
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            Some(Errno::ACCESS) | None => return Err(Errno::AGAIN),
            Some(e) => return Err(e),
        }
    }
}
