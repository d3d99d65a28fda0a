//! The journal policy under random operations and power cuts.
//!
//! The volume has eight metadata blocks, a few data blocks and, behind them, the log. An operation
//! changes some metadata blocks, and may allocate, change or free a data block or turn a freed
//! block into metadata. It runs between writes, or while blocks or a transaction are being written,
//! when other threads may also begin to sync: they share the next commit. After a cut at any flush,
//! with any part of what was not flushed, recovery must leave exactly the volume after some number
//! of whole operations, no fewer than were synced; data that is not journaled may be newer than
//! that.

use crate::device::Inspected;
use crate::log::{log_in, make_log};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use weft_block::{BlockDevice, MemoryDevice, Rng};
use weft_patch::jbd2::{Features, LogMap};
use weft_patch::{BlockNr, Engine, JournalMode, Options, Owner, PatchId, Policy, recover};
use weft_testing::yield_until;

const BLOCK: usize = 1024;
const SECTOR: usize = 512;
const META: usize = 8;
const SPARE: usize = 8;
/// So long that no operation has to wait for room: it may run while the log is being written.
const LOG: usize = 256;
const BLOCKS: usize = 1 + META + SPARE + LOG;

/// What each block must hold after an operation; `None`: nobody cares.
type Image = Vec<Option<Vec<u8>>>;

#[derive(Default)]
struct Model {
    /// After 0, 1, 2 .. operations.
    states: Vec<Image>,
    synced: usize,
    /// Blocks of data that is not journaled.
    data: Vec<usize>,
}

impl Model {
    /// Returns true if the volume is as after `number` operations.
    fn fits(&self, number: usize, volume: &[u8]) -> bool {
        self.states[number].iter().enumerate().all(|(nr, content)| {
            let found = &volume[nr * BLOCK..(nr + 1) * BLOCK];
            content.as_ref().is_none_or(|c| {
                found == c || self.data.contains(&nr) && self.is_newer(number, nr, found)
            })
        })
    }

    /// Returns true if each sector of the block is as after this operation or a later one, up to the
    /// one that frees the block.
    fn is_newer(&self, number: usize, nr: usize, found: &[u8]) -> bool {
        let later: Vec<&Vec<u8>> =
            self.states[number..].iter().map_while(|state| state[nr].as_ref()).collect();
        found.chunks(SECTOR).enumerate().all(|(i, sector)| {
            later.iter().any(|content| content[i * SECTOR..(i + 1) * SECTOR] == *sector)
        })
    }
}

fn log_map(device: Arc<dyn BlockDevice>) -> LogMap {
    log_in(device, BLOCK, BLOCKS - LOG..BLOCKS)
}

fn new_log(device: Arc<dyn BlockDevice>, features: Features) -> LogMap {
    make_log(device, BLOCK, BLOCKS - LOG..BLOCKS, features)
}

fn judge(image: &[u8], model: &Model, what: &str) {
    let device = Arc::new(MemoryDevice::new(image.len() as u64));
    device.write_at(image, 0).unwrap();
    recover(&*device, BLOCK as u32, log_map(device.clone()))
        .unwrap_or_else(|e| panic!("{what}: recovery failed: {e}"));
    let mut after = vec![0; image.len()];
    device.read_at(&mut after, 0).unwrap();
    let states = model.states.len();
    let whole = (model.synced..states).any(|number| model.fits(number, &after));
    if !whole {
        let earlier = (0..states).rev().find(|&number| model.fits(number, &after));
        panic!(
            "{what}: of {} operations {} were synced, but the volume is {}",
            model.states.len() - 1,
            model.synced,
            earlier.map_or("torn".into(), |n| format!("as after {n}"))
        );
    }
}

/// Makes random operations: knows what each block must hold after them, and which blocks are free.
struct Workload {
    mode: JournalMode,
    rng: Rng,
    number: u32,
    state: Image,
    /// Free blocks, each since a patch.
    free: Vec<(usize, PatchId)>,
    used: Vec<usize>,
}

impl Workload {
    fn new(mode: JournalMode, seed: u64) -> Self {
        let mut state: Image = vec![None; BLOCKS];
        for block in &mut state[1..=META] {
            *block = Some(vec![0; BLOCK]);
        }
        let free = (0..SPARE).map(|i| (1 + META + i, PatchId::DURABLE)).collect();
        Self { mode, rng: Rng::new(seed), number: 0, state, free, used: Vec::new() }
    }

    fn operation(&mut self, engine: &Engine, model: &Mutex<Model>) {
        self.number += 1;
        let number = self.number;
        let mut op = engine.begin(6).unwrap();
        for _ in 0..=self.rng.index(3) {
            let nr = 1 + self.rng.index(META);
            let at = self.rng.index(BLOCK / 4) * 4;
            // Now and then what looks like a journal block, which must be escaped.
            let (at, value) = if self.rng.index(8) == 0 { (0, 0x9839_3BC0) } else { (at, number) };
            op.write(BlockNr(nr as u64), at, &value.to_le_bytes(), &[]).unwrap();
            self.state[nr].as_mut().unwrap()[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let mut model = model.lock().unwrap();
        match self.rng.index(8) {
            0..=3 if !self.free.is_empty() => {
                let index = self.rng.index(self.free.len());
                let (nr, since) = self.free[index];
                if op.is_durable(since) {
                    self.free.remove(index);
                    self.used.push(nr);
                    let content = vec![number as u8 | 1; BLOCK];
                    let block = BlockNr(nr as u64);
                    model.data.retain(|&data| data != nr);
                    if self.rng.index(2) == 0 {
                        op.init(block, &content, &[]).unwrap();
                    } else {
                        op.write_data(block, Owner(9), 0, &content, true, &[]).unwrap();
                        if self.mode != JournalMode::Full {
                            model.data.push(nr);
                        }
                    }
                    self.state[nr] = (self.mode != JournalMode::Metadata).then_some(content);
                }
            }
            4 | 5 if !self.used.is_empty() => {
                let nr = self.used.swap_remove(self.rng.index(self.used.len()));
                let cleared = op.write(BlockNr(1), 4, &number.to_le_bytes(), &[]).unwrap();
                self.state[1].as_mut().unwrap()[4..8].copy_from_slice(&number.to_le_bytes());
                op.free(BlockNr(nr as u64), cleared);
                self.free.push((nr, cleared));
                self.state[nr] = None;
            }
            6 | 7 => {
                // Only what is in memory: during a flush the device of the test is not read.
                let data = self.used.iter().copied().filter(|nr| model.data.contains(nr));
                let cached: Vec<usize> =
                    data.filter(|&nr| op.cached(BlockNr(nr as u64)).is_some()).collect();
                if let Some(&nr) = self.rng.pick(&cached) {
                    let at = self.rng.index(BLOCK / 4) * 4;
                    let bytes = number.to_le_bytes();
                    op.write_data(BlockNr(nr as u64), Owner(9), at, &bytes, false, &[]).unwrap();
                    if let Some(content) = &mut self.state[nr] {
                        content[at..at + 4].copy_from_slice(&bytes);
                    }
                }
            }
            _ => {}
        }
        model.states.push(self.state.clone());
    }
}

/// Judges the volumes that a power cut before a flush could leave.
fn cut(seed: u64, mode: JournalMode, durable: &[u8], pending: &[(u64, Vec<u8>)], model: &Model) {
    let mut rng = Rng::new(seed ^ pending.len() as u64 ^ 0x55);
    // Nothing, everything, and a few random subsets torn at sectors.
    for cut in 0..5 {
        let mut image = durable.to_vec();
        for (offset, bytes) in pending {
            for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                if cut == 1 || (cut > 1 && rng.index(2) == 0) {
                    let at = *offset as usize + i * SECTOR;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        judge(&image, model, &format!("seed {seed} {mode:?}, cut {cut}"));
    }
}

/// Syncs; what others did meanwhile is not promised.
fn sync(engine: &Engine, model: &Mutex<Model>) {
    let before = model.lock().unwrap().states.len() - 1;
    engine.sync().unwrap();
    let mut model = model.lock().unwrap();
    model.synced = model.synced.max(before);
}

fn run(seed: u64, mode: JournalMode, features: Features) -> u64 {
    let model: Arc<Mutex<Model>> = Arc::default();
    let workload = Arc::new(Mutex::new(Workload::new(mode, seed)));
    let opened: Arc<Mutex<Weak<Engine>>> = Arc::default();
    // The log was empty after so many transactions.
    let emptied = Arc::new(AtomicU64::new(0));
    let syncs: Arc<Mutex<Vec<JoinHandle<()>>>> = Arc::default();
    let hook = {
        let (model, workload) = (Arc::clone(&model), Arc::clone(&workload));
        let (emptied, syncs) = (Arc::clone(&emptied), Arc::clone(&syncs));
        let (opened, during) = (Arc::clone(&opened), Mutex::new(Rng::new(!seed)));
        move |durable: &[u8], pending: &[(u64, Vec<u8>)]| {
            if model.lock().unwrap().states.is_empty() {
                return;
            }
            cut(seed, mode, durable, pending, &model.lock().unwrap());
            // Other threads work meanwhile. An operation that waits for this flush is none of them.
            let Some(engine) = opened.lock().unwrap().upgrade() else { return };
            let mut during = during.lock().unwrap();
            for _ in 0..during.index(3) {
                if let Ok(mut workload) = workload.try_lock() {
                    workload.operation(&engine, &model);
                }
                let counters = engine.counters();
                let has_room = counters.transactions - emptied.load(Ordering::Relaxed) <= 4;
                if has_room && during.index(4) == 0 {
                    let (other, model) = (Arc::clone(&engine), Arc::clone(&model));
                    let sync = std::thread::spawn(move || sync(&other, &model));
                    yield_until("it waits", || engine.counters().syncs > counters.syncs);
                    syncs.lock().unwrap().push(sync);
                }
            }
        }
    };
    let device = Arc::new(Inspected::new(BLOCK * BLOCKS, Box::new(hook)));
    let log = new_log(device.clone(), features);
    let options =
        Options { policy: Policy::Journal(mode), background: false, ..Options::default() };
    let engine = Engine::with_journal(device.clone(), BLOCK as u32, options, log).unwrap();
    for nr in 0..=META as u64 {
        engine.begin(0).unwrap().read(BlockNr(nr)).unwrap();
    }
    model.lock().unwrap().states.push(workload.lock().unwrap().state.clone());

    let join_syncs = || {
        // One that is joined may start others while it writes.
        while let Some(other) = { syncs.lock().unwrap().pop() } {
            other.join().unwrap();
        }
    };
    let mut rng = Rng::stream(seed, 1);
    *opened.lock().unwrap() = Arc::downgrade(&engine);
    for _ in 0..4 + rng.index(60) {
        workload.lock().unwrap().operation(&engine, &model);
        match rng.index(12) {
            0 | 1 => sync(&engine, &model),
            // Write-back in place, as age would cause it.
            2 | 3 => engine.write_back().unwrap(),
            _ => {}
        }
        join_syncs();
        // Room in the log for those that run during a flush.
        if engine.counters().transactions - emptied.load(Ordering::Relaxed) > 4 {
            let others = std::mem::take(&mut *opened.lock().unwrap());
            sync(&engine, &model);
            engine.write_back().unwrap();
            emptied.store(engine.counters().transactions, Ordering::Relaxed);
            *opened.lock().unwrap() = others;
        }
    }
    *opened.lock().unwrap() = Weak::new();
    engine.shutdown().unwrap();
    let mut model = model.lock().unwrap();
    model.synced = model.states.len() - 1;
    judge(&device.durable(), &model, &format!("seed {seed}, after shutdown"));
    drop(model);
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
    let log = new_log(device.clone(), Features::revoke());
    let options = Options { policy: Policy::Journal(JournalMode::Full), ..Options::default() };
    let engine = Engine::with_journal(device.clone(), BLOCK as u32, options, log).unwrap();
    assert!(matches!(engine.begin(LOG as u32), Err(weft_patch::Error::JournalTooSmall { .. })));
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
    let log = new_log(device.clone(), Features::revoke());
    let options = Options {
        policy: Policy::Journal(JournalMode::Full),
        background: false,
        ..Options::default()
    };
    let engine = Engine::with_journal(device.clone(), BLOCK as u32, options, log);
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
