//! Warm after a power cut: what was cached is still served from the cache, and nothing that is
//! clean is written to the origin.

use crate::rig::{Counter, Rig, block, is_of, read, write};
use weft_block::{BlockDevice, Request};
use weft_cache::{CreateOptions, Error, Mode, PolicyKind, Stats};

const BLOCKS: u64 = 3000;

/// Fills a cache that holds everything, writes a little, waits until it is quiet, and cuts the
/// power. Returns the rig and how many blocks of it were dirty.
fn cut_while_warm(mode: Mode) -> (Rig, Stats) {
    let rig = Rig::new(mode, 24 << 20, BLOCKS);
    let open = rig.open();
    for number in 0..BLOCKS {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, 0));
    }
    for number in (0..BLOCKS).step_by(100) {
        write(&*open.device, number, 1).unwrap();
    }
    open.device.flush().unwrap();
    // Long enough for every commit, for intents to be cleared, and for dirty data to be written.
    rig.pass_ms(&open, 120_000);
    open.device.flush().unwrap();
    let stats = open.cache.stats();
    rig.cut(open);
    (rig, stats)
}

fn stays_warm(mode: Mode) {
    let (rig, before) = cut_while_warm(mode);
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    let writes = Counter::new(&rig.origin_disk, Request::Write);
    let open = rig.open();
    let reads_of_attach = reads.count();
    let version = |number: u64| u64::from(number.is_multiple_of(100));
    for number in 0..BLOCKS {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, version(number)));
    }
    let missed = reads.count() - reads_of_attach;
    assert!(missed * 100 <= BLOCKS, "{mode}: {missed} of {BLOCKS} blocks are misses: {before:?}");
    assert!(open.cache.stats().hits * 100 >= BLOCKS * 99, "{:?}", open.cache.stats());
    rig.pass_ms(&open, 120_000);
    open.device.flush().unwrap();
    assert_eq!(writes.count(), 0, "{mode}: clean blocks were written to the origin");
    open.cache.close().unwrap();
    assert_eq!(writes.count(), 0, "{mode}: clean blocks were written to the origin at the end");
}

#[test]
fn write_through_stays_warm_over_a_cut() {
    stays_warm(Mode::WriteThrough);
}

#[test]
fn write_back_stays_warm_over_a_cut() {
    stays_warm(Mode::WriteBack);
}

#[test]
fn write_around_stays_warm_over_a_cut() {
    stays_warm(Mode::WriteAround);
}

#[test]
fn a_write_in_flight_costs_no_more_than_its_region() {
    let rig = Rig::new(Mode::WriteThrough, 24 << 20, BLOCKS);
    let open = rig.open();
    for number in 0..BLOCKS {
        read(&*open.device, number).unwrap();
    }
    rig.pass_ms(&open, 120_000);
    open.device.flush().unwrap();
    write(&*open.device, 1500, 1).unwrap();
    rig.cut(open);
    let open = rig.open();
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    for number in 0..BLOCKS {
        let got = read(&*open.device, number).unwrap();
        assert!(is_of(&got, number, 0..=u64::from(number == 1500)), "block {number}");
    }
    let missed = reads.count();
    assert!((1..=BLOCKS / 5).contains(&missed), "{missed} of {BLOCKS} blocks are misses");
}

/// The seed's write for each block, the kernel's rewrite of everything: here a restart costs the
/// origin nothing at all.
#[test]
fn a_clean_restart_reads_and_writes_nothing_of_the_origin() {
    let rig = Rig::new(Mode::WriteBack, 24 << 20, 500);
    let open = rig.open();
    for number in 0..500 {
        read(&*open.device, number).unwrap();
    }
    open.cache.close().unwrap();
    drop(open);
    let writes = Counter::new(&rig.origin_disk, Request::Write);
    let open = rig.open();
    // Attaching reads a few places, to see that the origin is the one it was.
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    for number in 0..500 {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, 0));
    }
    assert_eq!(reads.count(), 0);
    open.cache.close().unwrap();
    assert_eq!(writes.count(), 0);
}

/// A power cut after writes all over the origin: everything is dropped at once, which is more
/// than a short log takes in one batch. The cache goes on, and is warm again.
#[test]
fn a_cache_that_drops_everything_at_recovery_goes_on() {
    let rig = Rig::new(Mode::WriteThrough, 17 << 20, 4096);
    let open = rig.open();
    for round in 0..2 {
        for number in 0..4096 {
            read(&*open.device, number).unwrap();
            if number % 64 == 0 {
                write(&*open.device, number, round).unwrap();
            }
        }
        open.device.flush().unwrap();
        rig.pass_ms(&open, 2000);
    }
    for number in (0..4096).step_by(64) {
        write(&*open.device, number, 2).unwrap();
    }
    open.device.flush().unwrap();
    rig.cut(open);
    let open = rig.open();
    for number in 0..4096 {
        let version = if number % 64 == 0 { 2 } else { 0 };
        assert_eq!(read(&*open.device, number).unwrap(), block(number, version));
    }
    rig.pass_ms(&open, 20_000);
    open.device.flush().unwrap();
    write(&*open.device, 5, 3).unwrap();
    let reads = Counter::new(&rig.origin_disk, Request::Read);
    for number in (0..4096).rev() {
        read(&*open.device, number).unwrap();
    }
    assert!(reads.count() < 400, "{} misses: {:?}", reads.count(), open.cache.stats());
    open.cache.close().unwrap();
}

/// A cache that gets another policy keeps all that is in it, and in its order.
#[test]
fn a_switch_of_the_policy_keeps_the_cache_warm() {
    let kinds = [PolicyKind::S3Fifo, PolicyKind::WTinyLfu, PolicyKind::Lru, PolicyKind::SEED];
    for from in kinds {
        for to in kinds {
            let what = format!("from {from} to {to}");
            let create = CreateOptions { policy: from, ..CreateOptions::default() };
            let rig = Rig::with(Mode::WriteBack, 2 << 20, 2000, &create);
            let open = rig.open();
            for number in 0..100 {
                read(&*open.device, number).unwrap();
                write(&*open.device, 100 + number, 1).unwrap();
            }
            open.device.flush().unwrap();
            let switched = open.cache.set_policy(to);
            if from != to && matches!(to, PolicyKind::SetAssociative { .. }) {
                assert!(matches!(switched, Err(Error::Invalid(_))), "{what}");
                continue;
            }
            switched.unwrap_or_else(|e| panic!("{what}: {e}"));
            open.cache.check_invariants();
            let warm = |device: &dyn BlockDevice, what: &str| {
                let reads = Counter::new(&rig.origin_disk, Request::Read);
                for number in 0..100 {
                    assert!(read(device, number).unwrap() == block(number, 0), "{what}");
                    assert!(
                        read(device, 100 + number).unwrap() == block(100 + number, 1),
                        "{what}"
                    );
                }
                assert_eq!(reads.count(), 0, "{what}");
            };
            warm(&*open.device, &what);
            rig.cut(open);
            let open = rig.open();
            assert_eq!(open.cache.policy(), to, "{what}");
            warm(&*open.device, &format!("{what}, after a power cut"));
            // And it evicts.
            for number in 0..2000 {
                read(&*open.device, number).unwrap();
            }
            assert!(open.cache.stats().evictions > 0, "{what}");
            open.cache.check_invariants();
            open.cache.close().unwrap();
        }
    }
}
