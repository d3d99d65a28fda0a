//! What is QUIC's own: who is let in, and what strangers can do.

use crate::{LIMIT, Numbers, Place, call, client_tls, make_certificates, quic, server_tls};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_net::{Address, ClientTls, Error, Listener, ServerTls, certificate_in};

/// More than may have handshakes under way before they have shown where they are.
const STRANGERS: usize = 48;

struct Two {
    _dir: tempfile::TempDir,
    ours: PathBuf,
    theirs: PathBuf,
}

/// Certificates of two authorities.
fn two() -> Two {
    let dir = tempfile::tempdir().expect("a directory");
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    make_certificates(&ours);
    make_certificates(&theirs);
    Two { _dir: dir, ours, theirs }
}

/// A question and its answer.
fn works(place: &Place, tls: &ClientTls) {
    let mut near = call(&place.address, Some(tls)).expect("a connection");
    let mut far = place.take().expect("a connection");
    near.writer.write_all(b"question").expect("said");
    let mut heard = [0; 8];
    far.reader.read_exact(&mut heard).expect("heard");
    assert_eq!(&heard, b"question");
    far.writer.write_all(b"answer").expect("said");
    let mut heard = [0; 6];
    near.reader.read_exact(&mut heard).expect("heard");
    assert_eq!(&heard, b"answer");
}

#[test]
fn both_know_whom_they_talk_with() {
    let two = two();
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    let near = call(&place.address, Some(&client_tls(&two.ours))).expect("a connection");
    let far = place.take().expect("a connection");
    let shown = |name: &str| Some(certificate_in(&two.ours.join(name)).expect("a certificate"));
    assert_eq!(near.certificate, shown("server-cert.pem"));
    assert_eq!(far.certificate, shown("client-cert.pem"));
    let here = Some(std::net::Ipv4Addr::LOCALHOST.into());
    assert_eq!((near.socket.local_ip(), far.socket.local_ip()), (here, here));
}

#[test]
fn a_server_may_speak_first() {
    let two = two();
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    let mut near = call(&place.address, Some(&client_tls(&two.ours))).expect("a connection");
    let mut far = place.take().expect("a connection");
    far.writer.write_all(b"welcome").expect("said");
    let mut heard = [0; 7];
    near.reader.read_exact(&mut heard).expect("heard");
    assert_eq!(&heard, b"welcome");
}

#[test]
fn strangers_do_not_get_in() {
    let two = two();
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    // A server of another authority, as the caller sees it.
    let error = call(&place.address, Some(&client_tls(&two.theirs))).expect_err("a stranger");
    assert!(matches!(error, Error::Tls(_)), "{error}");
    // One that shows no certificate, or another authority's: the server says so after the handshake.
    let authority = certificate_in(&two.ours.join("ca-cert.pem")).expect("a certificate");
    let server = certificate_in(&two.ours.join("server-cert.pem")).expect("a certificate");
    assert_ne!(authority, server);
    std::fs::copy(two.ours.join("ca-cert.pem"), two.theirs.join("ca-cert.pem")).expect("copied");
    let shows_theirs = client_tls(&two.theirs);
    std::fs::remove_file(two.theirs.join("client-cert.pem")).expect("removed");
    let shows_none = ClientTls::from_directory(&two.theirs).expect("certificates");
    for tls in [shows_theirs, shows_none] {
        let refused = match call(&place.address, Some(&tls)) {
            Err(e) => e.to_string(),
            Ok(mut near) => near.reader.read(&mut [0]).expect_err("refused").to_string(),
        };
        assert!(refused.contains("handshake failed"), "{refused}");
    }
    // The server's name is another.
    let tls = client_tls(&two.ours);
    let error = place.address.call(Some((&tls, "elsewhere")), LIMIT).expect_err("another name");
    assert!(matches!(error, Error::Tls(_)), "{error}");
    // Nobody of them was handed on.
    works(&place, &tls);
}

#[test]
fn who_has_no_certificate_yet_is_let_in_where_that_is_wanted() {
    let two = two();
    // The authority shows itself beside the server's certificate.
    let chain = ["server-cert.pem", "ca-cert.pem"]
        .map(|name| std::fs::read_to_string(two.ours.join(name)).expect("a certificate"));
    std::fs::write(two.ours.join("server-cert.pem"), chain.concat()).expect("written");
    let place = Place::new(&quic(), Some(ServerTls::joining(&two.ours).expect("certificates")));
    let authority = certificate_in(&two.ours.join("ca-cert.pem")).expect("a certificate");
    let known = authority.clone();
    let pinned = ClientTls::pinned(move |der| der == known).expect("TLS");
    works(&place, &pinned);
    let _near = call(&place.address, Some(&pinned)).expect("a connection");
    assert_eq!(place.take().expect("a connection").certificate, None);
    let other = ClientTls::pinned(move |der| der != authority).expect("TLS");
    let error = call(&place.address, Some(&other)).expect_err("another authority");
    assert!(matches!(error, Error::Tls(_)), "{error}");
}

#[test]
fn without_certificates_there_is_nothing() {
    let address = Address::parse("quic://127.0.0.1:9", 0).expect("an address");
    assert!(matches!(Listener::bind(&address, 0o600), Err(Error::Uncertified(_))));
    assert!(matches!(Listener::bind_with(&address, 0o600, None), Err(Error::Uncertified(_))));
    assert!(matches!(address.connect(LIMIT), Err(Error::Uncertified(_))));
    assert!(matches!(address.call(None, LIMIT), Err(Error::Uncertified(_))));
}

#[test]
fn one_that_says_nothing_is_given_up() {
    let two = two();
    let deaf = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = Address::Quic("127.0.0.1".into(), deaf.local_addr().expect("bound").port());
    let tls = client_tls(&two.ours);
    let called = address.call(Some((&tls, "127.0.0.1")), Duration::from_millis(300));
    assert!(matches!(called, Err(Error::TimedOut(_))), "{called:?}");
}

/// What so many say first who call, as they sent it.
fn first_datagrams(tls: &ClientTls, count: usize) -> Vec<Vec<u8>> {
    let deaf = UdpSocket::bind("127.0.0.1:0").expect("a port");
    deaf.set_read_timeout(Some(LIMIT)).expect("set");
    let address = Address::Quic("127.0.0.1".into(), deaf.local_addr().expect("bound").port());
    std::thread::scope(|scope| {
        for _ in 0..count {
            // Long enough to be said, and for nothing to be said again.
            let called = || address.call(Some((tls, "127.0.0.1")), Duration::from_millis(200));
            scope.spawn(move || called().expect_err("nobody answers"));
        }
    });
    let mut first: Vec<Vec<u8>> = Vec::new();
    while first.len() < count {
        let mut datagram = [0; 2000];
        let n = deaf.recv(&mut datagram).expect("a datagram");
        // What follows of the same connection has the same number, after six bytes.
        if !first.iter().any(|known| known[6..14] == datagram[6..14]) {
            first.push(datagram[..n].to_vec());
        }
    }
    first
}

/// The first byte of what a server says to who calls.
fn answer(stranger: &UdpSocket, first: &[u8]) -> u8 {
    stranger.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
    let end = Instant::now() + LIMIT;
    let mut heard = [0; 2000];
    while Instant::now() < end {
        // It may be lost among the garbage, as the socket's buffer is full.
        stranger.send(first).expect("sent");
        while stranger.recv(&mut heard).is_ok() {
            // Garbage that looks like a part of a connection is told that there is none.
            if heard[0] & 0x80 != 0 && heard[1..5] == [0, 0, 0, 1] {
                return heard[0];
            }
        }
    }
    panic!("there is no answer")
}

#[test]
fn garbage_and_half_handshakes_disturb_nobody() {
    let two = two();
    let tls = client_tls(&two.ours);
    let begun = first_datagrams(&tls, STRANGERS);
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    let Address::Quic(_, port) = place.address else { panic!("{}", place.address) };
    let mut established = call(&place.address, Some(&tls)).expect("a connection");
    let mut served = place.take().expect("a connection");
    let mut numbers = Numbers(11);
    let mut answers = Vec::new();
    for first in &begun {
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port");
        stranger.connect(("127.0.0.1", port)).expect("a way");
        for _ in 0..20 {
            let len = 1 + numbers.below(1400);
            let _ = stranger.send(&numbers.bytes(len));
            // Parts of something, and something with a part changed.
            let cut = 1 + numbers.below(first.len() as u64 - 1);
            let _ = stranger.send(&first[..cut]);
            let mut changed = first.clone();
            changed[cut] ^= 1 << numbers.below(8);
            let _ = stranger.send(&changed);
        }
        // A beginning with nothing after it.
        answers.push(answer(&stranger, first));
    }
    // The first are let begin, the last are to show first that they are where they say they are
    // (RFC 9000, section 17.2.5).
    let is_retry = |first: &u8| first & 0x30 == 0x30;
    assert!(!is_retry(&answers[0]) && is_retry(&answers[STRANGERS - 1]), "{answers:?}");
    works(&place, &tls);
    // Nor was one disturbed that was there before.
    established.writer.write_all(b"still here").expect("said");
    let mut heard = [0; 10];
    served.reader.read_exact(&mut heard).expect("heard");
    assert_eq!(&heard, b"still here");
}

#[test]
fn a_server_that_ends_says_so_and_its_port_is_free() {
    let two = two();
    let tls = client_tls(&two.ours);
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    let address = place.address.clone();
    let mut near = call(&address, Some(&tls)).expect("a connection");
    let far = place.take().expect("a connection");
    drop(place.listening);
    // Although its user holds on.
    let mut rest = Vec::new();
    near.reader.read_to_end(&mut rest).expect("an end");
    drop(far);
    let place = Place::new(&address, Some(server_tls(&two.ours)));
    assert_eq!(place.address, address);
    works(&place, &tls);
}

/// Passes datagrams on between one caller and a port, as long as it is open; as NAT does it.
struct Way {
    port: u16,
    open: Arc<AtomicBool>,
    /// The caller is to have another address from now on.
    moved: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Way {
    fn to(port: u16) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let soon = Some(Duration::from_millis(1));
        near.set_read_timeout(soon).expect("set");
        let way = move || {
            let far = UdpSocket::bind("127.0.0.1:0").expect("a port");
            far.connect(("127.0.0.1", port)).expect("a way");
            far.set_read_timeout(soon).expect("set");
            far
        };
        let (open, stop) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let moved = Arc::new(AtomicBool::new(false));
        let moves = Arc::clone(&moved);
        let here = near.local_addr().expect("bound").port();
        let (is_open, is_over) = (Arc::clone(&open), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut caller, mut buf, mut far) = (None, [0; 2000], way());
            while !is_over.load(Ordering::Acquire) {
                if moves.swap(false, Ordering::AcqRel) {
                    far = way();
                }
                if let Ok((n, from)) = near.recv_from(&mut buf) {
                    caller = Some(from);
                    if is_open.load(Ordering::Acquire) {
                        let _ = far.send(&buf[..n]);
                    }
                }
                // An error is the answer to one that was sent where nobody listens.
                if let (Ok(n), Some(caller)) = (far.recv(&mut buf), caller)
                    && is_open.load(Ordering::Acquire)
                {
                    let _ = near.send_to(&buf[..n], caller);
                }
            }
        });
        Self { port: here, open, moved, stop, thread: Some(thread) }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_server_that_is_started_again_ends_the_connections_of_the_one_before() {
    let two = two();
    let tls = client_tls(&two.ours);
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    let address = place.address.clone();
    let Address::Quic(_, port) = address else { panic!("{address}") };
    let way = Way::to(port);
    let through = Address::Quic("127.0.0.1".into(), way.port);
    let mut near = call(&through, Some(&tls)).expect("a connection");
    let mut far = place.take().expect("a connection");
    near.writer.write_all(b"word").expect("said");
    far.reader.read_exact(&mut [0; 4]).expect("heard");
    // Nobody hears that it ends: as if it were killed.
    way.open.store(false, Ordering::Release);
    drop((far, place));
    let place = Place::new(&address, Some(server_tls(&two.ours)));
    assert_eq!(place.address, address);
    way.open.store(true, Ordering::Release);
    near.writer.write_all(b"word").expect("said");
    // It is no time limit that has passed.
    let error = near.reader.read(&mut [0; 4]).expect_err("an end");
    assert!(error.to_string().contains("reset by peer"), "{error}");
    works(&place, &tls);
}

#[test]
fn a_connection_outlives_a_change_of_the_callers_address() {
    let two = two();
    let tls = client_tls(&two.ours);
    let place = Place::new(&quic(), Some(server_tls(&two.ours)));
    let Address::Quic(_, port) = place.address else { panic!("{}", place.address) };
    let way = Way::to(port);
    let through = Address::Quic("127.0.0.1".into(), way.port);
    let mut near = call(&through, Some(&tls)).expect("a connection");
    let mut far = place.take().expect("a connection");
    for round in 0..4 {
        let (question, mut heard) = ([round; 100_000], [0; 100_000]);
        near.writer.write_all(&question).expect("said");
        far.reader.read_exact(&mut heard).expect("heard");
        assert!(heard == question);
        far.writer.write_all(&heard).expect("said");
        heard.fill(9);
        near.reader.read_exact(&mut heard).expect("heard");
        assert!(heard == question);
        way.moved.store(true, Ordering::Release);
    }
}
