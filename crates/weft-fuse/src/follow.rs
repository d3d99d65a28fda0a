//! The CPU of the caller: a thread that reads `/dev/fuse` follows a caller there.
//!
//! A request wakes the thread that reads, and the reply wakes the caller. Left to itself the scheduler
//! keeps the two on different CPUs, each of which is idle while the other works and must be woken for
//! every request and every reply: an interrupt between CPUs, and often the end of a halt. That costs
//! many times what the request does (untar of 25,000 files on two virtual CPUs: 11.5 s so, 3 s on one).
//! So while requests follow each other closely ([`Policy`]), the thread runs on the CPU of the caller,
//! where the policy keeps it from driving the caller away. With rings there is no need of that: each
//! CPU has a thread.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::policy::{Policy, Watched};
use crate::wire::Opcode;

/// Enough for the line of `/proc/TID/stat`.
const STAT_MAX_BYTES: usize = 1024;

/// A thread that reads requests, and the caller that it follows.
#[derive(Debug)]
pub(crate) struct Follow<'a> {
    this: Watched<'a>,
    /// This thread has slept since the last request. On one CPU with its caller it hardly ever does:
    /// it loses the CPU to the caller at each reply, and has it back with the next request.
    slept: bool,
    /// The thread that made the request at the last look, and its `/proc/TID/stat`.
    caller: u32,
    stat: Option<File>,
    /// The CPU on which this thread keeps itself.
    cpu: Option<usize>,
}

impl<'a> Follow<'a> {
    /// For the calling thread.
    pub(crate) fn new(policy: &'a Policy) -> Self {
        Self { this: policy.add_this(), slept: false, caller: 0, stat: None, cpu: None }
    }

    /// Takes note of a request, made by the thread `caller`.
    ///
    /// A thread in `execve(2)` closes files, and whoever reads its `/proc/TID/stat` waits until it has
    /// (Linux 6.18, `exec_update_lock`): for a reply that this thread would owe it.
    pub(crate) fn request(&mut self, caller: u32, opcode: Option<Opcode>) {
        self.this.count();
        if !self.this.is_idle() {
            if self.cpu.take().is_some() {
                self.this.release();
            }
            return;
        }
        if std::mem::take(&mut self.slept) && opcode != Some(Opcode::Flush) {
            self.look(caller);
        }
    }

    /// Takes note that no request is there, and this thread is about to sleep.
    pub(crate) fn sleep(&mut self) {
        self.slept = true;
    }

    fn look(&mut self, caller: u32) {
        if caller != self.caller {
            // Only a caller that is found twice is followed.
            self.caller = caller;
            self.stat = None;
            return;
        }
        if self.stat.is_none() {
            self.stat = File::open(format!("/proc/{caller}/stat")).ok();
        }
        let cpu = self.stat.as_ref().and_then(cpu_of);
        if cpu.is_some() && cpu != self.cpu {
            self.cpu = cpu.filter(|cpu| self.this.bind(*cpu));
        }
    }
}

/// Returns the CPU on which a thread ran last, see proc_pid_stat(5).
fn cpu_of(stat: &File) -> Option<usize> {
    let mut line = [0; STAT_MAX_BYTES];
    let len = stat.read_at(&mut line, 0).ok()?;
    let line = std::str::from_utf8(&line[..len]).ok()?;
    // The second field is a name in parentheses; "processor" is the 39th.
    let (_, fields) = line.rsplit_once(") ")?;
    fields.split(' ').nth(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::is_permitted;
    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
    use std::sync::mpsc::channel;

    /// Runs `look` while the thread with the number that it is given is on the only CPU in the set.
    fn with_caller_on(cpu: usize, look: impl FnOnce(u32, CpuSet)) {
        let (bound, is_bound) = channel();
        let (end, ended) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                sched_setaffinity(None, &only).expect("a CPU of this process");
                bound.send((gettid(), only)).expect("a look");
                let _ = ended.recv();
            });
            let (caller, only): (Pid, CpuSet) = is_bound.recv().expect("a caller");
            look(caller.as_raw_nonzero().get().cast_unsigned(), only);
            drop(end);
        });
    }

    fn own_cpus() -> CpuSet {
        sched_getaffinity(None).expect("the CPUs of this thread")
    }

    fn after_sleep(follow: &mut Follow<'_>, caller: u32) -> CpuSet {
        follow.sleep();
        follow.request(caller, Some(Opcode::GetAttr));
        own_cpus()
    }

    #[test]
    fn a_thread_goes_to_its_caller_and_is_released() {
        if !is_permitted() {
            return;
        }
        // In a thread of its own, whose CPUs and policy end with it.
        let follows = std::thread::spawn(|| {
            let all = own_cpus();
            let policy = Policy::default();
            let mut follow = Follow::new(&policy);
            for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
                with_caller_on(cpu, |caller, only| {
                    let after = after_sleep(&mut follow, caller);
                    assert_eq!(after, all, "requests do not follow closely");
                    follow.this.set(true);
                    let after = after_sleep(&mut follow, caller);
                    assert_eq!(after, all, "it may be the only request");
                    assert_eq!(after_sleep(&mut follow, caller), only);
                    follow.request(caller, Some(Opcode::GetAttr));
                    assert_eq!(own_cpus(), only, "it did not sleep");
                    follow.this.set(false);
                    assert_eq!(own_cpus(), all);
                    assert_eq!(after_sleep(&mut follow, caller), all);
                });
                follow.look(0);
            }
        });
        follows.join().expect("no failure");
    }

    #[test]
    fn a_caller_that_closes_a_file_is_not_looked_at() {
        if !is_permitted() {
            return;
        }
        let policy = Policy::default();
        let mut follow = Follow::new(&policy);
        follow.this.set(true);
        let caller = gettid().as_raw_nonzero().get().cast_unsigned();
        for (opcode, is_open) in [(Opcode::Flush, false), (Opcode::GetAttr, true)] {
            for _ in 0..3 {
                follow.sleep();
                follow.request(caller, Some(opcode));
            }
            assert_eq!(follow.stat.is_some(), is_open, "{opcode:?}");
        }
        follow.this.set(false);
    }

    #[test]
    fn a_caller_that_has_ended_is_not_followed() {
        let policy = Policy::default();
        let mut follow = Follow::new(&policy);
        follow.this.set(is_permitted());
        for _ in 0..3 {
            follow.sleep();
            follow.request(u32::MAX, None);
        }
        assert_eq!(follow.cpu, None);
        follow.this.set(false);
    }
}
