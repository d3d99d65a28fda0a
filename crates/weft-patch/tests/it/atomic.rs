//! Atomic and linear groups where others wait, by threads; the model of `patchgroups` cuts them at once.

use crate::group_counts::{engine_of, volume_after_recovery};
use crate::patchgroups::META;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_patch::{
    AtomicLimits, BlockNr, Engine, Error, JournalMode, Owner, PatchGroupError, Policy,
};
use weft_testing::yield_until;

const JOURNALS: [JournalMode; 3] = [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full];
const PATIENT: AtomicLimits =
    AtomicLimits { max_blocks: u32::MAX, open_max: Duration::from_secs(3600) };
const BRIEF: AtomicLimits = AtomicLimits { max_blocks: u32::MAX, open_max: Duration::ZERO };

/// Changes a block of metadata and one of data, which their file has had for long.
fn change(engine: &Engine, value: u8) -> Result<(), Error> {
    let mut op = engine.begin(4)?;
    op.write(BlockNr(u64::from(value % 2)), 0, &[value; 4], &[])?;
    op.write_data(BlockNr(META as u64), Owner(1), usize::from(value) * 4, &[value; 4], false, &[])?;
    Ok(())
}

#[test]
fn a_sync_waits_for_the_end_of_an_atomic_group() {
    for mode in JOURNALS {
        let (device, engine) = engine_of(Policy::Journal(mode));
        let group = engine.patchgroups().create_atomic(PATIENT).unwrap();
        let engaged = group.engage().unwrap();
        engaged.enter_for(|| change(&engine, 1)).unwrap();
        let synced = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                engine.sync().unwrap();
                synced.store(true, Ordering::Release);
            });
            yield_until("the sync waits", || engine.counters().syncs > 0);
            // The volume that is written meanwhile shows nothing of the group.
            for _ in 0..20 {
                engine.write_back().unwrap();
                let volume = volume_after_recovery(&device);
                assert!(volume[..(META + 1) * 1024].iter().all(|&byte| byte == 0), "{mode:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            engaged.enter_for(|| change(&engine, 2)).unwrap();
            assert!(!synced.load(Ordering::Acquire), "{mode:?}");
            drop(engaged);
            group.commit().unwrap();
        });
        assert!(group.is_durable());
        let volume = volume_after_recovery(&device);
        assert_eq!((volume[0], volume[1024]), (2, 1), "{mode:?}");
        assert_eq!(volume[META * 1024 + 4..][..8], [1, 1, 1, 1, 2, 2, 2, 2], "{mode:?}");
        engine.shutdown().unwrap();
    }
}

#[test]
fn a_group_that_takes_too_long_is_cut_and_told() {
    let (_, engine) = engine_of(Policy::Journal(JournalMode::Ordered));
    let group = engine.patchgroups().create_atomic(BRIEF).unwrap();
    let engaged = group.engage().unwrap();
    engaged.enter_for(|| change(&engine, 1)).unwrap();
    assert!(group.atomic_blocks_left().is_some(), "nobody waits yet");
    engine.sync().unwrap();
    assert_eq!(group.atomic_blocks_left(), None);
    let refused = engaged.enter_for(|| change(&engine, 2)).unwrap_err();
    assert!(matches!(refused, Error::PatchGroup(PatchGroupError::Cut)), "{refused}");
    assert_eq!(group.commit(), Err(PatchGroupError::Engaged));
    drop(engaged);
    assert_eq!(group.commit(), Err(PatchGroupError::Cut));
    assert!(matches!(group.sync(), Err(Error::PatchGroup(PatchGroupError::Cut))));
    let next = engine.patchgroups().create();
    assert_eq!(next.depend(&group), Err(PatchGroupError::Cut));
    engine.shutdown().unwrap();
}

#[test]
fn an_operation_that_is_too_large_changes_nothing() {
    let (_, engine) = engine_of(Policy::Journal(JournalMode::Full));
    let limits = AtomicLimits { max_blocks: 20, ..PATIENT };
    let group = engine.patchgroups().create_atomic(limits).unwrap();
    assert_eq!(group.atomic_blocks_left(), Some(20));
    let engaged = group.engage().unwrap();
    for (nr, left) in [(0, 19), (1, 18), (1, 18)] {
        let write = || engine.begin(4)?.write(BlockNr(nr), 0, &[7; 4], &[]);
        engaged.enter_for(write).unwrap();
        assert_eq!(group.atomic_blocks_left(), Some(left), "each block counts once");
    }
    let refused = engaged.enter_for(|| engine.begin(19).map(drop)).unwrap_err();
    assert!(matches!(refused, Error::AtomicTooLarge { needed: 19, left: 18 }), "{refused}");
    drop(engaged);
    group.sync().unwrap();
    assert_eq!(group.atomic_blocks_left(), None);
    assert_eq!(engine.counters().transactions, 1);
}

#[test]
fn a_group_that_is_dropped_holds_nobody_up() {
    let (_, engine) = engine_of(Policy::Journal(JournalMode::Ordered));
    let group = engine.patchgroups().create_atomic(PATIENT).unwrap();
    group.engage().unwrap().enter_for(|| change(&engine, 1)).unwrap();
    drop(group);
    engine.sync().unwrap();
    // One without changes neither, nor one that another depends on.
    let empty = engine.patchgroups().create_atomic(PATIENT).unwrap();
    let (before, after) = (engine.patchgroups().create_atomic(PATIENT).unwrap(), &empty);
    before.engage().unwrap().enter_for(|| change(&engine, 3)).unwrap();
    after.depend(&before).unwrap();
    engine.sync().unwrap();
    assert!(before.is_durable());
}

#[test]
fn groups_that_overlap_do_not_hold_a_sync_up_for_ever() {
    let (_, engine) = engine_of(Policy::Journal(JournalMode::Ordered));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for value in [1, 2] {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let group = engine.patchgroups().create_atomic(PATIENT).unwrap();
                    let engaged = group.engage().unwrap();
                    for _ in 0..3 {
                        engaged.enter_for(|| change(engine, value)).unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    drop(engaged);
                    group.commit().unwrap();
                }
            });
        }
        for _ in 0..20 {
            engine.sync().unwrap();
        }
        done.store(true, Ordering::Release);
    });
}

#[test]
fn where_no_journal_is_there_are_no_atomic_groups() {
    for policy in [Policy::Soft, Policy::Async] {
        let (_, engine) = engine_of(policy);
        let refused = engine.patchgroups().create_atomic(PATIENT).unwrap_err();
        assert_eq!(refused, PatchGroupError::NotAtomic);
    }
}

#[test]
fn a_linear_group_is_a_chain() {
    let (_, engine) = engine_of(Policy::Soft);
    let group = engine.patchgroups().create_linear();
    let engaged = group.engage().unwrap();
    for nr in 0..3 {
        engaged.enter_for(|| engine.begin(1)?.write(BlockNr(nr), 0, &[1; 4], &[])).unwrap();
    }
    group.sync().unwrap();
    assert_eq!(engine.counters().flushes, 3);
}
