//! The random comparison with the model: generate, compare after every operation, shrink, print.

use super::bench::Bench;
use super::compare::picture;
use super::operations::{Operation, Side, Told, random_operation};
use super::seeded::Random;
use crate::{MemFs, Result};

/// The maximum number of runs while shrinking.
const SHRINKING_RUNS: usize = 300;

/// Contents are compared after this many operations (and after each one while shrinking).
const CONTENT_EVERY: usize = 16;

pub(super) fn agrees_with_the_model(bench: &Bench<'_>) -> Result<()> {
    for run in 0..u64::from(bench.limits.random_runs) {
        let seed = bench.limits.seed + run;
        let mut random = Random::new(seed);
        let operations: Vec<_> = (0..bench.limits.random_operations)
            .map(|_| random_operation(&mut random, bench.limits))
            .collect();
        if let Err((at, what)) = play(bench, &operations, CONTENT_EVERY) {
            let (least, what) = shrink(bench, &operations[..=at], what);
            let list: Vec<_> = least.iter().map(|o| format!("    {o:?}")).collect();
            panic!("seed {seed}: {what}\n  after\n{}", list.join("\n"));
        }
    }
    Ok(())
}

/// Runs the operations on a fresh file system and on the model. Returns the first difference, and
/// the operation after which it appeared.
fn play(
    bench: &Bench<'_>,
    operations: &[Operation],
    content_every: usize,
) -> Result<(), (usize, String)> {
    let (fs, model) = ((bench.make)(), MemFs::new());
    let (mut left, mut right) = (Side::new(&*fs, bench.limits), Side::new(&model, bench.limits));
    for (at, operation) in operations.iter().enumerate() {
        let fail = |what: String| (at, what);
        let (got, want) = (left.apply(operation), right.apply(operation));
        if got != want {
            let show = |told: &Told| match told {
                Ok(bytes) if bytes.len() > 16 => format!("{} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            return Err(fail(format!("told {}, the model {}", show(&got), show(&want))));
        }
        let content = at % content_every == content_every - 1 || at + 1 == operations.len();
        let seen =
            picture(&*fs, content, bench.limits).map_err(|e| fail(format!("looking: {e}")))?;
        let want =
            picture(&model, content, bench.limits).map_err(|e| fail(format!("the model: {e}")))?;
        if let Some(difference) = seen.difference(&want) {
            return Err(fail(difference));
        }
    }
    let last = operations.len().saturating_sub(1);
    left.close_all().map_err(|e| (last, format!("closing: {e}")))?;
    fs.unmount().map_err(|e| (last, format!("unmount: {e}")))
}

/// Removes operations, first many at once and then single ones, as long as the sequence still
/// fails.
fn shrink(bench: &Bench<'_>, operations: &[Operation], what: String) -> (Vec<Operation>, String) {
    let (mut least, mut what) = (operations.to_vec(), what);
    let mut runs = 0;
    let mut chunk = least.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < least.len() && runs < SHRINKING_RUNS {
            let mut fewer = least.clone();
            fewer.drain(at..(at + chunk).min(least.len()));
            runs += 1;
            match play(bench, &fewer, 1) {
                Err((last, difference)) => {
                    fewer.truncate(last + 1);
                    (least, what) = (fewer, difference);
                }
                Ok(()) => at += chunk,
            }
        }
        chunk /= 2;
    }
    (least, what)
}
