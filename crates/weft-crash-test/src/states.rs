//! The states that a power cut can leave, enumerated from the units of a recording.
//!
//! A recording falls into [`Epoch`]s, which end where the set of durable units grows, or the program
//! prints a promise. Within an epoch a state is any set of its pending units that contains, with each
//! unit, those that it requires. If there are few such sets, all are enumerated; otherwise the most
//! regular first (what a slow disk leaves of a sequence of calls, one call lost, one call alone), then
//! random ones by a seed. All is a function of the recording, the model and the seed.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weft_block::Rng;

use crate::calls::{Call, CallNr};
use crate::effects::{Change, PAGE_BYTES};
use crate::model::{UnitNr, Units};
use crate::{Error, Result};

/// The part of a recording in which the same units are durable for certain.
#[derive(Debug, Clone)]
pub struct Epoch {
    /// Its place among the epochs.
    pub nr: u32,
    /// The calls before this one had been made.
    pub end: CallNr,
    /// The units that are not durable for certain, in the order of their calls.
    pub pending: Vec<UnitNr>,
    /// The number of promises that the program had made.
    pub promises: usize,
    /// For each pending unit the places in `pending` of the units that it requires.
    requires: Vec<Vec<u32>>,
}

/// A set of the pending units of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kept(Vec<u64>);

impl Kept {
    fn none(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn all(len: usize) -> Self {
        let mut all = Self::none(len);
        (0..len).for_each(|i| all.insert(i));
        all
    }

    /// Returns true if the unit at a place in [`Epoch::pending`] is kept.
    #[must_use]
    pub fn contains(&self, place: usize) -> bool {
        self.0.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn insert(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
    }

    fn remove(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word &= !(1 << (place % 64));
        }
    }

    fn contains_all(&self, places: &[u32]) -> bool {
        places.iter().all(|place| self.contains(*place as usize))
    }

    /// The places of the units that are kept.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
        })
    }
}

/// A page that was written in part: 512-byte sectors of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Torn {
    /// The place of its unit in [`Epoch::pending`].
    pub place: u32,
    /// A bit for each of its 8 sectors that was written.
    pub sectors: u8,
}

/// A state: an epoch, and what is kept of its pending units.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The epoch's number.
    pub epoch: u32,
    /// The units that are kept.
    pub kept: Kept,
    /// A kept page that is torn.
    pub torn: Option<Torn>,
}

impl fmt::Display for State {
    /// `EPOCH:KEPT[/TORN.SECTORS]`, such as `3:0-4,6` or `3:0-4/4.0f`; `-` if nothing is kept.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.epoch)?;
        let mut places = self.kept.places().peekable();
        if places.peek().is_none() {
            f.write_str("-")?;
        }
        let mut first = true;
        while let Some(from) = places.next() {
            let mut to = from;
            while places.next_if_eq(&(to + 1)).is_some() {
                to += 1;
            }
            write!(f, "{}{from}", if first { "" } else { "," })?;
            if to > from {
                write!(f, "-{to}")?;
            }
            first = false;
        }
        if let Some(torn) = self.torn {
            write!(f, "/{}.{:02x}", torn.place, torn.sectors)?;
        }
        Ok(())
    }
}

impl FromStr for State {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        const PLACES_MAX: usize = 1 << 24;
        let parse = || {
            let (epoch, rest) = text.split_once(':')?;
            let (kept_text, torn) =
                rest.split_once('/').map_or((rest, None), |(k, t)| (k, Some(t)));
            let mut places = Vec::new();
            for range in kept_text.split(',').filter(|range| *range != "-") {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
                if from > to || to > PLACES_MAX {
                    return None;
                }
                places.extend(from..=to);
            }
            let mut kept = Kept::none(places.iter().max().map_or(0, |last| last + 1));
            places.into_iter().for_each(|place| kept.insert(place));
            let torn = match torn {
                Some(torn) => {
                    let (place, sectors) = torn.split_once('.')?;
                    let sectors = u8::from_str_radix(sectors, 16).ok()?;
                    Some(Torn { place: place.parse().ok()?, sectors })
                }
                None => None,
            };
            Some(Self { epoch: epoch.parse().ok()?, kept, torn })
        };
        parse().ok_or_else(|| Error::State(text.to_owned()))
    }
}

/// Bounds on the states of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// If an epoch has at most this many states, all are enumerated.
    pub all: usize,
    /// Otherwise at most this many, of which the random ones are a quarter at least.
    pub states: usize,
    /// Whether pages are torn, too.
    pub torn: bool,
    /// The seed of the random ones.
    pub seed: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { all: 4096, states: 4096, torn: true, seed: 1 }
    }
}

/// Returns the epochs of a recording, in order.
pub fn epochs<'a>(units: &'a Units, calls: &'a [Call]) -> impl Iterator<Item = Epoch> + 'a {
    // The units that are pending at the moment, and the first that was not yet seen.
    let mut pending: Vec<UnitNr> = Vec::new();
    let (mut next, mut promises, mut nr) = (0, 0, 0);
    let mut at = 0;
    std::iter::from_fn(move || {
        while at <= calls.len() {
            let end = CallNr(at as u32);
            while units.units.get(next).is_some_and(|unit| unit.call < end) {
                // Nothing is durable before it was done, but in a recording that was read.
                pending.push(UnitNr(next as u32));
                next += 1;
            }
            let action = calls.get(at).map(|call| &call.action);
            let settled = |unit: &UnitNr| {
                units.units[unit.index()].durable_after.is_some_and(|after| after <= end)
            };
            let found = match action {
                None => true,
                Some(action) if action.promise().is_some() => true,
                Some(action) => {
                    (action.is_sync() || action.is_block()) && pending.iter().any(settled)
                }
            };
            let epoch = found.then(|| {
                let requires = requires(units, &pending);
                Epoch { nr, end, pending: pending.clone(), promises, requires }
            });
            pending.retain(|unit| !settled(unit));
            promises += usize::from(action.is_some_and(|action| action.promise().is_some()));
            at += 1;
            if let Some(epoch) = epoch {
                nr += 1;
                return Some(epoch);
            }
        }
        None
    })
}

/// For each pending unit the pending ones that it requires: directly, or through units that are
/// durable for certain because an `fsync` wrote them out of order.
fn requires(units: &Units, pending: &[UnitNr]) -> Vec<Vec<u32>> {
    let Some(first) = pending.first() else { return Vec::new() };
    let of = |unit: &UnitNr| {
        let mut found = Vec::new();
        let mut todo = units.units[unit.index()].requires.clone();
        let mut seen = HashSet::new();
        while let Some(unit) = todo.pop() {
            if let Ok(place) = pending.binary_search(&unit) {
                found.push(place as u32);
            } else if unit > *first && units.out_of_order && seen.insert(unit) {
                todo.extend_from_slice(&units.units[unit.index()].requires);
            }
        }
        found
    };
    pending.iter().map(of).collect()
}

impl Epoch {
    /// The epoch of a power cut after all calls, whatever its number.
    pub(crate) fn at_end(units: &Units, calls: &[Call]) -> Self {
        let numbers = (0..units.units.len() as u32).map(UnitNr);
        let is_pending = |unit: &UnitNr| units.units[unit.index()].durable_after.is_none();
        let pending: Vec<UnitNr> = numbers.filter(is_pending).collect();
        let promises = calls.iter().filter(|call| call.action.promise().is_some()).count();
        let requires = requires(units, &pending);
        Self { nr: 0, end: CallNr(calls.len() as u32), pending, promises, requires }
    }

    /// A random state.
    pub(crate) fn random_state(&self, seed: u64) -> State {
        let mut found = self.full();
        let bounds = Bounds { seed, ..Bounds::default() };
        if !self.pending.is_empty() {
            self.random_states(bounds, &mut |state| {
                found = state;
                false
            });
        }
        found
    }

    /// Returns true if a state contains, with each of its units, those that it requires.
    #[must_use]
    pub fn is_legal(&self, state: &State) -> bool {
        let known = state.kept.places().all(|place| place < self.pending.len());
        let kept = self.resized(&state.kept);
        let torn = state.torn.is_none_or(|torn| kept.contains(torn.place as usize));
        known && torn && kept.places().all(|place| kept.contains_all(&self.requires[place]))
    }

    fn resized(&self, kept: &Kept) -> Kept {
        let mut same = Kept::none(self.pending.len());
        kept.places().for_each(|place| same.insert(place));
        same
    }

    /// The state in which everything is kept.
    #[must_use]
    pub fn full(&self) -> State {
        self.state(Kept::all(self.pending.len()))
    }

    /// The state with the pending units that `keep` names, as far as what they require is kept.
    pub fn keep(&self, keep: impl Fn(UnitNr) -> bool) -> State {
        let mut kept = Kept::none(self.pending.len());
        for (place, unit) in self.pending.iter().enumerate() {
            if keep(*unit) && kept.contains_all(&self.requires[place]) {
                kept.insert(place);
            }
        }
        self.state(kept)
    }

    fn state(&self, kept: Kept) -> State {
        State { epoch: self.nr, kept, torn: None }
    }

    /// Adds a unit, with what it requires, to a state.
    #[must_use]
    pub fn with(&self, state: &State, place: usize) -> State {
        let mut kept = self.resized(&state.kept);
        let mut todo = vec![place];
        while let Some(place) = todo.pop() {
            if !kept.contains(place) {
                kept.insert(place);
                todo.extend(self.requires[place].iter().map(|required| *required as usize));
            }
        }
        State { kept, ..state.clone() }
    }

    /// Removes a unit, with those that require it, from a state.
    #[must_use]
    pub fn without(&self, state: &State, place: usize) -> State {
        let mut kept = self.resized(&state.kept);
        kept.remove(place);
        for later in place + 1..self.pending.len() {
            if kept.contains(later) && !kept.contains_all(&self.requires[later]) {
                kept.remove(later);
            }
        }
        let torn = state.torn.filter(|torn| kept.contains(torn.place as usize));
        State { kept, torn, ..*state }
    }

    /// Keeps of a state only the units before a place.
    #[must_use]
    pub fn before(&self, state: &State, place: usize) -> State {
        let mut kept = Kept::none(self.pending.len());
        state.kept.places().filter(|p| *p < place).for_each(|p| kept.insert(p));
        let torn = state.torn.filter(|torn| (torn.place as usize) < place);
        State { kept, torn, ..*state }
    }

    /// Calls `each` with the states of the epoch until it returns false: first that with everything kept,
    /// then that with nothing. A state may come more than once, and different states may look alike.
    pub fn each_state(&self, units: &Units, bounds: Bounds, each: &mut dyn FnMut(State) -> bool) {
        if let Some(all) = self.all_states(bounds.all) {
            let more = all.into_iter().all(|kept| each(self.state(kept)));
            if more && bounds.torn {
                self.torn_states(units, &mut |state| each(state));
            }
            return;
        }
        let mut left = bounds.states;
        let regular = bounds.states - bounds.states / 4;
        let mut count = |state: State, limit: &mut usize, each: &mut dyn FnMut(State) -> bool| {
            *limit = limit.saturating_sub(1);
            left = left.saturating_sub(1);
            each(state) && *limit > 0
        };
        let mut limit = regular;
        if self.regular_states(units, bounds, &mut |state| count(state, &mut limit, each))
            || limit == 0
        {
            let mut limit = bounds.states / 4 + limit;
            self.random_states(bounds, &mut |state| count(state, &mut limit, each));
        }
    }

    /// All states, if there are at most `most`.
    fn all_states(&self, most: usize) -> Option<Vec<Kept>> {
        let mut all = vec![Kept::none(self.pending.len())];
        for place in 0..self.pending.len() {
            for nr in 0..all.len() {
                if all[nr].contains_all(&self.requires[place]) {
                    let mut with = all[nr].clone();
                    with.insert(place);
                    all.push(with);
                }
            }
            if all.len() > most {
                return None;
            }
        }
        // Everything kept, nothing, and then those that lack least.
        all[1..].reverse();
        let len = all.len();
        all.swap(0, len.min(2) - 1);
        Some(all)
    }

    /// Returns true if all were taken.
    fn regular_states(
        &self,
        units: &Units,
        bounds: Bounds,
        each: &mut dyn FnMut(State) -> bool,
    ) -> bool {
        let len = self.pending.len();
        let full = self.full();
        // A disk that is slow, and each call lost on one that is not.
        let ends = [len, 0].into_iter().chain((1..len).rev());
        let prefixes = ends.map(|place| self.before(&full, place));
        let losses = (0..len).map(|place| self.without(&full, place));
        if !prefixes.chain(losses).all(&mut *each) {
            return false;
        }
        // Each call alone.
        let none = self.state(Kept::none(len));
        if !(0..len).all(|place| each(self.with(&none, place))) {
            return false;
        }
        // All data of a file, all names of a directory lost.
        let mut nodes = Vec::new();
        for unit in &self.pending {
            nodes.extend(units.changes(*unit).map(|change| (change.node(), change.is_data())));
        }
        nodes.sort_unstable();
        nodes.dedup();
        for (node, is_data) in nodes {
            let lost = |place: &usize| {
                let mut changes = units.changes(self.pending[*place]);
                changes.any(|change| change.node() == node && change.is_data() == is_data)
            };
            let of_it: Vec<usize> = (0..len).filter(lost).collect();
            if of_it.len() > 1 {
                let without = of_it.iter().fold(full.clone(), |s, place| self.without(&s, *place));
                if !each(without) {
                    return false;
                }
            }
        }
        if bounds.torn && !self.torn_states(units, each) {
            return false;
        }
        // One call lost, and the power cut at a later one.
        let pairs = len * len.saturating_sub(1) / 2;
        let most = bounds.states / 2;
        let mut rng = Rng::new(bounds.seed ^ u64::from(self.nr) << 32);
        for later in (1..len).rev() {
            let upto = self.before(&full, later + 1);
            for lost in (0..later).rev() {
                let taken = pairs <= most || rng.below(pairs as u64) < most as u64;
                if taken && !each(self.without(&upto, lost)) {
                    return false;
                }
            }
        }
        true
    }

    /// Each page that is overwritten, torn at the power cut.
    fn torn_states(&self, units: &Units, each: &mut dyn FnMut(State) -> bool) -> bool {
        let full = self.full();
        for (place, unit) in self.pending.iter().enumerate() {
            let changes = units.changes(*unit);
            let long = changes.filter(|c| match c {
                Change::Page { bytes, .. } => bytes.len > 512,
                Change::Block { len_bytes, source: Some(_), .. } => *len_bytes > 512,
                _ => false,
            });
            if long.count() == 0 {
                continue;
            }
            // What requires the whole page is not there.
            let upto = self.before(&full, place + 1);
            for sectors in [0x0f, 0xf0] {
                let torn = Some(Torn { place: place as u32, sectors });
                if !each(State { torn, ..upto.clone() }) {
                    return false;
                }
            }
        }
        true
    }

    fn random_states(&self, bounds: Bounds, each: &mut dyn FnMut(State) -> bool) {
        let len = self.pending.len();
        let mut rng = Rng::new(bounds.seed.wrapping_add(u64::from(self.nr)));
        loop {
            // From a power cut at a random call, with few units lost or many.
            let end = 1 + rng.below(len as u64) as usize;
            let lost_of_64 = 1 << rng.below(6);
            let mut kept = Kept::none(len);
            for place in 0..end {
                if rng.below(64) >= lost_of_64 && kept.contains_all(&self.requires[place]) {
                    kept.insert(place);
                }
            }
            if !each(self.state(kept)) {
                return;
            }
        }
    }
}

/// The sectors of a page that a torn write leaves, as ranges of bytes.
pub(crate) fn torn_ranges(torn: Torn) -> impl Iterator<Item = std::ops::Range<usize>> {
    let sector = PAGE_BYTES as usize / 8;
    (0..8)
        .filter(move |nr| torn.sectors >> nr & 1 == 1)
        .map(move |nr| nr * sector..(nr + 1) * sector)
}
