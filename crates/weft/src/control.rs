//! The control socket of a mount of a shared folder: requests of the user who runs the mount, and of
//! root, about the mount itself, whatever the permissions of its files ([`ControlRequest`]).
//!
//! It is an abstract Unix socket, as that of [`ending`](crate::ending), and each side checks who the
//! other is: the mount answers nobody but its own user and root, and a process asks only a mount
//! whose process belongs to the mount's user or to root.

use crate::mounts::{self, Mounted};
use crate::{Error, Result};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use weft_ringer::wire::{decode, encode};
use weft_ringer_client::{CellTree, ControlReply, ControlRequest};

/// How long either side may take to send or accept a message.
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);
/// How long a request may take: the mount's patience, and that of its server, are shorter unless
/// they were asked to be longer.
const REPLY_LIMIT: Duration = Duration::from_secs(3600);
/// The pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest message: an attribute has 64 KiB at most.
const MESSAGE_MAX_BYTES: usize = 128 << 10;
/// `EACCES`
const EACCES: u32 = 13;

fn address(mounted: &Mounted) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(mounted.socket_name("control"))
}

fn send(mut to: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(bytes)
}

fn receive(mut from: &UnixStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MESSAGE_MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn peer_of(stream: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

/// The side of the process that serves a mount. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens for requests to a mount.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn listen(mounted: &Mounted, cell: Weak<CellTree>) -> io::Result<Self> {
        let listener = Arc::new(UnixListener::bind_addr(&address(mounted)?)?);
        let ours = Arc::clone(&listener);
        let thread = std::thread::Builder::new().name("weft-control".into()).spawn(move || {
            // One request at a time: they are rare, and each has a limit.
            loop {
                let stream = match ours.accept() {
                    Ok((stream, _)) => stream,
                    // The socket was shut down.
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
                    Err(e) => {
                        tracing::warn!("requests to the mount: {e}");
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                };
                let Some(cell) = cell.upgrade() else { return };
                if let Err(e) = serve(&stream, &cell) {
                    tracing::debug!("a request to the mount: {e}");
                }
            }
        })?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // That wakes the thread.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stream: &UnixStream, cell: &CellTree) -> io::Result<()> {
    stream.set_read_timeout(Some(MESSAGE_LIMIT))?;
    stream.set_write_timeout(Some(MESSAGE_LIMIT))?;
    let peer = peer_of(stream)?;
    let reply = if peer == 0 || peer == rustix::process::geteuid().as_raw() {
        let request: ControlRequest =
            decode(&receive(stream)?).map_err(|_| io::ErrorKind::InvalidData)?;
        cell.control(&request)
    } else {
        let text = "permission denied: this is for the user who runs the mount, and for root";
        ControlReply { errno: EACCES, text: weft_ringer::Bytes(text.as_bytes().to_vec()) }
    };
    send(stream, &encode(&reply))
}

/// Returns the mount that the file or directory at `path` is in, and its inode number there; `None`
/// if that is none of weft's.
///
/// # Errors
/// [`Error::Host`] if it cannot be found.
pub fn mount_of(path: &Path) -> Result<Option<(Mounted, u64)>> {
    let found = std::fs::metadata(path).map_err(|e| Error::host("find", path, e))?;
    let dev = found.dev();
    let device = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let mounted = mounts::table()?.into_iter().rfind(|m| m.device == device && m.is_weft());
    Ok(mounted.map(|mounted| (mounted, found.ino())))
}

/// Sends a request to a mount; `None` if no process of its user, or of root, listens.
///
/// # Errors
/// [`Error::Mount`] if the mount breaks the connection.
pub fn control(mounted: &Mounted, request: &ControlRequest) -> Result<Option<ControlReply>> {
    let failed = |e: io::Error| Error::Mount(format!("no reply from the mount's process: {e}"));
    let connected = address(mounted).and_then(|at| UnixStream::connect_addr(&at));
    let Ok(stream) = connected else { return Ok(None) };
    let peer = peer_of(&stream).map_err(failed)?;
    if peer != 0 && mounted.owner != Some(peer) {
        return Ok(None);
    }
    stream.set_write_timeout(Some(MESSAGE_LIMIT)).map_err(failed)?;
    stream.set_read_timeout(Some(REPLY_LIMIT)).map_err(failed)?;
    // One who is refused may have been answered already.
    let _ = send(&stream, &encode(request));
    let reply = receive(&stream).map_err(failed)?;
    let reply = decode(&reply).map_err(|e| Error::Mount(format!("protocol error: {e}")))?;
    Ok(Some(reply))
}
