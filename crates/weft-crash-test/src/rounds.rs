//! The order in which the states of all epochs are tried.
//!
//! A check of a second judges a few hundred states in the time that a test has, and a program may have
//! more of them before its first promise. So that each part of the program is looked at before the time
//! is up, a search goes through the epochs in rounds: a few states of each, the most regular ones, then
//! some times as many, until all were tried.

use std::collections::HashSet;

use crate::Result;
use crate::model::Units;
use crate::states::{Bounds, Epoch, State};

/// The states of each epoch in the first round: that with all kept, and that with nothing.
const FIRST: usize = 2;
/// The factor from the states of each epoch up to the end of a round to those up to the end of the next.
const GROWTH: usize = 8;

/// The states that were tried.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Coverage {
    /// The epochs of which all states were tried.
    pub(crate) epochs: u64,
    /// The states that were tried of each other epoch, at least.
    pub(crate) of_each: u64,
}

/// Calls `each` with the states of `epochs`, in rounds, until it returns false. It is told what was
/// tried before.
///
/// # Errors
/// Those of `each`.
pub(crate) fn in_rounds<I: Iterator<Item = Epoch>>(
    epochs: impl Fn() -> I,
    units: &Units,
    bounds: Bounds,
    each: &mut dyn FnMut(&Epoch, State, Coverage) -> Result<bool>,
) -> Result<Coverage> {
    let mut covered = Coverage::default();
    let mut whole = HashSet::new();
    let mut round = 0..FIRST;
    loop {
        let mut more_to_come = false;
        for epoch in epochs() {
            if whole.contains(&epoch.nr) {
                continue;
            }
            let (mut nr, mut is_whole, mut goes_on) = (0, true, Ok(true));
            epoch.each_state(units, bounds, &mut |state| {
                is_whole = nr < round.end;
                if round.contains(&nr) {
                    goes_on = each(&epoch, state, covered);
                }
                nr += 1;
                is_whole && matches!(goes_on, Ok(true))
            });
            if !goes_on? {
                return Ok(covered);
            }
            more_to_come |= !is_whole;
            if is_whole {
                whole.insert(epoch.nr);
                covered.epochs += 1;
            }
        }
        covered.of_each = round.end as u64;
        if !more_to_come {
            return Ok(covered);
        }
        round = round.end..round.end.saturating_mul(GROWTH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{Action, Call, CallNr, Process};
    use crate::model::Model;
    use crate::states::epochs;
    use bytes::Bytes;

    /// Three epochs, with 3, 6 and 4 blocks that may be lost.
    fn calls() -> Vec<Call> {
        let mut actions = Vec::new();
        for blocks in [3, 6, 4] {
            for offset in (0..blocks).map(|nr| nr * 1024) {
                actions.push(Action::BlockWrite { offset, block_bytes: 1024, durable: false });
            }
            actions.push(Action::BlockFlush { covers: CallNr(actions.len() as u32) });
        }
        let data = Bytes::from_static(&[1; 1024]);
        let call =
            |action| Call { action, process: Process::default(), at_nanos: 0, data: data.clone() };
        actions.into_iter().map(call).collect()
    }

    #[test]
    fn rounds_try_the_states_of_all_epochs_once() {
        let calls = calls();
        let units = Units::new(Model::Volume, &calls, &|_| None);
        for bounds in [Bounds::default(), Bounds { all: 20, states: 40, ..Bounds::default() }] {
            let mut wanted = Vec::new();
            for epoch in epochs(&units, &calls) {
                epoch.each_state(&units, bounds, &mut |state| {
                    wanted.push(state.to_string());
                    true
                });
            }
            let (mut tried, mut covered) = (Vec::new(), Vec::new());
            let whole = in_rounds(
                || epochs(&units, &calls),
                &units,
                bounds,
                &mut |epoch, state, coverage| {
                    tried.push(state.to_string());
                    covered.push((epoch.nr, coverage.epochs, coverage.of_each));
                    Ok(true)
                },
            );
            assert_eq!(whole.unwrap().epochs, 4);
            // The last one, at the end of all calls, has one state.
            assert_eq!(tried[..7], ["0:0-2", "0:-", "1:0-5", "1:-", "2:0-3", "2:-", "3:-"]);
            assert_eq!(covered[0], (0, 0, 0));
            assert_eq!(covered[7], (0, 1, 2));
            tried.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(tried, wanted);
        }
    }

    #[test]
    fn rounds_end_when_they_are_told_to() {
        let calls = calls();
        let units = Units::new(Model::Volume, &calls, &|_| None);
        for most in 1..30 {
            let mut tried = 0;
            in_rounds(|| epochs(&units, &calls), &units, Bounds::default(), &mut |_, _, _| {
                tried += 1;
                Ok(tried < most)
            })
            .unwrap();
            assert_eq!(tried, most);
        }
    }
}
