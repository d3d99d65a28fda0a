//! Sockets of both families, and the two halves of a connection.

use crate::{Error, Result, local_user};
use rustix::net::sockopt;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The limits after which a lost peer is noticed: probes begin after this much silence, and sent
/// data must be acknowledged in twice the time.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A connected socket. Threads read and write through a shared reference.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// A socket that is under TLS by itself: QUIC.
    Secured(Secured),
}

/// A QUIC connection, whose bytes go through a pair of sockets: the near one.
#[derive(Debug)]
pub struct Secured {
    near: UnixStream,
    certificate: Option<Vec<u8>>,
    local_ip: Option<IpAddr>,
    /// The reason of the end, if it is an error. Set before the end of the near socket can be read.
    fate: Arc<OnceLock<String>>,
}

impl Secured {
    #[cfg(feature = "quic")]
    pub(crate) fn new(
        near: UnixStream,
        certificate: Option<Vec<u8>>,
        local_ip: Option<IpAddr>,
        fate: Arc<OnceLock<String>>,
    ) -> Self {
        Self { near, certificate, local_ip, fate }
    }

    /// Turns the end of the stream into an error if the connection failed.
    fn heard(&self, read: io::Result<usize>) -> io::Result<usize> {
        match (read, self.fate.get()) {
            (Ok(0), Some(why)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, why.clone())),
            (read, _) => read,
        }
    }
}

impl Socket {
    /// Makes a socket of a TCP connection, with options for requests and replies: data is sent
    /// without delay (`TCP_NODELAY`), and a dead peer is noticed.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        // Each option only improves the connection; a failure to set one is ignored.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, KEEPALIVE);
        let _ = sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 3);
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        let millis = u32::try_from(2 * KEEPALIVE.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(&stream, millis);
        Self::Tcp(stream)
    }

    /// Sets the time after which a read without data fails with `WouldBlock`.
    ///
    /// # Errors
    /// [`Error::Io`], also for a limit of zero.
    pub fn set_read_timeout(&self, limit: Duration) -> Result<()> {
        let set = match self {
            Self::Tcp(s) => s.set_read_timeout(Some(limit)),
            Self::Unix(s) | Self::Secured(Secured { near: s, .. }) => {
                s.set_read_timeout(Some(limit))
            }
        };
        set.map_err(|e| Error::io("cannot set up a connection", e))
    }

    /// Sets the time after which a write without buffer space fails with `WouldBlock`.
    ///
    /// # Errors
    /// [`Error::Io`], also for a limit of zero.
    pub fn set_write_timeout(&self, limit: Duration) -> Result<()> {
        let set = match self {
            Self::Tcp(s) => s.set_write_timeout(Some(limit)),
            Self::Unix(s) | Self::Secured(Secured { near: s, .. }) => {
                s.set_write_timeout(Some(limit))
            }
        };
        set.map_err(|e| Error::io("cannot set up a connection", e))
    }

    /// Returns this machine's address as the other side sees it.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(s) => s.local_addr().ok().map(|a| a.ip()),
            Self::Unix(_) => None,
            Self::Secured(s) => s.local_ip,
        }
    }

    /// Returns the user of the process at the other end of a local connection. `None` if the other
    /// end is on another machine or in another network namespace, or has closed the connection;
    /// over QUIC always.
    #[must_use]
    pub fn peer_user(&self) -> Option<u32> {
        match self {
            Self::Tcp(s) => local_user::user_of_peer(s),
            Self::Unix(s) => sockopt::socket_peercred(s).ok().map(|peer| peer.uid.as_raw()),
            Self::Secured(_) => None,
        }
    }

    /// Returns true if the connection is under TLS already, with certificates: over QUIC.
    #[must_use]
    pub fn is_secured(&self) -> bool {
        matches!(self, Self::Secured(_))
    }

    /// Ends one direction or both; waiting threads wake. A direction that has ended stays ended.
    pub fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(s) => s.shutdown(how),
            Self::Unix(s) | Self::Secured(Secured { near: s, .. }) => s.shutdown(how),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) | Self::Secured(Secured { near: s, .. }) => s.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).read(buf),
            Socket::Unix(s) => (&*s).read(buf),
            Socket::Secured(s) => s.heard((&s.near).read(buf)),
        }
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).read_vectored(bufs),
            Socket::Unix(s) => (&*s).read_vectored(bufs),
            Socket::Secured(s) => s.heard((&s.near).read_vectored(bufs)),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).write(buf),
            Socket::Unix(s) | Socket::Secured(Secured { near: s, .. }) => (&*s).write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).write_vectored(bufs),
            Socket::Unix(s) | Socket::Secured(Secured { near: s, .. }) => {
                (&*s).write_vectored(bufs)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The sending half of a connection.
pub trait SendHalf: Write + Send {
    /// Tells the peer that nothing follows, if the transport can express that.
    fn finish(&mut self) {}

    /// Returns true if the writer passes bytes to the socket unchanged, so that a caller may as
    /// well write to the socket itself. TLS does not.
    fn is_plain(&self) -> bool {
        false
    }
}

/// One direction of a plain connection.
struct Half(Arc<Socket>);

impl Read for Half {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self.0).read_vectored(bufs)
    }
}

impl Write for Half {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self.0).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self.0).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SendHalf for Half {
    fn is_plain(&self) -> bool {
        true
    }
}

/// A connection: two halves, which two threads may use at once, plain or under TLS.
pub struct Channel {
    /// The socket below both halves, for timeouts and to end the connection.
    pub socket: Arc<Socket>,
    /// The receiving half.
    pub reader: Box<dyn Read + Send>,
    /// The sending half.
    pub writer: Box<dyn SendHalf>,
    /// The peer's certificate, in DER; `None` without TLS and QUIC, or if the peer has presented
    /// none.
    pub certificate: Option<Vec<u8>>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Channel {
    /// Makes a connection without more encryption than its socket has.
    #[must_use]
    pub fn plain(socket: Arc<Socket>) -> Self {
        let reader = Box::new(Half(Arc::clone(&socket)));
        let writer = Box::new(Half(Arc::clone(&socket)));
        let certificate = match &*socket {
            Socket::Secured(s) => s.certificate.clone(),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        };
        Self { socket, reader, writer, certificate }
    }
}

/// Fills `buf`. Reads that time out are repeated until `deadline`.
///
/// # Errors
/// [`Error::TimedOut`]; [`Error::Io`], with `UnexpectedEof` if the other side has ended the stream.
pub fn read_full(
    reader: &mut dyn Read,
    mut buf: &mut [u8],
    deadline: Option<Instant>,
) -> Result<()> {
    while !buf.is_empty() {
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Err(Error::TimedOut("timed out waiting for the peer".into()));
        }
        match reader.read(buf) {
            Ok(0) => {
                let eof = io::ErrorKind::UnexpectedEof.into();
                return Err(Error::io("the peer closed the connection", eof));
            }
            Ok(n) => buf = &mut buf[n..],
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(Error::io("cannot receive", e)),
        }
    }
    Ok(())
}

/// Returns true if a read failed only because it timed out or was interrupted.
#[must_use]
pub fn is_pause(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Writes all of several buffers, four at most.
///
/// # Errors
/// [`Error::TimedOut`] if the other side reads nothing; [`Error::Io`].
pub fn write_all_vectored(writer: &mut dyn SendHalf, bufs: &[&[u8]]) -> Result<()> {
    let mut slices = [IoSlice::new(&[]); 4];
    let mut count = 0;
    for buf in bufs.iter().filter(|b| !b.is_empty()) {
        slices[count] = IoSlice::new(buf);
        count += 1;
    }
    let mut slices = &mut slices[..count];
    while !slices.is_empty() {
        match writer.write_vectored(slices) {
            Ok(0) => return Err(Error::io("cannot send", io::ErrorKind::WriteZero.into())),
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_pause(&e) => {
                return Err(Error::TimedOut("timed out: the peer does not read".into()));
            }
            Err(e) => return Err(Error::io("cannot send", e)),
        }
    }
    Ok(())
}
