//! A thread pool of fixed size with a bounded queue, for independent blocks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{Error, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A thread pool that runs jobs in the order of submission.
///
/// Dropping the pool lets the submitted jobs finish without waiting for them: a hung stage blocks
/// only its own reader, until that reader's deadline.
#[derive(Debug)]
pub struct Pool {
    queue: SyncSender<Job>,
    threads: usize,
}

impl Pool {
    /// Starts a pool of `threads` threads (at least one), whose queue holds two jobs for each.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let (queue, jobs) = sync_channel::<Job>(2 * threads);
        let jobs = Arc::new(Mutex::new(jobs));
        for nr in 0..threads {
            let jobs = jobs.clone();
            let work = move || {
                while let Some(job) = next(&jobs) {
                    // A job that panics drops its sender, which the waiting caller detects.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                }
            };
            std::thread::Builder::new().name(format!("weft-transform-{nr}")).spawn(work)?;
        }
        Ok(Self { queue, threads })
    }

    /// The number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Submits a job; blocks while the queue is full.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Progress) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (sender, answer) = sync_channel(1);
        let progress = Arc::new(Progress { stage: Mutex::new("network") });
        let seen = progress.clone();
        let work: Job = Box::new(move || {
            // The caller may have stopped waiting.
            let _ = sender.send(job(&seen));
        });
        // Sending cannot fail: the threads live as long as the queue.
        let _ = self.queue.send(work);
        Pending { answer, progress }
    }
}

fn next(jobs: &Mutex<Receiver<Job>>) -> Option<Job> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// The stage that a job is running, named in the error of a missed deadline.
#[derive(Debug)]
pub(crate) struct Progress {
    stage: Mutex<&'static str>,
}

impl Progress {
    pub(crate) fn enter(&self, stage: &'static str) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    fn stage(&self) -> &'static str {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A submitted job.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    answer: Receiver<Result<T>>,
    progress: Arc<Progress>,
}

impl<T> Pending<T> {
    /// Waits for the result, for at most `deadline`.
    pub(crate) fn wait(self, deadline: Option<Duration>) -> Result<T> {
        let stage = || self.progress.stage();
        let answer = match deadline {
            Some(deadline) => self.answer.recv_timeout(deadline),
            None => self.answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                let millis = deadline.unwrap_or_default().as_millis();
                Err(Error::Deadline {
                    stage: stage(),
                    millis: u64::try_from(millis).unwrap_or(u64::MAX),
                })
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::Io(std::io::Error::other(format!(
                "stage {}: the thread at work on a block panicked",
                stage()
            )))),
        }
    }
}
