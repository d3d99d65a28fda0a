//! One error type for both ends. A variant exists only where a caller would act differently.

use crate::wire::{NbdErrno, OptionReplyType, OptionType, WireError};
use std::io;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a connection or a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network failed, TLS could not be set up, or the other side timed out or disconnected.
    #[error(transparent)]
    Net(#[from] weft_net::Error),
    /// The other side violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The server refused an option.
    #[error("the server refused {option:?}: {reply:?}{}", said(message))]
    Refused {
        /// The refused option.
        option: OptionType,
        /// The kind of refusal.
        reply: OptionReplyType,
        /// The server's message for people; may be empty.
        message: String,
    },
    /// A request failed at the server.
    #[error("the server answered {error:?}{}", said(message))]
    Request {
        /// The errno of the protocol.
        error: NbdErrno,
        /// The server's message for people; may be empty.
        message: String,
    },
    /// After a reconnection, the server or the export is not the same as before.
    #[error("the export has changed while the connection was down: {0}")]
    Changed(String),
    /// Another process of this host writes to the export.
    #[error("the export is in use by another process of this host")]
    InUse,
    /// An invalid argument.
    #[error("{0}")]
    Invalid(String),
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        weft_net::Error::io(what, source).into()
    }

    pub(crate) fn timed_out(what: impl Into<String>) -> Self {
        weft_net::Error::TimedOut(what.into()).into()
    }

    pub(crate) fn tls(what: impl Into<String>) -> Self {
        weft_net::Error::Tls(what.into()).into()
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }

    /// Converts to an error of the system, with its errno where there is one.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Request { error, .. } if self.is_plain() => {
                return io::Error::from_raw_os_error(errno(*error));
            }
            Self::Net(e) => e.kind(),
            Self::Protocol(_) => io::ErrorKind::InvalidData,
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Self::InUse => io::ErrorKind::ResourceBusy,
            Self::Request { .. } | Self::Changed(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }

    /// Returns true if the errno alone describes the error.
    fn is_plain(&self) -> bool {
        matches!(self, Self::Request { error, message } if message.is_empty()
            || *error != NbdErrno::EIO)
    }
}

/// Returns the errno of this system for an error of the protocol; an undefined one counts as
/// `EINVAL`.
fn errno(error: NbdErrno) -> i32 {
    use rustix::io::Errno;
    let errno = match error {
        NbdErrno::EPERM => Errno::PERM,
        NbdErrno::EIO => Errno::IO,
        NbdErrno::ENOMEM => Errno::NOMEM,
        NbdErrno::ENOSPC => Errno::NOSPC,
        NbdErrno::EOVERFLOW => Errno::OVERFLOW,
        NbdErrno::ENOTSUP => Errno::OPNOTSUPP,
        NbdErrno::ESHUTDOWN => Errno::SHUTDOWN,
        _ => Errno::INVAL,
    };
    errno.raw_os_error()
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::Protocol(error.0)
    }
}
