//! What holds of any connection: plain, under TLS, over QUIC.

use crate::{LIMIT, Numbers, Place, call, client_tls, make_certificates, quic, server_tls};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;
use weft_net::{Address, Channel, ClientTls, SendHalf, is_pause};

/// A place of each kind, and who calls it.
fn kinds(dir: &std::path::Path) -> Vec<(Place, Option<ClientTls>)> {
    make_certificates(dir);
    let tcp = Address::Tcp("127.0.0.1".into(), 0);
    vec![
        (Place::new(&Address::Unix(dir.join("s")), None), None),
        (Place::new(&tcp, None), None),
        (Place::new(&tcp, Some(server_tls(dir))), Some(client_tls(dir))),
        (Place::new(&quic(), Some(server_tls(dir))), Some(client_tls(dir))),
    ]
}

/// Both ends of a new connection.
fn pair((place, tls): &(Place, Option<ClientTls>)) -> (Channel, Channel) {
    std::thread::scope(|scope| {
        // The handshake takes two.
        let taken = scope.spawn(|| place.take().expect("a connection"));
        let called = call(&place.address, tls.as_ref()).expect("a connection");
        (called, taken.join().expect("no panic"))
    })
}

fn for_each_kind(mut test: impl FnMut(&str, Channel, Channel)) {
    let dir = tempfile::tempdir().expect("a directory");
    for kind in kinds(dir.path()) {
        // Who called, and who was called.
        let name = format!("{}, TLS: {}", kind.0.address, kind.1.is_some());
        let (near, far) = pair(&kind);
        test(&name, near, far);
        let (near, far) = pair(&kind);
        test(&name, far, near);
    }
}

/// Says all of it in pieces of any size.
fn say(writer: &mut dyn SendHalf, bytes: &[u8], seed: u64) {
    let mut numbers = Numbers(seed);
    let mut left = bytes;
    while !left.is_empty() {
        let n = (1 + numbers.below(40_000)).min(left.len());
        writer.write_all(&left[..n]).expect("written");
        left = &left[n..];
    }
}

/// Hears so much in pieces of any size.
fn hear(reader: &mut dyn Read, len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut heard = Vec::new();
    while heard.len() < len {
        let mut buf = vec![0; (1 + numbers.below(40_000)).min(len - heard.len())];
        match reader.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => heard.extend_from_slice(&buf[..n]),
            Err(e) => panic!("after {}: {e}", heard.len()),
        }
    }
    heard
}

#[test]
fn what_one_says_the_other_hears_in_both_directions_at_once() {
    for_each_kind(|name, one, other| {
        let (to, back) = (Numbers(7).bytes(3_000_000), Numbers(8).bytes(2_000_000));
        let Channel { reader: mut one_hears, writer: mut one_says, socket: _one, .. } = one;
        let Channel { reader: mut other_hears, writer: mut other_says, socket: _other, .. } = other;
        std::thread::scope(|scope| {
            scope.spawn(|| say(&mut *one_says, &to, 1));
            scope.spawn(|| say(&mut *other_says, &back, 2));
            let heard = scope.spawn(|| hear(&mut *other_hears, to.len(), 3));
            assert!(hear(&mut *one_hears, back.len(), 4) == back, "{name}");
            assert!(heard.join().expect("no panic") == to, "{name}");
        });
    });
}

#[test]
fn all_that_was_said_before_the_end_arrives_and_then_the_end() {
    for_each_kind(|name, mut one, mut other| {
        // Over TCP an end with something unheard before it is no orderly one, and a server under TLS
        // says something by itself.
        other.writer.write_all(b"word").expect("written");
        assert_eq!(hear(&mut *one.reader, 4, 1), b"word", "{name}");
        let said = Numbers(9).bytes(100_000);
        one.writer.write_all(&said).expect("written");
        one.writer.finish();
        drop(one);
        let mut heard = Vec::new();
        let ended = other.reader.read_to_end(&mut heard);
        assert!(ended.is_ok(), "{name}: {ended:?}");
        assert!(heard == said, "{name}: {} of {} bytes", heard.len(), said.len());
    });
}

#[test]
fn who_says_no_more_still_hears() {
    for_each_kind(|name, mut one, mut other| {
        one.writer.write_all(b"question").expect("written");
        one.writer.finish();
        one.socket.shutdown(Shutdown::Write);
        let mut asked = Vec::new();
        other.reader.read_to_end(&mut asked).expect("an end");
        assert_eq!(asked, b"question", "{name}");
        let answer = Numbers(5).bytes(300_000);
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| hear(&mut *one.reader, answer.len(), 6));
            say(&mut *other.writer, &answer, 7);
            assert!(heard.join().expect("no panic") == answer, "{name}");
        });
    });
}

#[test]
fn who_has_gone_is_missed_by_who_talks_on() {
    for_each_kind(|name, one, mut other| {
        drop(one);
        let chunk = [0; 60_000];
        let mut said = 0;
        // It may take a while until that is known; nothing takes so much for nobody.
        while other.writer.write_all(&chunk).is_ok() {
            said += chunk.len();
            assert!(said < 100_000_000, "{name}");
        }
    });
}

#[test]
fn who_is_not_listened_to_stops_and_is_not_kept() {
    for_each_kind(|name, mut one, other| {
        one.socket.set_write_timeout(Duration::from_millis(200)).expect("set");
        let chunk = vec![1; 1 << 20];
        let mut said = 0_u64;
        let error = loop {
            match one.writer.write(&chunk) {
                Ok(n) => said += n as u64,
                Err(e) => break e,
            }
            assert!(said < 200 << 20, "{name}: somebody keeps all of it");
        };
        assert!(is_pause(&error), "{name}: {error}");
        // It goes without waiting, whatever is left.
        drop(one);
        drop(other);
    });
}

#[test]
fn a_read_gives_up_for_now_and_goes_on() {
    for_each_kind(|name, mut one, mut other| {
        one.socket.set_read_timeout(Duration::from_millis(20)).expect("set");
        let error = one.reader.read(&mut [0; 8]).expect_err("nothing was said");
        assert!(is_pause(&error), "{name}: {error}");
        one.socket.set_read_timeout(LIMIT).expect("set");
        other.writer.write_all(b"word").expect("written");
        assert_eq!(hear(&mut *one.reader, 4, 1), b"word", "{name}");
        // Ending it wakes who waits.
        let socket = std::sync::Arc::clone(&one.socket);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| one.reader.read(&mut [0; 8]));
            socket.shutdown(Shutdown::Both);
            assert!(matches!(waits.join().expect("no panic"), Ok(0)), "{name}");
        });
    });
}
