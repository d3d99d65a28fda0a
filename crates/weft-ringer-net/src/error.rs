//! Why a connection, or what was asked on it, came to nothing.

use weft_ringer::Bytes;
use weft_ringer::wire::WireError;

use crate::Denial;

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A connection could not be made or ended, or a system call failed.
    #[error(transparent)]
    Net(#[from] weft_net::Error),
    /// Bytes that are no message.
    #[error("a broken message: {0}")]
    Wire(#[from] WireError),
    /// The other side said no.
    #[error("{0}")]
    Refused(String),
    /// The server does not own the cell.
    #[error("the server stands by{}", owner.as_ref().map(|o| format!(": {o} owns the cell")).unwrap_or_default())]
    Standby {
        /// Where the owner is reached, as far as the server knows.
        owner: Option<String>,
    },
    /// The other side ended the connection, or this one did.
    #[error("the connection has ended")]
    Closed,
    /// Who asked may not.
    #[error("{0}")]
    Denied(#[from] Denial),
    /// The cell lacks what this client has seen of it.
    #[error("{0}")]
    OlderCell(String),
    /// The store of a cell or of a client.
    #[error("{0}")]
    Store(String),
}

impl Error {
    /// A system call failed.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        weft_net::Error::io(what, source).into()
    }

    /// That a server has said that it stands by.
    pub fn standby(owner: Option<Bytes>) -> Self {
        let owner = owner.map(|text| String::from_utf8_lossy(&text.0).into_owned());
        Self::Standby { owner }
    }

    /// Something took too long.
    pub fn timed_out(what: impl Into<String>) -> Self {
        weft_net::Error::TimedOut(what.into()).into()
    }

    /// Whether something took too long.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Net(weft_net::Error::TimedOut(_)))
    }
}

/// The result of what goes over connections.
pub type Result<T, E = Error> = std::result::Result<T, E>;
