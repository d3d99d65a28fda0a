//! A device that fails: the error reaches who needs the block, nothing is lost, order is kept.

use crate::device::Inspected;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use weft_block::{BlockDevice, Fault, FaultDevice, MemoryDevice, Request, Rule};
use weft_patch::{BlockNr, Engine, Error, Options, Owner};

const BLOCK: u64 = 4096;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

type Device = Arc<FaultDevice<MemoryDevice>>;

fn engine(options: Options) -> (Device, Arc<Engine>) {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(4 << 20)));
    let engine = Engine::new(device.clone(), BLOCK as u32, options).unwrap();
    (device, engine)
}

fn quiet() -> Options {
    Options { background: false, ..Options::default() }
}

fn byte_of(device: &Device, nr: u64) -> u8 {
    let mut byte = [0];
    device.inner().read_at(&mut byte, nr * BLOCK).unwrap();
    byte[0]
}

fn bad_block(nr: u64, errno: i32) -> Rule {
    Rule::every(Request::Write, Fault::Errno(errno)).within(nr * BLOCK..(nr + 1) * BLOCK)
}

#[test]
fn an_error_reaches_the_right_owner_and_is_not_forgotten() {
    let (device, engine) = engine(quiet());
    device.add(bad_block(10, EIO));
    let mut op = engine.begin(4).unwrap();
    let bad = op.write_data(BlockNr(10), Owner(1), 0, &[1; 4096], true, &[]).unwrap();
    op.write_data(BlockNr(20), Owner(2), 0, &[2; 4096], true, &[]).unwrap();
    op.write(BlockNr(30), 0, &[10], &[bad]).unwrap();
    drop(op);
    for _ in 0..3 {
        let error = engine.sync_owner(Owner(1), &[]).unwrap_err();
        assert!(matches!(error, Error::Device { nr: BlockNr(10), errno: EIO, .. }), "{error}");
        engine.sync_owner(Owner(2), &[]).expect("the other file is sound");
        assert!(engine.sync().is_err());
    }
    assert_eq!(byte_of(&device, 20), 2);
    assert_eq!(byte_of(&device, 30), 0, "the pointer must not pass what it points to");
    device.clear();
    engine.sync_owner(Owner(1), &[]).expect("repeated, it succeeds");
    engine.sync().unwrap();
    assert_eq!((byte_of(&device, 10), byte_of(&device, 30)), (1, 10));
}

#[test]
fn a_failed_flush_makes_nothing_durable_and_all_is_written_again() {
    let (device, engine) = engine(quiet());
    let rule = device.add(Rule::every(Request::Flush, Fault::Errno(EIO)));
    let mut op = engine.begin(1).unwrap();
    let patch = op.write(BlockNr(3), 0, &[9], &[]).unwrap();
    drop(op);
    assert!(matches!(engine.sync(), Err(Error::Flush { .. })));
    assert!(!engine.begin(0).unwrap().is_durable(patch));
    device.remove(rule);
    let writes = device.add(Rule::every(Request::Write, Fault::Delay(std::time::Duration::ZERO)));
    engine.sync().unwrap();
    assert_eq!(device.fired(writes), 1, "what was written before the failed flush may be gone");
    assert!(engine.begin(0).unwrap().is_durable(patch));
}

#[test]
fn changes_made_while_a_write_is_failing_come_after_it() {
    let (device, engine) = engine(quiet());
    device.add(bad_block(5, ENOSPC));
    let mut op = engine.begin(1).unwrap();
    op.write(BlockNr(5), 0, &[1], &[]).unwrap();
    drop(op);
    assert_eq!(engine.sync().unwrap_err().errno(), ENOSPC);
    let mut op = engine.begin(2).unwrap();
    let elsewhere = op.write(BlockNr(6), 0, &[6], &[]).unwrap();
    op.write(BlockNr(5), 0, &[2], &[elsewhere]).unwrap();
    assert_eq!(op.read(BlockNr(5)).unwrap()[0], 2);
    drop(op);
    device.clear();
    engine.sync().unwrap();
    assert_eq!((byte_of(&device, 5), byte_of(&device, 6)), (2, 6));
}

#[test]
fn a_full_memory_over_a_dead_device_is_an_error_and_no_hang() {
    for background in [false, true] {
        let options = Options { memory_budget_bytes: 1 << 20, background, ..Options::default() };
        let (device, engine) = engine(options);
        device.add(Rule::every(Request::Write, Fault::Errno(EIO)));
        let filled = (0..100_000_u64).find_map(|i| {
            let mut op = match engine.begin(1) {
                Ok(op) => op,
                Err(e) => return Some(e),
            };
            op.write(BlockNr(i % 1000), 0, &[1], &[]).unwrap();
            None
        });
        let error = filled.expect("begin must fail at last");
        assert_eq!(error.errno(), EIO, "{error}");
        device.clear();
        engine.sync().expect("once the device works, all of it is written");
    }
}

#[test]
fn a_read_error_names_the_block() {
    let (device, engine) = engine(quiet());
    device.add(Rule::every(Request::Read, Fault::Errno(EIO)));
    let mut op = engine.begin(0).unwrap();
    assert!(matches!(op.read(BlockNr(7)), Err(Error::Device { nr: BlockNr(7), .. })));
    assert!(matches!(op.read(BlockNr(1 << 40)), Err(Error::OutOfRange { .. })));
    assert!(matches!(
        op.write(BlockNr(1), 4090, &[0; 7], &[]),
        Err(Error::BadRange { offset: 4090, len_bytes: 7, .. })
    ));
}

#[test]
fn after_a_panic_in_a_write_nothing_is_written_and_nobody_hangs() {
    for background in [false, true] {
        let device = Inspected::new(4 << 20, Box::new(|_, _| panic!("the device's own fault")));
        let options = Options { background, memory_budget_bytes: 64 << 10, ..Options::default() };
        let engine = Engine::new(Arc::new(device), BLOCK as u32, options).unwrap();
        engine.begin(1).unwrap().init(BlockNr(1), &[1; 4096], &[]).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| engine.sync().is_err()));
        // Under background write-back its thread may have been the one that panicked.
        assert!(background || panicked.is_err());
        assert!(matches!(engine.sync(), Err(Error::Halted)));
        let filled = (2..1000).find_map(|nr| {
            let init = |mut op: weft_patch::Op<'_>| op.init(BlockNr(nr), &[2; 4096], &[]).unwrap();
            engine.begin(1).map(init).err()
        });
        assert!(matches!(filled, Some(Error::Halted)), "{filled:?}");
        assert!(matches!(engine.shutdown(), Err(Error::Halted)));
    }
}
