//! Exchange of blocks with other clients.
//!
//! Invariants:
//! - A fetched block counts only if it has the hash that was asked for.
//! - A peer that fails, stalls or lies is asked last for [`BENCH`]; no caller waits for one longer
//!   than [`FETCH_LIMIT`], and where there are others they are asked before that (`fetching`).
//!
//! A peer that cannot be reached at its address, because it or this client is behind NAT, is
//! reached through the metadata server ([`Conversation::meet`]); for [`DETOUR`] nothing else is
//! tried. It then serves on a connection that it has made itself.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_net::{Address, Channel, ClientTls, Listener, Listening, ServerTls};
use weft_ringer::{BlockHash, Bytes, ClientId, Holders, RnodeId};
use weft_ringer_net::{
    Ask, BlockBytes, Conversation, Denial, Error, FromPeer, HELLO_MAX_BYTES, MEMBER_NAME, PORT,
    Peer, Rendezvous, Result, SOCKET_MODE, ToPeer,
};

use super::blocks::Blocks;
use super::mutex::locked;
use super::pool::Pool;

/// The time limit for one block from one peer.
pub(super) const FETCH_LIMIT: Duration = Duration::from_secs(8);
/// The time for which a failed peer is asked last.
const BENCH: Duration = Duration::from_secs(20);
/// The time limit for connecting to a peer at its address.
const REACH_LIMIT: Duration = Duration::from_secs(2);
/// The time for which a peer is reached through the server alone, once that was needed.
const DETOUR: Duration = Duration::from_secs(300);
/// The maximum number of peers served through the server in parallel.
const CALLED_MAX: usize = 16;
/// The longest silence of a client that makes a copy.
const WORKING_LIMIT: Duration = Duration::from_secs(30);
/// The interval at which it reports that it goes on.
const WORKING_EVERY: Duration = Duration::from_secs(2);
/// The maximum number of idle connections kept to one peer.
const SPARE_MAX: usize = 8;
/// The maximum number of peers served in parallel.
const SERVED_MAX: usize = 128;
/// The idle time after which a peer's connection is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Known {
    address: Address,
    spare: Vec<Conversation>,
    benched: Option<Instant>,
    /// The end of the time for which it is reached through the server.
    detour: Option<Instant>,
}

impl Known {
    fn at(address: Address) -> Self {
        Self { address, spare: Vec::new(), benched: None, detour: None }
    }
}

/// Counts of blocks exchanged with other clients, since this client started.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    pub(super) blocks_read: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) blocks_given: AtomicU64,
    pub(super) bytes_given: AtomicU64,
}

pub(super) fn count(blocks: &AtomicU64, of_bytes: &AtomicU64, bytes: &[u8]) {
    blocks.fetch_add(1, Ordering::Relaxed);
    of_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
}

/// The other clients of the cell.
#[derive(Debug)]
pub(super) struct Peers {
    known: Mutex<HashMap<ClientId, Known>>,
    pub(super) transfers: Arc<Transfers>,
    tls: Option<ClientTls>,
    /// The server that this client is connected to.
    server: Mutex<Option<Address>>,
    pub(super) pool: Arc<Pool>,
}

impl Peers {
    pub(super) fn new(tls: Option<ClientTls>) -> Self {
        let (known, server) = (Mutex::default(), Mutex::default());
        Self { known, transfers: Arc::default(), tls, server, pool: Arc::default() }
    }

    /// Sets the server that this client is connected to, if any.
    pub(super) fn set_server(&self, server: Option<Address>) {
        *locked(&self.server) = server;
    }

    /// Connects to the server with `ask`, and returns the channel relayed to another client.
    fn meet(&self, ask: &Ask, deadline: Instant) -> Result<Channel> {
        let server = locked(&self.server).clone();
        let server = server.ok_or(Error::Closed)?;
        let tls = self.tls.as_ref().map(|tls| (tls, server.host()));
        let link = Conversation::connect(&server, tls, left(deadline))?;
        Ok(link.meet(ask, deadline)?.into_channel())
    }

    /// Connects to a client directly or through the server. Returns true for the latter.
    fn connect(
        &self,
        client: ClientId,
        address: &Address,
        detour: bool,
        deadline: Instant,
    ) -> Result<(Conversation, bool)> {
        let tls = self.tls.as_ref().map(|tls| (tls, MEMBER_NAME));
        let direct = if detour {
            Err(Error::Closed)
        } else {
            Conversation::connect(address, tls, left(deadline).min(REACH_LIMIT))
        };
        let why = match direct {
            Ok(connection) => return Ok((connection, false)),
            Err(e) => e,
        };
        let met = self.meet(&Ask::Meet { peer: client }, deadline);
        let met = met.and_then(|channel| Conversation::connect_over(channel, tls, deadline));
        match met {
            Ok(connection) => Ok((connection, true)),
            Err(e) if detour => Err(e),
            Err(e) => Err(Error::Refused(format!("{why}; relayed by the server: {e}"))),
        }
    }

    /// Adds a list of connected peers. Those that have left may still answer.
    pub(super) fn learn(&self, own: ClientId, peers: Vec<Peer>) {
        let mut known = locked(&self.known);
        for Peer { client, listens } in peers {
            let text = std::str::from_utf8(&listens.0).ok();
            let address = text.and_then(|t| Address::parse(t, PORT).ok());
            let Some(address) = address.filter(|_| client != own) else { continue };
            if known.get(&client).is_none_or(|k: &Known| k.address != address) {
                known.insert(client, Known::at(address));
            }
        }
    }

    /// The order in which peers are asked for a block: the holders first, the newest before the
    /// others; last those that failed lately.
    pub(super) fn order(&self, holders: &Holders) -> VecDeque<ClientId> {
        let now = Instant::now();
        let mut order: Vec<_> = {
            let known = locked(&self.known);
            let rank = |(client, peer): (&ClientId, &Known)| {
                let benched = peer.benched.is_some_and(|until| now < until);
                let held = holders.clients.get(client).copied();
                ((benched, std::cmp::Reverse(held)), *client)
            };
            known.iter().map(rank).collect()
        };
        order.sort_unstable();
        order.into_iter().map(|(_, client)| client).collect()
    }

    /// Returns true if a client is known.
    pub(super) fn knows(&self, client: ClientId) -> bool {
        locked(&self.known).contains_key(&client)
    }

    pub(super) fn bench(&self, client: ClientId) {
        if let Some(peer) = locked(&self.known).get_mut(&client) {
            peer.benched = Some(Instant::now() + BENCH);
        }
    }

    /// Asks a client to make a copy of a file and to keep it, and waits for that while there is
    /// progress, until `deadline` at most.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn ask_to_hold(
        &self,
        client: ClientId,
        rnode: RnodeId,
        deadline: Instant,
    ) -> Result<Held> {
        let asked = self.converse(client, deadline, |connection| {
            connection.send(&ToPeer::Hold { rnode })?;
            loop {
                let soon = deadline.min(Instant::now() + WORKING_LIMIT);
                match connection.receive::<FromPeer>(Some(soon))? {
                    FromPeer::Working {} => {}
                    FromPeer::Held {} => return Ok(Held::Yes),
                    FromPeer::No { full, why } => {
                        let why = String::from_utf8_lossy(&why.0).into_owned();
                        return Ok(Held::No { full, why });
                    }
                    _ => return Err(Error::Refused("protocol error: unexpected reply".into())),
                }
            }
        });
        if asked.is_err() {
            self.bench(client);
        }
        asked
    }

    /// The other clients: those that failed lately last, else in an order that differs by file.
    pub(super) fn others(&self, rnode: RnodeId) -> Vec<ClientId> {
        let now = Instant::now();
        let mut others: Vec<_> = {
            let known = locked(&self.known);
            let rank = |(client, peer): (&ClientId, &Known)| {
                let benched = peer.benched.is_some_and(|until| now < until);
                // Any function that spreads files over clients would do.
                let mixed =
                    (client.0 ^ rnode.0).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
                (benched, mixed, *client)
            };
            known.iter().map(rank).collect()
        };
        others.sort_unstable();
        others.into_iter().map(|(_, _, client)| client).collect()
    }

    /// Runs `talk` on a connection to a client, pooled or new.
    pub(super) fn converse<T>(
        &self,
        client: ClientId,
        deadline: Instant,
        mut talk: impl FnMut(&mut Conversation) -> Result<T>,
    ) -> Result<T> {
        // A pooled connection may have ended meanwhile: only a new one shows the peer's state.
        loop {
            let (address, detour, spare) = {
                let mut known = locked(&self.known);
                let peer = known.get_mut(&client).ok_or(Error::Closed)?;
                let detour = peer.detour.filter(|until| Instant::now() < *until);
                (peer.address.clone(), detour, peer.spare.pop())
            };
            let is_new = spare.is_none();
            let (mut connection, detour) = match spare {
                Some(connection) => (connection, detour),
                None => {
                    let connected = self.connect(client, &address, detour.is_some(), deadline);
                    let (connection, is_detour) = connected.inspect_err(|_| {
                        // A direct connection may work again.
                        locked(&self.known).entry(client).and_modify(|peer| peer.detour = None);
                    })?;
                    let until = detour.unwrap_or_else(|| Instant::now() + DETOUR);
                    (connection, is_detour.then_some(until))
                }
            };
            let said = match talk(&mut connection) {
                Ok(said) => said,
                Err(e) if is_new || e.is_timeout() => return Err(e),
                Err(_) => continue,
            };
            if let Some(peer) = locked(&self.known).get_mut(&client)
                && peer.address == address
                && peer.spare.len() < SPARE_MAX
            {
                peer.benched = None;
                peer.detour = detour;
                peer.spare.push(connection);
            }
            return Ok(said);
        }
    }
}

/// The time left until `deadline`.
fn left(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.clamp(Duration::from_millis(1), FETCH_LIMIT)
}

/// The result of a request to another client for a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// The copy was made, and the server knows.
    Yes,
    /// There will be no copy.
    No {
        /// Whether there is too little room.
        full: bool,
        why: String,
    },
}

/// Fingerprints of certificates that the server has revoked.
pub(super) type RevokedMembers = Arc<Mutex<BTreeSet<BlockHash>>>;

/// A function that makes a copy of a file: it calls its argument now and then, and stops when that
/// returns false.
pub(super) type MakeCopy = dyn Fn(RnodeId, &mut dyn FnMut() -> bool) -> Held + Send + Sync;

/// Serves blocks to other clients until it is dropped.
#[derive(Debug)]
pub(super) struct PeerServer {
    serving: Arc<Serving>,
    listening: Listening,
}

impl PeerServer {
    pub(super) fn start(
        address: &Address,
        tls: Option<ServerTls>,
        blocks: Arc<Blocks>,
        revoked: &RevokedMembers,
        transfers: &Arc<Transfers>,
        make_copy: Arc<MakeCopy>,
    ) -> Result<Self> {
        let listener = Listener::bind_with(address, SOCKET_MODE, tls.as_ref())?;
        let serving = Arc::new(Serving {
            tls,
            blocks,
            revoked: Arc::clone(revoked),
            transfers: Arc::clone(transfers),
            make_copy,
            called: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let ours = Arc::clone(&serving);
        let listening =
            listener.start_threads("ringer-peer", SERVED_MAX, move |socket, seat| {
                let peer = Conversation::accept(socket, ours.tls.as_ref());
                if peer.is_ok() {
                    seat.settle();
                }
                if let Err(e) = peer.and_then(|peer| ours.serve(peer)) {
                    tracing::debug!("connection of a peer: {e}");
                }
            })?;
        Ok(Self { serving, listening })
    }

    /// Joins a rendezvous that a peer has called this client to, and serves the peer there. Errors
    /// are left for the peer to see.
    pub(super) fn called(&self, peers: Arc<Peers>, rendezvous: Rendezvous) {
        let serving = Arc::clone(&self.serving);
        if serving.called.fetch_add(1, Ordering::AcqRel) >= CALLED_MAX {
            serving.called.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let ours = Arc::clone(&serving);
        let thread = std::thread::Builder::new().name("ringer-peer".into());
        let started = thread.spawn(move || {
            let channel = peers.meet(&Ask::Come { rendezvous }, Instant::now() + FETCH_LIMIT);
            let peer = channel.and_then(|c| Conversation::accept_over(c, ours.tls.as_ref()));
            if let Err(e) = peer.and_then(|peer| ours.serve(peer)) {
                tracing::debug!("relayed connection of a peer: {e}");
            }
            ours.called.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            serving.called.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn address(&self) -> &Address {
        self.listening.address()
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.serving.stop.store(true, Ordering::Release);
    }
}

struct Serving {
    tls: Option<ServerTls>,
    blocks: Arc<Blocks>,
    revoked: RevokedMembers,
    transfers: Arc<Transfers>,
    make_copy: Arc<MakeCopy>,
    /// The number of peers served through the server.
    called: AtomicUsize,
    stop: AtomicBool,
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("called", &self.called).finish_non_exhaustive()
    }
}

impl Serving {
    fn serve(&self, mut peer: Conversation) -> Result<()> {
        // Requests are always short.
        peer.limit_frames(HELLO_MAX_BYTES);
        let mut last = Instant::now();
        while !self.stop.load(Ordering::Acquire) && last.elapsed() < IDLE_LIMIT {
            let soon = Instant::now() + Duration::from_secs(1);
            let asked = match peer.receive(Some(soon)) {
                Ok(ask) => ask,
                Err(e) if e.is_timeout() => continue,
                Err(Error::Closed) => return Ok(()),
                Err(e) => return Err(e),
            };
            let revoked = locked(&self.revoked);
            if peer.fingerprint().is_some_and(|shown| revoked.contains(&shown)) {
                return Err(Denial::Revoked.into());
            }
            drop(revoked);
            let answer = match asked {
                ToPeer::Fetch { rnode, hash } => self.block(rnode, &hash),
                ToPeer::Hold { rnode } => self.hold(rnode, &mut peer),
            };
            peer.send(&answer)?;
            last = Instant::now();
        }
        Ok(())
    }

    fn block(&self, rnode: RnodeId, hash: &BlockHash) -> FromPeer {
        match self.blocks.whole(rnode, hash) {
            Ok(Some(bytes)) => {
                count(&self.transfers.blocks_given, &self.transfers.bytes_given, &bytes);
                FromPeer::Block { bytes: BlockBytes(bytes) }
            }
            Ok(None) => FromPeer::Absent {},
            Err(e) => {
                tracing::error!("cannot read block {hash:?} of inode {rnode}: {e}");
                FromPeer::Absent {}
            }
        }
    }

    fn hold(&self, rnode: RnodeId, peer: &mut Conversation) -> FromPeer {
        let mut told = Instant::now();
        let mut go_on = || {
            if told.elapsed() >= WORKING_EVERY {
                told = Instant::now();
                // The requester may have gone.
                return peer.send(&FromPeer::Working {}).is_ok();
            }
            !self.stop.load(Ordering::Acquire)
        };
        match (self.make_copy)(rnode, &mut go_on) {
            Held::Yes => FromPeer::Held {},
            Held::No { full, why } => FromPeer::No { full, why: Bytes(why.into_bytes()) },
        }
    }
}
