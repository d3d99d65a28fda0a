//! Connections: TCP or a Unix socket, plain or under TLS, with frames of [`wire`](crate::wire) on
//! them.
//!
//! Invariants:
//! - Nothing waits for ever: a read has a deadline or ends when its owner shuts the socket down, a
//!   write that makes no progress for [`WRITE_LIMIT`] ends the connection.
//! - What a peer makes this side keep is bounded: by one frame to read, and by
//!   [`OUTBOX_MAX_BYTES`] to send. Before a peer has said who it is, a frame may have
//!   [`HELLO_MAX_BYTES`].

mod message;
mod outbox;
mod socket;
mod tls;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use message::{
    Answer, Ask, BlockBytes, CellStatus, ClientStatus, FromPeer, Hit, Peer, SECRET_BYTES, ToPeer,
};
pub(crate) use outbox::Outbox;
pub use socket::Address;
pub(crate) use socket::{Channel, Listener, Socket, is_pause};
pub use tls::{ClientTls, MEMBER_NAME, ServerTls};

use crate::wire::frame::{Deframer, Frame, frame};
use crate::wire::{Wire, WireError};

/// How long the other side may take nothing before the connection is given up.
pub const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// How long a connection may take until both sides know each other.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The longest frame of a peer that has not said who it is, in bytes.
pub const HELLO_MAX_BYTES: usize = 4096;
/// What may wait to be sent on one connection, in bytes: some of the longest frames.
pub const OUTBOX_MAX_BYTES: usize = 4 * crate::wire::frame::FRAME_MAX_BYTES;
/// How long a read waits before it looks whether it still should.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);
/// What is read at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// How it failed.
        source: std::io::Error,
    },
    /// The other side took too long.
    #[error("{0}")]
    TimedOut(String),
    /// Certificates, or what TLS made of them.
    #[error("TLS: {0}")]
    Tls(String),
    /// Bytes that are no message.
    #[error("a broken message: {0}")]
    Wire(#[from] WireError),
    /// The other side said no.
    #[error("{0}")]
    Refused(String),
    /// The other side ended the connection, or this one did.
    #[error("the connection has ended")]
    Closed,
    /// The store of a cell or of a client.
    #[error("{0}")]
    Store(String),
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

/// The result of what goes over connections.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The receiving half of a connection, message by message.
pub(crate) struct Receiver {
    reader: Box<dyn Read + Send>,
    deframer: Deframer,
    chunk: Box<[u8]>,
    /// The longest unfinished frame that is taken, in bytes.
    pub(crate) limit_bytes: usize,
}

impl Receiver {
    pub(crate) fn new(reader: Box<dyn Read + Send>) -> Self {
        let limit_bytes = usize::MAX;
        let chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
        Self { reader, deframer: Deframer::default(), chunk, limit_bytes }
    }

    /// The next message; what is of a later version and not understood is passed over.
    pub(crate) fn next<T: Wire>(&mut self, deadline: Option<Instant>) -> Result<T> {
        loop {
            match self.deframer.pull()? {
                Some(Frame::Message(message)) => return Ok(message),
                Some(Frame::FromTheFuture { version, error }) => {
                    tracing::warn!("passed over a message of version {version}: {error}");
                    continue;
                }
                None => {}
            }
            if self.deframer.waiting_bytes() >= self.limit_bytes {
                let (len_bytes, max_bytes) =
                    (self.deframer.waiting_bytes() as u64, self.limit_bytes);
                return Err(WireError::Oversized { len_bytes, max_bytes }.into());
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Err(Error::TimedOut("the other side took too long".into()));
            }
            let room = self.chunk.len().min(self.limit_bytes);
            match self.reader.read(&mut self.chunk[..room]) {
                Ok(0) => return Err(Error::Closed),
                Ok(n) => self.deframer.push(&self.chunk[..n]),
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        }
    }
}

/// A connection on which one side asks and the other answers, one at a time.
pub struct Conversation {
    receiver: Receiver,
    writer: Box<dyn std::io::Write + Send>,
    socket: Arc<Socket>,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Conversation {
    /// Connects, within `limit` for each address that a name has.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect(
        address: &Address,
        tls: Option<(&ClientTls, &str)>,
        limit: Duration,
    ) -> Result<Self> {
        let channel = Channel::connect(address, tls, limit)?;
        Ok(Self::new(channel))
    }

    pub(crate) fn new(channel: Channel) -> Self {
        let Channel { socket, reader, writer } = channel;
        Self { receiver: Receiver::new(reader), writer, socket }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error`]; the connection is of no more use.
    pub fn send<T: Wire>(&mut self, message: &T) -> Result<()> {
        let bytes = frame(message)?;
        self.writer.write_all(&bytes).map_err(|e| Error::io("cannot send", e))
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// [`Error`]; the connection is of no more use.
    pub fn receive<T: Wire>(&mut self, deadline: Option<Instant>) -> Result<T> {
        self.receiver.next(deadline)
    }

    pub(crate) fn limit_frames(&mut self, limit_bytes: usize) {
        self.receiver.limit_bytes = limit_bytes;
    }

    pub(crate) fn socket(&self) -> Arc<Socket> {
        Arc::clone(&self.socket)
    }

    pub(crate) fn into_parts(self) -> (Receiver, Box<dyn std::io::Write + Send>, Arc<Socket>) {
        (self.receiver, self.writer, self.socket)
    }
}

/// Asks a metadata server something, as one who only looks.
///
/// # Errors
/// [`Error`]; [`Error::Refused`] if the server says no.
pub fn ask(server: &Address, tls: Option<&ClientTls>, question: &Ask) -> Result<Answer> {
    let tls = tls.map(|tls| (tls, server.host()));
    let mut link = Conversation::connect(server, tls, HANDSHAKE_LIMIT)?;
    link.send(&Ask::Observe {})?;
    let deadline = Some(Instant::now() + HANDSHAKE_LIMIT);
    match link.receive(deadline)? {
        Answer::Welcome {} => {}
        Answer::Refused { why } => {
            return Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()));
        }
        _ => return Err(Error::Refused("the other side is no metadata server".into())),
    }
    link.send(question)?;
    match link.receive(deadline)? {
        Answer::Refused { why } => {
            Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
        }
        answer => Ok(answer),
    }
}
