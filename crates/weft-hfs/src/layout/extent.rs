//! Extents: runs of allocation blocks.

use super::{get8, get16, get32, put16, put32};
use crate::{Error, Result};
use alloc::format;
use core::cmp::Ordering;

/// A run of allocation blocks (`ExtDescriptor`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Extent {
    /// The first allocation block.
    pub start: u16,
    /// The number of allocation blocks; 0 ends an extent record.
    pub count: u16,
}

impl Extent {
    /// Returns the allocation block after the last one.
    #[must_use]
    pub fn end(&self) -> u32 {
        u32::from(self.start) + u32::from(self.count)
    }
}

/// Three extents, as the catalog and the extents file keep them (`ExtDataRec`).
pub type ExtentRecord = [Extent; 3];

/// Bytes of an [`ExtentRecord`].
pub const EXTENT_RECORD_BYTES: usize = 12;

pub(super) fn parse_extents(raw: &[u8], at: usize) -> ExtentRecord {
    [0, 4, 8].map(|i| Extent { start: get16(raw, at + i), count: get16(raw, at + i + 2) })
}

pub(super) fn put_extents(raw: &mut [u8], at: usize, extents: &ExtentRecord) {
    for (i, extent) in extents.iter().enumerate() {
        put16(raw, at + 4 * i, extent.start);
        put16(raw, at + 4 * i + 2, extent.count);
    }
}

/// One of the two streams of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Fork {
    /// The data fork: the content of the file on other systems.
    #[default]
    Data,
    /// The resource fork, kept by the Resource Manager.
    Resource,
}

impl Fork {
    /// Both forks.
    pub const ALL: [Self; 2] = [Self::Data, Self::Resource];

    /// Returns 0 for the data fork, 1 for the resource fork.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Data => 0,
            Self::Resource => 1,
        }
    }
}

/// A key of the extents file (`ExtKeyRec`): sorted by file, then fork, then block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExtentKey {
    /// The file that has the extents.
    pub file_id: u32,
    /// The fork that has the extents.
    pub fork: Fork,
    /// The fork's allocation block at which the record begins.
    pub block: u16,
}

impl ExtentKey {
    /// Bytes of the encoded key, its length byte included.
    pub const BYTES: usize = 8;

    /// Reads an encoded key.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the problem.
    pub fn parse(raw: &[u8]) -> Result<Self> {
        let (len, fork) = (get8(raw, 0), get8(raw, 1));
        if raw.len() < Self::BYTES || len != 7 {
            return Err(Error::Invalid(format!("key length is {len}, should be 7")));
        }
        let fork = match fork {
            0 => Fork::Data,
            0xff => Fork::Resource,
            other => {
                return Err(Error::Invalid(format!("unknown fork type {other:#x} in the key")));
            }
        };
        Ok(Self { file_id: get32(raw, 2), fork, block: get16(raw, 6) })
    }

    /// Returns the encoded key.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut raw = [7, 0, 0, 0, 0, 0, 0, 0];
        if self.fork == Fork::Resource {
            raw[1] = 0xff;
        }
        put32(&mut raw, 2, self.file_id);
        put16(&mut raw, 6, self.block);
        raw
    }

    /// Compares encoded keys.
    #[must_use]
    pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
        let part = |raw: &[u8]| (get32(raw, 2), get8(raw, 1), get16(raw, 6));
        part(a).cmp(&part(b))
    }

    /// Reads the extents of a record; `None` if it is too short.
    #[must_use]
    pub fn parse_record(raw: &[u8]) -> Option<ExtentRecord> {
        (raw.len() >= EXTENT_RECORD_BYTES).then(|| parse_extents(raw, 0))
    }

    /// Returns the encoded extents of a record.
    #[must_use]
    pub fn encode_record(extents: &ExtentRecord) -> [u8; EXTENT_RECORD_BYTES] {
        let mut raw = [0; EXTENT_RECORD_BYTES];
        put_extents(&mut raw, 0, extents);
        raw
    }
}
