//! Every device and every filter of this crate goes through the conformance suite.

use crate::wrap;
use std::sync::Arc;
use std::time::Duration;
use weft_block::conformance::{Limits, Probe, forwarding, run, run_filter};
use weft_block::container::{self, DiskCopy};
use weft_block::{
    BlockDevice, CrashDevice, Fault, FaultDevice, FileDevice, Image, MemoryDevice, OpenMode,
    Overlay, Partition, ReadOnly, Recorder, Request, Rule, SnapshotDevice,
};

/// The floppy that a Disk Copy image is made of here, in bytes.
const FLOPPY_BYTES: u64 = 819_200;

fn limits() -> Limits {
    Limits { holes: true, ..Limits::default() }
}

#[test]
fn an_image_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.img");
    let make = || {
        let _ = std::fs::remove_file(&path);
        FileDevice::create(&path, 500_300).unwrap()
    };
    run(make, &Limits { holes: false, ..limits() });
    std::fs::write(&path, wrap::volume(500_300)).unwrap();
    run(|| FileDevice::open(&path, OpenMode::READ_ONLY).unwrap(), &limits());
}

#[test]
fn filters_that_change_nothing() {
    run_filter(FaultDevice::new, &limits());
    run_filter(Recorder::new, &limits());
    run_filter(SnapshotDevice::new, &limits());
    run_filter(|below| Partition::window(below, 5120, 900_000), &limits());
    assert_eq!(lost_by(FaultDevice::new), ["read_at_nowait"]);
    assert_eq!(lost_by(Recorder::new), ["read_at_nowait"]);
    assert_eq!(lost_by(SnapshotDevice::new), ["read_at_nowait"]);
    assert_eq!(lost_by(|below| Partition::window(below, 5120, 900_000)), [""; 0]);
}

fn lost_by<F: BlockDevice>(make: impl Fn(Arc<Probe>) -> F) -> Vec<&'static str> {
    let below = Arc::new(Probe::new());
    forwarding::not_forwarded(&make(Arc::clone(&below)), &below)
}

#[test]
fn filters_that_refuse_changes() {
    run_filter(ReadOnly::new, &limits());
    let frozen = |below| {
        let device = Arc::new(SnapshotDevice::new(below));
        device.freeze(1 << 20).unwrap()
    };
    run_filter(frozen, &limits());
    let overtaken = || {
        let device = Arc::new(SnapshotDevice::new(MemoryDevice::new(1 << 20)));
        device.write_at(&wrap::volume(500_000), 77).unwrap();
        let snapshot = device.freeze(1 << 20).unwrap();
        device.write_at(&[1; 100_000], 300).unwrap();
        device.write_zeroes(200_000, 300_000).unwrap();
        snapshot
    };
    run(overtaken, &limits());
}

#[test]
fn filters_that_keep_changes() {
    run_filter(Overlay::new, &Limits { private: true, holes: false, ..limits() });
    let crash = Limits { holes: false, ..limits() };
    run_filter(|below| CrashDevice::new(below, 1), &crash);
    run_filter(|below| CrashDevice::with_capacity(below, 1, 5000), &crash);
}

#[test]
fn nothing_bypasses_a_filter() {
    let recorder = Recorder::new(MemoryDevice::new(1 << 20));
    assert_eq!(forwarding::bypasses(&recorder, || recorder.event_count() as u64), [""; 0]);
    let faults = FaultDevice::new(MemoryDevice::new(1 << 20));
    let rule = faults.add(Rule::every(Request::Any, Fault::Delay(Duration::ZERO)));
    assert_eq!(forwarding::bypasses(&faults, || faults.fired(rule)), [""; 0]);
}

#[test]
fn containers() {
    let floppy = || -> Arc<dyn BlockDevice> {
        let file: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(FLOPPY_BYTES + 84));
        DiskCopy::write_header(&*file, b"conformance", FLOPPY_BYTES).unwrap();
        opened(file)
    };
    run(floppy, &limits());
    let wrapped = wrap::macbinary(2, &wrap::volume(400_384), &[]);
    run(|| opened(memory(&wrapped)), &limits());
    let image = wrap::volume(600_064);
    let packed = wrap::udif(&image, 0x8000_0004, false, &wrap::adc);
    run(|| opened(memory(&packed)), &limits());
}

fn memory(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    let mut image = Image::new(bytes.len() as u64);
    image.write(bytes, 0).unwrap();
    Arc::new(MemoryDevice::from_image(image))
}

fn opened(file: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let opened = container::open(file, &container::Options::default()).unwrap();
    assert!(!opened.layers.is_empty(), "it is wrapped in something");
    opened.device
}
