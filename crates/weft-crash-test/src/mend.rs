//! Which `fsync` is missing: derived from a cause, and proven by searching the states that are left
//! when the program makes it.

use std::collections::HashSet;
use std::time::Instant;

use serde::Serialize;

use crate::calls::{Action, CallNr, NodeNr};
use crate::finding::{Finding, Nature, objects, path_of, restored, roots};
use crate::rounds::in_rounds;
use crate::shrink::Cause;
use crate::states::{Bounds, Epoch, State};
use crate::subject::{Cursor, Edit, Subject};
use crate::verdict::{Case, Judge};
use crate::words::{CallText, describe};
use crate::{Model, Recording, Result};

/// Calls that would have prevented a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mend {
    /// The missing calls, such as `fsync("f.tmp")`.
    pub calls: Vec<String>,
    /// The call after which they must come, by its number from 1.
    pub after: u32,
    /// The call before which they must come.
    pub before: CallText,
    /// The states that were judged with these calls in place, in the part of the recording from the
    /// lost call to the one that makes its loss matter.
    pub states: u64,
    /// Those that failed.
    pub failed: u64,
}

/// States that are judged to prove a mend.
const STATES_MAX: u64 = 400;

/// Looks for the `fsync` that prevents a failure, and proves it, until the deadline.
///
/// # Errors
/// Those of the judge.
pub fn mend(
    recording: &Recording,
    model: Model,
    subject: &Subject,
    finding: &Finding,
    judge: &mut dyn Judge,
    deadline: Instant,
) -> Result<Option<Mend>> {
    let cause = &finding.cause;
    let natures = [Nature::Reordered, Nature::NotDurable, Nature::Restored];
    let Some(trigger) = cause.trigger.filter(|_| natures.contains(&finding.nature)) else {
        return Ok(None);
    };
    // What the file system would have written is not known.
    if model == Model::Volume {
        return Ok(None);
    }
    let roots = roots(subject, cause);
    let Some(first) = roots.first() else { return Ok(None) };
    let first = match restored(subject, cause) {
        Some((_, took)) => took,
        None => subject.units.units[first.index()].call,
    };
    let (mut files, mut dirs): (Vec<NodeNr>, Vec<NodeNr>) = (Vec::new(), Vec::new());
    for unit in &roots {
        let (f, d) = objects(subject, *unit);
        files.extend(f);
        dirs.extend(d);
    }
    for nodes in [&mut files, &mut dirs] {
        nodes.sort_unstable();
        nodes.dedup();
    }
    let file = |node: &NodeNr| Action::Fsync { node: *node, data_only: false };
    let dir = |dir: &NodeNr| Action::FsyncDir { dir: *dir };
    let files: Vec<Action> = files.iter().map(file).collect();
    let dirs: Vec<Action> = dirs.iter().map(dir).collect();
    // The directory of a name, or the file; both only if neither is enough.
    let has_names = roots.iter().any(|unit| !objects(subject, *unit).1.is_empty());
    let (likely, other) = if has_names { (&dirs, &files) } else { (&files, &dirs) };
    let both: Vec<Action> = files.iter().chain(&dirs).cloned().collect();
    for actions in [likely, other, &both] {
        let insert = |action: &Action| Edit::Insert { before: trigger, action: action.clone() };
        let inserted: Vec<Edit> = actions.iter().map(insert).collect();
        let mended = Subject::new(recording, model, &inserted);
        if inserted.is_empty() || still_possible(&mended, cause, inserted.len())? {
            continue;
        }
        let mut proof = Proof::new(&mended, judge, deadline);
        proof.judge_between(first, CallNr(trigger.0 + inserted.len() as u32 + 1))?;
        let Proof { states, failed, .. } = proof;
        if states == 0 {
            return Ok(None);
        }
        let text = |action: &Action| {
            let (Action::Fsync { node, .. } | Action::FsyncDir { dir: node }) = action else {
                return action.name().to_owned();
            };
            format!("fsync({:?})", path_of(subject, *node, trigger))
        };
        return Ok(Some(Mend {
            calls: actions.iter().map(text).collect(),
            after: first.0 + 1,
            before: describe(&subject.base, &subject.calls, trigger),
            states,
            failed,
        }));
    }
    Ok(None)
}

/// Returns true if what is lost can still be lost when the trigger has taken effect.
fn still_possible(mended: &Subject, cause: &Cause, inserted: usize) -> Result<bool> {
    let mut cursor = Cursor::new(mended);
    let epoch = cursor.epoch_at(CallNr(cause.cut.0 + inserted as u32))?;
    Ok(cause.lost.iter().all(|unit| epoch.pending.binary_search(unit).is_ok()))
}

/// Judges states of a recording with an `fsync` put in.
struct Proof<'a> {
    mended: &'a Subject,
    judge: &'a mut dyn Judge,
    deadline: Instant,
    seen: HashSet<(u128, usize)>,
    states: u64,
    failed: u64,
}

impl<'a> Proof<'a> {
    fn new(mended: &'a Subject, judge: &'a mut dyn Judge, deadline: Instant) -> Self {
        Self { mended, judge, deadline, seen: HashSet::new(), states: 0, failed: 0 }
    }

    fn goes_on(&self) -> bool {
        self.states < STATES_MAX && Instant::now() < self.deadline
    }

    /// Judges the states between two calls.
    fn judge_between(&mut self, first: CallNr, last: CallNr) -> Result<()> {
        let mended = self.mended;
        let mut cursor = Cursor::new(mended);
        let with_last = mended.epochs().find(|epoch| epoch.end >= last).map(|epoch| epoch.nr);
        let epochs = || {
            let upto =
                mended.epochs().take_while(|epoch| with_last.is_none_or(|nr| epoch.nr <= nr));
            upto.filter(|epoch| epoch.end > first)
        };
        let bounds = Bounds { states: STATES_MAX as usize, all: 256, ..Bounds::default() };
        in_rounds(epochs, &mended.units, bounds, &mut |epoch, state, _| {
            self.judge(&mut cursor, epoch, &state)?;
            Ok(self.goes_on())
        })?;
        Ok(())
    }

    fn judge(&mut self, cursor: &mut Cursor<'_>, epoch: &Epoch, state: &State) -> Result<()> {
        let built = cursor.built(state)?;
        if self.goes_on() && self.seen.insert((built.hash(), epoch.promises)) {
            let promises = self.mended.promises(epoch);
            let edits = &self.mended.edits;
            let (tree, damage) = (&built.tree, built.damage.as_deref());
            let case = Case { edits, state, tree, damage, promises: &promises, emptied: None };
            self.states += 1;
            self.failed += u64::from(self.judge.verdict(&case)?.fails());
        }
        Ok(())
    }
}
