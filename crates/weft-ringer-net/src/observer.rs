//! Requests to a metadata server by a process that is not a client of its cell.

use std::time::{Duration, Instant};

use weft_net::{Address, ClientTls};

use crate::{Answer, Ask, Conversation, Error, HANDSHAKE_LIMIT, Result};

/// The time a server may take to check its cell: enough for some 10 million files.
const CHECK_LIMIT: Duration = Duration::from_secs(300);

/// An observer connection to a metadata server, for requests only.
#[derive(Debug)]
pub struct Observer {
    link: Conversation,
}

impl Observer {
    /// Connects to a server.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] and [`Error::Denied`] if the server does not let it in.
    pub fn connect(server: &Address, tls: Option<&ClientTls>) -> Result<Self> {
        let tls = tls.map(|tls| (tls, server.host()));
        let mut link = Conversation::connect(server, tls, HANDSHAKE_LIMIT)?;
        link.send(&Ask::Observe {})?;
        match link.receive(Some(Instant::now() + HANDSHAKE_LIMIT))? {
            Answer::Welcome {} => Ok(Self { link }),
            Answer::Refused { why } => {
                Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
            }
            Answer::Denied { denial } => Err(denial.into()),
            _ => Err(Error::Refused(
                "protocol error: the peer is not a weft ringer metadata server".into(),
            )),
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] if the server refuses, [`Error::Standby`] if another owns the
    /// cell.
    /// cell.
    pub fn ask(&mut self, question: &Ask) -> Result<Answer> {
        self.link.send(question)?;
        let limit = if matches!(question, Ask::Check {}) { CHECK_LIMIT } else { HANDSHAKE_LIMIT };
        match self.link.receive(Some(Instant::now() + limit))? {
            Answer::Denied { denial } => Err(denial.into()),
            Answer::Refused { why } => {
                Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
            }
            Answer::Standby { owner } => Err(Error::standby(owner)),
            answer => Ok(answer),
        }
    }
}

/// Sends one request to a metadata server over a new observer connection.
///
/// # Errors
/// Those of [`Observer`].
pub fn ask(server: &Address, tls: Option<&ClientTls>, question: &Ask) -> Result<Answer> {
    Observer::connect(server, tls)?.ask(question)
}
