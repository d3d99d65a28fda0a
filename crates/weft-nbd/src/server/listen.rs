//! Listening sockets, each with a thread that takes what comes.
//!
//! A Unix socket is made with its permissions (it is never open to more people, not even for a
//! moment), and removed at the end if it is still the one that was made.

use crate::stream::Socket;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections that wait to be taken.
const BACKLOG: i32 = 128;

/// A listening socket at work. Dropping it ends that.
pub(crate) struct Listener {
    thread: Option<JoinHandle<()>>,
    wake: Arc<OwnedFd>,
    /// The socket in the file system: path, device, inode.
    file: Option<(PathBuf, u64, u64)>,
}

enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Accepting {
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(l) => l.accept().map(|(stream, _)| Socket::tcp(stream)),
            Self::Unix(l) => l.accept().map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(l) => l.as_fd(),
            Self::Unix(l) => l.as_fd(),
        }
    }
}

impl Listener {
    pub fn tcp(
        address: SocketAddr,
        take: impl Fn(Socket) + Send + 'static,
    ) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok((Self::start(Accepting::Tcp(listener), None, take)?, local))
    }

    pub fn unix(
        path: &Path,
        mode: u32,
        take: impl Fn(Socket) + Send + 'static,
    ) -> io::Result<Self> {
        remove_stale(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Linux gives the socket's own mode to the file that bind makes.
        fchmod(&fd, Mode::from_raw_mode(mode))?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        let meta = std::fs::symlink_metadata(path)?;
        let file = Some((path.to_owned(), meta.dev(), meta.ino()));
        Self::start(Accepting::Unix(fd.into()), file, take)
    }

    fn start(
        listener: Accepting,
        file: Option<(PathBuf, u64, u64)>,
        take: impl Fn(Socket) + Send + 'static,
    ) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let woken = Arc::clone(&wake);
        let work = move || accept_all(&listener, &woken, take);
        let thread = std::thread::Builder::new().name("weft-nbd-accept".into()).spawn(work)?;
        Ok(Self { thread: Some(thread), wake, file })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // First, so that nobody connects to what is about to go.
        if let Some((path, dev, ino)) = &self.file
            && std::fs::symlink_metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == (*dev, *ino))
        {
            let _ = std::fs::remove_file(path);
        }
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_all(listener: &Accepting, wake: &OwnedFd, take: impl Fn(Socket)) {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            PollFd::new(wake, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return tracing::error!(error = %e, "cannot wait for connections"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok(socket) => {
                // Accepted sockets do not inherit it, but other systems differ.
                take(socket);
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(e) => {
                // Out of descriptors or memory: that may pass.
                tracing::warn!(error = %e, "cannot take a connection");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Removes a socket that nobody listens on any more.
fn remove_stale(path: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "there is a file of that name"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
    }
}
