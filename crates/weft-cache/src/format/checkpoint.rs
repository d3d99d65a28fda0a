//! A checkpoint: a header, and pages of 4 KiB with the intents, the map of used slots and an entry
//! for each of them.
//!
//! ```text
//! area    | header | intents | map of used slots | entries: dirty ones first, then by policy |
//! header    0 magic u32   4 CRC32C u32   8 sequence u64  16 life u64   24 tag u64
//!          32 log start u64   40 slots u32   44 pages of intents u32   48 entries u64
//!          56 dirty entries u64   64 log durable u64
//! page      0 CRC32C u32   4 kind u32   8 sequence u64  16 index u32   20 count u32   24 payload
//! ```
//!
//! The pages carry the header's sequence number, so that a page overwritten by a later, unfinished
//! checkpoint is detected. Entries are [`Record`]s padded to one length. They are in the order in
//! which the policy restores them, but the dirty ones come first, so that a cache can serve
//! requests as soon as these are loaded.

use super::log::RegionRun;
use super::record::{Record, padded_bytes};
use super::{UNIT, crc_without, get_u32, get_u64, put};

const MAGIC: u32 = 0x7470_6b63;
const PAGE_HEADER_BYTES: usize = 24;
const PAYLOAD_BYTES: usize = UNIT - PAGE_HEADER_BYTES;
const RUN_BYTES: usize = 12;
/// Number of region runs in a page of intents.
pub const RUNS_PER_PAGE: usize = PAYLOAD_BYTES / RUN_BYTES;
/// Number of slots that a page of the map covers.
pub const BITS_PER_PAGE: usize = PAYLOAD_BYTES * 8;

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PageKind {
    /// Runs of regions with an intent.
    Intents = 0x6973,
    /// A bit for each used slot.
    Map = 0x6d61,
    /// Records.
    Entries = 0x656e,
}

/// Layout of the pages of a checkpoint in its area, as offsets in blocks from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AreaLayout {
    /// Number of records in a page of entries.
    pub entries_per_page: usize,
    /// Number of pages for intents.
    pub intent_pages: u64,
    /// Number of pages for the map.
    pub map_pages: u64,
    /// Number of pages for an entry for each slot.
    pub entry_pages: u64,
}

impl AreaLayout {
    /// Returns the layout for `slots` slots of `subs` sub-blocks each.
    #[must_use]
    pub fn new(slots: u32, subs: usize) -> Self {
        let entries_per_page = PAYLOAD_BYTES / padded_bytes(subs);
        let entry_pages = u64::from(slots).div_ceil(entries_per_page as u64);
        Self {
            entries_per_page,
            intent_pages: (entry_pages / 16).clamp(1, 16),
            map_pages: u64::from(slots).div_ceil(BITS_PER_PAGE as u64),
            entry_pages,
        }
    }

    /// Returns the length of the area, in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        1 + self.intent_pages + self.map_pages + self.entry_pages
    }

    /// Returns the first block of the map.
    #[must_use]
    pub fn map_at(&self) -> u64 {
        1 + self.intent_pages
    }

    /// Returns the first block of the entries.
    #[must_use]
    pub fn entries_at(&self) -> u64 {
        1 + self.intent_pages + self.map_pages
    }

    /// Returns the number of pages that `entries` entries take.
    #[must_use]
    pub fn pages_of(&self, entries: u64) -> u64 {
        entries.div_ceil(self.entries_per_page as u64)
    }
}

/// The header of a checkpoint: its write makes the checkpoint valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Incremented with each checkpoint; its lowest bit selects the area.
    pub sequence: u64,
    /// The life that wrote it.
    pub life: u64,
    /// Number of the first log block that is newer than the checkpoint.
    pub log_start: u64,
    /// The number of slots.
    pub slots: u32,
    /// Number of used pages of intents.
    pub intent_pages: u32,
    /// Total number of entries.
    pub entries: u64,
    /// Number of entries, at the beginning, of dirty blocks.
    pub dirty: u64,
    /// All blocks of the log with lower numbers were durable when this was written.
    pub log_durable: u64,
}

impl Header {
    /// Returns the block as it is written.
    #[must_use]
    pub fn encode(&self, tag: u64) -> Vec<u8> {
        let mut b = vec![0; UNIT];
        put(&mut b, 0, &MAGIC.to_le_bytes());
        for (at, value) in [
            (8, self.sequence),
            (16, self.life),
            (24, tag),
            (32, self.log_start),
            (48, self.entries),
            (56, self.dirty),
            (64, self.log_durable),
        ] {
            put(&mut b, at, &value.to_le_bytes());
        }
        put(&mut b, 40, &self.slots.to_le_bytes());
        put(&mut b, 44, &self.intent_pages.to_le_bytes());
        let crc = crc_without(&b, 4);
        put(&mut b, 4, &crc.to_le_bytes());
        b
    }

    /// Parses a header; returns `None` if it is not one of the cache with this `tag` and `slots`
    /// slots.
    #[must_use]
    pub fn parse(b: &[u8], tag: u64, slots: u32, layout: &AreaLayout) -> Option<Self> {
        let b = b.get(..UNIT)?;
        let ours =
            get_u32(b, 0) == MAGIC && get_u64(b, 24) == tag && get_u32(b, 4) == crc_without(b, 4);
        let header = Self {
            sequence: get_u64(b, 8),
            life: get_u64(b, 16),
            log_start: get_u64(b, 32),
            slots: get_u32(b, 40),
            intent_pages: get_u32(b, 44),
            entries: get_u64(b, 48),
            dirty: get_u64(b, 56),
            log_durable: get_u64(b, 64),
        };
        let sound = header.slots == slots
            && u64::from(header.intent_pages) <= layout.intent_pages
            && header.entries <= u64::from(slots)
            && header.dirty <= header.entries;
        (ours && sound).then_some(header)
    }
}

/// Appends a page with this payload to `out`.
pub fn encode_page(
    kind: PageKind,
    sequence: u64,
    index: u32,
    count: u32,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES);
    let at = out.len();
    out.resize(at + UNIT, 0);
    let page = &mut out[at..];
    put(page, 4, &(kind as u32).to_le_bytes());
    put(page, 8, &sequence.to_le_bytes());
    put(page, 16, &index.to_le_bytes());
    put(page, 20, &count.to_le_bytes());
    put(page, PAGE_HEADER_BYTES, payload);
    let crc = crc_without(page, 0);
    put(page, 0, &crc.to_le_bytes());
}

/// Returns the count and the payload of a page, if it is the expected one.
#[must_use]
pub fn parse_page(
    page: &[u8],
    kind: PageKind,
    sequence: u64,
    index: u32,
) -> Option<(usize, &[u8])> {
    let page = page.get(..UNIT)?;
    let right = get_u32(page, 4) == kind as u32
        && get_u64(page, 8) == sequence
        && get_u32(page, 16) == index
        && get_u32(page, 0) == crc_without(page, 0);
    right.then(|| (get_u32(page, 20) as usize, &page[PAGE_HEADER_BYTES..]))
}

/// Returns the records of a page of entries; `None` for an invalid one.
pub fn entries(
    payload: &[u8],
    count: usize,
    subs: usize,
) -> impl Iterator<Item = Option<Record>> + '_ {
    let each = padded_bytes(subs);
    payload.chunks_exact(each).take(count).map(move |b| Record::decode(b, subs).map(|(r, _)| r))
}

/// Appends a record as an entry.
pub fn push_entry(record: &Record, subs: usize, payload: &mut Vec<u8>) {
    let at = payload.len();
    record.encode(subs, payload);
    payload.resize(at + padded_bytes(subs), 0);
}

/// Appends a run of regions.
pub fn push_run(run: &RegionRun, payload: &mut Vec<u8>) {
    payload.extend(u32::from(run.origin).to_le_bytes());
    payload.extend(run.first.to_le_bytes());
    payload.extend(run.count.to_le_bytes());
}

/// Returns the runs of a page of intents; `None` for an invalid one.
pub fn runs(payload: &[u8], count: usize) -> impl Iterator<Item = Option<RegionRun>> + '_ {
    payload.chunks_exact(RUN_BYTES).take(count).map(|b| {
        let (origin, first, count) = (get_u32(b, 0), get_u32(b, 4), get_u32(b, 8));
        let sound = (origin as usize) < crate::ORIGINS_MAX && first.checked_add(count).is_some();
        sound.then_some(RegionRun { origin: origin as u8, first, count })
    })
}
