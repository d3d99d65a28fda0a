//! The on-disk structures: the volume header, forks, nodes of trees, records of the catalog.

use weft_vfs::{Error, Result};

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

pub(super) fn corrupt(what: impl Into<String>) -> Error {
    Error::Corrupt(what.into().into())
}

/// A run of allocation blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub start: u32,
    pub count: u32,
}

/// Returns the eight extents of a record; the first empty one ends them.
pub(super) fn extents(bytes: &[u8]) -> impl Iterator<Item = Extent> + '_ {
    bytes
        .chunks_exact(8)
        .take(8)
        .map(|b| Extent { start: be32(b, 0), count: be32(b, 4) })
        .take_while(|e| e.count > 0)
}

/// The length and extents of a fork, as a record has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ForkData {
    pub len_bytes: u64,
    pub blocks: u32,
    pub extents: Vec<Extent>,
}

impl ForkData {
    pub const BYTES: usize = 80;

    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            len_bytes: be64(bytes, 0),
            blocks: be32(bytes, 12),
            extents: extents(bytes.get(16..).unwrap_or_default()).collect(),
        }
    }
}

/// `kHFSVolumeJournaledBit` of the volume's attributes.
const JOURNALED: u32 = 1 << 13;

/// The volume header.
#[derive(Debug, Clone)]
pub(super) struct Header {
    /// The block with the location of the journal, if the volume has one.
    pub journal_info: Option<u32>,
    pub created: u32,
    pub modified: u32,
    pub backed_up: u32,
    pub files: u32,
    pub folders: u32,
    pub block_bytes: u32,
    pub blocks: u32,
    pub free_blocks: u32,
    pub finder_info: [u32; 8],
    pub extents: ForkData,
    pub catalog: ForkData,
    pub attributes: ForkData,
}

impl Header {
    /// Reads the 512 bytes at byte 1024 of a volume of `len_bytes`.
    pub fn parse(bytes: &[u8], len_bytes: u64) -> Result<Self> {
        let bad = |what: String| Err(corrupt(format!("HFS Plus volume header in block 2: {what}")));
        if !matches!(bytes.get(..2), Some(b"H+" | b"HX")) {
            return bad("its signature is missing".into());
        }
        let fork =
            |at: usize| ForkData::parse(bytes.get(at..at + ForkData::BYTES).unwrap_or_default());
        let journaled = be32(bytes, 4) & JOURNALED != 0;
        let header = Self {
            journal_info: journaled.then(|| be32(bytes, 12)).filter(|block| *block != 0),
            created: be32(bytes, 16),
            modified: be32(bytes, 20),
            backed_up: be32(bytes, 24),
            files: be32(bytes, 32),
            folders: be32(bytes, 36),
            block_bytes: be32(bytes, 40),
            blocks: be32(bytes, 44),
            free_blocks: be32(bytes, 48),
            finder_info: std::array::from_fn(|i| be32(bytes, 80 + 4 * i)),
            extents: fork(192),
            catalog: fork(272),
            attributes: fork(352),
        };
        let unit = header.block_bytes;
        if !unit.is_power_of_two() || unit < 512 {
            return bad(format!("allocation blocks of {unit} bytes"));
        }
        // The last block may be cut short; a truncated image can be read up to its end.
        if u64::from(header.blocks) * u64::from(unit) < 1536 || len_bytes < 1536 {
            return bad(format!("{} allocation blocks", header.blocks));
        }
        Ok(header)
    }
}

/// A node of a tree.
#[derive(Debug)]
pub(super) struct Node {
    pub number: u32,
    bytes: Vec<u8>,
}

impl Node {
    pub fn new(number: u32, bytes: Vec<u8>) -> Self {
        Self { number, bytes }
    }

    /// Returns the kind: -1 leaf, 0 index, 1 header, 2 map.
    pub fn kind(&self) -> i8 {
        self.bytes.get(8).map_or(0, |b| b.cast_signed())
    }

    pub fn next(&self) -> u32 {
        be32(&self.bytes, 0)
    }

    pub fn count(&self) -> usize {
        // Each record has an offset: a node has no more records than offsets fit.
        usize::from(be16(&self.bytes, 10)).min(self.bytes.len() / 2)
    }

    /// Returns key (without its length) and data of a record.
    pub fn record(&self, index: usize) -> Result<(&[u8], &[u8])> {
        let offset = |i: usize| {
            let at = self.bytes.len().checked_sub(2 * (i + 1))?;
            Some(usize::from(be16(&self.bytes, at)))
        };
        let piece = || {
            let record = self.bytes.get(offset(index)?..offset(index + 1)?)?;
            let key_bytes = usize::from(be16(record, 0));
            let key = record.get(2..2 + key_bytes)?;
            Some((key, record.get((2 + key_bytes).next_multiple_of(2)..)?))
        };
        piece().ok_or_else(|| {
            corrupt(format!("tree node {}: record {index} is not in it", self.number))
        })
    }
}

/// Returns the name in a key or a thread: a count of UTF-16 units, then the units.
pub(super) fn name(bytes: &[u8]) -> &[u8] {
    let len = usize::from(be16(bytes, 0)) * 2;
    bytes.get(2..2 + len).unwrap_or_default()
}

/// A file or folder in the catalog.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub id: u32,
    pub is_folder: bool,
    pub created: u32,
    pub modified: u32,
    pub changed: u32,
    pub accessed: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    /// `special` of the permissions: the number of a hard link's file, or its count of links.
    pub special: u32,
    pub finder_info: [u8; 32],
    pub data: ForkData,
    pub resource: ForkData,
}

impl Item {
    /// Reads a record; `None` for a thread.
    pub fn parse(record: &[u8]) -> Result<Option<Self>> {
        let kind = be16(record, 0);
        let need = match kind {
            1 => 88,
            2 => 248,
            3 | 4 => return Ok(None),
            _ => return Err(corrupt(format!("catalog: a record of type {kind}"))),
        };
        if record.len() < need {
            return Err(corrupt(format!("catalog: a record of {} bytes", record.len())));
        }
        let mut finder_info = [0; 32];
        finder_info.copy_from_slice(&record[48..80]);
        let fork = |at: usize| match kind {
            2 => ForkData::parse(&record[at..at + ForkData::BYTES]),
            _ => ForkData::default(),
        };
        Ok(Some(Self {
            id: be32(record, 8),
            is_folder: kind == 1,
            created: be32(record, 12),
            modified: be32(record, 16),
            changed: be32(record, 20),
            accessed: be32(record, 24),
            uid: be32(record, 32),
            gid: be32(record, 36),
            mode: be16(record, 42),
            special: be32(record, 44),
            finder_info,
            data: fork(88),
            resource: fork(168),
        }))
    }
}
