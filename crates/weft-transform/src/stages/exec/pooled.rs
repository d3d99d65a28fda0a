//! Persistent programs: each gets one request after another, in frames on its standard input and
//! output, and waits between files. The protocol is documented in docs/transform.md.
//!
//! A frame is a letter, the length of its content (u32, little-endian), and the content. Each
//! request is answered by any number of frames `d` with data and then by `n` (next) or `e` (an
//! error, as text, after which the process goes on). A process that answers anything else, nothing
//! within the deadline, or too much, is killed, and a fresh one is started for the next request.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_vfs::check_interrupt;

use super::process::{COMPLAINT_BYTES, Process, failure};
use crate::parameters::Program;
use crate::{ByteMap, Direction, Error, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

/// Maximum bytes of data in a request.
const REQUEST_BYTES: usize = 256 << 10;
/// Maximum bytes of data in all answers to a request.
const ANSWER_MAX_BYTES: usize = 16 << 20;
/// Maximum number of idle processes.
const IDLE_MAX: usize = 8;
const HEAD_BYTES: usize = 5;
/// The interval at which a wait for an answer looks whether the reader was interrupted.
const LOOKS: Duration = Duration::from_millis(20);

/// The kind of requests to a persistent program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Blocks, transformed in place, in any order.
    Blocks,
    /// Files, from the beginning to the end.
    Stream,
}

/// A stage with its pool of processes.
pub(super) struct Pooled {
    pool: Arc<Shared>,
    mode: Mode,
    invertible: bool,
}

struct Shared {
    name: String,
    program: Program,
    hello: &'static str,
    deadline: Duration,
    idle: Mutex<Vec<Worker>>,
}

impl fmt::Debug for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.pool.name;
        f.debug_struct("Pooled")
            .field("name", name)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Pooled {
    pub(super) fn new(
        name: String,
        program: Program,
        mode: Mode,
        invertible: bool,
        deadline: Duration,
    ) -> Self {
        let hello = match mode {
            Mode::Blocks => "weft filter 1 blocks",
            Mode::Stream => "weft filter 1 stream",
        };
        let pool = Shared { name, program, hello, deadline, idle: Mutex::default() };
        Self { pool: Arc::new(pool), mode, invertible }
    }

    fn check(&self, direction: Direction) -> Result<()> {
        if direction == Direction::Inverse && !self.invertible {
            return Err(crate::model::no_inverse("exec"));
        }
        Ok(())
    }
}

impl Transform for Pooled {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        // The program's output may depend on files that it reads.
        None
    }

    fn acts_outside(&self) -> bool {
        true
    }

    fn shape(&self) -> Shape<'_> {
        match self.mode {
            Mode::Blocks => Shape::Bytes(self),
            Mode::Stream => Shape::Stream(self),
        }
    }

    fn invertible(&self) -> bool {
        self.invertible
    }
}

fn letter(direction: Direction) -> u8 {
    match direction {
        Direction::Forward => b'f',
        Direction::Inverse => b'i',
    }
}

impl ByteMap for Pooled {
    fn apply(&self, direction: Direction, mut offset: u64, block: &mut [u8]) -> Result<()> {
        self.check(direction)?;
        for piece in block.chunks_mut(REQUEST_BYTES) {
            let head = offset.to_le_bytes();
            let request = Request { letter: letter(direction), parts: [&head, piece], offset };
            let mut out = Vec::with_capacity(piece.len());
            let worker = self.pool.ask(&request, &mut out)?;
            if out.len() != piece.len() {
                let what = format!("answered {} bytes to {}", out.len(), piece.len());
                return Err(worker.failed(&self.pool, offset, &what));
            }
            self.pool.give_back(worker);
            piece.copy_from_slice(&out);
            offset += piece.len() as u64;
        }
        Ok(())
    }
}

impl StreamCodec for Pooled {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        self.check(direction)?;
        let begin = Request { letter: b'b', parts: [&[letter(direction)], &[]], offset: 0 };
        let mut out = Vec::new();
        let worker = self.pool.ask(&begin, &mut out)?;
        Ok(Box::new(Pass { pool: self.pool.clone(), worker: Some(worker), early: out, made: 0 }))
    }
}

/// One pass of a file through a process, which it owns until the end of the file.
struct Pass {
    pool: Arc<Shared>,
    worker: Option<Worker>,
    /// Output that was received before any input.
    early: Vec<u8>,
    made: u64,
}

impl Pass {
    fn step(&mut self, letter: u8, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.append(&mut self.early);
        let before = out.len();
        let request = Request { letter, parts: [data, &[]], offset: self.made };
        let Some(mut worker) = self.worker.take() else {
            return Err(failure(&self.pool.name, self.made, "ended before", &[]));
        };
        let answer = worker.exchange(&request, self.pool.deadline, out);
        self.made += (out.len() - before) as u64;
        match answer {
            Ok(()) => {
                self.worker = Some(worker);
                Ok(())
            }
            Err(why) => {
                let error = why.error(&self.pool, self.made, &worker);
                match why {
                    Why::Refused(_) => self.pool.give_back(worker),
                    // The next reader makes the same request, and goes on waiting.
                    Why::Interrupted => self.worker = Some(worker),
                    _ => {}
                }
                Err(error)
            }
        }
    }
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        while used < input.len() && out.len() < STEP_BYTES {
            let piece = &input[used..input.len().min(used + REQUEST_BYTES)];
            match self.step(b'd', piece, out) {
                Err(e) if e.is_interrupted() && used > 0 => return Ok(used),
                step => step?,
            }
            used += piece.len();
        }
        Ok(used)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        self.step(b'z', &[], out)?;
        // Only a process that has finished a file is reused.
        if let Some(worker) = self.worker.take() {
            self.pool.give_back(worker);
        }
        Ok(true)
    }
}

struct Request<'a> {
    letter: u8,
    parts: [&'a [u8]; 2],
    /// The offset that errors report.
    offset: u64,
}

impl Sending {
    fn new(request: &Request<'_>) -> Self {
        let len: usize = request.parts.iter().map(|part| part.len()).sum();
        let mut to_send = Vec::with_capacity(HEAD_BYTES + len);
        to_send.push(request.letter);
        // At most `REQUEST_BYTES` of data and a few more.
        to_send.extend((len as u32).to_le_bytes());
        request.parts.iter().for_each(|part| to_send.extend_from_slice(part));
        Self { request: to_send, sent: 0, room: ANSWER_MAX_BYTES }
    }
}

impl Shared {
    fn idle(&self) -> Option<Worker> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, worker: Worker) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(worker);
        }
    }

    fn start(&self) -> Result<Worker> {
        let mut worker = Worker::start(&self.program)?;
        let hello = Request { letter: b'h', parts: [self.hello.as_bytes(), &[]], offset: 0 };
        let mut answer = Vec::new();
        let greeted = worker.exchange(&hello, self.deadline, &mut answer);
        greeted.map_err(|why| why.error(self, 0, &worker))?;
        if answer != b"weft filter 1" {
            return Err(worker.failed(self, 0, "does not speak the protocol of filters"));
        }
        Ok(worker)
    }

    /// Sends a request to an idle process, or to a fresh one; returns the process that answered. An
    /// idle process may have died since, for reasons unrelated to this request.
    fn ask(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<Worker> {
        while let Some(mut worker) = self.idle() {
            match worker.exchange(request, self.deadline, out) {
                Ok(()) => return Ok(worker),
                Err(Why::Died) => out.clear(),
                Err(why) => return Err(self.refused(&why, request.offset, worker)),
            }
        }
        let mut worker = self.start()?;
        match worker.exchange(request, self.deadline, out) {
            Ok(()) => Ok(worker),
            Err(why) => Err(self.refused(&why, request.offset, worker)),
        }
    }

    fn refused(&self, why: &Why, offset: u64, worker: Worker) -> Error {
        let error = why.error(self, offset, &worker);
        if matches!(why, Why::Refused(_)) {
            self.give_back(worker);
        }
        error
    }
}

/// The reason why a request failed.
enum Why {
    /// The process reported an error, and goes on.
    Refused(String),
    Died,
    Late,
    Interrupted,
    Garbage(&'static str),
}

impl Why {
    fn error(&self, pool: &Shared, offset: u64, worker: &Worker) -> Error {
        match self {
            Self::Refused(message) => {
                failure(&pool.name, offset, &format!("refuses: {message}"), &[])
            }
            Self::Interrupted => weft_vfs::Error::Interrupted.into(),
            Self::Died => worker.failed(pool, offset, "died"),
            Self::Garbage(what) => worker.failed(pool, offset, what),
            Self::Late => {
                let millis = u64::try_from(pool.deadline.as_millis()).unwrap_or(u64::MAX);
                Error::Deadline { stage: "exec", millis }
            }
        }
    }
}

/// A process of the pool, with non-blocking pipes.
struct Worker {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    received: Vec<u8>,
    complaint: Vec<u8>,
    /// A request whose reader was interrupted.
    left: Option<Sending>,
    _process: Process,
}

/// A request under way.
struct Sending {
    request: Vec<u8>,
    sent: usize,
    /// Maximum bytes of data that may still be answered.
    room: usize,
}

/// Reads the available data, about `max` bytes at most; returns false at the end.
fn drain(from: &mut impl Read, max: usize, mut take: impl FnMut(&[u8])) -> bool {
    let mut block = [0; 64 << 10];
    let mut left = max;
    while left > 0 {
        match from.read(&mut block) {
            Ok(0) => return false,
            Ok(got) => {
                take(&block[..got]);
                left = left.saturating_sub(got);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return e.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}

impl Worker {
    fn start(program: &Program) -> Result<Self> {
        // Each request has a deadline; the total CPU time is not limited.
        let mut process = Process::start(program, None)?;
        let child = process.child();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(std::io::Error::other("a process without pipes").into());
        };
        let unblock = |fd: std::os::fd::BorrowedFd<'_>| {
            rustix::io::ioctl_fionbio(fd, true).map_err(std::io::Error::from)
        };
        unblock(stdin.as_fd())?;
        unblock(stdout.as_fd())?;
        unblock(stderr.as_fd())?;
        Ok(Self {
            stdin,
            stdout,
            stderr: Some(stderr),
            received: Vec::new(),
            complaint: Vec::new(),
            left: None,
            _process: process,
        })
    }

    fn failed(&self, pool: &Shared, offset: u64, what: &str) -> Error {
        failure(&pool.name, offset, what, &self.complaint)
    }

    /// Sends a request and receives the answers, whose data is appended to `out`. After
    /// [`Why::Interrupted`] it can be called again with the same request, and continues.
    fn exchange(
        &mut self,
        request: &Request<'_>,
        deadline: Duration,
        out: &mut Vec<u8>,
    ) -> Result<(), Why> {
        let mut sending = match self.left.take() {
            Some(left) => left,
            // Unsolicited data would be mistaken for the answer.
            None if !self.take_in() || !self.received.is_empty() => return Err(self.died()),
            None => Sending::new(request),
        };
        let end = Instant::now() + deadline;
        loop {
            let Sending { request, sent, room } = &mut sending;
            while *sent < request.len() {
                match self.stdin.write(&request[*sent..]) {
                    Ok(some) => *sent += some,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => return Err(self.died()),
                }
            }
            let alive = self.take_in();
            let before = out.len();
            let answer = self.answers(before + *room, out)?;
            *room -= out.len() - before;
            let is_sent = *sent == request.len();
            match answer {
                Some(_) if !(is_sent && self.received.is_empty()) => {
                    return Err(Why::Garbage("answers before it was asked"));
                }
                Some(answer) => return answer,
                None if !alive => return Err(self.died()),
                None => {}
            }
            match self.wait(!is_sent, end) {
                Err(Why::Interrupted) => {
                    self.left = Some(sending);
                    return Err(Why::Interrupted);
                }
                waited => waited?,
            }
        }
    }

    /// Receives the output of the process; returns false if its standard output has ended.
    fn take_in(&mut self) -> bool {
        let Self { stdout, stderr, received, complaint, .. } = self;
        let goes_on = drain(stdout, 1 << 20, |bytes| received.extend_from_slice(bytes));
        let said = stderr.as_mut().is_none_or(|stderr| {
            drain(stderr, 1 << 20, |bytes| {
                let room = COMPLAINT_BYTES - complaint.len();
                complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
            })
        });
        if !said {
            *stderr = None;
        }
        goes_on
    }

    /// Takes the received frames; returns the outcome of the request, once it has arrived.
    fn answers(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<Option<Result<(), Why>>, Why> {
        let mut at = 0;
        let mut outcome = None;
        while let (None, Some(head)) = (&outcome, self.received.get(at..at + HEAD_BYTES)) {
            let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if !matches!(head[0], b'd' | b'n' | b'e') || len > ANSWER_MAX_BYTES {
                return Err(Why::Garbage("answers garbage"));
            }
            let from = at + HEAD_BYTES;
            let Some(content) = self.received.get(from..from + len) else { break };
            match head[0] {
                b'd' if out.len() + len > limit => {
                    return Err(Why::Garbage("answers without end"));
                }
                b'd' => out.extend_from_slice(content),
                b'n' => outcome = Some(Ok(())),
                _ => {
                    let shown = &content[..len.min(COMPLAINT_BYTES)];
                    let message = String::from_utf8_lossy(shown).trim().to_owned();
                    outcome = Some(Err(Why::Refused(message)));
                }
            }
            at = from + len;
        }
        self.received.drain(..at);
        Ok(outcome)
    }

    /// Waits until the process has written data, or, if `sending`, is ready to read; or for a short
    /// time.
    fn wait(&self, sending: bool, end: Instant) -> Result<(), Why> {
        check_interrupt().map_err(|_| Why::Interrupted)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Why::Late);
        }
        let mut fds = vec![PollFd::new(&self.stdout, PollFlags::IN)];
        fds.extend(self.stderr.as_ref().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        if sending {
            fds.push(PollFd::new(&self.stdin, PollFlags::OUT));
        }
        let looks = Timespec::try_from(left.min(LOOKS))
            .map_err(|_| Why::Garbage("has a deadline that is too far away"))?;
        match poll(&mut fds, Some(&looks)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(_) => Err(Why::Garbage("cannot be waited for")),
        }
    }

    /// Receives the last standard error of a process that has died.
    fn died(&mut self) -> Why {
        self.take_in();
        Why::Died
    }
}
