//! The exploration of one workload: its crash states, each judged, up to the first violation.

use crate::config::Config;
use crate::judge::{Fault, Judge, Kind};
use crate::observe::Observed;
use crate::record::{Prepared, record};
use crate::states::{CrashState, content_hash, epochs};
use crate::workload::Workload;
use crate::{Error, Result};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use weft_block::{Rng, mix};

/// A state that breaks a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The workload, shrunk if that was requested.
    pub workload: Workload,
    /// The state; `None` if an operation failed before any crash.
    pub state: Option<CrashState>,
    /// The faults that were found.
    pub faults: Vec<Fault>,
    /// The command that reproduces it.
    pub command: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in self.faults.iter().take(12) {
            writeln!(f, "{}: {}", fault.kind, fault.what)?;
        }
        if self.faults.len() > 12 {
            writeln!(f, "(and {} more)", self.faults.len() - 12)?;
        }
        write!(f, "replay: {}", self.command)
    }
}

/// The result of one workload.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub states: u64,
    pub images: u64,
    pub unsupported: bool,
    pub violation: Option<Violation>,
}

/// Explores one workload up to its first violation.
pub(crate) fn explore_one(
    config: &Config,
    judge: &mut Judge<'_>,
    prepared: &Prepared,
    workload: &Workload,
    late: &dyn Fn() -> bool,
) -> Result<Found> {
    let mut found = Found::default();
    let violation = |state: Option<&CrashState>, faults: Vec<Fault>| Violation {
        workload: workload.clone(),
        state: state.cloned(),
        faults,
        command: command(config, workload, state),
    };
    let recording = match record(&*config.target, prepared, workload) {
        Ok(recording) => recording,
        Err(Error::Fs { source: weft_vfs::Error::Unsupported(_), .. }) => {
            found.unsupported = true;
            return Ok(found);
        }
        Err(e @ (Error::Fs { .. } | Error::Target(_))) => {
            let fault = Fault { kind: Kind::Operation, what: e.to_string() };
            found.violation = Some(violation(None, vec![fault]));
            return Ok(found);
        }
        Err(e) => return Err(e),
    };
    let mut seen: HashMap<u64, Observed> = HashMap::new();
    let mut judged: HashSet<(u64, crate::history::Progress)> = HashSet::new();
    let mut rng = Rng::stream(config.seed, text_hash(&workload.to_string()));
    let epochs = epochs(&recording.base, &recording.events, config.target.block_bytes())?;
    let all = epochs.iter().enumerate();
    let states = all.flat_map(|(number, epoch)| epoch.states(number, config.bounds, &mut rng));
    let states = sample(states.collect(), config.states_per_workload, &mut rng);
    for state in states {
        if let Some(epoch) = epochs.get(state.epoch) {
            if late() {
                return Ok(found);
            }
            found.states += 1;
            let image = epoch.image(&state)?;
            let hash = content_hash(&image, &recording.base);
            if let std::collections::hash_map::Entry::Vacant(entry) = seen.entry(hash) {
                found.images += 1;
                let (faults, observed) = judge.image(&image, &recording, config.depth(hash))?;
                entry.insert(observed);
                if !faults.is_empty() {
                    found.violation = Some(violation(Some(&state), faults));
                    return Ok(found);
                }
            }
            // The same image with more promises: each moment at which an fsync has just ended and
            // the power is cut before the next write.
            let mut moments = BTreeSet::from([state.at]);
            moments.extend(recording.promises_between(state.at, epoch.end_event));
            for at in moments {
                let state = CrashState { at, ..state.clone() };
                if !judged.insert((hash, recording.progress_at(at))) {
                    continue;
                }
                let Some(observed) = seen.get(&hash) else { continue };
                let faults = judge.promises(observed, &recording, &state);
                if !faults.is_empty() {
                    found.violation = Some(violation(Some(&state), faults));
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
}

/// Returns `count` random states, in their order.
fn sample(mut states: Vec<CrashState>, count: usize, rng: &mut Rng) -> Vec<CrashState> {
    if states.len() > count {
        for i in 0..count {
            let j = i + rng.index(states.len() - i);
            states.swap(i, j);
        }
        states.truncate(count);
        states.sort();
    }
    states
}

/// Returns the command that reproduces a state.
pub(crate) fn command(config: &Config, workload: &Workload, state: Option<&CrashState>) -> String {
    let options = config.target.options();
    let state = state.map(|s| format!(" --state {s}")).unwrap_or_default();
    format!("weft crash {options} --seed {} --workload '{workload}'{state}", config.seed)
}

fn text_hash(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}
