//! A client's connection to its server: connects, and reconnects.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_net::Address;
use weft_ringer::client::ClientEvent;
use weft_ringer::{Bytes, CellId};
use weft_ringer_net::{
    Answer, Ask, Conversation, Error, HANDSHAKE_LIMIT, Outbox, Result, Seen, ServerList,
};

use super::engine::{Engine, TICK};
use super::mutex::locked;
use super::peers::{MakeCopy, PeerServer};

/// The pause before the server is called again.
const RECONNECT: Duration = Duration::from_millis(300);
/// The silence of one of several servers after which the next is tried.
const SILENCE: Duration = Duration::from_secs(3);
/// The pause after a refusal by the server.
const REFUSED: Duration = Duration::from_secs(10);

impl Engine {
    /// Keeps a connection to the server until the client ends. `make_copy` serves other clients.
    pub(super) fn keep_connected(self: &Arc<Self>, make_copy: &Arc<MakeCopy>) {
        let mut servers = ServerList::new(&self.options.servers);
        while !self.is_stopped() {
            let mut owner = None;
            let mut left = RECONNECT;
            let ended = self.connect(&servers.server(), make_copy);
            *locked(&self.trouble) = ended.as_ref().err().map(ToString::to_string);
            self.judge(&ended);
            match ended {
                Ok(()) => {}
                Err(e @ (Error::Denied(_) | Error::OlderCell(_))) => {
                    let _ = self.joined.set(Err(e.to_string()));
                    left = REFUSED;
                }
                Err(Error::Refused(why)) => {
                    tracing::error!("the metadata server refuses this client: {why}");
                    let _ = self.joined.set(Err(why));
                    left = REFUSED;
                }
                Err(Error::Standby { owner: at }) => owner = at,
                Err(e) => tracing::debug!("connection to the metadata server: {e}"),
            }
            if servers.advance(owner.as_deref()) {
                continue;
            }
            while !self.is_stopped() && !left.is_zero() {
                std::thread::sleep(TICK.min(left));
                left = left.saturating_sub(TICK);
            }
        }
    }

    /// Connects to the server, and handles its messages until the connection ends.
    fn connect(&self, server: &Address, make_copy: &Arc<MakeCopy>) -> Result<()> {
        let alone = self.options.servers.len() == 1;
        let limit = if alone { HANDSHAKE_LIMIT } else { SILENCE };
        let tls = self.options.tls.as_ref().map(|(tls, _)| (tls, server.host()));
        let mut link = Conversation::connect(server, tls, limit)?;
        let socket = link.socket();
        let listens = self.listen(socket.local_ip(), make_copy)?;
        let ask = Ask::Join {
            secret: Bytes(self.home.secret.clone()),
            listens: Some(Bytes(listens.to_string().into_bytes())),
            cell: self.home.cell()?,
            runs: self.home.runs.clone(),
        };
        link.send(&ask)?;
        let own = match link.receive(Some(Instant::now() + limit))? {
            Answer::Joined { client, cell } => {
                match self.home.cell()? {
                    0 => self.home.set_cell(cell)?,
                    own if own == cell => {}
                    own => {
                        let (own, cell) = (CellId(own), CellId(cell));
                        let why = format!(
                            "the server serves cell {cell}, but the local store is of cell {own}"
                        );
                        return Err(Error::Refused(why));
                    }
                }
                client
            }
            Answer::Refused { why } => {
                return Err(Error::Refused(String::from_utf8_lossy(&why.0).into_owned()));
            }
            Answer::Standby { owner } => return Err(Error::standby(owner)),
            Answer::Denied { denial } => return Err(denial.into()),
            _ => {
                return Err(Error::Refused(
                    "protocol error: the peer is not a weft ringer metadata server".into(),
                ));
            }
        };
        // An earlier version's server does not send `Generations`: its first message is handled
        // below.
        let mut first = Some(link.receive::<Answer>(Some(Instant::now() + limit))?);
        if let Some(Answer::Generations { generations, revision }) = &first {
            if let Err(why) = self.known.meet(generations, *revision) {
                if let Some(Seen { generation, instance, revision }) = self.known.seen() {
                    // This informs the administrator of the cell too.
                    let _ = link.send(&Ask::SawLater { generation, instance, revision });
                }
                return Err(Error::OlderCell(why));
            }
            self.known.save();
            // The next message says whether the client is accepted.
            first = match link.receive::<Answer>(Some(Instant::now() + limit))? {
                Answer::Denied { denial } => return Err(denial.into()),
                answer => Some(answer),
            };
        }
        self.home.accepted()?;
        self.acquit();
        let (mut receiver, writer, socket) = link.into_parts();
        let outbox = Arc::new(Outbox::new(Arc::clone(&socket), &*writer));
        let sender = Arc::clone(&outbox);
        let sending = std::thread::Builder::new().name("ringer-send".into());
        let sending = sending.spawn(move || sender.run(writer));
        let sending = sending.map_err(|e| Error::io("cannot start a thread", e))?;
        *locked(&self.outbox) = Some(Arc::clone(&outbox));
        let _ = self.joined.set(Ok(own));
        *locked(&self.trouble) = None;
        self.peers.set_server(Some(server.clone()));
        self.handle(&mut locked(&self.inner), ClientEvent::Connected);
        let mut heard = Instant::now();
        let ended = loop {
            if self.is_stopped() {
                break Ok(());
            }
            let soon = Some(Instant::now() + Duration::from_secs(1));
            let answer = first.take().map_or_else(|| receiver.next::<Answer>(soon), Ok);
            if answer.is_ok() {
                heard = Instant::now();
            }
            match answer {
                Ok(Answer::Mds { message }) => {
                    self.handle(&mut locked(&self.inner), ClientEvent::Message(*message));
                }
                Ok(Answer::Peers { peers }) => self.peers.learn(own, peers),
                Ok(Answer::Called { client, rendezvous }) if client == own => {
                    if let Some(server) = &*locked(&self.peer_server) {
                        server.called(Arc::clone(&self.peers), rendezvous);
                    }
                }
                Ok(Answer::Standby { owner }) => break Err(Error::standby(owner)),
                Ok(Answer::Pong {}) => {}
                // The server behind a proxy was restarted.
                Ok(Answer::Generations { generations, revision }) => {
                    if let Err(why) = self.known.meet(&generations, revision) {
                        if let Some(Seen { generation, instance, revision }) = self.known.seen() {
                            outbox.post(&Ask::SawLater { generation, instance, revision });
                            outbox.drain(Duration::from_millis(100));
                        }
                        break Err(Error::OlderCell(why));
                    }
                    self.known.save();
                }
                Ok(Answer::Reached { revision }) => self.known.reached(revision),
                Ok(Answer::RevokedMembers { certificates }) => {
                    *locked(&self.revoked) = certificates.into_iter().collect();
                }
                Ok(Answer::Denied { denial }) => break Err(denial.into()),
                Ok(other) => tracing::debug!("unexpected message from the server: {other:?}"),
                Err(e) if e.is_timeout() && alone => {}
                Err(e) if e.is_timeout() && heard.elapsed() < SILENCE => {
                    outbox.post(&Ask::Ping {});
                }
                Err(e) => break Err(e),
            }
        };
        self.peers.set_server(None);
        locked(&self.outbox).take_if(|o| Arc::ptr_eq(o, &outbox));
        outbox.close();
        socket.shutdown(Shutdown::Both);
        let _ = sending.join();
        ended
    }

    /// Returns the address at which other clients reach this one; starts listening the first time.
    fn listen(
        &self,
        local: Option<std::net::IpAddr>,
        make_copy: &Arc<MakeCopy>,
    ) -> Result<Address> {
        let mut server = locked(&self.peer_server);
        if let Some(server) = &*server {
            return Ok(server.address().clone());
        }
        let address = match (&self.options.listen, local) {
            (Some(address), _) => address.clone(),
            (None, Some(ip)) => Address::Tcp(ip.to_string(), 0),
            (None, None) => {
                let path = self.home.path("peers.sock");
                let path = std::path::absolute(&path).map_err(|e| Error::io("a path", e))?;
                Address::Unix(path)
            }
        };
        let tls = self.options.tls.as_ref().map(|(_, tls)| tls.clone());
        let started = PeerServer::start(
            &address,
            tls,
            Arc::clone(&self.blocks),
            &self.revoked,
            &self.peers.transfers,
            Arc::clone(make_copy),
        )?;
        let address = started.address().clone();
        *server = Some(started);
        Ok(address)
    }

    /// Returns true if there is a connection at this moment.
    pub(super) fn is_linked(&self) -> bool {
        locked(&self.outbox).is_some()
    }

    /// The reason for no connection, as far as it is known.
    pub(super) fn trouble(&self) -> Option<String> {
        locked(&self.trouble).clone()
    }

    /// The error text for when no server answers.
    pub(super) fn silent(&self) -> String {
        let why = self.trouble().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("the metadata server at {} does not answer{why}", self.options.places())
    }
}
