//! Why a connection could not be made, or ended.

use crate::Address;
use std::io;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed, or the other side went away.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A time limit passed.
    #[error("{0}")]
    TimedOut(String),
    /// TLS could not be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// A connection over QUIC of somebody who has no certificates.
    #[error("{0}: over QUIC there are no connections without certificates")]
    Uncertified(Address),
    /// This program was built without the feature `quic`.
    #[error("{0}: this program was built without QUIC")]
    NoQuic(Address),
    /// A text that is no address.
    #[error("'{0}' is no address; write HOST:PORT, [IPV6]:PORT, quic://HOST:PORT or unix:/PATH")]
    NoAddress(String),
}

impl Error {
    /// A system call that failed.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// The kind of error that the standard library would call it.
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
