//! A cache of the records that the owner of a cell has read and written. No other server writes, so
//! it is as good as etcd's own answer while this server owns the cell, also about missing keys.
//!
//! Bounded by two generations: used entries are in the young one; when that is full the old one is
//! dropped, and the young one becomes the old one.

use std::collections::HashMap;

use weft_ringer::store::Record;

/// The capacity of one generation, in bytes of keys and values.
const GENERATION_BYTES: usize = 64 << 20;
/// The approximate overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 96;

type Map = HashMap<Vec<u8>, Option<Record>>;

#[derive(Debug)]
pub(super) struct Cache {
    young: Map,
    old: Map,
    young_bytes: usize,
    generation_bytes: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self::with_generation(GENERATION_BYTES)
    }
}

impl Cache {
    fn with_generation(generation_bytes: usize) -> Self {
        Self { young: Map::new(), old: Map::new(), young_bytes: 0, generation_bytes }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, record: Option<Record>) {
        let size = |record: &Option<Record>| record.as_ref().map_or(0, |r| r.value.len());
        self.old.remove(&key);
        self.young_bytes += key.len() + size(&record) + ENTRY_BYTES;
        let entry_bytes = key.len() + ENTRY_BYTES;
        if let Some(before) = self.young.insert(key, record) {
            self.young_bytes -= entry_bytes + size(&before);
        }
        if self.young_bytes > self.generation_bytes {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    /// Returns the cached record, `Some(None)` if the key is known to be missing; `None` if it is
    /// not cached.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Option<Record>> {
        if let Some(record) = self.young.get(key) {
            return Some(record.clone());
        }
        let (key, record) = self.old.remove_entry(key)?;
        self.put(key, record.clone());
        Some(record)
    }

    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.young.contains_key(key) || self.old.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::store::Revision;

    #[test]
    fn cache_is_bounded_and_keeps_recent_entries() {
        let mut cache = Cache::with_generation(10_000);
        let record = |n: u64| Some(Record { value: vec![0; 100], revision: Revision(n) });
        cache.put(b"used".to_vec(), None);
        for n in 0..10_000_u64 {
            cache.put(n.to_be_bytes().to_vec(), record(n));
            cache.put(n.to_be_bytes().to_vec(), record(n + 1));
            assert_eq!(cache.get(b"used"), Some(None), "{n}");
            assert!(cache.young.len() + cache.old.len() < 120, "{n}");
        }
        assert_eq!(cache.get(&9_999_u64.to_be_bytes()), Some(record(10_000)));
        assert_eq!(cache.get(&1_u64.to_be_bytes()), None);
    }
}
