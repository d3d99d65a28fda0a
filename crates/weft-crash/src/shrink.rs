//! Making a violation small: fewer operations, then the most regular state that still shows it.

use crate::explore::{Config, Violation, explore_one};
use crate::judge::Judge;
use crate::record::prepare;
use crate::workload::{Op, Workload};
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// How long one violation is worked on.
const TIME: Duration = Duration::from_secs(30);

/// Removes what is not needed to show a violation of the same kind.
///
/// # Errors
/// As [`explore`](crate::explore).
pub fn shrink(config: &Config, violation: &Violation) -> Result<Violation> {
    let until = Instant::now() + TIME;
    // Everything is looked at: with a sample, a smaller workload could hide the violation by luck.
    let config = Config {
        e2fsck_every: 1,
        repair_every: 1,
        states_per_workload: usize::MAX,
        ..config.clone()
    };
    let mut judge = Judge::new(&*config.target)?;
    let mut best = violation.clone();
    let kind = violation.faults.first().map(|f| f.kind);
    loop {
        let mut smaller = None;
        for candidate in candidates(&best.workload) {
            if Instant::now() >= until {
                return Ok(best);
            }
            let prepared = match prepare(&*config.target, &candidate.setup) {
                Ok(prepared) => prepared,
                Err(Error::Model { .. } | Error::Fs { .. } | Error::Target(_)) => continue,
                Err(e) => return Err(e),
            };
            let late = || Instant::now() >= until;
            let found = match explore_one(&config, &mut judge, &prepared, &candidate, &late) {
                Ok(found) => found,
                Err(Error::Model { .. }) => continue,
                Err(e) => return Err(e),
            };
            let same = found.violation.filter(|v| v.faults.first().map(|f| f.kind) == kind);
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

/// Everything that is one operation shorter, recorded operations first.
fn candidates(workload: &Workload) -> Vec<Workload> {
    let without = |ops: &[Op], i: usize| -> Vec<Op> {
        ops.iter().enumerate().filter(|(j, _)| i != *j).map(|(_, op)| op.clone()).collect()
    };
    let recorded = (0..workload.ops.len())
        .rev()
        .map(|i| Workload { setup: workload.setup.clone(), ops: without(&workload.ops, i) });
    let setup = (0..workload.setup.len())
        .rev()
        .map(|i| Workload { setup: without(&workload.setup, i).into(), ops: workload.ops.clone() });
    recorded.chain(setup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_one_shorter() {
        let workload: Workload = "mkdir A; creat x | creat A/y; sync".parse().unwrap();
        let texts: Vec<String> = candidates(&workload).iter().map(Workload::to_string).collect();
        assert_eq!(
            texts,
            [
                "mkdir A; creat x | creat A/y",
                "mkdir A; creat x | sync",
                "mkdir A | creat A/y; sync",
                "creat x | creat A/y; sync",
            ]
        );
    }
}
