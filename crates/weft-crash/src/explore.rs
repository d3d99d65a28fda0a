//! The exploration of many workloads: recording, enumerating, judging, on several threads.
//!
//! The result does not depend on the number of threads: the images judged for a workload are
//! determined by the seed and the workload's text alone. (Limits of time and of images do depend on
//! it.)

use crate::config::{Campaign, Config};
use crate::judge::{Counts, Depth, Fault, Judge, Kind};
use crate::one_workload::{Violation, explore_one};
use crate::record::{Prepared, Recording, prepare, record};
use crate::states::{CrashState, epochs};
use crate::target::Tree;
use crate::workload::{Op, Workload};
use crate::{Error, Result, generate, shrink};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use weft_block::{Image, Rng};

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
