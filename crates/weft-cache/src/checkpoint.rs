//! Taking a checkpoint, while the cache works.
//!
//! 1. Everything pending is committed; where the log then ends is where recovery will begin to
//!    read it. The slots in the policy's order and the intents are noted.
//! 2. Page by page, the slots' states *as of then* are written to the older one's area. What
//!    changes meanwhile is in the log behind the starting point, so it does not matter which state
//!    of such a slot a page has caught.
//! 3. Everything pending is committed again, so that whatever a page has caught is true, and its
//!    data durable. The device is flushed, and the header is written and flushed. *The header
//!    makes the checkpoint count.*
//! 4. The log's tail moves to the starting point.

use crate::bitmap::Bitmap;
use crate::cache::Cache;
use crate::commit::Committed;
use crate::format::UNIT;
use crate::format::checkpoint::{
    AreaLayout, BITS_PER_PAGE, Header, PageKind, RUNS_PER_PAGE, encode_page, push_entry, push_run,
};
use crate::format::log::RegionRun;
use crate::policy::BlockKey;
use crate::regions::{Intent, cover, runs};
use crate::state::State;
use crate::stats::Count;
use crate::{Error, Result};
use std::sync::PoisonError;

/// Pages of entries that are written at once.
const PAGES_AT_ONCE: usize = 64;

/// How a cache is laid out after a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewLayout {
    pub(crate) slots: u32,
    pub(crate) len_bytes: u64,
    pub(crate) checkpoints: [u64; 2],
    pub(crate) checkpoint_blocks: u64,
}

/// What a checkpoint says, as of its starting point.
struct Snapshot {
    order: Vec<u32>,
    policy: Vec<u8>,
    dirty: u64,
    map: Bitmap,
    intents: Vec<RegionRun>,
    log_start: u64,
    sequence: u64,
}

impl Cache {
    /// Writes a checkpoint, if the log has grown enough since the last one to be worth it.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let st = self.lock();
            if st.log.next - st.log.tail < st.sb.log_blocks / 4 {
                return Ok(());
            }
        }
        self.checkpoint_now()
    }

    /// Writes a checkpoint, however short the log is.
    ///
    /// # Errors
    /// Those of the cache device.
    pub fn checkpoint_always(&self) -> Result<()> {
        let _one = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        self.checkpoint_now()
    }

    fn checkpoint_now(&self) -> Result<()> {
        self.checkpoint_into(None)
    }

    /// Writes a checkpoint where the superblock says, or, for a resize, where `layout` says; then
    /// the superblock is changed as well, and *its write is what makes the new layout count.* The
    /// caller holds the lock of checkpoints.
    pub(crate) fn checkpoint_into(&self, layout: Option<&NewLayout>) -> Result<()> {
        self.load_all()?;
        let (area, pages, subs, tag, life, slots);
        let snapshot = {
            let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
            self.commit_reserved(&committing)?;
            let st = self.lock();
            let snapshot = snapshot(&st, layout.map_or(st.sb.slots, |l| l.slots));
            let areas = layout.map_or(st.sb.checkpoints, |l| l.checkpoints);
            area = areas[(snapshot.sequence & 1) as usize];
            (subs, tag, life) = (st.sb.subs(), st.sb.tag(), st.sb.life);
            slots = layout.map_or(st.sb.slots, |l| l.slots);
            pages = AreaLayout::new(slots, subs);
            snapshot
        };
        let mut header = Header {
            sequence: snapshot.sequence,
            life,
            log_start: snapshot.log_start,
            slots,
            intent_pages: snapshot.intents.len().div_ceil(RUNS_PER_PAGE) as u32,
            entries: snapshot.order.len() as u64,
            dirty: snapshot.dirty,
            log_durable: 0,
        };
        let written = self.write_pages(&snapshot, area, &pages, subs);
        written.map_err(|error| self.fail(error))?;

        let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        self.commit_reserved(&committing)?;
        header.log_durable = self.lock().log.durable;
        let finished = self
            .flush_cache()
            .and_then(|()| self.write_cache(&header.encode(tag), area))
            .and_then(|()| self.flush_cache());
        finished.map_err(|error| self.fail(error))?;
        if let Some(layout) = layout {
            self.write_superblock_locked(&committing, |sb| {
                sb.slots = layout.slots;
                sb.len_bytes = layout.len_bytes;
                sb.checkpoints = layout.checkpoints;
                sb.checkpoint_blocks = layout.checkpoint_blocks;
            })?;
        }
        let mut st = self.lock();
        st.log.tail = snapshot.log_start;
        st.log.checkpoint = snapshot.sequence;
        // All was loaded before, so nothing was dropped since.
        st.unlogged_drops = false;
        drop(st);
        self.counters.checkpoints.add(1);
        self.notify();
        Ok(())
    }

    fn commit_reserved(&self, committing: &std::sync::MutexGuard<'_, ()>) -> Result<()> {
        match self.commit_locked(committing, true)? {
            Committed::Done => Ok(()),
            // Writers are held back long before (`commit_if_much`).
            Committed::NoRoom => {
                let why = "its log is full and cannot be emptied".to_owned();
                Err(self.fail(Error::Failed { dirty_bytes: 0, why }))
            }
        }
    }

    fn write_pages(
        &self,
        snapshot: &Snapshot,
        area: u64,
        layout: &AreaLayout,
        subs: usize,
    ) -> Result<()> {
        let sequence = snapshot.sequence;
        let at = |block: u64| area + block * UNIT as u64;
        let mut payload = Vec::with_capacity(UNIT);
        let mut out = Vec::new();
        for (index, some) in snapshot.intents.chunks(RUNS_PER_PAGE).enumerate() {
            payload.clear();
            some.iter().for_each(|run| push_run(run, &mut payload));
            encode_page(
                PageKind::Intents,
                sequence,
                index as u32,
                some.len() as u32,
                &payload,
                &mut out,
            );
        }
        self.write_cache(&out, at(1))?;

        out.clear();
        let mut bytes = snapshot.map.bytes().peekable();
        for index in 0..layout.map_pages {
            payload.clear();
            payload.extend(bytes.by_ref().take(BITS_PER_PAGE / 8));
            encode_page(
                PageKind::Map,
                sequence,
                index as u32,
                payload.len() as u32,
                &payload,
                &mut out,
            );
        }
        self.write_cache(&out, at(layout.map_at()))?;

        let per_write = layout.entries_per_page * PAGES_AT_ONCE;
        let order = snapshot.order.chunks(per_write).zip(snapshot.policy.chunks(per_write));
        for (chunk, (slots, states)) in order.enumerate() {
            out.clear();
            let first = chunk * PAGES_AT_ONCE;
            let st = self.lock();
            let pages =
                slots.chunks(layout.entries_per_page).zip(states.chunks(layout.entries_per_page));
            for (index, (slots, states)) in (first..).zip(pages) {
                payload.clear();
                for (slot, state) in slots.iter().zip(states) {
                    let mut record = st.slots.record(*slot);
                    record.policy = *state;
                    push_entry(&record, subs, &mut payload);
                }
                let count = slots.len() as u32;
                encode_page(PageKind::Entries, sequence, index as u32, count, &payload, &mut out);
            }
            drop(st);
            self.write_cache(&out, at(layout.entries_at() + first as u64))?;
        }
        Ok(())
    }
}

fn snapshot(st: &State, slots_then: u32) -> Snapshot {
    let slots = &st.slots;
    let mut map = Bitmap::new(slots.len());
    let used = st.index.len() as usize;
    let (mut order, mut policy) = (Vec::with_capacity(used), Vec::with_capacity(used));
    let (mut clean, mut clean_policy) = (Vec::with_capacity(used), Vec::with_capacity(used));
    let key_of = |slot: crate::policy::SlotNr| slots.key(slot.0).unwrap_or(BlockKey(u64::MAX));
    st.policy.save(&key_of, &mut |slot, state| {
        if slots.key(slot.0).is_some() && map.set(slot.0) {
            let dirty = slots.masks(slot.0).dirty != 0;
            let (into, states) =
                if dirty { (&mut order, &mut policy) } else { (&mut clean, &mut clean_policy) };
            into.push(slot.0);
            states.push(state);
        }
    });
    debug_assert_eq!(map.count(), st.index.len(), "the policy holds each used slot");
    let dirty = order.len() as u64;
    order.append(&mut clean);
    policy.append(&mut clean_policy);
    let durable = st.regions.durable_if(|_, region| region.intent == Intent::Durable);
    let pages = AreaLayout::new(slots_then, st.sb.subs()).intent_pages as usize;
    Snapshot {
        order,
        policy,
        dirty,
        map,
        intents: cover(runs(&durable), pages * RUNS_PER_PAGE),
        log_start: st.log.next,
        sequence: st.log.checkpoint + 1,
    }
}
