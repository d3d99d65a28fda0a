//! Loading the clean part of a checkpoint ([`crate::loading`]), page by page.

use crate::cache::Cache;
use crate::format::UNIT;
use crate::format::checkpoint::{PageKind, entries, parse_page};
use crate::format::record::Record;
use crate::policy::SlotNr;
use crate::regions::Intent;
use crate::state::CacheState;
use crate::stats::Count;
use crate::{Error, Result};

/// Number of pages of a checkpoint that are read at once.
const PAGES_AT_ONCE: u64 = 64;

impl CacheState {
    /// Drops the sub-blocks of a slot that may be older than the origin.
    pub(crate) fn drop_unbelieved(&mut self, slot: u32, untrusted: bool) {
        let Some(key) = self.residency.key(slot) else { return };
        let masks = self.residency.masks(slot);
        let clean = masks.valid & !masks.dirty;
        let known = self.origins.of(key.origin()).known;
        let drop = if known {
            let believed = !untrusted && self.intent(key) == Intent::None;
            if believed { 0 } else { clean }
        } else {
            // Before a number is given to another origin or to none, no durable record refers to
            // it.
            if self.log.sb.origins.get(usize::from(key.origin())).is_none_or(Option::is_none) {
                self.dirty.count_orphans(masks.dirty.count_ones());
            }
            masks.valid
        };
        if drop != 0 {
            self.counters.dropped_at_open.add(u64::from(drop == masks.valid));
            if masks.held == 0 {
                self.drop_unlogged(slot, drop);
            } else {
                self.invalidate(slot, drop);
            }
        }
    }

    /// Applies the entries of one page.
    pub(crate) fn take_entries(&mut self, records: impl Iterator<Item = Option<Record>>) {
        for record in records {
            let Some(record) = record else { continue };
            // A slot that the map does not mark as used has a record in the log.
            let there = record.slot < self.residency.len() && !self.residency.is_free(record.slot);
            let Some(loading) = &mut self.residency.loading else { return };
            if !there || !loading.known.set(record.slot) {
                continue;
            }
            let untrusted = loading.untrusted;
            let superseded = record.key.is_none_or(|key| loading.is_superseded(key));
            match record.key {
                Some(key) if !superseded && self.residency.lookup(key).is_none() => {
                    self.recover(&record, key);
                    self.residency.policy.restore(SlotNr(record.slot), record.policy, key);
                    self.drop_unbelieved(record.slot, untrusted);
                }
                // Superseded, as in any other recovery: no log record is needed.
                _ => {
                    self.log.count_unlogged_drop();
                    self.residency.release(record.slot);
                }
            }
        }
    }

    /// Frees the slots that are used according to the checkpoint's map, and have no entry.
    fn end_loading(&mut self) {
        let Some(loading) = self.residency.loading.take() else { return };
        for slot in 0..self.residency.len() {
            let lost = !loading.known.get(slot) && !self.residency.is_free(slot);
            if lost && self.residency.key(slot).is_none() {
                self.log.count_unlogged_drop();
                self.residency.release(slot);
            }
        }
    }
}

impl Cache {
    /// Loads some more of the checkpoint. Returns `Ok(false)` once all of it is loaded.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the part with dirty blocks, [`Error::CacheDevice`].
    pub(crate) fn load_some(&self) -> Result<bool> {
        let _one = self.loader.lock();
        let (first, count, offset, header, subs, dirty_pages) = {
            let st = self.lock();
            let Some(loading) = &st.residency.loading else { return Ok(false) };
            let first = loading.next_page;
            let count = (loading.pages - first).min(PAGES_AT_ONCE);
            (
                first,
                count,
                loading.page_offset(first),
                loading.header,
                st.log.sb.subs(),
                loading.dirty_pages(),
            )
        };
        let mut pages = vec![0; (count as usize) * UNIT];
        let mut readable = true;
        if let Err(error) = self.read_cache(&mut pages, offset) {
            if first < dirty_pages {
                return Err(error);
            }
            readable = false;
        }
        for (index, bytes) in (first..).zip(pages.chunks_exact(UNIT)) {
            let page = readable
                .then(|| parse_page(bytes, PageKind::Entries, header.sequence, index as u32))
                .flatten();
            let Some((count, payload)) = page else {
                let at = offset + (index - first) * UNIT as u64;
                if index < dirty_pages {
                    return Err(Error::damaged("checkpoint of dirty blocks", at, "wrong checksum"));
                }
                tracing::warn!(
                    at,
                    "a page of the checkpoint is damaged: its clean blocks are forgotten"
                );
                continue;
            };
            // The lock is taken for each page anew, so that requests can run in between.
            self.lock().take_entries(entries(payload, count, subs));
        }
        let mut st = self.lock();
        if let Some(loading) = &mut st.residency.loading {
            loading.next_page = first + count;
            if loading.next_page < loading.pages {
                return Ok(true);
            }
        }
        st.end_loading();
        drop(st);
        self.notify();
        Ok(false)
    }

    /// Loads the rest of the checkpoint.
    pub(crate) fn load_all(&self) -> Result<()> {
        while self.load_some()? {}
        Ok(())
    }
}
