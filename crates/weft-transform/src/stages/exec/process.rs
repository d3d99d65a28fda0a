//! A process with its limits, and its termination.
//!
//! Three shells are nested: the outermost one has a process group of its own, and its children are
//! in a PID namespace, where the second one is the init process. That one waits for the innermost,
//! the program itself. When it ends, or its group is killed, the kernel kills all descendants of
//! the program, even if they created sessions and groups of their own.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::confine;
use crate::Error;
use crate::parameters::Program;

/// The time that a process has to end all its descendants; then its group is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Maximum bytes of standard error that are kept.
pub(super) const COMPLAINT_BYTES: usize = 4 << 10;

/// Formats the exit status of a program, as reported by the shells around it.
pub(super) fn ended_with(status: ExitStatus) -> String {
    match status.code() {
        Some(code @ 129..=192) => format!("signal: {}", code - 128),
        _ => status.to_string(),
    }
}

/// Returns the error of a failed program; `said` is its standard error.
pub(super) fn failure(name: &str, offset: u64, what: &str, said: &[u8]) -> Error {
    let said = String::from_utf8_lossy(said);
    let said = said.trim();
    let colon = if said.is_empty() { "" } else { ": " };
    Error::Corrupt {
        stage: "exec",
        offset,
        what: format!("program \"{name}\" {what}{colon}{said}"),
    }
}

/// A process in a group of its own, which is killed on drop.
pub(super) struct Process {
    child: Child,
    /// The process was reaped: its id may have been reused.
    ended: bool,
}

impl Process {
    /// Starts a process, with pipes for its standard streams.
    pub(super) fn start(program: &Program, cpu_seconds: Option<u32>) -> std::io::Result<Self> {
        // The shell sets the resource limits. The file size limit of 0 does not affect pipes.
        let kib = program.memory_bytes >> 10;
        let seconds = cpu_seconds.map_or("unlimited".to_owned(), |seconds| seconds.to_string());
        let limits =
            format!("ulimit -c 0; ulimit -f 0; ulimit -n 64; ulimit -t {seconds}; ulimit -v {kib}");
        // A waiting shell keeps no pipe open. The outer one, on SIGTERM, ends only after the
        // namespace has ended.
        let wait = "& exec <&- >&- 2>&- 3<&-; wait $!; code=$?; wait $!; exit $code";
        let end = "trap 'kill -9 $!' TERM";
        let outer = format!("{limits}; {end}; exec 3<&0; sh -c \"$1\" weft \"$2\" <&3 3<&- {wait}");
        let inner = format!("exec 3<&0; sh -c \"$1\" <&3 3<&- {wait}");
        let mut command = Command::new("sh");
        command.args(["-c", &outer, "weft", &inner, &program.command]);
        command.current_dir("/").process_group(0);
        confine::command(&mut command);
        let named = program.command.clone();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The thread confines itself, and its child processes inherit the confinement.
        let spawn = move || {
            confine::this_thread(&named);
            command.spawn()
        };
        let thread = std::thread::Builder::new().name("weft-exec".into()).spawn(spawn)?;
        let child = thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic")))?;
        Ok(Self { child, ended: false })
    }

    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Kills the process and all its descendants.
    pub(super) fn end(&mut self) {
        if self.ended {
            return;
        }
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
            // Not reaped yet: until then its process id, and that of its group, cannot be reused.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let end = Instant::now() + ENDS_WITHIN;
            while matches!(waitid(WaitId::Pid(pid), look), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.wait();
    }

    pub(super) fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.ended = true;
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
