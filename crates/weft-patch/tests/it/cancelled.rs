//! Operations that free blocks, and so cancel what is to be written, while others sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_block::{BlockDevice, MemoryDevice};
use weft_patch::jbd2::{Features, FormatOptions, LogMap, format_journal_superblock};
use weft_patch::{BlockNr, Engine, JournalMode, Options, Owner, PatchId, Policy};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 192;
const LOG_FROM: u64 = 64;
const INODE: BlockNr = BlockNr(1);
const DATA: BlockNr = BlockNr(9);
const FILE: Owner = Owner(5);

fn engine(policy: Policy) -> Arc<Engine> {
    let device = Arc::new(MemoryDevice::new(BLOCKS * BLOCK as u64));
    let options = Options { policy, background: false, ..Options::default() };
    if !matches!(policy, Policy::Journal(_)) {
        return Engine::new(device, BLOCK as u32, options).unwrap();
    }
    let log = FormatOptions {
        block_bytes: BLOCK as u32,
        len_blocks: (BLOCKS - LOG_FROM) as u32,
        superblock_at: 0,
        uuid: [7; 16],
        features: Features::default(),
        users: vec![],
    };
    let superblock = format_journal_superblock(&log).unwrap();
    device.write_at(&superblock, LOG_FROM * BLOCK as u64).unwrap();
    let blocks: Vec<u64> = (LOG_FROM..BLOCKS).collect();
    let map = LogMap::from_blocks(device.clone(), BLOCK as u32, &blocks).unwrap();
    Engine::with_journal(device, BLOCK as u32, options, map).unwrap()
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
