//! A store in memory: the model that other stores are compared with.

use std::collections::BTreeMap;

use super::{Change, Record, Revision, Store, StoreError, StoreResult, Transaction};

/// A store in memory. Its content is lost when it is dropped.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    records: BTreeMap<Vec<u8>, Record>,
    changes: Vec<Change>,
    revision: Revision,
    kept_after: Revision,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Record>> {
        Ok(self.records.get(key).cloned())
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Record)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let range = self
            .records
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)));
        Ok(range.take(limit).map(|(k, r)| (k.clone(), r.clone())).collect())
    }

    fn commit(&mut self, transaction: &Transaction) -> StoreResult<Revision> {
        for (key, expected) in &transaction.expect {
            if self.records.get(key).map(|r| r.revision) != *expected {
                return Err(StoreError::Conflict { key: key.clone() });
            }
        }
        // The last change of each key.
        let last: BTreeMap<_, _> = transaction.changes.iter().map(|(k, v)| (k, v)).collect();
        let revision = Revision(self.revision.0 + 1);
        for (key, value) in last {
            match value {
                Some(value) => {
                    let record = Record { value: value.clone(), revision };
                    self.records.insert(key.clone(), record);
                }
                None if self.records.remove(key).is_some() => {}
                None => continue,
            }
            self.changes.push(Change { revision, key: key.clone(), removed: value.is_none() });
            self.revision = revision;
        }
        Ok(self.revision)
    }

    fn revision(&self) -> StoreResult<Revision> {
        Ok(self.revision)
    }

    fn changes(&self, after: Revision, limit: usize) -> StoreResult<Vec<Change>> {
        if after < self.kept_after {
            return Err(StoreError::Forgotten { kept_after: self.kept_after });
        }
        let from = self.changes.partition_point(|c| c.revision <= after);
        let rest = &self.changes[from..];
        // Up to the end of the transaction that the limit falls into.
        let end = match limit.checked_sub(1).and_then(|last| rest.get(last)) {
            Some(last) => rest.partition_point(|c| c.revision <= last.revision),
            None if limit == 0 => 0,
            None => rest.len(),
        };
        Ok(rest[..end].to_vec())
    }

    fn forget_before(&mut self, revision: Revision) -> StoreResult<()> {
        self.kept_after = self.kept_after.max(revision.min(self.revision));
        self.changes.retain(|c| c.revision > self.kept_after);
        Ok(())
    }
}
