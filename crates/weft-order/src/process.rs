//! Processes, as `/proc` of the mount's process shows them.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The most ancestors that are followed.
const ANCESTORS_MAX: usize = 256;

/// A process, by a descriptor: its number may be that of another one later.
///
/// Not by the time of its start, in `/proc/PID/stat`: whoever reads that waits while the process is in
/// `execve(2)` and closes files, which waits for this mount (Linux 6.18, `exec_update_lock`).
/// `/proc/PID/status` can be read at any time.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub pid: u32,
    /// Polls readable once the process has ended.
    pub ended: Arc<OwnedFd>,
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        // Of two processes with one number, one has ended.
        let same = Arc::ptr_eq(&self.ended, &other.ended);
        self.pid == other.pid && (same || (self.is_alive() && other.is_alive()))
    }
}

impl Process {
    /// Returns the process with a number, if there is one.
    pub fn find(pid: u32) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let ended = Arc::new(pidfd_open(number, PidfdFlags::empty()).ok()?);
        Some(Self { pid, ended }).filter(Self::is_alive)
    }

    pub fn is_alive(&self) -> bool {
        let mut polled = [PollFd::new(&self.ended, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
    }

    /// Returns true if a thread with this number is one of the process.
    pub fn has_thread(&self, thread: u32) -> bool {
        self.is_alive() && fs::exists(format!("/proc/{}/task/{thread}", self.pid)).unwrap_or(false)
    }
}

/// Returns the numbers of the process of a thread, of its parent, and so on.
pub(crate) fn ancestors(thread: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = thread;
    while let Some((process, parent)) = process_and_parent(next)
        && found.len() < ANCESTORS_MAX
    {
        found.push(process);
        if parent == 0 {
            break;
        }
        next = parent;
    }
    found
}

/// Returns the number of the process of a thread, and of its parent.
fn process_and_parent(thread: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("Tgid:")?, field("PPid:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_descends_from_those_that_started_it() {
        let own = std::process::id();
        let parent = std::os::unix::process::parent_id();
        assert_eq!(ancestors(own)[..2], [own, parent]);
        let thread = std::thread::spawn(|| {
            ancestors(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
        });
        assert_eq!(thread.join().unwrap()[..2], [own, parent]);
        assert_eq!(ancestors(u32::MAX), [0; 0]);
        assert!(Process::find(own).unwrap().is_alive());
        assert!(Process::find(u32::MAX).is_none());
        let this = Process::find(own).unwrap();
        assert!(this == Process::find(own).unwrap() && this != Process::find(parent).unwrap());
        assert!(this.has_thread(own) && !this.has_thread(parent));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::find(child.id()).unwrap();
        child.kill().unwrap();
        // A zombie has ended.
        weft_testing::yield_until("it ends", || !process.is_alive());
        assert!(Process::find(child.id()).is_none());
        child.wait().unwrap();
    }
}
