//! Blocks that are not in memory: read without the engine's lock, and never older than the last
//! change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weft_block::{BlockDevice as _, Fault, FaultDevice, MemoryDevice, Request, Rule};
use weft_patch::{BlockNr, Engine, Error, Options, Owner};
use weft_testing::{At, GateDevice, ReadsDevice, ends};

const BLOCK: usize = 1024;
const COLD: BlockNr = BlockNr(5);
const RANGE: std::ops::Range<u64> = 5 * BLOCK as u64..6 * BLOCK as u64;

type Gate = GateDevice<MemoryDevice>;

fn engine() -> (Arc<Gate>, Arc<Engine>) {
    let device = GateDevice::new(MemoryDevice::new(64 << 10));
    device.write_at(&[1; BLOCK], RANGE.start).unwrap();
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::new(device.clone(), BLOCK as u32, options).unwrap();
    (device, engine)
}

/// Starts a thread that returns the cold block's first byte, and waits until its read is held.
fn held_look(device: &Arc<Gate>, engine: &Arc<Engine>) -> std::thread::JoinHandle<u8> {
    device.arm(At::ReadDone, RANGE);
    let looker = Arc::clone(engine);
    let look =
        std::thread::spawn(move || looker.look(|op| op.peek(COLD).map(|b| b[0])).unwrap().unwrap());
    device.wait_held();
    look
}

#[test]
fn others_work_while_a_cold_block_is_read() {
    let (device, engine) = engine();
    engine.look(|op| op.peek(BlockNr(7)).map(|_| ())).unwrap().unwrap();
    let look = held_look(&device, &engine);
    let other = Arc::clone(&engine);
    ends("a change and a sync end beside the read", move || {
        assert_eq!(other.look(|op| op.peek(BlockNr(7)).unwrap()[0]).unwrap(), 0);
        other.begin(1).unwrap().write(BlockNr(7), 0, &[3], &[]).unwrap();
        other.sync().unwrap();
    });
    device.release();
    assert_eq!(look.join().unwrap(), 1);
    assert_eq!(engine.counters().reads_under_lock, 0);
}

/// The block is changed, written and dropped while an older content of it is on its way.
#[test]
fn a_read_that_was_overtaken_is_not_kept() {
    let (device, engine) = engine();
    let look = held_look(&device, &engine);
    let mut op = engine.begin(1).unwrap();
    op.write_data(COLD, Owner(3), 0, &[2; BLOCK], false, &[]).unwrap();
    drop(op);
    engine.sync().unwrap();
    assert!(engine.begin(0).unwrap().cached(COLD).is_none(), "file data is dropped when durable");
    device.release();
    assert_eq!(look.join().unwrap(), 2);
}

/// Two threads that miss the same block read it once.
#[test]
fn a_block_is_read_once_for_all_who_wait() {
    let (device, engine) = engine();
    let looks = [(); 4].map(|()| {
        let looker = Arc::clone(&engine);
        move || looker.look(|op| op.peek(COLD).map(|b| b[0])).unwrap().unwrap()
    });
    let first = held_look(&device, &engine);
    let others = looks.map(std::thread::spawn);
    device.release();
    for look in others.into_iter().chain([first]) {
        assert_eq!(look.join().unwrap(), 1);
    }
    assert_eq!(engine.counters().blocks_read, 1);
}

#[test]
fn what_a_change_needs_is_read_before_it() {
    let (_, engine) = engine();
    let tries = AtomicU32::new(0);
    let mut op = engine
        .begin_after(1, |op| {
            tries.fetch_add(1, Ordering::Relaxed);
            let wanted = op.want([COLD, BlockNr(9), BlockNr(1 << 40)]);
            if tries.load(Ordering::Relaxed) == 1 {
                assert!(matches!(wanted, Err(Error::NotInMemory { nr: COLD })), "{wanted:?}");
            }
        })
        .unwrap();
    assert_eq!(tries.load(Ordering::Relaxed), 2, "both blocks were read together");
    op.write(COLD, 1, &[4], &[]).unwrap();
    op.write(BlockNr(9), 1, &[4], &[]).unwrap();
    drop(op);
    assert_eq!(engine.counters().reads_under_lock, 0);
    engine.begin(1).unwrap().write(BlockNr(11), 0, &[1], &[]).unwrap();
    assert_eq!(engine.counters().reads_under_lock, 1, "the read was not requested before");
}

/// On a slow device, four blocks take as long as one.
#[test]
fn what_is_missing_together_is_read_at_once() {
    let device = ReadsDevice::new(MemoryDevice::new(64 << 10));
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::new(device.clone(), BLOCK as u32, options).unwrap();
    device.hold();
    let looker = Arc::clone(&engine);
    let look = std::thread::spawn(move || {
        looker.look(|op| op.want([5, 6, 20, 30, 40].map(BlockNr))).unwrap().unwrap();
    });
    device.wait_held(4);
    device.release();
    look.join().unwrap();
    assert_eq!(device.take().len(), 4, "the two adjacent blocks are one request");
    assert_eq!(engine.counters().reads_under_lock, 0);

    device.hold();
    let reader = Arc::clone(&engine);
    let read = std::thread::spawn(move || {
        let mut bufs = [[9; BLOCK]; 3];
        let runs = [7, 10, 50].map(BlockNr).into_iter().zip(bufs.iter_mut());
        reader.read_runs(runs.map(|(nr, buf)| (nr, &mut buf[..])).collect()).unwrap();
        bufs
    });
    device.wait_held(3);
    device.release();
    assert_eq!(read.join().unwrap(), [[0; BLOCK]; 3]);
}

/// A cache that cannot hold what an operation reads: it ends all the same.
#[test]
fn an_operation_that_reads_more_than_the_cache_holds_ends() {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let options =
        Options { background: false, clean_cache_bytes: 16 * BLOCK, ..Options::default() };
    let engine = Engine::new(device, BLOCK as u32, options).unwrap();
    let sum = engine
        .look(|op| {
            (0..200).try_fold(0, |sum, nr| op.peek(BlockNr(nr)).map(|b| sum + u32::from(b[0])))
        })
        .unwrap();
    assert_eq!(sum.unwrap(), 0);
}

/// A failed read is the business of the operation that needs the block, and of no other.
#[test]
fn a_read_that_fails_is_told_to_the_one_who_reads() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 << 10)));
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::new(device.clone(), BLOCK as u32, options).unwrap();
    device.add(Rule::every(Request::Read, Fault::Errno(5)).within(RANGE));
    let read = engine.look(|op| op.peek(COLD).map(|b| b[0])).unwrap();
    assert!(matches!(read, Err(Error::Device { nr: COLD, .. })), "{read:?}");
    let mut op = engine.begin_after(1, |op| drop(op.want([COLD]))).unwrap();
    op.write(BlockNr(2), 0, &[1], &[]).unwrap();
}
