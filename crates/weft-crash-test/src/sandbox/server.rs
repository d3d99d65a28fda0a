//! A command that serves: it is started once, and runs a check whenever it is asked.
//!
//! Starting an interpreter and loading its libraries takes many times as long as most checks do. A
//! server does both once, prints a line, and starts a process of its own for each check (`fork`): it is
//! asked by a line on its standard input, and answers by a line on its standard output, the exit status
//! of the check, or the number of the signal that ended it, below zero. What it and its checks print
//! else goes to its standard error. By the variable `WEFT_CHECK_SERVER` it knows that it is to serve.

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;

use super::output::{Kept, Output};
use super::{Ended, Error, Isolation, Result, ShellCommand, reap};

/// The most time from the start of a server to its first line.
pub const READY_MAX: Duration = Duration::from_secs(120);

/// The longest line of an answer.
const LINE_BYTES_MAX: usize = 32;

/// A server that has been started.
#[derive(Debug)]
pub struct CheckServer {
    child: Child,
    ask: ChildStdin,
    answers: Output,
    printed: Output,
    /// The beginning of an answer whose line has not ended yet.
    begun: Vec<u8>,
    ready: bool,
}

/// The result of asking a server for a check.
#[derive(Debug)]
pub enum Served {
    /// It has ended, or took too long; with what it printed.
    Checked(Ended, Kept),
    /// The server has ended instead, or answered with something else; with what it printed.
    Failed(String),
}

impl CheckServer {
    /// Starts a server.
    ///
    /// # Errors
    /// [`Error::Command`].
    pub fn start(command: &ShellCommand) -> Result<Self> {
        let line = command.line.to_string_lossy().into_owned();
        let failed = |source| Error::Command { command: line.clone(), source };
        let (answers, answers_writer) = Output::pipe(0, true).map_err(failed)?;
        let (printed, printed_writer) =
            Output::pipe(command.output_bytes, false).map_err(failed)?;
        let mut child = command
            .shell()
            .env("WEFT_CHECK_SERVER", "1")
            .stdin(Stdio::piped())
            .stdout(answers_writer)
            .stderr(printed_writer)
            .spawn()
            .map_err(failed)?;
        let no_pipe = || failed(std::io::Error::other("it has no standard input"));
        let ask = child.stdin.take().ok_or_else(no_pipe)?;
        Ok(Self { child, ask, answers, printed, begun: Vec::new(), ready: false })
    }

    /// Runs a check that may take as long as the command, and ends every process that it leaves: those
    /// that are not the server, nor below it.
    /// Returns the server, too, if it can go on.
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn check(
        mut self,
        command: &ShellCommand,
        isolation: &Isolation,
    ) -> Result<(Served, Option<Self>)> {
        if !self.ready {
            self.ready = matches!(self.line(Instant::now() + READY_MAX)?, Line::Whole(_));
        }
        if self.ready {
            // What was printed before is not by this check.
            self.printed.read_now();
            self.printed.take();
        }
        let ended = if self.ready {
            // One that has ended is seen by the end of its answers.
            let _ = self.ask.write_all(b"check\n");
            match self.line(Instant::now() + command.time_limit)? {
                Line::Whole(line) => line.trim().parse::<i32>().ok().map(|number| match number {
                    ..0 => Ended::Signal(number.saturating_neg()),
                    0.. => Ended::Exit(number),
                }),
                Line::TooLate => Some(Ended::TimedOut),
                Line::None => None,
            }
        } else {
            None
        };
        let is_kept = matches!(ended, Some(Ended::Exit(_) | Ended::Signal(_)));
        let goes_on = is_kept && isolation.has_own_processes();
        let remain = if goes_on {
            reap::end_all_but(Pid::from_child(&self.child)).remain
        } else {
            let _ = self.child.kill();
            reap::end_all(isolation.is_namespace()).remain
        };
        self.printed.read_now();
        let printed = self.printed.take();
        let served = match ended {
            Some(ended) => Served::Checked(ended, printed),
            None => Served::Failed(printed.to_string()),
        };
        if remain {
            return Err(Error::Wait(std::io::Error::other("a process of it could not be killed")));
        }
        Ok((served, goes_on.then_some(self)))
    }

    /// Waits for the next line.
    fn line(&mut self, deadline: Instant) -> Result<Line> {
        loop {
            self.begun.extend(self.answers.drain_now());
            if let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.begun.drain(..=end).collect();
                return Ok(Line::Whole(String::from_utf8_lossy(&line).into_owned()));
            }
            if self.answers.is_ended() || self.begun.len() > LINE_BYTES_MAX {
                return Ok(Line::None);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Line::TooLate);
            }
            let mut fds = vec![PollFd::new(&self.answers, PollFlags::IN)];
            if !self.printed.is_ended() {
                fds.push(PollFd::new(&self.printed, PollFlags::IN));
            }
            let timeout =
                Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1 << 30, tv_nsec: 0 });
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::Wait(e.into())),
            }
            self.printed.read_now();
        }
    }
}

enum Line {
    Whole(String),
    TooLate,
    /// The server has ended, or its line does not.
    None,
}
