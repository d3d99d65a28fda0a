//! Tests of filters: which calls reach the device below, and which changes bypass a filter.
//!
//! ```
//! use std::sync::Arc;
//! use weft_block::conformance::{Probe, forwarding};
//! use weft_block::{Request, Rule, Fault, FaultDevice};
//!
//! let below = Arc::new(Probe::new());
//! let device = FaultDevice::new(Arc::clone(&below));
//! assert_eq!(forwarding::not_forwarded(&device, &below), ["read_at_nowait"]);
//!
//! let short = device.add(Rule::every(Request::Any, Fault::Delay(Default::default())));
//! assert!(forwarding::bypasses(&device, || device.fired(short)).is_empty());
//! ```

use super::Probe;
use crate::BlockDevice;
use std::io::IoSlice;

/// Makes every call of the plug to `above` and returns the names of those that did not reach `below`
/// under their own name, in the order of [`BlockDevice`]. What the calls return does not count.
#[must_use]
pub fn not_forwarded(above: &dyn BlockDevice, below: &Probe) -> Vec<&'static str> {
    let reaches = |(name, call): &(&str, Call)| {
        drop(below.take_calls());
        call(above);
        below.take_calls().contains(name)
    };
    CALLS.iter().filter(|call| !reaches(call)).map(|(name, _)| *name).collect()
}

/// Makes every call that changes content and returns the names of those that left `count` as it was:
/// the changes that a filter which counts, records or delays them has not seen.
#[must_use]
pub fn bypasses(above: &dyn BlockDevice, count: impl Fn() -> u64) -> Vec<&'static str> {
    let changes = ["write_at", "write_vectored_at", "discard", "write_zeroes"];
    let bypasses = |(_, call): &&(&str, Call)| {
        let before = count();
        call(above);
        count() == before
    };
    let calls = CALLS.iter().filter(|(name, _)| changes.contains(name));
    calls.filter(bypasses).map(|(name, _)| *name).collect()
}

type Call = fn(&dyn BlockDevice);

/// Each call of the plug.
const CALLS: &[(&str, Call)] = &[
    ("geometry", |device| {
        device.geometry();
    }),
    ("read_at", |device| drop(device.read_at(&mut [0; 512], 1024))),
    ("read_at_nowait", |device| drop(device.read_at_nowait(&mut [0; 512], 1024))),
    ("write_at", |device| drop(device.write_at(&[1; 512], 1024))),
    ("write_vectored_at", |device| {
        let bufs = [IoSlice::new(&[1; 512]), IoSlice::new(&[2; 512])];
        drop(device.write_vectored_at(&bufs, 1024));
    }),
    ("flush", |device| drop(device.flush())),
    ("discard", |device| drop(device.discard(4096, 8192))),
    ("write_zeroes", |device| drop(device.write_zeroes(4096, 8192))),
    ("extent_at", |device| drop(device.extent_at(0, 4096))),
    ("zeroes_are_fast", |device| {
        device.zeroes_are_fast();
    }),
    ("check_whole", |device| drop(device.check_whole())),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_are_those_of_the_trait() {
        let source = include_str!("../device.rs");
        let (_, body) = source.split_once("pub trait BlockDevice").expect("the trait");
        let (body, _) = body.split_once("\n}").expect("its end");
        let name = |line: &'static str| line.strip_prefix("    fn ")?.split('(').next();
        let methods: Vec<&str> = body.lines().filter_map(name).collect();
        let called: Vec<&str> = CALLS.iter().map(|(name, _)| *name).collect();
        assert_eq!(called, methods);
    }
}
