//! A kind of failure: which call's loss makes the check fail, and beside which other call.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::calls::{Action, CallNr, NodeNr, Span};
use crate::effects::Change;
use crate::mend::Mend;
use crate::model::{Model, UnitNr};
use crate::shrink::Cause;
use crate::subject::Subject;
use crate::verdict::{Outcome, Verdict};
use crate::volume::{BlockText, Explainer};
use crate::words::{CallText, Paths, describe, kind_of_path, part};

/// Failures of one kind have the same calls on the same paths, but for numbers in these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindingKind {
    /// The calls that are lost.
    lost: Vec<(String, String)>,
    /// The call that is not.
    kept: Option<(String, String)>,
    torn: bool,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// A call is lost and a later one is on the disk.
    Reordered,
    /// A call is lost that the program had promised to be durable.
    NotDurable,
    /// Only a part of one call is on the disk.
    Partial,
    /// A name that a file had lost is back, after a later call has removed another file of this name.
    Restored,
    /// All calls are on the disk, up to a moment: the program was stopped between two calls.
    Interrupted,
}

/// A call of which parts are lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostCall {
    /// The call.
    #[serde(flatten)]
    pub call: CallText,
    /// The parts that are lost, such as `data`; empty if it is lost as a whole.
    pub parts: Vec<&'static str>,
    /// For a write to a volume, the blocks of it that are lost, as far as they can be explained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockText>,
}

/// A kind of failure, with its smallest example.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// By this, findings are told apart.
    #[serde(skip)]
    pub kind: FindingKind,
    /// What it is about.
    pub nature: Nature,
    /// A sentence that says which calls are lost and which are not.
    pub headline: String,
    /// The calls that are lost, without those that are lost only because they need one of them.
    pub lost: Vec<LostCall>,
    /// The number of further parts that are lost because they need one of these.
    pub dependent: usize,
    /// The call that makes the loss matter: it is on the disk, or it is a promise.
    pub kept: Option<CallText>,
    /// The blocks that it wrote, if it is a write to a volume, as far as they can be explained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept_blocks: Vec<BlockText>,
    /// The state, for `--state`.
    pub state: String,
    /// The shell line that judges the state again, if the recording was kept.
    pub replay: Option<String>,
    /// The states that have the same cause.
    pub states: u64,
    /// How the check ended.
    pub outcome: Outcome,
    /// What it printed.
    pub output: String,
    /// What would prevent it, and whether it does.
    pub mend: Option<Mend>,
    /// What to do where no call would prevent it.
    pub advice: Option<&'static str>,
    /// Whether each of the lost calls must be lost, as far as it is known: not if the search ended before.
    pub narrowed: bool,
    /// The cause, from which a mend is derived.
    #[serde(skip)]
    pub cause: Cause,
}

impl FindingKind {
    pub(crate) fn of(subject: &Subject, cause: &Cause) -> Self {
        let name = |call: CallNr| {
            let text = describe(&subject.base, &subject.calls, call);
            let action = subject.calls.get(call.index()).map_or("", |call| call.action.name());
            (action.to_owned(), kind_of_path(&text.path))
        };
        let calls: BTreeSet<CallNr> =
            roots(subject, cause).iter().map(|unit| call_of(subject, *unit)).collect();
        let mut lost: Vec<_> = calls.into_iter().map(name).collect();
        lost.sort();
        lost.dedup();
        Self { lost, kept: cause.trigger.map(name), torn: cause.torn.is_some() }
    }
}

fn call_of(subject: &Subject, unit: UnitNr) -> CallNr {
    subject.units.units[unit.index()].call
}

/// The lost units that require no other lost one.
pub(crate) fn roots(subject: &Subject, cause: &Cause) -> Vec<UnitNr> {
    let lost: BTreeSet<UnitNr> = cause.lost.iter().copied().collect();
    let units = &subject.units.units;
    let is_root = |unit: &UnitNr| units[unit.index()].requires.iter().all(|r| !lost.contains(r));
    lost.iter().copied().filter(is_root).collect()
}

impl Finding {
    pub(crate) fn new(
        subject: &Subject,
        kind: FindingKind,
        cause: &Cause,
        verdict: Verdict,
    ) -> Self {
        let roots = roots(subject, cause);
        let mut lost: Vec<LostCall> = Vec::new();
        for unit in cause.torn.iter().chain(&roots) {
            let call = describe(&subject.base, &subject.calls, call_of(subject, *unit));
            let part = match cause.torn == Some(*unit) {
                true => "half of a page",
                false => part(&subject.units, *unit),
            };
            match lost.iter_mut().find(|known| known.call.nr == call.nr) {
                Some(known) if !known.parts.contains(&part) => known.parts.push(part),
                Some(_) => {}
                None => lost.push(LostCall { call, parts: vec![part], blocks: Vec::new() }),
            }
        }
        let mut explainer = Explainer::new(subject);
        if let Some(explainer) = &mut explainer {
            for call in &mut lost {
                let units = cause.torn.iter().chain(&roots).copied();
                let is_its = |unit: &UnitNr| call_of(subject, *unit).0 + 1 == call.call.nr;
                call.blocks = explainer.explain(units.filter(is_its));
            }
        }
        for call in &mut lost {
            call.parts.retain(|part| !part.is_empty());
        }
        let kept = cause.trigger.map(|call| describe(&subject.base, &subject.calls, call));
        let kept_units = (0..subject.units.units.len() as u32).map(UnitNr).filter(|unit| {
            Some(call_of(subject, *unit)) == cause.trigger && !cause.lost.contains(unit)
        });
        let kept_blocks = explainer.map_or_else(Vec::new, |mut it| it.explain(kept_units));
        let nature = match nature(subject, cause) {
            Nature::Partial if cause.torn.is_none() && are_apart(&lost, &kept_blocks) => {
                Nature::Reordered
            }
            nature => nature,
        };
        let trigger = cause.trigger.and_then(|call| subject.calls.get(call.index()));
        let is_mark = trigger.is_some_and(|call| matches!(call.action, Action::Mark { .. }));
        Self {
            kind,
            nature,
            headline: headline(nature, &lost, kept.as_ref(), &kept_blocks, is_mark),
            lost,
            dependent: cause.lost.len() - roots.len(),
            kept,
            kept_blocks,
            state: cause.state.to_string(),
            replay: None,
            states: 0,
            outcome: verdict.outcome,
            output: verdict.output,
            mend: None,
            advice: advice(nature, trigger.map(|call| &call.action)),
            narrowed: cause.narrowed,
            cause: cause.clone(),
        }
    }
}

/// Says in one sentence what happened.
fn headline(
    nature: Nature,
    lost: &[LostCall],
    kept: Option<&CallText>,
    kept_blocks: &[BlockText],
    is_mark: bool,
) -> String {
    // Of a write to a volume: of a call of a program, what is lost of it alone is a part.
    let is_same_write = lost.iter().all(|lost| Some(lost.call.nr) == kept.map(|kept| kept.nr));
    let lost: Vec<String> = lost.iter().map(|lost| name(&lost.call, &lost.blocks)).collect();
    let lost = match lost.as_slice() {
        [] => "what is not written yet is lost".into(),
        [one] => format!("{one} is lost"),
        [first, second] => format!("{first} and {second} are lost"),
        [first, rest @ ..] => format!("{first} and {} more calls are lost", rest.len()),
    };
    let Some(kept) = kept.map(|call| name(call, kept_blocks)) else {
        return "the check fails on what was there before the program began".into();
    };
    match nature {
        Nature::Reordered if is_same_write => {
            format!("{lost}, but {kept}, written with it, is on the disk")
        }
        Nature::Reordered => {
            let kept = kept.strip_prefix("the ").unwrap_or(&kept);
            format!("{lost}, but the later {kept} is on the disk")
        }
        Nature::NotDurable if is_mark => format!("{lost}, though {kept} was reached"),
        Nature::NotDurable => format!("{lost}, though {kept}"),
        Nature::Partial => format!("only a part of {kept} is on the disk"),
        Nature::Restored => {
            format!("after {kept} the name is back that an earlier file had lost")
        }
        Nature::Interrupted => format!("the power was cut right after {kept}"),
    }
}

/// Returns true if blocks that are lost come from other calls than those that are kept, as far as it is
/// known: a volume may write them at once.
fn are_apart(lost: &[LostCall], kept: &[BlockText]) -> bool {
    let cause = |block: &BlockText| block.cause.as_ref().map(|call| call.nr);
    let lost: Vec<_> = lost.iter().flat_map(|call| &call.blocks).map(cause).collect();
    let is_apart = |kept| lost.iter().any(|lost| kept != *lost);
    kept.iter().map(cause).any(|kept| kept.is_none() || is_apart(kept))
}

/// A call in a sentence; a write to a volume by what its blocks hold.
fn name(call: &CallText, blocks: &[BlockText]) -> String {
    match blocks {
        [] => call.text.clone(),
        [one] => format!("the block with {}", one.text),
        [first, rest @ ..] => {
            format!("the block with {} (and {} more)", first.text, rest.len())
        }
    }
}

fn nature(subject: &Subject, cause: &Cause) -> Nature {
    let action = cause.trigger.and_then(|call| subject.calls.get(call.index())).map(|c| &c.action);
    let same_call = |unit: &UnitNr| Some(call_of(subject, *unit)) == cause.trigger;
    match action {
        _ if cause.torn.is_some() => Nature::Partial,
        // Nothing is lost of a volume to which nothing was written.
        Some(promise) if promise.promise().is_some() && subject.model == Model::Volume => {
            Nature::NotDurable
        }
        _ if cause.lost.is_empty() => Nature::Interrupted,
        Some(Action::Promise { .. } | Action::Mark { .. } | Action::End) | None => {
            Nature::NotDurable
        }
        Some(_) if restored(subject, cause).is_some() => Nature::Restored,
        Some(_) if cause.lost.iter().all(same_call) => Nature::Partial,
        Some(_) => Nature::Reordered,
    }
}

/// The name that a file has got back by a state which keeps one unit of the trigger and loses the next: see
/// the models. With its directory, the file, and the call that had taken the name from it.
pub(crate) fn restored(subject: &Subject, cause: &Cause) -> Option<(NodeNr, CallNr)> {
    let trigger = cause.trigger?;
    let [lost] = cause.lost[..] else { return None };
    if call_of(subject, lost) != trigger {
        return None;
    }
    let mut changes = subject.units.changes(lost);
    let Some(Change::Name { dir, name, node: None, before: Some(old) }) = changes.next() else {
        return None;
    };
    let gives_it = |call: CallNr, to: Option<NodeNr>, from: Option<NodeNr>| {
        let mut effects = subject.units.effects.iter().filter(|effect| effect.call == call);
        effects.any(|effect| {
            effect.change == Change::Name { dir: *dir, name: name.clone(), node: to, before: from }
        })
    };
    // No call gives a name back: only a model's unit does.
    if !gives_it(trigger, Some(*old), None) {
        return None;
    }
    let mut earlier = (0..trigger.0).rev().map(CallNr);
    let took = earlier.find(|call| {
        let mut effects = subject.units.effects.iter().filter(|effect| effect.call == *call);
        effects.any(|effect| {
            matches!(&effect.change, Change::Name { dir: d, name: n, before, .. }
                if d == dir && n == name && *before == Some(*old))
        })
    })?;
    Some((*dir, took))
}

/// What to do where no `fsync` helps.
fn advice(nature: Nature, trigger: Option<&Action>) -> Option<&'static str> {
    let grows = |span: &Span| span.offset > 0 && span.size_after > span.size_before;
    match (nature, trigger) {
        (Nature::Interrupted, None) => Some(
            "let the check accept what is there before the program begins (without promises old and new are \
             both right), or make what it expects with --setup",
        ),
        (Nature::Interrupted, Some(Action::Write(span))) if grows(span) => Some(
            "no fsync prevents this, and a program that is killed there leaves the same: give each record its \
             length and a checksum, and let the reader end at the first record that is not whole",
        ),
        (Nature::Interrupted, Some(_)) => Some(
            "no fsync prevents this, and a program that is killed there leaves the same: write a new file and \
             rename it, or keep a log",
        ),
        (Nature::Partial, Some(Action::Write(span))) if grows(span) => Some(
            "no fsync prevents this: give each record its length and a checksum, and let the reader end at \
             the first record that is not whole",
        ),
        (Nature::Partial, _) => {
            Some("no fsync prevents this: write a new file and rename it, or keep a log")
        }
        _ => None,
    }
}

/// The inodes and directories whose fsync would make a lost unit durable.
pub(crate) fn objects(subject: &Subject, unit: UnitNr) -> (Vec<NodeNr>, Vec<NodeNr>) {
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    for change in subject.units.changes(unit) {
        match change {
            Change::Name { dir, node, before, .. } => {
                dirs.push(*dir);
                files.extend(node.or(*before));
            }
            Change::Block { .. } => {}
            change if change.makes_directory() => dirs.push(change.node()),
            change => files.push(change.node()),
        }
    }
    (files, dirs)
}

/// The path of an inode for a message about a call.
pub(crate) fn path_of(subject: &Subject, node: NodeNr, at: CallNr) -> String {
    Paths::at(&subject.base, &subject.calls, at).of(node)
}
