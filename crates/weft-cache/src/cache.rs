//! The cache: its device, its state, and the locks that serialise its operations.

use crate::finding::Finding;
use crate::format::superblock::Superblock;
use crate::lock::{Guard, Lock, LockOrder, Rank};
use crate::options::OpenOptions;
use crate::origin::Origin;
use crate::pins::Pins;
use crate::state::CacheState;
use crate::stats::{Count, Counters, Stats};
use crate::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar};
use weft_block::BlockDevice;

/// An open cache. Origins are [attached](Cache::attach) to it; reads and writes through the
/// returned [`CachedDevice`](crate::CachedDevice) are cached.
///
/// The order in which its locks may be taken is that of `crate::lock`, which checks it.
pub struct Cache {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) options: OpenOptions,
    /// The findings of the last opening.
    pub(crate) findings: Vec<Finding>,
    pub(crate) order: LockOrder,
    state: Lock<CacheState>,
    changed: Condvar,
    waiting: AtomicUsize,
    pub(crate) attaching: Lock<()>,
    pub(crate) forgetting: Lock<()>,
    pub(crate) resizing: Lock<()>,
    pub(crate) writing_back: Lock<crate::jobs::Pace>,
    pub(crate) checkpointing: Lock<()>,
    pub(crate) committing: Lock<()>,
    pub(crate) loader: Lock<()>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) workers: crate::jobs::Workers,
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
        state: CacheState,
    ) -> Self {
        let order = LockOrder::new();
        Self {
            device,
            options,
            findings: Vec::new(),
            order,
            pins: Arc::clone(state.residency.pins()),
            counters: Arc::clone(&state.counters),
            state: Lock::new(order, Rank::State, state),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            attaching: Lock::new(order, Rank::Attaching, ()),
            forgetting: Lock::new(order, Rank::Forgetting, ()),
            resizing: Lock::new(order, Rank::Resizing, ()),
            writing_back: Lock::new(order, Rank::WritingBack, crate::jobs::Pace::default()),
            checkpointing: Lock::new(order, Rank::Checkpointing, ()),
            committing: Lock::new(order, Rank::Committing, ()),
            loader: Lock::new(order, Rank::Loader, ()),
            workers: crate::jobs::Workers::default(),
        }
    }

    /// Locks the state.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self) -> Guard<'_, CacheState> {
        self.state.lock()
    }

    /// Waits for a [`notify`](Self::notify).
    pub(crate) fn wait<'a>(&self, st: Guard<'a, CacheState>) -> Guard<'a, CacheState> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let st = st.wait(&self.changed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        st
    }

    /// Wakes the threads in [`wait`](Self::wait). To be called after the lock is released, or
    /// shortly before.
    pub(crate) fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
    }

    pub(crate) fn read_cache(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.order.before_io();
        self.device.read_at(buf, offset).map_err(|error| {
            self.counters.cache_errors.add(1);
            Error::CacheDevice(error)
        })
    }

    pub(crate) fn write_cache(&self, buf: &[u8], offset: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        self.order.before_io();
        self.counters.flash_bytes_written.add(buf.len() as u64);
        self.device.write_at(buf, offset).map_err(|error| {
            self.counters.cache_errors.add(1);
            Error::CacheDevice(error)
        })
    }

    pub(crate) fn flush_cache(&self) -> Result<()> {
        self.order.before_io();
        self.counters.cache_flushes.add(1);
        self.device.flush().map_err(|error| {
            self.counters.cache_errors.add(1);
            Error::CacheDevice(error)
        })
    }

    /// The attached origin with this number.
    pub(crate) fn origin(&self, nr: u16) -> Option<Arc<Origin>> {
        self.lock().origins.attached(nr)
    }

    /// The attached origins.
    pub(crate) fn attached_origins(&self) -> Vec<Arc<Origin>> {
        self.lock().origins.all_attached().cloned().collect()
    }

    /// Makes the superblock durable after `change`, in both its copies, one after the other: while
    /// one is being written the other is whole, and afterwards either is enough.
    ///
    /// *The write of the first copy is what makes the change count.*
    pub(crate) fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let committing = self.committing.lock();
        self.write_superblock_locked(&committing, change)
    }

    /// Does as [`write_superblock`](Self::write_superblock), for a caller that holds the commit
    /// lock.
    pub(crate) fn write_superblock_locked(
        &self,
        _committing: &Guard<'_, ()>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let sb = {
            let mut st = self.lock();
            change(&mut st.log.sb);
            st.log.sb.sequence += 1;
            st.log.sb.clone()
        };
        self.write_superblock_copies(&sb).map_err(|error| self.fail(error))
    }

    /// Writes both copies. The caller has incremented the sequence number.
    pub(crate) fn write_superblock_copies(&self, sb: &Superblock) -> Result<()> {
        let bytes = sb.encode();
        for offset in sb.copy_offsets() {
            self.write_cache(&bytes, offset)?;
            self.flush_cache()?;
        }
        Ok(())
    }

    /// Returns the counters and gauges of the cache.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let st = self.lock();
        Stats {
            slots: u64::from(st.residency.len()),
            block_bytes: u64::from(st.log.sb.block_bytes),
            used_slots: u64::from(st.residency.used()),
            dirty_bytes: st.dirty.bytes(),
            intents: st.dirty.regions.durable,
            pending_records: st.log.pending().len() as u64,
            log_used_blocks: st.log.at.used_blocks(),
            loading_pages: st.residency.loading.as_ref().map_or(0, |l| l.pages - l.next_page),
            memory_bytes: st.residency.memory_bytes() as u64,
            ..self.counters.snapshot()
        }
    }

    /// Checks the invariants; for tests.
    ///
    /// # Panics
    /// If one is broken.
    #[cfg(any(test, debug_assertions))]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.lock().check_invariants();
    }

    /// Returns true if no data is in transit from an origin into the cache; for tests, while no
    /// request is being served.
    #[cfg(any(test, debug_assertions))]
    #[doc(hidden)]
    pub fn is_quiet(&self) -> bool {
        self.workers.prefetches.is_idle() && self.lock().requests.fills.is_empty()
    }

    /// Returns the size of a block, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.lock().log.sb.block_bytes
    }

    /// Returns the damage that was found when the cache was opened and did not keep it from being
    /// opened: a damaged copy of the superblock, which is rewritten, and blocks of the last commit
    /// that do not match that commit. Empty if there was none.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the options with which the cache was opened.
    #[must_use]
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }
}
