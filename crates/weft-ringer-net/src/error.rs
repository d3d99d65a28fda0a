//! Errors of connections and of the requests on them.

use weft_ringer::Bytes;
use weft_ringer::store::StoreError;
use weft_ringer::wire::WireError;

use crate::Denial;

/// Why a connection or a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A connection could not be made or ended, or a system call failed.
    #[error(transparent)]
    Net(#[from] weft_net::Error),
    /// Bytes that are not a valid message.
    #[error("protocol error: {0}")]
    Wire(#[from] WireError),
    /// The peer began with TLS, and this side has no certificates.
    #[error("the peer uses TLS, but no certificates were given to this side")]
    UnexpectedTls,
    /// The peer refused.
    #[error("{0}")]
    Refused(String),
    /// The server does not own the cell.
    #[error("the server is a standby{}", owner.as_ref().map(|o| format!(": {o} owns the cell")).unwrap_or_default())]
    Standby {
        /// The owner's address, as far as the server knows it.
        owner: Option<String>,
    },
    /// The peer or this side ended the connection.
    #[error("connection closed")]
    Closed,
    /// The requester lacks the permission.
    #[error("{0}")]
    Denied(#[from] Denial),
    /// The cell lacks changes that this client has seen.
    #[error("{0}")]
    OlderCell(String),
    /// The store of a cell has no room; nothing was changed.
    #[error("the server's disk is full")]
    Full,
    /// The store of a cell or of a client failed.
    #[error("{0}")]
    Store(String),
}

impl Error {
    /// A system call failed.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        weft_net::Error::io(what, source).into()
    }

    /// The error for a standby server.
    pub fn standby(owner: Option<Bytes>) -> Self {
        let owner = owner.map(|text| String::from_utf8_lossy(&text.0).into_owned());
        Self::Standby { owner }
    }

    /// An operation timed out.
    pub fn timed_out(what: impl Into<String>) -> Self {
        weft_net::Error::TimedOut(what.into()).into()
    }

    /// Returns true if the error is a timeout.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Net(weft_net::Error::TimedOut(_)))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::Full,
            error => Self::Store(error.to_string()),
        }
    }
}

/// The result of an operation on a connection.
pub type Result<T, E = Error> = std::result::Result<T, E>;
