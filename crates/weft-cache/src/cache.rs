//! The cache itself: a device, the state, and the locks around what is one at a time.

use crate::format::superblock::Superblock;
use crate::options::OpenOptions;
use crate::origin::Origin;
use crate::state::{Pins, State};
use crate::stats::{Count, Counters, Stats};
use crate::{Error, ORIGINS_MAX, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weft_block::BlockDevice;

/// An open cache. Origins are [attached](Cache::attach) to it; what is read and written through
/// the [`CachedDevice`](crate::CachedDevice) that this gives is cached.
///
/// Locks, in the order in which they may be taken: `writing_back`, `checkpointing`, `committing`,
/// `loader`, the state. No I/O is done under the state's.
pub struct Cache {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) options: OpenOptions,
    state: Mutex<State>,
    changed: Condvar,
    waiting: AtomicUsize,
    pub(crate) committing: Mutex<()>,
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) loader: Mutex<()>,
    pub(crate) writing_back: Mutex<crate::writeback::Pace>,
    /// By number; those that are attached.
    pub(crate) origins: Mutex<[Option<Arc<Origin>>; ORIGINS_MAX]>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) workers: crate::workers::Workers,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Cache {
    pub(crate) fn assemble(
        device: Arc<dyn BlockDevice>,
        options: OpenOptions,
        state: State,
    ) -> Self {
        Self {
            device,
            options,
            pins: Arc::clone(&state.pins),
            counters: Arc::clone(&state.counters),
            state: Mutex::new(state),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            committing: Mutex::default(),
            checkpointing: Mutex::default(),
            loader: Mutex::default(),
            writing_back: Mutex::default(),
            origins: Mutex::default(),
            workers: crate::workers::Workers::default(),
        }
    }

    /// The state. A thread that panicked under this lock has broken an invariant: go no further.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under this lock")
    }

    /// Waits until something has changed.
    pub(crate) fn wait<'a>(&self, st: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let st = self.changed.wait(st).expect("no thread panics under this lock");
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        st
    }

    /// Wakes who waits. Called after the lock is given back, or shortly before.
    pub(crate) fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
    }

    pub(crate) fn read_cache(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.device.read_at(buf, offset).map_err(|error| {
            self.counters.cache_errors.add(1);
            Error::CacheDevice(error)
        })
    }

    pub(crate) fn write_cache(&self, buf: &[u8], offset: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        self.counters.flash_bytes_written.add(buf.len() as u64);
        self.device.write_at(buf, offset).map_err(|error| {
            self.counters.cache_errors.add(1);
            Error::CacheDevice(error)
        })
    }

    pub(crate) fn flush_cache(&self) -> Result<()> {
        self.counters.cache_flushes.add(1);
        self.device.flush().map_err(|error| {
            self.counters.cache_errors.add(1);
            Error::CacheDevice(error)
        })
    }

    /// The attached origin with this number.
    pub(crate) fn origin(&self, nr: u16) -> Option<Arc<Origin>> {
        let origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        origins.get(usize::from(nr)).cloned().flatten()
    }

    /// Up to which of its writes an origin was flushed; `None` if it is not attached.
    pub(crate) fn flushed_epoch(&self, nr: u16) -> Option<u64> {
        self.origin(nr).map(|origin| origin.flushed.load(Ordering::Acquire))
    }

    /// Makes the superblock durable after `change`.
    ///
    /// *The superblock's write is what makes the change count.*
    pub(crate) fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_superblock_locked(&committing, change)
    }

    /// As [`write_superblock`](Self::write_superblock), by who holds the lock of committers.
    pub(crate) fn write_superblock_locked(
        &self,
        _committing: &MutexGuard<'_, ()>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let sb = {
            let mut st = self.lock();
            change(&mut st.sb);
            st.sb.sequence += 1;
            st.sb.clone()
        };
        self.write_cache(&sb.encode(), sb.copy_offset())
            .and_then(|()| self.flush_cache())
            .map_err(|error| self.fail(error))
    }

    /// What the cache has done and holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let st = self.lock();
        Stats {
            slots: u64::from(st.slots.len()),
            block_bytes: u64::from(st.sb.block_bytes),
            used_slots: u64::from(st.index.len()),
            dirty_bytes: st.dirty_bytes(),
            intents: st.regions.durable,
            pending_records: st.pending.len() as u64,
            log_used_blocks: st.log.next - st.log.tail,
            loading_pages: st.loading.as_ref().map_or(0, |l| l.pages - l.next_page),
            memory_bytes: (st.slots.memory_bytes()
                + st.index.memory_bytes()
                + st.policy.memory_bytes()) as u64,
            ..self.counters.snapshot()
        }
    }

    /// Looks for broken invariants; for tests.
    ///
    /// # Panics
    /// If one is.
    #[cfg(any(test, debug_assertions))]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.lock().check_invariants();
    }

    /// The size of its blocks, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.lock().sb.block_bytes
    }

    /// The options it was opened with.
    #[must_use]
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }
}
