//! Threads for requests that wait: as many as there are such requests, up to a bound.
//!
//! They are started by threads that keep to one CPU, with the policy of idle tasks (`policy`), and must
//! not inherit either.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::policy::Cpus;

/// The most threads. More requests than that wait for one of them to end.
const THREADS_MAX: usize = 128;

/// The most excused threads.
const EXCUSED_MAX: usize = 1024;

/// The time that a thread without a request stays.
const LINGER: Duration = Duration::from_secs(10);

struct State<J> {
    jobs: VecDeque<J>,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads, without those that are excused.
    threads: usize,
    /// Threads that still do a job for whose end nobody waits.
    excused: usize,
    waits_for_room: bool,
    ended: bool,
}

/// The threads and their jobs.
pub(crate) struct Workers<J> {
    state: Mutex<State<J>>,
    /// A job is there, or the end.
    call: Condvar,
    /// Fewer jobs wait than there may be threads.
    room: Condvar,
    /// A thread has ended.
    left: Condvar,
    /// The CPUs of the threads.
    cpus: Cpus,
    /// No thread can be started.
    #[cfg(test)]
    is_short: std::sync::atomic::AtomicBool,
}

impl<J: Send + 'static> Workers<J> {
    /// The workers run on the CPUs of the calling thread.
    pub(crate) fn new() -> Self {
        let state = State {
            jobs: VecDeque::new(),
            idle: 0,
            threads: 0,
            excused: 0,
            waits_for_room: false,
            ended: false,
        };
        Self {
            state: Mutex::new(state),
            call: Condvar::new(),
            room: Condvar::new(),
            left: Condvar::new(),
            cpus: Cpus::of_this(),
            #[cfg(test)]
            is_short: false.into(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a job to a thread, which calls what `work` returns for each of its jobs. Returns the job
    /// if there is no thread and none can be started.
    pub(crate) fn run<W: FnMut(J) + Send + 'static>(
        self: &Arc<Self>,
        job: J,
        work: impl FnOnce() -> W,
    ) -> Option<J> {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let state = self.add_thread(state, work)?;
        // Otherwise another thread takes the job when it has done its own.
        (state.threads == 0).then_some(state)?.jobs.pop_back()
    }

    /// Starts a thread if the jobs need one; returns the state if none could be started.
    fn add_thread<W: FnMut(J) + Send + 'static>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<J>>,
        work: impl FnOnce() -> W,
    ) -> Option<MutexGuard<'_, State<J>>> {
        let needs_thread = state.jobs.len() > state.idle && state.threads < THREADS_MAX;
        state.threads += usize::from(needs_thread);
        drop(state);
        if !needs_thread {
            self.call.notify_one();
            return None;
        }
        let (workers, mut work) = (Arc::clone(self), work());
        let started = self.start(move || {
            let _left = Left(&workers);
            workers.cpus.make_ordinary();
            while let Some(job) = workers.next() {
                work(job);
            }
        });
        let Err(e) = started else { return None };
        tracing::warn!("cannot start a thread: {e}");
        let mut state = self.lock();
        state.threads -= 1;
        Some(state)
    }

    /// Excuses a thread: for the end of its job nobody waits any more, so that another may take its
    /// place. Returns false if too many are excused.
    pub(crate) fn excuse<W: FnMut(J) + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> W,
    ) -> bool {
        let mut state = self.lock();
        if state.excused >= EXCUSED_MAX {
            return false;
        }
        state.excused += 1;
        state.threads -= 1;
        drop(self.add_thread(state, work));
        true
    }

    /// The job of an excused thread, which calls this, has ended.
    pub(crate) fn is_back(&self) {
        let mut state = self.lock();
        state.excused -= 1;
        state.threads += 1;
    }

    fn start(&self, thread: impl FnOnce() + Send + 'static) -> io::Result<()> {
        #[cfg(test)]
        if self.is_short.load(std::sync::atomic::Ordering::Acquire) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        std::thread::Builder::new().name("weft-fuse-worker".into()).spawn(thread).map(|_| ())
    }

    /// Waits while as many jobs as there may be threads wait for one.
    pub(crate) fn wait_for_room(&self) {
        let is_full = |state: &mut State<J>| state.jobs.len() >= THREADS_MAX;
        let mut state = self.lock();
        if is_full(&mut state) {
            state.waits_for_room = true;
            drop(self.room.wait_while(state, is_full).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn next(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                if state.waits_for_room && state.jobs.len() < THREADS_MAX {
                    state.waits_for_room = false;
                    self.room.notify_all();
                }
                return Some(job);
            }
            // More than that there are when excused threads have come back.
            if state.ended || state.threads > THREADS_MAX {
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
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.call.notify_all();
        while state.threads + state.excused > 0 {
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
    fn a_worker_is_scheduled_as_others_are() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
        let workers = Arc::new(Workers::new());
        let all = sched_getaffinity(None).expect("the CPUs of this thread");
        let starts = std::thread::scope(|scope| {
            let bound = scope.spawn(|| {
                let mut only = CpuSet::new();
                only.set(sched_getcpu());
                sched_setaffinity(None, &only).expect("a CPU that it may use");
                if crate::policy::is_permitted() {
                    crate::policy::become_idle();
                }
                let (seen, sees) = std::sync::mpsc::channel();
                workers.run((), move || {
                    move |()| {
                        let cpus = sched_getaffinity(None).expect("the CPUs of a worker");
                        seen.send((cpus, crate::policy::is_idle())).expect("a look");
                    }
                });
                sees.recv().expect("a worker")
            });
            bound.join().expect("a job")
        });
        assert_eq!(starts, (all, false));
        workers.end();
    }

    /// Jobs whose ends nobody waits for keep no others from threads.
    #[test]
    fn excused_threads_are_replaced() {
        let workers = Arc::new(Workers::new());
        let (held, done) = (Arc::new(Barrier::new(THREADS_MAX + 1)), Arc::new(AtomicUsize::new(0)));
        let work = || {
            let (workers, held) = (Arc::clone(&workers), Arc::clone(&held));
            let done = Arc::clone(&done);
            move |is_held: bool| {
                if is_held {
                    held.wait();
                    workers.is_back();
                } else {
                    done.fetch_add(1, Ordering::AcqRel);
                }
            }
        };
        (0..THREADS_MAX).for_each(|_| assert!(workers.run(true, work).is_none()));
        weft_testing::wait_until("all have a job", || workers.lock().jobs.is_empty());
        assert!(workers.run(false, work).is_none());
        assert_eq!(done.load(Ordering::Acquire), 0, "no thread is left");
        (0..THREADS_MAX).for_each(|_| assert!(workers.excuse(work)));
        weft_testing::wait_until("the other job is done", || done.load(Ordering::Acquire) == 1);
        held.wait();
        workers.end();
        let state = workers.lock();
        assert_eq!((state.threads, state.excused), (0, 0));
    }

    #[test]
    fn a_job_for_which_there_is_no_thread_comes_back() {
        let workers = Arc::new(Workers::new());
        workers.is_short.store(true, Ordering::Release);
        assert_eq!(workers.run(5, || |_| unreachable!("there is no thread")), Some(5));
        workers.end();
    }

    /// The thread that gives jobs waits for one to end, and not before there are as many as there may
    /// be threads beside those that have one.
    #[test]
    fn jobs_beyond_the_room_are_waited_for() {
        let workers = Arc::new(Workers::new());
        let held = Arc::new(Barrier::new(THREADS_MAX + 1));
        let run = || {
            let held = Arc::clone(&held);
            workers.wait_for_room();
            workers.run((), move || {
                move |()| {
                    held.wait();
                }
            });
        };
        for _ in 0..2 * THREADS_MAX {
            run();
        }
        assert!(workers.lock().jobs.len() <= THREADS_MAX);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                // The first half may have been begun meanwhile, but no more.
                (0..THREADS_MAX).for_each(|_| run());
            });
            weft_testing::wait_until("the jobs are too many", || workers.lock().waits_for_room);
            assert!(workers.lock().jobs.len() <= THREADS_MAX);
            (0..3).for_each(|_| {
                held.wait();
            });
            waits.join().expect("room");
        });
        workers.end();
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
