//! The work of a worker process: it records a program, or runs checks on states.
//!
//! A worker mounts a file system in memory. To record, it runs the program there; to check, it
//! restores the tree of one state after the other into the same mount, and runs the check. It reads
//! the recording from a file and builds each state's tree itself, so that only the state's name is
//! sent.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_vfs::FileSystem;
use weft_vfs::memfs::MemFs;

use crate::backend::{Backend, Base, later, memory};
use crate::before_main::WORKER_ARGUMENT;
use crate::calls::NodeNr;
use crate::run::{CheckOptions, RecordOptions};
use crate::sandbox::{self, run_if_worker};
use crate::sandbox::{
    Channel, CheckServer, Ended, MountPoints, READY_MAX, Seat, Served, ShellCommand, TestMount,
    Worker, WorkerOptions,
};
use crate::scratch::Scratch;
use crate::states::State;
use crate::subject::{Cursor, Edit, Subject};
use crate::verdict::{Case, Judge, Outcome, Verdict};
use crate::volume::{Volume, VolumeOptions, merge};
use crate::{Error, Header, Model, Pattern, Recording, Result, hints};

/// How this program is started again to be a worker.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    arguments: Vec<String>,
}

impl WorkerCommand {
    /// The program that runs, with arguments by which it comes to call [`worker_main`] before it
    /// starts threads.
    #[must_use]
    pub fn this_program(arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(|&argument| argument.to_owned()).collect() }
    }

    /// The program that runs, whatever it is, as long as it is linked with this crate: it becomes a
    /// worker before its `main`.
    #[must_use]
    pub fn this_binary() -> Self {
        Self::this_program(&[WORKER_ARGUMENT])
    }

    fn start(&self, scratch: &Scratch, number: u32) -> Result<Worker> {
        let options = self.options(scratch.mount_points(), number);
        Ok(Worker::start(&options)?)
    }

    fn options(&self, mount_points: MountPoints, number: u32) -> WorkerOptions {
        let options = WorkerOptions::new(&self.arguments, &mount_points.shared);
        WorkerOptions { mount_points, number, ..options }
    }
}

#[derive(Serialize, Deserialize)]
enum Request {
    Record {
        setup: Option<String>,
        run: String,
        promise: Option<String>,
        time_limit: Duration,
        write_limit_bytes: u64,
        size_bytes: u64,
        volume: Option<VolumeOptions>,
        to: PathBuf,
    },
    Check {
        recording: PathBuf,
        promises: PathBuf,
        check: String,
        serves: bool,
        time_limit: Duration,
        size_bytes: u64,
    },
    Begin {
        model: Model,
        edits: Vec<Edit>,
    },
    Judge {
        state: String,
        /// The number of a file whose content is taken away.
        emptied: Option<u64>,
    },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    /// The recording is written; what the program printed on its standard error.
    Recorded(String),
    Verdict(Verdict),
    NotTested(String),
    NoFuse(String),
}

impl Answer {
    fn of(e: Error) -> Self {
        use weft_fuse::Error as Fuse;
        match e {
            Error::NotTested(why) => Self::NotTested(why),
            Error::Sandbox(sandbox::Error::Mount(
                e @ (Fuse::NoDevice | Fuse::Device(_) | Fuse::NoFusermount | Fuse::Mount { .. }),
            )) => Self::NoFuse(e.to_string()),
            e => Self::NotTested(e.to_string()),
        }
    }
}

/// Records a program: the recording is in the file of the scratch directory. Returns what it printed
/// on its standard error, for a message.
pub(crate) fn record(
    command: &WorkerCommand,
    scratch: &Scratch,
    options: &RecordOptions,
) -> Result<String> {
    let mut worker = command.start(scratch, 0)?;
    worker.channel().send(&Request::Record {
        setup: options.setup.clone(),
        run: options.run.clone(),
        promise: options.promise.as_ref().map(ToString::to_string),
        time_limit: options.time_limit,
        write_limit_bytes: options.write_limit_bytes,
        size_bytes: options.size_bytes,
        volume: options.volume.clone(),
        to: scratch.recording(),
    })?;
    let answer = worker.channel().receive()?;
    // Nothing of the program goes on, and nothing is mounted, when this returns.
    worker.end()?;
    match answer {
        Some(Answer::Recorded(said)) => Ok(said),
        Some(Answer::NotTested(why)) => Err(Error::NotTested(why)),
        Some(Answer::NoFuse(why)) => Err(Error::NoFuse(why)),
        _ => Err(Error::NotTested("the process that recorded it was killed".into())),
    }
}

/// Runs checks in a worker, which is started again if a check has ended it.
pub(crate) struct RemoteJudge {
    command: WorkerCommand,
    mount_points: MountPoints,
    number: u32,
    check: Request,
    worker: Option<Worker>,
    begun: Option<(Model, Vec<Edit>)>,
    model: Model,
    /// The longest time in which a check must have ended.
    patience: Duration,
}

/// Beside the time limit of a check: for starting it, and for ending what it leaves.
const PATIENCE: Duration = Duration::from_secs(30);

impl RemoteJudge {
    pub(crate) fn new(
        command: &WorkerCommand,
        scratch: &Scratch,
        number: u32,
        options: &CheckOptions,
    ) -> Self {
        Self {
            command: command.clone(),
            mount_points: scratch.mount_points(),
            number,
            check: Request::Check {
                recording: scratch.recording(),
                promises: scratch.promises(number),
                check: options.check.clone(),
                serves: options.serves,
                time_limit: options.time_limit,
                size_bytes: options.size_bytes,
            },
            worker: None,
            begun: None,
            model: Model::Posix,
            patience: options.time_limit
                + PATIENCE
                + if options.serves { READY_MAX } else { Duration::ZERO },
        }
    }

    /// Sends a request and returns the answer; `None` if the worker has ended.
    fn ask(&mut self, request: &Request) -> Result<Option<Answer>> {
        let Some(worker) = &mut self.worker else { return Ok(None) };
        match worker.channel().send(request) {
            Err(sandbox::Error::Gone) => return Ok(None),
            other => other?,
        }
        match worker.channel().receive_within(self.patience) {
            Ok(answer) => Ok(Some(answer)),
            Err(sandbox::Error::Gone | sandbox::Error::TimedOut) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn try_judge(&mut self, case: &Case<'_>) -> Result<Option<Answer>> {
        if self.worker.is_none() {
            let options = self.command.options(self.mount_points.clone(), self.number);
            self.worker = Some(Worker::start(&options)?);
            self.begun = None;
            let nothing = Request::Judge { state: String::new(), emptied: None };
            let check = std::mem::replace(&mut self.check, nothing);
            let answer = self.ask(&check);
            self.check = check;
            match answer? {
                Some(Answer::Done) => {}
                other => return Ok(other),
            }
        }
        let subject = (self.model, case.edits.to_vec());
        if self.begun.as_ref() != Some(&subject) {
            let (model, edits) = subject.clone();
            match self.ask(&Request::Begin { model, edits })? {
                Some(Answer::Done) => self.begun = Some(subject),
                other => return Ok(other),
            }
        }
        self.ask(&Request::Judge { state: case.state.to_string(), emptied: case.emptied })
    }
}

impl Judge for RemoteJudge {
    fn folder(&self) -> Option<&Path> {
        self.worker.as_ref().map(Worker::mountpoint)
    }

    fn begin(&mut self, model: Model) -> Result<()> {
        self.model = model;
        Ok(())
    }

    fn judge(&mut self, case: &Case<'_>) -> Result<Verdict> {
        // A check may have killed the worker of the check before: once is not its own doing.
        for _ in 0..2 {
            match self.try_judge(case)? {
                Some(Answer::Verdict(verdict)) => return Ok(verdict),
                Some(Answer::NotTested(why)) => return Err(Error::NotTested(why)),
                Some(Answer::NoFuse(why)) => return Err(Error::NoFuse(why)),
                Some(Answer::Done | Answer::Recorded(_)) | None => self.worker = None,
            }
        }
        Err(Error::NotTested(format!(
            "the process that runs the check was killed, twice, in state {}",
            case.state
        )))
    }
}

/// Does the work of a worker, and ends the process, if this process was started as one by
/// [`record_program`](crate::record_program) or [`check_recording`](crate::check_recording); returns
/// otherwise.
pub fn worker_main() {
    run_if_worker(|seat| {
        if let Err(e) = serve(seat) {
            tracing::error!("a worker of weft crash: {e}");
        }
    });
}

fn serve(mut seat: Seat) -> Result<()> {
    let Some(request) = seat.channel.receive()? else { return Ok(()) };
    match request {
        Request::Record { .. } => {
            let answer = record_here(&seat, &request).map_or_else(Answer::of, Answer::Recorded);
            Ok(seat.channel.send(&answer)?)
        }
        Request::Check { recording, promises, check, serves, time_limit, size_bytes } => {
            let recording = match Recording::share(&recording) {
                Ok(recording) => recording,
                Err(e) => return Ok(seat.channel.send(&Answer::of(e))?),
            };
            let Seat { mut channel, isolation, mountpoint } = seat;
            let fs = Arc::new(memory(size_bytes));
            let mount = match TestMount::new(Arc::clone(&fs) as Arc<dyn FileSystem>, &mountpoint) {
                Ok(mount) => mount,
                Err(e) => return Ok(channel.send(&Answer::of(e.into()))?),
            };
            channel.send(&Answer::Done)?;
            let mut command = in_folder(&check, &mount, time_limit);
            command.environment.push(("WEFT_PROMISES".into(), promises.clone().into()));
            command.output_bytes = 4 << 10;
            let mut checker =
                Checker { fs, mount, command, serves, server: None, isolation, promises };
            checker.serve(&mut channel, &recording)
        }
        Request::Begin { .. } | Request::Judge { .. } => {
            Ok(seat.channel.send(&Answer::NotTested("no check was named".into()))?)
        }
    }
}

/// A shell line that starts in the mounted folder. It finds where the test was started, as that is
/// where its scripts are.
fn in_folder(line: &str, mount: &TestMount, time_limit: Duration) -> ShellCommand {
    let mut command = ShellCommand::new(line, mount.path(), time_limit);
    let here = std::env::current_dir().unwrap_or_default();
    command.environment.push(("WEFT_CWD".into(), here.into()));
    command
}

/// Runs the setup and the program, and leaves the recording in a file. Returns what the program
/// printed on its standard error, for a message.
fn record_here(seat: &Seat, request: &Request) -> Result<String> {
    let Request::Record {
        setup,
        run,
        promise,
        time_limit,
        write_limit_bytes,
        size_bytes,
        volume,
        to,
    } = request
    else {
        return Ok(String::new());
    };
    let backend = match volume {
        Some(options) => Backend::on_volume(options)?,
        None => Backend::Memory(Arc::new(memory(*size_bytes))),
    };
    let recorder = Arc::new(backend.recorder(*write_limit_bytes));
    let mount = TestMount::new(Arc::clone(&recorder) as Arc<dyn FileSystem>, &seat.mountpoint)?;
    let command = |line: &str| in_folder(line, &mount, *time_limit);
    if let Some(setup) = setup {
        let ended = command(setup).run(&seat.isolation)?;
        if ended.ended != Ended::Exit(0) {
            let output = said(&format!("{}{}", ended.stdout, ended.stderr));
            let status = if let Ended::Exit(status) = ended.ended { Some(status) } else { None };
            let hint = hints::for_line(setup, status);
            let ended = ended.ended;
            return Err(Error::NotTested(format!("the setup failed ({ended}){output}{hint}")));
        }
    }
    write_mapped_pages(mount.path())?;
    let Base { tree, image, events: skipped } = backend.base(&recorder)?;
    let promise = promise.as_deref().map(Pattern::new);
    let ended = command(run).run_drained(&seat.isolation, |output| {
        let output = Arc::clone(output);
        recorder.start(Some(Box::new(move || output.drain_now())), promise);
    })?;
    if !mount.is_in_place() {
        return Err(Error::NotTested("the program has unmounted its folder".into()));
    }
    if ended.remain {
        return Err(Error::NotTested("a process of the program could not be killed".into()));
    }
    recorder.end_of_program();
    write_mapped_pages(mount.path())?;
    backend.settle()?;
    let Some((calls, positions)) = recorder.stop_with_positions() else {
        return Err(Error::NotTested(format!(
            "the program wrote more than {} MiB (--write-limit)",
            write_limit_bytes >> 20
        )));
    };
    let exit = match ended.ended {
        Ended::Exit(status) => Some(status),
        Ended::Signal(_) => None,
        Ended::TimedOut => {
            let seconds = time_limit.as_secs_f64();
            return Err(Error::NotTested(format!(
                "the program did not end within {seconds} s (--run-limit)"
            )));
        }
    };
    let header = Header {
        setup: setup.clone(),
        run: run.clone(),
        exit,
        left_behind: ended.left_running,
        folder: Some(mount.path().to_owned()),
    };
    let recording = match backend {
        Backend::Memory(_) => Recording::new(header, tree, calls),
        Backend::Volume { kind, recorder, .. } => {
            let events = later(&recorder.events(), skipped);
            let calls = merge(calls, &positions, &events, kind.block_bytes);
            let volume = image.map(|image| Volume { kind, image });
            Recording { volume, ..Recording::new(header, tree, calls) }
        }
    };
    recording.save(to)?;
    Ok(said(&ended.stderr.to_string()))
}

/// Writes back the pages that were written through a mapping, and that the kernel would write at
/// some later time. `syncfs` does not wait for a FUSE mount, so that each file is synced.
fn write_mapped_pages(directory: &Path) -> Result<()> {
    let failed = |path: &Path| Error::io(format!("reading {}", path.display()));
    let entries = match std::fs::read_dir(directory) {
        // As `lost+found` of a volume, to all but root: this user has mapped nothing in it.
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        entries => entries.map_err(failed(directory))?,
    };
    for entry in entries {
        let entry = entry.map_err(failed(directory))?;
        let kind = entry.file_type().map_err(failed(directory))?;
        if kind.is_dir() {
            write_mapped_pages(&entry.path())?;
        } else if kind.is_file() {
            // A file that may not be opened was not mapped by this user either.
            let file = std::fs::File::open(entry.path());
            let _ = file.and_then(|file| file.sync_data());
        }
    }
    Ok(())
}

/// The output of a command, for a message.
fn said(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!(":\n{text}") }
}

/// Runs checks.
struct Checker {
    fs: Arc<MemFs>,
    mount: TestMount,
    command: ShellCommand,
    serves: bool,
    server: Option<CheckServer>,
    isolation: sandbox::Isolation,
    promises: PathBuf,
}

impl Checker {
    fn serve(&mut self, channel: &mut Channel, recording: &Recording) -> Result<()> {
        let mut next = channel.receive()?;
        while let Some(request) = next.take() {
            let Request::Begin { model, edits } = request else {
                return Ok(channel.send(&Answer::NotTested("no model was named".into()))?);
            };
            channel.send(&Answer::Done)?;
            let subject = Subject::new(recording, model, &edits);
            let mut cursor = Cursor::new(&subject);
            let mut told = None;
            loop {
                next = channel.receive()?;
                let Some(Request::Judge { state, emptied }) = &next else { break };
                let answer = self.judge(&subject, &mut cursor, &mut told, (state, *emptied));
                let answer = answer.map_or_else(Answer::of, Answer::Verdict);
                channel.send(&answer)?;
            }
        }
        Ok(())
    }

    fn judge(
        &mut self,
        subject: &Subject,
        cursor: &mut Cursor<'_>,
        told: &mut Option<usize>,
        (state, emptied): (&str, Option<u64>),
    ) -> Result<Verdict> {
        let state: State = state.parse()?;
        let epoch = cursor.epoch(state.epoch)?;
        if *told != Some(epoch.promises) {
            let mut text = subject.promises(epoch).join("\n");
            if !text.is_empty() {
                text.push('\n');
            }
            std::fs::write(&self.promises, text).map_err(Error::io("writing the promises"))?;
            *told = Some(epoch.promises);
        }
        let mut tree = cursor.tree(&state)?;
        if let Some(file) = emptied {
            tree = hints::emptied(&tree, NodeNr(file))?;
        }
        self.fs.restore(&tree);
        let (ended, printed) = self.run_check()?;
        let outcome = match ended {
            Ended::Exit(0) => Outcome::Passed,
            Ended::Exit(status @ (126 | 127)) => {
                return Err(Error::NotTested(format!(
                    "the check cannot be run (exit status {status}){}",
                    said(&printed)
                )));
            }
            Ended::Exit(status) => Outcome::Failed(status),
            Ended::Signal(signal) => Outcome::Killed(signal),
            Ended::TimedOut => Outcome::TimedOut,
        };
        let output = if outcome == Outcome::Passed { String::new() } else { printed };
        Ok(Verdict { outcome, output })
    }

    /// Runs the check in the folder as it is; returns how it ended, and what it printed.
    fn run_check(&mut self) -> Result<(Ended, String)> {
        let mut remain = false;
        let ran = if self.serves {
            let server = match self.server.take() {
                Some(server) => server,
                None => CheckServer::start(&self.command)?,
            };
            let (served, server) = server.check(&self.command, &self.isolation)?;
            self.server = server;
            match served {
                Served::Checked(ended, printed) => (ended, printed.to_string()),
                Served::Failed(printed) => {
                    return Err(Error::NotTested(format!(
                        "the server of checks has ended{}",
                        said(&printed)
                    )));
                }
            }
        } else {
            let ended = self.command.run(&self.isolation)?;
            remain = ended.remain;
            (ended.ended, format!("{}{}", ended.stdout, ended.stderr))
        };
        if !self.mount.is_in_place() {
            return Err(Error::NotTested("the check has unmounted its folder".into()));
        }
        if remain {
            // This worker is of no use any more: another one goes on.
            std::process::exit(1);
        }
        Ok(ran)
    }
}
