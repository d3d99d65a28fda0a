//! The trees that a model allows after a power cut, by the moment of the cut.

use std::collections::{BTreeSet, HashMap, HashSet};

use weft_crash_test::{Action, Bounds, CallNr, Cursor, Model, Recording, Subject};
use weft_vfs::memfs::Snapshot;

use crate::host::Result;

/// Epochs with more states are not judged.
const STATES_MAX: usize = 1 << 15;

/// A rule that the kernel's states are compared with: a model, or one that is too strong on purpose
/// and must be refuted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Model(Model),
    /// The model, with an `fsync` that makes everything durable: too strong.
    FsyncIsSync(Model),
    /// Every call is durable at once: too strong.
    AtOnce,
}

impl Rule {
    pub fn name(self) -> String {
        match self {
            Self::Model(model) => model.name().to_owned(),
            Self::FsyncIsSync(model) => format!("{model} with fsync as sync (must fail)"),
            Self::AtOnce => "all durable at once (must fail)".to_owned(),
        }
    }

    /// Returns true for a rule that is too strong on purpose: states that violate it are expected.
    pub fn must_fail(self) -> bool {
        !matches!(self, Self::Model(_))
    }

    fn model(self) -> Model {
        match self {
            Self::Model(model) | Self::FsyncIsSync(model) => model,
            Self::AtOnce => Model::Posix,
        }
    }
}

/// The trees of an epoch: each with the first call in flight during which it can be left.
struct Trees {
    end: CallNr,
    /// `None` if there are too many.
    first: Option<HashMap<u128, CallNr>>,
}

/// The trees that a rule allows.
pub struct Allowed {
    subject: Subject,
    rule: Rule,
    epochs: Vec<Trees>,
    /// For [`Rule::AtOnce`] the tree before each call.
    steps: Vec<u128>,
}

/// The answer of a rule about one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allowed,
    Forbidden,
    /// The epoch has too many states.
    TooMany,
}

impl Allowed {
    pub fn new(recording: &Recording, rule: Rule) -> Result<Self> {
        let mut recording = recording.clone();
        if matches!(rule, Rule::FsyncIsSync(_)) {
            for call in &mut recording.calls {
                if call.action.is_sync() {
                    call.action = Action::Sync;
                }
            }
        }
        let subject = Subject::new(&recording, rule.model(), &[]);
        if rule == Rule::AtOnce {
            let steps = steps(&subject)?;
            return Ok(Self { subject, rule, epochs: Vec::new(), steps });
        }
        let mut new = Self { subject, rule, epochs: Vec::new(), steps: Vec::new() };
        for nr in 0..new.subject.epochs().count() {
            let mut first: HashMap<u128, CallNr> = HashMap::new();
            let (end, complete) = each_tree(&new.subject, nr as u32, &mut |tree, last| {
                let at = first.entry(tree.hash()).or_insert(last);
                *at = (*at).min(last);
            })?;
            new.epochs.push(Trees { end, first: complete.then_some(first) });
        }
        Ok(new)
    }

    /// The epochs that a power cut may be in: an `fsync` that has not returned may have done its
    /// work.
    fn epochs(&self, returned: usize) -> std::ops::RangeInclusive<usize> {
        let (at, last) = (CallNr(returned as u32), self.epochs.len() - 1);
        let first = self.epochs.partition_point(|epoch| epoch.end < at).min(last);
        let in_flight = usize::from(self.epochs[first].end == at);
        first..=(first + in_flight).min(last)
    }

    /// Tells whether the rule allows that a power cut leaves this tree after this number of calls had
    /// returned.
    pub fn answer(&self, returned: usize, tree: u128) -> Answer {
        let is_allowed = if self.rule == Rule::AtOnce {
            let next = (returned + 1).min(self.steps.len() - 1);
            self.steps[returned] == tree || self.steps[next] == tree
        } else {
            let epochs = || self.epochs[self.epochs(returned)].iter();
            let found = epochs().filter_map(|epoch| epoch.first.as_ref()?.get(&tree));
            let found = found.min().is_some_and(|first| *first <= CallNr(returned as u32));
            if !found && epochs().any(|epoch| epoch.first.is_none()) {
                return Answer::TooMany;
            }
            found
        };
        if is_allowed { Answer::Allowed } else { Answer::Forbidden }
    }

    /// All trees, at whatever moment.
    pub fn trees(&self) -> HashSet<u128> {
        self.epochs.iter().flat_map(|e| e.first.iter().flatten().map(|(tree, _)| *tree)).collect()
    }

    /// The lines in which the nearest allowed tree differs.
    pub fn nearest(&self, returned: usize, tree: &Snapshot) -> Result<Vec<String>> {
        let seen = lines(tree);
        let mut best: Option<Vec<String>> = None;
        let epochs = if self.epochs.is_empty() { 0..=0 } else { self.epochs(returned) };
        for nr in epochs {
            each_tree(&self.subject, nr as u32, &mut |tree, last| {
                let other = lines(tree);
                let differences = seen.symmetric_difference(&other).count();
                if last <= CallNr(returned as u32)
                    && best.as_ref().is_none_or(|best| differences < best.len())
                {
                    let missing = other.difference(&seen).map(|line| format!("- {line}"));
                    let more = seen.difference(&other).map(|line| format!("+ {line}"));
                    best = Some(missing.chain(more).collect());
                }
            })?;
        }
        Ok(best.unwrap_or_default())
    }
}

/// The tree before each call, and after the last.
fn steps(subject: &Subject) -> Result<Vec<u128>> {
    let mut cursor = Cursor::new(subject);
    let tree = |call: u32| {
        let epoch = cursor.epoch_at(CallNr(call))?;
        let unit_calls = &subject.units.units;
        let state = epoch.keep(|unit| unit_calls[unit.0 as usize].call < CallNr(call));
        Ok(cursor.tree(&state)?.hash())
    };
    (0..=subject.calls.len() as u32).map(tree).collect()
}

/// Calls `each` with the trees of an epoch and the last call that each has something of; returns
/// the epoch's end, and whether these were all.
fn each_tree(
    subject: &Subject,
    nr: u32,
    each: &mut dyn FnMut(&Snapshot, CallNr),
) -> Result<(CallNr, bool)> {
    let mut cursor = Cursor::new(subject);
    let epoch = cursor.epoch(nr)?.clone();
    let bounds = Bounds { all: STATES_MAX, states: 0, torn: false, seed: 0 };
    let mut states = Vec::new();
    epoch.each_state(&subject.units, bounds, &mut |state| {
        states.push(state);
        true
    });
    // If there are too many, one regular state is yielded and one random one.
    let complete = states.len() > 2 || epoch.pending.len() < 2;
    for state in states {
        let units = state.kept.places().map(|place| epoch.pending[place].0 as usize);
        let last = units.map(|unit| subject.units.units[unit].call).max().unwrap_or(CallNr(0));
        each(&cursor.tree(&state)?, last);
    }
    Ok((epoch.end, complete))
}

/// A tree in lines, one for each name.
pub fn lines(tree: &Snapshot) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut links: HashMap<u64, Vec<String>> = HashMap::new();
    let mut todo = vec![(Snapshot::ROOT, String::from("."))];
    let mut seen = HashSet::new();
    while let Some((number, path)) = todo.pop() {
        let Some(node) = tree.node(number) else { continue };
        links.entry(number).or_default().push(path.clone());
        if seen.insert(number) {
            todo.extend(
                node.entries()
                    .map(|(name, to)| (to, format!("{path}/{}", String::from_utf8_lossy(name)))),
            );
        }
    }
    for (number, mut paths) in links {
        let Some(node) = tree.node(number) else { continue };
        paths.sort();
        let mut text = format!("{} {:?} {:o}", paths.join(" = "), node.kind(), node.attr().perm);
        let mut content = vec![0; node.size_bytes() as usize];
        node.read(0, &mut content);
        for run in content.chunk_by(|a, b| a == b) {
            text += &format!(" {}*{}", run[0].escape_ascii(), run.len());
        }
        lines.insert(text);
    }
    lines
}
