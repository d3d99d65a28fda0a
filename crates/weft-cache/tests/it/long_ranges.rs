//! Zeroes and discards longer than what the cache keeps as zeroes (1 MiB): they go to the origin,
//! and what was flushed before them is not lost with them.

use crate::rig::{BLOCK, Counter, Open, Rig, block, read, write};
use weft_block::{BlockDevice, Request};
use weft_cache::Mode;

/// Blocks of the origin: 4 MiB.
const BLOCKS: u64 = 1024;
const ZEROED: u64 = 2 << 20;

/// A cache in which all blocks are dirty and flushed (version 2), on an origin where version 1 is
/// durable.
fn dirty() -> (Rig, Open) {
    let mut rig = Rig::new(Mode::WriteBack, 16 << 20, BLOCKS);
    rig.options.max_dirty_age_ms = u64::MAX;
    let open = rig.open();
    for number in 0..BLOCKS {
        write(&*open.device, number, 1).unwrap();
    }
    open.device.write_back_all().unwrap();
    for number in 0..BLOCKS {
        write(&*open.device, number, 2).unwrap();
    }
    open.device.flush().unwrap();
    assert_eq!(open.cache.stats().dirty_bytes, BLOCKS * BLOCK as u64);
    (rig, open)
}

/// Reads all blocks after a power cut of both disks that loses all that was not flushed.
fn judge_cut(rig: &Rig, what: &str) {
    let disks =
        (rig.cache_disk.inner().inner().snapshot(), rig.origin_disk.inner().inner().snapshot());
    let left = rig.on(&disks.0, &disks.1);
    let open = left.open();
    for number in 0..BLOCKS {
        let got = read(&*open.device, number).unwrap();
        let zeroes = number * (BLOCK as u64) < ZEROED && got == [0; BLOCK];
        let older = got == block(number, 1);
        assert!(!older, "{what}: block {number} is older than the flushed one");
        assert!(zeroes || got == block(number, 2), "{what}: block {number} is neither");
    }
    open.device.write_back_all().unwrap();
    for number in 0..BLOCKS {
        let read = read(&*open.device, number).unwrap();
        assert_eq!(left.durable_origin_block(number), read, "{what}");
    }
}

/// Cuts the power at every moment at which something becomes durable.
fn survives(change: impl Fn(&dyn BlockDevice)) {
    let (rig, open) = dirty();
    change(&*open.device);
    judge_cut(&rig, "at once");
    // The commit of what the change has done to the cache, long before the origin is flushed.
    for second in 1..=20 {
        rig.pass_ms(&open, 1000);
        judge_cut(&rig, &format!("after {second} s"));
    }
    open.cache.checkpoint_always().unwrap();
    judge_cut(&rig, "after a checkpoint");
    for number in 0..BLOCKS {
        let got = read(&*open.device, number).unwrap();
        let may = number * (BLOCK as u64) < ZEROED && got == [0; BLOCK];
        assert!(may || got == block(number, 2), "block {number} while the power is on");
    }
    open.device.flush().unwrap();
    judge_cut(&rig, "after a flush");
    open.device.set_mode(Mode::WriteThrough).unwrap();
    judge_cut(&rig, "after a change of mode");
    open.cache.detach(&open.device).unwrap();
    for number in 0..BLOCKS {
        let got = rig.durable_origin_block(number);
        let may = number * (BLOCK as u64) < ZEROED && got == [0; BLOCK];
        assert!(may || got == block(number, 2), "block {number} of the bare origin");
    }
}

#[test]
fn a_flushed_write_survives_long_zeroes_and_a_power_cut() {
    survives(|device| device.write_zeroes(0, ZEROED).unwrap());
}

/// The disk of this test ignores discards, as disks may: what it has is older than what was flushed.
#[test]
fn nothing_older_than_a_flushed_write_is_read_after_a_long_discard() {
    survives(|device| device.discard(0, ZEROED).unwrap());
}

/// The mend of the above must not cost a flush of the origin for each request.
#[test]
fn long_zeroes_and_discards_flush_no_origin() {
    let (rig, open) = dirty();
    let flushes = Counter::new(&rig.origin_disk, Request::Flush);
    open.device.write_zeroes(0, ZEROED).unwrap();
    open.device.discard(ZEROED, ZEROED).unwrap();
    assert_eq!(flushes.count(), 0);
    drop(flushes);
    open.device.flush().unwrap();
    let zeroes = read(&*open.device, 0).unwrap();
    assert_eq!(zeroes, [0; BLOCK]);
}

/// Zeroes over a damaged dirty block, short and long ones, mend it: it can be written back.
#[test]
fn zeroes_replace_damaged_dirty_data() {
    for len in [BLOCK as u64, ZEROED] {
        let (rig, open) = dirty();
        let mut found = None;
        let dump = weft_cache::dump(&*rig.cache_disk, |slot| {
            if slot.offset == 0 && slot.dirty != 0 {
                found = Some(slot.slot);
            }
        });
        let sb = dump.unwrap().superblock;
        let slot = u64::from(found.expect("block 0 is dirty"));
        let at = sb.data_offset + slot * u64::from(sb.block_bytes);
        rig.cache_disk.write_at(&[0x55; BLOCK], at).unwrap();
        open.device.write_back_all().expect_err("a dirty block is damaged");
        open.device.write_zeroes(0, len).unwrap();
        open.device.write_back_all().unwrap();
        assert_eq!(rig.durable_origin_block(0), [0; BLOCK]);
    }
}
