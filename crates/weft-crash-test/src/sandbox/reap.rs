//! The end of all processes that a command left behind.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, wait};

/// The most time in which killed processes may end. A process that waits for a device does not end
/// before.
const END_MAX: Duration = Duration::from_secs(10);

/// The longest pause before looking again for processes that have ended.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// The processes that were left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Were running, and were killed.
    pub(super) killed: u32,
    /// Some were killed and have not ended.
    pub(super) remain: bool,
}

/// Kills all processes that this one has started, with all that they have started, and waits for
/// their end. This process is the first of its namespace, or a subreaper: every process whose
/// parent has ended becomes its child, so that without children nothing is left.
pub(super) fn end_all(is_namespace: bool) -> Left {
    let mut left = Left::default();
    // What had ended by itself is not counted.
    if !reap_ended(&mut 0) {
        return left;
    }
    let deadline = Instant::now() + END_MAX;
    let mut pause = Duration::from_micros(50);
    loop {
        kill(is_namespace);
        if !reap_ended(&mut left.killed) {
            return left;
        }
        if Instant::now() > deadline {
            left.remain = true;
            return left;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Kills the processes that [`end_all`] kills, but for a child that goes on, and those that it still is
/// the parent of. Where processes are not
/// found in `/proc` this does nothing ([`has_own_processes`](super::Isolation::has_own_processes)).
pub(super) fn end_all_but(child: Pid) -> Left {
    let mut left = Left::default();
    let deadline = Instant::now() + END_MAX;
    let mut pause = Duration::from_micros(50);
    loop {
        reap_ended(&mut left.killed);
        let others = descendants(Some(child));
        if others.is_empty() {
            return left;
        }
        if Instant::now() > deadline {
            left.remain = true;
            return left;
        }
        for pid in others {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Reaps all children that have ended. Returns true if there are others.
fn reap_ended(count: &mut u32) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => *count += 1,
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn kill(is_namespace: bool) {
    // A process that has ended meanwhile is no error.
    if is_namespace && getpid() == Pid::INIT {
        // The group of process 1 in kill(2) is "all but the caller": one that forks cannot escape.
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
        return;
    }
    for pid in descendants(None) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns the processes below this one, without a child and those below it.
fn descendants(without: Option<Pid>) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The name of the program, in parentheses, may hold anything.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        if let Some(parent) = after.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut look = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = look.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            let child = Pid::from_raw(child).filter(|child| Some(*child) != without);
            found.extend(child);
            look.extend(child.map(|child| child.as_raw_nonzero().get()));
        }
    }
    found
}
