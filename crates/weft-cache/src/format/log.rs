//! The log: a ring of blocks of 4 KiB. Block number `n` is at `n % blocks` of the ring.
//!
//! ```text
//!  0 magic u32   4 CRC32C u32   8 number u64   16 life u64   24 durable u64   32 tag u64
//! 40 payload bytes u16   42 flags u16 (1: first of a batch, 2: last of a batch)   48 payload
//! ```
//!
//! The payload is a sequence of items, each a type byte and then a record (1) or a run of regions
//! whose intent is set (2) or cleared (3): origin u8, first u32, count u32.
//!
//! A commit writes one batch and flushes; an incomplete batch, or one whose data is incomplete, was
//! never acknowledged, and is not valid. A batch without items marks the one before it as complete.
//! Every block records up to which number (exclusive) the log was durable when it was written: if
//! the log ends before that, it was damaged later. The life, which grows each time the cache is
//! opened, tells a block from one that an earlier life left after the end of its log.

use super::record::Record;
use super::{UNIT, crc_without, get_u16, get_u32, get_u64, put};

const MAGIC: u32 = 0x676f_6c77;
const CRC_AT: usize = 4;
const HEADER_BYTES: usize = 48;
const PAYLOAD_MAX: usize = UNIT - HEADER_BYTES;
const FIRST: u16 = 1;
const LAST: u16 = 2;

const ITEM_RECORD: u8 = 1;
const ITEM_INTENT_SET: u8 = 2;
const ITEM_INTENT_CLEAR: u8 = 3;

/// Minimum length of the ring, in blocks.
pub const RING_MIN_BLOCKS: u64 = 16;

/// Regions `first..first + count` of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionRun {
    /// The origin's number.
    pub origin: u8,
    /// The first region.
    pub first: u32,
    /// The number of regions.
    pub count: u32,
}

/// An item of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // passed on one at a time, never stored
pub enum Item {
    /// A slot's new state.
    Record(Record),
    /// The origin is about to be changed in these regions.
    IntentSet(RegionRun),
    /// Cache and origin agree in these regions.
    IntentClear(RegionRun),
}

/// The header of a log block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The block's number.
    pub number: u64,
    /// The life that wrote it.
    pub life: u64,
    /// End of the durable part when the block was written: all blocks with lower numbers.
    pub durable: u64,
    /// Whether the block is the first of its batch.
    pub first: bool,
    /// Whether the block is the last of its batch.
    pub last: bool,
    len: usize,
}

impl BlockHeader {
    /// Parses the header of a block; returns `None` if the block is not one of the cache with this
    /// `tag`.
    #[must_use]
    pub fn parse(block: &[u8], tag: u64) -> Option<Self> {
        let block = block.get(..UNIT)?;
        let len = usize::from(get_u16(block, 40));
        let ours = get_u32(block, 0) == MAGIC
            && get_u64(block, 32) == tag
            && len <= PAYLOAD_MAX
            && get_u32(block, CRC_AT) == crc_without(block, CRC_AT);
        let flags = get_u16(block, 42);
        ours.then(|| Self {
            number: get_u64(block, 8),
            life: get_u64(block, 16),
            durable: get_u64(block, 24),
            first: flags & FIRST != 0,
            last: flags & LAST != 0,
            len,
        })
    }

    /// Returns the items of this header's block. The first malformed item gives `None` and ends
    /// them.
    pub fn items<'a>(
        &self,
        block: &'a [u8],
        subs: usize,
    ) -> impl Iterator<Item = Option<Item>> + 'a {
        let mut rest = block.get(HEADER_BYTES..HEADER_BYTES + self.len).unwrap_or_default();
        std::iter::from_fn(move || {
            let (&kind, body) = rest.split_first()?;
            let item = decode_item(kind, body, subs);
            rest = item.and_then(|(_, len)| body.get(len..)).unwrap_or_default();
            Some(item.map(|(item, _)| item))
        })
    }
}

fn decode_item(kind: u8, body: &[u8], subs: usize) -> Option<(Item, usize)> {
    if kind == ITEM_RECORD {
        let (record, len) = Record::decode(body, subs)?;
        return Some((Item::Record(record), len));
    }
    let body = body.get(..9)?;
    let run = RegionRun { origin: body[0], first: get_u32(body, 1), count: get_u32(body, 5) };
    let sound =
        usize::from(run.origin) < crate::ORIGINS_MAX && run.first.checked_add(run.count).is_some();
    match kind {
        ITEM_INTENT_SET if sound => Some((Item::IntentSet(run), 9)),
        ITEM_INTENT_CLEAR if sound => Some((Item::IntentClear(run), 9)),
        _ => None,
    }
}

/// A batch under construction.
#[derive(Debug)]
pub struct Batch {
    subs: usize,
    blocks: Vec<u8>,
    lens: Vec<usize>,
    item: Vec<u8>,
}

impl Batch {
    /// Creates an empty batch, for blocks of `subs` sub-blocks.
    #[must_use]
    pub fn new(subs: usize) -> Self {
        Self { subs, blocks: Vec::new(), lens: Vec::new(), item: Vec::new() }
    }

    /// Creates a batch of one block without items.
    #[must_use]
    pub fn marker() -> Self {
        Self { subs: 1, blocks: vec![0; UNIT], lens: vec![0], item: Vec::new() }
    }

    /// Returns true if the batch has no items and is no marker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Returns the number of log blocks that it needs.
    #[must_use]
    pub fn len_blocks(&self) -> u64 {
        self.lens.len() as u64
    }

    /// Appends an item.
    pub fn push(&mut self, item: &Item) {
        self.item.clear();
        match item {
            Item::Record(record) => {
                self.item.push(ITEM_RECORD);
                record.encode(self.subs, &mut self.item);
            }
            Item::IntentSet(run) => encode_run(ITEM_INTENT_SET, run, &mut self.item),
            Item::IntentClear(run) => encode_run(ITEM_INTENT_CLEAR, run, &mut self.item),
        }
        let fits = self.lens.last().is_some_and(|len| len + self.item.len() <= PAYLOAD_MAX);
        if !fits {
            self.blocks.resize(self.blocks.len() + UNIT, 0);
            self.lens.push(0);
        }
        let index = self.lens.len() - 1;
        let at = index * UNIT + HEADER_BYTES + self.lens[index];
        put(&mut self.blocks, at, &self.item);
        self.lens[index] += self.item.len();
    }

    /// Numbers the blocks from `number` on and returns them, to be written in order.
    pub fn seal(&mut self, number: u64, durable: u64, life: u64, tag: u64) -> &[u8] {
        let count = self.lens.len();
        for (index, (block, len)) in self.blocks.chunks_mut(UNIT).zip(&self.lens).enumerate() {
            let mut flags = if index == 0 { FIRST } else { 0 };
            flags |= if index + 1 == count { LAST } else { 0 };
            put(block, 0, &MAGIC.to_le_bytes());
            put(block, 8, &(number + index as u64).to_le_bytes());
            put(block, 16, &life.to_le_bytes());
            put(block, 24, &durable.to_le_bytes());
            put(block, 32, &tag.to_le_bytes());
            put(block, 40, &(*len as u16).to_le_bytes());
            put(block, 42, &flags.to_le_bytes());
            let crc = crc_without(block, CRC_AT);
            put(block, CRC_AT, &crc.to_le_bytes());
        }
        &self.blocks
    }
}

fn encode_run(kind: u8, run: &RegionRun, out: &mut Vec<u8>) {
    out.push(kind);
    out.push(run.origin);
    out.extend(run.first.to_le_bytes());
    out.extend(run.count.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::records;
    use super::*;
    use proptest::prelude::*;

    fn items(subs: usize) -> impl Strategy<Value = Vec<Item>> {
        let run = (0_u8..16, 0..u32::MAX / 2, 0..u32::MAX / 2)
            .prop_map(|(origin, first, count)| RegionRun { origin, first, count });
        let item = prop_oneof![
            8 => records(subs).prop_map(Item::Record),
            1 => run.clone().prop_map(Item::IntentSet),
            1 => run.prop_map(Item::IntentClear),
        ];
        proptest::collection::vec(item, 1..600)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_batch_is_read_as_it_was_written(
            (subs, items) in (0_u32..5).prop_flat_map(|n| (Just(1 << n), items(1 << n))),
            flip in any::<prop::sample::Index>(),
        ) {
            let mut batch = Batch::new(subs);
            for item in &items {
                batch.push(item);
            }
            let count = batch.len_blocks();
            let bytes = batch.seal(70, 69, 3, 0xabcd).to_vec();
            prop_assert_eq!(bytes.len() as u64, count * UNIT as u64);
            let mut read = Vec::new();
            for (index, block) in bytes.chunks(UNIT).enumerate() {
                let header = BlockHeader::parse(block, 0xabcd).unwrap();
                prop_assert_eq!((header.number, header.life, header.durable), (70 + index as u64, 3, 69));
                prop_assert_eq!((header.first, header.last), (index == 0, index as u64 + 1 == count));
                for item in header.items(block, subs) {
                    read.push(item.unwrap());
                }
            }
            prop_assert!(read == items);

            let marker = Batch::marker().seal(7, 6, 3, 0xabcd).to_vec();
            let header = BlockHeader::parse(&marker, 0xabcd).unwrap();
            prop_assert_eq!((header.first, header.last, header.durable), (true, true, 6));
            prop_assert_eq!(header.items(&marker, subs).count(), 0);

            let mut damaged = bytes[..UNIT].to_vec();
            damaged[flip.index(UNIT)] ^= 0x10;
            prop_assert_eq!(BlockHeader::parse(&damaged, 0xabcd), None);
            prop_assert_eq!(BlockHeader::parse(&bytes[..UNIT], 0xabce), None);
        }
    }
}
