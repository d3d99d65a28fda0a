//! The choice of pending changes that a power cut takes away.

use globset::{Glob, GlobMatcher};
use serde::{Deserialize, Serialize};
use weft_block::Rng;

use super::window::Moment;
use crate::calls::CallNr;
use crate::effects::Change;
use crate::states::{State, Torn};
use crate::words::Paths;
use crate::{Error, Result};

/// The way in which pending changes are chosen to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMode {
    /// Everything.
    #[default]
    All,
    /// The changes of the newest calls, as many as this: the disk was some calls behind.
    Newest(u64),
    /// A random set of changes that the model allows, by a seed: the disk has
    /// reordered the others.
    Random(u64),
    /// A part of the last write, by a seed: some of its pages, or some sectors of one.
    Torn(u64),
}

/// A choice of pending changes that are lost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Loss {
    /// The way in which they are chosen.
    #[serde(default)]
    pub mode: LossMode,
    /// Only changes of files and names that match this, and what cannot be without these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Reads a pattern of paths: `*` stands for any text within a name, `**` for any path.
///
/// # Errors
/// [`Error::Pattern`].
pub(crate) fn pattern(text: &str) -> Result<GlobMatcher> {
    let built = globset::GlobBuilder::new(text).literal_separator(true).build();
    built
        .as_ref()
        .map(Glob::compile_matcher)
        .map_err(|e| Error::Pattern { pattern: text.to_owned(), problem: e.kind().to_string() })
}

impl Loss {
    /// Returns an error if it names no files.
    ///
    /// # Errors
    /// [`Error::Pattern`].
    pub fn check(&self) -> Result<()> {
        self.path.as_deref().map(pattern).transpose().map(drop)
    }

    /// The state that is left.
    pub(crate) fn state(&self, moment: &Moment) -> Result<State> {
        let epoch = &moment.epoch;
        let matches = self.matching(moment)?;
        let all: Vec<usize> = (0..epoch.pending.len()).filter(|place| matches[*place]).collect();
        let full = epoch.full();
        let call_of = |place: usize| moment.subject.units.units[epoch.pending[place].index()].call;
        // From the last one on, as each takes with it what needs it.
        let lose = |places: &mut dyn Iterator<Item = usize>| {
            places.fold(full.clone(), |state, place| epoch.without(&state, place))
        };
        Ok(match self.mode {
            LossMode::All => lose(&mut all.into_iter().rev()),
            LossMode::Newest(calls) => {
                let mut newest: Vec<CallNr> = all.iter().map(|place| call_of(*place)).collect();
                newest.dedup();
                let from =
                    newest.len().saturating_sub(usize::try_from(calls).unwrap_or(usize::MAX));
                let first = newest.get(from).copied().unwrap_or(CallNr(u32::MAX));
                lose(&mut all.into_iter().rev().filter(|place| call_of(*place) >= first))
            }
            LossMode::Random(seed) => {
                let random = epoch.random_state(seed);
                lose(&mut all.into_iter().rev().filter(|place| !random.kept.contains(*place)))
            }
            LossMode::Torn(seed) => torn(moment, &all, seed)?,
        })
    }

    /// For each pending unit whether it changes what the pattern names.
    fn matching(&self, moment: &Moment) -> Result<Vec<bool>> {
        let epoch = &moment.epoch;
        let Some(path) = &self.path else { return Ok(vec![true; epoch.pending.len()]) };
        let pattern = pattern(path)?;
        let subject = &moment.subject;
        // Files by the path that they have now, as those who look for them know no other; names by
        // themselves.
        let end = CallNr(subject.calls.len() as u32);
        let paths = Paths::at(&subject.base, &subject.calls, end);
        let is_named = |change: &Change| match change {
            Change::Name { dir, name, .. } => pattern.is_match(paths.place(*dir, name)),
            change => pattern.is_match(paths.of(change.node())),
        };
        Ok(epoch.pending.iter().map(|unit| subject.units.changes(*unit).any(is_named)).collect())
    }
}

/// Everything is kept up to the last write, and of that a part.
fn torn(moment: &Moment, places: &[usize], seed: u64) -> Result<State> {
    let epoch = &moment.epoch;
    let units = &moment.subject.units;
    let pages_of = |place: usize| {
        units.changes(epoch.pending[place]).find_map(|change| match change {
            Change::Page { bytes, .. } => Some(bytes.len),
            _ => None,
        })
    };
    let call_of = |place: usize| units.units[epoch.pending[place].index()].call;
    let Some(last) = places.iter().copied().rev().find(|place| pages_of(*place).is_some()) else {
        return Err(Error::NothingToLose("no write is pending that could be torn".into()));
    };
    let mut rng = Rng::new(seed);
    let pages: Vec<usize> = (0..epoch.pending.len())
        .filter(|place| call_of(*place) == call_of(last) && pages_of(*place).is_some())
        .collect();
    let mut state = epoch.before(&epoch.full(), pages[0]);
    // A write of one page is torn in sectors, a longer one between pages, or within one.
    let tears_page = pages.len() == 1 || rng.below(2) == 0;
    let kept = match pages.len() {
        1 => 1,
        many => 1 + rng.below(many as u64 - 1) as usize,
    };
    let mut order = pages;
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for place in &order[..kept] {
        state = epoch.with(&state, *place);
    }
    // The file is as long as the pages that are there make it.
    for place in 0..epoch.pending.len() {
        let grows = units.changes(epoch.pending[place]).any(super::pending::is_append);
        if grows && call_of(place) == call_of(last) {
            let longer = epoch.with(&state, place);
            // Where the size comes after the data, it does not bring them with it.
            if longer.kept.places().count() == state.kept.places().count() + 1 {
                state = longer;
            }
        }
    }
    if tears_page {
        let sectors = 1 + rng.below(254) as u8;
        state.torn = Some(Torn { place: order[0] as u32, sectors });
    }
    Ok(state)
}
