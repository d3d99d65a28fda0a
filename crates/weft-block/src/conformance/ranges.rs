//! Ranges: what a device is like, what can be read of it, and what is past its end.

use super::{Bench, assert_same, content};
use crate::{BlockDevice, Error, ExtentKind, Result, Rng, SECTOR_BYTES};
use std::io::IoSlice;

pub(super) fn geometry_is_sound_and_stays(bench: &Bench<'_>) {
    let geometry = bench.device.geometry();
    let (logical, physical) = (geometry.logical_block_bytes, geometry.physical_block_bytes);
    assert!(logical.is_power_of_two() && logical as usize >= SECTOR_BYTES, "{geometry:?}");
    assert!(physical >= logical && physical % logical == 0, "{geometry:?}");
    assert!(geometry.len_bytes >= 256 << 10, "long enough for this suite: {geometry:?}");
    bench.device.check_whole().expect("nothing happened to it");
    bench.device.flush().expect("a flush of nothing");
    if bench.is_writable() {
        bench.device.write_at(&[1; 700], 300).expect("a write");
        bench.device.flush().expect("a flush");
    }
    bench.device.check_whole().expect("nothing happened to it");
    assert_eq!(bench.device.geometry(), geometry);
}

pub(super) fn reads_agree(bench: &Bench<'_>) {
    let whole = content(bench.device);
    let mut rng = Rng::new(bench.limits.seed);
    for _ in 0..200 {
        let at = rng.index(whole.len() + 1);
        let len = rng.index(whole.len() - at + 1).min(1 << rng.below(18));
        let mut part = vec![0xaa; len];
        bench.device.read_at(&mut part, at as u64).expect("a read");
        assert_same(&part, &whole[at..at + len], &format!("{len} bytes at {at}"));
    }
}

pub(super) fn past_the_end_is_refused(bench: &Bench<'_>) {
    let device = bench.device;
    let len = bench.len_bytes();
    let before = content(device);
    device.read_at(&mut [], len).expect("an empty read at the end");
    for (offset, len_bytes) in
        [(len, 1), (len - 1, 2), (len - 4096, 4097), (len + 1, 1), (u64::MAX, 1), (u64::MAX - 4, 9)]
    {
        let bytes = vec![7; len_bytes as usize];
        let halves = bytes.split_at(bytes.len() / 2);
        let halves = [IoSlice::new(halves.0), IoSlice::new(halves.1)];
        let range = format!("{len_bytes} bytes at {offset} of {len}");
        refused_as_past_the_end(&device.read_at(&mut bytes.clone(), offset), "read", &range);
        let extent = device.extent_at(offset, len_bytes).map(drop);
        refused_as_past_the_end(&extent, "extent", &range);
        for (change, call) in [
            (device.write_at(&bytes, offset), "write"),
            (device.write_vectored_at(&halves, offset), "vectored write"),
            (device.write_zeroes(offset, len_bytes), "zeroes"),
            (device.discard(offset, len_bytes), "discard"),
        ] {
            match change {
                Err(Error::ReadOnly) if !bench.is_writable() => {}
                result => refused_as_past_the_end(&result, call, &range),
            }
        }
    }
    assert_same(&content(device), &before, "the device after what it refused");
}

fn refused_as_past_the_end(result: &Result<()>, call: &str, range: &str) {
    assert!(matches!(result, Err(Error::OutOfRange { .. })), "{call} of {range}: {result:?}");
}

pub(super) fn extents_tile_the_device(bench: &Bench<'_>) {
    let len = bench.len_bytes();
    let mut rng = Rng::new(bench.limits.seed);
    check_extents(bench.device, 0, len);
    if bench.is_writable() {
        let zeroes = rng.below(len / 2)..len / 2 + rng.below(len / 2);
        bench.device.write_zeroes(zeroes.start, zeroes.end - zeroes.start).expect("zeroes");
        for _ in 0..20 {
            bench.device.write_at(&[1; 700], rng.below(len - 700)).expect("a write");
        }
        check_extents(bench.device, 0, len);
    }
    for _ in 0..50 {
        let offset = rng.below(len + 1);
        check_extents(bench.device, offset, rng.below(len - offset + 1));
    }
}

/// Goes through the extents of a range, and reads those that are said to be zeroes.
pub(super) fn check_extents(device: &dyn BlockDevice, offset: u64, len_bytes: u64) {
    if len_bytes == 0 {
        let extent = device.extent_at(offset, 0).expect("an empty extent");
        assert_eq!(extent.len_bytes, 0, "an empty extent at {offset}");
    }
    let end = offset + len_bytes;
    let mut at = offset;
    while at < end {
        let extent = device.extent_at(at, end - at).expect("an extent");
        let range = format!("{extent:?} of {} bytes at {at}", end - at);
        assert!((1..=end - at).contains(&extent.len_bytes), "{range}");
        if extent.kind != ExtentKind::Data {
            let mut bytes = vec![1; extent.len_bytes as usize];
            device.read_at(&mut bytes, at).expect("a read");
            let other = bytes.iter().position(|byte| *byte != 0);
            assert!(other.is_none(), "{range} reads as something else at {other:?}");
        }
        at += extent.len_bytes;
    }
}
