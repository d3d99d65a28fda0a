//! A connection between two programs that can be cut and healed: what is said meanwhile comes late, as
//! on a network that was gone for a while.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    ended: AtomicBool,
}

/// Stands between the socket that it listens on and the one that it was made for, until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    state: Arc<State>,
    path: PathBuf,
}

impl Proxy {
    pub fn start(path: &Path, to: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        let state = Arc::<State>::default();
        let (ours, to) = (Arc::clone(&state), to.to_path_buf());
        std::thread::spawn(move || {
            while !ours.ended.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((caller, _)) => join(&ours, &caller, &to),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        });
        Self { state, path: path.to_path_buf() }
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// Nothing gets through until it is healed.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Release);
    }

    pub fn heal(&self) {
        self.state.is_cut.store(false, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Release);
    }
}

/// Joins a caller with the server; hangs up if that is not there.
fn join(state: &Arc<State>, caller: &UnixStream, to: &Path) {
    let Ok(server) = UnixStream::connect(to) else { return };
    caller.set_nonblocking(false).expect("a socket");
    let pairs = [(caller, &server), (&server, caller)];
    for (from, to) in pairs {
        let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
        let state = Arc::clone(state);
        std::thread::spawn(move || pump(&state, from, to));
    }
}

fn pump(state: &State, mut from: UnixStream, mut to: UnixStream) {
    from.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
    let mut bytes = vec![0; 1 << 16];
    while !state.ended.load(Ordering::Acquire) {
        let len = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(len) => len,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        while state.is_cut.load(Ordering::Acquire) && !state.ended.load(Ordering::Acquire) {
            std::thread::sleep(PAUSE);
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
