//! Syncs by several threads at the same time: they share rounds, commits and flushes, and each gets
//! the outcome of what it asked for.
//!
//! Each file has a block of data and an inode, which follows the data: a slot in the one block of
//! inodes, or where a file must not depend on another, which shares a patch of that block, at the
//! start of a block of its own. The first caller is in its first flush when the others change their
//! files and sync.

use crate::device::Inspected;
use crate::log::make_log;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use weft_block::{Fault, FaultDevice, Request, Rule};
use weft_patch::jbd2::Features;
use weft_patch::{BlockNr, Engine, Error, JournalMode, Options, Owner, Policy, Result};
use weft_testing::{ends, yield_until};

const BLOCK: usize = 1024;
const INODES: BlockNr = BlockNr(1);
const DATA: u64 = 10;
const FILES: u64 = 16;
const LOG: usize = 64;
const BLOCKS: usize = 320;
const EIO: i32 = 5;

const POLICIES: [Policy; 5] = [
    Policy::Soft,
    Policy::Async,
    Policy::Journal(JournalMode::Metadata),
    Policy::Journal(JournalMode::Ordered),
    Policy::Journal(JournalMode::Full),
];

/// The block of a file's data. None is beside another, as a failed request fails for all its blocks.
fn data_of(file: u64) -> BlockNr {
    BlockNr(DATA + 2 * file)
}

fn in_one_block(file: u64) -> (BlockNr, usize) {
    (INODES, file as usize * 4)
}

fn in_its_own_block(file: u64) -> (BlockNr, usize) {
    (BlockNr(DATA + 2 * FILES + file), 0)
}

/// Run in a flush, by the thread that flushes, with what is durable before it.
type Hook = Box<dyn FnMut(&[u8]) + Send>;

/// An engine on a device that may fail, with something that happens in its flushes.
struct Volume {
    device: Arc<Inspected>,
    faults: Arc<FaultDevice<Arc<Inspected>>>,
    engine: Arc<Engine>,
    /// The block and the offset of the inode of a file.
    inode_of: fn(u64) -> (BlockNr, usize),
    hook: Mutex<Option<Hook>>,
}

impl Volume {
    fn new(policy: Policy, inode_of: fn(u64) -> (BlockNr, usize)) -> Arc<Self> {
        let made: Arc<Mutex<Weak<Self>>> = Arc::default();
        let at_flush = Arc::clone(&made);
        let device = Arc::new(Inspected::new(
            BLOCK * BLOCKS,
            Box::new(move |durable, _| {
                let volume = at_flush.lock().unwrap().upgrade();
                let Some(volume) = volume else { return };
                let hook = volume.hook.lock().unwrap().take();
                if let Some(mut hook) = hook {
                    hook(durable);
                    volume.hook.lock().unwrap().get_or_insert(hook);
                }
            }),
        ));
        let faults = Arc::new(FaultDevice::new(Arc::clone(&device)));
        let log = make_log(faults.clone(), BLOCK, LOG..BLOCKS, Features::revoke());
        let options = Options { policy, background: false, ..Options::default() };
        let engine = match policy {
            Policy::Journal(_) => Engine::with_journal(faults.clone(), BLOCK as u32, options, log),
            _ => Engine::new(faults.clone(), BLOCK as u32, options),
        }
        .unwrap();
        // The device is not read in a flush.
        for file in 0..FILES {
            engine.begin(0).unwrap().read(inode_of(file).0).unwrap();
        }
        let volume = Arc::new(Self { device, faults, engine, inode_of, hook: Mutex::default() });
        *made.lock().unwrap() = Arc::downgrade(&volume);
        volume
    }

    /// Writes the block of a file and its inode, and syncs it.
    fn write_and_sync(&self, file: u64) -> Result<()> {
        let mut op = self.engine.begin(4)?;
        let owner = Owner(file + 1);
        let data = op.write_data(data_of(file), owner, 0, &[1; BLOCK], true, &[])?;
        let (inodes, offset) = (self.inode_of)(file);
        let inode = op.write(inodes, offset, &[1; 4], &[data])?;
        drop(op);
        self.engine.sync_owner(owner, &[inode])?;
        let durable = self.device.durable();
        let at = data_of(file).0 as usize * BLOCK;
        let whole = self.engine.policy() == Policy::Journal(JournalMode::Full);
        assert!(whole || durable[at..at + BLOCK] == [1; BLOCK], "file {file} has no data");
        let in_place = !matches!(self.engine.policy(), Policy::Journal(_));
        let at = inodes.0 as usize * BLOCK + offset;
        assert!(!in_place || durable[at] == 1, "file {file} has no inode");
        Ok(())
    }

    fn fail_writes_of(&self, file: u64) {
        let at = data_of(file).0 * BLOCK as u64;
        let range = at..at + BLOCK as u64;
        self.faults.add(Rule::every(Request::Write, Fault::Errno(EIO)).within(range));
    }

    /// Starts a thread that writes a file and syncs it, and waits until it waits.
    fn start(self: &Arc<Self>, file: u64) -> JoinHandle<Result<()>> {
        let before = self.engine.counters().syncs;
        let volume = Arc::clone(self);
        let thread = std::thread::spawn(move || volume.write_and_sync(file));
        yield_until("the sync waits", || self.engine.counters().syncs > before);
        thread
    }

    /// Writes and syncs file 0, and all others while that is in its first flush. Returns their
    /// outcomes.
    fn all_at_once(self: &Arc<Self>) -> Vec<Result<()>> {
        let others: Arc<Mutex<Vec<JoinHandle<Result<()>>>>> = Arc::default();
        let (started, volume) = (Arc::clone(&others), Arc::downgrade(self));
        let mut later = 1..FILES;
        *self.hook.lock().unwrap() = Some(Box::new(move |_| {
            let volume = volume.upgrade().unwrap();
            started.lock().unwrap().extend(later.by_ref().map(|file| volume.start(file)));
        }));
        let first = self.write_and_sync(0);
        let others = std::mem::take(&mut *others.lock().unwrap());
        assert_eq!(others.len() as u64, FILES - 1);
        let others = others.into_iter().map(|other| other.join().unwrap());
        std::iter::once(first).chain(others).collect()
    }
}

#[test]
fn those_that_sync_at_the_same_time_share_the_flushes() {
    for policy in POLICIES {
        let volume = Volume::new(policy, in_one_block);
        let before = volume.engine.counters().flushes;
        for outcome in volume.all_at_once() {
            outcome.unwrap();
        }
        let flushes = volume.engine.counters().flushes - before;
        let expected = match policy {
            // The first file's data; its inode and the data of the others; their inodes.
            Policy::Soft => 3,
            Policy::Async => 2,
            // Two commits of two flushes each.
            Policy::Journal(_) => 4,
        };
        assert_eq!(flushes, expected, "{policy:?}");
        assert_eq!(volume.engine.counters().syncs, FILES);
    }
}

#[test]
fn a_sync_alone_takes_no_more_flushes_than_it_needs() {
    for policy in POLICIES {
        let volume = Volume::new(policy, in_one_block);
        let before = volume.engine.counters().flushes;
        volume.write_and_sync(3).unwrap();
        let expected = match policy {
            Policy::Soft => 2,
            Policy::Async => 1,
            // Data and the copies in the log; the commit record.
            Policy::Journal(_) => 2,
        };
        assert_eq!(volume.engine.counters().flushes - before, expected, "{policy:?}");
        // Nothing to do, and nothing is done.
        volume.engine.sync_owner(Owner(4), &[]).unwrap();
        assert_eq!(volume.engine.counters().flushes - before, expected, "{policy:?}");
    }
}

#[test]
fn a_sync_with_a_journal_writes_no_block_in_place_but_of_data() {
    let volume = Volume::new(Policy::Journal(JournalMode::Ordered), in_its_own_block);
    volume.write_and_sync(1).unwrap();
    volume.engine.begin(1).unwrap().write(INODES, 0, &[1], &[]).unwrap();
    volume.engine.sync().unwrap();
    let durable = volume.device.durable();
    assert_eq!(durable[in_its_own_block(1).0.0 as usize * BLOCK], 0, "it is in the log");
}

#[test]
fn the_error_of_one_file_is_not_told_to_the_others() {
    const BAD: u64 = 5;
    for policy in [Policy::Soft, Policy::Async, Policy::Journal(JournalMode::Metadata)] {
        let volume = Volume::new(policy, in_its_own_block);
        volume.fail_writes_of(BAD);
        for (file, outcome) in volume.all_at_once().into_iter().enumerate() {
            match outcome {
                Err(Error::Device { errno: EIO, nr, .. }) if file as u64 == BAD => {
                    assert_eq!(nr, data_of(BAD));
                }
                Ok(()) if file as u64 != BAD => {}
                other => panic!("{policy:?}, file {file}: {other:?}"),
            }
        }
        volume.faults.clear();
        volume.engine.sync().unwrap();
    }
}

/// With this journal no transaction is committed without the data of its files.
#[test]
fn a_commit_that_cannot_be_written_is_told_to_all_who_wait_for_it() {
    let volume = Volume::new(Policy::Journal(JournalMode::Ordered), in_one_block);
    volume.fail_writes_of(5);
    let outcomes = volume.all_at_once();
    assert!(outcomes[0].is_ok(), "its transaction was the one before");
    assert!(outcomes[1..].iter().all(Result::is_err));
    volume.faults.clear();
    volume.engine.sync().unwrap();
}

#[test]
fn an_error_is_told_as_long_as_it_lasts() {
    let volume = Volume::new(Policy::Soft, in_one_block);
    volume.fail_writes_of(5);
    let engine = Arc::clone(&volume.engine);
    ends("each sync of the inode ends", move || {
        let mut op = engine.begin(2).unwrap();
        let map = op.write(data_of(5), 0, &[1; 4], &[]).unwrap();
        let inode = op.write(INODES, 20, &[1; 4], &[map]).unwrap();
        drop(op);
        for _ in 0..3 {
            let outcome = engine.sync_owner(Owner::NONE, &[inode]);
            assert!(matches!(outcome, Err(Error::Device { errno: EIO, .. })), "{outcome:?}");
        }
    });
}

/// With each flush another caller comes, whose data is ready and whose inode, in the block of all
/// inodes, is not: this block is never wholly ready.
#[test]
fn a_sync_ends_however_many_others_come() {
    let volume = Volume::new(Policy::Soft, in_one_block);
    let others: Arc<Mutex<Vec<JoinHandle<Result<()>>>>> = Arc::default();
    // The number of flushes after which the first inode was durable.
    let needed = Arc::new(Mutex::new(None));
    let (started, seen) = (Arc::clone(&others), Arc::clone(&needed));
    let weak = Arc::downgrade(&volume);
    let mut flushes = 0;
    *volume.hook.lock().unwrap() = Some(Box::new(move |durable| {
        if durable[BLOCK] == 1 {
            seen.lock().unwrap().get_or_insert(flushes);
        }
        flushes += 1;
        let mut started = started.lock().unwrap();
        if flushes < FILES {
            started.push(weak.upgrade().unwrap().start(flushes));
        }
    }));
    volume.write_and_sync(0).unwrap();
    while let Some(other) = { others.lock().unwrap().pop() } {
        other.join().unwrap().unwrap();
    }
    assert_eq!(*needed.lock().unwrap(), Some(2), "its data, and its inode");
}

#[test]
fn a_panic_of_the_leader_stops_all_who_wait() {
    let volume = Volume::new(Policy::Soft, in_one_block);
    let others: Arc<Mutex<Vec<JoinHandle<Result<()>>>>> = Arc::default();
    let (started, weak) = (Arc::clone(&others), Arc::downgrade(&volume));
    *volume.hook.lock().unwrap() = Some(Box::new(move |_| {
        let volume = weak.upgrade().unwrap();
        started.lock().unwrap().extend((1..FILES).map(|file| volume.start(file)));
        panic!("the device's own fault");
    }));
    assert!(catch_unwind(AssertUnwindSafe(|| volume.write_and_sync(0))).is_err());
    let others = std::mem::take(&mut *others.lock().unwrap());
    for other in others {
        let outcome = ends("the others are told", move || other.join().unwrap());
        assert!(matches!(outcome, Err(Error::Halted)), "{outcome:?}");
    }
}

/// The work to find what a sync needs does not grow with the square of the depth of the graph.
#[test]
fn a_deep_graph_is_not_searched_in_each_round() {
    const DEPTH: u64 = 400;
    let visited = |sync: fn(&Engine, weft_patch::PatchId)| {
        let device = Arc::new(weft_block::MemoryDevice::new(1 << 20));
        let options = Options { background: false, ..Options::default() };
        let engine = Engine::new(device, 1024, options).unwrap();
        let mut last = weft_patch::PatchId::DURABLE;
        for i in 0..DEPTH {
            let mut op = engine.begin(1).unwrap();
            let at = usize::try_from(i).unwrap();
            last = op.write(BlockNr(1 + i % 2), at, &[1], &[last]).unwrap();
        }
        sync(&engine, last);
        let counters = engine.counters();
        assert_eq!((counters.flushes, counters.patches_now), (DEPTH, 0), "{counters:?}");
        counters.visited
    };
    let all = visited(|engine, _| engine.sync().unwrap());
    let one = visited(|engine, last| engine.sync_owner(Owner(1), &[last]).unwrap());
    eprintln!("visited {all} and {one}");
    assert!(all <= 4 * DEPTH && one <= 4 * DEPTH, "{all} and {one} patches visited");
}

/// A sync waits for a change of a block; while it writes what that change waits for, another operation
/// changes the block so that all of it waits for new file data, at once or by way of a block of which a
/// part can be written.
#[test]
fn a_sync_goes_on_when_its_block_comes_to_wait_for_new_data() {
    for by_way_of_another in [false, true] {
        new_data_while_a_sync_writes(by_way_of_another);
    }
}

fn new_data_while_a_sync_writes(by_way_of_another: bool) {
    const FIRST: BlockNr = BlockNr(1);
    const SHARED: BlockNr = BlockNr(2);
    const OTHER: BlockNr = BlockNr(3);
    const DATA: BlockNr = BlockNr(4);
    const MIDDLE: BlockNr = BlockNr(5);
    let opened: Arc<Mutex<Weak<Engine>>> = Arc::default();
    let later = Arc::clone(&opened);
    let hook = move |_: &[u8], _: &[(u64, Vec<u8>)]| {
        let engine = std::mem::take(&mut *later.lock().unwrap());
        let Some(engine) = engine.upgrade() else { return };
        let mut op = engine.begin(4).unwrap();
        let data = op.write_data(DATA, Owner(7), 0, &[7; 1024], true, &[]).unwrap();
        let mut before = data;
        if by_way_of_another {
            let ready = op.write(MIDDLE, 0, b"ready", &[]).unwrap();
            op.write(OTHER, 512, b"x", &[ready]).unwrap();
            before = op.write(MIDDLE, 256, b"waits", &[data]).unwrap();
        }
        op.write(SHARED, 512, b"later", &[before]).unwrap();
    };
    let device = Arc::new(Inspected::new(8 * 1024, Box::new(hook)));
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::new(device, 1024, options).unwrap();
    // What runs while the device writes must not read.
    for nr in [OTHER, MIDDLE] {
        engine.begin(0).unwrap().peek(nr).unwrap();
    }
    let mut op = engine.begin(4).unwrap();
    let early = op.write(SHARED, 0, b"early", &[]).unwrap();
    op.write(OTHER, 0, b"x", &[early]).unwrap();
    let first = op.write(FIRST, 0, b"first", &[]).unwrap();
    let wanted = op.write(SHARED, 256, b"wanted", &[first]).unwrap();
    drop(op);
    // From now on the block has no change that is in each of its writes.
    engine.sync_owner(Owner::NONE, &[early]).unwrap();
    *opened.lock().unwrap() = Arc::downgrade(&engine);
    engine.sync_owner(Owner::NONE, &[wanted]).unwrap();
    assert!(engine.begin(0).unwrap().is_durable(wanted));
}
