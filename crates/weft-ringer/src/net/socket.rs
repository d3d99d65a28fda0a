//! Sockets of both families, and the two halves of a connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::tls::{ClientTls, ServerTls};
use super::{Error, HANDSHAKE_LIMIT, PAUSE, Result, WRITE_LIMIT};

/// The port of a metadata server, if none is said.
const PORT: u16 = 7473;
/// How soon a peer that has gone without a word is noticed.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where somebody listens: `HOST:PORT`, `[IPV6]:PORT`, `HOST`, or `unix:/PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host (name or address) and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad =
            || Error::Refused(format!("'{text}' is no address; write HOST:PORT or unix:/PATH"));
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
                let port = if rest.is_empty() {
                    None
                } else {
                    Some(rest.strip_prefix(':').ok_or_else(bad)?)
                };
                (host, port)
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host, Some(port)),
                Some(_) => return Err(bad()),
                None => (text, None),
            },
        };
        if host.is_empty() || host.contains('/') {
            return Err(bad());
        }
        let port = port.map_or(Ok(PORT), |p| p.parse().map_err(|_| bad()))?;
        Ok(Self::Tcp(host.to_owned(), port))
    }
}

impl Address {
    /// The name that a server's certificate must be for.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::Tcp(host, _) => host,
            Self::Unix(_) => "localhost",
        }
    }

    /// Whether only programs of this machine can be there.
    ///
    /// # Errors
    /// [`Error::Io`] if a name cannot be resolved.
    pub fn is_local(&self) -> Result<bool> {
        match self {
            Self::Unix(_) => Ok(true),
            Self::Tcp(host, port) => {
                let mut all = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(|e| Error::io(format!("cannot find {host}"), e))?;
                Ok(all.all(|a| a.ip().is_loopback()))
            }
        }
    }

    fn connect(&self, limit: Duration) -> Result<Socket> {
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
            Self::Unix(path) => UnixStream::connect(path).map(Socket::Unix).map_err(failed),
        }
    }
}

/// A connected socket. Reading and writing go through a shared reference, from any thread.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// A TCP connection, set up for short messages; a dead peer is noticed.
    fn tcp(stream: TcpStream) -> Self {
        // Each only makes a connection better; a failure to set one is no failure.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, KEEPALIVE);
        let _ = sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 3);
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        Self::Tcp(stream)
    }

    fn set_timeouts(&self) -> io::Result<()> {
        match self {
            Self::Tcp(s) => {
                s.set_read_timeout(Some(PAUSE))?;
                s.set_write_timeout(Some(WRITE_LIMIT))
            }
            Self::Unix(s) => {
                s.set_read_timeout(Some(PAUSE))?;
                s.set_write_timeout(Some(WRITE_LIMIT))
            }
        }
    }

    /// Ends the connection; whoever waits on it wakes. One that is ended already stays so.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(s) => s.shutdown(how),
            Self::Unix(s) => s.shutdown(how),
        };
    }

    /// The address of this machine that the other side sees.
    pub(crate) fn local_ip(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(s) => s.local_addr().ok().map(|a| a.ip()),
            Self::Unix(_) => None,
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
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => (&*s).write(buf),
            Socket::Unix(s) => (&*s).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One direction of a plain connection.
struct Half(Arc<Socket>);

impl Read for Half {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buf)
    }
}

impl Write for Half {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self.0).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection: two halves, which two threads may use at once, plain or under TLS.
pub(crate) struct Channel {
    pub(crate) socket: Arc<Socket>,
    pub(crate) reader: Box<dyn Read + Send>,
    pub(crate) writer: Box<dyn Write + Send>,
}

impl Channel {
    fn plain(socket: Socket) -> Result<Self> {
        socket.set_timeouts().map_err(|e| Error::io("cannot set up a connection", e))?;
        let socket = Arc::new(socket);
        let reader = Box::new(Half(Arc::clone(&socket)));
        let writer = Box::new(Half(Arc::clone(&socket)));
        Ok(Self { socket, reader, writer })
    }

    /// Calls; with TLS the other side must show a certificate for the given name.
    pub(crate) fn connect(
        address: &Address,
        tls: Option<(&ClientTls, &str)>,
        limit: Duration,
    ) -> Result<Self> {
        let deadline = Instant::now() + limit;
        let channel = Self::plain(address.connect(limit)?)?;
        match tls {
            Some((tls, name)) => tls.connect(channel, name, deadline),
            None => Ok(channel),
        }
    }

    /// Answers a call that was accepted.
    pub(crate) fn accept(socket: Socket, tls: Option<&ServerTls>) -> Result<Self> {
        let channel = Self::plain(socket)?;
        match tls {
            Some(tls) => tls.accept(channel, Instant::now() + HANDSHAKE_LIMIT),
            None => Ok(channel),
        }
    }
}

/// Where calls come in.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens; a Unix socket that nobody listens on any more is taken over.
    pub(crate) fn bind(address: &Address) -> Result<Self> {
        let failed = |e| Error::io(format!("cannot listen on {address}"), e);
        let listener = match address {
            Address::Tcp(host, port) => {
                let listener = TcpListener::bind((host.as_str(), *port)).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Self::Tcp(listener)
            }
            Address::Unix(path) => {
                if path.exists() {
                    if UnixStream::connect(path).is_ok() {
                        return Err(failed(io::ErrorKind::AddrInUse.into()));
                    }
                    std::fs::remove_file(path).map_err(failed)?;
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                let owner_only = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::chmod(path, owner_only).map_err(|e| failed(e.into()))?;
                listener.set_nonblocking(true).map_err(failed)?;
                Self::Unix(listener, path.clone())
            }
        };
        Ok(listener)
    }

    /// Where it is reached.
    pub(crate) fn address(&self) -> Result<Address> {
        let failed = |e| Error::io("cannot find the address of a socket", e);
        match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr().map_err(failed)?;
                Ok(Address::Tcp(address.ip().to_string(), address.port()))
            }
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    /// The next call, if there is one within [`PAUSE`].
    pub(crate) fn accept(&self) -> io::Result<Option<Socket>> {
        let fd = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        };
        let soon = Timespec { tv_sec: 0, tv_nsec: i64::from(PAUSE.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&soon)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(s, _)| {
                let _ = s.set_nonblocking(false);
                Socket::tcp(s)
            }),
            Self::Unix(listener, _) => listener.accept().map(|(s, _)| {
                let _ = s.set_nonblocking(false);
                Socket::Unix(s)
            }),
        };
        match accepted {
            Ok(socket) => Ok(Some(socket)),
            // Of a caller that has gone already.
            Err(e) if is_pause(&e) || e.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a read only gave up waiting for now.
pub(crate) fn is_pause(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let ok = |text: &str| text.parse::<Address>().ok().map(|a| a.to_string());
        assert_eq!(ok("host"), Some("host:7473".into()));
        assert_eq!(ok("0.0.0.0:7"), Some("0.0.0.0:7".into()));
        assert_eq!(ok("[::1]:9"), Some("[::1]:9".into()));
        assert_eq!(ok("unix:/run/x"), Some("unix:/run/x".into()));
        for bad in ["", ":1", "x:y", "[::1", "x:70000", "::1", "unix:", "a/b:1"] {
            assert_eq!(ok(bad), None, "{bad}");
        }
    }
}
