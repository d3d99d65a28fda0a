//! Background work: by threads, or, without them, in [`Cache::tick`].

use crate::attach::fingerprint;
use crate::cache::Cache;
use crate::format::superblock::STATE_CLEAN;
use crate::jobs::{Job, Queue};
use crate::regions::Intent;
use crate::state::CacheState;
use crate::{Error, Result};
use crate::{prefetch, readahead};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Interval at which the threads look for work that is due.
const TICK: Duration = Duration::from_millis(100);

impl Cache {
    pub(crate) fn start_workers(self: &Arc<Self>) {
        if !self.options.background || self.options.read_only {
            return;
        }
        self.workers.running.store(true, Ordering::Release);
        let mut threads = self.workers.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let mut spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => tracing::error!(%error, "a thread of the cache does not start"),
            }
        };
        let (cache, queue) = (Arc::downgrade(self), Arc::clone(&self.workers.queue));
        spawn("cache-fill", Box::new(move || fill_loop(&cache, &queue)));
        if self.options.readahead_bytes > 0 {
            for _ in 0..readahead::THREADS {
                let (cache, queue) = (Arc::downgrade(self), Arc::clone(&self.workers.prefetches));
                spawn("cache-prefetch", Box::new(move || prefetch::fetch_loop(&cache, &queue)));
            }
        }
        let (cache, wake) = (Arc::downgrade(self), Arc::clone(&self.workers.write_back));
        spawn("cache-write-back", Box::new(move || write_back_loop(&cache, &wake)));
        let (cache, queue) = (Arc::downgrade(self), Arc::clone(&self.workers.queue));
        spawn("cache-commit", Box::new(move || commit_loop(&cache, &queue, start)));
    }

    /// Wakes the write-back thread if there is much dirty data.
    pub(crate) fn wake_writeback(&self) {
        if !self.workers.running.load(Ordering::Relaxed) {
            return;
        }
        let much = {
            let st = self.lock();
            st.dirty.bytes() > self.dirty_limit(&st) / 2
        };
        if much {
            let mut due = self.workers.write_back.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !*due {
                *due = true;
                self.workers.write_back.1.notify_one();
            }
        }
    }

    /// Does all work that is due at `now_ms` (milliseconds from any beginning, never less than
    /// before): loads some more of the checkpoint, commits, clears intents, writes back,
    /// checkpoints. To be called about ten times a second when the cache was opened with
    /// `background: false`, and not otherwise.
    ///
    /// # Errors
    /// Those of the cache device, or of an origin. Work that failed is due again.
    pub fn tick(&self, now_ms: u64) -> Result<()> {
        let maintained = self.maintain(now_ms);
        let flushed = self.flush_idle_origins();
        let mut written = Ok(true);
        while matches!(written, Ok(true)) {
            written = self.write_back_due();
        }
        maintained.and(flushed).and(written.map(drop))
    }

    /// Does what is due on the cache device. No origin can put it off: one that is away may let a
    /// request wait for minutes.
    fn maintain(&self, now_ms: u64) -> Result<()> {
        {
            let mut st = self.lock();
            st.now_ms = st.now_ms.max(now_ms);
            st.recycle_staged();
            if !self.is_maintained(&st) {
                return Ok(());
            }
        }
        // Each is done whatever becomes of the others, and the commit, which is promised, first.
        let done = [
            self.commit_if_due(),
            self.load_some().map(drop),
            self.forget_some().map(drop),
            self.checkpoint_if_due(),
        ];
        done.into_iter().collect()
    }

    fn is_maintained(&self, st: &CacheState) -> bool {
        !(st.health.closed || st.health.failed.is_some() || self.options.read_only)
    }

    fn commit_if_due(&self) -> Result<()> {
        let due = {
            let st = self.lock();
            let any = !st.log.pending().is_empty()
                || !st.dirty.regions.pending.is_empty()
                || st.dirty.regions.durable > 0;
            any && st.log.is_due(st.now_ms, self.options.commit_interval_ms)
        };
        if due { self.commit() } else { Ok(()) }
    }

    fn checkpoint_if_due(&self) -> Result<()> {
        let (unlogged, half) = {
            let st = self.lock();
            let unlogged = st.log.unlogged_drops() > 0 && st.residency.loading.is_none();
            (unlogged, st.log.at.used_blocks() >= st.log.sb.log_blocks / 2)
        };
        match (unlogged, half) {
            (true, _) => self.checkpoint_always(),
            (false, true) => self.checkpoint(),
            (false, false) => Ok(()),
        }
    }

    /// Flushes origins that were written to and then left alone, so that intents can be cleared.
    fn flush_idle_origins(&self) -> Result<()> {
        if !self.is_maintained(&self.lock()) {
            return Ok(());
        }
        let mut done = Ok(());
        for origin in self.attached_origins().iter().filter(|origin| origin.flush_needed()) {
            let idle = {
                let st = self.lock();
                let before = st.now_ms.checked_sub(self.options.intent_idle_ms);
                let flushed = origin.flushed.load(Ordering::Acquire);
                st.dirty.regions.of(origin.nr).any(|(_, region)| {
                    region.intent == Intent::Durable
                        && region.writers == 0
                        && region.written > flushed
                        && before.is_some_and(|before| region.written_ms <= before)
                })
            };
            if idle {
                done = done.and(origin.flush(self));
            }
        }
        done
    }

    /// Makes everything durable, in a consistent state, and closes the cache: requests fail from
    /// now on. Dirty data stays in the cache.
    ///
    /// # Errors
    /// Those of the cache device. Flushed data is still in the cache then, and is recovered.
    pub fn close(&self) -> Result<()> {
        {
            let mut st = self.lock();
            if st.health.closed {
                return Ok(());
            }
            st.health.closed = true;
        }
        self.notify();
        self.stop_workers();
        let mut st = self.lock();
        while !st.requests.writers.is_empty() {
            st = self.wait(st);
        }
        let failed = st.health.failed.clone();
        let dirty_bytes = st.dirty.bytes();
        drop(st);
        if self.options.read_only {
            return Ok(());
        }
        if let Some(why) = failed {
            return Err(Error::Failed { dirty_bytes, why });
        }
        let mut fingerprints = Vec::new();
        for origin in self.attached_origins() {
            // An origin that is unavailable keeps its intents, and has no fingerprint; nor has one
            // that may have lost writes.
            if origin.flush(self).is_ok()
                && origin.failures() == 0
                && let Ok(print) = fingerprint(&*origin.device, origin.id.len_bytes)
            {
                fingerprints.push((usize::from(origin.nr), print));
            }
        }
        if !self.options.persistence {
            return Ok(());
        }
        self.load_all()?;
        if self.lock().log.unlogged_drops() > 0 {
            // Intents can be cleared only after it.
            self.checkpoint_always()?;
        }
        self.commit()?;
        self.checkpoint_always()?;
        let clean = self.lock().dirty.regions.durable == 0;
        self.write_superblock(|sb| {
            sb.state |= if clean { STATE_CLEAN } else { 0 };
            for (nr, print) in fingerprints {
                if let Some(entry) = &mut sb.origins[nr] {
                    entry.fingerprint = Some(print);
                }
            }
        })
    }

    fn stop_workers(&self) {
        self.workers.running.store(false, Ordering::Release);
        let jobs = {
            let mut queue = self.workers.queue();
            queue.stop = true;
            queue.bytes = 0;
            std::mem::take(&mut queue.jobs)
        };
        self.workers.queue.1.notify_all();
        self.workers.write_back.1.notify_all();
        self.workers.prefetches.stop();
        let mut st = self.lock();
        for job in jobs {
            st.requests.fills.end(job.id);
        }
        drop(st);
        self.notify();
        let threads = std::mem::take(
            &mut *self.workers.threads.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for thread in threads {
            // The last owner of the cache may be one of its threads.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Cache {
    /// Without [`close`](Cache::close), this is like a power cut.
    fn drop(&mut self) {
        self.stop_workers();
    }
}

fn fill_loop(cache: &Weak<Cache>, queue: &(Mutex<Queue>, Condvar)) {
    loop {
        let job = {
            let mut q = queue.0.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if q.stop {
                    return;
                }
                if let Some(job) = q.jobs.pop_front() {
                    q.bytes = q.bytes.saturating_sub(job.data.len());
                    break job;
                }
                q = queue.1.wait(q).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let Some(cache) = cache.upgrade() else { return };
        let Job { origin, id, data } = job;
        cache.put_fill(&origin, id, &data);
        // Before the fill ends: a detach waits for it, and then the origin must have no user.
        drop(origin);
        cache.end_fill(id);
    }
}

fn write_back_loop(cache: &Weak<Cache>, wake: &(Mutex<bool>, Condvar)) {
    loop {
        {
            let due = wake.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = wake.1.wait_timeout_while(due, TICK, |due| !*due);
            *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
        }
        let Some(cache) = cache.upgrade() else { return };
        if !cache.workers.running.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = cache.flush_idle_origins() {
            tracing::warn!(%error, "an origin could not be flushed");
        }
        loop {
            match cache.write_back_due() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "write-back waits");
                    break;
                }
            }
        }
    }
}

fn commit_loop(cache: &Weak<Cache>, queue: &(Mutex<Queue>, Condvar), start: Instant) {
    loop {
        let busy = {
            let Some(cache) = cache.upgrade() else { return };
            if !cache.workers.running.load(Ordering::Acquire) {
                return;
            }
            let maintained = cache.maintain(start.elapsed().as_millis() as u64);
            if let Err(error) = &maintained {
                tracing::warn!(%error, "the cache could not be maintained");
            }
            let st = cache.lock();
            maintained.is_ok()
                && (st.residency.loading.is_some() || st.origins.forgetting().is_some())
        };
        if !busy {
            // Stopping the queue ends the pause early.
            let q = queue.0.lock().unwrap_or_else(PoisonError::into_inner);
            if q.stop {
                return;
            }
            drop(q);
            std::thread::sleep(TICK);
        }
    }
}
