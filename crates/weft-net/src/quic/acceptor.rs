//! Accepting connections over QUIC.

use super::{HELLO, WINDOW_BYTES, config, lock, lost, pump, runtime, udp};
use crate::{Error, Result, ServerTls, Socket};
use quinn::{AsyncUdpSocket, Connection, Endpoint, Incoming, Runtime as _, TokioRuntime};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

/// The most handshakes in progress.
const HANDSHAKES_MAX: usize = 128;
/// With more of them, a client must first prove its address (Retry).
const UNPROVEN_MAX: usize = HANDSHAKES_MAX / 4;
/// The time limit of a handshake, up to the first byte of the stream.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The most connections at once, including those that are ending. The caller limits the number that
/// is served.
const CONNECTIONS_MAX: usize = 4096;
/// Connections that wait to be accepted.
const BACKLOG: usize = 128;
/// The time that connections may continue after the listener is dropped.
const GRACE: Duration = Duration::from_millis(1500);
/// The time limit for telling the peers of the end, and for freeing the port.
const END_LIMIT: Duration = Duration::from_millis(500);

/// A port that accepts connections. Dropping it ends its connections, and frees the port.
#[derive(Debug)]
pub(crate) struct Acceptor {
    calls: Mutex<Receiver<Socket>>,
    /// Readable when connections may be waiting.
    ready: Arc<OwnedFd>,
    closing: Arc<Notify>,
    /// Disconnected when the port is free.
    free: Mutex<Receiver<()>>,
    local: SocketAddr,
}

impl Acceptor {
    /// Starts to listen.
    pub(crate) fn bind(at: SocketAddr, tls: &ServerTls) -> Result<Self> {
        let failed = |e| Error::io(format!("cannot listen on quic://{at}"), e);
        let server = config::server(tls)?;
        let runtime = runtime().map_err(failed)?;
        let socket = udp(at).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ready = Arc::new(eventfd(0, flags).map_err(|e| failed(e.into()))?);
        let _in = runtime.handle.enter();
        let socket = TokioRuntime.wrap_udp_socket(socket).map_err(failed)?;
        let held = Arc::downgrade(&socket);
        let endpoint = config::endpoint(tls, local);
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint,
            Some(server),
            socket,
            Arc::new(TokioRuntime),
        );
        let endpoint = endpoint.map_err(failed)?;
        let (tell, calls) = sync_channel(BACKLOG);
        let (is_held, free) = channel();
        let closing = Arc::new(Notify::new());
        let door = Arc::new(Door {
            tell,
            ready: Arc::clone(&ready),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        });
        let closed = Arc::clone(&closing);
        runtime.handle.spawn(async move {
            tokio::select! {
                () = accept_all(&endpoint, &door) => {}
                () = closed.notified() => {}
            }
            end(endpoint, &held).await;
            drop(is_held);
        });
        Ok(Self { calls: Mutex::new(calls), ready, closing, free: Mutex::new(free), local })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns a waiting connection; `WouldBlock` if there is none.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        // Resets the event first: a later connection raises it again.
        rustix::io::read(&*self.ready, &mut [0_u8; 8])?;
        let call = lock(&self.calls).try_recv().map_err(|_| io::ErrorKind::WouldBlock)?;
        // More connections may be waiting.
        raise(&self.ready);
        Ok(call)
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.closing.notify_one();
        let _ = lock(&self.free).recv_timeout(GRACE + 3 * END_LIMIT);
    }
}

/// Raises the event: any number that is not zero does, in any byte order; a full counter is raised
/// already.
fn raise(ready: &OwnedFd) {
    let _ = rustix::io::write(ready, &[1; 8]);
}

/// The queue of accepted connections.
struct Door {
    tell: SyncSender<Socket>,
    ready: Arc<OwnedFd>,
    handshakes: Arc<Semaphore>,
}

async fn accept_all(endpoint: &Endpoint, door: &Arc<Door>) {
    while let Some(incoming) = endpoint.accept().await {
        let place = Arc::clone(&door.handshakes).try_acquire_owned();
        let Ok(place) = place else {
            tracing::warn!("QUIC: refused a connection: too many handshakes in progress");
            incoming.refuse();
            continue;
        };
        if endpoint.open_connections() >= CONNECTIONS_MAX {
            tracing::warn!("QUIC: refused a connection: the limit is reached");
            incoming.refuse();
            continue;
        }
        let under_way = HANDSHAKES_MAX - door.handshakes.available_permits();
        if under_way > UNPROVEN_MAX && incoming.may_retry() {
            // A client that may retry has not proven its address yet.
            let _ = incoming.retry();
            continue;
        }
        let door = Arc::clone(door);
        tokio::spawn(async move {
            let _place = place;
            let from = incoming.remote_address();
            match timeout(HANDSHAKE_LIMIT, let_in(incoming, &door)).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::info!("QUIC: handshake with {from} failed: {e}"),
                Err(_) => tracing::info!("QUIC: handshake with {from} timed out"),
            }
        });
    }
}

/// Performs the handshake, and reads the first byte of the stream. Dropping the connection on an
/// error ends it.
async fn let_in(incoming: Incoming, door: &Door) -> Result<()> {
    let local_ip = incoming.local_ip();
    let connection = incoming.await.map_err(lost)?;
    let (send, mut recv) = connection.accept_bi().await.map_err(lost)?;
    let mut hello = [0];
    let heard = recv.read_exact(&mut hello).await;
    if heard.is_err() || hello != [HELLO] {
        return refuse(&connection, "protocol error: unknown application protocol").await;
    }
    if pump::certificate(&connection).is_some() {
        connection.set_receive_window(WINDOW_BYTES.into());
    }
    let socket = pump::tie(connection.clone(), send, recv, local_ip);
    let socket = socket.map_err(|e| Error::io("a pair of sockets", e))?;
    match door.tell.try_send(socket) {
        Ok(()) => {
            raise(&door.ready);
            Ok(())
        }
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
            refuse(&connection, "too many connections").await
        }
    }
}

async fn refuse(connection: &Connection, why: &str) -> Result<()> {
    pump::farewell(connection).await;
    Err(Error::io(why, io::ErrorKind::ConnectionRefused.into()))
}

/// Accepts no more connections, ends the present ones, and waits until the port is free.
async fn end(endpoint: Endpoint, held: &Weak<dyn AsyncUdpSocket>) {
    endpoint.set_server_config(None);
    let _ = timeout(GRACE, endpoint.wait_idle()).await;
    endpoint.close(0_u32.into(), &[]);
    let _ = timeout(END_LIMIT, endpoint.wait_idle()).await;
    drop(endpoint);
    let free = async {
        while held.strong_count() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = timeout(END_LIMIT, free).await;
}
