//! Connections over QUIC, with `quinn`: one stream of one connection is a [`Socket`] as any other.
//!
//! Nothing above becomes asynchronous. One thread of the process runs tokio and all QUIC there is; for
//! each connection it has a pair of Unix sockets and [pumps](pump) between the far one and the stream.
//! The near one is the [`Socket`], so that time limits, shutting down and back-pressure are those of
//! any socket. TLS 1.3 is part of QUIC, with the certificates that [`ClientTls`] and
//! [`ServerTls`](crate::ServerTls) have: who reads the near one reads plain text that nobody else saw.
//!
//! # Invariants
//!
//! - One connection has one stream, which who called opens with the byte [`HELLO`]. So a server knows of
//!   it before anything is said on it, and may speak first.
//! - The end of what one side says is the end of what the other hears, after all that was said. The
//!   other direction goes on (as TCP does it), until its user has let go of both.
//! - Nothing waits for ever: a handshake ends within its limit; a line on which nothing is heard for
//!   [`IDLE_LIMIT`] is dead, and who is there says so every [`KEEPALIVE`]; what a user who has let go
//!   had said has [`LINGER`] to arrive.
//! - A process that ends by [`settle`] has said all, and that it ends. One that is killed has not: it is
//!   missed after [`IDLE_LIMIT`], or at once if a server with the same key listens there again.
//! - What a stranger makes a server keep is bounded: `acceptor::HANDSHAKES_MAX` handshakes, above a
//!   quarter of that only of addresses that have answered; [`STRANGER_WINDOW_BYTES`] of what one says
//!   who shows no certificate.

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
/// The first byte of a stream. Another number would be another kind of stream.
const HELLO: u8 = 1;
/// A line on which nothing is heard for so long is dead: as [`Socket::tcp`] has it.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// How often something is sent on a line where there is nothing to say; NAT forgets after some 30 s.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// What may be under way in one direction of a connection, in bytes: on a line of 1 Gbit/s and 17 ms
/// each way there are 4.25 MB.
const WINDOW_BYTES: u32 = 8 << 20;
/// The same, of one who has shown no certificate.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// How long the rest of what was said may take to arrive, once who said it has let go.
const LINGER: Duration = Duration::from_secs(10);
/// How much the kernel may keep of what comes and goes, in bytes, if it lets us: some milliseconds of a
/// fast line.
const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The thread with all QUIC of this process, and what it has.
struct Runtime {
    handle: Handle,
    /// What calls others: over IPv4, over IPv6.
    callers: Mutex<[Option<Endpoint>; 2]>,
    pumps: pump::Pumps,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins with the first connection.
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
    /// Waits for what ends by itself.
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

    /// What calls an address of that family.
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
    // The kernel has limits of its own; smaller buffers are slower, and no failure.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, UDP_BUFFER_BYTES);
    let _ = sockopt::set_socket_send_buffer_size(&socket, UDP_BUFFER_BYTES);
    Ok(socket)
}

/// The address of this machine from which another is reached.
fn route(to: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(unspecified(to)).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

/// Connects, within `limit` for each of the addresses that a name has; the other side must show a
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
                // The same, found out below.
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

/// Whether a connection ended over its certificates: TLS's alerts have numbers of their own.
fn is_about_tls(e: &ConnectionError) -> bool {
    let code = match e {
        ConnectionError::TransportError(e) => u64::from(e.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        _ => return false,
    };
    (0x100..0x200).contains(&code)
}

/// Why a connection came to nothing.
fn lost(e: ConnectionError) -> Error {
    match e {
        ConnectionError::TimedOut => Error::TimedOut("no answer".into()),
        e if is_about_tls(&e) => Error::Tls(e.to_string()),
        e => Error::io("QUIC", io::Error::new(io::ErrorKind::ConnectionAborted, e)),
    }
}

/// Ends all connections of this process, and waits until what was said on them has arrived and the
/// others know that they have ended; `limit` at most. For the end of the process.
pub(crate) fn settle(limit: Duration) {
    if let Some(runtime) = RUNTIME.get() {
        runtime.pumps.settle(Instant::now() + limit);
    }
}
