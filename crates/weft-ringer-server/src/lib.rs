//! The metadata server of a shared folder as a process: one thread runs the state machine
//! ([`weft_ringer::mds`]) and its store, two threads serve each connection.
//!
//! Invariants:
//! - A connection that speaks for a client has presented its secret; over TLS it has presented a
//!   certificate of the cell's authority before that.
//! - Without TLS, a peer over TCP is a process of root or of the server's own user on this machine,
//!   unless the options say otherwise.
//! - The thread with the state machine never waits for a connection.
//! - When the store fails the server ends, or stands by if the cell has several: its answers would
//!   not be durable.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `connection`, `event` | two threads for each connection; the queue to the thread with the state machine |
//! | `dispatch` | that thread: passes each event to the module that handles it |
//! | `admission`, `members` | local users without certificates; the members of the cell, invitations, revocation |
//! | `sessions`, `traffic` | connected clients with their permissions; counts of their messages |
//! | `administration`, `status` | requests of administrators; the status of the cell |
//! | `search`, `federation` | search in this cell; the parts of a search across cells |
//! | `archives`, `copies`, [`backup`] | archives and sweeps; pages of records for a backup; backup and restore |
//! | `rollback`, `cell_number` | detection of an older copy of the cell; its number |
//! | `proxy`, `cluster_member`, `relay` | a proxy as a process; one of several servers on etcd; relayed connections between clients |
//! | [`store`] | SQLite in one file, etcd (feature `etcd`), the index of names, words, tags and texts |
//!
//! # Example
//!
//! ```
//! use weft_net::Address;
//! use weft_ringer_server::{ServeOptions, Server};
//!
//! # let dir = tempfile::tempdir()?;
//! let listen = vec![Address::Unix(dir.path().join("cell.sock"))];
//! let options = ServeOptions { listen, ..ServeOptions::new() };
//! let server = Server::start(&dir.path().join("family.cell"), options)?;
//! assert!(server.watch().status().is_some_and(|cell| cell.clients.is_empty()));
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod administration;
mod admission;
mod archives;
pub mod backup;
mod cell_number;
#[cfg(feature = "etcd")]
mod cluster_member;
mod connection;
mod copies;
mod dispatch;
mod event;
mod federation;
mod members;
mod proxy;
mod relay;
mod rollback;
mod search;
mod sessions;
mod status;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod traffic;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_net::{Address, Listener, Listening, ServerTls};
use weft_ringer::BlockHash;
use weft_ringer::mds::MdsOptions;
use weft_ringer_net::pki::Authority;
use weft_ringer_net::{CellStatus, Error, Result, SOCKET_MODE};

use self::connection::serve_connection;
use self::dispatch::Dispatcher;
use self::event::Event;
use self::proxy::ProxyCore;
use self::relay::{Parents, Relays};
use crate::store::SqliteStore;

#[cfg(feature = "etcd")]
use self::cluster_member::ClusterMember;
pub use self::proxy::ProxyServeOptions;
#[cfg(feature = "etcd")]
use crate::store::EtcdOptions;

/// The capacity of the event queue of the state machine; connections wait beyond that.
const EVENTS_MAX: usize = 256;

/// The time limit of a status request from this process.
const WATCH_LIMIT: Duration = Duration::from_secs(2);

/// The options of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The addresses on which clients reach the server.
    pub listen: Vec<Address>,
    /// Certificates. `None`: nothing is encrypted, and over TCP only root and the server's own
    /// user, on this machine, are admitted.
    pub tls: Option<ServerTls>,
    /// Without certificates: whether every peer that reaches a TCP address is admitted.
    pub insecure: bool,
    /// The authority that issues certificates to new members. `None`: every holder of a certificate
    /// of the authority has all permissions, and no client can join.
    pub authority: Option<Arc<Authority>>,
    /// Fingerprints of certificates that have all permissions. For a server with an authority.
    pub admins: Vec<BlockHash>,
    /// The maximum number of connections; more are closed as they come.
    pub connections_max: usize,
    /// The maximum number of pairs of clients that may be connected through the server in parallel.
    pub relays_max: usize,
    /// The options of the state machine.
    pub mds: MdsOptions,
}

impl ServeOptions {
    /// The default options, without addresses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            listen: Vec::new(),
            tls: None,
            insecure: false,
            authority: None,
            admins: Vec::new(),
            connections_max: 1024,
            relays_max: 64,
            mds: MdsOptions::default(),
        }
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A running metadata server.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    listeners: Vec<Listening>,
    core: Option<JoinHandle<Result<()>>>,
    ended: Mutex<Receiver<()>>,
}

/// The state that the threads of a server share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    events: SyncSender<Event>,
    options: ServeOptions,
    relays: Relays,
    /// The servers behind a proxy.
    parents: Parents,
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Queues an event for the state machine, and waits while the queue is full.
    fn post(&self, mut event: Event) -> Result<()> {
        loop {
            match self.events.try_send(event) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) if !self.is_stopped() => {
                    event = back;
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(_) => return Err(Error::Closed),
            }
        }
    }
}

impl Server {
    /// Opens the cell in the SQLite file at `path`, makes it if it is not there, and serves it.
    ///
    /// # Errors
    /// [`Error::Store`] if the file is not a cell or is served already; [`Error::Net`].
    pub fn start(path: &Path, options: ServeOptions) -> Result<Self> {
        let bound = bind(&options)?;
        let failed = |e: &dyn std::fmt::Display| Error::Store(format!("{}: {e}", path.display()));
        let store = SqliteStore::open(path).map_err(|e| failed(&e))?;
        let core = Dispatcher::open(Box::new(store), &options).map_err(|e| failed(&e))?;
        Self::run(bound, options, Parents::default(), move |events, _| core.run(events))
    }

    /// Serves a cell that other servers have, as their proxy. The options about members and epochs
    /// are unused: the others decide them.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Denied`] if the others do not accept the proxy. Unreachable
    /// servers are no error: they are called until they answer. [`Error::Net`].
    pub fn start_proxy(proxy: ProxyServeOptions, options: ServeOptions) -> Result<Self> {
        let bound = bind(&options)?;
        let parents = Parents { servers: proxy.parents.clone(), tls: proxy.tls.clone() };
        let core = ProxyCore::new(proxy)?;
        Self::run(bound, options, parents, move |events, post| core.run(events, post))
    }

    /// Serves a cell in etcd, alone or with other servers: one of them owns it, the others stand by
    /// and send clients there, until it disappears. `reached_at` is the address at which clients
    /// reach this server, if that is not the first of its addresses.
    ///
    /// # Errors
    /// [`Error::Store`] if no member of etcd answers, [`Error::Net`].
    #[cfg(feature = "etcd")]
    pub fn start_member(
        etcd: &EtcdOptions,
        reached_at: Option<&Address>,
        options: ServeOptions,
    ) -> Result<Self> {
        let bound = bind(&options)?;
        let reached_at = reached_at.or(bound.first().map(Listener::address));
        let reached_at = reached_at.map(Address::to_string).unwrap_or_default();
        let member = ClusterMember::new(etcd, reached_at, options.clone())?;
        Self::run(bound, options, Parents::default(), move |events, _| member.run(events))
    }

    fn run(
        bound: Vec<Listener>,
        options: ServeOptions,
        parents: Parents,
        work: impl FnOnce(&Receiver<Event>, &SyncSender<Event>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let addresses = bound.iter().map(|l| l.address().clone()).collect();
        let (events, received) = sync_channel(EVENTS_MAX);
        let (stop, relays) = (AtomicBool::new(false), Relays::default());
        let shared = Arc::new(Shared { stop, events, options, relays, parents });
        let (tell, ended) = sync_channel(1);
        let ours = Arc::clone(&shared);
        let core = spawn("ringer-mds", move || {
            let served = work(&received, &ours.events);
            ours.stop.store(true, Ordering::Release);
            let _ = tell.try_send(());
            served
        })?;
        let mut listeners = Vec::new();
        for listener in bound {
            let shared = Arc::clone(&shared);
            let max = shared.options.connections_max;
            listeners.push(listener.start_threads("ringer-client", max, move |socket| {
                if let Err(e) = serve_connection(&shared, socket) {
                    tracing::info!("connection closed: {e}");
                }
            })?);
        }
        Ok(Self { addresses, shared, listeners, core: Some(core), ended: Mutex::new(ended) })
    }

    /// The addresses at which the server is reached.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns a handle for status requests.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::clone(&self.shared) }
    }

    /// Waits for at most `limit`, and returns true if the server has ended by itself.
    #[must_use]
    pub fn has_ended(&self, limit: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(ended.recv_timeout(limit), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
    }

    /// Ends the server. Clients continue if it is started again within their epoch.
    ///
    /// # Errors
    /// The reason why it ended by itself, if it did.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Release);
        self.listeners.clear();
        let Some(core) = self.core.take() else { return Ok(()) };
        // The queue may be full at first. A server that has ended by itself receives nothing.
        let _ = self.shared.events.send(Event::Stop);
        core.join().unwrap_or_else(|_| Err(Error::Store("the server panicked".into())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::error!("{e}");
        }
    }
}

fn bind(options: &ServeOptions) -> Result<Vec<Listener>> {
    let bind = |address| Listener::bind_with(address, SOCKET_MODE, options.tls.as_ref());
    Ok(options.listen.iter().map(bind).collect::<Result<_, _>>()?)
}

/// Requests the status of the cell, from any thread.
#[derive(Debug, Clone)]
pub struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    /// The status of the cell; `None` if the server has ended, is overloaded, or is a standby.
    #[must_use]
    pub fn status(&self) -> Option<CellStatus> {
        let (tell, told) = sync_channel(1);
        self.shared.events.try_send(Event::Describe { tell }).ok()?;
        told.recv_timeout(WATCH_LIMIT).ok()
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(work).map_err(|e| Error::io("cannot start a thread", e))
}
