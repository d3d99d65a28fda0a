//! Locks of ranges of a file, which belong to the open file description as flock(2)'s do
//! (`F_OFD_SETLK`, fcntl_locking(2)).

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_WRLCK, flock};
use std::ops::Range;
use std::os::fd::AsFd;

/// The locks are behind the end of every file: other programs, such as QEMU, lock bytes of the content
/// for purposes of their own.
const BASE_BYTES: u64 = 1 << 62;

/// A lock of a kind for [`fcntl`]: `F_RDLCK`, `F_WRLCK`.
pub(crate) fn lock_of(kind: i32, start: i64, len: i64) -> flock {
    let l_type = i16::try_from(kind).expect("a kind of lock is a small number");
    flock { l_type, l_whence: 0, l_start: start, l_len: len, l_pid: 0 }
}

/// Locks a range, for reading or for writing, without waiting.
///
/// # Errors
/// `EAGAIN` if another has locked a part of it; others where the file system has no such locks.
pub(crate) fn lock(fd: impl AsFd, range: &Range<u64>, write: bool) -> rustix::io::Result<()> {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let start = signed(BASE_BYTES.saturating_add(range.start));
    let len = signed(range.end.saturating_sub(range.start)).min(i64::MAX - start);
    let lock = lock_of(if write { F_WRLCK } else { F_RDLCK }, start, len);
    loop {
        match fcntl(&fd, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EACCES) => return Err(rustix::io::Errno::AGAIN),
            Err(e) => return Err(rustix::io::Errno::from_raw_os_error(e as i32)),
        }
    }
}
