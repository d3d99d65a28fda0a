//! What goes between a stream and the far one of a pair of sockets.

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

/// What is taken from a socket, or a stream, at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// How often it is looked whether a user who says no more still listens.
const LOOK: Duration = Duration::from_secs(1);
/// How long the datagram may take to leave that says that a connection has ended.
const FAREWELL_LIMIT: Duration = Duration::from_millis(50);

/// The connections of this process that have not ended, by numbers.
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

    /// Takes what users have said for all that they say, and waits until that has arrived.
    pub(super) fn settle(&self, deadline: Instant) {
        let mut all = lock(&self.far);
        // What is in a socket can be read from it still.
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

/// The certificate that the other side has shown.
pub(super) fn certificate(connection: &Connection) -> Option<Vec<u8>> {
    let shown = connection.peer_identity()?;
    let chain = shown.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    chain.first().map(|c| c.to_vec())
}

/// What a direction was ended by.
#[derive(PartialEq, Eq)]
enum End {
    /// All that its user says was said.
    Said,
    /// Nobody hears any more.
    Lost,
}

/// Both directions, until their user has let go of them or the connection is lost.
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
        // Who goes on talking is told.
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

/// Passes on what the user says.
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
        // Who has let go does not wait for ever for one who takes nothing.
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

/// Passes on what the other side says.
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

/// Waits until who says no more does not listen either.
async fn abandoned(far: &UnixStream, said: &Notify) {
    said.notified().await;
    while !is_abandoned(far) {
        sleep(LOOK).await;
    }
}

/// Whether the user has ended both directions.
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

/// One that is ended already stays so.
fn shut(far: &UnixStream, how: Shutdown) {
    let _ = rustix::net::shutdown(far, how);
}

/// Ends a connection, and sees the datagram off that says so.
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
