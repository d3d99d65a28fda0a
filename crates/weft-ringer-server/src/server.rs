//! A running server: its listeners, and the thread with the state machine.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_net::{Address, Listener, Listening};
use weft_ringer_net::{CellStatus, Error, Result, SOCKET_MODE};

#[cfg(feature = "etcd")]
use super::cluster_member::ClusterMember;
use super::connection::serve_connection;
use super::dispatch::Dispatcher;
use super::event::Event;
use super::options::ServeOptions;
use super::proxy::{ProxyCore, ProxyServeOptions};
use super::rendezvous::Relays;
use super::shared::{Parents, Shared};
#[cfg(feature = "etcd")]
use super::store::EtcdOptions;
use super::store::SqliteStore;
use super::thread::spawn;

/// The capacity of the event queue of the state machine; connections wait beyond that.
const EVENTS_MAX: usize = 256;

/// The time limit of a status request from this process.
const WATCH_LIMIT: Duration = Duration::from_secs(2);

/// A running metadata server.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    listeners: Vec<Listening>,
    core: Option<JoinHandle<Result<()>>>,
    /// What an administrator should hear when it begins.
    notes: Vec<String>,
    ended: Mutex<Receiver<()>>,
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
        let damage = store.quick_damage().map_err(|e| failed(&e))?;
        let notes: Vec<String> = damage
            .iter()
            .map(|what| {
                format!(
                    "{} is damaged: {what}. `weft ringer doctor` finds what is wrong; \
                    `restore-cell` makes a cell from a backup",
                    path.display()
                )
            })
            .inspect(|note| tracing::error!("{note}"))
            .collect();
        let core = Dispatcher::open(Box::new(store), &options).map_err(|e| failed(&e))?;
        let mut server =
            Self::run(bound, options, Parents::default(), move |events, _| core.run(events))?;
        server.notes = notes;
        Ok(server)
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
            listeners.push(listener.start_threads("ringer-client", max, move |socket, seat| {
                if let Err(e) = serve_connection(&shared, socket, seat) {
                    tracing::info!("connection closed: {e}");
                }
            })?);
        }
        let (core, notes, ended) = (Some(core), Vec::new(), Mutex::new(ended));
        Ok(Self { addresses, shared, listeners, core, notes, ended })
    }

    /// The addresses at which the server is reached.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What an administrator should hear when it begins: damage of the cell's file.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
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
    if options.activated {
        return inherited(options);
    }
    let bind = |address| Listener::bind_with(address, SOCKET_MODE, options.tls.as_ref());
    Ok(options.listen.iter().map(bind).collect::<Result<_, _>>()?)
}

/// The sockets that the process was started with. Without certificates, none of them may be open to
/// others: whoever reaches a Unix socket is admitted.
fn inherited(options: &ServeOptions) -> Result<Vec<Listener>> {
    let listeners = weft_net::inherited_listeners()?;
    if options.tls.is_none() && !options.insecure {
        for listener in &listeners {
            if let Some(why) = listener.open_to_others()? {
                return Err(Error::Refused(format!(
                    "{why}: give it other permissions (SocketMode=0600 in a unit of systemd), or \
                     serve with --tls-certificates DIRECTORY, or --insecure"
                )));
            }
        }
    }
    Ok(listeners)
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
