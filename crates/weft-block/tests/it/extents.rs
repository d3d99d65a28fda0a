//! Every decorator passes on the holes of the device below.

use std::sync::Arc;
use weft_block::{
    BlockDevice, CrashDevice, ExtentKind, FaultDevice, MemoryDevice, Overlay, ReadOnly, Recorder,
    SnapshotDevice,
};

const LEN: u64 = 8 << 20;

/// A hole of so many bytes, data in the second megabyte, a hole.
fn sparse() -> Arc<MemoryDevice> {
    let memory = MemoryDevice::new(LEN);
    memory.write_at(&vec![7; 1 << 20], 1 << 20).unwrap();
    Arc::new(memory)
}

/// The runs of a device, neighbours of one kind together.
fn runs(device: &dyn BlockDevice) -> Vec<(u64, bool)> {
    let mut runs: Vec<(u64, bool)> = Vec::new();
    let mut at = 0;
    while at < LEN {
        let extent = device.extent_at(at, LEN - at).unwrap();
        assert!(extent.len_bytes > 0 && extent.len_bytes <= LEN - at);
        let data = extent.kind == ExtentKind::Data;
        match runs.last_mut() {
            Some((len, same)) if *same == data => *len += extent.len_bytes,
            _ => runs.push((extent.len_bytes, data)),
        }
        at += extent.len_bytes;
    }
    runs
}

#[test]
fn every_decorator_passes_holes_on() {
    let plain = vec![(1 << 20, false), (1 << 20, true), (6 << 20, false)];
    let below = sparse();
    assert_eq!(runs(&*below), plain);
    assert_eq!(runs(&ReadOnly::new(sparse())), plain);
    assert_eq!(runs(&FaultDevice::new(sparse())), plain);
    assert_eq!(runs(&Recorder::new(sparse())), plain);
    assert_eq!(runs(&SnapshotDevice::new(sparse())), plain);
    assert_eq!(runs(&CrashDevice::new(sparse(), 1)), plain);
    assert_eq!(runs(&Overlay::new(sparse())), plain);
}

/// A device that keeps what is written in a place of its own must not call it a hole.
#[test]
fn what_a_decorator_keeps_is_data() {
    let written = vec![
        (1 << 20, false),
        (1 << 20, true),
        (1 << 20, false),
        (4096, true),
        ((5 << 20) - 4096, false),
    ];
    let overlay = Overlay::new(sparse());
    overlay.write_at(&[1; 4096], 3 << 20).unwrap();
    assert_eq!(runs(&overlay), written);
    let crash = CrashDevice::new(sparse(), 1);
    crash.write_at(&[1; 4096], 3 << 20).unwrap();
    assert_eq!(runs(&crash), written);
    crash.flush().unwrap();
    assert_eq!(runs(&crash), written);
}
