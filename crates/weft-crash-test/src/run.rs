//! A crash test from beginning to end: a program is recorded, and its states are judged.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use weft_vfs::FileKind;
use weft_vfs::memfs::Snapshot;

use crate::calls::{Action, CallNr};
use crate::effects::PAGE_BYTES;
use crate::finding::Finding;
use crate::model::Unit;
use crate::report::{EachSync, ModelReport, Report, SyncReport};

use crate::scratch::Scratch;
use crate::search::{Limits, Progress, search};
use crate::states::State;
use crate::subject::{Cursor, Edit, Subject};
use crate::verdict::{Case, Judge, Verdict, VolumeJudge};
use crate::volume::VolumeOptions;
use crate::words::describe;
use crate::worker::{RemoteJudge, WorkerCommand, record};
use crate::{Error, Header, Model, Pattern, Recording, Result, hints, mend};

/// How a program is recorded.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    /// A shell line that prepares the folder. What it leaves is taken to be durable.
    pub setup: Option<String>,
    /// The shell line to be tested.
    pub run: String,
    /// Lines of its output that match are promises.
    pub promise: Option<Pattern>,
    /// How long each of them may take.
    pub time_limit: Duration,
    /// How much may be written.
    pub write_limit_bytes: u64,
    /// The size of the file system.
    pub size_bytes: u64,
    /// Whether the program may end with a failure.
    pub any_exit: bool,
    /// The volume of weft that it runs on; otherwise a file system in memory, of which models say
    /// what is durable.
    pub volume: Option<VolumeOptions>,
}

/// How the states of a recording are judged.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// The shell line that judges a state. If it is empty, all that is judged is whether weft can
    /// mount and read the volume, and what its fsck finds ([`VolumeKind::fsck`](crate::VolumeKind)).
    pub check: String,
    /// It serves ([`CheckServer`](crate::sandbox::CheckServer)): it is started once for each job.
    pub serves: bool,
    /// How long it may take.
    pub time_limit: Duration,
    /// The models.
    pub models: Vec<Model>,
    /// The limits of the search under each model.
    pub limits: Limits,
    /// The number of checks that run at the same time.
    pub jobs: usize,
    /// The size of the file system.
    pub size_bytes: u64,
}

/// Runs a program in an empty folder and records its calls.
///
/// # Errors
/// [`Error::NotTested`] if the program cannot be tested, and why.
pub fn record_program(worker: &WorkerCommand, options: &RecordOptions) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let said = record(worker, &scratch, options)?;
    let recording = Recording::share(&scratch.recording())?;
    if !options.any_exit && recording.header.exit != Some(0) {
        let how = match recording.header.exit {
            Some(status) => format!("exit status {status}"),
            None => "a signal".into(),
        };
        let hint = hints::for_line(&options.run, recording.header.exit);
        return Err(Error::NotTested(format!("the program failed ({how}){said}{hint}")));
    }
    Ok(recording)
}

/// Judges the states that a power cut could leave of a recording. `progress` is called often, with
/// the model.
///
/// # Errors
/// [`Error::NotTested`] if the check fails without a power cut, or cannot be run, or if the program
/// changed nothing.
pub fn check_recording(
    worker: &WorkerCommand,
    recording: &Recording,
    options: &CheckOptions,
    progress: &(dyn Fn(Model, &Progress) + Sync),
) -> Result<Report> {
    if !recording.calls.iter().any(|call| call.action.is_change()) {
        return Err(Error::NotTested(
            "the program changed nothing in its folder, so that a power cut takes nothing from it"
                .into(),
        ));
    }
    let scratch = Scratch::new()?;
    recording.save(&scratch.recording())?;
    let mut judges = judges(worker, &scratch, options);
    let count = |found: fn(&Action) -> bool| {
        recording.calls.iter().filter(|call| found(&call.action)).count()
    };
    let mut report = Report {
        recorded: recording.header.clone(),
        calls: count(|action| !action.is_block()),
        block_writes: count(|action| matches!(action, Action::BlockWrite { .. })),
        syncs: count(Action::is_sync),
        promises: count(|action| action.promise().is_some()),
        models: Vec::new(),
        notes: Vec::new(),
    };
    for model in &models(recording, options) {
        let began = Instant::now();
        let subject = Subject::new(recording, *model, &[]);
        for judge in &mut judges {
            judge.begin(*model)?;
        }
        let found = search(&subject, &mut judges, options.limits, &|p| progress(*model, p));
        let mut found = found.map_err(|e| hints::with_hint(e, &options.check))?;
        if report.models.is_empty() && !options.check.is_empty() {
            report.notes.extend(hints::accepts_emptied(&subject, judges[0].as_mut())?);
        }
        // The proofs of missing calls may take as long again as the search.
        let deadline = Instant::now() + options.limits.time;
        add_mends(recording, &subject, &mut found.findings, judges[0].as_mut(), deadline)?;
        let (units, seconds) = (subject.units.units.len(), began.elapsed().as_secs_f64());
        report.models.push(ModelReport { model: *model, units, found, seconds });
    }
    report.notes.extend(note_of_folders(&recording.header, &judges));
    Ok(report)
}

/// Searches the recording once for each call that makes something durable, as if the program had not
/// made it, nor made the same inode durable again right after it. A call that no state misses is
/// needless, or the check does not see what it is for; under another model it may be needed.
///
/// # Errors
/// Those of [`check_recording`]; [`Error::NotTested`] if a state fails without leaving anything out.
pub fn check_each_sync(
    worker: &WorkerCommand,
    recording: &Recording,
    options: &CheckOptions,
    progress: &(dyn Fn(Model, &Progress) + Sync),
) -> Result<EachSync> {
    let scratch = Scratch::new()?;
    recording.save(&scratch.recording())?;
    let mut judges = judges(worker, &scratch, options);
    let limits = Limits { findings: 1, shrinks: 1, ..options.limits };
    if recording.volume.is_some() {
        return Err(Error::NotTested(
            "what a volume would have written without an fsync is not known: test it under a model"
                .into(),
        ));
    }
    let mut all = EachSync { recorded: recording.header.clone(), syncs: Vec::new() };
    for model in &options.models {
        let whole = Subject::new(recording, *model, &[]);
        for judge in &mut judges {
            judge.begin(*model)?;
        }
        let found = search(&whole, &mut judges, limits, &|p| progress(*model, p))?;
        if found.progress.failed > 0 {
            let failure = found.findings.first().map_or("", |finding| &finding.headline);
            return Err(Error::NotTested(format!(
                "under {model} a state fails with every fsync in place, so that leaving one out \
                 would tell nothing: {failure}"
            )));
        }
        for (nr, _) in (0..).map(CallNr).zip(&recording.calls).filter(|(_, c)| c.action.is_sync()) {
            let began = Instant::now();
            let settled = |unit: &&Unit| unit.durable_after == Some(nr);
            let settles = whole.units.units.iter().filter(settled).count();
            let edits = Edit::leave_out(&recording.calls, nr);
            let subject = Subject::new(recording, *model, &edits);
            // Before this call all states are those of the search above.
            let limits = Limits { after: Some(nr), ..limits };
            let found = match settles {
                0 => None,
                _ => Some(search(&subject, &mut judges, limits, &|p| progress(*model, p))?),
            };
            let finding = found.as_ref().and_then(|found| found.findings.first());
            all.syncs.push(SyncReport {
                model: *model,
                call: describe(&recording.base, &recording.calls, nr),
                settles,
                needed: found.as_ref().is_some_and(|found| found.progress.failed > 0),
                states: found.as_ref().map_or(0, |found| found.progress.judged),
                failure: finding.map(|finding| finding.headline.clone()),
                state: finding.map(|finding| finding.state.clone()),
                seconds: began.elapsed().as_secs_f64(),
            });
        }
    }
    Ok(all)
}

/// A note if checks have run in another folder than the program: what it has written of its own path means
/// something else there.
fn note_of_folders(header: &Header, judges: &[Box<dyn Judge>]) -> Option<String> {
    let (was, judges) = (header.folder.as_ref()?, judges.iter());
    let other =
        judges.filter_map(|judge| judge.folder()).find(|folder| *folder != was.as_path())?;
    let (was, other) = (was.display(), other.display());
    Some(format!(
        "the program ran in {was}, and checks ran in {other}: programs that write absolute paths into their \
         files are judged by paths that are not there"
    ))
}

/// The models to be tested: of a program on a volume, the volume.
fn models(recording: &Recording, options: &CheckOptions) -> Vec<Model> {
    match recording.volume {
        Some(_) => vec![Model::Volume],
        None => options.models.clone(),
    }
}

fn judges(
    worker: &WorkerCommand,
    scratch: &Scratch,
    options: &CheckOptions,
) -> Vec<Box<dyn Judge>> {
    let numbers = 0..u32::try_from(options.jobs.clamp(1, 1024)).unwrap_or(1);
    let judge = |number| -> Box<dyn Judge> {
        match options.check.as_str() {
            "" => Box::new(VolumeJudge),
            _ => Box::new(RemoteJudge::new(worker, scratch, number, options)),
        }
    };
    numbers.map(judge).collect()
}

fn add_mends(
    recording: &Recording,
    subject: &Subject,
    findings: &mut [Finding],
    judge: &mut dyn Judge,
    deadline: Instant,
) -> Result<()> {
    for finding in findings {
        finding.mend = mend(recording, subject.model, subject, finding, judge, deadline)?;
    }
    Ok(())
}

/// Judges one state, as a finding names it.
///
/// # Errors
/// [`Error::State`] if it is no state of the recording under the first model of the options.
pub fn check_state(
    worker: &WorkerCommand,
    recording: &Recording,
    options: &CheckOptions,
    state: &State,
) -> Result<Verdict> {
    let Some(model) = models(recording, options).first().copied() else {
        return Err(Error::UnknownModel(String::new()));
    };
    let scratch = Scratch::new()?;
    recording.save(&scratch.recording())?;
    let subject = Subject::new(recording, model, &[]);
    let mut cursor = Cursor::new(&subject);
    let epoch = cursor.epoch(state.epoch)?.clone();
    if !epoch.is_legal(state) {
        return Err(Error::State(state.to_string()));
    }
    let built = cursor.built(state)?;
    let promises = subject.promises(&epoch);
    let mut judges = judges(worker, &scratch, &CheckOptions { jobs: 1, ..options.clone() });
    let judge = judges[0].as_mut();
    judge.begin(model)?;
    let (tree, damage) = (&built.tree, built.damage.as_deref());
    let promises = &promises;
    judge.verdict(&Case { edits: &[], state, tree, damage, promises, emptied: None })
}

/// Leaves the files of a state in a directory, which must not exist.
///
/// # Errors
/// [`Error::State`] if it is no state of the recording under the model; [`Error::Io`].
pub fn extract_state(recording: &Recording, model: Model, state: &State, to: &Path) -> Result<()> {
    let model = if recording.volume.is_some() { Model::Volume } else { model };
    let subject = Subject::new(recording, model, &[]);
    let mut cursor = Cursor::new(&subject);
    if !cursor.epoch(state.epoch)?.is_legal(state) {
        return Err(Error::State(state.to_string()));
    }
    let tree = cursor.tree(state)?;
    let failed = |path: &Path| {
        let what = format!("making {}", path.display());
        |source| Error::Io { what, source }
    };
    std::fs::create_dir(to).map_err(failed(to))?;
    let mut todo = vec![(Snapshot::ROOT, to.to_owned())];
    while let Some((nr, path)) = todo.pop() {
        let Some(node) = tree.node(nr) else { continue };
        for (name, child) in node.entries() {
            let path = path.join(OsStr::from_bytes(name));
            let Some(child_node) = tree.node(child) else { continue };
            match child_node.kind() {
                FileKind::Directory => {
                    std::fs::create_dir(&path).map_err(failed(&path))?;
                    todo.push((child, path));
                }
                FileKind::Regular => {
                    let file = std::fs::File::create(&path).map_err(failed(&path))?;
                    let size = child_node.size_bytes();
                    file.set_len(size).map_err(failed(&path))?;
                    for (page, bytes) in child_node.pages() {
                        let at = page * PAGE_BYTES;
                        let len = size.saturating_sub(at).min(PAGE_BYTES) as usize;
                        file.write_all_at(&bytes.bytes()[..len], at).map_err(failed(&path))?;
                    }
                }
                FileKind::Symlink => {
                    let target = OsStr::from_bytes(child_node.target().unwrap_or_default());
                    std::os::unix::fs::symlink(target, &path).map_err(failed(&path))?;
                }
                // Sockets, FIFOs and devices are left out: they hold nothing.
                _ => {}
            }
        }
    }
    Ok(())
}
