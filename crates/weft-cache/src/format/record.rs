//! The record of one slot: its whole state, so that applying it twice is the same as once. Records
//! in the log have variable length; in the checkpoint they are padded.
//!
//! ```text
//! word u64: block (44 bits) | origin (4 bits) | flags (8 bits) | the policy's state (8 bits)
//! slot u32
//! blocks of more than 4 KiB: valid u16, dirty u16, zero u16 (a bit for each sub-block)
//! CRC32C u32 of each valid sub-block, in order
//! ```

use super::{get_u16, get_u32, get_u64};
use crate::ORIGINS_MAX;
use crate::policy::BlockKey;

/// Number of sub-blocks of the largest block.
pub const SUBS_MAX: usize = 16;

/// Maximum number of blocks of an origin: a record has 44 bits, memory 38.
pub const ORIGIN_BLOCKS_MAX: u64 = 1 << 38;

const USED: u8 = 1;
const DIRTY: u8 = 2;
const ZERO: u8 = 4;

/// The state of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The slot.
    pub slot: u32,
    /// The block that it holds; `None` if it is free.
    pub key: Option<BlockKey>,
    /// The policy's state.
    pub policy: u8,
    /// The sub-blocks that are in the cache, a bit each.
    pub valid: u16,
    /// The valid sub-blocks that the origin does not have.
    pub dirty: u16,
    /// The valid sub-blocks that read as zeroes, whatever the slot contains.
    pub zero: u16,
    /// The checksum of each valid sub-block's data; 0 for the others.
    pub crcs: [u32; SUBS_MAX],
}

/// Returns the length of a record in the checkpoint, in bytes: the maximum.
#[must_use]
pub fn padded_bytes(subs: usize) -> usize {
    12 + if subs == 1 { 0 } else { 6 } + 4 * subs
}

impl Record {
    /// Returns the record of a free slot.
    #[must_use]
    pub fn free(slot: u32) -> Self {
        Self { slot, key: None, policy: 0, valid: 0, dirty: 0, zero: 0, crcs: [0; SUBS_MAX] }
    }

    /// Appends the record to `out`. `subs` is the number of sub-blocks in a block.
    pub fn encode(&self, subs: usize, out: &mut Vec<u8>) {
        let mut word = u64::from(self.policy) << 56;
        if let Some(key) = self.key {
            debug_assert!(key.block() < 1 << 44 && usize::from(key.origin()) < ORIGINS_MAX);
            let mut flags = USED;
            if subs == 1 {
                flags |= if self.dirty != 0 { DIRTY } else { 0 };
                flags |= if self.zero != 0 { ZERO } else { 0 };
            }
            word |= key.block() | u64::from(key.origin()) << 44 | u64::from(flags) << 48;
        }
        out.extend(word.to_le_bytes());
        out.extend(self.slot.to_le_bytes());
        if self.key.is_none() {
            return;
        }
        if subs > 1 {
            for mask in [self.valid, self.dirty, self.zero] {
                out.extend(mask.to_le_bytes());
            }
        }
        for (sub, crc) in self.crcs.iter().enumerate().take(subs) {
            if self.valid >> sub & 1 != 0 {
                out.extend(crc.to_le_bytes());
            }
        }
    }

    /// Decodes the record at the start of `bytes`, and returns it with its length. `None` if there
    /// is no valid one.
    #[must_use]
    pub fn decode(bytes: &[u8], subs: usize) -> Option<(Self, usize)> {
        if bytes.len() < 12 {
            return None;
        }
        let word = get_u64(bytes, 0);
        let mut record = Self::free(get_u32(bytes, 8));
        record.policy = (word >> 56) as u8;
        let flags = (word >> 48) as u8;
        if flags & USED == 0 {
            return Some((record, 12));
        }
        let block = word & ((1 << 44) - 1);
        if block >= ORIGIN_BLOCKS_MAX || flags & !(USED | DIRTY | ZERO) != 0 {
            return None;
        }
        record.key = Some(BlockKey::new((word >> 44) as u16 & 15, block));
        let mut at = 12;
        if subs > 1 {
            let masks = bytes.get(12..18)?;
            record.valid = get_u16(masks, 0);
            record.dirty = get_u16(masks, 2);
            record.zero = get_u16(masks, 4);
            at = 18;
        } else {
            record.valid = 1;
            record.dirty = u16::from(flags & DIRTY != 0);
            record.zero = u16::from(flags & ZERO != 0);
        }
        let all = u16::MAX >> (16 - subs.clamp(1, SUBS_MAX));
        let sound = record.valid != 0
            && record.valid & !all == 0
            && (record.dirty | record.zero) & !record.valid == 0;
        if !sound {
            return None;
        }
        for sub in 0..subs.min(SUBS_MAX) {
            if record.valid >> sub & 1 != 0 {
                record.crcs[sub] = bytes.get(at..at + 4).map(|b| get_u32(b, 0))?;
                at += 4;
            }
        }
        Some((record, at))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn records(subs: usize) -> impl Strategy<Value = Record> {
        let all = u16::MAX >> (16 - subs);
        let used =
            (0..ORIGIN_BLOCKS_MAX, 0..ORIGINS_MAX as u16, any::<[u16; 3]>(), any::<[u32; 16]>());
        (any::<u32>(), any::<u8>(), proptest::option::of(used)).prop_map(
            move |(slot, policy, used)| {
                let mut record = Record { policy, ..Record::free(slot) };
                if let Some((block, origin, masks, crcs)) = used {
                    record.key = Some(BlockKey::new(origin, block));
                    record.valid = (masks[0] & all).max(1);
                    record.dirty = masks[1] & record.valid;
                    record.zero = masks[2] & record.valid;
                    for (sub, crc) in crcs.into_iter().enumerate().take(subs) {
                        if record.valid >> sub & 1 != 0 {
                            record.crcs[sub] = crc;
                        }
                    }
                }
                record
            },
        )
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            (subs, record) in (0_u32..5).prop_flat_map(|n| (Just(1 << n), records(1 << n))),
        ) {
            let mut bytes = Vec::new();
            record.encode(subs, &mut bytes);
            prop_assert!(bytes.len() <= padded_bytes(subs));
            let len = bytes.len();
            prop_assert_eq!(Record::decode(&bytes, subs), Some((record, len)));
            for cut in 0..len {
                prop_assert_eq!(Record::decode(&bytes[..cut], subs), None, "cut at {}", cut);
            }
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes: [u8; 82], subs in 0_u32..5) {
            if let Some((record, len)) = Record::decode(&bytes, 1 << subs) {
                prop_assert!(len <= padded_bytes(1 << subs));
                let mut again = Vec::new();
                record.encode(1 << subs, &mut again);
                prop_assert_eq!(Record::decode(&again, 1 << subs), Some((record, len)));
            }
        }
    }
}
