//! The host's error numbers as errors of the plug.

use rustix::io::Errno;

use crate::Error;

/// Converts the error of a system call.
pub(super) fn os(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::NotFound,
        Errno::EXIST => Error::Exists,
        Errno::NOTDIR => Error::NotADirectory,
        Errno::ISDIR => Error::IsADirectory,
        Errno::NOTEMPTY => Error::NotEmpty,
        Errno::NAMETOOLONG => Error::NameTooLong,
        Errno::ACCESS => Error::Access,
        Errno::PERM => Error::NotPermitted,
        Errno::NOSPC | Errno::DQUOT => Error::NoSpace,
        Errno::FBIG => Error::TooLarge,
        Errno::MLINK => Error::TooManyLinks,
        Errno::LOOP => Error::SymlinkLoop,
        Errno::ROFS => Error::ReadOnly,
        Errno::INVAL => Error::Invalid("the host refuses an argument"),
        Errno::NXIO => Error::NoAddress,
        Errno::NODATA => Error::NoAttribute,
        // An extended attribute that no file system holds.
        Errno::RANGE | Errno::TOOBIG => Error::Range,
        Errno::BUSY => Error::Busy,
        Errno::XDEV => Error::CrossDevice,
        Errno::OVERFLOW => Error::Overflow("of the host"),
        Errno::OPNOTSUPP | Errno::NOSYS => Error::Unsupported("by the host"),
        other => Error::Io { errno: other.raw_os_error(), message: other.to_string() },
    }
}

/// Converts an error of the standard library.
pub(super) fn from_io(e: &std::io::Error) -> Error {
    match e.raw_os_error() {
        Some(errno) => os(Errno::from_raw_os_error(errno)),
        None => Error::Io { errno: 5, message: e.to_string() },
    }
}
