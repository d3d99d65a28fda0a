//! Recovery of the last batch of the log.
//!
//! A commit flushes once, after its batch is written; so whether the flush of the last batch has
//! returned is unknown, unless something written later records it. If it has not returned, the
//! batch may be complete, and its data not; then it was never acknowledged. If it has returned, and
//! dirty data was damaged since, that looks the same; the marker that each commit writes after its
//! batch ([`crate::commit`]) distinguishes the two, except for the moment between a flush and its
//! marker.
//!
//! So data that does not match is treated as the most likely case, a write that was in progress:
//! its block stays as it was before, which is still there, as held data is not overwritten. All
//! else of the batch is kept, since any part of an unacknowledged batch may be. The blocks that
//! were left out are reported, and the batch is rewritten without them: later writes could make
//! their data match.

use crate::SUB_BLOCK_BYTES;
use crate::finding::Finding;
use crate::format::UNIT;
use crate::format::log::{Batch, BlockHeader, Item};
use crate::format::record::Record;
use crate::format::superblock::STATE_UNTRUSTED;
use crate::log::Last;
use crate::policy::BlockKey;
use crate::state::CacheState;
use crate::{Error, Result};
use crc32c::crc32c;
use hashbrown::HashMap;
use std::ops::Range;
use weft_block::BlockDevice;

/// The result of recovering an incomplete last batch.
pub(crate) struct Cut {
    /// The part of the batch that is kept.
    pub(crate) kept: Batch,
    /// Blocks, each with its sub-blocks that stay as they were before.
    pub(crate) lost: Vec<(BlockKey, u16)>,
}

/// Applies the last batch of the log to `state`, which is as all batches before it have left it.
/// Returns `Some` if the batch may be incomplete, which is decided when the checkpoint's dirty
/// entries are loaded; the intents it sets are applied already.
///
/// # Errors
/// [`Error::Damaged`] if a block differs from its first reading, [`Error::CacheDevice`].
pub(crate) fn take(
    device: &dyn BlockDevice,
    state: &mut CacheState,
    batch: Range<u64>,
) -> Result<Option<Last>> {
    let items = read(device, state, batch)?;
    let whole = unmatched(device, state, &items).is_empty();
    let counts = |item: &&Item| whole || matches!(item, Item::IntentSet(_));
    items.iter().filter(counts).for_each(|item| state.apply(item));
    Ok((!whole).then_some(Last(items)))
}

impl Cut {
    /// Returns a finding for each block that the batch leaves out.
    pub(crate) fn findings(&self, state: &CacheState) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (key, mask) in &self.lost {
            for sub in (0..16).filter(|sub| mask >> sub & 1 != 0) {
                let (origin, offset) = state.place_of(*key, sub);
                let len_bytes = SUB_BLOCK_BYTES as u64;
                findings.push(Finding::LastCommit { origin, offset, len_bytes });
            }
        }
        findings
    }
}

impl Last {
    /// Applies the part of the batch that is kept, after the checkpoint's dirty entries were
    /// loaded.
    pub(crate) fn take(self, device: &dyn BlockDevice, state: &mut CacheState) -> Cut {
        let bad = unmatched(device, state, &self.0);
        let untrusted = state.log.sb.state & STATE_UNTRUSTED != 0;
        let mut kept = Batch::new(state.log.sb.subs());
        for item in &self.0 {
            let Some(item) = what_counts(state, item, &bad) else { continue };
            kept.push(&item);
            if let Item::Record(record) = &item {
                state.apply(&item);
                state.drop_unbelieved(record.slot, untrusted);
            }
        }
        let mut lost: Vec<(BlockKey, u16)> = bad.into_iter().collect();
        lost.sort_unstable_by_key(|(key, _)| key.0);
        Cut { kept, lost }
    }
}

/// Returns the blocks whose data does not match these items, each with the sub-blocks that differ.
fn unmatched(
    device: &dyn BlockDevice,
    state: &CacheState,
    items: &[Item],
) -> HashMap<BlockKey, u16> {
    let mut bad = HashMap::new();
    for item in items {
        if let Item::Record(record) = item
            && let Some(key) = record.key
        {
            let mask = differing(device, state, record);
            if mask != 0 {
                bad.insert(key, mask);
            }
        }
    }
    bad
}

fn read(device: &dyn BlockDevice, state: &CacheState, batch: Range<u64>) -> Result<Vec<Item>> {
    let (subs, tag) = (state.log.sb.subs(), state.log.sb.tag());
    let mut block = vec![0; UNIT];
    let mut items = Vec::new();
    for number in batch {
        let at = state.log.sb.log_offset + number % state.log.sb.log_blocks * UNIT as u64;
        device.read_at(&mut block, at).map_err(Error::CacheDevice)?;
        let header = BlockHeader::parse(&block, tag).filter(|header| header.number == number);
        let header = header.ok_or_else(|| Error::damaged("log", at, "it reads differently now"))?;
        for item in header.items(&block, subs) {
            let item = item.ok_or_else(|| Error::damaged("log", at, "an item makes no sense"))?;
            items.push(item);
        }
    }
    Ok(items)
}

/// Returns the part of an item that is kept if the sub-blocks `bad` stay as they were before the
/// batch.
fn what_counts(state: &CacheState, item: &Item, bad: &HashMap<BlockKey, u16>) -> Option<Item> {
    let record = match item {
        Item::Record(record) => record,
        Item::IntentSet(_) => return Some(*item),
        // Some of the data that it depends on is missing.
        Item::IntentClear(_) => return None,
    };
    if record.slot >= state.residency.len() {
        return None;
    }
    let here = state.residency.key(record.slot);
    let dirty_here = state.residency.masks(record.slot).dirty;
    if let Some(mask) = record.key.and_then(|key| bad.get(&key)) {
        // If the former version exists only in the cache, the whole block stays.
        let former = record.key.and_then(|key| state.residency.lookup(key));
        if former.is_some_and(|slot| state.residency.masks(slot).dirty & mask != 0) {
            return None;
        }
        let mut less = *record;
        less.valid &= !mask;
        less.dirty &= !mask;
        less.zero &= !mask;
        (0..16).filter(|sub| mask >> sub & 1 != 0).for_each(|sub| less.crcs[sub] = 0);
        if less.valid == 0 {
            // Nothing of it is in the cache: the origin has the former version.
            less = Record::free(record.slot);
        }
        return Some(Item::Record(less));
    }
    // A block that moved leaves its old slot. It stays if the record of its new slot is not kept.
    let stays = here.is_some_and(|key| record.key != Some(key) && bad.contains_key(&key));
    if stays && dirty_here != 0 { None } else { Some(*item) }
}

/// Returns the dirty sub-blocks of a slot that do not match its record, and were not durable
/// before.
fn differing(device: &dyn BlockDevice, state: &CacheState, record: &Record) -> u16 {
    if record.slot >= state.residency.len() {
        return 0;
    }
    let same_block = record.key.is_some() && state.residency.key(record.slot) == record.key;
    let held = if same_block { state.residency.masks(record.slot).held } else { 0 };
    let mut data = vec![0; SUB_BLOCK_BYTES];
    let dirty = record.dirty & !record.zero;
    let differs = |sub: &usize| {
        let known =
            held >> sub & 1 != 0 && state.residency.crc(record.slot, *sub) == record.crcs[*sub];
        let at = state.log.sb.slot_offset(record.slot) + (sub * SUB_BLOCK_BYTES) as u64;
        // An unreadable sub-block is not an incomplete write: its reader gets the error.
        !known && device.read_at(&mut data, at).is_ok() && crc32c(&data) != record.crcs[*sub]
    };
    let subs = (0..state.log.sb.subs()).filter(|sub| dirty >> sub & 1 != 0).filter(differs);
    subs.fold(0, |mask, sub| mask | 1 << sub)
}
