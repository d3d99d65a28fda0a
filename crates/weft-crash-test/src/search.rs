//! Searches the states of a recording for those that fail their check.
//!
//! One thread enumerates states and builds their trees; trees that were judged before, by their hash,
//! are judged no more. One thread for each judge runs checks. A state that fails is shrunk at once,
//! unless a known cause explains it; only one is shrunk at a time, so that states with the same cause
//! wait for it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::calls::CallNr;
use crate::finding::{Finding, FindingKind};
use crate::model::UnitNr;
use crate::mutex::locked;
use crate::rounds::in_rounds;
use crate::shrink::{Cause, shrink};
use crate::states::{Bounds, Epoch, State};
use crate::subject::{Cursor, Subject};
use crate::verdict::{Case, Judge, Outcome, Verdict};
use crate::volume::Built;
use crate::{Error, Result};

/// The limits of a search.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The states of each epoch.
    pub bounds: Bounds,
    /// States that are judged, at most.
    pub states: u64,
    /// How long the search may take.
    pub time: Duration,
    /// The search ends when it has found this many kinds of failures.
    pub findings: usize,
    /// Failures that are shrunk, at most; the others are counted.
    pub shrinks: usize,
    /// The epochs that end before this call, or at it, are left out.
    pub after: Option<CallNr>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            states: 100_000,
            time: Duration::from_secs(600),
            findings: 8,
            shrinks: 32,
            after: None,
        }
    }
}

impl Limits {
    /// The epochs that are searched.
    fn epochs(self, subject: &Subject) -> impl Iterator<Item = Epoch> + '_ {
        subject.epochs().filter(move |epoch| self.after.is_none_or(|call| epoch.end > call))
    }
}

/// How far a search is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Epochs of the recording.
    pub epochs: u64,
    /// Those of which all states have been enumerated.
    pub epochs_done: u64,
    /// The states that were enumerated of each other epoch, at least.
    pub tried_of_each: u64,
    /// States that were enumerated.
    pub tried: u64,
    /// States whose tree, or whose promises, no other state had.
    pub distinct: u64,
    /// States that were judged.
    pub judged: u64,
    /// States that failed.
    pub failed: u64,
    /// Runs of the check to shrink failures.
    pub shrinking: u64,
}

/// What a search found.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// The states.
    pub progress: Progress,
    /// The kinds of failures.
    pub findings: Vec<Finding>,
    /// Failing states that were not shrunk, and that no cause explains.
    pub unexplained: u64,
    /// States that failed once, and passed when they were judged again.
    pub unstable: u64,
    /// Why the search ended before all states were judged.
    pub cut_short: Option<String>,
}

/// A state on its way to a judge.
struct Job {
    state: State,
    built: Built,
    key: Key,
}

/// Two states with the same key get the same verdict: the hash of what is there, and the promises.
type Key = (u128, usize);

struct Shared<'a> {
    subject: &'a Subject,
    limits: Limits,
    started: Instant,
    verdicts: Mutex<HashMap<Key, bool>>,
    found: Mutex<Causes>,
    stop: AtomicBool,
    judged: AtomicU64,
    failed: AtomicU64,
    shrinking: AtomicU64,
}

#[derive(Default)]
struct Causes {
    findings: Vec<Finding>,
    /// All causes, with the units of their triggers and the place of their finding.
    causes: Vec<(Cause, Vec<UnitNr>, usize)>,
    unexplained: u64,
    unstable: u64,
    cut_short: Option<String>,
    error: Option<Error>,
}

/// Searches the states of `subject` with as many threads as there are judges. `progress` is called
/// often.
///
/// # Errors
/// [`Error::NotTested`] if the check fails without a power cut; those of the judges.
pub fn search(
    subject: &Subject,
    judges: &mut [Box<dyn Judge>],
    limits: Limits,
    progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Found> {
    let epochs = limits.epochs(subject).count() as u64;
    if let Some(judge) = judges.first_mut() {
        check_without_power_cut(subject, &mut **judge)?;
    }
    let shared = Shared {
        subject,
        limits,
        started: Instant::now(),
        verdicts: Mutex::default(),
        found: Mutex::default(),
        stop: AtomicBool::new(false),
        judged: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        shrinking: AtomicU64::new(0),
    };
    let mut counts = Progress { epochs, ..Progress::default() };
    let (send, receive) = sync_channel::<Job>(judges.len() * 4);
    let receive = Mutex::new(receive);
    let produced = std::thread::scope(|scope| {
        for judge in judges.iter_mut() {
            let (shared, receive) = (&shared, &receive);
            scope.spawn(move || shared.judge_all(&mut **judge, receive));
        }
        let produced = shared.enumerate(&send, &mut counts, progress);
        drop(send);
        produced
    });
    produced?;
    shared.counts(&mut counts);
    progress(&counts);
    let causes = shared.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = causes.error {
        return Err(error);
    }
    Ok(Found {
        progress: counts,
        findings: causes.findings,
        unexplained: causes.unexplained,
        unstable: causes.unstable,
        cut_short: causes.cut_short,
    })
}

/// A check that fails on what the program left without any power cut says nothing of power cuts.
fn check_without_power_cut(subject: &Subject, judge: &mut dyn Judge) -> Result<()> {
    let mut cursor = Cursor::new(subject);
    let Some(epoch) = subject.epochs().last() else { return Ok(()) };
    let state = epoch.full();
    let built = cursor.built(&state)?;
    let promises = subject.promises(&epoch);
    let verdict = judge.verdict(&Case {
        edits: &subject.edits,
        state: &state,
        tree: &built.tree,
        damage: built.damage.as_deref(),
        promises: &promises,
        emptied: None,
    })?;
    if verdict.fails() {
        let output = verdict.output.trim();
        let colon = if output.is_empty() { "" } else { ":\n" };
        return Err(Error::NotTested(match verdict.outcome {
            Outcome::Damaged => {
                format!("the volume is damaged at the end, without a power cut{colon}{output}")
            }
            outcome => format!(
                "the check fails on what the program left behind, without a power cut \
                 ({outcome}){colon}{output}"
            ),
        }));
    }
    Ok(())
}

impl Shared<'_> {
    fn counts(&self, counts: &mut Progress) {
        counts.judged = self.judged.load(Ordering::Relaxed);
        counts.failed = self.failed.load(Ordering::Relaxed);
        counts.shrinking = self.shrinking.load(Ordering::Relaxed);
    }

    /// Sends every state with a new tree to the judges.
    fn enumerate(
        &self,
        send: &SyncSender<Job>,
        counts: &mut Progress,
        progress: &(dyn Fn(&Progress) + Sync),
    ) -> Result<()> {
        let mut cursor = Cursor::new(self.subject);
        let mut seen: HashSet<Key> = HashSet::new();
        let (units, bounds) = (&self.subject.units, self.limits.bounds);
        let epochs = || self.limits.epochs(self.subject);
        let covered = in_rounds(epochs, units, bounds, &mut |epoch, state, covered| {
            counts.tried += 1;
            (counts.epochs_done, counts.tried_of_each) = (covered.epochs, covered.of_each);
            let looked = cursor.look(&state)?;
            let key = (looked.hash, epoch.promises);
            if seen.insert(key) {
                let built = looked.into_built(&mut cursor, &state)?;
                counts.distinct += 1;
                self.counts(counts);
                progress(counts);
                self.send(send, Job { state, built, key });
            }
            Ok(self.goes_on(counts))
        })?;
        (counts.epochs_done, counts.tried_of_each) = (covered.epochs, covered.of_each);
        Ok(())
    }

    /// Waits until a judge takes states, or the search ends: also because all judges have ended.
    fn send(&self, send: &SyncSender<Job>, mut job: Job) {
        const PAUSE: Duration = Duration::from_micros(200);
        while let Err(TrySendError::Full(rejected)) = send.try_send(job) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            job = rejected;
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns false when a limit is reached, and notes which.
    fn goes_on(&self, counts: &Progress) -> bool {
        let reason = if counts.distinct >= self.limits.states {
            Some(format!("{} states were judged", self.limits.states))
        } else if self.started.elapsed() >= self.limits.time {
            Some(format!("{} s have passed", self.limits.time.as_secs()))
        } else {
            None
        };
        if let Some(reason) = reason {
            self.end(reason);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    fn end(&self, reason: String) {
        self.stop.store(true, Ordering::Relaxed);
        locked(&self.found).cut_short.get_or_insert(reason);
    }

    fn judge_all(&self, judge: &mut dyn Judge, receive: &Mutex<Receiver<Job>>) {
        let _ends = EndsSearch(&self.stop);
        let mut cursor = Cursor::new(self.subject);
        loop {
            let Ok(job) = locked(receive).recv() else { return };
            // The states that wait in the channel are judged no more once the search has ended.
            if self.stop.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(e) = self.judge_one(judge, &mut cursor, &job) {
                self.stop.store(true, Ordering::Relaxed);
                locked(&self.found).error.get_or_insert(e);
            }
        }
    }

    fn judge_one(&self, judge: &mut dyn Judge, cursor: &mut Cursor<'_>, job: &Job) -> Result<()> {
        let epoch = cursor.epoch(job.state.epoch)?.clone();
        let verdict = self.verdict(judge, &epoch, job)?;
        self.judged.fetch_add(1, Ordering::Relaxed);
        if !verdict.fails() {
            return Ok(());
        }
        let mut causes = locked(&self.found);
        if let Some(finding) = causes.explain(&epoch, &job.state) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            causes.findings[finding].states += 1;
            return Ok(());
        }
        // The first failure is shrunk in any case: a report of failures needs an example.
        let is_late = self.started.elapsed() >= self.limits.time && !causes.findings.is_empty();
        if causes.causes.len() >= self.limits.shrinks || is_late {
            self.failed.fetch_add(1, Ordering::Relaxed);
            causes.unexplained += 1;
            return Ok(());
        }
        // A check that says now this, now that, would send the shrinking astray.
        let again = self.verdict(judge, &epoch, job)?;
        if !again.fails() {
            causes.unstable += 1;
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
        let cause =
            shrink(cursor, &job.state, self.started + self.limits.time, &mut |cursor, state| {
                self.fails(judge, cursor, state)
            })?;
        let verdict = self.judge_state(judge, cursor, &cause.state)?;
        causes.add(self.subject, cause, verdict);
        if causes.findings.len() >= self.limits.findings {
            let kinds = causes.findings.len();
            drop(causes);
            self.end(format!("{kinds} kinds of failures were found"));
        }
        Ok(())
    }

    fn verdict(&self, judge: &mut dyn Judge, epoch: &Epoch, job: &Job) -> Result<Verdict> {
        let promises = self.subject.promises(epoch);
        let edits = &self.subject.edits;
        let case = Case {
            edits,
            state: &job.state,
            tree: &job.built.tree,
            damage: job.built.damage.as_deref(),
            promises: &promises,
            emptied: None,
        };
        let verdict = judge.verdict(&case)?;
        locked(&self.verdicts).insert(job.key, verdict.fails());
        Ok(verdict)
    }

    fn judge_state(
        &self,
        judge: &mut dyn Judge,
        cursor: &mut Cursor<'_>,
        state: &State,
    ) -> Result<Verdict> {
        let built = cursor.built(state)?;
        self.judge_built(judge, cursor, state, built)
    }

    fn judge_built(
        &self,
        judge: &mut dyn Judge,
        cursor: &mut Cursor<'_>,
        state: &State,
        built: Built,
    ) -> Result<Verdict> {
        let epoch = cursor.epoch(state.epoch)?.clone();
        let key = (built.hash(), epoch.promises);
        self.verdict(judge, &epoch, &Job { state: state.clone(), built, key })
    }

    /// Judges a state while another is shrunk.
    fn fails(&self, judge: &mut dyn Judge, cursor: &mut Cursor<'_>, state: &State) -> Result<bool> {
        let promises = cursor.epoch(state.epoch)?.promises;
        let looked = cursor.look(state)?;
        let key = (looked.hash, promises);
        if let Some(known) = locked(&self.verdicts).get(&key) {
            return Ok(*known);
        }
        self.shrinking.fetch_add(1, Ordering::Relaxed);
        let built = looked.into_built(cursor, state)?;
        Ok(self.judge_built(judge, cursor, state, built)?.fails())
    }
}

/// Ends the search if a judge's thread panics: nobody would take the states.
struct EndsSearch<'a>(&'a AtomicBool);

impl Drop for EndsSearch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Causes {
    /// The finding whose cause explains a state.
    fn explain(&self, epoch: &Epoch, state: &State) -> Option<usize> {
        let found =
            self.causes.iter().find(|(cause, units, _)| cause.explains(epoch, state, units));
        found.map(|(_, _, finding)| *finding)
    }

    /// Adds a cause to the finding of its kind, or as a new one.
    fn add(&mut self, subject: &Subject, cause: Cause, verdict: Verdict) {
        let kind = FindingKind::of(subject, &cause);
        let trigger_units = cause.trigger.map_or_else(Vec::new, |call| {
            let of_call = |unit: &UnitNr| subject.units.units[unit.index()].call == call;
            (0..subject.units.units.len() as u32).map(UnitNr).filter(of_call).collect()
        });
        let known = self.findings.iter().position(|finding| finding.kind == kind);
        let place = known.unwrap_or_else(|| {
            self.findings.push(Finding::new(subject, kind, &cause, verdict));
            self.findings.len() - 1
        });
        self.findings[place].states += 1;
        self.causes.push((cause, trigger_units, place));
    }
}
