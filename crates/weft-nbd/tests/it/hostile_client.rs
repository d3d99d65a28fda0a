//! Clients that break the rules end alone: memory stays bounded, and nobody else notices.

use crate::bench::Bench;
use crate::protocol::Raw;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_block::{BlockDevice, Filter, MemoryDevice, Rng};
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::wire::{Command, CommandFlags, NbdErrno};
use weft_nbd::{Export, Server};
use weft_testing::{ends, wait_until};

const LEN: u64 = 256 << 20;

/// The time for a handshake that no test waits for: that would be a hang.
const LONG: Duration = Duration::from_secs(3600);

/// A server with little memory, and so much time for a handshake.
fn serve(bench: &Bench, device: Arc<dyn BlockDevice>, handshake_limit: Duration) -> Server {
    let options =
        ServerOptions { handshake_limit, in_flight_max_bytes: 4 << 20, ..ServerOptions::default() };
    bench.serve_with(vec![Export::new("", device)], options)
}

/// Another client is served as if nothing were: its replies do not wait for anything, or never come.
fn others_are_served(bench: &Bench) {
    let mut raw = Raw::connect(bench);
    assert_eq!(raw.error(Command::READ, 0, 4096), NbdErrno::OK);
}

/// As many silent clients as there may be connections, and more: another is served at once, and those
/// that are served stay.
#[test]
fn silent_clients_keep_no_others_out() {
    let bench = Bench::new();
    let export = Export::new("", Arc::new(MemoryDevice::new(LEN)));
    let options =
        ServerOptions { handshake_limit: LONG, connections_max: 8, ..ServerOptions::default() };
    let server = bench.serve_with(vec![export], options);
    let mut served: Vec<Raw> = (0..3).map(|_| Raw::connect(&bench)).collect();
    let connect = || UnixStream::connect(bench.socket()).expect("it connects");
    let mut silent: Vec<UnixStream> = (0..12).map(|_| connect()).collect();
    for _ in 0..4 {
        others_are_served(&bench);
        silent.push(connect());
    }
    for raw in &mut served {
        assert_eq!(raw.error(Command::READ, 0, 4096), NbdErrno::OK);
    }
    assert_eq!(server.counters().refused.load(Ordering::Relaxed), 0);
    drop(silent);
    wait_until("the silent ones are gone", || server.connections() == 3);
    served.extend((0..5).map(|_| Raw::connect(&bench)));
    for raw in &mut served {
        assert_eq!(raw.error(Command::READ, 0, 4096), NbdErrno::OK);
    }
}

#[test]
fn a_client_that_never_sends_is_let_go() {
    let silent_ones = |bench: &Bench| {
        let connect = || UnixStream::connect(bench.socket()).expect("it connects");
        let mut all: Vec<UnixStream> = (0..11).map(|_| connect()).collect();
        all[10].write_all(&[0, 0, 0, 3, b'I', b'H']).expect("half an option");
        all
    };
    // Others do not wait until they are let go.
    let bench = Bench::new();
    let server = serve(&bench, Arc::new(MemoryDevice::new(LEN)), LONG);
    let silent = silent_ones(&bench);
    others_are_served(&bench);
    drop(silent);
    wait_until("they are gone", || server.connections() == 0);

    let bench = Bench::new();
    let server = serve(&bench, Arc::new(MemoryDevice::new(LEN)), Duration::from_millis(300));
    for mut stream in silent_ones(&bench) {
        // An end or an error: what it has sent may not have been read.
        ends("it is let go", move || drop(stream.read_to_end(&mut Vec::new())));
    }
    wait_until("they are gone", || server.connections() == 0);
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_has_no_more_time_than_others() {
    let bench = Bench::new();
    let server = serve(&bench, Arc::new(MemoryDevice::new(LEN)), Duration::from_millis(1500));
    // In the handshake, all of it counts: options without end are not served for ever.
    let mut stream = UnixStream::connect(bench.socket()).expect("it connects");
    ends("it is let go", move || {
        let _ = stream.write_all(&[0, 0, 0, 3]);
        let option = [&b"IHAVEOPT\0\0\0\x06\0\0\x10\0"[..], &[0; 4096]].concat();
        for byte in option.iter().cycle() {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    wait_until("it is gone", || server.connections() == 0);
    let bench = Bench::new();
    let _server = serve(&bench, Arc::new(MemoryDevice::new(LEN)), LONG);
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
    let server = serve(&bench, Arc::new(MemoryDevice::new(LEN)), LONG);
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
    let server = serve(&bench, Arc::new(MemoryDevice::new(LEN)), LONG);
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
    let server = serve(&bench, Arc::new(disk), LONG);
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
    // Time for a server that reads on: on a slow machine too little, and then nothing is found.
    std::thread::sleep(Duration::from_millis(500));
    others_are_served(&bench);
    // What was done is what fits the sockets' buffers and the limit for requests in progress.
    let done = server.counters().read_bytes.load(Ordering::Relaxed);
    assert!(done < 64 << 20, "{done} bytes were read");
    drop(raw);
    wait_until("it is gone", || server.connections() == 0);
}

/// A device that reads at its beginning only when it is told to.
struct Held {
    disk: MemoryDevice,
    released: Mutex<Receiver<()>>,
}

impl Filter for Held {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.disk
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        if offset == 0 {
            // An error: the test has ended.
            let _ = self.released.lock().expect("no panic").recv();
            // Certainly longer than what the server takes for quick.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.disk.read_at(buf, offset)
    }
}

#[test]
fn a_slow_request_holds_up_no_other() {
    let bench = Bench::new();
    let (release, released) = channel();
    let disk = Held { disk: MemoryDevice::new(LEN), released: Mutex::new(released) };
    let _server = bench.serve(Arc::new(disk));
    // Dropped before the server, which then ends although a request is held.
    let release = release;
    let mut raw = Raw::connect(&bench);
    // The first such request may still be thought to be quick; the second is not.
    release.send(()).expect("it is served");
    raw.send(Command::READ, CommandFlags::empty(), 0, 512);
    assert_eq!(raw.receive().handle, 77);
    raw.send(Command::READ, CommandFlags::empty(), 0, 512);
    raw.send(Command::READ, CommandFlags::empty(), 4096, 512);
    assert_eq!(raw.receive().handle, 4096 ^ 77, "the quick one is answered first");
    release.send(()).expect("it is served");
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
