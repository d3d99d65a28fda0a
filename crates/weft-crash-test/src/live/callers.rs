//! The processes that have used a folder.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time that killed processes are given to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Processes by number, with the time at which they were started: numbers are used again.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// The process of each thread that has called; `None` if it could not be found.
    threads: HashMap<u32, Option<Process>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    started: u64,
}

/// The most threads that are remembered: of more, those that have ended are forgotten.
const THREADS_MAX: usize = 4096;

impl Callers {
    /// Notes a caller, by the number of its thread.
    pub(crate) fn note(&mut self, thread: u32) {
        if thread == 0 || self.threads.contains_key(&thread) {
            return;
        }
        if self.threads.len() >= THREADS_MAX {
            self.threads.retain(|_, process| process.is_some_and(Process::lives));
        }
        let process = status_field(thread, "Tgid:").and_then(Process::of);
        self.threads.insert(thread, process);
    }

    /// Kills the processes that still live, but for `asker` and its ancestors. Returns their numbers.
    pub(crate) fn kill(&mut self, asker: u32) -> Vec<u32> {
        let spared = ancestors(asker);
        let mut killed = Vec::new();
        for process in self.threads.drain().filter_map(|(_, process)| process) {
            let is_spared = spared.contains(&process.pid) || process.pid == std::process::id();
            let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| !is_spared && process.lives())
                && kill_process(pid, Signal::KILL).is_ok()
            {
                killed.push(process.pid);
            }
        }
        killed.sort_unstable();
        killed.dedup();
        killed
    }
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started: started(pid)? })
    }

    fn lives(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// Waits until killed processes use nothing any more. Returns one that is still there.
pub(crate) fn wait_until_gone(killed: &[u32]) -> Option<u32> {
    let deadline = Instant::now() + PATIENCE;
    killed.iter().copied().find(|pid| {
        while started(*pid).is_some() {
            if Instant::now() > deadline {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    })
}

/// A process and all processes that it descends from.
fn ancestors(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut at = Some(pid);
    while let Some(pid) = at.filter(|pid| *pid > 0 && !found.contains(pid)) {
        found.push(pid);
        at = status_field(pid, "PPid:");
    }
    found
}

fn status_field(pid: u32, name: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// When a process was started, in ticks since the system was; `None` if it has ended: a zombie uses
/// nothing any more.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the command, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // The third field was the state; this is the 22nd.
    fields.nth(18)?.parse().ok()
}
