//! Sockets that the service manager has opened (socket activation): systemd's `LISTEN_FDS` and
//! `LISTEN_PID`, as nbdkit, qemu-nbd and libnbd have them too. Source: `sd_listen_fds(3)`.
//!
//! There is unsafe code here, because a descriptor that is known by its number only has to be taken:
//! the variables say that descriptors 3 and up are this process's to take, which is done once.

use crate::listen::Accepting;
use crate::{Address, Error, Listener, Result};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor that is passed.
const FIRST: RawFd = 3;

/// Returns the number of listening sockets that this process was started with, `LISTEN_FDS`; 0 if
/// they are another process's (`LISTEN_PID`) or there are none.
///
/// # Errors
/// [`Error::Io`] if the variables make no sense.
pub fn inherited_count() -> Result<usize> {
    let get = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let (Some(pid), Some(count)) = (get("LISTEN_PID"), get("LISTEN_FDS")) else { return Ok(0) };
    let bad = |name: &str| Error::Io {
        what: format!("cannot take the sockets of LISTEN_FDS: {name} is no number"),
        source: io::ErrorKind::InvalidInput.into(),
    };
    let pid = pid.to_str().and_then(|text| text.parse::<u32>().ok());
    if pid.ok_or_else(|| bad("LISTEN_PID"))? != std::process::id() {
        return Ok(0);
    }
    let count = count.to_str().and_then(|text| text.parse::<u16>().ok());
    Ok(usize::from(count.ok_or_else(|| bad("LISTEN_FDS"))?))
}

/// Takes the listening sockets that this process was started with; the second call returns none.
/// Their files are the service manager's, and stay.
///
/// # Errors
/// [`Error::Io`] for a descriptor that is no listening stream socket of TCP or Unix.
pub fn inherited_listeners() -> Result<Vec<Listener>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let count = inherited_count()?;
    if count == 0 || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    (FIRST..).take(count).map(take).collect()
}

fn take(number: RawFd) -> Result<Listener> {
    let failed = |e: io::Error| {
        Error::io(format!("cannot listen on descriptor {number}, the socket of LISTEN_FDS"), e)
    };
    // SAFETY: it is used for this call only, and a number without a descriptor is an error of it.
    let there = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(there).map_err(|e| failed(e.into()))?;
    // No child of this process gets it.
    fcntl_setfd(there, flags | FdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    // SAFETY: it is open, by the call above; the service manager has passed it to this process, and
    // it is taken once.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    listener(socket).map_err(failed)
}

fn listener(socket: OwnedFd) -> io::Result<Listener> {
    if socket_type(&socket)? != SocketType::STREAM || !socket_acceptconn(&socket)? {
        let what = "it is no listening stream socket (in a unit of systemd: ListenStream= and \
                    Accept=no)";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let (accepting, address) = match socket_domain(&socket)? {
        AddressFamily::UNIX => {
            let listener = UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            let path = match (address.as_pathname(), address.as_abstract_name()) {
                (Some(path), _) => path.to_owned(),
                (None, Some(name)) => {
                    let name = [b"\0", name].concat();
                    PathBuf::from(std::ffi::OsStr::from_bytes(&name))
                }
                (None, None) => PathBuf::new(),
            };
            (Accepting::Unix(listener), Address::Unix(path))
        }
        AddressFamily::INET | AddressFamily::INET6 => {
            let listener = TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            let at = listener.local_addr()?;
            (Accepting::Tcp(listener), Address::Tcp(at.ip().to_string(), at.port()))
        }
        other => {
            let what = format!("its family, {other:?}, is neither TCP nor Unix");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
    };
    Ok(Listener::of(accepting, address))
}
