//! Commits: pending changes go to the log, in one batch, with one flush.
//!
//! 1. Under the lock: a record of each touched slot, the intents to set, and those that may be
//!    cleared are gathered. Dirty sub-blocks in a record are held from here on: their data does not
//!    change.
//! 2. The batch is written at the log's end, and the device is flushed. *This flush makes the batch
//!    valid*, together with the data that its records refer to, which was written before it.
//! 3. Sub-blocks that were held for superseded records are released.
//!
//! The data is not ordered before its records. After a power cut before the flush returns, the
//! batch may be on the device without some of its data; so recovery compares the dirty data of the
//! log's last batch with the checksums in its records ([`crate::tail`]). All older batches were
//! flushed before the last was written. A *marker*, an empty batch that is written after each one
//! and not flushed, records that the flush has returned: from then on data that does not match is
//! damage, and not an incomplete commit. The next batch overwrites the marker.
//!
//! If the log has no room for the batch, a checkpoint takes its place ([`crate::checkpoint`]).

use crate::cache::Cache;
use crate::format::UNIT;
use crate::format::log::{Batch, Item};
use crate::format::superblock::STATE_UNTRUSTED;
use crate::lock::Guard;
use crate::regions::{Intent, RegionKey, runs};
use crate::slots::Masks;
use crate::state::CacheState;
use crate::stats::Count;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// A gathered batch, and the changes to apply when it is durable.
pub(crate) struct Gathered {
    batch: Batch,
    /// Slots, and their sub-blocks that stay held.
    holds: Vec<(u32, u16)>,
    intents: Vec<RegionKey>,
    /// Whether the batch has records of dirty data.
    dirty: bool,
}

impl Gathered {
    /// Returns the number of log blocks that it needs.
    pub(crate) fn len_blocks(&self) -> u64 {
        self.batch.len_blocks()
    }
}

/// The pending changes as a batch; creating it changes no state.
pub(crate) struct NextBatch {
    batch: Batch,
    intents: Vec<RegionKey>,
    clears: Vec<RegionKey>,
}

impl NextBatch {
    /// Returns the number of log blocks that it needs.
    pub(crate) fn len_blocks(&self) -> u64 {
        self.batch.len_blocks()
    }
}

impl Cache {
    /// Makes all pending changes durable.
    pub(crate) fn commit(&self) -> Result<()> {
        if !self.options.persistence || self.commit_to_log()? {
            return Ok(());
        }
        let one = self.checkpointing.lock();
        // The checkpoint of another thread may have made room meanwhile.
        if self.commit_to_log()? {
            return Ok(());
        }
        self.checkpoint_locked(&one, None)
    }

    /// Commits to the log. Returns `Ok(false)` if the log has no room; nothing was done then.
    fn commit_to_log(&self) -> Result<bool> {
        let _committing = self.committing.lock();
        let gathered = {
            let mut st = self.quiet()?;
            let batch = self.next_batch(&st);
            if !st.log.has_room(batch.len_blocks()) {
                return Ok(false);
            }
            self.gather(&mut st, batch)
        };
        self.write_batch(gathered).map(|()| true)
    }

    /// Locks the state while no dirty data is being overwritten in place. The caller holds the
    /// commit lock.
    ///
    /// # Errors
    /// [`Error::Failed`] if the cache device has failed.
    pub(crate) fn quiet(&self) -> Result<Guard<'_, CacheState>> {
        let mut st = self.lock();
        st.requests.set_gathering(true);
        while st.requests.any_in_place() {
            st = self.wait(st);
        }
        st.requests.set_gathering(false);
        self.notify();
        // Checked after the wait: one of those overwrites may have failed.
        st.check_usable_or_closing()?;
        Ok(st)
    }

    /// Writes a batch at the log's end, and flushes. The caller holds the commit lock.
    pub(crate) fn write_batch(&self, mut gathered: Gathered) -> Result<()> {
        let (log, life, tag) = {
            let st = self.lock();
            (st.log.at, st.log.sb.life, st.log.sb.tag())
        };
        if gathered.batch.is_empty() {
            self.lock().log.stop_commit();
            return Ok(());
        }
        let bytes = gathered.batch.seal(log.next, log.durable, life, tag);
        let written = self.write_log(log.next, bytes).and_then(|()| self.flush_cache());
        if let Err(error) = written {
            return Err(self.fail(error));
        }
        self.counters.commits.add(1);
        self.counters.intents_set.add(gathered.intents.len() as u64);
        let (log, room) = {
            let mut st = self.lock();
            st.log.at.advance(gathered.batch.len_blocks());
            st.batch_is_durable(&gathered);
            (st.log.at, st.log.at.used_blocks() < st.log.sb.log_blocks)
        };
        self.notify();
        if gathered.dirty && room {
            let mut marker = Batch::marker();
            let bytes = marker.seal(log.next, log.durable, life, tag);
            if let Err(error) = self.write_log(log.next, bytes) {
                // The batch is durable without it, and the next request will find the cause.
                tracing::debug!(%error, "the last commit is not marked as complete");
            }
        }
        Ok(())
    }

    /// Writes consecutive blocks of the log, from `number` on.
    pub(crate) fn write_log(&self, number: u64, bytes: &[u8]) -> Result<()> {
        let (offset, blocks) = {
            let st = self.lock();
            (st.log.sb.log_offset, st.log.sb.log_blocks)
        };
        let at = number % blocks;
        let ahead = bytes.len().min((blocks - at) as usize * UNIT);
        self.write_cache(&bytes[..ahead], offset + at * UNIT as u64)?;
        self.counters.log_writes.add(1);
        self.counters.log_blocks.add((bytes.len() / UNIT) as u64);
        if ahead < bytes.len() {
            self.write_cache(&bytes[ahead..], offset)?;
            self.counters.log_writes.add(1);
        }
        Ok(())
    }

    /// Builds a batch of the pending changes.
    pub(crate) fn next_batch(&self, st: &CacheState) -> NextBatch {
        let mut batch = Batch::new(st.log.sb.subs());
        let mut intents = st.dirty.regions.pending.clone();
        intents.sort_unstable();
        for run in runs(&intents) {
            batch.push(&Item::IntentSet(run));
        }
        for slot in st.log.pending() {
            batch.push(&Item::Record(st.residency.slots().record(*slot)));
        }
        let clears = self.clearable(st);
        for run in runs(&clears) {
            batch.push(&Item::IntentClear(run));
        }
        NextBatch { batch, intents, clears }
    }

    /// Changes the state for a batch that is about to be written, as far as this must precede its
    /// write.
    pub(crate) fn gather(&self, st: &mut CacheState, next: NextBatch) -> Gathered {
        let NextBatch { batch, intents, clears } = next;
        let mut gathered = Gathered { batch, holds: Vec::new(), intents, dirty: false };
        for slot in st.log.take_pending() {
            st.residency.set_touched(slot, false);
            let masks = st.residency.masks(slot);
            if masks.dirty | masks.held != 0 {
                gathered.dirty |= masks.dirty != 0;
                gathered.holds.push((slot, masks.dirty));
                st.log.remember_held(slot, masks.held);
                st.set_masks(slot, Masks { held: masks.held | masks.dirty, ..masks });
            }
        }
        let now_ms = st.now_ms;
        st.log.begin_commit(!gathered.batch.is_empty(), now_ms);
        st.dirty.regions.pending.clear();
        st.dirty.regions.advance(&gathered.intents, Intent::Pending, Intent::Committing);
        self.counters.intents_cleared.add(clears.len() as u64);
        st.dirty.regions.clear(&clears);
        gathered
    }

    /// Returns the regions in which cache and origin agree once all pending changes are recorded.
    fn clearable(&self, st: &CacheState) -> Vec<RegionKey> {
        if st.residency.loading.is_some()
            || st.log.unlogged_drops() > 0
            || st.dirty.regions.durable == 0
        {
            return Vec::new();
        }
        let idle_ms = if st.health.closed { 0 } else { self.options.intent_idle_ms };
        st.dirty.regions.durable_if(|key, region| {
            let flushed = st.flushed_epoch(key.origin());
            region.writers == 0
                && !region.doubtful
                && flushed.is_some_and(|flushed| region.written <= flushed)
                && (idle_ms == 0 || region.written_ms + idle_ms <= st.now_ms)
        })
    }

    /// Marks the cache device as failed: nothing is written to it any more, except the mark that it
    /// is out of date, if no data exists only there. Returns `error`.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let mut st = self.lock();
        let first = st.health.failed.is_none();
        if first {
            tracing::error!(%error, dirty_bytes = st.dirty.bytes(), "the cache device has failed");
            st.health.failed = Some(error.to_string());
            st.let_go_of_failed_batch();
        }
        st.log.stop_commit();
        drop(st);
        if first && let Err(error) = self.mark_untrusted() {
            tracing::warn!(%error, "the cache is not marked as out of date");
        }
        self.notify();
        error
    }

    /// Records in the superblock that origins are changed without intents, so that no clean record
    /// is trusted any more. This is retried before each such change: a device may refuse writes for
    /// a while only, and be opened again later.
    ///
    /// # Errors
    /// [`Error::Failed`] if data exists only in the cache; [`Error::Unmarked`] if the write fails.
    pub(crate) fn mark_untrusted(&self) -> Result<()> {
        let sb = {
            let mut st = self.lock();
            if st.health.marked_untrusted {
                return Ok(());
            }
            if st.dirty.any_or_held() {
                let why = st.health.failed.clone().unwrap_or_default();
                return Err(Error::Failed { dirty_bytes: st.dirty.bytes(), why });
            }
            st.log.sb.sequence += 1;
            st.log.sb.state |= STATE_UNTRUSTED;
            st.log.sb.clone()
        };
        let written = self.write_superblock_copies(&sb);
        written.map_err(|error| Error::Unmarked { why: error.to_string() })?;
        self.lock().health.marked_untrusted = true;
        Ok(())
    }

    /// Commits if there are many pending changes, so that batches stay short compared with the log.
    pub(crate) fn commit_if_much(&self) -> Result<()> {
        let much = {
            let st = self.lock();
            let records = st.log.pending().len() as u64;
            let each = crate::format::record::padded_bytes(st.log.sb.subs()) as u64 + 1;
            records >= u64::from(self.options.commit_records)
                || records * each > st.log.sb.log_blocks * UNIT as u64 / 8
        };
        if much { self.commit() } else { Ok(()) }
    }
}

impl CacheState {
    /// Returns the number of the last write of an origin that was flushed; `None` if the origin is
    /// not attached.
    fn flushed_epoch(&self, nr: u16) -> Option<u64> {
        self.origins.attached(nr).map(|origin| origin.flushed.load(Ordering::Acquire))
    }

    /// Releases sub-blocks that were held for records that a durable batch has superseded.
    pub(crate) fn batch_is_durable(&mut self, gathered: &Gathered) {
        self.log.end_commit();
        for (slot, held) in &gathered.holds {
            let masks = self.residency.masks(*slot);
            self.set_masks(*slot, Masks { held: *held, ..masks });
        }
        self.dirty.regions.advance(&gathered.intents, Intent::Committing, Intent::Durable);
        self.residency.sweep_limbo();
    }

    /// Undoes the holds of a batch that failed to become durable, as the cache device has failed:
    /// the sub-blocks must not be written back. After a crash, the block that they replaced would
    /// be trusted to be clean.
    fn let_go_of_failed_batch(&mut self) {
        for (slot, before) in self.log.take_held_before() {
            let masks = self.residency.masks(slot);
            self.set_masks(slot, Masks { held: masks.held & before, ..masks });
        }
    }

    /// Returns an error if the cache has failed. A closed cache may still commit: closing does.
    fn check_usable_or_closing(&self) -> Result<()> {
        match &self.health.failed {
            Some(why) => Err(Error::Failed { dirty_bytes: self.dirty.bytes(), why: why.clone() }),
            None => Ok(()),
        }
    }
}
