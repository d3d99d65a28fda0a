//! Random operations on the device and on a model in memory, compared after each one.

use super::ranges::check_extents;
use super::{Bench, content, pattern};
use crate::{BlockDevice, Rng};
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most tries to make a list of operations that fails shorter.
const TRIES: usize = 300;

/// One operation; the numbers are offset and length in bytes.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Read(usize, usize),
    Extents(usize, usize),
    /// With the seed of its bytes.
    Write(usize, usize, u64),
    Vectored(usize, usize, u64),
    Zero(usize, usize),
    Discard(usize, usize),
    Flush,
}

pub(super) fn agrees_with_the_model(bench: &Bench<'_>) {
    if !bench.is_writable() {
        return;
    }
    for seed in bench.limits.seed..bench.limits.seed + bench.limits.random_runs {
        let mut rng = Rng::new(seed);
        let len = bench.len_bytes() as usize;
        let operations: Vec<Operation> =
            (0..bench.limits.random_operations).map(|_| draw(&mut rng, len)).collect();
        if let Err(why) = compare(bench, &operations) {
            let (shortest, why) = shrink(bench, operations, why);
            panic!("seed {seed}: {why}; the shortest list that fails: {shortest:?}");
        }
    }
}

/// Draws an operation on a device of `len` bytes: of any alignment, many of them on the same few
/// ranges.
fn draw(rng: &mut Rng, len: usize) -> Operation {
    let unit = [1, 512, 4096, 65_536][rng.index(4)];
    let near = if rng.chance(1, 2) { len.min(200_000) } else { len };
    let at = rng.index(near + 1) / unit * unit;
    let n = match rng.below(8) {
        0 => 0,
        1 => 1,
        2 => unit,
        magnitude => (1 + rng.index(1 << (6 + 2 * magnitude))).next_multiple_of(unit),
    };
    let n = n.min(len - at);
    match rng.below(16) {
        0..=3 => Operation::Read(at, n),
        4..=7 => Operation::Write(at, n, rng.next_u64()),
        8 | 9 => Operation::Vectored(at, n, rng.next_u64()),
        10 | 11 => Operation::Zero(at, n),
        12 => Operation::Discard(at, n),
        13 => Operation::Flush,
        _ => Operation::Extents(at, n),
    }
}

/// Bytes as they should be; `None` may read as anything.
struct Model(Vec<Option<u8>>);

impl Model {
    fn check(&self, found: &[u8], at: usize) -> Result<(), String> {
        for (i, (byte, wanted)) in found.iter().zip(&self.0[at..]).enumerate() {
            if let Some(wanted) = wanted.filter(|wanted| wanted != byte) {
                return Err(format!("byte {} is {byte:#04x}, not {wanted:#04x}", at + i));
            }
        }
        Ok(())
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        for (slot, byte) in self.0[at..].iter_mut().zip(bytes) {
            *slot = Some(*byte);
        }
    }
}

/// Does the operations on a fresh device, and says which one failed and how.
fn compare(bench: &Bench<'_>, operations: &[Operation]) -> Result<(), String> {
    let mut result = Ok(());
    (bench.with_fresh)(&mut |device| result = compare_on(device, operations));
    result
}

fn compare_on(device: &dyn BlockDevice, operations: &[Operation]) -> Result<(), String> {
    let mut model = Model(content(device).into_iter().map(Some).collect());
    for operation in operations {
        // A panic of the device is a failure like others.
        catch_unwind(AssertUnwindSafe(|| step(device, &mut model, *operation)))
            .unwrap_or_else(|_| Err("a panic".to_owned()))
            .map_err(|why| format!("{operation:?}: {why}"))?;
    }
    model.check(&content(device), 0).map_err(|why| format!("at the end: {why}"))
}

fn step(device: &dyn BlockDevice, model: &mut Model, operation: Operation) -> Result<(), String> {
    let done = match operation {
        Operation::Read(at, len) => {
            let mut found = vec![0xaa; len];
            device.read_at(&mut found, at as u64).map_err(|e| e.to_string())?;
            return model.check(&found, at);
        }
        Operation::Extents(at, len) => {
            check_extents(device, at as u64, len as u64);
            return Ok(());
        }
        Operation::Write(at, len, seed) => {
            let bytes = pattern(seed, len);
            model.set(at, &bytes);
            device.write_at(&bytes, at as u64)
        }
        Operation::Vectored(at, len, seed) => {
            let bytes = pattern(seed, len);
            model.set(at, &bytes);
            let piece = 1 + (seed % 5000) as usize;
            let bufs: Vec<IoSlice<'_>> = bytes.chunks(piece).map(IoSlice::new).collect();
            device.write_vectored_at(&bufs, at as u64)
        }
        Operation::Zero(at, len) => {
            model.set(at, &vec![0; len]);
            device.write_zeroes(at as u64, len as u64)
        }
        Operation::Discard(at, len) => {
            model.0[at..at + len].fill(None);
            device.discard(at as u64, len as u64)
        }
        Operation::Flush => device.flush(),
    };
    done.map_err(|e| e.to_string())?;
    match operation {
        // The range and the bytes around it.
        Operation::Write(at, len, _)
        | Operation::Vectored(at, len, _)
        | Operation::Zero(at, len)
        | Operation::Discard(at, len) => {
            let (from, to) = (at.saturating_sub(600), (at + len + 600).min(model.0.len()));
            let mut found = vec![0xaa; to - from];
            device.read_at(&mut found, from as u64).map_err(|e| e.to_string())?;
            model.check(&found, from)
        }
        Operation::Read(..) | Operation::Extents(..) | Operation::Flush => Ok(()),
    }
}

/// Leaves out operations as long as the rest fails.
fn shrink(
    bench: &Bench<'_>,
    mut operations: Vec<Operation>,
    mut why: String,
) -> (Vec<Operation>, String) {
    let mut piece = operations.len() / 2;
    let mut tries = 0;
    while piece > 0 && tries < TRIES {
        let mut at = 0;
        while at < operations.len() && tries < TRIES {
            let mut fewer = operations.clone();
            fewer.drain(at..(at + piece).min(fewer.len()));
            tries += 1;
            match compare(bench, &fewer) {
                Err(still) => (operations, why) = (fewer, still),
                Ok(()) => at += piece,
            }
        }
        piece /= 2;
    }
    (operations, why)
}
