//! The server: exports devices to NBD clients.

mod negotiate;
mod perform;
mod session;

pub use negotiate::{Agreement, Negotiator, Next, TlsMode};

use crate::wire::{
    BlockSizes, ClientFlags, ClientHello, HandshakeFlags, OPTION_HEADER_BYTES, OptionHeader,
    PAYLOAD_MAX_BYTES, STRING_MAX_BYTES, ServerHello, TransmissionFlags,
};
use crate::{Error, Result};
use session::{Session, TICK};
use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_block::BlockDevice;
use weft_net::{Address, Channel, Listener, Listening, Socket, read_full, write_all_vectored};

/// The longest data of an option that is read, in bytes.
const OPTION_MAX_BYTES: u32 = 64 << 10;
/// Longer data is skipped up to this length; beyond it the session ends.
const OPTION_SKIP_MAX_BYTES: u32 = 1 << 20;
/// The handshake limit of a client that cannot be served, in which it receives the reason.
const TURN_AWAY_LIMIT: Duration = Duration::from_secs(5);
/// The most clients that receive a reason at a time; the connections of others are closed without
/// one.
const TURNED_AWAY_MAX: usize = 8;
/// The time that a client may leave its replies unread before the session ends.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// A device, and its properties as clients see them.
pub struct Export {
    /// The name of the export. An empty name in a request means the first export.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Changes are refused. An export of a read-only device is always read-only.
    pub read_only: bool,
    /// The unit of offsets and lengths, which must be multiples of it, in bytes: a power of two of
    /// at most 64 KiB.
    pub block_bytes_min: u32,
    /// The preferred unit of offsets and lengths, in bytes: a power of two of at least 512.
    pub block_bytes_preferred: u32,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Export");
        f.field("name", &self.name).field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

impl Export {
    /// Makes an export of the whole of `device`, addressable by the byte; read-only if the device
    /// is.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        let geometry = device.geometry();
        let preferred = geometry.physical_block_bytes.max(512);
        Self {
            name: name.into(),
            description: String::new(),
            device,
            read_only: geometry.read_only,
            block_bytes_min: 1,
            block_bytes_preferred: preferred.checked_next_power_of_two().unwrap_or(4096),
        }
    }

    /// Returns the length in bytes: a device may grow, and is not served past its last whole block.
    fn len_bytes(&self) -> u64 {
        let len_bytes = self.device.geometry().len_bytes;
        len_bytes - len_bytes % u64::from(self.block_bytes_min.max(1))
    }

    fn block_sizes(&self) -> BlockSizes {
        let preferred = self.block_bytes_preferred.max(self.block_bytes_min);
        BlockSizes { min: self.block_bytes_min, preferred, max: PAYLOAD_MAX_BYTES }
    }

    /// Returns the features of the export. All connections share one device, whose flush covers all
    /// writes that have returned: so a client may use several connections.
    fn flags(&self, structured: bool) -> TransmissionFlags {
        use TransmissionFlags as F;
        let mut flags = F::HAS_FLAGS | F::SEND_FLUSH | F::CAN_MULTI_CONN | F::SEND_CACHE;
        flags |= if self.read_only {
            F::READ_ONLY
        } else {
            F::SEND_FUA | F::SEND_TRIM | F::SEND_WRITE_ZEROES | F::SEND_FAST_ZERO
        };
        flags.set(F::SEND_DF, structured);
        flags
    }

    fn check(&self) -> Result<()> {
        let min = self.block_bytes_min;
        if !min.is_power_of_two() || min > 1 << 16 {
            return Err(Error::Invalid(format!("{min} bytes is no minimum block size")));
        }
        let preferred = self.block_bytes_preferred;
        if !preferred.is_power_of_two() || preferred < 512 {
            return Err(Error::Invalid(format!("{preferred} bytes is no preferred block size")));
        }
        for text in [&self.name, &self.description] {
            if text.len() > STRING_MAX_BYTES || text.contains('\0') {
                let what = "a name or description that the protocol cannot carry";
                return Err(Error::Invalid(what.into()));
            }
        }
        Ok(())
    }
}

/// The options of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most connections at once. A further one takes the place of the oldest that has not ended
    /// its handshake, so that silent clients keep no others out; if all have, it receives this
    /// reason and is closed.
    pub connections_max: usize,
    /// The most requests in progress at once on each connection.
    pub threads: usize,
    /// The most data that the requests in progress on one connection may hold in memory, in bytes.
    /// One request alone may hold 64 MiB regardless of this limit.
    pub in_flight_max_bytes: u64,
    /// The time for the whole handshake.
    pub handshake_limit: Duration,
    /// The time without requests after which a connection ends. `None`: no limit, as mounted file
    /// systems need.
    pub idle_limit: Option<Duration>,
    /// Permission bits of a Unix socket.
    pub socket_mode: u32,
    /// Certificates, for clients that use TLS.
    #[cfg(feature = "tls")]
    pub tls: Option<weft_net::ServerTls>,
    /// Clients that do not use TLS are refused.
    pub tls_required: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 64,
            threads: 8,
            in_flight_max_bytes: 64 << 20,
            handshake_limit: Duration::from_secs(30),
            idle_limit: None,
            socket_mode: 0o600,
            #[cfg(feature = "tls")]
            tls: None,
            tls_required: false,
        }
    }
}

/// The operations of a server since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// Those of them that were refused because the limit was reached.
    pub refused: AtomicU64,
    /// Requests received.
    pub requests: AtomicU64,
    /// Bytes read by clients.
    pub read_bytes: AtomicU64,
    /// Bytes written by clients.
    pub written_bytes: AtomicU64,
    /// Requests that were neither reads nor writes.
    pub others: AtomicU64,
}

/// A connection that is served.
struct Connection {
    socket: Arc<Socket>,
    /// Its handshake has not ended.
    shaking_hands: bool,
}

/// A client during its handshake.
#[derive(Clone, Copy)]
enum Client<'a> {
    /// It is the connection of this number.
    Served(u64),
    /// It is not served, for this reason.
    Refused(&'a str),
}

/// The state that all threads of a server share.
struct Shared {
    exports: Arc<[Arc<Export>]>,
    options: Options,
    stopping: Arc<AtomicBool>,
    /// All connections, to wake their threads at the end.
    connections: Mutex<HashMap<u64, Connection>>,
    ended: Condvar,
    /// The number of clients that are being refused.
    turning_away: AtomicUsize,
    counters: Arc<Counters>,
}

/// A server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listening>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("exports", &self.shared.exports).finish_non_exhaustive()
    }
}

impl Server {
    /// Makes a server of `exports`, which is not reachable yet: call [`listen`](Self::listen).
    ///
    /// # Errors
    /// [`Error::Invalid`] for no export, two of one name, or an invalid name, description or block
    /// size.
    pub fn new(exports: Vec<Export>, options: Options) -> Result<Self> {
        if exports.is_empty() {
            return Err(Error::Invalid("there is nothing to export".into()));
        }
        for (nr, export) in exports.iter().enumerate() {
            export.check()?;
            if exports[..nr].iter().any(|e| e.name == export.name) {
                return Err(Error::Invalid(format!("two exports are named {:?}", export.name)));
            }
        }
        let exports = exports.into_iter().map(|mut export| {
            export.read_only |= export.device.geometry().read_only;
            Arc::new(export)
        });
        let shared = Shared {
            exports: exports.collect(),
            options,
            stopping: Arc::default(),
            connections: Mutex::default(),
            ended: Condvar::new(),
            turning_away: AtomicUsize::new(0),
            counters: Arc::default(),
        };
        if shared.tls_mode() == TlsMode::Off && shared.options.tls_required {
            return Err(Error::Invalid("TLS is required, and there are no certificates".into()));
        }
        Ok(Self { shared: Arc::new(shared), listeners: Vec::new() })
    }

    /// Listens at an address, and returns it, with the assigned port if none was requested.
    ///
    /// # Errors
    /// [`Error::Net`], with `AddrInUse` if another process listens there, or if the path of a Unix
    /// socket is another kind of file.
    pub fn listen(&mut self, address: &Address) -> Result<Address> {
        self.listen_on(Listener::bind(address, self.shared.options.socket_mode)?)
    }

    /// Listens on a socket that listens already, such as one of the service manager
    /// ([`weft_net::inherited_listeners`]), and returns its address.
    ///
    /// # Errors
    /// [`Error::Net`] if no thread can be started.
    pub fn listen_on(&mut self, listener: Listener) -> Result<Address> {
        let shared = Arc::clone(&self.shared);
        let listening = listener.start("weft-nbd-accept", move |socket| shared.take(socket))?;
        let address = listening.address().clone();
        self.listeners.push(listening);
        Ok(address)
    }

    /// Serves a client on a connection that the caller has accepted.
    pub fn serve_unix(&self, stream: UnixStream) {
        self.shared.take(Socket::Unix(stream));
    }

    /// Serves a client on a connection that the caller has accepted.
    pub fn serve_tcp(&self, stream: TcpStream) {
        self.shared.take(Socket::tcp(stream));
    }

    /// Returns the counters of the server.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Returns the number of connected clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections().len()
    }

    /// Stops: accepts no more connections and requests, answers the requests in progress (for up to
    /// `limit`, then connections are cut), and flushes every writable export.
    ///
    /// # Errors
    /// [`Error::Net`] if a flush failed.
    pub fn stop(mut self, limit: Duration) -> Result<()> {
        self.end(limit);
        for export in self.shared.exports.iter().filter(|e| !e.read_only) {
            export
                .device
                .flush()
                .map_err(|e| Error::io("the last flush", std::io::Error::other(e)))?;
        }
        Ok(())
    }

    fn end(&mut self, limit: Duration) {
        self.shared.stopping.store(true, Ordering::Release);
        self.listeners.clear();
        let deadline = Instant::now() + limit;
        let mut connections = self.shared.connections();
        for connection in connections.values() {
            connection.socket.shutdown(Shutdown::Read);
        }
        let mut cut = false;
        while !connections.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && !cut {
                cut = true;
                for connection in connections.values() {
                    connection.socket.shutdown(Shutdown::Both);
                }
            }
            // After the cut only the device itself can take long.
            let wait = if cut { TICK } else { left };
            let waited = self.shared.ended.wait_timeout(connections, wait);
            connections = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tls_mode(&self) -> TlsMode {
        #[cfg(feature = "tls")]
        if self.options.tls.is_some() {
            let required = self.options.tls_required;
            return if required { TlsMode::Required } else { TlsMode::Optional };
        }
        TlsMode::Off
    }

    /// Serves a connection in a thread of its own, if the limit allows it.
    fn take(self: &Arc<Self>, socket: Socket) {
        let id = self.counters.connections.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(socket);
        let mut connections = self.connections();
        if self.stopping.load(Ordering::Acquire) {
            return;
        }
        if connections.len() >= self.options.connections_max {
            let shaking = connections.iter().filter(|(_, c)| c.shaking_hands).map(|(id, _)| *id);
            let Some(oldest) = shaking.min() else {
                drop(connections);
                return self.turn_away(socket);
            };
            // Its thread finds out when it reads next, and that its place is gone.
            if let Some(replaced) = connections.remove(&oldest) {
                replaced.socket.shutdown(Shutdown::Both);
            }
            tracing::info!("a connection without a handshake was closed for a new one");
        }
        let connection = Connection { socket: Arc::clone(&socket), shaking_hands: true };
        connections.insert(id, connection);
        let shared = Arc::clone(self);
        let work = move || {
            let gone = Gone { shared: &shared, id };
            match shared.converse(id, socket) {
                Ok(()) => tracing::debug!("a client ended"),
                // A client that violates the protocol harms only itself; many may be an attack.
                Err(e) => tracing::info!(error = %e, "a connection ended"),
            }
            drop(gone);
        };
        let spawned = std::thread::Builder::new().name("weft-nbd".into()).spawn(work);
        if spawned.is_err() {
            connections.remove(&id);
        }
    }

    /// Refuses a client, in a thread of its own, because the limit is reached.
    fn turn_away(self: &Arc<Self>, socket: Arc<Socket>) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        let max = self.options.connections_max;
        tracing::warn!(connections_max = max, "refused a connection: the limit is reached");
        if self.turning_away.fetch_add(1, Ordering::AcqRel) >= TURNED_AWAY_MAX {
            self.turning_away.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let shared = Arc::clone(self);
        let work = move || {
            let why =
                format!("connection refused: the server has {max} connections, the most it allows");
            let deadline = Instant::now() + TURN_AWAY_LIMIT;
            let told = socket
                .set_read_timeout(TICK)
                .and_then(|()| socket.set_write_timeout(TURN_AWAY_LIMIT))
                .map_err(Error::from)
                .and_then(|()| {
                    shared.handshake(Channel::plain(socket), deadline, Client::Refused(&why))
                });
            if let Err(e) = told {
                tracing::debug!(error = %e, "a refused connection ended");
            }
            shared.turning_away.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("weft-nbd".into()).spawn(work).is_err() {
            self.turning_away.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Serves a connection from its first byte to its last.
    fn converse(&self, id: u64, socket: Arc<Socket>) -> Result<()> {
        socket.set_read_timeout(TICK)?;
        socket.set_write_timeout(SEND_LIMIT)?;
        let deadline = Instant::now() + self.options.handshake_limit;
        let client = Client::Served(id);
        let Some((channel, agreed)) = self.handshake(Channel::plain(socket), deadline, client)?
        else {
            return Ok(());
        };
        let stopping = Arc::clone(&self.stopping);
        let counters = Arc::clone(&self.counters);
        Session::new(channel, agreed, &self.options, stopping, counters).serve()
    }

    /// Performs the handshake. A refused client receives only the reason. Returns `None` if the
    /// session has ended: by the client, or as another one has taken its place.
    fn handshake(
        &self,
        mut channel: Channel,
        deadline: Instant,
        client: Client<'_>,
    ) -> Result<Option<(Channel, Agreement)>> {
        let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
        send(&mut channel, &ServerHello { flags }.encode())?;
        let mut hello = [0; 4];
        match read_full(&mut *channel.reader, &mut hello, Some(deadline)) {
            // The client only probed for a server.
            Err(weft_net::Error::Io { .. }) => return Ok(None),
            other => other?,
        }
        let hello = ClientHello::parse(hello)?;
        let no_zeroes = hello.flags.contains(ClientFlags::NO_ZEROES);
        let mut negotiator = Negotiator::new(Arc::clone(&self.exports), self.tls_mode(), no_zeroes);
        let mut data = Vec::new();
        loop {
            let mut header = [0; OPTION_HEADER_BYTES];
            match read_full(&mut *channel.reader, &mut header, Some(deadline)) {
                Err(weft_net::Error::Io { .. }) => return Ok(None),
                other => other?,
            }
            if self.stopping.load(Ordering::Acquire) {
                return Ok(None);
            }
            let header = OptionHeader::parse(&header)?;
            let mut replies = Vec::new();
            if header.len_bytes > OPTION_MAX_BYTES {
                self.skip_option(&mut channel, header, deadline)?;
                Negotiator::too_big(header.option, &mut replies);
                send(&mut channel, &replies)?;
                continue;
            }
            data.resize(header.len_bytes as usize, 0);
            read_full(&mut *channel.reader, &mut data, Some(deadline))?;
            let next = match client {
                Client::Refused(why) => Negotiator::turn_away(header.option, why, &mut replies),
                Client::Served(_) => negotiator.option(header.option, &data, &mut replies),
            };
            // Before the client learns that it is served: from then on no other takes its place.
            if let (Next::Transmission(_), Client::Served(id)) = (&next, client) {
                match self.connections().get_mut(&id) {
                    Some(connection) => connection.shaking_hands = false,
                    None => return Ok(None),
                }
            }
            send(&mut channel, &replies)?;
            match next {
                Next::Option => {}
                Next::End => return Ok(None),
                Next::Transmission(agreed) => return Ok(Some((channel, agreed))),
                Next::Tls => {
                    channel = self.start_tls(channel, deadline)?;
                    negotiator.now_under_tls();
                }
            }
        }
    }

    fn skip_option(
        &self,
        channel: &mut Channel,
        header: OptionHeader,
        deadline: Instant,
    ) -> Result<()> {
        if header.len_bytes > OPTION_SKIP_MAX_BYTES {
            let len_bytes = header.len_bytes;
            return Err(Error::protocol(format!("an option of {len_bytes} bytes")));
        }
        let mut scratch = [0; 4096];
        let mut left = header.len_bytes as usize;
        while left > 0 {
            let n = left.min(scratch.len());
            read_full(&mut *channel.reader, &mut scratch[..n], Some(deadline))?;
            left -= n;
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    fn start_tls(&self, channel: Channel, deadline: Instant) -> Result<Channel> {
        match &self.options.tls {
            Some(tls) => Ok(tls.accept(channel, deadline)?),
            None => Err(Error::tls("there are no certificates")),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn start_tls(&self, _channel: Channel, _deadline: Instant) -> Result<Channel> {
        Err(Error::tls("this program was built without it"))
    }
}

/// Removes a connection from the list when its thread ends, also by a panic.
struct Gone<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.shared.connections().remove(&self.id);
        self.shared.ended.notify_all();
    }
}

fn send(channel: &mut Channel, bytes: &[u8]) -> Result<()> {
    write_all_vectored(&mut *channel.writer, &[bytes])?;
    channel.writer.flush().map_err(|e| Error::io("cannot send", e))
}
