//! Blocks that are read beside those that an operation needs.

use std::ops::Range;
use std::sync::Arc;
use weft_block::{BlockDevice, Fault, FaultDevice, MemoryDevice, Request, Rule};
use weft_patch::{BlockNr, Engine, Error, Options, Owner};
use weft_testing::{At, GateDevice, ReadsDevice};

const BLOCK: usize = 1024;
const PART: Range<BlockNr> = BlockNr(0)..BlockNr(8);

fn bytes(blocks: Range<u64>) -> Range<u64> {
    blocks.start * BLOCK as u64..blocks.end * BLOCK as u64
}

fn engine(device: Arc<dyn BlockDevice>, cache_blocks: usize) -> Arc<Engine> {
    let options = Options {
        background: false,
        clean_cache_bytes: cache_blocks * BLOCK,
        ..Options::default()
    };
    Engine::new(device, BLOCK as u32, options).unwrap()
}

/// Returns the first byte of a block, and names `ahead`.
fn first_byte(engine: &Engine, nr: u64, ahead: Range<BlockNr>) -> Result<u8, Error> {
    engine
        .look(|op| {
            op.read_ahead(ahead.clone());
            op.peek(BlockNr(nr)).map(|block| block[0])
        })
        .unwrap()
}

#[test]
fn neighbours_come_in_the_same_request() {
    let device = ReadsDevice::new(MemoryDevice::new(64 << 10));
    let engine = engine(device.clone(), 1024);
    first_byte(&engine, 5, PART).unwrap();
    assert_eq!(device.take(), [bytes(0..8)]);
    first_byte(&engine, 7, PART).unwrap();
    assert!(device.take().is_empty(), "it was read ahead");
    let counters = engine.counters();
    assert_eq!((counters.blocks_read, counters.blocks_read_ahead), (8, 7));
    assert_eq!(counters.reads_under_lock, 0);
}

#[test]
fn what_is_in_memory_is_not_read_again_and_nothing_for_itself() {
    let device = ReadsDevice::new(MemoryDevice::new(64 << 10));
    let engine = engine(device.clone(), 1024);
    engine.begin(1).unwrap().init(BlockNr(3), &[9; BLOCK], &[]).unwrap();
    engine.look(|op| op.read_ahead(PART)).unwrap();
    assert!(device.take().is_empty(), "no block was needed");
    assert_eq!(first_byte(&engine, 3, PART).unwrap(), 9);
    assert!(device.take().is_empty(), "the block was in memory");
    first_byte(&engine, 5, PART).unwrap();
    assert_eq!(device.take(), [bytes(4..8)], "block 3 is in memory, and 0 to 2 join no block");
    assert_eq!(first_byte(&engine, 3, PART).unwrap(), 9);
}

/// The neighbour is changed, written and dropped while an older content of it is on its way.
#[test]
fn a_neighbour_that_was_overtaken_is_not_kept() {
    let device = GateDevice::new(MemoryDevice::new(64 << 10));
    let engine = engine(device.clone(), 1024);
    device.arm(At::ReadDone, bytes(5..6));
    let looker = Arc::clone(&engine);
    let look = std::thread::spawn(move || first_byte(&looker, 5, PART).unwrap());
    device.wait_held();
    let mut op = engine.begin(2).unwrap();
    op.write_data(BlockNr(6), Owner(3), 0, &[2; BLOCK], false, &[]).unwrap();
    op.write(BlockNr(7), 0, &[4], &[]).unwrap();
    drop(op);
    engine.sync().unwrap();
    assert!(engine.begin(0).unwrap().cached(BlockNr(6)).is_none(), "file data is dropped");
    device.release();
    look.join().unwrap();
    assert!(engine.begin(0).unwrap().cached(BlockNr(6)).is_none(), "what was read is old");
    assert!(engine.begin(0).unwrap().cached(BlockNr(4)).is_some(), "the others are kept");
    assert_eq!(first_byte(&engine, 6, PART).unwrap(), 2);
    assert_eq!(first_byte(&engine, 7, PART).unwrap(), 4);
}

#[test]
fn a_bad_neighbour_fails_nobody() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 << 10)));
    let engine = engine(device.clone(), 1024);
    device.add(Rule::every(Request::Read, Fault::Errno(5)).within(bytes(6..7)));
    first_byte(&engine, 5, PART).unwrap();
    assert_eq!(engine.counters().reads_under_lock, 0);
    let read = first_byte(&engine, 6, PART);
    assert!(matches!(read, Err(Error::Device { nr: BlockNr(6), .. })), "{read:?}");
}

/// Blocks that nobody uses have an eighth of the cache, and drive nothing else out.
#[test]
fn unused_blocks_take_a_bounded_part_of_the_cache() {
    const CACHE: usize = 64;
    let device = ReadsDevice::new(MemoryDevice::new(1 << 20));
    let engine = engine(device.clone(), CACHE);
    let hot = 900..920;
    for nr in hot.clone() {
        first_byte(&engine, nr, BlockNr(0)..BlockNr(0)).unwrap();
    }
    device.take();
    first_byte(&engine, 800, BlockNr(800)..BlockNr(808)).unwrap();
    assert_eq!(device.take(), [bytes(800..801)], "a range of eight is long for this cache");
    for part in 0..30 {
        let from = part * 4;
        first_byte(&engine, from, BlockNr(from)..BlockNr(from + 4)).unwrap();
        assert_eq!(device.take(), [bytes(from..from + 4)]);
    }
    let op = engine.begin(0).unwrap();
    let held = |blocks: &mut dyn Iterator<Item = u64>| {
        blocks.filter(|&nr| op.cached(BlockNr(nr)).is_some()).count()
    };
    assert_eq!(held(&mut hot.clone()), hot.count(), "blocks in use stay");
    assert_eq!(held(&mut (0..120).step_by(4)), 30, "and those that were needed");
    assert_eq!(held(&mut (0..120).filter(|nr| nr % 4 != 0)), CACHE / 8, "the last ones");
}
