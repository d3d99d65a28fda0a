//! The copying between a stream and the far one of a pair of sockets.

use super::{LINGER, lock, runtime};
use crate::Socket;
use crate::channel::Secured;
use quinn::{Connection, ReadError, RecvStream, SendStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The most bytes that one read from a socket or a stream takes.
const CHUNK_BYTES: usize = 64 << 10;
/// The interval of checks whether a user that has ended its sending direction has closed the
/// socket.
const LOOK: Duration = Duration::from_secs(1);
/// The time limit for sending the datagram that announces the end of a connection.
const FAREWELL_LIMIT: Duration = Duration::from_millis(50);

/// The connections of this process that have not ended, by number.
#[derive(Default)]
pub(super) struct Pumps {
    far: Mutex<(u64, HashMap<u64, Arc<UnixStream>>)>,
    ended: Condvar,
}

impl Pumps {
    fn begin(&self, far: &Arc<UnixStream>) -> u64 {
        let mut all = lock(&self.far);
        let number = all.0;
        all.0 += 1;
        all.1.insert(number, Arc::clone(far));
        number
    }

    fn end(&self, number: u64) {
        lock(&self.far).1.remove(&number);
        self.ended.notify_all();
    }

    /// Ends the sending direction of all users, and waits until their data has arrived.
    pub(super) fn settle(&self, deadline: Instant) {
        let mut all = lock(&self.far);
        // Data in a socket can still be read after a shutdown.
        all.1.values().for_each(|far| shut(far, Shutdown::Both));
        while !all.1.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.ended.wait_timeout(all, left);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Makes a socket of a stream, which is the only one of its connection.
pub(super) fn tie(
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    local_ip: Option<IpAddr>,
) -> io::Result<Socket> {
    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    far.set_nonblocking(true)?;
    let far = Arc::new(UnixStream::from_std(far)?);
    let fate = Arc::new(OnceLock::new());
    let socket = Secured::new(near, certificate(&connection), local_ip, Arc::clone(&fate));
    let pumps = &runtime()?.pumps;
    let number = pumps.begin(&far);
    tokio::spawn(async move {
        pump(&connection, send, recv, &far, &fate).await;
        farewell(&connection).await;
        pumps.end(number);
    });
    Ok(Socket::Secured(socket))
}

/// Returns the certificate that the peer has presented.
pub(super) fn certificate(connection: &Connection) -> Option<Vec<u8>> {
    let shown = connection.peer_identity()?;
    let chain = shown.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    chain.first().map(|c| c.to_vec())
}

/// The reason for which a direction ended.
#[derive(PartialEq, Eq)]
enum End {
    /// The user has ended the direction, and all data was sent.
    Said,
    /// The peer receives no more data.
    Lost,
}

/// Copies both directions, until the user has closed them or the connection is lost.
async fn pump(
    connection: &Connection,
    mut send: SendStream,
    mut recv: RecvStream,
    far: &UnixStream,
    fate: &OnceLock<String>,
) {
    let said = Notify::new();
    let up = async {
        if copy_up(connection, far, &mut send).await == End::Said && send.finish().is_ok() {
            said.notify_one();
            let _ = timeout(LINGER, send.stopped()).await;
        } else {
            let _ = send.reset(0_u32.into());
            said.notify_one();
        }
        // A user that continues to write gets an error.
        shut(far, Shutdown::Read);
    };
    let down = async {
        tokio::select! {
            () = copy_down(&mut recv, far, fate) => {}
            () = abandoned(far, &said) => {
                let _ = recv.stop(0_u32.into());
            }
        }
        shut(far, Shutdown::Write);
    };
    tokio::join!(up, down);
}

/// Copies the user's data to the peer.
async fn copy_up(connection: &Connection, far: &UnixStream, send: &mut SendStream) -> End {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = tokio::select! {
            read = read(far, &mut chunk) => read,
            _ = connection.closed() => return End::Lost,
        };
        let n = match read {
            Ok(0) => return End::Said,
            Ok(n) => n,
            Err(_) => return End::Lost,
        };
        let mut writing = pin!(send.write_all(&chunk[..n]));
        // The data of a user that has closed the socket must not wait for ever for a peer that
        // reads nothing.
        let mut left = LINGER;
        loop {
            tokio::select! {
                written = &mut writing => match written {
                    Ok(()) => break,
                    Err(_) => return End::Lost,
                },
                () = sleep(LOOK) => {
                    left = if is_abandoned(far) { left.saturating_sub(LOOK) } else { LINGER };
                    if left.is_zero() {
                        return End::Lost;
                    }
                }
            }
        }
    }
}

/// Copies the peer's data to the user.
async fn copy_down(recv: &mut RecvStream, far: &UnixStream, fate: &OnceLock<String>) {
    loop {
        match recv.read_chunk(CHUNK_BYTES, true).await {
            Ok(Some(chunk)) => {
                if write_all(far, &chunk.bytes).await.is_err() {
                    let _ = recv.stop(0_u32.into());
                    return;
                }
            }
            Ok(None) => return,
            Err(ReadError::ConnectionLost(quinn::ConnectionError::ApplicationClosed(_))) => return,
            Err(e) => {
                let why = match e {
                    ReadError::ConnectionLost(why) => why.to_string(),
                    e => e.to_string(),
                };
                let _ = fate.set(why);
                return;
            }
        }
    }
}

/// Waits until a user that has ended its sending direction has closed the socket.
async fn abandoned(far: &UnixStream, said: &Notify) {
    said.notified().await;
    while !is_abandoned(far) {
        sleep(LOOK).await;
    }
}

/// Returns true if the user has ended both directions.
fn is_abandoned(far: &UnixStream) -> bool {
    let mut fds = [PollFd::new(far, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

async fn read(far: &UnixStream, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        far.readable().await?;
        match far.try_read(buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

async fn write_all(far: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        far.writable().await?;
        match far.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Shuts a direction down. A direction that has ended stays ended.
fn shut(far: &UnixStream, how: Shutdown) {
    let _ = rustix::net::shutdown(far, how);
}

/// Ends a connection, and waits until the datagram that announces it is sent.
pub(super) async fn farewell(connection: &Connection) {
    if connection.close_reason().is_some() {
        return;
    }
    let sent = connection.stats().udp_tx.datagrams;
    connection.close(0_u32.into(), &[]);
    let leaves = async {
        while connection.stats().udp_tx.datagrams == sent {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = timeout(FAREWELL_LIMIT, leaves).await;
}
