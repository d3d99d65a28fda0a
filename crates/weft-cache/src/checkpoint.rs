//! Taking a checkpoint, while the cache works.
//!
//! 1. Everything pending is committed; where the log then ends is where recovery will begin to
//!    read it. The intents are noted.
//! 2. The used slots are collected in the policy's order, and their states are written page by page
//!    to the older one's area. What changes meanwhile is in the log behind the starting point, so
//!    it does not matter which state of such a slot is caught, nor whether the slot is; every other
//!    is there, and among the dirty ones if it is dirty.
//! 3. Everything pending is committed again, so that whatever a page has caught is true, and its
//!    data durable. The device is flushed, and the header is written and flushed. *The header
//!    makes the checkpoint count.*
//! 4. The log's tail moves to the starting point.
//!
//! However large the cache is, the lock of the state is held for no more than [`SLOTS_AT_ONCE`]
//! slots at a time, which is some tenths of a millisecond, and others get it in between.

use crate::bitmap::Bitmap;
use crate::cache::Cache;
use crate::commit::Committed;
use crate::format::UNIT;
use crate::format::checkpoint::{
    AreaLayout, BITS_PER_PAGE, Header, PageKind, RUNS_PER_PAGE, encode_page, push_entry, push_run,
};
use crate::format::log::RegionRun;
use crate::policy::{BlockKey, Saving, SlotNr};
use crate::regions::{Intent, cover, runs};
use crate::slots::SlotTable;
use crate::state::State;
use crate::stats::Count;
use crate::{Error, Result};
use std::sync::PoisonError;
use std::time::Duration;

/// Pages of entries that are written at once.
const PAGES_AT_ONCE: usize = 64;

/// Slots that are looked at under one lock.
pub(crate) const SLOTS_AT_ONCE: u32 = 2048;

/// How a cache is laid out after a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewLayout {
    pub(crate) slots: u32,
    pub(crate) len_bytes: u64,
    pub(crate) checkpoints: [u64; 2],
    pub(crate) checkpoint_blocks: u64,
}

/// Where a checkpoint begins.
struct Start {
    intents: Vec<RegionRun>,
    log_start: u64,
    sequence: u64,
    unlogged_drops: u64,
}

/// The used slots, each with the policy's state.
struct Order {
    dirty: Vec<(u32, u8)>,
    clean: Vec<(u32, u8)>,
    map: Bitmap,
}

impl Order {
    /// Adds a slot, if it is used and not there yet.
    fn add(&mut self, slots: &SlotTable, slot: u32, policy: u8) {
        if slot < slots.len() && slots.key(slot).is_some() && self.map.set(slot) {
            let dirty = slots.masks(slot).dirty != 0;
            if dirty { &mut self.dirty } else { &mut self.clean }.push((slot, policy));
        }
    }
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
        let start = {
            let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
            self.commit_reserved(&committing)?;
            let st = self.lock();
            slots = layout.map_or(st.sb.slots, |l| l.slots);
            let start = start(&st, slots);
            let areas = layout.map_or(st.sb.checkpoints, |l| l.checkpoints);
            area = areas[(start.sequence & 1) as usize];
            (subs, tag, life) = (st.sb.subs(), st.sb.tag(), st.sb.life);
            pages = AreaLayout::new(slots, subs);
            start
        };
        let order = self.used_slots();
        let mut header = Header {
            sequence: start.sequence,
            life,
            log_start: start.log_start,
            slots,
            intent_pages: start.intents.len().div_ceil(RUNS_PER_PAGE) as u32,
            entries: (order.dirty.len() + order.clean.len()) as u64,
            dirty: order.dirty.len() as u64,
            log_durable: 0,
        };
        let written = self.write_pages(&start, &order, area, &pages, subs);
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
        st.log.tail = start.log_start;
        st.log.checkpoint = start.sequence;
        // What was dropped since may have been caught before it was.
        st.unlogged_drops -= start.unlogged_drops;
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

    /// The used slots in the policy's order.
    fn used_slots(&self) -> Order {
        let slots = self.lock().slots.len();
        let mut order = Order { dirty: Vec::new(), clean: Vec::new(), map: Bitmap::new(slots) };
        let mut saving = Saving::new(slots);
        loop {
            let mut st = self.lock();
            let State { policy, slots, .. } = &mut *st;
            let key_of = |slot: SlotNr| slots.key(slot.0).unwrap_or(BlockKey(u64::MAX));
            let mut add = |slot: SlotNr, state| order.add(slots, slot.0, state);
            if !policy.save_some(&mut saving, SLOTS_AT_ONCE as usize, &key_of, &mut add) {
                break;
            }
            drop(st);
            self.give_way();
        }
        // What has moved meanwhile, and was not met.
        for first in (0..slots).step_by(SLOTS_AT_ONCE as usize) {
            if first > 0 {
                self.give_way();
            }
            let st = self.lock();
            for slot in first..first.saturating_add(SLOTS_AT_ONCE).min(slots) {
                order.add(&st.slots, slot, 0);
            }
        }
        order
    }

    /// Lets who waits for the state have it: the lock is not fair, and whoever takes it again at
    /// once gets it.
    pub(crate) fn give_way(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn write_pages(
        &self,
        start: &Start,
        order: &Order,
        area: u64,
        layout: &AreaLayout,
        subs: usize,
    ) -> Result<()> {
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
                let st = self.lock();
                for (slot, policy) in slots.by_ref().take(layout.entries_per_page) {
                    let mut record = st.slots.record(slot);
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

/// Notes where a checkpoint for so many slots begins.
fn start(st: &State, slots: u32) -> Start {
    let durable = st.regions.durable_if(|_, region| region.intent == Intent::Durable);
    let pages = AreaLayout::new(slots, st.sb.subs()).intent_pages as usize;
    Start {
        intents: cover(runs(&durable), pages * RUNS_PER_PAGE),
        log_start: st.log.next,
        sequence: st.log.checkpoint + 1,
        unlogged_drops: st.unlogged_drops,
    }
}
