//! Any program as a stage: one process for each pass over a file, from its standard input to its
//! standard output.
//!
//! Programs are named by whoever opens the tree, and not by the rules in it: a tree from somewhere
//! else must not run commands here. A process gets no privileges, limits of time, memory and
//! descriptors, and, where the kernel has Landlock, no way to write files or connect by TCP. Its
//! thread restricts itself before it starts the process, which inherits that.
//!
//! A process that makes no progress within its deadline is killed with all that it started. What it
//! says on standard error is read, kept up to 4 KiB, and told when it fails.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::registry::StageInfo;
use crate::{Direction, Error, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "exec",
    summary: "runs a program that the caller named, once for each pass",
    parameters: &[
        ("program", "the name of the program"),
        ("deadline", "milliseconds without progress, 1 to 3600000 (10000)"),
    ],
    make: |p, context| {
        let name = p.required("program")?;
        let millis = p.number("deadline", 1..=3_600_000, 10_000)?;
        match context.programs.get(&name) {
            Some(program) => {
                let program = program.clone();
                let deadline = Duration::from_millis(millis);
                Ok(Arc::new(Exec { name, program, deadline }))
            }
            None => Err(p.error(format!("no program named \"{name}\""))),
        }
    },
}];

/// A program, as the caller of the library names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What `sh -c` runs.
    pub command: String,
    /// The most CPU time of a process, in seconds.
    pub cpu_seconds: u32,
    /// The most memory of a process, in bytes.
    pub memory_bytes: u64,
}

impl Program {
    /// A command with the usual limits: a minute of CPU time, a GiB of memory.
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), cpu_seconds: 60, memory_bytes: 1 << 30 }
    }

    /// Starts a process, in a group of its own.
    fn start(&self) -> std::io::Result<Child> {
        // The shell knows resource limits. No new files may grow; pipes are none.
        let (seconds, kib) = (self.cpu_seconds, self.memory_bytes >> 10);
        let limits =
            format!("ulimit -c 0; ulimit -f 0; ulimit -n 64; ulimit -t {seconds}; ulimit -v {kib}");
        let script = format!("{limits}\n{}", self.command);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawn = move || {
            restrict();
            command.spawn()
        };
        let thread = std::thread::Builder::new().name("weft-exec".into()).spawn(spawn)?;
        thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic")))
    }
}

/// Takes from this thread, and all that it starts, what a filter does not need, as far as the
/// kernel can.
fn restrict() {
    use landlock::{
        ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr,
        path_beneath_rules,
    };
    let writes = AccessFs::from_write(ABI::V5);
    let restricted = Ruleset::default()
        .handle_access(writes)
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(["/dev/null"], writes)))
        .and_then(landlock::RulesetCreated::restrict_self);
    if let Err(e) = restricted {
        tracing::warn!("a program runs without Landlock: {e}");
    }
}

struct Exec {
    name: String,
    program: Program,
    deadline: Duration,
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Transform for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Stream(self)
    }

    fn invertible(&self) -> bool {
        false
    }
}

impl StreamCodec for Exec {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        if direction == Direction::Inverse {
            return Err(crate::model::no_inverse("exec"));
        }
        Ok(Box::new(Pass::start(self)?))
    }
}

/// Bytes handed to or taken from a process at a time, and how many of such pieces wait.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 4;
/// What is kept of standard error.
const COMPLAINT_BYTES: usize = 4 << 10;
/// How often it is looked whether a full pipe has room.
const PAUSE: Duration = Duration::from_millis(5);

/// One process.
struct Pass {
    name: String,
    deadline: Duration,
    child: Child,
    /// It was waited for: its number may be another's.
    ended: bool,
    /// `None` once the input has ended, or the process reads no more.
    input: Option<SyncSender<Vec<u8>>>,
    output: Receiver<Vec<u8>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    output_bytes: u64,
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Hands pieces to the process until it reads no more or there are none.
fn feed(mut stdin: ChildStdin, pieces: Receiver<Vec<u8>>) {
    for piece in pieces {
        if stdin.write_all(&piece).is_err() {
            return;
        }
    }
}

/// Takes pieces until the process has ended or nobody wants them.
fn take(mut stdout: impl Read, pieces: &SyncSender<Vec<u8>>) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(got @ 1..) = stdout.read(&mut piece) {
        if pieces.send(piece[..got].to_vec()).is_err() {
            return;
        }
    }
}

/// Reads all of standard error, so that nobody waits for it, and keeps its beginning.
fn listen(mut stderr: impl Read, complaint: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(got @ 1..) = stderr.read(&mut piece) {
        let mut kept = complaint.lock().unwrap_or_else(PoisonError::into_inner);
        let room = COMPLAINT_BYTES - kept.len();
        kept.extend_from_slice(&piece[..got.min(room)]);
    }
}

impl Pass {
    fn start(exec: &Exec) -> Result<Self> {
        let mut child = exec.program.start()?;
        let (input, to_feed) = sync_channel(PIECES);
        let (taken, output) = sync_channel(PIECES);
        let complaint: Arc<Mutex<Vec<u8>>> = Arc::default();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on an error ends the process.
        let pass = Self {
            name: exec.name.clone(),
            deadline: exec.deadline,
            child,
            ended: false,
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
        let said = String::from_utf8_lossy(&kept);
        let said = said.trim();
        let colon = if said.is_empty() { "" } else { ": " };
        Error::Corrupt {
            stage: "exec",
            offset: self.output_bytes,
            what: format!("program \"{}\" {what}{colon}{said}", self.name),
        }
    }

    fn late(&mut self) -> Error {
        self.end();
        let millis = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
        Error::Deadline { stage: "exec", millis }
    }

    fn took(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.output_bytes += piece.len() as u64;
        out.extend_from_slice(piece);
    }

    /// Kills the process and all that it started.
    fn end(&mut self) {
        if self.ended {
            return;
        }
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
        self.ended = true;
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// How the process ended, once its output has.
    fn wait(&mut self) -> Result<bool> {
        let end = Instant::now() + self.deadline;
        let Some(pid) = self.pid() else { return Err(self.failed("has no number")) };
        // Looked at and not waited for: until then its number, and that of its group, is its own.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), look).map_err(std::io::Error::from)?.is_none() {
            if Instant::now() >= end {
                return Err(self.late());
            }
            std::thread::sleep(PAUSE);
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let status = self.child.wait()?;
        self.ended = true;
        if status.success() { Ok(true) } else { Err(self.failed(&format!("ended with {status}"))) }
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
                // It has said all that it will: what else comes in is nothing to it.
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
        while out.len() < STEP_BYTES {
            match self.output.recv_timeout(self.deadline) {
                Ok(made) => self.took(&made, out),
                Err(RecvTimeoutError::Disconnected) => return self.wait(),
                Err(RecvTimeoutError::Timeout) => return Err(self.late()),
            }
        }
        Ok(false)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{RunOptions, run};
    use crate::{Context, Io, Registry};

    fn through(command: &str, deadline: u64, input: &[u8]) -> (Result<u64>, Vec<u8>) {
        let mut context = Context::default();
        context.programs.insert("p".to_owned(), Program::new(command));
        let text = format!("view: exec program=p deadline={deadline}");
        let network = Registry::new(context).parse(&text).expect("a network");
        let mut out = Vec::new();
        let ran = run(&network, Io::Read, &mut &input[..], &mut out, RunOptions::default());
        (ran, out)
    }

    fn fails(command: &str, input: &[u8]) -> String {
        let began = Instant::now();
        let (ran, _) = through(command, 700, input);
        assert!(began.elapsed() < Duration::from_secs(20), "{command}");
        ran.expect_err(command).to_string()
    }

    #[test]
    fn programs_filter() {
        let text = b"one\ntwo\n".repeat(200_000);
        let (ran, out) = through("tr a-z A-Z", 20_000, &text);
        ran.expect("tr");
        assert!(out == text.to_ascii_uppercase());
        assert_eq!(through("cat", 9000, b"").1, b"");
        assert_eq!(through("wc -c", 20_000, &text).1.trim_ascii(), b"1600000", "output at the end");
        // One that reads no more than it wants, and one that reads nothing.
        assert_eq!(through("head -n 1", 9000, &text).1, b"one\n");
        assert_eq!(through("echo hello", 9000, &text).1, b"hello\n");
    }

    #[test]
    fn hostile_programs_end_in_time() {
        let text = vec![b'x'; 3 << 20];
        assert!(fails("sleep 1000", &text).contains("no answer within 700 ms"));
        assert!(fails("cat >/dev/null; sleep 1000 & wait", &text).contains("no answer"));
        let died = fails("echo because >&2; exit 3", &text);
        assert!(died.contains("exit status: 3") && died.contains("because"), "{died}");
        assert!(fails("kill -9 $$", &text).contains("signal: 9"));
        let flood = fails("head -c 50000000 /dev/zero >&2; exit 1", b"");
        assert!(flood.len() < 10_000);
        assert!(fails("no-such-program-anywhere", b"").contains("127"));
        // What it started is gone with it.
        let marker = format!("999{}", std::process::id());
        assert!(fails(&format!("sleep {marker} & cat; wait"), b"").contains("no answer"));
        let there = Command::new("pgrep").args(["-f", &format!("sleep {marker}")]).output();
        if let Ok(there) = there {
            assert!(there.stdout.is_empty(), "left behind");
        }
    }

    #[test]
    fn programs_are_kept_from_harm() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("written");
        fails(&format!("echo harm > {}", file.display()), b"");
        let content = std::fs::read(&file).unwrap_or_default();
        assert!(content.is_empty(), "it wrote a file");
        assert!(Registry::new(Context::default()).parse("view: exec program=p").is_err());
    }
}
