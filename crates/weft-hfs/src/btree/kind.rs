//! The two kinds of trees, and the keys of each.

use crate::layout::{CatalogKey, ExtentKey};
use core::cmp::Ordering;
use smallvec::SmallVec;

/// The kind of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeKind {
    /// The catalog: names.
    Catalog,
    /// The extents file: extents after the first three of a fork.
    Extents,
}

impl TreeKind {
    /// Compares encoded keys.
    #[must_use]
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Catalog => CatalogKey::compare(a, b),
            Self::Extents => ExtentKey::compare(a, b),
        }
    }

    /// Returns the length of every index key, which is also the longest of a leaf key; the length
    /// byte is not counted.
    #[must_use]
    pub fn key_bytes(self) -> u8 {
        match self {
            Self::Catalog => 37,
            Self::Extents => 7,
        }
    }

    pub(crate) fn takes_key_len(self, len: usize) -> bool {
        match self {
            Self::Catalog => (6..=37).contains(&len),
            Self::Extents => len == 7,
        }
    }

    /// Builds an index record: the key at its fixed length, and the node.
    pub(crate) fn index_record(self, key: &[u8], child: u32) -> SmallVec<[u8; 64]> {
        let mut record = self.index_key(key);
        record.extend_from_slice(&child.to_be_bytes());
        record
    }

    pub(crate) fn index_key(self, key: &[u8]) -> SmallVec<[u8; 64]> {
        let len = usize::from(self.key_bytes()) + 1;
        let mut record = SmallVec::from_slice(key.get(..len).unwrap_or(key));
        record.resize(len, 0);
        if let Some(first) = record.first_mut() {
            *first = self.key_bytes();
        }
        record
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Catalog => "catalog",
            Self::Extents => "extents",
        }
    }
}
