//! The slot table: the state of each slot, in eleven bytes a slot (with blocks of 4 KiB).
//!
//! A slot is *free* (on the map of free slots), *used* (it has a key), or neither: reserved for a
//! block that is being written, or released and still held. It is *held* for the sub-blocks that a
//! durable record marks as dirty: until a later durable record supersedes that one, these are never
//! overwritten in place, and a held slot is not given to another block.
//!
//! The table can keep a snapshot while it goes on changing: a checkpoint writes that.

use crate::bitmap::Bitmap;
use crate::format::record::{Record, SUBS_MAX};
use crate::policy::BlockKey;
use hashbrown::HashMap;
use std::ops::Range;

const USED: u64 = 1;
const TOUCHED: u64 = 2;
const DIRTY: u64 = 4;
const HELD: u64 = 8;
const ZERO: u64 = 16;
const VERIFIED: u64 = 32;
const BLOCK_BITS: u32 = 38;
const FLAGS_SHIFT: u32 = 42;

/// A bit for each sub-block of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Masks {
    /// Sub-blocks that are in the cache.
    pub(crate) valid: u16,
    /// Valid sub-blocks that the origin does not have.
    pub(crate) dirty: u16,
    /// Sub-blocks that are dirty in the durable metadata.
    pub(crate) held: u16,
    /// Sub-blocks that read as zeroes, whatever the slot contains.
    pub(crate) zero: u16,
    /// Sub-blocks that were verified against their checksum, or written, since the cache was
    /// opened.
    pub(crate) verified: u16,
}

#[derive(Debug)]
pub(crate) struct SlotTable {
    subs: usize,
    /// Block 38 bits, origin 4 bits, flags 6 bits.
    words: Vec<[u16; 3]>,
    crcs: Vec<u32>,
    /// Only if a block has several sub-blocks; otherwise the flags are the masks.
    masks: Vec<Masks>,
    pub(crate) free: Bitmap,
    /// Slot after the last one taken: runs of new blocks get runs of slots.
    cursor: u32,
    snapshot: Option<Snapshot>,
}

/// A snapshot of the slots: the records of those that have changed since. Every change goes through
/// [`SlotTable::set_key`], [`SlotTable::set_masks`] and [`SlotTable::set_crc`], which keep the
/// former record.
#[derive(Debug)]
struct Snapshot {
    /// Slots whose record need not be kept any more: it is kept already, or was taken.
    done: Bitmap,
    kept: HashMap<u32, Record>,
}

impl SlotTable {
    /// Creates a table with all slots unused, and none free yet.
    pub(crate) fn new(slots: u32, subs: usize) -> Self {
        let n = slots as usize;
        Self {
            subs,
            words: vec![[0; 3]; n],
            crcs: vec![0; n * subs],
            masks: if subs > 1 { vec![Masks::default(); n] } else { Vec::new() },
            free: Bitmap::new(slots),
            cursor: 0,
            snapshot: None,
        }
    }

    /// Keeps the present state of all slots, until [`end_snapshot`](Self::end_snapshot).
    pub(crate) fn begin_snapshot(&mut self) {
        self.snapshot = Some(Snapshot { done: Bitmap::new(self.len()), kept: HashMap::new() });
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Returns `Some` if a slot was used when the snapshot was begun: true if it was dirty.
    pub(crate) fn snapshot_dirty(&self, slot: u32) -> Option<bool> {
        let kept = self.snapshot.as_ref().and_then(|snapshot| snapshot.kept.get(&slot));
        match kept {
            Some(record) => record.key.map(|_| record.dirty != 0),
            None => self.key(slot).map(|_| self.masks(slot).dirty != 0),
        }
    }

    /// Returns a slot's record as of the snapshot, and removes it from the snapshot.
    pub(crate) fn take_snapshot(&mut self, slot: u32) -> Record {
        let now = self.record(slot);
        let Some(snapshot) = &mut self.snapshot else { return now };
        let record = snapshot.kept.remove(&slot).unwrap_or(now);
        snapshot.done.set(slot);
        record
    }

    fn keep(&mut self, slot: u32) {
        if self.snapshot.as_ref().is_none_or(|snapshot| snapshot.done.get(slot)) {
            return;
        }
        let record = self.record(slot);
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.done.set(slot);
            snapshot.kept.insert(slot, record);
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.words.len() as u32
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * 6
            + self.crcs.len() * 4
            + self.masks.len() * size_of::<Masks>()
            + self.free.memory_bytes()
    }

    /// Changes the number of slots. Those beyond the new end must be unused.
    pub(crate) fn resize(&mut self, slots: u32) {
        debug_assert!((slots..self.len()).all(|slot| self.key(slot).is_none()));
        let n = slots as usize;
        self.words.resize(n, [0; 3]);
        self.crcs.resize(n * self.subs, 0);
        if self.subs > 1 {
            self.masks.resize(n, Masks::default());
        }
        self.free.resize(slots);
        self.cursor = 0;
    }

    fn word(&self, slot: u32) -> u64 {
        let [a, b, c] = self.words[slot as usize];
        u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32
    }

    fn set_word(&mut self, slot: u32, word: u64) {
        self.words[slot as usize] = [word as u16, (word >> 16) as u16, (word >> 32) as u16];
    }

    fn flag(&self, slot: u32, flag: u64) -> bool {
        self.word(slot) >> FLAGS_SHIFT & flag != 0
    }

    fn set_flag(&mut self, slot: u32, flag: u64, on: bool) {
        let word = self.word(slot);
        let bit = flag << FLAGS_SHIFT;
        self.set_word(slot, if on { word | bit } else { word & !bit });
    }

    /// Returns the block that the slot holds.
    pub(crate) fn key(&self, slot: u32) -> Option<BlockKey> {
        let word = self.word(slot);
        (word >> FLAGS_SHIFT & USED != 0).then(|| {
            let block = word & ((1 << BLOCK_BITS) - 1);
            BlockKey::new((word >> BLOCK_BITS) as u16 & 15, block)
        })
    }

    /// Sets or clears the slot's key, and leaves all else as it is.
    pub(crate) fn set_key(&mut self, slot: u32, key: Option<BlockKey>) {
        self.keep(slot);
        let flags = self.word(slot) >> FLAGS_SHIFT & !USED;
        let word = key.map_or(flags << FLAGS_SHIFT, |key| {
            debug_assert!(key.block() < 1 << BLOCK_BITS);
            key.block() | u64::from(key.origin() & 15) << BLOCK_BITS | (flags | USED) << FLAGS_SHIFT
        });
        self.set_word(slot, word);
    }

    /// Returns true if the slot's change waits to be recorded.
    pub(crate) fn touched(&self, slot: u32) -> bool {
        self.flag(slot, TOUCHED)
    }

    pub(crate) fn set_touched(&mut self, slot: u32, on: bool) {
        self.set_flag(slot, TOUCHED, on);
    }

    pub(crate) fn masks(&self, slot: u32) -> Masks {
        if self.subs > 1 {
            return self.masks[slot as usize];
        }
        let flags = self.word(slot) >> FLAGS_SHIFT;
        let bit = |flag: u64| u16::from(flags & flag != 0);
        Masks {
            valid: bit(USED),
            dirty: bit(DIRTY),
            held: bit(HELD),
            zero: bit(ZERO),
            verified: bit(VERIFIED),
        }
    }

    /// Sets the masks. With a single sub-block, `valid` follows from the key, and is not set here.
    pub(crate) fn set_masks(&mut self, slot: u32, masks: Masks) {
        debug_assert_eq!((masks.dirty | masks.zero) & !masks.valid, 0, "{masks:?}");
        self.keep(slot);
        if self.subs > 1 {
            self.masks[slot as usize] = masks;
            return;
        }
        let mut word = self.word(slot) & !((DIRTY | HELD | ZERO | VERIFIED) << FLAGS_SHIFT);
        for (mask, flag) in [
            (masks.dirty, DIRTY),
            (masks.held, HELD),
            (masks.zero, ZERO),
            (masks.verified, VERIFIED),
        ] {
            if mask != 0 {
                word |= flag << FLAGS_SHIFT;
            }
        }
        self.set_word(slot, word);
    }

    pub(crate) fn crc(&self, slot: u32, sub: usize) -> u32 {
        self.crcs[slot as usize * self.subs + sub]
    }

    pub(crate) fn set_crc(&mut self, slot: u32, sub: usize, crc: u32) {
        self.keep(slot);
        self.crcs[slot as usize * self.subs + sub] = crc;
    }

    /// Returns the slot's present record.
    pub(crate) fn record(&self, slot: u32) -> Record {
        let mut record = Record::free(slot);
        let Some(key) = self.key(slot) else { return record };
        let masks = self.masks(slot);
        record.key = Some(key);
        record.valid = masks.valid;
        record.dirty = masks.dirty;
        record.zero = masks.zero;
        for sub in 0..self.subs.min(SUBS_MAX) {
            if masks.valid >> sub & 1 != 0 {
                record.crcs[sub] = self.crc(slot, sub);
            }
        }
        record
    }

    /// Returns the number of free slots.
    pub(crate) fn free_count(&self) -> u32 {
        self.free.count()
    }

    /// Takes a free slot within `range`: the next one after the last that was taken.
    pub(crate) fn take_free(&mut self, range: Range<u32>) -> Option<u32> {
        let from = if range.contains(&self.cursor) { self.cursor } else { range.start };
        let slot = self
            .free
            .next_set(from..range.end)
            .or_else(|| self.free.next_set(range.start..from))?;
        self.free.clear(slot);
        self.cursor = slot + 1;
        Some(slot)
    }
}
