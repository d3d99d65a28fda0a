//! A small pool of threads that talk to peers; idle ones end.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::mutex::locked;

/// The maximum number of parallel conversations; more wait.
const THREADS_MAX: usize = 64;
/// The time after which an idle thread ends.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// Threads that talk to peers.
#[derive(Default)]
pub(super) struct Pool {
    jobs: Mutex<Jobs>,
    comes: Condvar,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn submit(self: &Arc<Self>, job: Job) {
        let mut jobs = locked(&self.jobs);
        jobs.waiting.push_back(job);
        if jobs.idle >= jobs.waiting.len() {
            drop(jobs);
            return self.comes.notify_one();
        }
        if jobs.threads >= THREADS_MAX {
            return;
        }
        jobs.threads += 1;
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("ringer-fetch".into());
        if let Err(e) = thread.spawn(move || pool.work()) {
            tracing::warn!("cannot start a thread: {e}");
            jobs.threads -= 1;
            if jobs.threads == 0
                && let Some(job) = jobs.waiting.pop_front()
            {
                drop(jobs);
                job();
            }
        }
    }

    fn work(&self) {
        let mut jobs = locked(&self.jobs);
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                job();
                jobs = locked(&self.jobs);
                continue;
            }
            jobs.idle += 1;
            let waited = self.comes.wait_timeout(jobs, IDLE_LIMIT);
            let (back, limit) = waited.unwrap_or_else(PoisonError::into_inner);
            jobs = back;
            jobs.idle -= 1;
            if limit.timed_out() && jobs.waiting.is_empty() {
                jobs.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_do_not_wait_for_each_other() {
        let pool = Arc::new(Pool::default());
        let (tell, told) = channel();
        let (go, gate) = channel::<()>();
        let first = tell.clone();
        pool.submit(Box::new(move || {
            let _ = gate.recv();
            let _ = first.send(0);
        }));
        for n in 1..=20 {
            let tell = tell.clone();
            pool.submit(Box::new(move || {
                let _ = tell.send(n);
            }));
        }
        let mut seen: Vec<i32> = (0..20).map(|_| told.recv().expect("a job is done")).collect();
        seen.sort_unstable();
        assert_eq!(seen, (1..=20).collect::<Vec<_>>());
        drop(go);
        assert_eq!(told.recv().expect("the first"), 0);
    }
}
