//! The control sockets of a running cache: a Unix socket that `weft cache` and `weft top` find by
//! the cache's file, and, if wanted, a read-only TCP address for Prometheus.

use super::http::{Answer, PATIENCE, Request, ask, read_request, write_answer};
use crate::{Error, Result};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The most requests that are answered at the same time; more are turned away.
const AT_ONCE_MAX: usize = 8;

/// Answers requests.
pub(super) type Handler = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// The path in `runtime_dir` of the control socket of `cache` (a file or block device). Both sides
/// derive it from the identity of the file, not from its name.
///
/// # Errors
/// [`Error::Host`] if the file's metadata cannot be read.
pub fn control_path(runtime_dir: &Path, cache: &Path) -> Result<PathBuf> {
    let meta = std::fs::metadata(cache).map_err(|e| Error::host("look at", cache, e))?;
    let (a, b) = if meta.file_type().is_block_device() {
        (0, meta.rdev())
    } else {
        (meta.dev(), meta.ino())
    };
    Ok(runtime_dir.join(format!("weft-cache-{a:x}-{b:x}.sock")))
}

/// A socket for requests, served by a thread until it is dropped.
pub(super) struct Listener {
    stop: Arc<AtomicBool>,
    place: Place,
    thread: Option<JoinHandle<()>>,
}

enum Place {
    Unix(PathBuf),
    Tcp(std::net::SocketAddr),
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens on a Unix socket that only its owner may use.
    pub fn unix(path: &Path, handler: Handler) -> Result<Self> {
        let fail = |e| Error::host("listen on", path, e);
        if let Some(dir) = path.parent() {
            // Whatever the umask is: others must not be able to put a socket of theirs there.
            let mut made = std::fs::DirBuilder::new();
            let made = made.recursive(true).mode(0o755).create(dir);
            made.map_err(|e| Error::host("make", dir, e))?;
        }
        // This process has locked the cache, so an existing socket is left over from a crash.
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        let listener = weft_net::bind_unix(path, 0o600).map_err(fail)?;
        let accept = move || listener.accept().map(|(stream, _)| stream);
        Self::start(Place::Unix(path.to_owned()), accept, handler)
    }

    /// Listens on a TCP address such as `127.0.0.1:9100`.
    pub fn tcp(address: &str, handler: Handler) -> Result<Self> {
        let fail = |e: io::Error| Error::Invalid(format!("cannot listen on {address}: {e}"));
        let address = address
            .to_socket_addrs()
            .and_then(|mut all| {
                all.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address"))
            })
            .map_err(fail)?;
        let listener = TcpListener::bind(address).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        let accept = move || listener.accept().map(|(stream, _)| stream);
        Self::start(Place::Tcp(bound), accept, handler)
    }

    /// The address of a TCP listener.
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        match &self.place {
            Place::Tcp(address) => Some(*address),
            Place::Unix(_) => None,
        }
    }

    fn start<S: Stream>(
        place: Place,
        accept: impl Fn() -> io::Result<S> + Send + 'static,
        handler: Handler,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // A flush may take long; each connection has a thread of its own, so that it delays no
        // other.
        let busy = Arc::new(());
        let serve = move || {
            while !stopped.load(Ordering::SeqCst) {
                let Ok(stream) = accept() else {
                    // Most likely out of descriptors: pause instead of spinning.
                    std::thread::sleep(PATIENCE);
                    continue;
                };
                if stopped.load(Ordering::SeqCst) || Arc::strong_count(&busy) > AT_ONCE_MAX {
                    continue;
                }
                let (handler, busy) = (Arc::clone(&handler), Arc::clone(&busy));
                let work = move || {
                    if let Err(e) = answer(stream, &handler) {
                        tracing::debug!("a request about the cache failed: {e}");
                    }
                    drop(busy);
                };
                if let Err(e) = std::thread::Builder::new().spawn(work) {
                    tracing::warn!("no thread for a request about the cache: {e}");
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("weft-control".into())
            .spawn(serve)
            .map_err(|e| Error::Invalid(format!("cannot start a thread: {e}")))?;
        Ok(Self { stop, place, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread from its accept.
        let woken = match &self.place {
            Place::Unix(path) => UnixStream::connect(path).is_ok(),
            Place::Tcp(address) => TcpStream::connect_timeout(address, PATIENCE).is_ok(),
        };
        if let (true, Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
        if let Place::Unix(path) = &self.place {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connection with a time limit on the peer.
trait Stream: Read + Write + Send + 'static {
    fn limit(&self) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))
    }
}

impl Stream for TcpStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))
    }
}

fn answer(mut stream: impl Stream, handler: &Handler) -> io::Result<()> {
    stream.limit()?;
    let answer = match read_request(&mut stream)? {
        Some(request) => handler(&request),
        None => Answer::refused(400, "invalid request\n"),
    };
    write_answer(&mut stream, &answer)
}

/// Sends a request to the cache that listens on `socket`. `None` if no process listens: the cache
/// is not in use.
///
/// # Errors
/// [`Error::Invalid`] with the answer of the cache, if it refused.
pub fn request(socket: &Path, method: &str, target: &str) -> Result<Option<String>> {
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(e)
            if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(Error::host("connect to", socket, e)),
    };
    // A flush may take as long as the origin needs.
    let answer = ask(&mut stream, method, target).map_err(|e| Error::host("ask", socket, e))?;
    match answer.status {
        200 => Ok(Some(answer.text)),
        _ => Err(Error::Invalid(answer.text.trim_end().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn echo() -> Handler {
        Arc::new(|request| match request.path.as_str() {
            "/echo" => Answer::ok(request.query.clone()),
            _ => Answer::refused(404, "nothing there\n"),
        })
    }

    #[test]
    fn a_socket_answers_refuses_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/c.sock");
        assert!(request(&path, "GET", "/echo?x").unwrap().is_none(), "nobody listens");
        let listener = Listener::unix(&path, echo()).unwrap();
        assert_eq!(request(&path, "GET", "/echo?x").unwrap().as_deref(), Some("x"));
        let refused = request(&path, "GET", "/other").unwrap_err();
        assert_eq!(refused.to_string(), "nothing there");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(request(&path, "GET", "/echo?x").unwrap().is_none());
        // A socket left over from a crash is no obstacle.
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path, echo()).unwrap();
        assert_eq!(request(&path, "GET", "/echo?y").unwrap().as_deref(), Some("y"));
        drop(listener);
    }

    #[test]
    fn a_peer_that_says_nothing_holds_nobody_up() {
        let listener = Listener::tcp("127.0.0.1:0", echo()).unwrap();
        let address = listener.address().unwrap();
        let silent = TcpStream::connect(address).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        assert_eq!(ask(&mut stream, "GET", "/echo?z").unwrap().text, "z");
        // The silent peer is disconnected in the end too: with an answer, or without.
        let mut end = Vec::new();
        let _ = (&silent).read_to_end(&mut end);
        assert!(end.is_empty() || end.starts_with(b"HTTP/1.1 400"));
    }
}
