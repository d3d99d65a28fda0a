//! Devices that fail: the origin, the cache's own, each kind of request.
//!
//! What is promised: an error is an error to whoever asked, and to nobody later; a request that
//! failed leaves its range old or new, and the same in the cache as on the origin; hits are served
//! while the origin is away and dirty data waits; a cache device that fails is left out when
//! nothing is dirty, and stops everything, with a clear error, when something is.

use crate::rig::{BLOCK, Rig, block, is_of, read, write};
use std::time::Duration;
use weft_block::{BlockDevice, Fault, Request, Rule};
use weft_cache::{CreateOptions, Mode, OpenOptions};
use weft_testing::wait_until;

const DIRTY: [Mode; 2] = [Mode::WriteBack, Mode::WriteOnly];

#[test]
fn a_failed_read_of_the_origin_fails_its_reader_and_nobody_else() {
    let rig = Rig::new(Mode::WriteThrough, 8 << 20, 64);
    let open = rig.open();
    for number in 0..16 {
        read(&*open.device, number).unwrap();
    }
    let bad = 20 * BLOCK as u64..21 * BLOCK as u64;
    rig.origin_disk.add(Rule::every(Request::Read, Fault::EIO).within(bad));
    assert_eq!(read(&*open.device, 20).unwrap_err().errno(), 5);
    // A reader of more than the bad block is told as well; its neighbours are not.
    assert!(open.device.read_at(&mut vec![0; 4 * BLOCK], 18 * BLOCK as u64).is_err());
    for number in (0..64).filter(|n| *n != 20) {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, 0), "block {number}");
    }
    rig.origin_disk.clear();
    assert_eq!(read(&*open.device, 20).unwrap(), block(20, 0), "nothing of the error is cached");
}

/// After a write that failed the range may be old or new, block for block, but the cache must not
/// hold anything but what the origin has.
#[test]
fn a_failed_write_of_the_origin_leaves_the_cache_as_the_origin_is() {
    let modes = [Mode::WriteThrough, Mode::WriteAround, Mode::WriteInvalidate, Mode::PassThrough];
    for mode in modes {
        for fault in [Fault::EIO, Fault::ENOSPC, Fault::Short(1536), Fault::Short(6000)] {
            let rig = Rig::new(mode, 8 << 20, 32);
            let mut open = rig.open();
            for number in 0..32 {
                read(&*open.device, number).unwrap();
            }
            rig.origin_disk.add(Rule::nth(Request::Write, 1, fault));
            let data = [block(8, 1), block(9, 1), block(10, 1)].concat();
            let error = open.device.write_at(&data, 8 * BLOCK as u64).unwrap_err();
            let errno = if fault == Fault::ENOSPC { 28 } else { 5 };
            assert_eq!(error.errno(), errno, "{mode} {fault:?}");
            for _ in 0..2 {
                for number in 0..32 {
                    let origin = rig.origin_block(number);
                    assert!(
                        read(&*open.device, number).unwrap() == origin,
                        "{mode} {fault:?} {number}"
                    );
                }
                // The same is true after a power cut, once the origin kept what it has.
                rig.origin_disk.flush().unwrap();
                rig.cut(open);
                open = rig.open();
            }
            // And the cache goes on working.
            write(&*open.device, 9, 2).unwrap();
            assert_eq!(read(&*open.device, 9).unwrap(), block(9, 2));
        }
    }
}

#[test]
fn a_failed_flush_of_the_origin_is_told_and_cleans_nothing() {
    let rig = Rig::new(Mode::WriteThrough, 8 << 20, 32);
    let open = rig.open();
    write(&*open.device, 1, 1).unwrap();
    let rule = rig.origin_disk.add(Rule::every(Request::Flush, Fault::EIO));
    assert_eq!(open.device.flush().unwrap_err().errno(), 5);
    assert_eq!(open.device.flush().unwrap_err().errno(), 5, "and it stays told");
    rig.origin_disk.remove(rule);
    open.device.flush().unwrap();
    assert_eq!(rig.durable_origin_block(1), block(1, 1));

    for mode in DIRTY {
        let rig = Rig::new(mode, 8 << 20, 32);
        let open = rig.open();
        for number in 0..32 {
            write(&*open.device, number, 1).unwrap();
        }
        open.device.flush().expect("write-back needs no origin for a flush");
        let rule = rig.origin_disk.add(Rule::every(Request::Flush, Fault::EIO));
        rig.pass_ms(&open, 600_000);
        assert!(open.cache.write_back_all().is_err(), "{mode}");
        // The origin has the data and not durably: it is still dirty, and a cut proves it.
        rig.cut(open);
        rig.origin_disk.remove(rule);
        let open = rig.open();
        open.cache.write_back_all().unwrap();
        for number in 0..32 {
            assert_eq!(rig.durable_origin_block(number), block(number, 1), "{mode}");
        }
    }
}

/// The origin is flushed behind, fails to, and loses what was written: the user is told by the
/// next flush, though that one works, and nothing that is lost is served from the cache.
#[test]
fn a_flush_that_failed_behind_is_told_by_the_next_one() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::WriteInvalidate, Mode::PassThrough] {
        let rig = Rig::new(mode, 8 << 20, 512);
        let mut open = rig.open();
        for number in 0..512 {
            read(&*open.device, number).unwrap();
        }
        rig.pass_ms(&open, 60_000);
        for number in 300..332 {
            write(&*open.device, number, 1).unwrap();
        }
        rig.origin_disk.add(Rule::every(Request::Flush, Fault::EIO));
        rig.pass_ms(&open, 60_000);
        // The server has rebooted, and some of it is gone.
        rig.origin_disk.inner().crash().unwrap();
        rig.origin_disk.inner().power_on();
        rig.origin_disk.clear();
        let told = open.device.flush().expect_err("it is told").to_string();
        assert!(told.contains("1048576") && told.contains("may be lost"), "{mode}: {told}");
        open.device.flush().expect("once");
        for _ in 0..2 {
            for number in 0..512 {
                let got = read(&*open.device, number).unwrap();
                assert!(got == rig.origin_block(number), "{mode}: block {number}");
            }
            rig.pass_ms(&open, 60_000);
            rig.cut(open);
            open = rig.open();
        }
    }
}

/// Between a batch of write-back and its flush, somebody else's flush fails and takes the batch
/// along: it stays dirty, though its own flush works.
#[test]
fn a_batch_that_another_flush_may_have_lost_stays_dirty() {
    let rig = Rig::new(Mode::WriteBack, 8 << 20, 64);
    let open = rig.open();
    for number in 0..8 {
        write(&*open.device, number, 1).unwrap();
    }
    open.device.flush().unwrap();
    // The batch's last write takes its time; meanwhile the mode changes, and a flush fails.
    let slow = Fault::Delay(Duration::from_secs(1));
    let held = rig.origin_disk.add(Rule::nth(Request::Write, 1, slow));
    rig.origin_disk.add(Rule::nth(Request::Flush, 1, Fault::EIO));
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| open.cache.write_back_all());
        wait_until("the batch is being written", || rig.origin_disk.fired(held) > 0);
        // A write around the cache, so that there is something to be flushed.
        open.device.discard(32 * BLOCK as u64, BLOCK as u64).unwrap();
        open.device.flush().expect_err("it fails");
        batch.join().unwrap().expect_err("the batch is in doubt");
    });
    assert_eq!(open.cache.stats().dirty_bytes, 8 * BLOCK as u64, "all of it is still dirty");
    open.cache.write_back_all().unwrap();
    for number in 0..8 {
        assert_eq!(rig.durable_origin_block(number), block(number, 1));
    }
}

/// An origin that cannot be flushed at the end may lose what was written to it: what the cache
/// holds of that must not be believed at the next beginning.
#[test]
fn an_origin_that_fails_its_last_flush_is_not_taken_to_have_everything() {
    let rig = Rig::new(Mode::WriteThrough, 8 << 20, 64);
    let open = rig.open();
    for number in 0..64 {
        read(&*open.device, number).unwrap();
    }
    rig.pass_ms(&open, 60_000);
    for number in 0..8 {
        write(&*open.device, number, 1).unwrap();
    }
    let rule = rig.origin_disk.add(Rule::every(Request::Flush, Fault::EIO));
    rig.pass_ms(&open, 60_000);
    drop(open.cache.close());
    rig.cut(open);
    rig.origin_disk.remove(rule);
    let open = rig.open();
    for number in 0..64 {
        assert!(read(&*open.device, number).unwrap() == rig.origin_block(number), "{number}");
    }
}

#[test]
fn while_the_origin_is_away_hits_are_served_and_dirty_data_waits() {
    let options = OpenOptions {
        dirty_limit_bytes: Some(64 * BLOCK as u64),
        background: false,
        ..OpenOptions::default()
    };
    for mode in DIRTY {
        let mut rig = Rig::new(mode, 8 << 20, 256);
        rig.options = options.clone();
        let open = rig.open();
        for number in 0..32 {
            read(&*open.device, number).unwrap();
            write(&*open.device, number + 100, 1).unwrap();
        }
        rig.origin_disk.add(Rule::every(Request::Any, Fault::EIO));
        let filled = if mode.fills() { 32 } else { 0 };
        for number in 0..filled {
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 0), "a hit");
        }
        for number in 100..132 {
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 1), "a dirty hit");
        }
        assert!(read(&*open.device, 200).is_err(), "a miss fails clearly");
        for number in 100..140 {
            write(&*open.device, number, 2).unwrap();
        }
        open.device.flush().unwrap();
        rig.pass_ms(&open, 600_000);
        for number in 100..140 {
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 2));
        }
        rig.origin_disk.clear();
        rig.pass_ms(&open, 600_000);
        open.cache.write_back_all().unwrap();
        for number in 100..140 {
            assert_eq!(rig.durable_origin_block(number), block(number, 2), "{mode}");
        }
        assert_eq!(open.cache.stats().dirty_bytes, 0);
    }
}

/// A cache full of dirty data before an origin that takes nothing: writes fail or wait, and what
/// was acknowledged is kept.
#[test]
fn a_cache_full_of_dirty_data_pushes_back_and_loses_nothing() {
    let rig = Rig::new(Mode::WriteBack, 2 << 20, 2048);
    let open = rig.open();
    let rule = rig.origin_disk.add(Rule::every(Request::Write, Fault::EIO));
    let mut acked = 0;
    for number in 0..2048 {
        match write(&*open.device, number, 1) {
            Ok(()) => acked = number + 1,
            Err(_) => break,
        }
    }
    assert!((16..1024).contains(&acked), "{acked} blocks were taken by a cache of 2 MiB");
    // Reads of what is there, dirty or not, go on.
    for number in 0..acked {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, 1));
    }
    let beyond = read(&*open.device, 1500).unwrap();
    assert_eq!(beyond, block(1500, 0));
    open.device.flush().unwrap();
    rig.cut(open);
    let open = rig.open();
    for number in 0..acked {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, 1));
    }
    // The origin takes writes again: so does the cache.
    rig.origin_disk.remove(rule);
    for number in 0..2048 {
        write(&*open.device, number, 2).unwrap();
    }
    open.cache.write_back_all().unwrap();
    for number in 0..2048 {
        assert_eq!(rig.durable_origin_block(number), block(number, 2));
    }
}

#[test]
fn a_cache_device_that_fails_is_left_out_when_nothing_is_dirty() {
    let kinds = [
        (Request::Read, Fault::EIO),
        (Request::Write, Fault::EIO),
        (Request::Write, Fault::ENOSPC),
        (Request::Flush, Fault::EIO),
        (Request::Any, Fault::EIO),
    ];
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::WriteInvalidate] {
        for (on, fault) in kinds {
            let rig = Rig::new(mode, 8 << 20, 128);
            let open = rig.open();
            for number in 0..64 {
                read(&*open.device, number).unwrap();
            }
            rig.cache_disk.add(Rule::every(on, fault));
            for round in 1..4 {
                for number in 0..128 {
                    if number % 3 == 0 {
                        write(&*open.device, number, round).unwrap_or_else(|e| {
                            panic!("{mode} {on:?} {fault:?}: write {number}: {e}")
                        });
                    }
                }
                for number in 0..128 {
                    let version = if number % 3 == 0 { round } else { 0 };
                    let got = read(&*open.device, number)
                        .unwrap_or_else(|e| panic!("{mode} {on:?} {fault:?}: read {number}: {e}"));
                    assert!(got == block(number, version), "{mode} {on:?} {fault:?} {number}");
                    assert!(rig.origin_block(number) == block(number, version));
                }
                open.device
                    .flush()
                    .unwrap_or_else(|e| panic!("{mode} {on:?} {fault:?}: flush: {e}"));
                assert!(rig.durable_origin_block(0) == block(0, round), "the flush was one");
                rig.pass_ms(&open, 20_000);
            }
        }
    }
}

/// The disk stumbles for a moment and is well again; by then the origin has been changed without
/// it. What it still holds must not be believed.
#[test]
fn a_cache_device_that_stumbled_is_not_believed_afterwards() {
    for on in [Request::Read, Request::Write, Request::Flush] {
        for times in [1, 3, 20] {
            let rig = Rig::new(Mode::WriteThrough, 8 << 20, 128);
            let open = rig.open();
            for number in 0..64 {
                read(&*open.device, number).unwrap();
            }
            rig.pass_ms(&open, 60_000);
            open.device.flush().unwrap();
            rig.cache_disk.add(Rule { times: Some(times), ..Rule::every(on, Fault::EIO) });
            for number in 0..64 {
                write(&*open.device, number, 1).unwrap();
                assert_eq!(read(&*open.device, number).unwrap(), block(number, 1));
            }
            open.device.flush().unwrap();
            rig.pass_ms(&open, 60_000);
            rig.cut(open);
            rig.cache_disk.clear();
            let open = rig.open();
            for number in 0..64 {
                let got = read(&*open.device, number).unwrap();
                assert!(got == block(number, 1), "{on:?} x{times}: block {number} is stale");
            }
        }
    }
}

#[test]
fn a_cache_device_that_fails_with_dirty_data_stops_clearly_and_keeps_what_was_flushed() {
    for on in [Request::Write, Request::Flush, Request::Any] {
        let rig = Rig::new(Mode::WriteBack, 8 << 20, 128);
        let open = rig.open();
        for number in 0..32 {
            write(&*open.device, number, 1).unwrap();
        }
        open.device.flush().unwrap();
        let rule = rig.cache_disk.add(Rule::every(on, Fault::EIO));
        let mut told = 0;
        for number in 0..64 {
            told += u32::from(write(&*open.device, number, 2).is_err());
        }
        told += u32::from(open.device.flush().is_err());
        assert!(told > 0, "{on:?}: nobody was told");
        // What is read is right or an error, never the origin's old content.
        for number in 0..64 {
            if let Ok(got) = read(&*open.device, number) {
                let old = u64::from(number < 32);
                assert!(is_of(&got, number, [old, 2]), "{on:?}: block {number}");
            }
        }
        rig.cut(open);
        rig.cache_disk.remove(rule);
        let open = rig.open();
        for number in 0..32 {
            let got = read(&*open.device, number).unwrap();
            assert!(is_of(&got, number, [1, 2]), "{on:?}: block {number}");
        }
    }
}

/// A write is cut short that overwrites what was acknowledged and is nowhere else. It must not be
/// called durable: after a crash it would be taken for a commit that was cut short, and the version
/// before it be there again.
#[test]
fn dirty_data_that_was_overwritten_in_part_is_not_flushed() {
    for mode in DIRTY {
        let rig = Rig::new(mode, 8 << 20, 32);
        let open = rig.open();
        for number in 0..8 {
            write(&*open.device, number, 1).unwrap();
        }
        open.device.flush().unwrap();
        write(&*open.device, 20, 1).unwrap();
        rig.cache_disk.add(Rule::nth(Request::Write, 1, Fault::Short(1536)));
        assert_eq!(write(&*open.device, 20, 2).unwrap_err().errno(), 5, "{mode}");
        rig.cache_disk.clear();
        assert!(read(&*open.device, 20).is_err(), "{mode}: neither the one nor the other");
        assert_eq!(open.device.flush().unwrap_err().errno(), 5, "{mode}");
        rig.cut(open);
        let open = rig.open();
        for number in 0..8 {
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 1), "{mode} {number}");
        }
        assert_eq!(read(&*open.device, 20).unwrap(), block(20, 0), "{mode}: never durable");
    }
}

/// A commit failed with the cache device: nothing durable calls what it was about dirty, only clean as
/// it was before. The origin does not get it then, also if somebody asks for that.
#[test]
fn what_a_failed_commit_would_have_called_dirty_is_not_written_back() {
    for on in [Request::Write, Request::Flush] {
        let rig = Rig::new(Mode::WriteBack, 8 << 20, 128);
        let open = rig.open();
        for number in 0..64 {
            read(&*open.device, number).unwrap();
        }
        open.cache.checkpoint_always().unwrap();
        for number in 0..64 {
            write(&*open.device, number, 1).unwrap();
        }
        rig.cache_disk.add(Rule::every(on, Fault::EIO));
        assert!(open.device.flush().is_err(), "{on:?}");
        assert!(open.cache.write_back_all().is_err(), "{on:?}");
        rig.cut(open);
        rig.cache_disk.clear();
        let open = rig.open();
        for number in 0..64 {
            let got = read(&*open.device, number).unwrap();
            open.cache.write_back_all().unwrap();
            assert!(got == rig.origin_block(number), "{on:?}: block {number} is stale");
        }
    }
}

/// A flush that failed is not made good by the next one unless that one did the work.
#[test]
fn a_failed_flush_of_the_cache_is_told_and_the_next_one_is_honest() {
    for nth in 1..4 {
        for on in [Request::Write, Request::Flush] {
            let rig = Rig::new(Mode::WriteBack, 8 << 20, 128);
            let mut open = rig.open();
            for number in 0..32 {
                write(&*open.device, number, 1).unwrap();
            }
            rig.cache_disk.add(Rule::nth(on, nth, Fault::EIO));
            let mut flushed = open.device.flush().is_ok();
            for _ in 0..3 {
                flushed = open.device.flush().is_ok();
            }
            rig.cut(open);
            rig.cache_disk.clear();
            open = rig.open();
            for number in 0..32 {
                let got = read(&*open.device, number).unwrap();
                let from = u64::from(flushed);
                assert!(is_of(&got, number, from..2), "{on:?} {nth}, flushed {flushed}: {number}");
            }
        }
    }
}

/// Each single request of a run fails once; whatever then is told to have worked has worked.
#[test]
fn one_failure_anywhere_breaks_no_promise() {
    for mode in Mode::ALL {
        for on_cache in [true, false] {
            let mut fired = true;
            let mut nth = 1;
            while fired && nth < 400 {
                fired = one_failure(mode, on_cache, nth);
                nth += if nth < 40 { 1 } else { 7 };
            }
            assert!(on_cache || nth > 10, "{mode}: a run has more than ten requests");
        }
    }
}

/// Runs a short life in which request `nth` of a disk fails. Returns whether there was one.
fn one_failure(mode: Mode, on_cache: bool, nth: u64) -> bool {
    let create = CreateOptions { block_bytes: 8192, ..CreateOptions::default() };
    let mut rig = Rig::with(mode, 2 << 20, 48, &create);
    rig.options.dirty_limit_bytes = Some(16 * BLOCK as u64);
    let open = rig.open();
    let disk = if on_cache { &rig.cache_disk } else { &rig.origin_disk };
    let rule = disk.add(Rule::nth(Request::Any, nth, Fault::EIO));
    // By block: what was flushed, and the last that was written, acknowledged or not.
    let mut flushed = [0_u64; 48];
    let mut maybe: Vec<Vec<u64>> = vec![vec![0]; 48];
    for round in 1..4_u64 {
        for i in 0..24_u64 {
            let number = (i * 11 + round) % 48;
            maybe[number as usize].push(round);
            if write(&*open.device, number, round).is_ok() {
                maybe[number as usize] = vec![round];
            }
            let other = (i * 5) % 48;
            if let Ok(got) = read(&*open.device, other) {
                let right = is_of(&got, other, maybe[other as usize].iter().copied());
                assert!(right, "{mode} cache {on_cache} {nth}: block {other} in round {round}");
            }
        }
        if open.device.flush().is_ok() {
            for (number, versions) in maybe.iter().enumerate() {
                // A write that failed may have happened in part of the block; nothing is known.
                flushed[number] = if versions.len() == 1 { versions[0] } else { u64::MAX };
            }
        }
        rig.pass_ms(&open, 3_000);
    }
    let fired = disk.fired(rule) > 0;
    rig.cut(open);
    disk.clear();
    let open = rig.open();
    for number in 0..48_u64 {
        let got = read(&*open.device, number).unwrap();
        let version = flushed[number as usize];
        if version == u64::MAX {
            continue;
        }
        assert!(
            is_of(&got, number, version..4),
            "{mode} cache {on_cache} {nth}: block {number} lost version {version}"
        );
        assert!(read(&*open.device, number).unwrap() == got);
    }
    open.cache.write_back_all().unwrap();
    fired
}
