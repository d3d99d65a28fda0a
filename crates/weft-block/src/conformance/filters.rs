//! The properties of the device below that must be visible through a filter.

use super::{FilterBench, content};
use crate::{BlockDevice, Geometry};
use std::io::IoSlice;

pub(super) fn block_sizes_come_through(bench: &FilterBench<'_>) {
    let sizes = |geometry: Geometry| (geometry.logical_block_bytes, geometry.physical_block_bytes);
    assert_eq!(sizes(bench.device.geometry()), sizes(bench.below.geometry()));
}

pub(super) fn flush_covers_every_change(bench: &FilterBench<'_>) {
    if bench.device.geometry().read_only || bench.limits.private {
        return;
    }
    let (device, below) = (bench.device, bench.below);
    let two = [IoSlice::new(&[7; 600]), IoSlice::new(&[8; 600])];
    let changes: [(&str, &dyn Fn() -> crate::Result<()>); 4] = [
        ("write", &|| device.write_at(&[1; 512], 1000)),
        ("vectored write", &|| device.write_vectored_at(&two, 5000)),
        ("zeroes", &|| device.write_zeroes(1000, 5000)),
        ("discard", &|| device.discard(4096, 4096)),
    ];
    for (call, change) in changes {
        let before = below.changes();
        change().unwrap_or_else(|e| panic!("{call}: {e}"));
        device.flush().expect("a flush");
        // A discard may be left undone.
        assert!(call == "discard" || below.changes() > before, "{call} does not come below");
        assert_eq!(below.unflushed(), 0, "changes that a flush after a {call} leaves");
    }
}

pub(super) fn changes_stay_above(bench: &FilterBench<'_>) {
    if !bench.device.geometry().read_only && !bench.limits.private {
        return;
    }
    let before = content(bench.below);
    let _ = bench.device.write_at(&[1; 5000], 1000);
    let _ = bench.device.write_vectored_at(&[IoSlice::new(&[1; 600]), IoSlice::new(&[2; 9])], 0);
    let _ = bench.device.write_zeroes(1000, 5000);
    let _ = bench.device.discard(0, 100_000);
    let _ = bench.device.flush();
    assert_eq!(bench.below.changes(), 0, "changes of the device below");
    assert!(content(bench.below) == before, "the device below is as it was");
}

pub(super) fn errors_come_through(bench: &FilterBench<'_>) {
    let device = bench.device;
    bench.below.fail(true);
    assert!(device.read_at(&mut [0; 512], 4096).is_err(), "a read that fails below");
    if !device.geometry().read_only && !bench.limits.private {
        let written = device.write_at(&[1; 512], 4096);
        let flushed = device.flush();
        assert!(flushed.is_err(), "a flush that fails below, after a write: {written:?}");
    }
    bench.below.fail(false);
    device.read_at(&mut [0; 512], 4096).expect("a read after the fault");
}
