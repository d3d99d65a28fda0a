//! Connections over QUIC, with `quinn`: one stream of one connection is a [`Socket`] like any
//! other.
//!
//! The layers above stay synchronous. One thread of the process runs tokio and all QUIC
//! connections; for each connection it has a pair of Unix sockets and [pumps](pump) between the far
//! one and the stream. The near one is the [`Socket`], so that time limits, shutting down and
//! back-pressure are those of any socket. TLS 1.3 is part of QUIC, with the certificates of
//! [`ClientTls`] and [`ServerTls`](crate::ServerTls): the near socket carries plain text that only
//! this process sees.
//!
//! TCP stays the default: between two ends in one process on two busy cores QUIC carried 120 MB/s,
//! TLS over TCP 750. QUIC is for clients whose addresses change, and for networks that pass UDP only.
//!
//! # Invariants
//!
//! - One connection has one stream, which the client opens with the byte [`HELLO`]. So a server
//!   knows of it before any other data arrives, and may speak first.
//! - The end of one side's sending direction is the end of the other's receiving direction, after
//!   all sent data. The other direction continues (as with TCP), until its user has closed both.
//! - All waits are bounded: a handshake ends within its limit; a connection without any data for
//!   [`IDLE_LIMIT`] is dead, and a live peer sends something every [`KEEPALIVE`]; data of a user
//!   who has closed the socket has [`LINGER`] to arrive.
//! - A process that ends by [`settle`] has sent all its data, and that it ends. The end of one that
//!   is killed is noticed after [`IDLE_LIMIT`], or at once if a server with the same key listens
//!   there again.
//! - The memory that an unauthenticated client can occupy on a server is bounded:
//!   `acceptor::HANDSHAKES_MAX` handshakes, above a quarter of that only from addresses that have
//!   answered; [`STRANGER_WINDOW_BYTES`] of data from a client without a certificate.

pub(crate) mod acceptor;
mod config;
mod pump;

use crate::{Address, ClientTls, Error, Result, Socket};
use quinn::{ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use rustix::net::sockopt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;

/// The protocol's name in the handshake.
const ALPN: &[u8] = b"weft/1";
/// The first byte of a stream. Other numbers are reserved for other kinds of streams.
const HELLO: u8 = 1;
/// A connection without any received data for this time is dead: as [`Socket::tcp`] has it.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// The interval of packets on an idle connection; NAT forgets after some 30 s.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// The most bytes in transit in one direction of a connection (the flow-control window): a line of
/// 1 Gbit/s and 17 ms each way holds 4.25 MB.
const WINDOW_BYTES: u32 = 8 << 20;
/// The same, from a client that has presented no certificate.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// The time for the remaining data to arrive after its sender has closed the socket.
const LINGER: Duration = Duration::from_secs(10);
/// The size of the kernel's receive and send buffers, in bytes, if it allows it: some milliseconds
/// of a fast line.
const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The thread with all QUIC connections of this process, and its state.
struct Runtime {
    handle: Handle,
    /// The client endpoints: for IPv4, for IPv6.
    callers: Mutex<[Option<Endpoint>; 2]>,
    pumps: pump::Pumps,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the runtime, which starts with the first connection.
fn runtime() -> io::Result<&'static Runtime> {
    let _starting = lock(&STARTING);
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let tokio = Builder::new_current_thread().enable_all().build()?;
    let handle = tokio.handle().clone();
    let thread = std::thread::Builder::new().name("weft-quic".into());
    thread.spawn(move || tokio.block_on(std::future::pending::<()>()))?;
    let (callers, pumps) = (Mutex::default(), pump::Pumps::default());
    Ok(RUNTIME.get_or_init(|| Runtime { handle, callers, pumps }))
}

impl Runtime {
    /// Waits for `work`, which must have a time limit of its own.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        let (tell, told) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = tell.send(work.await);
        });
        told.recv().map_err(|_| io::Error::other("the QUIC of this process has ended"))
    }

    /// Returns the client endpoint for the address family of `to`.
    fn caller(&self, to: SocketAddr) -> io::Result<Endpoint> {
        let mut callers = lock(&self.callers);
        let caller = &mut callers[usize::from(to.is_ipv6())];
        if caller.is_none() {
            let _in = self.handle.enter();
            let socket = udp(unspecified(to))?;
            let config = EndpointConfig::default();
            *caller = Some(Endpoint::new(config, None, socket, Arc::new(TokioRuntime))?);
        }
        caller.clone().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

fn unspecified(like: SocketAddr) -> SocketAddr {
    let ip: IpAddr =
        if like.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

fn udp(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    // The kernel has limits of its own; smaller buffers are slower, but no failure.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, UDP_BUFFER_BYTES);
    let _ = sockopt::set_socket_send_buffer_size(&socket, UDP_BUFFER_BYTES);
    Ok(socket)
}

/// Returns the local address from which another machine is reached.
fn route(to: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(unspecified(to)).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

/// Connects, within `limit` for each of the addresses that a name has; the server must present a
/// certificate for `name`.
pub(crate) fn connect(
    address: &Address,
    tls: &ClientTls,
    name: &str,
    limit: Duration,
) -> Result<Socket> {
    let failed = |e| Error::io(format!("cannot connect to {address}"), e);
    let Address::Quic(host, port) = address else {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    };
    let config = config::client(tls)?;
    let runtime = runtime().map_err(failed)?;
    let mut last = failed(io::ErrorKind::AddrNotAvailable.into());
    for to in (host.as_str(), *port).to_socket_addrs().map_err(failed)? {
        let endpoint = runtime.caller(to).map_err(failed)?;
        let (config, name, place) = (config.clone(), name.to_owned(), address.to_string());
        let call = async move {
            let late = || Error::TimedOut(format!("cannot connect to {place}: no answer"));
            let called = timeout(limit, call(&endpoint, config, to, &name)).await;
            called.map_err(|_| late())?.map_err(|e| match e {
                // A timeout that QUIC itself has detected.
                Error::TimedOut(_) => late(),
                Error::Io { source, .. } => Error::io(format!("cannot connect to {place}"), source),
                e => e,
            })
        };
        match runtime.wait(call).map_err(failed)? {
            Ok(socket) => return Ok(socket),
            Err(e) => last = e,
        }
    }
    Err(last)
}

async fn call(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    to: SocketAddr,
    name: &str,
) -> Result<Socket> {
    let connecting = endpoint.connect_with(config, to, name);
    let connecting = connecting.map_err(|e| Error::Tls(e.to_string()))?;
    let connection = connecting.await.map_err(lost)?;
    let (mut send, recv) = connection.open_bi().await.map_err(lost)?;
    let said = send.write_all(&[HELLO]).await;
    said.map_err(|_| lost(connection.close_reason().unwrap_or(ConnectionError::Reset)))?;
    pump::tie(connection, send, recv, route(to)).map_err(|e| Error::io("a pair of sockets", e))
}

/// Returns true if a connection ended because of its certificates: TLS's alerts have numbers of
/// their own.
fn is_about_tls(e: &ConnectionError) -> bool {
    let code = match e {
        ConnectionError::TransportError(e) => u64::from(e.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        _ => return false,
    };
    (0x100..0x200).contains(&code)
}

/// Converts the reason why a connection failed.
fn lost(e: ConnectionError) -> Error {
    match e {
        ConnectionError::TimedOut => Error::TimedOut("no answer".into()),
        e if is_about_tls(&e) => Error::Tls(e.to_string()),
        e => Error::io("QUIC", io::Error::new(io::ErrorKind::ConnectionAborted, e)),
    }
}

/// Ends all connections of this process, and waits until the sent data has arrived and the peers
/// know of the end; `limit` at most. For the end of the process.
pub(crate) fn settle(limit: Duration) {
    if let Some(runtime) = RUNTIME.get() {
        runtime.pumps.settle(Instant::now() + limit);
    }
}
