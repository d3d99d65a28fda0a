//! A shell line that runs in the mounted folder, with a time limit, up to the end of the last process
//! that it started.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};

use super::output::{Kept, Output};
use super::{Error, Isolation, Result, reap, worker};

/// The most bytes of each output that are kept, unless [`ShellCommand::output_bytes`] says otherwise.
const OUTPUT_BYTES: usize = 64 << 10;

/// The most time in which a process ends that was killed.
const KILLED_MAX: Duration = Duration::from_secs(10);

/// A shell line and how it is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellCommand {
    /// The argument of `/bin/sh -c`.
    pub line: OsString,
    /// The folder in which it starts, which is also in its variable `WEFT_MNT`.
    pub directory: PathBuf,
    /// Other variables, beside those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// The time after which it is killed.
    pub time_limit: Duration,
    /// The most bytes that are kept of the standard output, and of the standard error.
    pub output_bytes: usize,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// By itself, with this exit code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It was killed at the time limit.
    TimedOut,
}

/// A command that has ended, with what it left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// The time from its start to its end, without that for killing what it left.
    pub duration: Duration,
    /// Its standard output.
    pub stdout: Kept,
    /// Its standard error.
    pub stderr: Kept,
    /// The number of processes that it had started and that still ran: they were killed.
    pub left_running: u32,
    /// Processes remain that were killed and did not end, since they wait for a device: the worker
    /// should not go on.
    pub remain: bool,
}

impl Outcome {
    /// Returns true if the command ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.ended == Ended::Exit(0)
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => write!(f, "killed by signal {number}"),
            Self::TimedOut => f.write_str("killed at the time limit"),
        }
    }
}

impl ShellCommand {
    /// Makes a command that runs in `directory`.
    pub fn new(
        line: impl Into<OsString>,
        directory: impl Into<PathBuf>,
        time_limit: Duration,
    ) -> Self {
        Self {
            line: line.into(),
            directory: directory.into(),
            environment: Vec::new(),
            time_limit,
            output_bytes: OUTPUT_BYTES,
        }
    }

    /// Runs the command, and ends every process that this worker has started since: only one command
    /// may run at a time.
    ///
    /// # Errors
    /// [`Error::Command`] if it could not be started: there is no shell, or the folder is not
    /// mounted. [`Error::Wait`].
    pub fn run(&self, isolation: &Isolation) -> Result<Outcome> {
        self.run_piped(isolation, false, |_| ())
    }

    /// Runs the command as [`run`](Self::run) does. `before` gets its standard output before it
    /// starts: another thread may [drain](Output::drain_now) it at any moment.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_drained(
        &self,
        isolation: &Isolation,
        before: impl FnOnce(&Arc<Output>),
    ) -> Result<Outcome> {
        self.run_piped(isolation, true, before)
    }

    /// The shell that runs the line.
    pub(super) fn shell(&self) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell
            .arg("-c")
            .arg(&self.line)
            .current_dir(&self.directory)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("WEFT_MNT", &self.directory)
            .env_remove(worker::variable())
            .process_group(0);
        shell
    }

    fn run_piped(
        &self,
        isolation: &Isolation,
        drained: bool,
        before: impl FnOnce(&Arc<Output>),
    ) -> Result<Outcome> {
        let command = self.line.to_string_lossy().into_owned();
        let failed = |source| Error::Command { command: command.clone(), source };
        let (stdout, stdout_writer) = Output::pipe(self.output_bytes, drained).map_err(failed)?;
        let (stderr, stderr_writer) = Output::pipe(self.output_bytes, false).map_err(failed)?;
        let stdout = Arc::new(stdout);
        before(&stdout);
        let began = Instant::now();
        let mut child = self
            .shell()
            .stdin(Stdio::null())
            .stdout(stdout_writer)
            .stderr(stderr_writer)
            .spawn()
            .map_err(failed)?;
        let waited = wait(&mut child, began + self.time_limit, [&stdout, &stderr]);
        let duration = began.elapsed();
        // Whatever happened, nothing of it goes on.
        let mut remain = false;
        if !matches!(waited, Ok(Some(_))) {
            remain = !kill(&mut child).map_err(Error::Wait)?;
        }
        let left = reap::end_all(isolation.is_namespace());
        for output in [&*stdout, &stderr] {
            output.read_now();
        }
        Ok(Outcome {
            ended: match waited.map_err(Error::Wait)? {
                None => Ended::TimedOut,
                Some(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => Ended::Exit(code),
                    (None, signal) => Ended::Signal(signal.unwrap_or(0)),
                },
            },
            duration,
            stdout: stdout.take(),
            stderr: stderr.take(),
            left_running: left.killed,
            remain: remain || left.remain,
        })
    }
}

/// Waits for the end of a process, and reads its output meanwhile; `None` if the time is over.
fn wait(
    child: &mut Child,
    deadline: Instant,
    outputs: [&Output; 2],
) -> std::io::Result<Option<ExitStatus>> {
    let pidfd = pidfd_open(pid(child), PidfdFlags::empty())?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let mut fds = vec![PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        let open = outputs.into_iter().filter(|output| !output.is_ended());
        fds.extend(open.map(|output| PollFd::new(output, PollFlags::IN)));
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1 << 30, tv_nsec: 0 });
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let has_ended = !fds[0].revents().is_empty();
        for output in outputs {
            output.read_now();
        }
        if has_ended {
            return child.try_wait();
        }
    }
}

/// Kills a process with its group, and waits for its end. Returns whether it came.
fn kill(child: &mut Child) -> std::io::Result<bool> {
    // A group without processes is no error: the process itself is killed in any case.
    let _ = kill_process_group(pid(child), Signal::KILL);
    child.kill()?;
    let deadline = Instant::now() + KILLED_MAX;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(true)
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}
