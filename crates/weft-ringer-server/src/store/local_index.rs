//! The index of a cell whose store has none: in SQLite, in a private temporary file of this
//! process. It is built from the store's records, page by page, and updated with every transaction.
//!
//! Invariant: records before the position where reading continues are indexed as the store has
//! them, and so are those that transactions have changed after it. Reading a record that a
//! transaction has changed already reads what the transaction wrote. So the index is exact once all
//! was read; searches wait until then.

use rusqlite::Connection;
use weft_ringer::query::Query;
use weft_ringer::{RnodeId, Version};

use super::index;
use super::sql_error::SqlResult;
use weft_ringer::store::{Having, Hits, IndexChange, IndexSource, Record, Term};

#[derive(Debug)]
pub(super) struct LocalIndex {
    db: Connection,
    source: IndexSource,
    /// The range that is being read, and the next key in it.
    range: usize,
    from: Vec<u8>,
}

impl LocalIndex {
    pub(super) fn new(source: IndexSource) -> SqlResult<Self> {
        // An empty name: a file in the temporary directory, removed when it is closed.
        let db = Connection::open("")?;
        db.pragma_update(None, "synchronous", "OFF")?;
        db.execute_batch(index::TABLES)?;
        db.execute_batch(index::TEXT_TABLES)?;
        let from = source.ranges.first().map(|range| range.0.to_vec()).unwrap_or_default();
        Ok(Self { db, source, range: 0, from })
    }

    /// The part of the store to read next, and the number of records; `None` once all was read.
    pub(super) fn wants(&self) -> Option<(Vec<u8>, Vec<u8>, usize)> {
        let (_, to, page) = self.source.ranges.get(self.range)?;
        Some((self.from.clone(), to.to_vec(), *page))
    }

    /// Indexes a page of the records that it [`wants`](Self::wants).
    pub(super) fn learn(&mut self, records: &[(Vec<u8>, Record)]) -> SqlResult<()> {
        let mut changes = Vec::new();
        for (key, record) in records {
            changes.extend((self.source.read)(key, &record.value)?);
        }
        self.update(&changes)?;
        let page = self.source.ranges.get(self.range).map_or(0, |range| range.2);
        match records.last() {
            Some((last, _)) if records.len() >= page => {
                self.from = [&last[..], &[0]].concat();
            }
            _ => {
                self.range += 1;
                let next = self.source.ranges.get(self.range);
                self.from = next.map(|range| range.0.to_vec()).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Applies the changes of a transaction.
    pub(super) fn update(&mut self, changes: &[IndexChange]) -> SqlResult<()> {
        let db = self.db.transaction()?;
        for change in changes {
            index::update(&db, change)?;
        }
        Ok(db.commit()?)
    }

    /// Files whose text is indexed. `None` until everything was read.
    pub(super) fn texts(
        &self,
        after: RnodeId,
        limit: usize,
    ) -> SqlResult<Option<Vec<(RnodeId, Version)>>> {
        if self.wants().is_some() {
            return Ok(None);
        }
        index::texts(&self.db, after, limit).map(Some)
    }

    /// Rnodes with an attribute. `None` until everything was read.
    pub(super) fn having(&self, attribute: &str, limit: usize) -> SqlResult<Option<Having>> {
        if self.wants().is_some() {
            return Ok(None);
        }
        index::having(&self.db, attribute, limit).map(Some)
    }

    /// All terms. `None` until everything was read, or if there are more than `max`.
    pub(super) fn terms(&self, max: usize) -> SqlResult<Option<Vec<Term>>> {
        if self.wants().is_some() { Ok(None) } else { index::terms(&self.db, max) }
    }

    /// Rnodes that match a query. `None` until everything was read.
    pub(super) fn search(&self, query: &Query, limit: usize) -> SqlResult<Option<Hits>> {
        if self.wants().is_some() {
            return Ok(None);
        }
        index::search(&self.db, query, limit).map(Some)
    }
}
