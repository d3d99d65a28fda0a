//! Listening, with a thread that accepts connections.
//!
//! A Unix socket is created with its permissions, under any umask (it is never open to more users,
//! not even for a moment), and removed at the end if it is still the created one.

#[cfg(feature = "quic")]
use crate::quic::acceptor::Acceptor;
use crate::{Address, Error, Result, Socket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FileType, Mode, OFlags, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

#[derive(Debug)]
pub(crate) enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
    #[cfg(feature = "quic")]
    Quic(Acceptor),
}

impl Accepting {
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(l) => l.accept().map(|(stream, _)| Socket::tcp(stream)),
            Self::Unix(l) => l.accept().map(|(stream, _)| Socket::Unix(stream)),
            #[cfg(feature = "quic")]
            Self::Quic(l) => l.accept(),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(l) => l.as_fd(),
            Self::Unix(l) => l.as_fd(),
            #[cfg(feature = "quic")]
            Self::Quic(l) => l.as_fd(),
        }
    }
}

/// A Unix socket in the file system: path, device, inode. Dropping it removes the file.
#[derive(Debug)]
struct SocketFile(PathBuf, u64, u64);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Self(path, dev, ino) = self;
        if std::fs::symlink_metadata(&*path).is_ok_and(|m| (m.dev(), m.ino()) == (*dev, *ino)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A listening socket. Connections wait until it is [started](Self::start).
#[derive(Debug)]
pub struct Listener {
    accepting: Vec<Accepting>,
    file: Option<SocketFile>,
    address: Address,
}

impl Listener {
    /// Listens at `address`: on each of the addresses that a name has, or on a Unix socket with the
    /// permissions `socket_mode`. A socket that a dead server has left is replaced.
    ///
    /// # Errors
    /// [`Error::Io`], with `AddrInUse` if another process listens there or the path is no socket;
    /// [`Error::Uncertified`] for an address over QUIC.
    pub fn bind(address: &Address, socket_mode: u32) -> Result<Self> {
        let bound = match address {
            Address::Tcp(host, port) => Self::tcp(host, *port),
            Address::Quic(..) => return Err(Error::Uncertified(address.clone())),
            Address::Unix(path) => Self::unix(path, socket_mode),
        };
        bound.map_err(|e| Error::io(format!("cannot listen on {address}"), e))
    }

    /// Listens as [`bind`](Self::bind), and over QUIC as well, with the certificates `tls`. If an
    /// accepted socket is not [secured](Socket::is_secured), the caller must start TLS.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); [`Error::Uncertified`] over QUIC without `tls`.
    #[cfg(feature = "tls")]
    pub fn bind_with(
        address: &Address,
        socket_mode: u32,
        tls: Option<&crate::ServerTls>,
    ) -> Result<Self> {
        match (address, tls) {
            #[cfg(feature = "quic")]
            (Address::Quic(host, port), Some(tls)) => Self::quic(address, (host, *port), tls),
            #[cfg(not(feature = "quic"))]
            (Address::Quic(..), Some(_)) => Err(Error::NoQuic(address.clone())),
            _ => Self::bind(address, socket_mode),
        }
    }

    #[cfg(feature = "quic")]
    fn quic(
        address: &Address,
        (host, mut port): (&str, u16),
        tls: &crate::ServerTls,
    ) -> Result<Self> {
        let failed = |e| Error::io(format!("cannot listen on {address}"), e);
        let mut accepting = Vec::new();
        let mut absent = failed(io::ErrorKind::AddrNotAvailable.into());
        for mut at in (host, port).to_socket_addrs().map_err(failed)? {
            at.set_port(port);
            match Acceptor::bind(at, tls) {
                Ok(acceptor) => {
                    port = acceptor.local_addr().port();
                    accepting.push(Accepting::Quic(acceptor));
                }
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => absent = e,
                Err(e) => return Err(e),
            }
        }
        if accepting.is_empty() {
            return Err(absent);
        }
        Ok(Self { accepting, file: None, address: Address::Quic(host.to_owned(), port) })
    }

    fn tcp(host: &str, mut port: u16) -> io::Result<Self> {
        let mut accepting = Vec::new();
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for mut at in (host, port).to_socket_addrs()? {
            at.set_port(port);
            match TcpListener::bind(at) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    // If any port would do, all listeners use the port that the first one was
                    // assigned.
                    port = listener.local_addr()?.port();
                    accepting.push(Accepting::Tcp(listener));
                }
                // `localhost` may have an address of a family that this machine does not have.
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => failed = e,
                Err(e) => return Err(e),
            }
        }
        if accepting.is_empty() {
            return Err(failed);
        }
        Ok(Self { accepting, file: None, address: Address::Tcp(host.to_owned(), port) })
    }

    fn unix(path: &Path, mode: u32) -> io::Result<Self> {
        remove_stale(path)?;
        let listener = bind_unix(path, mode)?;
        listener.set_nonblocking(true)?;
        let meta = std::fs::symlink_metadata(path)?;
        let file = Some(SocketFile(path.to_owned(), meta.dev(), meta.ino()));
        let address = Address::Unix(path.to_owned());
        Ok(Self { accepting: vec![Accepting::Unix(listener)], file, address })
    }

    /// A socket that listens already, and whose file is another process's.
    pub(crate) fn of(accepting: Accepting, address: Address) -> Self {
        Self { accepting: vec![accepting], file: None, address }
    }

    /// Returns the address as it was requested, with the assigned port if any would do.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns what makes others than this user able to connect, in words for an error: the socket is
    /// reachable from other machines, or a Unix socket is every user's. `None` if nothing does; a
    /// port of this machine alone counts as not open.
    ///
    /// # Errors
    /// [`Error::Io`] if a name cannot be resolved.
    pub fn open_to_others(&self) -> Result<Option<String>> {
        let Address::Unix(path) = &self.address else {
            let local = self.address.is_local()?;
            return Ok(
                (!local).then(|| format!("{} is reachable from other machines", self.address))
            );
        };
        if path.as_os_str().as_encoded_bytes().first() == Some(&0) {
            let name = path.to_string_lossy().replace('\0', "@");
            return Ok(Some(format!("{name} is an abstract socket, open to all users")));
        }
        let mode = std::fs::symlink_metadata(path).map_or(0, |meta| meta.permissions().mode());
        let (path, mode) = (path.display(), mode & 0o777);
        Ok((mode & 0o002 != 0).then(|| {
            format!("the socket {path} is open to all users (its permissions are {mode:o})")
        }))
    }

    /// Passes each accepted connection to `take`, in a thread called `name`.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be started.
    pub fn start(self, name: &str, take: impl Fn(Socket) + Send + 'static) -> Result<Listening> {
        let failed = |e| Error::io("cannot start to listen", e);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?);
        let woken = Arc::clone(&wake);
        let accepting = self.accepting;
        let work = move || accept_all(&accepting, &woken, take);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = Some(thread.map_err(failed)?);
        Ok(Listening { thread, wake, file: self.file, address: self.address })
    }

    /// Serves each connection in a thread of its own called `name`, `max` at once. A further one takes
    /// the place of the oldest that has not [settled](Seat::settle), so that peers who stay silent in
    /// their handshake keep no others out; if all have, it is closed at once.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be started.
    pub fn start_threads(
        self,
        name: &'static str,
        max: usize,
        serve: impl Fn(Socket, &Seat) + Send + Sync + 'static,
    ) -> Result<Listening> {
        let serve = Arc::new(serve);
        let seats = Arc::new(Seats { max, taken: Mutex::default() });
        let next = AtomicU64::new(0);
        self.start(name, move |socket| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(seat) = Seats::take(&seats, number, &socket) else {
                tracing::warn!("{name}: refused a connection: the limit of {max} is reached");
                socket.shutdown(Shutdown::Both);
                return;
            };
            let serve = Arc::clone(&serve);
            let work = move || serve(socket, &seat);
            if let Err(e) = std::thread::Builder::new().name(name.into()).spawn(work) {
                tracing::warn!(error = %e, "{name}: a connection was closed");
            }
        })
    }
}

/// The connections that are served, by their numbers, which grow.
#[derive(Debug)]
struct Seats {
    max: usize,
    /// With the socket of each that has not settled.
    taken: Mutex<BTreeMap<u64, Option<OwnedFd>>>,
}

impl Seats {
    fn take(this: &Arc<Self>, number: u64, socket: &Socket) -> Option<Seat> {
        let mut taken = this.lock();
        if taken.len() >= this.max {
            let oldest = taken.iter().find(|(_, waiting)| waiting.is_some());
            let oldest = oldest.map(|(number, _)| *number)?;
            // Its thread ends when it reads next.
            if let Some(Some(waiting)) = taken.remove(&oldest) {
                let _ = rustix::net::shutdown(&waiting, rustix::net::Shutdown::Both);
            }
            tracing::info!("a connection without a handshake was closed for a new one");
        }
        taken.insert(number, socket.as_fd().try_clone_to_owned().ok());
        Some(Seat { seats: Arc::clone(this), number })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Option<OwnedFd>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection among those that are served at once.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    number: u64,
}

impl Seat {
    /// Keeps the place until the connection ends: the peer has shown who it is.
    pub fn settle(&self) {
        if let Some(waiting) = self.seats.lock().get_mut(&self.number) {
            *waiting = None;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().remove(&self.number);
    }
}

/// A listening socket whose connections are accepted. Dropping it ends that; over QUIC, where all
/// connections share one socket, it also ends those that do not end soon.
#[derive(Debug)]
pub struct Listening {
    thread: Option<JoinHandle<()>>,
    wake: Arc<OwnedFd>,
    file: Option<SocketFile>,
    address: Address,
}

impl Listening {
    /// Returns the address: [`Listener::address`].
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // First, so that no client connects to a socket that is about to close.
        self.file = None;
        // Any number that is not zero wakes the thread, in any byte order.
        let _ = rustix::io::write(&*self.wake, &[1; 8]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_all(accepting: &[Accepting], wake: &OwnedFd, take: impl Fn(Socket)) {
    loop {
        let mut fds: Vec<_> = std::iter::once(wake.as_fd())
            .chain(accepting.iter().map(Accepting::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return tracing::error!(error = %e, "cannot poll for connections"),
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        for (accepting, fd) in accepting.iter().zip(&fds[1..]) {
            if !fd.revents().is_empty() {
                accept_one(accepting, &take);
            }
        }
    }
}

fn accept_one(accepting: &Accepting, take: &impl Fn(Socket)) {
    match accepting.accept() {
        Ok(socket) => take(socket),
        // The client has disconnected already.
        Err(e)
            if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
        }
        Err(e) => {
            // Lack of descriptors or memory may be temporary.
            tracing::warn!(error = %e, "cannot accept a connection");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Creates a Unix socket at `path`, where no file is, and listens there. Its permissions are those
/// of `mode`, whatever the umask is, and they are never more than those.
///
/// # Errors
/// Those of the system.
pub fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the socket's own mode to the file that `bind` creates, without the bits of the
    // umask. The umask itself belongs to all threads of the process, and is not changed.
    fchmod(&fd, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    // Until it listens, no client gets in: there is no moment at which one is wrongly refused.
    add_masked(path, mode)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd.into())
}

/// Gives a new socket the permissions that the umask has taken from it.
fn add_masked(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_mode & 0o777 == mode & 0o777 {
        return Ok(());
    }
    // In a directory that others may write to, another file may be there by now: its permissions
    // are not changed.
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::Socket
        && stat.st_uid == rustix::process::geteuid().as_raw();
    if !ours {
        return Err(io::Error::other("another process has replaced the new socket"));
    }
    // `fchmod` does not take such a descriptor; this changes the file that it stands for.
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(by_number, std::fs::Permissions::from_mode(mode & 0o777))
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "a file of that name exists"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_place_for_calls_ends_with_its_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Unix(dir.path().join("s"));
        for address in [address, Address::Tcp("localhost".into(), 0)] {
            let listener = Listener::bind(&address, 0o600).expect("it listens");
            let at = listener.address().clone();
            let echo = |socket: Socket, seat: &Seat| {
                seat.settle();
                let mut byte = [0];
                while (&socket).read_exact(&mut byte).is_ok() {
                    (&socket).write_all(&byte).expect("an answer");
                }
            };
            let listening = listener.start_threads("echo", 1, echo).expect("a thread");
            assert_eq!(listening.address(), &at);
            let first = at.connect(Duration::from_secs(5)).expect("a connection");
            let mut byte = [7];
            (&first).write_all(&byte).expect("sent");
            (&first).read_exact(&mut byte).expect("an answer");
            // Only one connection is served: the second is closed.
            let second = at.connect(Duration::from_secs(5)).expect("a connection");
            assert_eq!((&second).read(&mut byte).expect("its end"), 0);
            drop(listening);
            assert!(at.connect(Duration::from_secs(1)).is_err(), "{at} is gone");
        }
        assert!(std::fs::read_dir(dir.path()).expect("a directory").next().is_none());
    }

    #[test]
    fn a_silent_peer_gives_its_place_to_the_next() {
        let address = Address::Tcp("localhost".into(), 0);
        let listener = Listener::bind(&address, 0o600).expect("it listens");
        let at = listener.address().clone();
        let echo = |socket: Socket, seat: &Seat| {
            let mut byte = [0];
            while (&socket).read_exact(&mut byte).is_ok() {
                seat.settle();
                (&socket).write_all(&byte).expect("an answer");
            }
        };
        let _listening = listener.start_threads("echo", 2, echo).expect("a thread");
        let connect = || at.connect(Duration::from_secs(5)).expect("a connection");
        let mut byte = [7];
        let served = connect();
        (&served).write_all(&byte).expect("sent");
        (&served).read_exact(&mut byte).expect("an answer");
        let silent: Vec<Socket> = (0..5).map(|_| connect()).collect();
        let last = connect();
        (&last).write_all(&byte).expect("sent");
        (&last).read_exact(&mut byte).expect("an answer: a silent one has gone");
        for gone in &silent {
            let mut gone = gone;
            assert_eq!(gone.read(&mut byte).expect("its end"), 0);
        }
        // Those that are served stay.
        (&served).write_all(&byte).expect("sent");
        (&served).read_exact(&mut byte).expect("an answer");
        assert_eq!((&connect()).read(&mut byte).expect("its end"), 0);
    }
}
