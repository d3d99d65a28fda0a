//! The work queues of the cache's threads: fills that wait to be written, prefetches, and the pace
//! of write-back.

use crate::OpenOptions;
use crate::fills::FillId;
use crate::origin::Origin;
use crate::readahead;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A fill whose data is to be written to the cache.
pub(crate) struct Job {
    pub(crate) origin: Arc<Origin>,
    pub(crate) id: FillId,
    pub(crate) data: Arc<Vec<u8>>,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) bytes: usize,
    pub(crate) stop: bool,
}

#[derive(Default)]
pub(crate) struct Workers {
    pub(crate) queue: Arc<(Mutex<Queue>, Condvar)>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) running: AtomicBool,
    pub(crate) write_back: Arc<(Mutex<bool>, Condvar)>,
    pub(crate) prefetches: Arc<readahead::Queue>,
}

impl Workers {
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn are_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Queues a fill. Returns false if there is no thread, or the queue is full.
    pub(crate) fn take_fill(
        &self,
        options: &OpenOptions,
        origin: &Arc<Origin>,
        id: FillId,
        data: &Arc<Vec<u8>>,
    ) -> bool {
        if !self.running.load(Ordering::Acquire) {
            return false;
        }
        let mut queue = self.queue();
        if queue.stop || queue.bytes + data.len() > options.fill_queue_bytes {
            return false;
        }
        queue.bytes += data.len();
        queue.jobs.push_back(Job { origin: Arc::clone(origin), id, data: Arc::clone(data) });
        drop(queue);
        self.queue.1.notify_one();
        true
    }
}

/// The rate limit of write-back.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time at which the next batch may begin, in milliseconds.
    pub(crate) next_ms: u64,
}
