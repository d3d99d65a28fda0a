//! File handles: a name for an inode that needs no descriptor, by `name_to_handle_at(2)` and
//! `open_by_handle_at(2)`.
//!
//! The calls are `unsafe` here as neither the standard library nor rustix has them. Opening a handle
//! takes `CAP_DAC_READ_SEARCH`, and a file system of the host that can be exported.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// `MAX_HANDLE_SZ`: the maximum number of bytes after the header of a handle.
const MAX_BYTES: usize = 128;

/// `struct file_handle`, with room for the longest.
#[repr(C)]
struct Raw {
    handle_bytes: libc::c_uint,
    handle_type: libc::c_int,
    handle: [u8; MAX_BYTES],
}

/// The handle of an inode. It never names another inode that later has the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileHandle {
    kind: i32,
    bytes: Box<[u8]>,
}

impl FileHandle {
    /// Returns the handle of the inode of a descriptor; `None` if the file system has no handles.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let handle_bytes = MAX_BYTES as libc::c_uint;
        let mut raw = Raw { handle_bytes, handle_type: 0, handle: [0; MAX_BYTES] };
        let mut mount: libc::c_int = 0;
        // SAFETY: the descriptor is open, the path ends with a zero, and the kernel writes at most
        // the bytes that `handle_bytes` says, which are there.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                fd.as_raw_fd(),
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        let bytes = raw.handle.get(..raw.handle_bytes as usize)?;
        (done == 0).then(|| Self { kind: raw.handle_type, bytes: bytes.into() })
    }

    /// Opens the inode; `mount` is any descriptor, but one of `O_PATH`, on its file system.
    pub(super) fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut raw = Raw {
            handle_bytes: self.bytes.len() as libc::c_uint,
            handle_type: self.kind,
            handle: [0; MAX_BYTES],
        };
        raw.handle[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: the descriptor is open, and the kernel reads the bytes that `handle_bytes` says,
        // which are there. The caller owns the returned descriptor.
        unsafe {
            let flags = flags.bits().cast_signed();
            let fd =
                libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags);
            match libc::c_int::try_from(fd) {
                Ok(fd) if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
                _ => {
                    let error = std::io::Error::last_os_error();
                    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
                }
            }
        }
    }
}
