//! Errors of connections.

use crate::Address;
use std::io;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed, or the other side disconnected.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A time limit passed.
    #[error("{0}")]
    TimedOut(String),
    /// TLS could not be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// A QUIC address is used without certificates.
    #[error("{0}: QUIC requires certificates")]
    Uncertified(Address),
    /// This program was built without the feature `quic`.
    #[error("{0}: this program was built without QUIC")]
    NoQuic(Address),
    /// A text that is not an address.
    #[error("invalid address '{0}': write HOST:PORT, [IPV6]:PORT, quic://HOST:PORT or unix:/PATH")]
    NoAddress(String),
}

impl Error {
    /// Makes the error of a failed system call.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// Returns the standard library's kind of this error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } => source.kind(),
            Self::TimedOut(_) => io::ErrorKind::TimedOut,
            Self::Tls(_) => io::ErrorKind::Other,
            Self::NoAddress(_) | Self::Uncertified(_) => io::ErrorKind::InvalidInput,
            Self::NoQuic(_) => io::ErrorKind::Unsupported,
        }
    }
}
