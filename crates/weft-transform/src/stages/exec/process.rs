//! A process with its limits, and its end.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Program, confine};

/// What is kept of standard error.
pub(super) const COMPLAINT_BYTES: usize = 4 << 10;

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
        let script = format!("{limits}\n{}", program.command);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The thread confines itself, and what it starts inherits that.
        let spawn = move || {
            confine::this_thread();
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
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::KILL);
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
