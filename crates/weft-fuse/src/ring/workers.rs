//! Threads for requests that wait: as many as there are such requests, up to a bound.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most threads. More requests than that wait for one of them to end.
const THREADS_MAX: usize = 128;

/// The time that a thread without a request stays.
const LINGER: Duration = Duration::from_secs(10);

struct State<J> {
    jobs: VecDeque<J>,
    /// Threads that wait for a job.
    idle: usize,
    threads: usize,
    ended: bool,
}

/// The threads and their jobs.
pub(super) struct Workers<J> {
    state: Mutex<State<J>>,
    /// A job is there, or the end.
    call: Condvar,
    /// A thread has ended.
    left: Condvar,
}

impl<J: Send + 'static> Workers<J> {
    pub(super) fn new() -> Self {
        let state = State { jobs: VecDeque::new(), idle: 0, threads: 0, ended: false };
        Self { state: Mutex::new(state), call: Condvar::new(), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a job to a thread, which calls what `work` returns for each of its jobs.
    pub(super) fn run<W: FnMut(J)>(
        self: &Arc<Self>,
        job: J,
        work: impl FnOnce() -> W + Send + 'static,
    ) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let needs_thread = state.jobs.len() > state.idle && state.threads < THREADS_MAX;
        state.threads += usize::from(needs_thread);
        drop(state);
        if !needs_thread {
            return self.call.notify_one();
        }
        let workers = Arc::clone(self);
        let name = "weft-fuse-worker".into();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            let _left = Left(&workers);
            let mut work = work();
            while let Some(job) = workers.next() {
                work(job);
            }
        });
        if let Err(e) = started {
            // Another thread takes the job when it has done its own.
            tracing::warn!("cannot start a thread: {e}");
            self.lock().threads -= 1;
        }
    }

    fn next(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.ended {
                return None;
            }
            state.idle += 1;
            let woken = self.call.wait_timeout(state, LINGER);
            let (again, waited) = woken.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                return None;
            }
        }
    }

    /// Waits until all jobs are done and all threads have ended.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.call.notify_all();
        while state.threads > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a thread out, also after a panic.
struct Left<'a, J: Send + 'static>(&'a Workers<J>);

impl<J: Send + 'static> Drop for Left<'_, J> {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn jobs_that_wait_for_each_other_run_side_by_side() {
        const JOBS: usize = 20;
        let workers = Arc::new(Workers::new());
        let (together, done) = (Arc::new(Barrier::new(JOBS)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..JOBS {
            let (together, done) = (Arc::clone(&together), Arc::clone(&done));
            workers.run((), move || {
                move |()| {
                    together.wait();
                    done.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        workers.end();
        assert_eq!(done.load(Ordering::Acquire), JOBS);
    }

    #[test]
    fn more_jobs_than_threads_are_all_done() {
        let workers = Arc::new(Workers::new());
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..THREADS_MAX * 10 {
            let done = Arc::clone(&done);
            workers.run((), move || {
                move |()| {
                    done.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        workers.end();
        assert_eq!(done.load(Ordering::Acquire), THREADS_MAX * 10);
    }
}
