//! Extended headers: lengths of 64 bits for what has no payload.

use crate::bench::Bench;
use crate::protocol::Raw;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_block::{BlockDevice, ExtentKind, MemoryDevice};
use weft_nbd::NbdDevice;
use weft_nbd::wire::{Chunk, ChunkType, Command, CommandFlags, NbdErrno};

const TIB: u64 = 1 << 40;

fn requests(server: &weft_nbd::Server) -> u64 {
    server.counters().requests.load(Ordering::Relaxed)
}

/// With 32 bits, zeroing 5 TiB takes 163,840 requests, and trimming them 5120.
#[test]
fn a_range_of_any_length_is_one_request() {
    let bench = Bench::new();
    let server = bench.serve(Arc::new(MemoryDevice::new(8 * TIB)));
    let device = bench.connect();
    assert!(device.facts().extended);
    device.write_at(&[7; 8192], 6 * TIB - 4096).expect("a write");
    device.write_at(&[7; 4096], 4096).expect("a write");
    let before = requests(&server);
    device.write_zeroes(0, 5 * TIB).expect("zeroes");
    assert_eq!(requests(&server) - before, 1);
    let extent = device.extent_at(0, 8 * TIB).expect("an extent");
    assert_eq!((extent.len_bytes, extent.kind), (6 * TIB - 4096, ExtentKind::Hole));
    device.discard(4 * TIB, 2 * TIB).expect("a discard");
    assert_eq!(requests(&server) - before, 3);
    let mut got = [1; 8192];
    device.read_at(&mut got, 6 * TIB - 4096).expect("a read");
    assert!(got[..4096] == [0; 4096] && got[4096..] == [7; 4096]);
    device.flush().expect("a flush");
}

#[test]
fn a_client_without_them_is_served_as_before() {
    let bench = Bench::new();
    let server = bench.serve(Arc::new(MemoryDevice::new(8 << 30)));
    let mut options = bench.options();
    options.extended_headers = false;
    let device = NbdDevice::connect(options).expect("it connects");
    assert!(!device.facts().extended && device.facts().structured);
    let before = requests(&server);
    device.write_zeroes(0, 1 << 30).expect("zeroes");
    assert_eq!(requests(&server) - before, 32, "of 32 MiB each");
    let extent = device.extent_at(0, 8 << 30).expect("an extent");
    assert_eq!(extent.len_bytes, 1 << 30, "as much as it asks about at once");
}

#[test]
fn requests_with_extended_headers_get_the_errors_of_the_protocol() {
    let bench = Bench::new();
    let _server = bench.serve(Arc::new(MemoryDevice::new(8 * TIB)));
    let mut raw = Raw::connect_with(&bench, true);
    let none = CommandFlags::empty();
    for (command, offset, len_bytes, want) in [
        (Command::READ, 0, 33 << 20, NbdErrno::EINVAL),
        (Command::READ, 0, u64::MAX, NbdErrno::EINVAL),
        (Command::READ, 0, 0, NbdErrno::OK),
        (Command::TRIM, 1, u64::MAX, NbdErrno::EINVAL),
        (Command::TRIM, 0, 8 * TIB, NbdErrno::OK),
        (Command::WRITE_ZEROES, 1, 8 * TIB, NbdErrno::ENOSPC),
        (Command::WRITE_ZEROES, u64::MAX, u64::MAX, NbdErrno::ENOSPC),
        (Command::CACHE, 8 * TIB, 1, NbdErrno::EINVAL),
        (Command::BLOCK_STATUS, 0, 0, NbdErrno::EINVAL),
        (Command::FLUSH, 0, 0, NbdErrno::OK),
    ] {
        assert_eq!(raw.error(command, offset, len_bytes), want, "{command:?} {offset} {len_bytes}");
    }
    let answer = raw.ask(Command::BLOCK_STATUS, none, 0, 8 * TIB);
    let [(ChunkType::BLOCK_STATUS_EXT, payload)] = &answer.chunks[..] else { panic!("{answer:?}") };
    let chunk = Chunk::parse(ChunkType::BLOCK_STATUS_EXT, true, payload).expect("extents");
    let Chunk::BlockStatus { extents, .. } = chunk else { panic!("{chunk:?}") };
    assert_eq!((extents.len(), extents[0].len_bytes), (1, 8 * TIB));
    // A write says that its length is one of a payload; one that does not is taken all the same.
    for flags in [CommandFlags::PAYLOAD_LEN, none] {
        raw.send(Command::WRITE, flags, 4096, 512);
        raw.stream.write_all(&[9; 512]).expect("the payload");
        assert_eq!(raw.receive().error, NbdErrno::OK);
    }
    // Where no payload belongs it is refused, and read, so that what follows makes sense.
    for command in [Command::READ, Command::TRIM, Command::BLOCK_STATUS, Command(99)] {
        raw.send(command, CommandFlags::PAYLOAD_LEN, 0, 100_000);
        raw.stream.write_all(&vec![1; 100_000]).expect("the payload");
        assert_eq!(raw.receive().error, NbdErrno::EINVAL, "{command:?}");
    }
    let answer = raw.ask(Command::READ, none, 4096, 512);
    assert_eq!(answer.chunks[0].1[8..], [9; 512]);
    // A payload that nobody would read to its end.
    raw.send(Command::WRITE, CommandFlags::PAYLOAD_LEN, 0, TIB);
    assert!(raw.has_ended());
    // Neither style of headers is taken for the other.
    for extended in [true, false] {
        let mut raw = Raw::connect_with(&bench, extended);
        raw.facts.extended = !extended;
        raw.send(Command::READ, none, 0, 512);
        // A server that expects the longer header waits for its end.
        let _ = raw.stream.write_all(&[0; 4]);
        assert!(raw.has_ended());
    }
}
