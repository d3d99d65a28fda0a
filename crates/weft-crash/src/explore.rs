//! The exploration of many workloads: recording, enumerating, judging, on several threads.
//!
//! The result does not depend on the number of threads: the images judged for a workload are
//! determined by the seed and the workload's text alone. (Limits of time and of images do depend on
//! it.)

use crate::judge::{Counts, Depth, Fault, Judge, Kind};
use crate::observe::Observed;
use crate::record::{Prepared, Recording, prepare, record};
use crate::states::{Bounds, CrashState, content_hash, epochs};
use crate::target::{Target, Tree};
use crate::workload::{Op, Workload};
use crate::{Error, Result, generate, shrink};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_block::{Image, Rng, mix};

/// The workloads to explore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Campaign {
    /// The given ones.
    Given(Vec<Workload>),
    /// Every single operation, the usual sequences, and pairs and random ones by seed.
    Short,
    /// The same, then every pair, then each with every placement of the operations that make it
    /// durable, then random ones, until the time is up.
    Long,
    /// Random churns of one directory, of the given number of operations each (see
    /// [`generate::churn`](crate::generate::churn)), until the time is up.
    Churn(usize),
}

/// Configuration of an exploration.
#[derive(Clone)]
pub struct Config {
    /// The file system.
    pub target: Arc<dyn Target>,
    /// The workloads.
    pub campaign: Campaign,
    /// The seed of every random choice.
    pub seed: u64,
    /// Bounds on the states of each epoch.
    pub bounds: Bounds,
    /// Maximum number of states of one workload, chosen by the seed if there are more: a short
    /// campaign finds more in many workloads than in all states of a few.
    pub states_per_workload: usize,
    /// Number of distinct images after which no new workload is begun.
    pub images: u64,
    /// Time after which no new workload is begun.
    pub time: Option<Duration>,
    /// e2fsck judges one image in this number; the volume's own checker judges all.
    pub e2fsck_every: u64,
    /// One image in this number is repaired, and one in this number used without a repair.
    pub repair_every: u64,
    /// Number of threads; 0 for one for each processor.
    pub threads: usize,
    /// Number of violations after which the exploration stops.
    pub violations: usize,
    /// Whether violations are shrunk.
    pub shrink: bool,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("target", &self.target.options())
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// A short campaign of some thousands of images.
    #[must_use]
    pub fn new(target: Arc<dyn Target>) -> Self {
        Self {
            target,
            campaign: Campaign::Short,
            seed: 1,
            bounds: Bounds::default(),
            states_per_workload: 60,
            images: 5000,
            time: None,
            e2fsck_every: 4,
            repair_every: 16,
            threads: 0,
            violations: 10,
            shrink: true,
        }
    }

    fn depth(&self, hash: u64) -> Depth {
        // By hash, so that the same image is judged in the same way wherever it occurs.
        let pick =
            |every: u64, salt| every > 0 && mix(hash ^ salt ^ self.seed).is_multiple_of(every);
        Depth {
            e2fsck: pick(self.e2fsck_every, 1),
            repair: pick(self.repair_every, 2),
            aftermath: pick(self.repair_every, 3),
        }
    }
}

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

/// The result of an exploration.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of workloads run.
    pub workloads: u64,
    /// Number of workloads skipped, because the file system reports an operation as unsupported.
    pub unsupported: u64,
    /// Number of crash states built.
    pub states: u64,
    /// Number of distinct images among them, all judged.
    pub images: u64,
    /// Numbers of the examinations of images.
    pub counts: Counts,
    /// The violations that were found.
    pub violations: Vec<Violation>,
}

/// The progress of an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Workloads run so far.
    pub workloads: u64,
    /// Distinct images judged so far.
    pub images: u64,
    /// Violations found so far.
    pub violations: usize,
}

/// Explores, and returns a report. `each` is called after each workload from any thread.
///
/// # Errors
/// If the target cannot even create a volume, or a tool cannot be run. Errors of the file system
/// under test are in the report.
pub fn explore(config: &Config, each: &(dyn Fn(Status) + Sync)) -> Result<Report> {
    let queue = Queue::new(config);
    let run = Run {
        config,
        started: Instant::now(),
        next: AtomicUsize::new(0),
        images: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        prepared: Mutex::default(),
        report: Mutex::default(),
    };
    let threads = match config.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| run.work(&queue, each))).collect();
        let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|r| r.unwrap_or_else(|_| Err(Error::Target("the explorer panicked".into()))))
            .collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    let mut report = run.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.violations.sort_by_cached_key(|v| (v.faults[0].kind, v.command.clone()));
    if config.shrink {
        let mut shrunk: Vec<Violation> = Vec::new();
        for violation in &report.violations {
            // Only the first of each kind is worth the time.
            let kind = violation.faults[0].kind;
            let first = shrunk.iter().all(|v| v.faults[0].kind != kind);
            shrunk.push(if first { shrink::shrink(config, violation)? } else { violation.clone() });
        }
        report.violations = shrunk;
    }
    Ok(report)
}

/// Judges one state of one workload at full depth, and returns its faults.
///
/// # Errors
/// As [`explore`], and if there is no such state.
pub fn replay(config: &Config, workload: &Workload, state: &CrashState) -> Result<Vec<Fault>> {
    let (recording, image) = replay_image(config, workload, state)?;
    let mut judge = Judge::new(&*config.target)?;
    let (mut faults, observed) = judge.image(&image, &recording, Depth::FULL)?;
    if !faults.iter().any(|f| f.kind == Kind::Mount || f.kind == Kind::Panic) {
        faults.extend(judge.promises(&observed, &recording, state));
    }
    Ok(faults)
}

/// Returns the image of a crash state, for use with other tools.
///
/// # Errors
/// As [`replay`].
pub fn replay_image(
    config: &Config,
    workload: &Workload,
    state: &CrashState,
) -> Result<(Recording, Image)> {
    let prepared = prepare(&*config.target, &workload.setup)?;
    let recording = record(&*config.target, &prepared, workload)?;
    let epochs = epochs(&recording.base, &recording.events, config.target.block_bytes())?;
    let epoch = epochs.get(state.epoch).ok_or_else(|| {
        Error::Syntax(format!("the recording has {} epochs: there is no {state}", epochs.len()))
    })?;
    let image = epoch.image(state)?;
    Ok((recording, image))
}

/// The workloads of a campaign, generated on demand.
struct Queue {
    list: Vec<Workload>,
    /// Whether random ones follow without end.
    endless: bool,
    /// The number of operations of each workload, if all are churns.
    churn: Option<usize>,
    seed: u64,
    tree: Tree,
}

impl Queue {
    fn new(config: &Config) -> Self {
        let tree = config.target.tree();
        let mut rng = Rng::new(config.seed);
        let mut list = generate::chains(tree);
        list.extend(generate::singles(tree));
        match &config.campaign {
            Campaign::Given(list) => {
                let (list, seed) = (list.clone(), 0);
                return Self { list, endless: false, churn: None, seed, tree };
            }
            Campaign::Churn(_) => list.clear(),
            // A short run ends early; shuffled, it ends in a different place for each seed.
            Campaign::Short => shuffle(&mut list, &mut rng),
            Campaign::Long => {
                // Each pair once, before any with its other placements.
                let (mut first, mut others) = (Vec::new(), Vec::new());
                for mut placements in generate::pairs(tree) {
                    first.push(placements.swap_remove(rng.index(placements.len())));
                    others.append(&mut placements);
                }
                shuffle(&mut others, &mut rng);
                list.append(&mut first);
                list.append(&mut others);
            }
        }
        let churn = match config.campaign {
            Campaign::Churn(len) => Some(len),
            _ => None,
        };
        Self { list, endless: true, churn, seed: config.seed, tree }
    }

    fn get(&self, number: usize) -> Option<Workload> {
        match self.list.get(number) {
            Some(workload) => Some(workload.clone()),
            None if self.endless => {
                let mut rng = Rng::stream(self.seed, number as u64);
                Some(if let Some(len) = self.churn {
                    generate::churn(self.tree, &mut rng, len)
                } else if number.is_multiple_of(4) {
                    let len = 10 + rng.index(40);
                    generate::churn(self.tree, &mut rng, len)
                } else {
                    let len = 2 + rng.index(8);
                    generate::random(self.tree, &mut rng, len)
                })
            }
            None => None,
        }
    }
}

fn shuffle<T>(list: &mut [T], rng: &mut Rng) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.index(i + 1));
    }
}

struct Run<'a> {
    config: &'a Config,
    started: Instant,
    next: AtomicUsize,
    images: AtomicU64,
    stop: AtomicBool,
    prepared: Mutex<HashMap<Arc<[Op]>, Arc<Prepared>>>,
    report: Mutex<Report>,
}

impl Run<'_> {
    fn work(&self, queue: &Queue, each: &(dyn Fn(Status) + Sync)) -> Result<()> {
        let mut judge = Judge::new(&*self.config.target)?;
        loop {
            let late = self.config.time.is_some_and(|t| self.started.elapsed() >= t);
            let enough = self.images.load(Ordering::Relaxed) >= self.config.images;
            if late || enough || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(workload) = queue.get(number) else { break };
            let prepared = match self.prepared(&workload.setup) {
                Ok(prepared) => prepared,
                Err(e) => {
                    self.stop.store(true, Ordering::Relaxed);
                    return Err(e);
                }
            };
            let found = explore_one(self.config, &mut judge, &prepared, &workload, &|| {
                self.config.time.is_some_and(|t| self.started.elapsed() >= t * 2)
            })?;
            let images = self.images.fetch_add(found.images, Ordering::Relaxed) + found.images;
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            report.workloads += u64::from(!found.unsupported);
            report.unsupported += u64::from(found.unsupported);
            report.states += found.states;
            report.images += found.images;
            report.violations.extend(found.violation);
            if report.violations.len() >= self.config.violations {
                self.stop.store(true, Ordering::Relaxed);
            }
            let (workloads, violations) = (report.workloads, report.violations.len());
            drop(report);
            each(Status { workloads, images, violations });
        }
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, more) = (&mut report.counts, judge.counts);
        sum.e2fsck += more.e2fsck;
        sum.repairs += more.repairs;
        sum.aftermaths += more.aftermaths;
        sum.healed += more.healed;
        sum.leaky += more.leaky;
        Ok(())
    }

    fn prepared(&self, setup: &Arc<[Op]>) -> Result<Arc<Prepared>> {
        let mut all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = all.get(setup) {
            return Ok(Arc::clone(prepared));
        }
        let prepared = Arc::new(prepare(&*self.config.target, setup)?);
        all.insert(Arc::clone(setup), Arc::clone(&prepared));
        Ok(prepared)
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
