//! An HTTP proxy that breaks connections on request of a test.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
struct State {
    port: u16,
    stop: AtomicBool,
    /// Whether nothing passes, without an error to either side.
    cut: AtomicBool,
    requests: AtomicU64,
    /// The number of the request that is lost, and of the request whose answer is lost.
    lose_request: AtomicU64,
    lose_answer: AtomicU64,
    /// Whether the connection is cut permanently with the next loss.
    then_cut: AtomicBool,
}

/// A proxy in front of one port of this machine.
#[derive(Debug)]
pub struct Lossy {
    address: std::net::SocketAddr,
    state: Arc<State>,
}

impl Lossy {
    /// Starts a proxy for `port`.
    ///
    /// # Panics
    /// If there is no port to listen on.
    #[must_use]
    pub fn new(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            port,
            stop: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            lose_request: AtomicU64::new(NEVER),
            lose_answer: AtomicU64::new(NEVER),
            then_cut: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for link in listener.incoming().flatten() {
                if shared.stop.load(Ordering::Acquire) {
                    return;
                }
                let state = Arc::clone(&shared);
                std::thread::spawn(move || state.serve(link));
            }
        });
        Self { address, state }
    }

    /// The address on which it listens, as an endpoint of etcd.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets nothing pass any more, as in a partitioned network: neither side gets an error.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::Release);
    }

    /// Returns true if nothing passes.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.state.cut.load(Ordering::Acquire)
    }

    /// Lets everything pass, delayed bytes first.
    pub fn heal(&self) {
        self.state.lose_request.store(NEVER, Ordering::Release);
        self.state.lose_answer.store(NEVER, Ordering::Release);
        self.state.then_cut.store(false, Ordering::Release);
        self.state.cut.store(false, Ordering::Release);
    }

    /// The number of requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Acquire)
    }

    /// Loses request number `at`, counted from now: the connection ends, before it is passed on or,
    /// if `answer`, after. With `then_cut` it is cut from then on.
    pub fn lose(&self, at: u64, answer: bool, then_cut: bool) {
        self.state.then_cut.store(then_cut, Ordering::Release);
        let at = self.requests() + at;
        let which = if answer { &self.state.lose_answer } else { &self.state.lose_request };
        which.store(at, Ordering::Release);
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads one request: its head, and a body of the length that it states.
fn request(link: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let n = link.read(&mut chunk).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
        let len = text.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse().ok());
        let end = head + 4 + len.unwrap_or(0_usize);
        while bytes.len() < end {
            let n = link.read(&mut chunk).ok().filter(|n| *n > 0)?;
            bytes.extend_from_slice(&chunk[..n]);
        }
        return Some(bytes);
    }
}

impl State {
    /// Waits while the connection is cut. Returns `false` if it has ended meanwhile.
    fn pass(&self) -> bool {
        while self.cut.load(Ordering::Acquire) {
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn serve(self: Arc<Self>, mut client: TcpStream) {
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let swallow = Arc::new(AtomicBool::new(false));
        let (Ok(to), Ok(mut from)) = (client.try_clone(), server.try_clone()) else { return };
        let (state, lost) = (Arc::clone(&self), Arc::clone(&swallow));
        std::thread::spawn(move || {
            let mut to = to;
            let mut chunk = vec![0; 64 << 10];
            while let Ok(n @ 1..) = from.read(&mut chunk) {
                if lost.load(Ordering::Acquire) {
                    state.cut.store(state.then_cut.load(Ordering::Acquire), Ordering::Release);
                    break;
                }
                if !state.pass() || to.write_all(&chunk[..n]).is_err() {
                    break;
                }
            }
            let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
        });
        while let Some(bytes) = request(&mut client) {
            let number = self.requests.fetch_add(1, Ordering::AcqRel);
            if number == self.lose_request.load(Ordering::Acquire) {
                self.cut.store(self.then_cut.load(Ordering::Acquire), Ordering::Release);
                break;
            }
            if number == self.lose_answer.load(Ordering::Acquire) {
                swallow.store(true, Ordering::Release);
            }
            if !self.pass() || server.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }
}
