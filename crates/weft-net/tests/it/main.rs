//! Connections of every kind, over loopback.

mod connections;
mod quic;
mod sockets;
mod users;

use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weft_net::{Address, Channel, ClientTls, Listener, Listening, Role, ServerTls, Socket};

/// The longest wait, far above what the slowest machine needs.
const LIMIT: Duration = Duration::from_secs(300);

/// A server that hands on what comes in.
struct Place {
    address: Address,
    tls: Option<ServerTls>,
    sockets: Mutex<Receiver<Socket>>,
    listening: Listening,
}

impl Place {
    fn new(address: &Address, tls: Option<ServerTls>) -> Self {
        let listener = Listener::bind_with(address, 0o600, tls.as_ref()).expect("it listens");
        let address = listener.address().clone();
        let (tell, sockets) = channel();
        let listening = listener.start("test", move |socket| {
            let _ = tell.send(socket);
        });
        let listening = listening.expect("a thread");
        Self { address, tls, sockets: Mutex::new(sockets), listening }
    }

    /// The next that comes in.
    fn take(&self) -> weft_net::Result<Channel> {
        let socket = self.sockets.lock().expect("one test").recv_timeout(LIMIT).expect("a call");
        let secured = socket.is_secured();
        let channel = with_limits(socket);
        match &self.tls {
            Some(tls) if !secured => tls.accept(channel, Instant::now() + LIMIT),
            _ => Ok(channel),
        }
    }
}

fn with_limits(socket: Socket) -> Channel {
    socket.set_read_timeout(LIMIT).expect("set");
    socket.set_write_timeout(LIMIT).expect("set");
    Channel::plain(socket.into())
}

fn call(address: &Address, tls: Option<&ClientTls>) -> weft_net::Result<Channel> {
    let tls = tls.map(|tls| (tls, address.host()));
    let socket = address.call(tls, LIMIT)?;
    let secured = socket.is_secured();
    let channel = with_limits(socket);
    match tls {
        Some((tls, name)) if !secured => tls.connect(channel, name, Instant::now() + LIMIT),
        _ => Ok(channel),
    }
}

fn make_certificates(directory: &Path) {
    weft_net::testing::make_certificates(directory, &["127.0.0.1"], &["client"]);
}

fn server_tls(directory: &Path) -> ServerTls {
    ServerTls::mutual(directory, Role::Server).expect("certificates")
}

fn client_tls(directory: &Path) -> ClientTls {
    ClientTls::mutual(directory).expect("certificates")
}

fn quic() -> Address {
    Address::Quic("127.0.0.1".into(), 0)
}

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.next() % limit).expect("small")
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
