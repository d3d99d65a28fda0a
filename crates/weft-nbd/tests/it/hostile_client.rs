//! Clients that break the rules end alone: memory stays bounded, and nobody else notices.

use crate::bench::Bench;
use crate::protocol::Raw;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, Fault, FaultDevice, MemoryDevice, Request as On, Rng, Rule};
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::wire::{Command, CommandFlags, NbdErrno};
use weft_nbd::{Export, Server};
use weft_testing::wait_until;

const LEN: u64 = 256 << 20;

fn impatient(bench: &Bench, device: Arc<dyn BlockDevice>) -> Server {
    let options = ServerOptions {
        handshake_limit: Duration::from_millis(1500),
        in_flight_max_bytes: 4 << 20,
        ..ServerOptions::default()
    };
    bench.serve_with(vec![Export::new("", device)], options)
}

/// Another client is served as if nothing were.
fn others_are_served(bench: &Bench) {
    let begun = Instant::now();
    let mut raw = Raw::connect(bench);
    assert_eq!(raw.error(Command::READ, 0, 4096), NbdErrno::OK);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_client_that_never_sends_is_let_go() {
    let bench = Bench::new();
    let server = impatient(&bench, Arc::new(MemoryDevice::new(LEN)));
    let silent: Vec<UnixStream> =
        (0..10).map(|_| UnixStream::connect(bench.socket()).expect("it connects")).collect();
    let mut half = UnixStream::connect(bench.socket()).expect("it connects");
    half.write_all(&[0, 0, 0, 3, b'I', b'H']).expect("half an option");
    others_are_served(&bench);
    wait_until("they are gone", || server.connections() == 0);
    drop((silent, half));
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_has_no_more_time_than_others() {
    let bench = Bench::new();
    let server = impatient(&bench, Arc::new(MemoryDevice::new(LEN)));
    // In the handshake, all of it counts.
    let begun = Instant::now();
    let mut stream = UnixStream::connect(bench.socket()).expect("it connects");
    let option = b"\0\0\0\x03IHAVEOPT\0\0\0\x06\0\0\x10\0".iter().chain([0; 4096].iter());
    for byte in option {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(20), "it is served for ever");
    }
    wait_until("it is gone", || server.connections() == 0);
    // Later a request may be long in coming; meanwhile others are served, and it is answered.
    let mut raw = Raw::connect(&bench);
    let request = weft_nbd::wire::Request {
        flags: CommandFlags::empty(),
        command: Command::WRITE,
        handle: 77,
        offset: 0,
        len_bytes: 40,
    };
    for byte in request.encode(false).iter().chain(&[9; 40]) {
        raw.stream.write_all(&[*byte]).expect("a byte");
        std::thread::sleep(Duration::from_millis(10));
    }
    others_are_served(&bench);
    assert_eq!((raw.receive().handle, raw.error(Command::READ, 0, 40)), (77, NbdErrno::OK));
}

/// Memory is taken for what has come, not for what is announced.
#[test]
fn announcing_long_writes_costs_no_memory() {
    fn resident_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("it is there");
        let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
        pages.expect("a number") * 4096
    }
    let bench = Bench::new();
    let server = impatient(&bench, Arc::new(MemoryDevice::new(LEN)));
    let before = resident_bytes();
    let clients: Vec<Raw> = (0..48)
        .map(|_| {
            let mut raw = Raw::connect(&bench);
            raw.send(Command::WRITE, CommandFlags::empty(), 0, 32 << 20);
            raw.stream.write_all(&[1; 1000]).expect("the beginning");
            raw
        })
        .collect();
    let counters = server.counters();
    wait_until("all have come", || counters.requests.load(Ordering::Relaxed) == 48);
    others_are_served(&bench);
    // 1.5 GiB are announced; other tests of this process may take some memory, too.
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < 768 << 20, "{taken} bytes are taken");
    drop(clients);
    wait_until("they are gone", || server.connections() == 0);
}

#[test]
fn idle_connections_end_when_that_is_asked_for() {
    let bench = Bench::new();
    let options = ServerOptions { idle_limit: Some(Duration::ZERO), ..ServerOptions::default() };
    let server = bench.serve_with(vec![Export::new("", Arc::new(MemoryDevice::new(LEN)))], options);
    let mut raw = Raw::connect(&bench);
    assert!(raw.has_ended());
    wait_until("it is gone", || server.connections() == 0);
}

#[test]
fn nonsense_ends_the_connection_and_no_other() {
    let bench = Bench::new();
    let server = impatient(&bench, Arc::new(MemoryDevice::new(LEN)));
    // After the handshake: a wrong magic number, a write of 4 GiB, the end in mid-request.
    let mut raw = Raw::connect(&bench);
    raw.stream.write_all(&[0xff; 28]).expect("nonsense");
    assert!(raw.has_ended());
    let mut raw = Raw::connect(&bench);
    raw.send(Command::WRITE, CommandFlags::empty(), 0, u32::MAX.into());
    assert!(raw.has_ended());
    let mut raw = Raw::connect(&bench);
    raw.send(Command::WRITE, CommandFlags::empty(), 0, 4096);
    raw.stream.write_all(&[1; 100]).expect("a part of it");
    drop(raw);
    // Noise of every kind, in every phase.
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut noise = vec![0; 1 + rng.index(300)];
        rng.fill(&mut noise);
        let mut stream = if rng.chance(1, 2) {
            Raw::connect(&bench).stream
        } else {
            let mut stream = UnixStream::connect(bench.socket()).expect("it connects");
            if rng.chance(1, 2) {
                noise.splice(..0, *b"\0\0\0\x03IHAVEOPT\0\0\0");
            }
            let _ = stream.write_all(&[0, 0, 0, 3]);
            stream
        };
        let _ = stream.write_all(&noise);
    }
    others_are_served(&bench);
    wait_until("all have ended", || server.connections() == 0);
}

#[test]
fn a_flood_of_requests_whose_replies_nobody_reads_is_not_served_into_memory() {
    let bench = Bench::new();
    let disk = MemoryDevice::new(LEN);
    disk.write_at(&vec![7; 8 << 20], 0).expect("a write");
    let server = impatient(&bench, Arc::new(disk));
    let mut raw = Raw::connect(&bench);
    // 64 GiB are asked for.
    raw.stream.set_nonblocking(true).expect("it does not wait");
    for nr in 0..65_536_u64 {
        let request = weft_nbd::wire::Request {
            flags: CommandFlags::empty(),
            command: Command::READ,
            handle: nr,
            offset: (nr % 8) << 20,
            len_bytes: 1 << 20,
        };
        if raw.stream.write_all(&request.encode(false)).is_err() {
            break;
        }
    }
    others_are_served(&bench);
    std::thread::sleep(Duration::from_millis(500));
    others_are_served(&bench);
    // What was done is what fits the sockets' buffers and the limit for requests in progress.
    let done = server.counters().read_bytes.load(Ordering::Relaxed);
    assert!(done < 64 << 20, "{done} bytes were read");
    drop(raw);
    wait_until("it is gone", || server.connections() == 0);
}

#[test]
fn a_slow_request_holds_up_no_other() {
    let bench = Bench::new();
    let slow = Arc::new(FaultDevice::new(MemoryDevice::new(LEN)));
    let wait = Fault::Delay(Duration::from_secs(2));
    slow.add(Rule::every(On::Read, wait).within(0..512));
    let _server = bench.serve(Arc::clone(&slow) as _);
    let mut raw = Raw::connect(&bench);
    // The first such request may still be thought to be quick; the second is not.
    raw.send(Command::READ, CommandFlags::empty(), 0, 512);
    assert_eq!(raw.receive().handle, 77);
    let begun = Instant::now();
    raw.send(Command::READ, CommandFlags::empty(), 0, 512);
    raw.send(Command::READ, CommandFlags::empty(), 4096, 512);
    assert_eq!(raw.receive().handle, 4096 ^ 77, "the quick one is answered first");
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(raw.receive().handle, 77);
}

#[test]
fn a_client_that_takes_leave_is_answered_first() {
    let bench = Bench::new();
    let _server = bench.serve(Arc::new(MemoryDevice::new(LEN)));
    let mut raw = Raw::connect(&bench);
    raw.send(Command::READ, CommandFlags::empty(), 0, 4096);
    raw.send(Command::DISC, CommandFlags::empty(), 0, 0);
    let mut all = Vec::new();
    raw.stream.read_to_end(&mut all).expect("the reply, then the end");
    assert_eq!(all.len(), 20 + 8 + 4096);
}
