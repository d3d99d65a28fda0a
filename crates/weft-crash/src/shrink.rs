//! Shrinks a violation: fewer operations, then the most regular state that still shows it.

use crate::config::Config;
use crate::judge::Judge;
use crate::model::State;
use crate::one_workload::{Violation, explore_one};
use crate::record::prepare;
use crate::workload::{Op, Workload};
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// Maximum time for one violation.
const TIME: Duration = Duration::from_secs(30);

/// Removes operations that are not needed to show a violation of the same kind.
///
/// # Errors
/// As [`explore`](crate::explore).
pub fn shrink(config: &Config, violation: &Violation) -> Result<Violation> {
    let until = Instant::now() + TIME;
    let late = || Instant::now() >= until;
    let mut judge = Judge::new(&*config.target)?;
    let kind = violation.faults.first().map(|f| f.kind);
    let mut shows = |config: &Config, workload: &Workload| -> Result<Option<Violation>> {
        let found = match prepare(&*config.target, &workload.setup) {
            Ok(prepared) => explore_one(config, &mut judge, &prepared, workload, &late),
            Err(e) => Err(e),
        };
        match found {
            Ok(found) => Ok(found.violation.filter(|v| v.faults.first().map(|f| f.kind) == kind)),
            // The remaining operations are impossible without the removed ones.
            Err(Error::Model { .. } | Error::Fs { .. } | Error::Target(_)) => Ok(None),
            Err(e) => Err(e),
        }
    };
    // All states are judged: with a sample, a smaller workload could hide the violation by chance.
    // But without the other judges, which take most of the time, if the file system's own finds it.
    let all = Config { states_per_workload: usize::MAX, ..config.clone() };
    let own = Config { e2fsck_every: 0, repair_every: 0, ..all.clone() };
    let config = if shows(&own, &violation.workload)?.is_some() {
        own
    } else {
        Config { e2fsck_every: 1, repair_every: 1, ..all }
    };
    let mut best = violation.clone();
    loop {
        let mut smaller = None;
        let now = best.workload.clone();
        for candidate in candidates(&now).map(sensible) {
            if late() {
                return Ok(best);
            }
            let same = shows(&config, &candidate)?;
            if same.is_some() {
                smaller = same;
                break;
            }
        }
        match smaller {
            Some(found) => best = found,
            None => return Ok(best),
        }
    }
}

/// Removes the operations that have become impossible because others were removed.
fn sensible(workload: Workload) -> Workload {
    let mut state = State::default();
    let mut number = 0;
    let mut keep = |op: &Op| {
        let mut next = state.clone();
        number += 1;
        let makes_sense = next.apply(op, number).is_ok();
        if makes_sense {
            state = next;
        }
        makes_sense
    };
    let setup: Vec<Op> = workload.setup.iter().filter(|op| keep(op)).cloned().collect();
    let ops = workload.ops.into_iter().filter(|op| keep(op)).collect();
    Workload { setup: setup.into(), ops }
}

/// Returns shorter workloads, those with the most operations removed first: halves, quarters, and
/// so on down to single ones; for each length recorded operations before those of the setup, the
/// last first.
fn candidates(workload: &Workload) -> impl Iterator<Item = Workload> + '_ {
    let without = |ops: &[Op], from: usize, len: usize| -> Vec<Op> {
        let to = (from + len).min(ops.len());
        ops[..from].iter().chain(&ops[to..]).cloned().collect()
    };
    let longest = (workload.ops.len() / 2).max(workload.setup.len() / 2).max(1);
    let lengths = std::iter::successors(Some(longest), |len| (*len > 1).then_some(len / 2));
    lengths.flat_map(move |len| {
        let recorded = (0..workload.ops.len()).step_by(len).rev().map(move |from| Workload {
            setup: workload.setup.clone(),
            ops: without(&workload.ops, from, len),
        });
        let setup = (0..workload.setup.len()).step_by(len).rev().map(move |from| Workload {
            setup: without(&workload.setup, from, len).into(),
            ops: workload.ops.clone(),
        });
        recorded.chain(setup)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_alone_goes_along() {
        let workload: Workload = "mkdir A | rename A/x A/y; creat A/z; unlink A/y".parse().unwrap();
        assert_eq!(sensible(workload).to_string(), "mkdir A | creat A/z");
    }

    #[test]
    fn candidates_are_shorter_by_halves_and_then_by_one() {
        let workload: Workload =
            "mkdir A; creat x | creat A/y; hold x; fsync x; sync".parse().unwrap();
        let texts: Vec<String> = candidates(&workload).map(|w| w.to_string()).collect();
        assert_eq!(
            texts,
            [
                "mkdir A; creat x | creat A/y; hold x",
                "mkdir A; creat x | fsync x; sync",
                "creat A/y; hold x; fsync x; sync",
                "mkdir A; creat x | creat A/y; hold x; fsync x",
                "mkdir A; creat x | creat A/y; hold x; sync",
                "mkdir A; creat x | creat A/y; fsync x; sync",
                "mkdir A; creat x | hold x; fsync x; sync",
                "mkdir A | creat A/y; hold x; fsync x; sync",
                "creat x | creat A/y; hold x; fsync x; sync",
            ]
        );
    }
}
