//! What is put into the cache, and what is not.

use crate::rig::{Counter, Rig, block, read, write};
use weft_block::{BlockDevice, Request};
use weft_cache::admission::{AdmissionOptions, SequentialBypass};
use weft_cache::{Mode, Stats};

const BLOCKS: u64 = 4000;

/// A rig whose cache holds about a tenth of the origin.
fn rig(admission: AdmissionOptions) -> Rig {
    let mut rig = Rig::new(Mode::WriteThrough, 3 << 20, BLOCKS);
    rig.options.admission = admission;
    rig
}

fn streams(sequential: SequentialBypass) -> AdmissionOptions {
    let sequential_bytes = 256 << 10;
    AdmissionOptions { sequential, sequential_bytes, ..AdmissionOptions::default() }
}

/// Reads every block in order, 64 KiB at a time, and compares what comes.
fn read_all(rig: &Rig, device: &dyn BlockDevice) {
    let mut buf = vec![0; 64 << 10];
    for first in (0..BLOCKS).step_by(16) {
        let len = ((BLOCKS - first).min(16) * 4096) as usize;
        device.read_at(&mut buf[..len], first * 4096).unwrap();
        for (number, got) in (first..).zip(buf[..len].chunks_exact(4096)) {
            assert_eq!(got, rig.origin_block(number), "block {number}");
        }
    }
}

/// Whether the first blocks, which were used before the stream, are still in the cache.
fn keeps_its_blocks(sequential: SequentialBypass) -> (bool, Stats) {
    let rig = rig(streams(sequential));
    let open = rig.open();
    let hot = || (0..64).map(|at| at * 37 % BLOCKS);
    for _ in 0..2 {
        hot().for_each(|number| assert_eq!(read(&*open.device, number).unwrap(), block(number, 0)));
    }
    // Single blocks, far from each other, until no slot is free.
    let mut number = 2000;
    while open.cache.stats().evictions == 0 {
        number = (number + 997) % BLOCKS;
        read(&*open.device, number).unwrap();
    }
    hot().for_each(|number| drop(read(&*open.device, number).unwrap()));
    read_all(&rig, &*open.device);
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    hot().for_each(|number| assert_eq!(read(&*open.device, number).unwrap(), block(number, 0)));
    (reads.count() == 0, open.cache.stats())
}

#[test]
fn a_stream_does_not_push_out_what_is_used() {
    let (kept, stats) = keeps_its_blocks(SequentialBypass::WhenFull);
    assert!(kept, "{stats:?}");
    assert!(stats.bypasses_sequential > BLOCKS * 3 / 4, "{stats:?}");
    // Without the rule, the stream takes all places, again and again.
    let (_, stats) = keeps_its_blocks(SequentialBypass::Never);
    assert_eq!(stats.bypasses_sequential, 0);
    assert!(stats.evictions > BLOCKS * 3 / 4, "{stats:?}");
}

#[test]
fn a_stream_fills_places_that_are_free() {
    let rig = rig(streams(SequentialBypass::WhenFull));
    let open = rig.open();
    read_all(&rig, &*open.device);
    let stats = open.cache.stats();
    assert_eq!(stats.used_slots, stats.slots);
    // The request that takes the last place is judged as a whole.
    assert!(stats.evictions < 16, "{stats:?}");
    let seen = stats.used_slots + stats.evictions + stats.bypasses_sequential;
    assert_eq!(seen, BLOCKS, "{stats:?}");
}

#[test]
fn a_stream_of_writes_passes_too_and_leaves_nothing_stale() {
    let rig = rig(streams(SequentialBypass::Always));
    let open = rig.open();
    // A few blocks on the way are cached, and must follow.
    let cached = || (0..BLOCKS).step_by(500);
    cached().for_each(|number| drop(read(&*open.device, number).unwrap()));
    for first in (0..BLOCKS).step_by(16) {
        let data: Vec<u8> = (first..first + 16).flat_map(|number| block(number, 1)).collect();
        open.device.write_at(&data, first * 4096).unwrap();
    }
    // What came before the stream was long enough to be one.
    let admitted = (256 << 10) / 4096;
    let stats = open.cache.stats();
    assert!(stats.used_slots <= admitted + 8, "{stats:?}");
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    cached().for_each(|n| assert_eq!(read(&*open.device, n).unwrap(), block(n, 1)));
    assert_eq!(reads.count(), 0, "cached blocks were dropped");
    drop(reads);
    read_all(&rig, &*open.device);
}

#[test]
fn a_block_enters_at_its_second_use() {
    let rig = rig(AdmissionOptions { by_reuse: true, ..AdmissionOptions::default() });
    let open = rig.open();
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    for expected in [1, 2, 2, 2] {
        assert_eq!(read(&*open.device, 77).unwrap(), block(77, 0));
        assert_eq!(reads.count(), expected);
    }
    // A write is a use like any other.
    for (version, expected) in [(1, 3), (2, 3)] {
        write(&*open.device, 99, version).unwrap();
        if version == 2 {
            assert_eq!(read(&*open.device, 99).unwrap(), block(99, 2));
            assert_eq!(reads.count(), expected - 1);
        }
    }
    assert_eq!(open.cache.stats().bypasses_first_use, 2);
}

#[test]
fn fills_keep_within_the_budget_of_flash_writes_and_writes_are_never_refused() {
    let mib_a_day = 24;
    let mut rig = rig(AdmissionOptions {
        sequential: SequentialBypass::Never,
        flash_bytes_per_day: Some(mib_a_day << 20),
        ..AdmissionOptions::default()
    });
    rig.mode = Mode::WriteBack;
    let open = rig.open();
    let filled = || open.cache.stats().data_bytes_written;
    read_all(&rig, &*open.device);
    // An hour's share at once.
    assert_eq!(filled(), 1 << 20);
    rig.pass_ms(&open, 3_600_000);
    read_all(&rig, &*open.device);
    assert_eq!(filled(), 2 << 20);
    assert!(open.cache.stats().bypasses_over_budget > 0);
    // Write-back's data enters always, and fills pay for it.
    for number in 0..256 {
        write(&*open.device, number, 1).unwrap();
    }
    assert_eq!(filled(), 3 << 20);
    rig.pass_ms(&open, 3_600_000);
    read_all(&rig, &*open.device);
    assert_eq!(filled(), 3 << 20);
}
