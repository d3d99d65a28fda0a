//! A suite that any [`BlockDevice`] can be put through.
//!
//! [`run`] gives each case a fresh device and reports every case that failed by name. Half of the
//! cases look at one promise each (extents, ranges, zeroes, discards, vectored writes, threads); the
//! random comparison drives the device and a model in memory through the same operations, and
//! shrinks what fails to a short list that is printed with its seed. [`run_filter`] also looks at the
//! device below a [`Filter`](crate::Filter): flushes, errors, block sizes and a device that is
//! read-only must come through it.
//!
//! ```
//! use weft_block::MemoryDevice;
//! use weft_block::conformance::{self, Limits};
//!
//! let limits = Limits { holes: true, random_runs: 1, ..Limits::default() };
//! conformance::run(|| MemoryDevice::new(300_000), &limits);
//! ```

mod changes;
#[cfg(test)]
mod faulty;
mod filters;
pub mod forwarding;
mod probe;
mod random;
mod ranges;
mod threads;

pub use probe::Probe;

use crate::BlockDevice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The capabilities of the device under test, and the extent of the test.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Extents tell where zeroes were written over 256 KiB or more.
    pub holes: bool,
    /// A filter keeps what is written, and never changes the device below.
    pub private: bool,
    /// The number of random comparisons.
    pub random_runs: u64,
    /// The number of operations in each.
    pub random_operations: usize,
    /// The seed of the first random comparison; the next ones count up.
    pub seed: u64,
    /// Run only cases whose name contains this.
    pub only: Option<String>,
}

impl Default for Limits {
    /// A device that says nothing about its content, a test of a second or two.
    fn default() -> Self {
        Self {
            holes: false,
            private: false,
            random_runs: 8,
            random_operations: 200,
            seed: 1,
            only: None,
        }
    }
}

/// A function that is lent a device.
type Borrower<'a> = &'a mut dyn FnMut(&dyn BlockDevice);

/// The fresh device that a case works with.
struct Bench<'a> {
    device: &'a dyn BlockDevice,
    limits: &'a Limits,
    /// Lends another fresh device to a function.
    with_fresh: &'a dyn Fn(Borrower<'_>),
}

impl Bench<'_> {
    fn len_bytes(&self) -> u64 {
        self.device.geometry().len_bytes
    }

    fn is_writable(&self) -> bool {
        !self.device.geometry().read_only
    }
}

/// The fresh filter that a case works with, and the device below it.
struct FilterBench<'a> {
    device: &'a dyn BlockDevice,
    below: &'a Probe,
    limits: &'a Limits,
}

/// One promise, named after it.
struct Case<B> {
    name: &'static str,
    run: B,
}

/// Lists functions as cases under their own names.
macro_rules! cases {
    ($($module:ident :: $function:ident),* $(,)?) => {
        &[$(Case {
            name: concat!(stringify!($module), "::", stringify!($function)),
            run: $module::$function,
        }),*]
    };
}

const CASES: &[Case<fn(&Bench<'_>)>] = cases![
    ranges::geometry_is_sound_and_stays,
    ranges::reads_agree,
    ranges::past_the_end_is_refused,
    ranges::extents_tile_the_device,
    changes::read_only_refuses_every_change,
    changes::writes_stay_in_their_range,
    changes::vectored_writes_are_one_range,
    changes::zeroes_stay_in_their_range,
    changes::zeroes_are_holes,
    changes::discards_stay_in_their_range,
    changes::flushes_keep_everything,
    threads::reads_together,
    threads::ranges_of_their_own,
    random::agrees_with_the_model,
];

const FILTER_CASES: &[Case<fn(&FilterBench<'_>)>] = cases![
    filters::block_sizes_come_through,
    filters::flush_covers_every_change,
    filters::changes_stay_above,
    filters::errors_come_through,
];

/// Puts devices from `make`, each one fresh, of 256 KiB or more and with any content, through all
/// cases. A device that is read-only goes through those that change nothing.
///
/// # Panics
/// If a case fails; the message lists all that did.
pub fn run<D: BlockDevice>(make: impl Fn() -> D, limits: &Limits) {
    report(&device_cases(&make, limits));
}

/// Puts filters from `make` through all cases of [`run`], and looks at what reaches the device
/// below.
///
/// # Panics
/// If a case fails; the message lists all that did.
pub fn run_filter<F: BlockDevice>(make: impl Fn(Arc<Probe>) -> F, limits: &Limits) {
    let mut failed = device_cases(&|| make(Arc::new(Probe::new())), limits);
    for case in FILTER_CASES {
        failed.extend(failure(case.name, limits, || {
            let below = Arc::new(Probe::new());
            let device = &make(Arc::clone(&below));
            (case.run)(&FilterBench { device, below: &below, limits });
        }));
    }
    let only = ["changes::read_only", "ranges::"];
    for only in only.into_iter().filter(|_| !limits.private && limits.only.is_none()) {
        let limits = Limits { only: Some(only.to_owned()), ..limits.clone() };
        failed.extend(device_cases(&|| make(Arc::new(Probe::read_only())), &limits));
    }
    report(&failed);
}

fn device_cases<D: BlockDevice>(make: &impl Fn() -> D, limits: &Limits) -> Vec<&'static str> {
    let run = |case: &Case<fn(&Bench<'_>)>| {
        failure(case.name, limits, || {
            let with_fresh = |work: Borrower<'_>| work(&make());
            (case.run)(&Bench { device: &make(), limits, with_fresh: &with_fresh });
        })
    };
    CASES.iter().filter_map(run).collect()
}

/// Runs a case and returns its name if it fails.
fn failure(name: &'static str, limits: &Limits, case: impl FnOnce()) -> Option<&'static str> {
    if limits.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
        return None;
    }
    // The panic itself says where and why.
    catch_unwind(AssertUnwindSafe(case)).err().map(|_| {
        eprintln!("conformance case {name} failed");
        name
    })
}

fn report(failed: &[&str]) {
    assert!(failed.is_empty(), "{} conformance cases failed: {}", failed.len(), failed.join(", "));
}

/// All bytes of a device.
#[track_caller]
fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len_bytes as usize];
    device.read_at(&mut bytes, 0).expect("a read of the whole device");
    bytes
}

/// Bytes that are the same for the same seed, and never zero.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    crate::Rng::new(seed).fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// Asserts that two runs of bytes are the same, and says where they differ otherwise.
#[track_caller]
fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "length of {what}");
    if let Some(at) = found.iter().zip(wanted).position(|(a, b)| a != b) {
        panic!("{what}: byte {at} is {:#04x} in place of {:#04x}", found[at], wanted[at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn memory_conforms() {
        let limits = Limits { holes: true, ..Limits::default() };
        run(|| MemoryDevice::new((1 << 20) + 700), &limits);
        run(Probe::new, &limits);
    }

    #[test]
    fn pointers_conform() {
        let limits = Limits { holes: true, ..Limits::default() };
        run_filter(|below| below, &limits);
        let below = Probe::new();
        assert_eq!(forwarding::not_forwarded(&&below, &below), [""; 0]);
    }
}
