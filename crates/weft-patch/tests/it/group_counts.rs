//! Patchgroups: counts of writes and flushes, and what does not mix. The order is the subject of
//! `patchgroups`.

use crate::log::{log_in, make_log};
use crate::patchgroups::{BLOCK, BLOCKS, LOG, META, POLICIES};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weft_block::{BlockDevice, MemoryDevice};
use weft_patch::jbd2::Features;
use weft_patch::{
    BlockNr, Engine, JournalMode, Options, Owner, PatchGroup, PatchGroupError, Policy, recover,
};

/// Returns a device and an engine on it, for tests that count.
pub(crate) fn engine_of(policy: Policy) -> (Arc<MemoryDevice>, Arc<Engine>) {
    let device = Arc::new(MemoryDevice::new((BLOCK * BLOCKS) as u64));
    let options = Options { policy, background: false, ..Options::default() };
    let engine = if matches!(policy, Policy::Journal(_)) {
        let log = make_log(device.clone(), BLOCK, BLOCKS - LOG..BLOCKS, Features::revoke());
        Engine::with_journal(device.clone(), BLOCK as u32, options, log)
    } else {
        Engine::new(device.clone(), BLOCK as u32, options)
    };
    (device, engine.unwrap())
}

/// Returns the volume as a power cut now would leave it, after its recovery.
pub(crate) fn volume_after_recovery(device: &MemoryDevice) -> Vec<u8> {
    let mut image = vec![0; BLOCK * BLOCKS];
    device.read_at(&mut image, 0).unwrap();
    let copy = Arc::new(MemoryDevice::new(image.len() as u64));
    copy.write_at(&image, 0).unwrap();
    let log = log_in(copy.clone(), BLOCK, BLOCKS - LOG..BLOCKS);
    recover(&*copy, BLOCK as u32, log).unwrap();
    copy.read_at(&mut image, 0).unwrap();
    image
}

#[test]
fn those_who_watch_a_group_are_told_once_it_is_durable() {
    for policy in POLICIES {
        let (_, engine) = engine_of(policy);
        let group = PatchGroup::new(&engine);
        let told = Arc::new(AtomicU32::new(0));
        let watch = || {
            let told = Arc::clone(&told);
            group.when_durable(move || {
                told.fetch_add(1, Ordering::Relaxed);
            });
        };
        let times = || told.load(Ordering::Relaxed);
        watch();
        assert_eq!(times(), 1, "{policy:?}: there is nothing");
        let engaged = group.engage().unwrap();
        let change = |nr| engine.begin(1).unwrap().write(BlockNr(nr), 0, &[7; 4], &[]).unwrap();
        engaged.enter_for(|| change(0));
        watch();
        change(1);
        assert_eq!(times(), 1, "{policy:?}");
        engine.sync().unwrap();
        assert!(group.is_durable());
        assert_eq!(times(), 2, "{policy:?}");
        // Later changes are not waited for.
        engaged.enter_for(|| change(2));
        watch();
        group.sync().unwrap();
        engaged.enter_for(|| change(3));
        assert_eq!((times(), group.is_durable()), (3, false), "{policy:?}");
        watch();
        drop((engaged, group));
        engine.shutdown().unwrap();
        assert_eq!(times(), 4, "{policy:?}: a shutdown writes");
    }
}

#[test]
fn a_sync_of_a_group_writes_what_it_needs_and_no_more() {
    for policy in [Policy::Soft, Policy::Async] {
        let (_, engine) = engine_of(policy);
        let write = |nr: u64| {
            engine.begin(1).unwrap().write(BlockNr(nr), 0, b"new", &[]).unwrap();
        };
        let groups: Vec<PatchGroup> = (0..100).map(|_| PatchGroup::new(&engine)).collect();
        for (nr, group) in groups.iter().enumerate() {
            group.engage().unwrap().enter_for(|| write(nr as u64));
        }
        let last = PatchGroup::new(&engine);
        last.depend(&groups[7]).unwrap();
        last.engage().unwrap().enter_for(|| write(100));
        last.sync().unwrap();
        let counters = engine.counters();
        assert_eq!((counters.blocks_written, counters.flushes), (2, 2), "{policy:?}");
        assert!(groups[7].is_durable() && !groups[8].is_durable());
        engine.sync().unwrap();
        assert!(groups.iter().all(PatchGroup::is_durable));
    }
}

#[test]
fn data_of_a_block_that_a_later_group_journals_is_synced_too() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered] {
        let (device, engine) = engine_of(Policy::Journal(mode));
        let write = |slot: usize| {
            let mut op = engine.begin(1).unwrap();
            let (nr, bytes) = (BlockNr(META as u64), [slot as u8 + 1; 4]);
            op.write_data(nr, Owner(1), slot * 4, &bytes, false, &[]).unwrap();
        };
        let (first, second) = (PatchGroup::new(&engine), PatchGroup::new(&engine));
        first.engage().unwrap().enter_for(|| write(0));
        second.depend(&first).unwrap();
        second.engage().unwrap().enter_for(|| write(1));
        first.sync().unwrap();
        assert!(first.is_durable());
        // As after a power cut: the engine writes no more.
        assert_eq!(volume_after_recovery(&device)[META * BLOCK..][..4], [1; 4], "{mode:?}");
    }
}

#[test]
fn groups_one_after_the_other_cost_a_journal_no_flushes() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let (_, engine) = engine_of(Policy::Journal(mode));
        let group = PatchGroup::new(&engine);
        let engaged = group.engage().unwrap();
        for number in 0..1000_u32 {
            engaged.enter_for(|| {
                let mut op = engine.begin(3).unwrap();
                op.write(BlockNr(u64::from(number % 2)), 0, &number.to_le_bytes(), &[]).unwrap();
                let data = BlockNr(META as u64 + u64::from(number % 3));
                op.write_data(data, Owner(1), 0, &number.to_le_bytes(), false, &[]).unwrap();
            });
            group.barrier();
        }
        group.sync().unwrap();
        let counters = engine.counters();
        assert_eq!((counters.transactions, counters.flushes), (1, 2), "{mode:?}");
    }
}

/// Returns true if a block was ever written that a group has got, filled and freed, in one step or with
/// others between.
fn is_written(policy: Policy, steps: bool) -> bool {
    let (device, engine) = engine_of(policy);
    let group = PatchGroup::new(&engine);
    let engaged = group.engage().unwrap();
    let data = BlockNr(META as u64 + 1);
    engaged.enter_for(|| {
        let mut op = engine.begin(2).unwrap();
        let filled = op.write_data(data, Owner(1), 0, &[7; BLOCK], true, &[]).unwrap();
        op.write(BlockNr(0), 0, &[1; 4], &[filled]).unwrap();
    });
    if steps {
        group.barrier();
        engaged.enter_for(|| engine.begin(1).unwrap().write(BlockNr(1), 0, &[1; 4], &[]).unwrap());
        group.barrier();
    }
    engaged.enter_for(|| {
        let mut op = engine.begin(2).unwrap();
        let cleared = op.write(BlockNr(0), 0, &[0; 4], &[]).unwrap();
        op.free(data, cleared);
    });
    assert!(!group.is_durable());
    drop(engaged);
    group.sync().unwrap();
    engine.sync().unwrap();
    let mut content = [0; BLOCK];
    device.read_at(&mut content, data.0 * BLOCK as u64).unwrap();
    content == [7; BLOCK]
}

#[test]
fn what_comes_and_goes_within_a_step_is_never_written() {
    for policy in POLICIES {
        assert!(!is_written(policy, false), "{policy:?}");
        // A journal has all steps in one transaction. Without one, the step between needs the first.
        let ordered = matches!(policy, Policy::Soft | Policy::Async);
        assert_eq!(is_written(policy, true), ordered, "{policy:?}");
    }
}

/// A group that has written to a block of others, which is then freed, is durable once the removal is.
#[test]
fn a_group_whose_block_was_freed_is_durable_once_the_removal_is() {
    for policy in POLICIES {
        let (_, engine) = engine_of(policy);
        let (group, other) = (PatchGroup::new(&engine), PatchGroup::new(&engine));
        let data = BlockNr(META as u64 + 1);
        {
            let mut op = engine.begin(2).unwrap();
            let filled = op.write_data(data, Owner(1), 0, &[6; BLOCK], true, &[]).unwrap();
            op.write(BlockNr(0), 0, &[1; 4], &[filled]).unwrap();
        }
        let engaged = group.engage().unwrap();
        engaged.enter_for(|| {
            let mut op = engine.begin(1).unwrap();
            op.write_data(data, Owner(1), 0, &[7; 4], false, &[]).unwrap();
        });
        let told = Arc::new(AtomicU32::new(0));
        let tells = Arc::clone(&told);
        group.when_durable(move || {
            tells.fetch_add(1, Ordering::Relaxed);
        });
        let free = || {
            let mut op = engine.begin(2).unwrap();
            let cleared = op.write(BlockNr(0), 0, &[0; 4], &[]).unwrap();
            op.free(data, cleared);
        };
        if matches!(policy, Policy::Journal(_)) {
            // Another process removes the file.
            free();
        } else {
            engaged.enter_for(free);
            other.engage().unwrap().enter_for(|| {
                engine.begin(1).unwrap().write(BlockNr(1), 0, b"else", &[]).unwrap();
            });
            other.sync().unwrap();
            assert_eq!(told.load(Ordering::Relaxed), 0, "{policy:?}");
        }
        assert!(!group.is_durable(), "{policy:?}");
        drop(engaged);
        group.sync().unwrap();
        assert!(group.is_durable(), "{policy:?}");
        engine.sync().unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 1, "{policy:?}");
    }
}

/// `WEFT_GROUPS` is the number of groups.
#[test]
fn many_groups_take_little_memory() {
    let many = std::env::var("WEFT_GROUPS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for policy in POLICIES {
        let (_, engine) = engine_of(policy);
        let mut last = PatchGroup::new(&engine);
        for number in 0..many {
            let next = PatchGroup::new(&engine);
            next.depend(&last).unwrap();
            if number % 10 == 0 {
                next.engage().unwrap().enter_for(|| {
                    let mut op = engine.begin(1).unwrap();
                    op.write(BlockNr(0), 8, &u32::to_le_bytes(number), &[]).unwrap();
                });
            }
            if number % 1000 == 0 {
                next.sync().unwrap();
            }
            last = next;
        }
        let counters = engine.counters();
        assert!(counters.patches_now < 400, "{policy:?}: {counters:?}");
        last.sync().unwrap();
        assert!(last.is_durable());
    }
}

#[test]
fn groups_of_other_volumes_and_threads_do_not_mix() {
    let ((_, one), (_, other)) = (engine_of(Policy::Soft), engine_of(Policy::Soft));
    let (a, b) = (PatchGroup::new(&one), PatchGroup::new(&other));
    assert_eq!(a.depend(&b), Err(PatchGroupError::OtherVolume));
    let engaged = a.engage().unwrap();
    let entered = engaged.enter();
    // A change of another volume, and one of a thread that is not in the group.
    other.begin(1).unwrap().write(BlockNr(0), 0, b"x", &[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| one.begin(1).unwrap().write(BlockNr(0), 0, b"x", &[]).unwrap());
    });
    assert!(a.is_durable() && b.is_durable(), "they have no changes");
    one.begin(1).unwrap().write(BlockNr(1), 0, b"x", &[]).unwrap();
    assert!(!a.is_durable());
    drop(entered);
    a.sync().unwrap();
    assert_eq!(one.counters().dirty_blocks_now, 1);
    let c = PatchGroup::new(&one);
    assert_eq!(c.depend(&a), Err(PatchGroupError::Engaged));
    drop(engaged);
    assert_eq!(c.depend(&a), Ok(()));
    assert_eq!(a.engage().unwrap_err(), PatchGroupError::Followed);
    assert_eq!(a.depend(&c), Err(PatchGroupError::Released));
}
