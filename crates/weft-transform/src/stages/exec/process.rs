//! A process with its limits, and its end.
//!
//! Three shells stand one in the other: the outermost one is in a process group of its own, and what it
//! starts in a name space of processes, where the second one is the first process. That one waits for
//! the innermost, the program itself. When it ends, or its group is killed, the kernel ends all that the
//! program ever started, whatever sessions and groups that made for itself.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::{Program, confine};

/// How long a process may take to end all that it started; then its group is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// What is kept of standard error.
pub(super) const COMPLAINT_BYTES: usize = 4 << 10;

/// How a program ended, as the shells around it say it.
pub(super) fn ended_with(status: ExitStatus) -> String {
    match status.code() {
        Some(code @ 129..=192) => format!("signal: {}", code - 128),
        _ => status.to_string(),
    }
}

/// A process in a group of its own, which is killed when this is dropped.
pub(super) struct Process {
    child: Child,
    /// It was waited for: its number may be another's.
    ended: bool,
}

impl Process {
    /// Starts one, with pipes for its standard files.
    pub(super) fn start(program: &Program, cpu_seconds: Option<u32>) -> std::io::Result<Self> {
        // The shell knows resource limits. No new files may grow; pipes are none.
        let kib = program.memory_bytes >> 10;
        let seconds = cpu_seconds.map_or("unlimited".to_owned(), |seconds| seconds.to_string());
        let limits =
            format!("ulimit -c 0; ulimit -f 0; ulimit -n 64; ulimit -t {seconds}; ulimit -v {kib}");
        // A shell that waits keeps no pipe open. The outer one, told to end, ends only when the name
        // space has.
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
        // The thread confines itself, and what it starts inherits that.
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

    /// Kills the process and all that it started.
    pub(super) fn end(&mut self) {
        if self.ended {
            return;
        }
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
            // Not waited for: until then its number, and that of its group, is its own.
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
