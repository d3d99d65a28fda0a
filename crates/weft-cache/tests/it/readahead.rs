//! Reading ahead of a sequential reader: what it does, and what it must never do.

use crate::gate::{At, GateDevice};
use crate::rig::{BLOCK, block, read, write};
use crate::torture::Flaky;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, MemoryDevice};
use weft_cache::admission::{AdmissionOptions, SequentialBypass};
use weft_cache::{AttachOptions, Cache, CachedDevice, CreateOptions, OpenOptions, OriginId};

const BLOCKS: u64 = 2048;
/// Blocks in one read.
const PIECE: u64 = 16;
/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);

fn origin() -> MemoryDevice {
    let origin = MemoryDevice::new(BLOCKS * BLOCK as u64);
    (0..BLOCKS).for_each(|number| write(&origin, number, 0).unwrap());
    origin
}

fn open(
    cache_bytes: u64,
    origin: Arc<dyn BlockDevice>,
    options: OpenOptions,
) -> (Arc<Cache>, Arc<CachedDevice>) {
    let disk = Arc::new(MemoryDevice::new(cache_bytes));
    Cache::create(&*disk, &CreateOptions::default()).unwrap();
    let cache = Cache::open(disk, options).unwrap();
    let len_bytes = BLOCKS * BLOCK as u64;
    let id = OriginId { len_bytes, label: "origin".into(), ..OriginId::default() };
    let device = cache.attach(origin, &id, &AttachOptions::default()).unwrap();
    (cache, device)
}

/// Reads pieces in order, and holds each against the first version.
fn read_in_order(device: &dyn BlockDevice, pieces: std::ops::Range<u64>) {
    let mut got = vec![0; (PIECE as usize) * BLOCK];
    for piece in pieces {
        device.read_at(&mut got, piece * PIECE * BLOCK as u64).unwrap();
        for (number, bytes) in (piece * PIECE..).zip(got.chunks(BLOCK)) {
            assert!(bytes == block(number, 0), "block {number}");
        }
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_follows_a_sequential_reader_is_in_the_cache_before_it_asks() {
    let (cache, device) = open(16 << 20, Arc::new(origin()), OpenOptions::default());
    let pieces = 8;
    read_in_order(&*device, 0..pieces);
    // As much again as was read, or nearly: half a window at a time.
    let read = pieces * PIECE;
    eventually("half of a window is there", || cache.stats().used_slots >= read + read / 2);
    let stats = cache.stats();
    assert!(stats.used_slots <= 2 * read, "never more than was read: {stats:?}");
    assert!(stats.read_ahead_bytes >= (read / 2) * BLOCK as u64, "{stats:?}");
    read_in_order(&*device, pieces..BLOCKS / PIECE);
    assert_eq!(cache.stats().bypasses, 0);
}

#[test]
fn random_reads_and_a_window_of_nothing_have_nothing_read_ahead() {
    let (cache, device) = open(16 << 20, Arc::new(origin()), OpenOptions::default());
    for number in 0..512_u64 {
        read(&*device, number * 997 % BLOCKS).unwrap();
    }
    assert_eq!(cache.stats().read_ahead_bytes, 0);
    let options = OpenOptions { readahead_bytes: 0, ..OpenOptions::default() };
    let (cache, device) = open(16 << 20, Arc::new(origin()), options);
    read_in_order(&*device, 0..BLOCKS / PIECE);
    cache.close().unwrap();
    assert_eq!(cache.stats().read_ahead_bytes, 0);
}

#[test]
fn nothing_is_displaced_by_what_nobody_has_asked_for() {
    let admission =
        AdmissionOptions { sequential: SequentialBypass::Never, ..AdmissionOptions::default() };
    let options = OpenOptions { admission, ..OpenOptions::default() };
    let (cache, device) = open(2 << 20, Arc::new(origin()), options);
    let slots = cache.stats().slots;
    // Fills the cache by reads that follow each other in no order.
    let mut number = 0;
    let before = loop {
        let stats = cache.stats();
        if stats.used_slots == slots {
            break stats;
        }
        number = (number + 997) % BLOCKS;
        read(&*device, number).unwrap();
    };
    assert_eq!(before.read_ahead_bytes, 0);
    read_in_order(&*device, 0..BLOCKS / PIECE);
    let displaces = || cache.stats().evictions > before.evictions;
    eventually("what was asked for displaces", displaces);
    cache.close().unwrap();
    let after = cache.stats();
    // In all, as what was asked for before may come into the cache after: each block that went made
    // room for one that a reader had missed.
    assert!(after.evictions + slots <= after.misses, "{after:?}");
}

/// A write overtakes what is being read ahead: its data counts, whatever the origin said before.
#[test]
fn a_write_counts_against_what_is_read_ahead_meanwhile() {
    let gate = GateDevice::new(origin());
    let (cache, device) = open(16 << 20, gate.clone(), OpenOptions::default());
    let at = 200;
    gate.arm(At::ReadDone, at * BLOCK as u64..(at + 1) * BLOCK as u64);
    // The first read that touches the block is one ahead of this reader.
    read_in_order(&*device, 0..8);
    gate.wait_held();
    write(&*device, at, 1).unwrap();
    gate.release();
    eventually("what was held is over", || cache.stats().used_slots > 192);
    assert!(read(&*device, at).unwrap() == block(at, 1));
    cache.detach(&device).unwrap();
    assert!(read(&*gate, at).unwrap() == block(at, 1));
}

/// A failed prefetch is an error for the reader only if its own read of the block fails, too.
#[test]
fn failures_ahead_are_not_the_readers() {
    let flaky = Flaky::new(Arc::new(origin()), 7);
    let (cache, device) = open(16 << 20, flaky.clone(), OpenOptions::default());
    flaky.one_in.store(3, SeqCst);
    let mut got = vec![0; BLOCK];
    for number in 0..BLOCKS {
        // One of three requests fails; a few attempts always do.
        let done = (0..100).any(|_| device.read_at(&mut got, number * BLOCK as u64).is_ok());
        assert!(done && got == block(number, 0), "block {number}");
    }
    flaky.one_in.store(0, SeqCst);
    cache.detach(&device).unwrap();
    assert_eq!(cache.stats().dirty_bytes, 0);
}

/// A detached origin can be attached again: no prefetch thread keeps it alive.
#[test]
fn a_detach_waits_for_what_is_read_ahead() {
    let origin: Arc<dyn BlockDevice> = Arc::new(origin());
    let (cache, mut device) = open(16 << 20, Arc::clone(&origin), OpenOptions::default());
    let len_bytes = BLOCKS * BLOCK as u64;
    let id = OriginId { len_bytes, label: "origin".into(), ..OriginId::default() };
    // Fewer than the origins that a cache has room for, should it not have forgotten the old ones yet.
    for round in 0..12 {
        read_in_order(&*device, 0..4 + round % 16);
        cache.detach(&device).unwrap();
        drop(device);
        device = cache.attach(Arc::clone(&origin), &id, &AttachOptions::default()).unwrap();
    }
}
