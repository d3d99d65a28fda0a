//! Taking a checkpoint while the cache serves requests.
//!
//! 1. Under the commit lock: all pending changes are gathered in a batch, and at the same moment a
//!    snapshot of the slots is begun ([`crate::slots`]). The batch is committed; recovery will
//!    begin to read the log at its new end. The intents are noted.
//! 2. The used slots are collected in the policy's order, and their states of that moment are
//!    written page by page to the older checkpoint's area. Changes meanwhile are in the log after
//!    the starting point.
//! 3. The device is flushed, and the header is written and flushed. *The header makes the
//!    checkpoint valid.*
//! 4. The log's tail moves to the starting point.
//!
//! # The log can always be emptied
//!
//! A checkpoint needs no room in the log. If the log has none for the batch of step 1, or the batch
//! is longer than the whole log, the batch is not written: it is in the snapshot, and the header
//! makes it valid instead. Then nothing else is committed before that, and the log continues after
//! some skipped numbers: if the header were lost later, the log that begins at the older checkpoint
//! would end there, and recovery would see that it is shorter than the part that was durable. So
//! the cache can go on with any size of the log, any number of changes between two commits and no
//! reserve; a short log only costs checkpoints.
//!
//! However large the cache is, the lock of the state is held for no more than [`SLOTS_AT_ONCE`]
//! slots at a time, which is some tenths of a millisecond, and other threads get it in between.

use crate::Result;
use crate::bitmap::Bitmap;
use crate::cache::Cache;
use crate::format::UNIT;
use crate::format::checkpoint::{
    AreaLayout, BITS_PER_PAGE, Header, PageKind, RUNS_PER_PAGE, encode_page, push_entry, push_run,
};
use crate::format::log::{Batch, RegionRun};
use crate::lock::Guard;
use crate::policy::Saving;
use crate::regions::{Intent, cover, runs};
use crate::slots::SlotTable;
use crate::state::CacheState;
use crate::stats::Count;
use std::time::Duration;

/// Number of pages of entries that are written at once.
const PAGES_AT_ONCE: usize = 64;

/// Number of log blocks that are skipped for a batch that is in a checkpoint instead: the first may
/// have a marker, the second was never written.
const SKIPPED: u64 = 2;

/// Number of slots that are visited under one lock.
pub(crate) const SLOTS_AT_ONCE: u32 = 2048;

/// The layout of a cache after a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewLayout {
    pub(crate) slots: u32,
    pub(crate) len_bytes: u64,
    pub(crate) checkpoints: [u64; 2],
    pub(crate) checkpoint_blocks: u64,
}

/// A checkpoint's start in the log, and its area on the device.
struct Start {
    intents: Vec<RegionRun>,
    log_start: u64,
    sequence: u64,
    unlogged_drops: u64,
    area: u64,
    pages: AreaLayout,
    subs: usize,
    tag: u64,
    life: u64,
    slots: u32,
}

/// The used slots, each with the policy's state.
struct Order {
    dirty: Vec<(u32, u8)>,
    clean: Vec<(u32, u8)>,
    map: Bitmap,
}

impl Order {
    /// Adds a slot, if it was used at the moment of the snapshot and is not in the order yet.
    fn add(&mut self, slots: &SlotTable, slot: u32, policy: u8) {
        if slot < slots.len()
            && let Some(dirty) = slots.snapshot_dirty(slot)
            && self.map.set(slot)
        {
            if dirty { &mut self.dirty } else { &mut self.clean }.push((slot, policy));
        }
    }
}

impl Cache {
    /// Writes a checkpoint, if the log has grown enough since the last one.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let one = self.checkpointing.lock();
        {
            let st = self.lock();
            if st.log.at.used_blocks() < st.log.sb.log_blocks / 4 {
                return Ok(());
            }
        }
        self.checkpoint_locked(&one, None)
    }

    /// Writes a checkpoint, however short the log is.
    ///
    /// # Errors
    /// Those of the cache device.
    pub fn checkpoint_always(&self) -> Result<()> {
        let one = self.checkpointing.lock();
        self.checkpoint_locked(&one, None)
    }

    /// Writes a checkpoint to the area in the superblock, or, for a resize, in `layout`; then the
    /// superblock is changed as well, and *its write makes the new layout valid.* All changes that
    /// were pending at the start are durable afterwards.
    pub(crate) fn checkpoint_locked(
        &self,
        _one: &Guard<'_, ()>,
        layout: Option<&NewLayout>,
    ) -> Result<()> {
        self.load_all()?;
        let committing = self.committing.lock();
        let (start, batch, has_room) = {
            let mut st = self.quiet()?;
            let next = self.next_batch(&st);
            let has_room = st.log.has_room(next.len_blocks());
            let batch = self.gather(&mut st, next);
            let skipped = if has_room { batch.len_blocks() } else { SKIPPED };
            let start = start(&st, layout, skipped);
            st.residency.begin_snapshot();
            (start, batch, has_room)
        };
        // Without room in the log, no other commit may happen before the header is valid.
        let (committing, unlogged) = if has_room {
            let logged = self.write_batch(batch);
            logged.inspect_err(|_| self.lock().residency.end_snapshot())?;
            drop(committing);
            (None, None)
        } else {
            (Some(committing), Some(batch))
        };
        let written = self.write_checkpoint(&start);
        self.lock().residency.end_snapshot();
        written.map_err(|error| self.fail(error))?;

        let committing = committing.unwrap_or_else(|| self.committing.lock());
        if let Some(layout) = layout {
            self.write_superblock_locked(&committing, |sb| {
                sb.slots = layout.slots;
                sb.len_bytes = layout.len_bytes;
                sb.checkpoints = layout.checkpoints;
                sb.checkpoint_blocks = layout.checkpoint_blocks;
            })?;
        }
        if unlogged.is_some() {
            self.skip_in_log(&start)?;
        }
        let mut st = self.lock();
        if let Some(batch) = unlogged {
            st.log.at.next = start.log_start;
            st.log.at.durable = start.log_start;
            st.batch_is_durable(&batch);
        }
        st.log.at.tail = start.log_start;
        st.log.at.checkpoint = start.sequence;
        // Later drops are in no snapshot.
        st.log.forget_unlogged_drops(start.unlogged_drops);
        drop(st);
        self.counters.checkpoints.add(1);
        drop(committing);
        self.notify();
        Ok(())
    }

    /// Continues the log after the skipped numbers of a batch that is in the checkpoint instead. A
    /// marker there records that all blocks before it were durable.
    fn skip_in_log(&self, start: &Start) -> Result<()> {
        let mut marker = Batch::marker();
        let bytes = marker.seal(start.log_start, start.log_start, start.life, start.tag);
        let marked = self.write_log(start.log_start, bytes).and_then(|()| self.flush_cache());
        marked.map_err(|error| self.fail(error))
    }

    /// Writes the pages and the header.
    fn write_checkpoint(&self, start: &Start) -> Result<()> {
        let order = self.used_slots();
        self.write_pages(start, &order)?;
        let log_durable = self.lock().log.at.durable;
        self.flush_cache()?;
        let header = Header {
            sequence: start.sequence,
            life: start.life,
            log_start: start.log_start,
            slots: start.slots,
            intent_pages: start.intents.len().div_ceil(RUNS_PER_PAGE) as u32,
            entries: (order.dirty.len() + order.clean.len()) as u64,
            dirty: order.dirty.len() as u64,
            log_durable,
        };
        self.write_cache(&header.encode(start.tag), start.area)?;
        self.flush_cache()
    }

    /// Collects the used slots in the policy's order.
    fn used_slots(&self) -> Order {
        let slots = self.lock().residency.len();
        let mut order = Order { dirty: Vec::new(), clean: Vec::new(), map: Bitmap::new(slots) };
        let mut saving = Saving::new(slots);
        loop {
            let mut st = self.lock();
            let add = |slots: &SlotTable, slot, state| order.add(slots, slot, state);
            if !st.residency.save_some(&mut saving, SLOTS_AT_ONCE as usize, add) {
                break;
            }
            drop(st);
            self.give_way();
        }
        // Adds slots that were moved meanwhile and so not visited.
        for first in (0..slots).step_by(SLOTS_AT_ONCE as usize) {
            if first > 0 {
                self.give_way();
            }
            let st = self.lock();
            for slot in first..first.saturating_add(SLOTS_AT_ONCE).min(slots) {
                order.add(st.residency.slots(), slot, 0);
            }
        }
        order
    }

    /// Sleeps briefly so that other threads get the state's lock: the lock is not fair, and a
    /// thread that takes it again at once gets it.
    pub(crate) fn give_way(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn write_pages(&self, start: &Start, order: &Order) -> Result<()> {
        let (area, layout, subs) = (start.area, &start.pages, start.subs);
        let sequence = start.sequence;
        let at = |block: u64| area + block * UNIT as u64;
        let mut payload = Vec::with_capacity(UNIT);
        let mut out = Vec::new();
        for (index, some) in start.intents.chunks(RUNS_PER_PAGE).enumerate() {
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
        let mut bytes = order.map.bytes().peekable();
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

        let slots = order.dirty.iter().chain(&order.clean);
        let mut slots = slots.copied().peekable();
        let mut index = 0;
        while slots.peek().is_some() {
            out.clear();
            let first = index;
            while slots.peek().is_some() && index - first < PAGES_AT_ONCE as u64 {
                payload.clear();
                let mut count = 0;
                let mut st = self.lock();
                for (slot, policy) in slots.by_ref().take(layout.entries_per_page) {
                    let mut record = st.residency.take_snapshot(slot);
                    record.policy = policy;
                    push_entry(&record, subs, &mut payload);
                    count += 1;
                }
                drop(st);
                encode_page(PageKind::Entries, sequence, index as u32, count, &payload, &mut out);
                index += 1;
            }
            self.write_cache(&out, at(layout.entries_at() + first))?;
        }
        Ok(())
    }
}

/// Notes the starting point of a checkpoint, `skipped` blocks after the log's present end.
fn start(st: &CacheState, layout: Option<&NewLayout>, skipped: u64) -> Start {
    let slots = layout.map_or(st.log.sb.slots, |l| l.slots);
    let areas = layout.map_or(st.log.sb.checkpoints, |l| l.checkpoints);
    let sequence = st.log.at.checkpoint + 1;
    // The intents that the batch sets are durable when the header is.
    let intents = st
        .dirty
        .regions
        .with_intent(|intent| matches!(intent, Intent::Durable | Intent::Committing));
    let pages = AreaLayout::new(slots, st.log.sb.subs());
    Start {
        intents: cover(runs(&intents), pages.intent_pages as usize * RUNS_PER_PAGE),
        log_start: st.log.at.next + skipped,
        sequence,
        unlogged_drops: st.log.unlogged_drops(),
        area: areas[(sequence & 1) as usize],
        pages,
        subs: st.log.sb.subs(),
        tag: st.log.sb.tag(),
        life: st.log.sb.life,
        slots,
    }
}
