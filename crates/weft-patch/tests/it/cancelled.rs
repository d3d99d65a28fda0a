//! Operations that free blocks, and so cancel what is to be written, while others sync.

use crate::log::make_log;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_block::{BlockDevice, MemoryDevice};
use weft_patch::jbd2::Features;
use weft_patch::{BlockNr, Engine, JournalMode, Options, Owner, PatchId, Policy};

const BLOCK: usize = 1024;
const BLOCKS: usize = 192;
const LOG: Range<usize> = 64..BLOCKS;
const INODE: BlockNr = BlockNr(1);
const DATA: BlockNr = BlockNr(9);
const FILE: Owner = Owner(5);

fn engine(policy: Policy) -> Arc<Engine> {
    let device = Arc::new(MemoryDevice::new((BLOCKS * BLOCK) as u64));
    let options = Options { policy, background: false, ..Options::default() };
    if !matches!(policy, Policy::Journal(_)) {
        return Engine::new(device, BLOCK as u32, options).unwrap();
    }
    let log = make_log(device.clone(), BLOCK, LOG, Features::default());
    Engine::with_journal(device, BLOCK as u32, options, log).unwrap()
}

/// A sync whose last blocks are freed while it looks for what to write has nothing to write, which
/// is no error. (A writer on a nearly full volume, which syncs to get freed space, was told of "a
/// cycle of dependent blocks".)
#[test]
fn a_sync_whose_blocks_are_freed_has_nothing_left_to_write() {
    const ROUNDS: u32 = 30_000;
    let journal = Policy::Journal(JournalMode::Ordered);
    for policy in [Policy::Soft, Policy::Async, journal] {
        let engine = engine(policy);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (engine, ended) = (&engine, &ended);
            for of_file in [true, false] {
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        let synced =
                            if of_file { engine.sync_owner(FILE, &[]) } else { engine.sync() };
                        synced.unwrap_or_else(|e| panic!("{policy:?}: {e}"));
                    }
                });
            }
            for round in 0..ROUNDS {
                let mut op = engine.begin(4).unwrap();
                op.write_data(DATA, FILE, 0, &[1; BLOCK], true, &[]).unwrap();
                drop(op);
                let mut op = engine.begin(4).unwrap();
                // A pointer to the block was never written.
                if round % 16 == 0 {
                    let cleared = op.write(INODE, 0, &round.to_le_bytes(), &[]).unwrap();
                    op.free(DATA, cleared);
                } else {
                    op.free(DATA, PatchId::DURABLE);
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
        engine.shutdown().unwrap();
    }
}

/// A pointer to block 2 is set in block 1 for a change of block 3, and cleared after it. Returns the
/// counters after that, and the patches of the change of block 3 and of the clearing.
fn set_and_cleared(
    others: impl Fn(&mut weft_patch::Op<'_>, PatchId),
    cleared: [u8; 4],
) -> (weft_patch::Counters, PatchId, PatchId) {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::new(device.clone(), 1024, options).unwrap();
    let mut op = engine.begin(8).unwrap();
    // Something waits for another part of each block, so that the changes have undo data.
    for nr in [1, 3] {
        let other = op.write(BlockNr(nr), 512, &[1], &[]).unwrap();
        op.write(BlockNr(4), 512 + nr as usize, &[1], &[other]).unwrap();
    }
    let pointee = op.init(BlockNr(2), &[7; 1024], &[]).unwrap();
    let set = op.write(BlockNr(1), 8, &[2, 0, 0, 0], &[pointee]).unwrap();
    let change = op.write(BlockNr(3), 0, &[1; 8], &[set]).unwrap();
    others(&mut op, set);
    let clearing = op.write_alone(BlockNr(1), 8, &cleared, &[change]).unwrap();
    drop(op);
    let counters = engine.counters();
    engine.sync().unwrap();
    let mut content = [9; 4];
    device.read_at(&mut content, 1024 + 8).unwrap();
    assert_eq!(content, cleared);
    (counters, change, clearing)
}

#[test]
fn a_pointer_that_is_set_and_cleared_for_one_change_is_no_change() {
    let (counters, change, clearing) = set_and_cleared(|_, _| (), [0; 4]);
    assert_eq!((counters.taken_back, clearing), (1, change), "{counters:?}");
}

#[test]
fn a_pointer_that_another_change_waits_for_is_set_first() {
    let another = |op: &mut weft_patch::Op<'_>, set| {
        op.write(BlockNr(5), 0, &[1], &[set]).unwrap();
    };
    let (counters, change, clearing) = set_and_cleared(another, [0; 4]);
    assert_eq!(counters.taken_back, 0, "{counters:?}");
    assert_ne!(clearing, change);
    // An empty patch may stand for any.
    let joined = |op: &mut weft_patch::Op<'_>, set| {
        op.join(&[set]).unwrap();
    };
    assert_eq!(set_and_cleared(joined, [0; 4]).0.taken_back, 0);
}

#[test]
fn a_pointer_that_gets_another_value_is_a_change() {
    let (counters, ..) = set_and_cleared(|_, _| (), [3, 0, 0, 0]);
    assert_eq!(counters.taken_back, 0, "{counters:?}");
}

/// Gives a name in block 1 after an inode in block 2, and takes it back. Returns whether that was
/// possible, and the bytes of the name in each state that block 1 has on the device.
fn named_and_taken_back(soft: bool, between: impl Fn(&Engine, PatchId)) -> (bool, Vec<[u8; 4]>) {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::new(device.clone(), 1024, options).unwrap();
    let mut op = engine.begin(8).unwrap();
    if soft {
        // Something waits for another part of the block, so that its changes have undo data.
        let other = op.write(BlockNr(1), 512, &[1], &[]).unwrap();
        op.write(BlockNr(4), 0, &[1], &[other]).unwrap();
    }
    let inode = op.write(BlockNr(2), 0, &[1; 8], &[]).unwrap();
    let named = op.write(BlockNr(1), 8, &[2, 0, 0, 0], &[inode]).unwrap();
    drop(op);
    between(&engine, named);
    let mut op = engine.begin(1).unwrap();
    let done = op.take_back(BlockNr(1), 8, &[0; 4], named).unwrap();
    drop(op);
    let mut states = Vec::new();
    while engine.counters().dirty_blocks_now > 0 {
        engine.write_back().unwrap();
        let mut content = [9; 4];
        device.read_at(&mut content, 1024 + 8).unwrap();
        states.push(content);
    }
    (done, states)
}

#[test]
fn a_change_that_is_taken_back_is_never_written() {
    for soft in [false, true] {
        let (done, states) = named_and_taken_back(soft, |_, _| ());
        assert!(done);
        assert!(states.iter().all(|content| *content == [0; 4]), "{states:?}");
    }
}

#[test]
fn a_change_that_was_written_is_not_taken_back() {
    let (done, states) = named_and_taken_back(false, |engine, _| engine.sync().unwrap());
    assert!(!done && states.is_empty(), "{states:?}");
}

#[test]
fn a_change_on_which_another_was_made_is_not_taken_back() {
    for soft in [false, true] {
        let (done, states) = named_and_taken_back(soft, |engine, named| {
            let mut op = engine.begin(2).unwrap();
            let waits = op.write(BlockNr(3), 0, &[1], &[named]).unwrap();
            op.write(BlockNr(1), 8, &[3, 0, 0, 0], &[waits]).unwrap();
        });
        assert!(!done);
        assert_eq!(states.last(), Some(&[3, 0, 0, 0]));
    }
}
