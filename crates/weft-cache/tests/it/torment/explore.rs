//! Cuts the power at every event of a case and judges what is left.

use super::life::Life;
use super::oracle::Oracle;
use super::script::{Config, Op};
use super::subject::Subject;
use super::world::{Disk, Scope, cut};
use weft_block::{Rng, mix};

/// A script on a cache. The operations keep their numbers, and so their data, when some of them
/// are left out.
#[derive(Debug, Clone)]
pub struct Case {
    pub config: Config,
    pub script: Vec<(u32, Op)>,
}

/// A power cut in the last life of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// After so many events of that life.
    pub events: usize,
    pub scope: Scope,
    pub seed: u64,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Failure {
    pub text: String,
    /// The cut behind which it shows, or `None` if it shows without one.
    pub cut: Option<Cut>,
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Power cuts that were judged, those during recovery too.
    pub cuts: u64,
    /// Writes and flushes of the disks in the last lives of all cases.
    pub events: u64,
}

impl Case {
    pub fn new(config: Config, ops: usize) -> Self {
        let script = config.script(ops).into_iter().enumerate();
        Self { script: script.map(|(i, op)| (i as u32 + 1, op)).collect(), config }
    }
}

/// Runs a case up to its last life, which is returned with everything recorded.
pub fn run<S: Subject>(case: &Case) -> Result<Life<'_, S>, String> {
    let disks = S::format(&case.config).map_err(|e| format!("formatting: {e}"))?;
    let mut life = Life::<S>::begin(&case.config, disks, Oracle::new(&case.config.origin_bytes))?;
    let mut pending: Option<(usize, Scope, u64)> = None;
    for (number, op) in &case.script {
        if let Op::Cut { after, scope, seed } = *op {
            pending = Some((after, scope, seed));
            continue;
        }
        let before = life.world.events();
        life.step(*number, op)?;
        if let Some((after, scope, seed)) = pending.take() {
            let events = (before + after).min(life.world.events());
            let (disks, oracle) = left(&life, Cut { events, scope, seed });
            life = Life::begin(&case.config, disks, oracle)?;
        }
    }
    Ok(life)
}

/// What a cut leaves: disks, and what may be read from them.
fn left<S: Subject>(life: &Life<'_, S>, at: Cut) -> (Vec<Disk>, Oracle) {
    let (mut disks, mut oracle) = life.at(at.events);
    cut(&mut disks, at.scope, at.seed);
    oracle.after_cut(disks.iter().all(Disk::settled));
    (disks, oracle)
}

/// Runs a case and judges `outcomes` cuts at every event of its last life.
pub fn explore<S: Subject>(case: &Case, outcomes: u64) -> Result<Counts, Failure> {
    let life = run::<S>(case).map_err(|text| Failure { text, cut: None })?;
    let events = life.world.events();
    let mut counts = Counts { cuts: 0, events: events as u64 };
    let first = case.config.seed as usize % case.config.stride();
    for events in (first..=events).step_by(case.config.stride()) {
        for outcome in 0..outcomes {
            let seed = mix(case.config.seed ^ mix(events as u64) ^ outcome);
            // One machine losing its power is the case of most people.
            let scope = *Rng::new(seed)
                .pick(&[Scope::Both, Scope::Both, Scope::Cache, Scope::Origins, Scope::Nothing])
                .expect("some");
            let at = Cut { events, scope, seed };
            counts.cuts += judge_cut(&life, at).map_err(|text| Failure { text, cut: Some(at) })?;
        }
    }
    Ok(counts)
}

/// Judges one cut of the last life of a case.
pub fn judge_cut<S: Subject>(life: &Life<'_, S>, at: Cut) -> Result<u64, String> {
    let (disks, oracle) = left(life, at);
    judge::<S>(life.config(), disks, oracle, &mut Rng::stream(at.seed, 99), 0)
}

/// Opens what a cut left, reads everything twice, and again after a restart, and takes the cache
/// away: all of it agrees with the oracle and with itself. On the way the power may go once more.
fn judge<S: Subject>(
    config: &Config,
    disks: Vec<Disk>,
    oracle: Oracle,
    rng: &mut Rng,
    depth: u32,
) -> Result<u64, String> {
    S::inspect(config, &disks).map_err(|e| format!("check finds damage after a cut: {e}"))?;
    let mut life = Life::<S>::begin(config, disks, oracle)?;
    let mut cuts = 1;
    life.read_all(rng)?;
    life.read_all(rng).map_err(|e| format!("the second time, {e}"))?;
    if !config.family.may_be_dirty() {
        let writes: u64 =
            (1..=config.origin_bytes.len()).map(|disk| life.world.asked(disk).writes).sum();
        if writes > 0 {
            return Err(format!("recovery and reading wrote {writes} times to the origins"));
        }
    }
    if depth == 0 || depth == 1 && rng.chance(1, 4) {
        let events = rng.index(life.world.events() + 1);
        let scope = *rng.pick(&Scope::ALL).expect("some");
        let at = Cut { events, scope, seed: rng.next_u64() };
        let (disks, oracle) = left(&life, at);
        cuts += judge::<S>(config, disks, oracle, rng, depth + 1).map_err(|e| {
            format!("after a second cut ({}) at event {events} of recovery: {e}", scope.name())
        })?;
    }
    life.restart()?;
    life.read_all(rng).map_err(|e| format!("after recovery and a restart, {e}"))?;
    life.detach_all()?;
    Ok(cuts)
}
