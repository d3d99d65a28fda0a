//! Operations that free blocks, and so cancel what is to be written, while others sync.

use crate::log::make_log;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_block::MemoryDevice;
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
