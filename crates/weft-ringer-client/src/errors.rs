//! Errors of the file system that several parts return.

use weft_vfs::Error;

/// `ETIMEDOUT`
pub(super) const ETIMEDOUT: i32 = 110;

/// `ENOSPC`
pub(super) const ENOSPC: i32 = 28;

/// The error for a failure of the local store.
pub(super) fn io_error(e: &std::io::Error) -> Error {
    match e.raw_os_error() {
        // To a writer, an exhausted quota is a full disk.
        Some(28 | 122) => Error::NoSpace,
        errno => {
            let message = format!("the local store: {e}");
            Error::Io { errno: errno.unwrap_or(5), message }
        }
    }
}

/// The error for a server that broke the protocol.
pub(super) fn unexpected() -> Error {
    Error::Io { errno: 5, message: "protocol error: unexpected reply from the server".into() }
}
