//! The thread that keeps promises: groups that are to be durable at some time, and atomic changes of
//! processes that end, or take too long.
//!
//! It runs from the first promise on, until the mount ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weft_patch::PatchGroup;

use crate::abort::Abortables;
use crate::atomic_file::AtomicFiles;
use crate::engagement::Promise;

/// The longest time for which the thread sleeps.
const SLEEP_MAX: Duration = Duration::from_secs(60);

struct Due {
    at: Instant,
    patchgroup: PatchGroup,
    promise: Arc<Promise>,
}

#[derive(Default)]
struct Work {
    due: Vec<Due>,
    stop: bool,
}

struct Shared {
    work: Mutex<Work>,
    /// Readable when there is something new.
    wake: OwnedFd,
    files: Arc<AtomicFiles>,
    abortables: Arc<Abortables>,
}

/// The thread, or none as long as it has nothing to do.
pub(crate) struct Background {
    files: Arc<AtomicFiles>,
    abortables: Arc<Abortables>,
    running: Mutex<Option<(Arc<Shared>, JoinHandle<()>)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    pub fn new(files: Arc<AtomicFiles>, abortables: Arc<Abortables>) -> Self {
        Self { files, abortables, running: Mutex::default() }
    }

    /// Has a group made durable at a time.
    pub fn sync_at(&self, at: Instant, patchgroup: PatchGroup, promise: Arc<Promise>) {
        let due = Due { at, patchgroup, promise };
        if let Some(shared) = self.shared() {
            locked(&shared.work).due.push(due);
            shared.notify();
        } else {
            // Without a thread, the promise is kept at once.
            due.promise.keep(&due.patchgroup);
        }
    }

    /// Has the processes watched that have atomic changes in progress, to which one was added. Returns
    /// false if there is no thread for that.
    pub fn watch_processes(&self) -> bool {
        self.shared().map(|shared| shared.notify()).is_some()
    }

    /// Returns the state shared with the thread, which is started if it does not run.
    fn shared(&self) -> Option<Arc<Shared>> {
        let mut running = locked(&self.running);
        if let Some((shared, _)) = &*running {
            return Some(Arc::clone(shared));
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let (files, abortables) = (Arc::clone(&self.files), Arc::clone(&self.abortables));
        let shared = Arc::new(Shared { work: Mutex::default(), wake, files, abortables });
        let thread = {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("weft-order".into());
            thread.spawn(move || shared.run()).ok()?
        };
        *running = Some((Arc::clone(&shared), thread));
        Some(shared)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((shared, thread)) = running {
            locked(&shared.work).stop = true;
            shared.notify();
            // A panic of the thread has been reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn notify(&self) {
        // Fails only if it is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        loop {
            let mut due = Vec::new();
            {
                let mut work = locked(&self.work);
                if work.stop {
                    return;
                }
                let now = Instant::now();
                let (ripe, later) =
                    std::mem::take(&mut work.due).into_iter().partition(|d| d.at <= now);
                due.extend::<Vec<Due>>(ripe);
                work.due = later;
            }
            for Due { patchgroup, promise, .. } in due {
                promise.keep(&patchgroup);
            }
            let (mut processes, until) = self.files.sweep();
            processes.extend(self.abortables.sweep());
            self.sleep(&processes, until);
        }
    }

    /// Sleeps until something is due, one of the processes has ended, or something new has come.
    fn sleep(&self, processes: &[Arc<OwnedFd>], until: Option<Instant>) {
        let next = locked(&self.work).due.iter().map(|d| d.at).chain(until).min();
        let wait = next.map_or(SLEEP_MAX, |at| at.saturating_duration_since(Instant::now()));
        // Not before the time, as a poll rounds.
        let wait = (wait + Duration::from_millis(1)).min(SLEEP_MAX);
        let fds = std::iter::once(self.wake.as_fd()).chain(processes.iter().map(|p| p.as_fd()));
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        // Interrupted, it looks again.
        let _ = poll(&mut fds, Some(&timeout));
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}
