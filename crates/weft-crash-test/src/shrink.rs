//! Reduces a state that fails its check to the smallest that fails, and finds the call that makes
//! the loss matter.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::Result;
use crate::calls::CallNr;
use crate::model::UnitNr;
use crate::states::{Epoch, State, Torn};
use crate::subject::Cursor;

/// The reason for a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The smallest state that was found to fail.
    pub state: State,
    /// The calls before this one had been made.
    pub cut: CallNr,
    /// The units that are lost in it. If there are none, the program was stopped at a bad moment.
    pub lost: Vec<UnitNr>,
    /// A page that is torn.
    pub torn: Option<UnitNr>,
    /// The call without which the check passes: it reached the disk, or it made a promise.
    pub trigger: Option<CallNr>,
    /// No unit that is lost can be kept: set unless the time was over before that was known.
    pub narrowed: bool,
}

/// A power cut after a number of calls, with some units lost.
#[derive(Clone)]
struct Cut {
    end: CallNr,
    lost: BTreeSet<UnitNr>,
    torn: Option<(UnitNr, u8)>,
}

/// Shrinks a failing state, until the deadline: then it is as small as it has become. `fails` runs
/// the check.
///
/// # Errors
/// Those of `fails`.
pub fn shrink(
    cursor: &mut Cursor<'_>,
    state: &State,
    deadline: Instant,
    fails: &mut dyn FnMut(&mut Cursor<'_>, &State) -> Result<bool>,
) -> Result<Cause> {
    let epoch = cursor.epoch(state.epoch)?;
    let lost = (0..epoch.pending.len()).filter(|place| !state.kept.contains(*place));
    let torn = state.torn.map(|torn| (epoch.pending[torn.place as usize], torn.sectors));
    let mut cut =
        Cut { end: epoch.end, lost: lost.map(|place| epoch.pending[place]).collect(), torn };
    let mut shrink = Shrink { cursor, fails, deadline, narrowed: true };
    if cut.torn.is_some() {
        let whole = Cut { torn: None, ..cut.clone() };
        if shrink.fails(&whole)? {
            cut = whole;
        }
    }
    cut = shrink.lose_less(cut)?;
    let trigger;
    (cut, trigger) = shrink.cut_earlier(cut)?;
    cut = shrink.lose_less(cut)?;
    let state = shrink.state(&cut)?;
    let lost = cut.lost.into_iter().collect();
    let (narrowed, torn) = (shrink.narrowed, cut.torn.map(|(unit, _)| unit));
    Ok(Cause { state, cut: cut.end, lost, torn, trigger, narrowed })
}

struct Shrink<'s, 'a> {
    cursor: &'s mut Cursor<'a>,
    fails: &'s mut dyn FnMut(&mut Cursor<'_>, &State) -> Result<bool>,
    deadline: Instant,
    narrowed: bool,
}

impl Shrink<'_, '_> {
    fn state(&mut self, cut: &Cut) -> Result<State> {
        let torn = cut.torn;
        let calls = self.cursor.calls_of_units();
        let epoch = self.cursor.epoch_at(cut.end)?;
        let before_cut = |unit: UnitNr| calls[unit.index()].call < cut.end;
        let mut state = epoch.keep(|unit| before_cut(unit) && !cut.lost.contains(&unit));
        state.torn = torn.and_then(|(unit, sectors)| {
            let place = epoch.pending.binary_search(&unit).ok()?;
            state.kept.contains(place).then_some(Torn { place: place as u32, sectors })
        });
        Ok(state)
    }

    fn fails(&mut self, cut: &Cut) -> Result<bool> {
        let state = self.state(cut)?;
        (self.fails)(self.cursor, &state)
    }

    /// Keeps units that are lost, as long as the check fails: first many at a time.
    fn lose_less(&mut self, mut cut: Cut) -> Result<Cut> {
        let calls = self.cursor.calls_of_units();
        cut.lost.retain(|unit| calls[unit.index()].call < cut.end);
        let mut step = cut.lost.len().max(1);
        loop {
            let lost: Vec<UnitNr> = cut.lost.iter().copied().collect();
            let mut changed = false;
            for chunk in lost.chunks(step) {
                if Instant::now() >= self.deadline {
                    self.narrowed = false;
                    return Ok(cut);
                }
                let mut less = cut.clone();
                less.lost.retain(|unit| !chunk.contains(unit));
                if less.lost.len() < cut.lost.len() && self.fails(&less)? {
                    cut = less;
                    changed = true;
                }
            }
            if step == 1 && !changed {
                return Ok(cut);
            }
            step = (step / 2).max(1);
        }
    }

    /// Finds the call without which the check passes, and cuts the power right after it.
    fn cut_earlier(&mut self, mut cut: Cut) -> Result<(Cut, Option<CallNr>)> {
        if let Some((unit, _)) = cut.torn {
            // A page is torn because the power is cut while it is written.
            let call = self.cursor.calls_of_units()[unit.index()].call;
            let at = Cut { end: CallNr(call.0 + 1), ..cut.clone() };
            if self.fails(&at)? {
                return Ok((at, Some(call)));
            }
        }
        let mut passes = CallNr(0);
        if self.fails(&Cut { end: passes, ..cut.clone() })? {
            return Ok((Cut { end: passes, ..cut }, None));
        }
        while cut.end.0 - passes.0 > 1 {
            let middle = CallNr(passes.0 + (cut.end.0 - passes.0) / 2);
            let earlier = Cut { end: middle, ..cut.clone() };
            if self.fails(&earlier)? {
                cut = earlier;
            } else {
                passes = middle;
            }
        }
        Ok((cut, Some(passes)))
    }
}

impl Cause {
    /// Returns true if a state has the same cause: it lost the same units, and the trigger took
    /// effect in it.
    #[must_use]
    pub fn explains(&self, epoch: &Epoch, state: &State, trigger_units: &[UnitNr]) -> bool {
        let place = |unit: &UnitNr| epoch.pending.binary_search(unit).ok();
        let lost = |unit: &UnitNr| place(unit).is_some_and(|place| !state.kept.contains(place));
        let done = self.trigger.is_none_or(|call| call < epoch.end);
        self.torn.is_none()
            && !(self.lost.is_empty())
            && self.lost.iter().all(lost)
            && done
            && trigger_units.iter().all(|unit| self.lost.contains(unit) || !lost(unit))
    }
}
