//! The journal policy under random operations and power cuts.
//!
//! The volume has eight metadata blocks, a few data blocks and, behind them, the log. An operation
//! changes some metadata blocks, and may allocate or free a data block or turn a freed block into
//! metadata. After a cut at any flush, with any part of what was not flushed, recovery must leave
//! exactly the volume after some number of whole operations, no fewer than were synced.

use crate::device::Inspected;
use std::sync::{Arc, Mutex};
use weft_block::{BlockDevice, MemoryDevice, Rng};
use weft_patch::jbd2::{Features, FormatOptions, LogMap, format_journal_superblock};
use weft_patch::{BlockNr, Engine, JournalMode, Options, Owner, PatchId, Policy, recover};

const BLOCK: usize = 1024;
const META: usize = 8;
const SPARE: usize = 8;
const LOG: usize = 64;
const BLOCKS: usize = 1 + META + SPARE + LOG;

/// What each block must hold after an operation; `None`: nobody cares.
type Image = Vec<Option<Vec<u8>>>;

#[derive(Default)]
struct Model {
    /// After 0, 1, 2 .. operations.
    states: Vec<Image>,
    synced: usize,
}

fn log_map(device: Arc<dyn BlockDevice>) -> LogMap {
    let first = (BLOCKS - LOG) as u64;
    let blocks: Vec<u64> = (first..BLOCKS as u64).collect();
    LogMap::from_blocks(device, BLOCK as u32, &blocks).unwrap()
}

fn judge(image: &[u8], model: &Model, what: &str) {
    let device = Arc::new(MemoryDevice::new(image.len() as u64));
    device.write_at(image, 0).unwrap();
    recover(&*device, BLOCK as u32, log_map(device.clone()))
        .unwrap_or_else(|e| panic!("{what}: recovery failed: {e}"));
    let mut after = vec![0; image.len()];
    device.read_at(&mut after, 0).unwrap();
    let fits = |state: &Image| {
        state.iter().enumerate().all(|(nr, content)| {
            content.as_ref().is_none_or(|c| after[nr * BLOCK..(nr + 1) * BLOCK] == c[..])
        })
    };
    let whole = model.states[model.synced..].iter().any(fits);
    if !whole {
        let earlier = model.states.iter().rposition(fits);
        panic!(
            "{what}: of {} operations {} were synced, but the volume is {}",
            model.states.len() - 1,
            model.synced,
            earlier.map_or("torn".into(), |n| format!("as after {n}"))
        );
    }
}

fn run(seed: u64, mode: JournalMode, features: Features) -> u64 {
    let model: Arc<Mutex<Model>> = Arc::default();
    let seen = Arc::clone(&model);
    let device = Arc::new(Inspected::new(
        BLOCK * BLOCKS,
        Box::new(move |durable, pending| {
            let model = seen.lock().unwrap();
            if model.states.is_empty() {
                return;
            }
            let mut rng = Rng::new(seed ^ pending.len() as u64 ^ 0x55);
            // Nothing, everything, and a few random subsets torn at sectors.
            for cut in 0..5 {
                let mut image = durable.to_vec();
                for (offset, bytes) in pending {
                    for (i, sector) in bytes.chunks(512).enumerate() {
                        if cut == 1 || (cut > 1 && rng.index(2) == 0) {
                            let at = *offset as usize + i * 512;
                            image[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                judge(&image, &model, &format!("seed {seed} {mode:?}, cut {cut}"));
            }
        }),
    ));
    let log = FormatOptions {
        block_bytes: BLOCK as u32,
        len_blocks: LOG as u32,
        superblock_at: 0,
        uuid: [7; 16],
        features,
        users: vec![],
    };
    let superblock = format_journal_superblock(&log).unwrap();
    device.write_at(&superblock, ((BLOCKS - LOG) * BLOCK) as u64).unwrap();
    device.flush().unwrap();
    let options =
        Options { policy: Policy::Journal(mode), background: false, ..Options::default() };
    let engine =
        Engine::with_journal(device.clone(), BLOCK as u32, options, log_map(device.clone()))
            .unwrap();

    let mut rng = Rng::new(seed);
    let mut state: Image = vec![None; BLOCKS];
    for block in &mut state[1..=META] {
        *block = Some(vec![0; BLOCK]);
    }
    model.lock().unwrap().states.push(state.clone());
    // Spare blocks: free since this patch.
    let mut free: Vec<(usize, PatchId)> =
        (0..SPARE).map(|i| (1 + META + i, PatchId::DURABLE)).collect();
    let mut used: Vec<usize> = Vec::new();
    for number in 1..=(4 + rng.index(60)) as u32 {
        let mut op = engine.begin(6).unwrap();
        for _ in 0..=rng.index(3) {
            let nr = 1 + rng.index(META);
            let at = rng.index(BLOCK / 4) * 4;
            // Now and then what looks like a journal block, which must be escaped.
            let (at, value) = if rng.index(8) == 0 { (0, 0x9839_3BC0) } else { (at, number) };
            op.write(BlockNr(nr as u64), at, &value.to_le_bytes(), &[]).unwrap();
            state[nr].as_mut().unwrap()[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        if rng.index(2) == 0 && !free.is_empty() {
            let index = rng.index(free.len());
            let (nr, since) = free[index];
            if op.is_durable(since) {
                free.remove(index);
                used.push(nr);
                let content = vec![number as u8 | 1; BLOCK];
                let block = BlockNr(nr as u64);
                if rng.index(2) == 0 {
                    op.init(block, &content, &[]).unwrap();
                } else {
                    op.write_data(block, Owner(9), 0, &content, true, &[]).unwrap();
                }
                state[nr] = (mode != JournalMode::Metadata).then_some(content);
            }
        } else if !used.is_empty() && rng.index(2) == 0 {
            let nr = used.swap_remove(rng.index(used.len()));
            let cleared = op.write(BlockNr(1), 4, &number.to_le_bytes(), &[]).unwrap();
            state[1].as_mut().unwrap()[4..8].copy_from_slice(&number.to_le_bytes());
            op.free(BlockNr(nr as u64), cleared);
            free.push((nr, cleared));
            state[nr] = None;
        }
        model.lock().unwrap().states.push(state.clone());
        drop(op);
        match rng.index(12) {
            0 | 1 => {
                engine.sync().unwrap();
                let mut model = model.lock().unwrap();
                model.synced = model.states.len() - 1;
            }
            2 => {
                // Write-back in place, as age would cause it.
                engine.write_back().unwrap();
            }
            _ => {}
        }
    }
    engine.shutdown().unwrap();
    {
        let mut model = model.lock().unwrap();
        model.synced = model.states.len() - 1;
        judge(&device.durable(), &model, &format!("seed {seed}, after shutdown"));
    }
    engine.counters().transactions
}

fn sweep(mode: JournalMode, features: Features) {
    let first: u64 = std::env::var("WEFT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let many: u64 = std::env::var("WEFT_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(150);
    let mut transactions = 0;
    for seed in first..first + many {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, mode, features)));
        match result {
            Ok(n) => transactions += n,
            Err(panic) => {
                eprintln!("replay: WEFT_SEED={seed} WEFT_SEEDS=1 cargo test -p weft-patch journal");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(transactions > many, "the workload must commit");
}

#[test]
fn every_cut_leaves_whole_operations_full() {
    sweep(JournalMode::Full, Features::revoke());
}

#[test]
fn every_cut_leaves_whole_operations_ordered() {
    sweep(JournalMode::Ordered, Features::revoke_and_checksums());
}

#[test]
fn every_cut_leaves_whole_operations_metadata() {
    sweep(JournalMode::Metadata, Features::revoke());
}

#[test]
fn an_operation_larger_than_the_journal_is_refused() {
    let device = Arc::new(MemoryDevice::new((BLOCK * BLOCKS) as u64));
    let log = FormatOptions {
        block_bytes: BLOCK as u32,
        len_blocks: LOG as u32,
        superblock_at: 0,
        uuid: [7; 16],
        features: Features::revoke(),
        users: vec![],
    };
    let superblock = format_journal_superblock(&log).unwrap();
    device.write_at(&superblock, ((BLOCKS - LOG) * BLOCK) as u64).unwrap();
    let options = Options { policy: Policy::Journal(JournalMode::Full), ..Options::default() };
    let engine =
        Engine::with_journal(device.clone(), BLOCK as u32, options, log_map(device.clone()))
            .unwrap();
    assert!(matches!(engine.begin(100), Err(weft_patch::Error::JournalTooSmall { .. })));
    assert!(engine.begin(30).is_ok());
}

/// An operation on every metadata block.
fn touch_all(engine: &Engine, number: u32) {
    let mut op = engine.begin(META as u32).unwrap();
    for nr in 1..=META as u64 {
        op.write(BlockNr(nr), 0, &number.to_le_bytes(), &[]).unwrap();
    }
}

#[test]
fn what_runs_while_a_transaction_is_written_fits_the_log_behind_it() {
    // Fill the log until one more transaction fits; while that one is written, another thread
    // makes an operation. It may begin only if the log has room for both.
    type Hook = Box<dyn FnOnce() + Send>;
    let hook: Arc<Mutex<Option<Hook>>> = Arc::default();
    let at_flush = Arc::clone(&hook);
    let device = Arc::new(Inspected::new(
        BLOCK * BLOCKS,
        Box::new(move |_, _| {
            let hook = at_flush.lock().unwrap().take();
            if let Some(hook) = hook {
                hook();
            }
        }),
    ));
    let superblock = format_journal_superblock(&FormatOptions {
        block_bytes: BLOCK as u32,
        len_blocks: LOG as u32,
        superblock_at: 0,
        uuid: [7; 16],
        features: Features::revoke(),
        users: vec![],
    });
    device.write_at(&superblock.unwrap(), ((BLOCKS - LOG) * BLOCK) as u64).unwrap();
    device.flush().unwrap();
    let options = Options {
        policy: Policy::Journal(JournalMode::Full),
        background: false,
        ..Options::default()
    };
    let engine =
        Engine::with_journal(device.clone(), BLOCK as u32, options, log_map(device.clone()));
    let engine = Arc::new(engine.unwrap());
    let taken = META + 2; // with a descriptor and a commit block
    let rounds = (LOG - 1) / taken - 1;
    for number in 0..rounds {
        touch_all(&engine, number as u32);
        engine.sync().unwrap();
    }
    let (done, is_done) = std::sync::mpsc::channel();
    let other = Arc::clone(&engine);
    *hook.lock().unwrap() = Some(Box::new(move || {
        std::thread::spawn(move || {
            touch_all(&other, 1000);
            done.send(()).unwrap();
        });
        // It waits, as it should, or is done by now; if it is neither yet, this run shows less.
        let _ = is_done.recv_timeout(std::time::Duration::from_millis(200));
    }));
    touch_all(&engine, 999);
    engine.sync().unwrap();
    while Arc::strong_count(&engine) > 1 {
        std::thread::yield_now();
    }
    engine.sync().unwrap();
    // The power fails.
    let image = device.durable();
    let after = MemoryDevice::new(image.len() as u64);
    after.write_at(&image, 0).unwrap();
    let after = Arc::new(after);
    recover(&*after, BLOCK as u32, log_map(after.clone())).unwrap();
    for nr in 1..=META {
        let mut number = [0; 4];
        after.read_at(&mut number, (nr * BLOCK) as u64).unwrap();
        assert_eq!(u32::from_le_bytes(number), 1000, "block {nr}");
    }
}
