//! Processes, as `/proc` of the mount's process shows them.

use std::fs;

/// The most ancestors that are followed.
const ANCESTORS_MAX: usize = 256;

/// A process: its number, and the time of its start, as another one may have the number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub pid: u32,
    started: u64,
}

impl Process {
    /// Returns the process with a number, if there is one.
    pub fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program, in parentheses, may hold anything; then come the fields from the
        // third on. proc_pid_stat(5): the 22nd is the time of the start.
        let (_, fields) = stat.rsplit_once(')')?;
        let started = fields.split_whitespace().nth(22 - 3)?.parse().ok()?;
        Some(Self { pid, started })
    }

    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
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
        assert!(!Process { pid: own, started: 0 }.is_alive());
    }
}
