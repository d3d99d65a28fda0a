//! Connections of [`weft_net`] with frames of [`wire`](crate::wire) on them.
//!
//! A directory of certificates has, beside its authority's, `server-cert.pem` for a metadata server,
//! which is called by a name, or `client-cert.pem` for a client. Clients also call each other. There
//! a certificate says that somebody belongs to the cell, not who: it is for the name
//! [`MEMBER_NAME`]. What a peer sends is checked by its hash. Over QUIC it is the same, with the TLS that is
//! part of it.
//!
//! Invariants:
//! - Nothing waits for ever: a read has a deadline or ends when its owner shuts the socket down, a
//!   write that makes no progress for [`WRITE_LIMIT`] ends the connection.
//! - What a peer makes this side keep is bounded: by one frame to read, and by
//!   [`OUTBOX_MAX_BYTES`] to send. Before a peer has said who it is, a frame may have
//!   [`HELLO_MAX_BYTES`].

mod joining;
mod message;
mod outbox;
pub mod pki;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use joining::join;
pub use message::{
    Answer, Ask, BlockBytes, CellStatus, ClientStatus, Denial, FromPeer, Hit, LeaseStatus, Life,
    Meeting, MemberStatus, Peer, SECRET_BYTES, ToPeer,
};
pub(crate) use outbox::Outbox;
use weft_net::{
    Address, Channel, ClientTls, SendHalf, ServerTls, Socket, is_pause, write_all_vectored,
};

use crate::wire::frame::{Deframer, Frame, frame};
use crate::wire::{Wire, WireError};

/// The port of a metadata server, if none is said.
pub const PORT: u16 = 7473;
/// Only the user of a server, or of a client, reaches its Unix socket.
pub(crate) const SOCKET_MODE: u32 = 0o600;
/// The name in the certificate of every client of a cell.
pub const MEMBER_NAME: &str = "member.weft-ringer";
/// How long the other side may take nothing before the connection is given up.
pub const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// How long a connection may take until both sides know each other.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may look through its cell: some 10 million files.
const CHECK_LIMIT: Duration = Duration::from_secs(300);
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
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        weft_net::Error::io(what, source).into()
    }

    /// That a server has said that it stands by.
    pub(crate) fn standby(owner: Option<crate::rnode::Bytes>) -> Self {
        let owner = owner.map(|text| String::from_utf8_lossy(&text.0).into_owned());
        Self::Standby { owner }
    }

    pub(crate) fn timed_out(what: impl Into<String>) -> Self {
        weft_net::Error::TimedOut(what.into()).into()
    }

    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Net(weft_net::Error::TimedOut(_)))
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
                return Err(Error::timed_out("the other side took too long"));
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

/// A plain connection on which nothing waits for ever.
fn with_limits(socket: Socket) -> Result<Channel> {
    socket.set_read_timeout(PAUSE)?;
    socket.set_write_timeout(WRITE_LIMIT)?;
    Ok(Channel::plain(Arc::new(socket)))
}

/// A connection on which one side asks and the other answers, one at a time.
pub struct Conversation {
    receiver: Receiver,
    writer: Box<dyn SendHalf>,
    socket: Arc<Socket>,
    /// The certificate that the other side has shown, in DER.
    certificate: Option<Vec<u8>>,
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
        let deadline = Instant::now() + limit;
        let socket = address.call(tls, limit)?;
        let tls = tls.filter(|_| !socket.is_secured());
        Self::connect_over(with_limits(socket)?, tls, deadline)
    }

    /// The same on a connection that is there.
    pub(crate) fn connect_over(
        channel: Channel,
        tls: Option<(&ClientTls, &str)>,
        deadline: Instant,
    ) -> Result<Self> {
        Ok(Self::new(match tls {
            Some((tls, name)) => tls.connect(channel, name, deadline)?,
            None => channel,
        }))
    }

    /// Answers a call.
    pub(crate) fn accept(socket: Socket, tls: Option<&ServerTls>) -> Result<Self> {
        let tls = tls.filter(|_| !socket.is_secured());
        Self::accept_over(with_limits(socket)?, tls)
    }

    /// The same on a connection that is there.
    pub(crate) fn accept_over(channel: Channel, tls: Option<&ServerTls>) -> Result<Self> {
        Ok(Self::new(match tls {
            Some(tls) => tls.accept(channel, Instant::now() + HANDSHAKE_LIMIT)?,
            None => channel,
        }))
    }

    fn new(channel: Channel) -> Self {
        let Channel { socket, reader, writer, certificate } = channel;
        Self { receiver: Receiver::new(reader), writer, socket, certificate }
    }

    /// Asks a server to be brought together with another client, or comes to where it was called.
    ///
    /// # Errors
    /// What the server says, or that it says nothing until `deadline`.
    pub(crate) fn meet(mut self, ask: &Ask, deadline: Instant) -> Result<Self> {
        self.send(ask)?;
        match self.receive(Some(deadline))? {
            Answer::Met {} => Ok(self),
            Answer::Refused { why } => {
                Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
            }
            Answer::Denied { denial } => Err(denial.into()),
            Answer::Standby { owner } => Err(Error::standby(owner)),
            _ => Err(Error::Refused("the server knows of no meetings".into())),
        }
    }

    /// The connection below, once nothing more is to be said in messages of this one.
    pub(crate) fn into_channel(self) -> Channel {
        let Self { receiver, writer, socket, certificate } = self;
        // The other side may have gone on talking.
        let ahead = std::io::Cursor::new(receiver.deframer.into_waiting());
        let reader = Box::new(ahead.chain(receiver.reader));
        Channel { socket, reader, writer, certificate }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error`]; the connection is of no more use.
    pub fn send<T: Wire>(&mut self, message: &T) -> Result<()> {
        let bytes = frame(message)?;
        Ok(write_all_vectored(&mut *self.writer, &[&bytes])?)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// [`Error`]; the connection is of no more use.
    pub fn receive<T: Wire>(&mut self, deadline: Option<Instant>) -> Result<T> {
        self.receiver.next(deadline)
    }

    /// Whether some of the next message has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.receiver.deframer.waiting_bytes() > 0
    }

    /// The fingerprint of the certificate that the other side has shown.
    pub(crate) fn fingerprint(&self) -> Option<crate::types::BlockHash> {
        self.certificate.as_deref().map(pki::fingerprint)
    }

    pub(crate) fn limit_frames(&mut self, limit_bytes: usize) {
        self.receiver.limit_bytes = limit_bytes;
    }

    pub(crate) fn socket(&self) -> Arc<Socket> {
        Arc::clone(&self.socket)
    }

    pub(crate) fn into_parts(self) -> (Receiver, Box<dyn SendHalf>, Arc<Socket>) {
        (self.receiver, self.writer, self.socket)
    }
}

/// A connection to a metadata server of one who only looks, and asks.
#[derive(Debug)]
pub struct Observer {
    link: Conversation,
}

impl Observer {
    /// Calls a server.
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
            _ => Err(Error::Refused("the other side is no metadata server".into())),
        }
    }

    /// Asks something, and waits for the answer.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] if the server says no, [`Error::Standby`] if another owns the
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

/// Asks a metadata server something, as one who only looks.
///
/// # Errors
/// Those of [`Observer`].
pub fn ask(server: &Address, tls: Option<&ClientTls>, question: &Ask) -> Result<Answer> {
    Observer::connect(server, tls)?.ask(question)
}
