//! Connections that carry messages.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_net::{
    Address, Channel, ClientTls, SendHalf, ServerTls, Socket, is_pause, write_all_vectored,
};
use weft_ringer::BlockHash;
use weft_ringer::wire::frame::{Deframer, Frame, frame};
use weft_ringer::wire::{Wire, WireError};

use crate::{Answer, Ask, Error, HANDSHAKE_LIMIT, PAUSE, Result, WRITE_LIMIT, pki};

/// The size of one read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The receiving half of a connection.
pub struct Receiver {
    reader: Box<dyn Read + Send>,
    deframer: Deframer,
    chunk: Box<[u8]>,
    /// The longest unfinished frame that is accepted, in bytes.
    pub limit_bytes: usize,
    /// The first bytes of the connection, as far as they have come.
    first: Vec<u8>,
}

/// How many bytes tell TLS from a frame.
const FIRST_BYTES: usize = 6;
/// Types of TLS records: a server that was sent something else answers with an alert, a client
/// begins with a handshake.
const TLS_ALERT: u8 = 0x15;
const TLS_HANDSHAKE: u8 = 0x16;
/// The fatal alert `handshake_failure`: what a server without certificates answers to TLS.
const NO_TLS_HERE: [u8; 7] = [TLS_ALERT, 3, 3, 0, 2, 2, 40];

/// Returns what is wrong if a connection that should carry frames begins with TLS.
fn tls_instead(first: &[u8]) -> Option<Error> {
    let [kind, 3, _, _, magic, version] = first else { return None };
    // The length of a frame may have any bytes.
    if *magic == 0x72 && *version > 1 {
        return None;
    }
    match *kind {
        TLS_ALERT => Some(Error::Refused(
            "the server requires TLS: give --tls-certificates DIRECTORY, with the certificates that \
            `weft ringer join` or `init` made"
                .into(),
        )),
        TLS_HANDSHAKE => Some(Error::UnexpectedTls),
        _ => None,
    }
}

impl Receiver {
    /// Receives from `reader`.
    #[must_use]
    pub fn new(reader: Box<dyn Read + Send>) -> Self {
        let limit_bytes = usize::MAX;
        let chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
        Self { reader, deframer: Deframer::default(), chunk, limit_bytes, first: Vec::new() }
    }

    /// Returns the next message. Skips messages of a later version that it does not understand.
    pub fn next<T: Wire>(&mut self, deadline: Option<Instant>) -> Result<T> {
        loop {
            match self.deframer.pull()? {
                Some(Frame::Message(message)) => return Ok(message),
                Some(Frame::FromTheFuture { version, error }) => {
                    tracing::warn!("ignored a message of protocol version {version}: {error}");
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
                return Err(Error::timed_out("timed out waiting for the peer"));
            }
            let room = self.chunk.len().min(self.limit_bytes);
            match self.reader.read(&mut self.chunk[..room]) {
                Ok(0) => return Err(Error::Closed),
                Ok(n) => {
                    let lacks = FIRST_BYTES.saturating_sub(self.first.len()).min(n);
                    if lacks > 0 {
                        self.first.extend_from_slice(&self.chunk[..lacks]);
                        if let Some(error) = tls_instead(&self.first) {
                            return Err(error);
                        }
                    }
                    self.deframer.push(&self.chunk[..n]);
                }
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("limit_bytes", &self.limit_bytes).finish_non_exhaustive()
    }
}

/// A plain connection with read and write timeouts.
fn with_limits(socket: Socket) -> Result<Channel> {
    socket.set_read_timeout(PAUSE)?;
    socket.set_write_timeout(WRITE_LIMIT)?;
    Ok(Channel::plain(Arc::new(socket)))
}

/// A connection for requests and responses, one at a time.
pub struct Conversation {
    receiver: Receiver,
    writer: Box<dyn SendHalf>,
    socket: Arc<Socket>,
    /// The certificate that the peer has presented, in DER.
    certificate: Option<Vec<u8>>,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Conversation {
    /// Connects, within `limit` for each address that the name resolves to.
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

    /// The same on an existing connection.
    pub fn connect_over(
        channel: Channel,
        tls: Option<(&ClientTls, &str)>,
        deadline: Instant,
    ) -> Result<Self> {
        Ok(Self::new(match tls {
            Some((tls, name)) => tls.connect(channel, name, deadline).map_err(|e| match e {
                weft_net::Error::Tls(why) if why.contains("HandshakeFailure") => {
                    Error::Refused(format!(
                        "the server does not use TLS ({why}): leave out --tls-certificates, or give \
                        it to `serve` too"
                    ))
                }
                e => e.into(),
            })?,
            None => channel,
        }))
    }

    /// Tells a peer that began with TLS, in TLS, that it is not spoken here.
    pub fn refuse_tls(&mut self) {
        // The peer may have gone.
        let _ = write_all_vectored(&mut *self.writer, &[&NO_TLS_HERE]);
    }

    /// Accepts a connection.
    pub fn accept(socket: Socket, tls: Option<&ServerTls>) -> Result<Self> {
        let tls = tls.filter(|_| !socket.is_secured());
        Self::accept_over(with_limits(socket)?, tls)
    }

    /// The same on an existing connection.
    pub fn accept_over(channel: Channel, tls: Option<&ServerTls>) -> Result<Self> {
        Ok(Self::new(match tls {
            Some(tls) => tls.accept(channel, Instant::now() + HANDSHAKE_LIMIT)?,
            None => channel,
        }))
    }

    fn new(channel: Channel) -> Self {
        let Channel { socket, reader, writer, certificate } = channel;
        Self { receiver: Receiver::new(reader), writer, socket, certificate }
    }

    /// Sends `ask`, a request for a rendezvous with another client or an answer to a call to one,
    /// and returns the relayed connection.
    ///
    /// # Errors
    /// The server's refusal, or a timeout if it does not answer until `deadline`.
    pub fn meet(mut self, ask: &Ask, deadline: Instant) -> Result<Self> {
        self.send(ask)?;
        match self.receive(Some(deadline))? {
            Answer::Met {} => Ok(self),
            Answer::Refused { why } => {
                Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()))
            }
            Answer::Denied { denial } => Err(denial.into()),
            Answer::Standby { owner } => Err(Error::standby(owner)),
            _ => Err(Error::Refused(
                "protocol error: the server does not support relayed connections".into(),
            )),
        }
    }

    /// The channel below, for when the messages of this connection are done.
    pub fn into_channel(self) -> Channel {
        let Self { receiver, writer, socket, certificate } = self;
        // The peer may have sent more already.
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

    /// Returns true if part of the next message has arrived.
    pub fn has_begun(&self) -> bool {
        self.receiver.deframer.waiting_bytes() > 0
    }

    /// The fingerprint of the certificate that the peer has presented.
    pub fn fingerprint(&self) -> Option<BlockHash> {
        self.certificate.as_deref().map(pki::fingerprint)
    }

    /// Accepts no unfinished frame that is longer than this.
    pub fn limit_frames(&mut self, limit_bytes: usize) {
        self.receiver.limit_bytes = limit_bytes;
    }

    /// The socket below.
    #[must_use]
    pub fn socket(&self) -> Arc<Socket> {
        Arc::clone(&self.socket)
    }

    /// The two halves of the connection, and its socket.
    #[must_use]
    pub fn into_parts(self) -> (Receiver, Box<dyn SendHalf>, Arc<Socket>) {
        (self.receiver, self.writer, self.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::wire::frame::FRAME_MAX_BYTES;

    #[test]
    fn tls_is_told_from_frames() {
        assert!(matches!(tls_instead(&NO_TLS_HERE[..6]), Some(Error::Refused(_))));
        // The beginning of a ClientHello.
        assert!(matches!(tls_instead(&[0x16, 3, 1, 2, 0, 1]), Some(Error::UnexpectedTls)));
        assert!(tls_instead(&[0x16, 3, 1, 2, 0]).is_none(), "not enough yet");
        // Frames of any length.
        for len in 2..=FRAME_MAX_BYTES as u32 {
            let [a, b, c, d] = len.to_le_bytes();
            let first = [a, b, c, d, 0x72, weft_ringer::wire::frame::VERSION];
            assert!(tls_instead(&first).is_none(), "{len}");
        }
    }
}
