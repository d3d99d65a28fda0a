//! Sockets of both families, and the two halves of a connection.

use crate::{Error, Result};
use rustix::net::sockopt;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How soon a peer that has gone without a word is noticed: probes begin after this much silence,
/// and what is sent must be acknowledged in twice the time.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host (name or address) and a port.
    Tcp(String, u16),
    /// A Unix socket. One that begins with a NUL is in the abstract namespace.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    /// Connects, within `limit` for each of the addresses that a name has.
    pub(crate) fn connect(&self, limit: Duration) -> Result<Socket> {
        let failed = |e| Error::io(format!("cannot connect to {self}"), e);
        match self {
            Self::Tcp(host, port) => {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in (host.as_str(), *port).to_socket_addrs().map_err(failed)? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => return Ok(Socket::tcp(stream)),
                        Err(e) => last = e,
                    }
                }
                Err(failed(last))
            }
            Self::Unix(path) => connect_unix(path).map(Socket::Unix).map_err(failed),
        }
    }
}

fn connect_unix(path: &std::path::Path) -> io::Result<UnixStream> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    match path.as_os_str().as_bytes().strip_prefix(&[0]) {
        Some(name) => {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            UnixStream::connect_addr(&address)
        }
        None => UnixStream::connect(path),
    }
}

/// A connected socket. Reading and writing go through a shared reference, from any thread.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// A TCP connection, set up for requests and replies: nothing waits to be sent together with
    /// something later, and a dead peer is noticed.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        // Each only makes a connection better; a failure to set one is no failure.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, KEEPALIVE);
        let _ = sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 3);
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        let millis = u32::try_from(2 * KEEPALIVE.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(&stream, millis);
        Self::Tcp(stream)
    }

    /// After this long without data a read gives up with `WouldBlock`.
    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.set_read_timeout(limit),
            Self::Unix(s) => s.set_read_timeout(limit),
        }
    }

    /// After this long without room a write gives up with `WouldBlock`.
    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.set_write_timeout(limit),
            Self::Unix(s) => s.set_write_timeout(limit),
        }
    }

    /// Ends one direction or both; whoever waits on it wakes. One that is ended already stays so.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(s) => s.shutdown(how),
            Self::Unix(s) => s.shutdown(how),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) => s.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).read(buf),
            Socket::Unix(s) => (&*s).read(buf),
        }
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).read_vectored(bufs),
            Socket::Unix(s) => (&*s).read_vectored(bufs),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).write(buf),
            Socket::Unix(s) => (&*s).write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).write_vectored(bufs),
            Socket::Unix(s) => (&*s).write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The half of a connection that sends.
pub(crate) trait SendHalf: Write + Send {
    /// Says, as far as that can be said, that nothing follows.
    fn finish(&mut self) {}
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

impl SendHalf for Half {}

/// A connection: two halves, which two threads may use at once, plain or under TLS.
pub struct Channel {
    pub(crate) socket: Arc<Socket>,
    pub(crate) reader: Box<dyn Read + Send>,
    pub(crate) writer: Box<dyn SendHalf>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn plain(socket: Arc<Socket>) -> Self {
        let reader = Box::new(Half(Arc::clone(&socket)));
        let writer = Box::new(Half(Arc::clone(&socket)));
        Self { socket, reader, writer }
    }
}

/// Fills `buf`. Reads that give up for want of data are repeated until `deadline`.
///
/// # Errors
/// [`Error::TimedOut`]; [`Error::Io`], with `UnexpectedEof` if the other side ends.
pub(crate) fn read_full(
    reader: &mut dyn Read,
    mut buf: &mut [u8],
    deadline: Option<Instant>,
) -> Result<()> {
    while !buf.is_empty() {
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Err(Error::TimedOut("the other side took too long".into()));
        }
        match reader.read(buf) {
            Ok(0) => {
                let eof = io::ErrorKind::UnexpectedEof.into();
                return Err(Error::io("the other side ended the connection", eof));
            }
            Ok(n) => buf = &mut buf[n..],
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(Error::io("cannot receive", e)),
        }
    }
    Ok(())
}

/// Whether a read only gave up waiting for now.
pub(crate) fn is_pause(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Writes all of several buffers, four at most.
pub(crate) fn write_all_vectored(writer: &mut dyn SendHalf, bufs: &[&[u8]]) -> Result<()> {
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
                return Err(Error::TimedOut("the other side takes nothing".into()));
            }
            Err(e) => return Err(Error::io("cannot send", e)),
        }
    }
    Ok(())
}
