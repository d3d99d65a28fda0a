//! The last batch of the log, found when a cache is opened.
//!
//! A commit flushes once, after its batch is written; so of the last batch nobody knows whether
//! that flush has returned, unless something written later says so. If it has not, the batch may be
//! whole, and its data not. Then it was never acknowledged, and it does not count: the log ends in
//! front of it, and what it would have superseded is still there, as held data is not overwritten.
//!
//! If it has, and dirty data was damaged since, that looks the same. A marker behind the batch
//! ([`crate::commit`]) leaves a tenth of a second in which both may be taken for each other.

use crate::SUB_BLOCK_BYTES;
use crate::format::UNIT;
use crate::format::log::{BlockHeader, Item};
use crate::format::record::Record;
use crate::state::State;
use crate::{Error, Result};
use crc32c::crc32c;
use std::ops::Range;
use weft_block::BlockDevice;

/// Whether all dirty data that a batch names matches its checksums. `state` is as all batches
/// before it have left it.
pub(crate) fn is_whole(device: &dyn BlockDevice, state: &State, batch: Range<u64>) -> Result<bool> {
    let (subs, tag) = (state.sb.subs(), state.sb.tag());
    let mut block = vec![0; UNIT];
    for number in batch {
        let at = state.sb.log_offset + number % state.sb.log_blocks * UNIT as u64;
        device.read_at(&mut block, at).map_err(Error::CacheDevice)?;
        let Some(header) = BlockHeader::parse(&block, tag) else { return Ok(false) };
        for item in header.items(&block, subs) {
            if let Some(Item::Record(record)) = item
                && !matches(device, state, &record)
            {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether the dirty data of a slot is what its record says, where it was not durable before.
fn matches(device: &dyn BlockDevice, state: &State, record: &Record) -> bool {
    if record.slot >= state.slots.len() {
        return true;
    }
    let same_block = record.key.is_some() && state.slots.key(record.slot) == record.key;
    let held = if same_block { state.slots.masks(record.slot).held } else { 0 };
    let mut data = vec![0; SUB_BLOCK_BYTES];
    let dirty = record.dirty & !record.zero;
    (0..state.sb.subs()).filter(|sub| dirty >> sub & 1 != 0).all(|sub| {
        let known = held >> sub & 1 != 0 && state.slots.crc(record.slot, sub) == record.crcs[sub];
        let at = state.sb.slot_offset(record.slot) + (sub * SUB_BLOCK_BYTES) as u64;
        // What cannot be read was not cut short: whoever reads it is told.
        known || device.read_at(&mut data, at).is_err() || crc32c(&data) == record.crcs[sub]
    })
}
