//! Changes: each in its range and nowhere else, or refused.

use super::{Bench, assert_same, content, pattern};
use crate::{Error, ExtentKind};
use std::io::IoSlice;

/// Ranges of any alignment: offset and length in bytes.
const RANGES: [(usize, usize); 10] = [
    (0, 1),
    (0, 4096),
    (511, 2),
    (700, 512),
    (4096, 4096),
    (5000, 8192),
    (8191, 1),
    (12_288, 65_536),
    (16_000, 100_001),
    (131_072, 131_072),
];

pub(super) fn read_only_refuses_every_change(bench: &Bench<'_>) {
    if bench.is_writable() {
        return;
    }
    let before = content(bench.device);
    let two = [IoSlice::new(&[7; 600]), IoSlice::new(&[8; 600])];
    for (change, call) in [
        (bench.device.write_at(&[7; 512], 0), "write"),
        (bench.device.write_vectored_at(&two, 512), "vectored write"),
        (bench.device.write_zeroes(0, 4096), "zeroes"),
        (bench.device.discard(0, 4096), "discard"),
    ] {
        assert!(matches!(change, Err(Error::ReadOnly)), "{call}: {change:?}");
    }
    bench.device.flush().expect("a flush of nothing");
    assert_same(&content(bench.device), &before, "a device that is read-only");
}

/// Makes a change of each of the ranges, and compares the whole device with what it should be.
/// A byte that is expected to be `None` may read as anything.
fn in_their_range(
    bench: &Bench<'_>,
    what: &str,
    change: impl Fn(usize, usize) -> crate::Result<()>,
    value: impl Fn(usize, usize) -> Option<Vec<u8>>,
) {
    if !bench.is_writable() {
        return;
    }
    let mut model = pattern(1, bench.len_bytes() as usize);
    let end = model.len();
    let ranges = RANGES.into_iter().chain([(end - 1, 1), (end - 5000, 5000), (0, end)]);
    for (at, len) in ranges.filter(|(at, len)| at + len <= end) {
        bench.device.write_at(&model, 0).expect("a write of the whole device");
        change(at, len).unwrap_or_else(|e| panic!("{what} of {len} bytes at {at}: {e}"));
        let found = content(bench.device);
        let value = value(at, len).unwrap_or_else(|| found[at..at + len].to_vec());
        model[at..at + len].copy_from_slice(&value);
        assert_same(&found, &model, &format!("after {what} of {len} bytes at {at}"));
    }
    change(end, 0).expect("a change of nothing at the end");
    assert_same(&content(bench.device), &model, "after a change of nothing");
}

pub(super) fn writes_stay_in_their_range(bench: &Bench<'_>) {
    in_their_range(
        bench,
        "a write",
        |at, len| bench.device.write_at(&pattern(2 + at as u64, len), at as u64),
        |at, len| Some(pattern(2 + at as u64, len)),
    );
}

pub(super) fn vectored_writes_are_one_range(bench: &Bench<'_>) {
    // More buffers than one system call takes, some of them empty.
    let write = |at: usize, len: usize| {
        let bytes = pattern(2 + at as u64, len);
        let mut bufs: Vec<IoSlice<'_>> = bytes.chunks(97).map(IoSlice::new).collect();
        bufs.insert(bufs.len() / 2, IoSlice::new(&[]));
        bench.device.write_vectored_at(&bufs, at as u64)
    };
    in_their_range(bench, "a vectored write", write, |at, len| Some(pattern(2 + at as u64, len)));
    if bench.is_writable() {
        bench.device.write_vectored_at(&[], 0).expect("a write of no buffers");
        bench.device.write_vectored_at(&[IoSlice::new(b"one")], 5).expect("a write of one");
        assert_eq!(content(bench.device)[5..8], *b"one");
    }
}

pub(super) fn zeroes_stay_in_their_range(bench: &Bench<'_>) {
    let zero = |at: usize, len: usize| bench.device.write_zeroes(at as u64, len as u64);
    in_their_range(bench, "zeroes", zero, |_, len| Some(vec![0; len]));
}

pub(super) fn discards_stay_in_their_range(bench: &Bench<'_>) {
    let discard = |at: usize, len: usize| bench.device.discard(at as u64, len as u64);
    in_their_range(bench, "a discard", discard, |_, _| None);
}

pub(super) fn zeroes_are_holes(bench: &Bench<'_>) {
    if !bench.is_writable() || !bench.limits.holes {
        return;
    }
    let (device, len) = (bench.device, bench.len_bytes());
    device.write_at(&pattern(1, len as usize), 0).expect("a write of the whole device");
    device.flush().expect("a flush");
    let kind = |at| device.extent_at(at, 4096).expect("an extent").kind;
    assert_eq!(kind(len / 2), ExtentKind::Data, "data");
    device.write_zeroes(0, len).expect("zeroes");
    device.flush().expect("a flush");
    let extent = device.extent_at(0, len).expect("an extent");
    assert_ne!(kind(len / 2), ExtentKind::Data, "zeroes everywhere: {extent:?}");
    device.write_at(&[1; 4096], len / 2).expect("a write");
    assert_eq!(kind(len / 2), ExtentKind::Data, "data among zeroes");
}

pub(super) fn flushes_keep_everything(bench: &Bench<'_>) {
    if !bench.is_writable() {
        return;
    }
    let model = pattern(3, bench.len_bytes() as usize);
    for (at, bytes) in model.chunks(30_011).enumerate() {
        bench.device.write_at(bytes, at as u64 * 30_011).expect("a write");
        bench.device.flush().expect("a flush");
    }
    bench.device.flush().expect("a flush of nothing");
    assert_same(&content(bench.device), &model, "after many flushes");
}
