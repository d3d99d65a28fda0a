//! `mode=once`: one process for each pass over a file, from its standard input to its standard
//! output.

use std::io::{Read, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use weft_vfs::check_interrupt;

use super::process::{COMPLAINT_BYTES, Process, ended_with, failure};
use crate::parameters::Program;
use crate::{Error, Result, STEP_BYTES, Stream};

/// Bytes written to or read from a process at a time, and the number of such pieces in a queue.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 4;
/// The polling interval for a full pipe, and for the end of the process.
const PAUSE: Duration = Duration::from_millis(5);
/// The interval at which a wait for output looks whether the reader was interrupted.
const LOOKS: Duration = Duration::from_millis(20);

/// A pass through one process.
pub(super) struct Pass {
    name: String,
    deadline: Duration,
    process: Process,
    /// `None` once the input has ended, or the process reads no more.
    input: Option<SyncSender<Vec<u8>>>,
    output: Receiver<Vec<u8>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    output_bytes: u64,
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Writes pieces to the process until it stops reading or the input ends.
fn feed(mut stdin: ChildStdin, pieces: Receiver<Vec<u8>>) {
    for piece in pieces {
        if stdin.write_all(&piece).is_err() {
            return;
        }
    }
}

/// Reads pieces until the process closes its output or the receiver is gone.
fn take(mut stdout: impl Read, pieces: &SyncSender<Vec<u8>>) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(got @ 1..) = stdout.read(&mut piece) {
        if pieces.send(piece[..got].to_vec()).is_err() {
            return;
        }
    }
}

/// Reads all of standard error, so that the process does not block on it, and keeps its beginning.
fn listen(mut stderr: impl Read, complaint: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(got @ 1..) = stderr.read(&mut piece) {
        let mut kept = complaint.lock().unwrap_or_else(PoisonError::into_inner);
        let room = COMPLAINT_BYTES - kept.len();
        kept.extend_from_slice(&piece[..got.min(room)]);
    }
}

impl Pass {
    pub(super) fn start(name: &str, program: &Program, deadline: Duration) -> Result<Self> {
        let mut process = Process::start(program, Some(program.cpu_seconds))?;
        let (input, to_feed) = sync_channel(PIECES);
        let (taken, output) = sync_channel(PIECES);
        let complaint: Arc<Mutex<Vec<u8>>> = Arc::default();
        let child = process.child();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on an error kills the process.
        let pass = Self {
            name: name.to_owned(),
            deadline,
            process,
            input: Some(input),
            output,
            complaint: complaint.clone(),
            output_bytes: 0,
        };
        if let (Some(stdin), Some(stdout), Some(stderr)) = pipes {
            thread("weft-exec-in", move || feed(stdin, to_feed))?;
            thread("weft-exec-out", move || take(stdout, &taken))?;
            thread("weft-exec-err", move || listen(stderr, &complaint))?;
        }
        Ok(pass)
    }

    fn failed(&self, what: &str) -> Error {
        let kept = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        failure(&self.name, self.output_bytes, what, &kept)
    }

    fn late(&mut self) -> Error {
        self.process.end();
        let millis = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
        Error::Deadline { stage: "exec", millis }
    }

    fn took(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.output_bytes += piece.len() as u64;
        out.extend_from_slice(piece);
    }

    /// Waits for the exit of the process, whose output has ended; returns an error if it failed.
    fn wait(&mut self) -> Result<bool> {
        let end = Instant::now() + self.deadline;
        let Some(pid) = self.process.pid() else { return Err(self.failed("has no number")) };
        // Not reaped yet: until then its process id, and that of its group, cannot be reused.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), look).map_err(std::io::Error::from)?.is_none() {
            if Instant::now() >= end {
                return Err(self.late());
            }
            check_interrupt()?;
            std::thread::sleep(PAUSE);
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let status = self.process.wait()?;
        if status.success() {
            Ok(true)
        } else {
            Err(self.failed(&format!("ended with {}", ended_with(status))))
        }
    }
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut piece = input[..input.len().min(PIECE_BYTES)].to_vec();
        let len = piece.len();
        let mut progress = Instant::now();
        loop {
            match self.output.try_recv() {
                Ok(made) => {
                    self.took(&made, out);
                    if out.len() >= STEP_BYTES {
                        return Ok(0);
                    }
                    progress = Instant::now();
                    continue;
                }
                // The output has ended: the rest of the input is ignored.
                Err(TryRecvError::Disconnected) => return Ok(input.len()),
                Err(TryRecvError::Empty) => {}
            }
            let Some(sender) = &self.input else { return Ok(input.len()) };
            match sender.try_send(piece) {
                Ok(()) => return Ok(len),
                Err(TrySendError::Disconnected(_)) => {
                    self.input = None;
                    return Ok(input.len());
                }
                Err(TrySendError::Full(back)) => piece = back,
            }
            // Nothing of the input is taken, so that another reader can go on from here.
            check_interrupt()?;
            match self.output.recv_timeout(PAUSE) {
                Ok(made) => {
                    self.took(&made, out);
                    progress = Instant::now();
                }
                Err(_) if progress.elapsed() >= self.deadline => return Err(self.late()),
                Err(_) => {}
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        self.input = None;
        let mut progress = Instant::now();
        while out.len() < STEP_BYTES {
            let left = self.deadline.saturating_sub(progress.elapsed());
            match self.output.recv_timeout(left.min(LOOKS)) {
                Ok(made) => {
                    self.took(&made, out);
                    progress = Instant::now();
                }
                Err(RecvTimeoutError::Disconnected) => return self.wait(),
                Err(RecvTimeoutError::Timeout) if progress.elapsed() >= self.deadline => {
                    return Err(self.late());
                }
                Err(RecvTimeoutError::Timeout) => check_interrupt()?,
            }
        }
        Ok(false)
    }
}
