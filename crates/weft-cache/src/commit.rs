//! Commits: what changed goes to the log, in one batch, with one flush.
//!
//! 1. Under the lock: a record of each touched slot, the intents to set, and those that may be
//!    cleared. Dirty sub-blocks named by a record are held from here on: their data does not change.
//! 2. The batch is written behind the log's end, and the device is flushed. *This flush makes the
//!    batch count*, together with the data that its records name, which was written before it.
//! 3. What was held for records that are superseded now is let go.
//!
//! Nothing orders the data before its records. If the power goes before the flush returns, the
//! batch may be on the device without some of its data; so recovery compares the dirty data of the
//! log's last batch with the checksums in its records, and takes all of it or nothing, as it does
//! with a batch of which a block is missing ([`crate::tail`]). All older batches were flushed
//! before the last was written. When nothing more is committed for a while, a *marker*, an empty
//! batch that is not flushed, says the same of the last one: from then on data that does not match
//! is damage, and not a commit that was cut short.

use crate::cache::Cache;
use crate::format::UNIT;
use crate::format::log::{Batch, Item};
use crate::format::superblock::STATE_UNTRUSTED;
use crate::regions::{Intent, RegionKey, runs};
use crate::slots::Masks;
use crate::state::State;
use crate::stats::Count;
use crate::{Error, Result};
use std::sync::{MutexGuard, PoisonError};

/// How a commit went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// All that was pending is durable.
    Done,
    /// The log is too full: a checkpoint is needed first.
    NoRoom,
}

/// What is left to do when a batch is durable.
struct Gathered {
    batch: Batch,
    /// Slots and what stays held of them.
    holds: Vec<(u32, u16)>,
    intents: Vec<RegionKey>,
    /// It has records of dirty data.
    dirty: bool,
}

/// How long after the last commit it is marked as complete, in milliseconds.
const MARK_AFTER_MS: u64 = 100;

impl Cache {
    /// Makes everything that is pending durable.
    pub(crate) fn commit(&self) -> Result<()> {
        if !self.options.persistence {
            return Ok(());
        }
        loop {
            let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
            if self.commit_locked(&committing, false)? == Committed::Done {
                return Ok(());
            }
            drop(committing);
            // Whether the log is long or the batch: only a checkpoint makes room.
            self.checkpoint_always()?;
        }
    }

    /// As [`commit`](Self::commit), by who holds the lock of committers. A quarter of the log is
    /// left to checkpoints, which set `reserve`.
    pub(crate) fn commit_locked(
        &self,
        _committing: &MutexGuard<'_, ()>,
        reserve: bool,
    ) -> Result<Committed> {
        let mut st = self.lock();
        st.check_usable_or_closing()?;
        st.gathering = true;
        while st.in_place > 0 {
            st = self.wait(st);
        }
        let gathered = self.gather(&mut st, reserve);
        st.gathering = false;
        st.commit_running = gathered.as_ref().is_some_and(|g| !g.batch.is_empty());
        let log = st.log;
        let (life, tag) = (st.sb.life, st.sb.tag());
        st.last_commit_ms = st.now_ms;
        drop(st);
        self.notify();
        let Some(mut gathered) = gathered else { return Ok(Committed::NoRoom) };
        if gathered.batch.is_empty() {
            return Ok(Committed::Done);
        }
        let bytes = gathered.batch.seal(log.next, log.durable, life, tag);
        let written = self.write_log(log.next, bytes).and_then(|()| self.flush_cache());
        if let Err(error) = written {
            return Err(self.fail(error));
        }
        self.counters.commits.add(1);
        let mut st = self.lock();
        st.log.next += gathered.batch.len_blocks();
        st.log.durable = st.log.next;
        st.log.unmarked = gathered.dirty;
        st.commit_running = false;
        for (slot, held) in gathered.holds {
            let masks = st.slots.masks(slot);
            st.set_masks(slot, Masks { held, ..masks });
        }
        self.counters.intents_set.add(gathered.intents.len() as u64);
        st.regions.advance(&gathered.intents, Intent::Committing, Intent::Durable);
        st.removed_committing.clear();
        st.sweep_limbo();
        drop(st);
        self.notify();
        Ok(Committed::Done)
    }

    /// Writes blocks of the log, the first of which has this number.
    fn write_log(&self, number: u64, bytes: &[u8]) -> Result<()> {
        let (offset, blocks) = {
            let st = self.lock();
            (st.sb.log_offset, st.sb.log_blocks)
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

    /// Says in the log, some time after the last commit, that it was complete.
    pub(crate) fn mark_log(&self) -> Result<()> {
        let _committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, life, tag) = {
            let st = self.lock();
            let due = st.log.unmarked && st.now_ms >= st.last_commit_ms + MARK_AFTER_MS;
            let room = st.log.next - st.log.tail + 1 + st.sb.log_blocks / 4 <= st.sb.log_blocks;
            if !due || !room || st.failed.is_some() {
                return Ok(());
            }
            (st.log, st.sb.life, st.sb.tag())
        };
        let mut marker = Batch::marker();
        let bytes = marker.seal(log.next, log.durable, life, tag);
        self.write_log(log.next, bytes).map_err(|error| self.fail(error))?;
        let mut st = self.lock();
        st.log.next += 1;
        st.log.unmarked = false;
        Ok(())
    }

    /// Puts the batch together, and makes the state what it will be when the batch is durable.
    /// `None`, and nothing changed: the log has no room for it.
    fn gather(&self, st: &mut State, reserve: bool) -> Option<Gathered> {
        let mut batch = Batch::new(st.sb.subs());
        let mut intents = std::mem::take(&mut st.regions.pending);
        intents.sort_unstable();
        for run in runs(&intents) {
            batch.push(&Item::IntentSet(run));
        }
        for slot in &st.pending {
            batch.push(&Item::Record(st.slots.record(*slot)));
        }
        let clears = self.clearable(st);
        for run in runs(&clears) {
            batch.push(&Item::IntentClear(run));
        }
        let used = st.log.next - st.log.tail;
        let kept = if reserve { 0 } else { st.sb.log_blocks / 4 };
        if used + batch.len_blocks() + kept > st.sb.log_blocks {
            st.regions.pending = intents;
            return None;
        }
        let mut gathered = Gathered { batch, holds: Vec::new(), intents, dirty: false };
        for slot in std::mem::take(&mut st.pending) {
            st.slots.set_touched(slot, false);
            let masks = st.slots.masks(slot);
            if masks.dirty | masks.held != 0 {
                gathered.dirty |= masks.dirty != 0;
                gathered.holds.push((slot, masks.dirty));
                st.set_masks(slot, Masks { held: masks.held | masks.dirty, ..masks });
            }
        }
        st.must_commit = false;
        st.regions.advance(&gathered.intents, Intent::Pending, Intent::Committing);
        self.counters.intents_cleared.add(clears.len() as u64);
        st.regions.clear(&clears);
        let removed = std::mem::take(&mut st.removed);
        st.removed_committing.extend(removed);
        Some(gathered)
    }

    /// The regions where cache and origin agree once all that is pending is recorded.
    fn clearable(&self, st: &State) -> Vec<RegionKey> {
        if st.loading.is_some() || st.unlogged_drops > 0 || st.regions.durable == 0 {
            return Vec::new();
        }
        let idle_ms = if st.closed { 0 } else { self.options.intent_idle_ms };
        st.regions.durable_if(|key, region| {
            let flushed = self.flushed_epoch(key.origin());
            region.writers == 0
                && !region.doubtful
                && flushed.is_some_and(|flushed| region.written <= flushed)
                && (idle_ms == 0 || region.written_ms + idle_ms <= st.now_ms)
        })
    }

    /// The cache device has failed: nothing is written to it any more. If nothing is nowhere else,
    /// origins will be changed without intents from now on, and the superblock is to say so. If
    /// that cannot be written either, all hangs on the device: one that refuses writes cannot be
    /// opened again, and one that takes them again is seen only by the checks of
    /// [`attach`](Self::attach).
    pub(crate) fn fail(&self, error: Error) -> Error {
        let mut st = self.lock();
        let first = st.failed.is_none();
        if first {
            tracing::error!(%error, dirty_bytes = st.dirty_bytes(), "the cache device has failed");
            st.failed = Some(error.to_string());
        }
        st.commit_running = false;
        drop(st);
        if first {
            self.mark_untrusted();
        }
        self.notify();
        error
    }

    /// Says in the superblock, if that is still possible, that origins are changed without
    /// intents. It is tried again before each such change: a device may refuse writes for a while
    /// only.
    pub(crate) fn mark_untrusted(&self) {
        let sb = {
            let mut st = self.lock();
            if st.marked_untrusted || st.dirty_subs > 0 || st.held_slots > 0 {
                return;
            }
            st.sb.sequence += 1;
            st.sb.state |= STATE_UNTRUSTED;
            st.sb.clone()
        };
        let marked =
            self.write_cache(&sb.encode(), sb.copy_offset()).and_then(|()| self.flush_cache());
        match marked {
            Ok(()) => self.lock().marked_untrusted = true,
            Err(error) => tracing::warn!(%error, "the cache cannot be marked as out of date"),
        }
    }

    /// Commits if there is much to commit, so that the log's room is never exceeded.
    pub(crate) fn commit_if_much(&self) -> Result<()> {
        let much = {
            let st = self.lock();
            let records = st.pending.len() as u64;
            let each = crate::format::record::padded_bytes(st.sb.subs()) as u64 + 1;
            records >= u64::from(self.options.commit_records)
                || records * each > st.sb.log_blocks * UNIT as u64 / 8
        };
        if much { self.commit() } else { Ok(()) }
    }
}

impl State {
    /// A closed cache may still commit: closing does.
    fn check_usable_or_closing(&self) -> Result<()> {
        match &self.failed {
            Some(why) => Err(Error::Failed { dirty_bytes: self.dirty_bytes(), why: why.clone() }),
            None => Ok(()),
        }
    }
}
