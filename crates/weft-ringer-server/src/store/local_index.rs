//! The index of a cell whose store has none: in SQLite, in a file of this process that nobody else
//! sees. It is made from what the store has, page by page, and changes with every transaction.
//!
//! Invariant: what is behind the place where reading goes on is as the store has it, and so is what
//! transactions have changed since before it. Who reads a record that a transaction has changed
//! already reads what the transaction wrote. So the index is exact once all was read; nothing is
//! searched before that.

use rusqlite::Connection;
use weft_ringer::query::Query;
use weft_ringer::{RnodeId, Version};

use super::{SqlResult, index};
use weft_ringer::store::{Having, Hits, IndexChange, IndexSource, Record, Term};

#[derive(Debug)]
pub(super) struct LocalIndex {
    db: Connection,
    source: IndexSource,
    /// Which of the ranges is read, and from which key on.
    range: usize,
    from: Vec<u8>,
}

impl LocalIndex {
    pub(super) fn new(source: IndexSource) -> SqlResult<Self> {
        // An empty name: a file in the directory for temporary ones, gone when it is closed.
        let db = Connection::open("")?;
        db.pragma_update(None, "synchronous", "OFF")?;
        db.execute_batch(index::TABLES)?;
        db.execute_batch(index::TEXT_TABLES)?;
        let from = source.ranges.first().map(|range| range.0.to_vec()).unwrap_or_default();
        Ok(Self { db, source, range: 0, from })
    }

    /// Which part of the store is to be read next, and how many records of it; `None` once all was
    /// read.
    pub(super) fn wants(&self) -> Option<(Vec<u8>, Vec<u8>, usize)> {
        let (_, to, page) = self.source.ranges.get(self.range)?;
        Some((self.from.clone(), to.to_vec(), *page))
    }

    /// Takes a page of what it [`wants`](Self::wants).
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

    /// Does what a transaction changes.
    pub(super) fn update(&mut self, changes: &[IndexChange]) -> SqlResult<()> {
        let db = self.db.transaction()?;
        for change in changes {
            index::update(&db, change)?;
        }
        Ok(db.commit()?)
    }

    /// `None` as long as not everything was read.
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

    /// `None` as long as not everything was read.
    pub(super) fn having(&self, attribute: &str, limit: usize) -> SqlResult<Option<Having>> {
        if self.wants().is_some() {
            return Ok(None);
        }
        index::having(&self.db, attribute, limit).map(Some)
    }

    /// `None` as long as not everything was read, or if there is too much.
    pub(super) fn terms(&self, max: usize) -> SqlResult<Option<Vec<Term>>> {
        if self.wants().is_some() { Ok(None) } else { index::terms(&self.db, max) }
    }

    /// `None` as long as not everything was read.
    pub(super) fn search(&self, query: &Query, limit: usize) -> SqlResult<Option<Hits>> {
        if self.wants().is_some() {
            return Ok(None);
        }
        index::search(&self.db, query, limit).map(Some)
    }
}
