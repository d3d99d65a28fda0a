//! The CPUs and the scheduling policy of the threads that answer requests: the policy of an idle task
//! while requests follow each other closely.
//!
//! When such a thread has answered, the kernel wakes the caller. It sees the CPU taken by this thread,
//! which is about to wait, looks for an idle CPU, and moves the caller there; the next request then
//! comes from that CPU, and so on. Each move wakes a halted CPU, which costs more than
//! the request, above all on a virtual machine (untar of 25,000 files on two idle CPUs: 4.5 s so, 2.8 s
//! without the moves). A CPU with nothing but tasks of the policy `SCHED_IDLE` counts as idle: the
//! caller is woken where it was.
//!
//! But such a task has no share of a CPU that others want. So a watching thread looks at what each
//! thread has served, at every [`TICK`]: `SCHED_IDLE` is only for a thread that serves many requests,
//! and one that has stopped doing so gets its share back at once; if another task had taken the CPU, a
//! backoff follows, longer each time.
//!
//! Setting a policy is a call of C, and so `unsafe`.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

/// The interval at which the threads are looked at: as long may a thread be without a share.
const TICK: Duration = Duration::from_millis(4);

/// Requests in a tick from which on they follow each other closely.
const BUSY_REQUESTS: u64 = 16;

/// The backoff in ticks after a thread was found starved of its CPU, at first and at most.
const BACKOFF_TICKS: u32 = 4;
const BACKOFF_TICKS_MAX: u32 = 1024;

/// The ticks without requests after which the watching thread rests.
const QUIET_TICKS: u32 = 10;

/// The watched threads of a mount.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    threads: Mutex<Vec<(Arc<Thread>, Seen)>>,
    rests: AtomicBool,
    ended: AtomicBool,
    wake: Condvar,
}

/// A thread that answers requests.
#[derive(Debug)]
struct Thread {
    id: Pid,
    /// Requests that it has answered.
    count: AtomicU64,
    is_idle: AtomicBool,
    cpus: Cpus,
}

/// The calling thread, which is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    policy: &'a Policy,
    thread: Arc<Thread>,
}

/// The state of one thread, as of the last tick.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    count: u64,
    is_idle: bool,
    backoff_ticks: u32,
    backoff_next_ticks: u32,
}

impl Seen {
    /// Takes note of the requests served so far, and returns true if the policy is to be
    /// `SCHED_IDLE` until the next tick. `is_runnable` says whether the thread waits for a CPU.
    fn tick(&mut self, count: u64, is_runnable: impl FnOnce() -> bool) -> bool {
        let served = count - std::mem::replace(&mut self.count, count);
        let is_busy = served >= BUSY_REQUESTS;
        if self.is_idle && !is_busy && is_runnable() {
            self.backoff_next_ticks =
                (self.backoff_next_ticks * 2).clamp(BACKOFF_TICKS, BACKOFF_TICKS_MAX);
            self.backoff_ticks = self.backoff_next_ticks;
        } else if self.is_idle && is_busy {
            self.backoff_next_ticks /= 2;
        }
        if self.backoff_ticks > 0 {
            self.backoff_ticks -= 1;
            self.is_idle = false;
        } else {
            self.is_idle = is_busy;
        }
        self.is_idle
    }
}

impl Thread {
    fn set(&self, idle: bool) {
        // First, so that the thread does not bind itself to a CPU after it was released here.
        self.is_idle.store(idle, Ordering::Relaxed);
        // It was possible when the mount was made.
        if let Err(e) = set_policy(self.id, idle) {
            tracing::warn!("cannot set a thread's scheduling policy: {e}");
        }
        if !idle {
            self.cpus.release(self.id);
        }
    }
}

impl Watched<'_> {
    /// Counts one more request.
    pub(crate) fn count(&self) {
        self.thread.count.fetch_add(1, Ordering::Relaxed);
        if self.policy.rests.load(Ordering::Relaxed) {
            self.policy.rests.store(false, Ordering::Relaxed);
            self.policy.wake.notify_one();
        }
    }

    /// Returns true while the policy is `SCHED_IDLE`.
    pub(crate) fn is_idle(&self) -> bool {
        self.thread.is_idle.load(Ordering::Relaxed)
    }

    /// Keeps this thread on one CPU. Returns false if it may not run there.
    pub(crate) fn bind(&self, cpu: usize) -> bool {
        self.thread.cpus.bind(cpu)
    }

    /// Lets this thread run on all its CPUs.
    pub(crate) fn release(&self) {
        self.thread.cpus.release(self.thread.id);
    }

    #[cfg(test)]
    pub(crate) fn set(&self, idle: bool) {
        self.thread.set(idle);
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        // The watching thread sets nothing for a thread that is not on the list: its number may be
        // another's by then.
        let mut threads = self.policy.lock();
        threads.retain(|(thread, _)| !Arc::ptr_eq(thread, &self.thread));
        if self.is_idle() {
            self.thread.set(false);
        }
    }
}

impl Policy {
    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Thread>, Seen)>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the calling thread.
    pub(crate) fn add_this(&self) -> Watched<'_> {
        let thread = Arc::new(Thread {
            id: gettid(),
            count: AtomicU64::new(0),
            is_idle: AtomicBool::new(false),
            cpus: Cpus::of_this(),
        });
        self.lock().push((Arc::clone(&thread), Seen::default()));
        Watched { policy: self, thread }
    }

    /// Ends [`watch`](Self::watch).
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let _threads = self.lock();
        self.wake.notify_all();
    }

    /// Sets the policies until the end.
    pub(crate) fn watch(&self) {
        let mut quiet = 0;
        while !self.ended.load(Ordering::Relaxed) {
            let mut threads = self.lock();
            quiet += 1;
            for (thread, seen) in threads.iter_mut() {
                let (before, count) = (*seen, thread.count.load(Ordering::Relaxed));
                if seen.tick(count, || is_runnable(thread.id)) != before.is_idle {
                    thread.set(seen.is_idle);
                }
                if seen.is_idle || count != before.count {
                    quiet = 0;
                }
            }
            if quiet < QUIET_TICKS {
                drop(threads);
                std::thread::sleep(TICK);
                continue;
            }
            quiet = 0;
            self.rests.store(true, Ordering::Relaxed);
            while self.rests.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed) {
                // The wake-up comes without the lock, and may be missed: the next look is soon.
                let woken = self.wake.wait_timeout(threads, Duration::from_secs(1));
                threads = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// The CPUs on which a thread may run, if they are known.
#[derive(Debug)]
pub(crate) struct Cpus(Option<CpuSet>);

impl Cpus {
    /// Returns those of the calling thread.
    pub(crate) fn of_this() -> Self {
        Self(sched_getaffinity(None).ok())
    }

    /// Keeps the calling thread on one of them. Returns false if `cpu` is none of them.
    pub(crate) fn bind(&self, cpu: usize) -> bool {
        let is_allowed = |cpus: &CpuSet| cpu < CpuSet::MAX_CPU && cpus.is_set(cpu);
        if !self.0.as_ref().is_some_and(is_allowed) {
            return false;
        }
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only)
            .inspect_err(|e| tracing::debug!("cannot stay on CPU {cpu}: {e}"))
            .is_ok()
    }

    /// Lets a thread run on all of them.
    fn release(&self, thread: Pid) {
        if let Some(cpus) = &self.0
            && let Err(e) = sched_setaffinity(Some(thread), cpus)
        {
            tracing::warn!("cannot set a thread's CPUs: {e}");
        }
    }

    /// Lets the calling thread run on all of them, with the ordinary policy. A thread inherits both
    /// from the one that starts it.
    pub(crate) fn make_ordinary(&self) {
        self.release(gettid());
        if is_idle()
            && let Err(e) = set_policy(gettid(), false)
        {
            tracing::warn!("cannot set a thread's scheduling policy: {e}");
        }
    }
}

/// Returns true if the calling thread has the policy `SCHED_IDLE`.
pub(crate) fn is_idle() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

#[cfg(test)]
pub(crate) fn become_idle() {
    set_policy(gettid(), true).expect("permitted");
}

fn set_policy(thread: Pid, idle: bool) -> io::Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let no_priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameter only.
    match unsafe { libc::sched_setscheduler(thread.as_raw_nonzero().get(), policy, &no_priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true if a thread would run if it had a CPU.
fn is_runnable(thread: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The state follows the name, which is in parentheses.
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('R')))
}

/// Returns true if this process may change policies to and fro: ordinary users cannot leave
/// `SCHED_IDLE` again.
pub(crate) fn is_permitted() -> bool {
    let there_and_back =
        || set_policy(gettid(), true).and_then(|()| set_policy(gettid(), false)).is_ok();
    // In a thread that ends, as it may be stuck there.
    std::thread::spawn(there_and_back).join().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_serves_many_requests_is_idle() {
        let mut seen = Seen::default();
        assert!(!seen.tick(0, || false));
        assert!(!seen.tick(BUSY_REQUESTS - 1, || false));
        assert!(seen.tick(2 * BUSY_REQUESTS, || false));
        assert!(seen.tick(4 * BUSY_REQUESTS, || false));
        assert!(!seen.tick(4 * BUSY_REQUESTS, || false), "it has stopped");
        assert!(seen.tick(5 * BUSY_REQUESTS, || false), "it was not held up");
    }

    #[test]
    fn a_starved_thread_backs_off_for_longer_each_time() {
        let mut seen = Seen::default();
        let mut count = 0;
        let mut idle_ticks = Vec::new();
        for tick in 0..4000 {
            // While it is idle, it gets no CPU.
            if !seen.is_idle {
                count += 100;
            }
            if seen.tick(count, || true) {
                idle_ticks.push(tick);
            }
        }
        let pauses: Vec<i32> = idle_ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert!(idle_ticks.len() < 20, "{idle_ticks:?}");
    }

    #[test]
    fn a_watched_thread_is_set_to_idle_and_back() {
        if !is_permitted() {
            return;
        }
        let policy_of = |watched: &Watched<'_>| {
            // SAFETY: no memory is involved.
            unsafe { libc::sched_getscheduler(watched.thread.id.as_raw_nonzero().get()) }
        };
        let policy = Policy::default();
        std::thread::scope(|scope| {
            scope.spawn(|| policy.watch());
            let watched = policy.add_this();
            while policy_of(&watched) != libc::SCHED_IDLE {
                watched.count();
                std::thread::yield_now();
            }
            while policy_of(&watched) != libc::SCHED_OTHER {
                std::thread::yield_now();
            }
            while policy_of(&watched) != libc::SCHED_IDLE {
                watched.count();
                std::thread::yield_now();
            }
            drop(watched);
            assert!(!is_idle(), "nobody would set it back");
            assert!(policy.lock().is_empty());
            policy.end();
        });
    }
}
