//! A store in an etcd cluster, for cells with several servers: one owns the cell and serves it, the
//! others stand by.
//!
//! Source: <https://etcd.io/docs/v3.6/learning/api/> and `api_guarantees`: transactions are
//! strictly serializable and durable on a majority when they are answered; reads are linearizable.
//!
//! Invariants:
//! - **Fencing.** Each transaction of etcd compares the owner's key (`session`) and the tail, and
//!   changes the tail. So a server that does not own the cell changes nothing, however late its
//!   request comes; and a request that comes twice is carried out once.
//! - **The outcome of a lost answer is determined.** The same request is sent again until it is
//!   answered. If its comparison fails and the tail is as this request would have left it, it was
//!   carried out before. If there is no answer until the session ends, the outcome is unknown, no
//!   client gets an answer, and this server is no longer the owner.
//! - The expectations of a transaction are compared here, with records that no other server can
//!   have changed: etcd compares that the tail is still the one they were read under.
//! - A transaction larger than etcd's limit is first stored beside the records in parts. It is
//!   committed when the tail says so, in one transaction of etcd; then it is carried out, from its
//!   parts, by this server or the next before it does anything else.

mod cache;
mod gateway;
mod layout;
mod session;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weft_ringer::query::Query;
use weft_ringer::wire::{decode, encode};
use weft_ringer::{RnodeId, Version};

use self::cache::Cache;
use self::gateway::{
    B64, CallError, Compare, Gateway, Int, KeyValue, Op, Range, RangeAsk, Txn, TxnAsk,
};
use self::layout::{
    Blob, Changed, Found, Keys, PART_BYTES, Step, TXN_MAX_BYTES, TXN_MAX_OPS, Tail, damaged, parts,
};
use self::session::{Election, Session};
use super::local_index::LocalIndex;
use weft_ringer::store::{
    CellStore, Change, Having, Hits, IndexSource, Record, Revision, Store, StoreError, StoreResult,
    Term, Transaction,
};

/// The maximum number of transactions that [`Store::changes`] covers.
const LOG_KEPT: u64 = 1000;
/// The maximum number of changes in one transaction, which takes some three seconds.
const CHANGES_MAX: usize = 10_000;
/// The number of records in the first page of a range; pages grow while they are small.
const PAGE: usize = 256;
/// A page with fewer bytes may grow, one with more than 16 times as many shrinks.
const PAGE_BYTES: usize = 256 << 10;
/// The maximum number of records in a page.
const PAGE_MAX: usize = 8192;

/// Records after a transaction, by key; `None` for removed ones.
type After = Vec<(Vec<u8>, Option<Record>)>;

/// The location of a cell in etcd, and the access to it.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// The members: `http://HOST:PORT` or `https://HOST:PORT`; without a scheme the latter if there
    /// are certificates.
    pub endpoints: Vec<String>,
    /// A directory with `ca-cert.pem` and, if etcd requires one, `client-cert.pem` and
    /// `client-key.pem`.
    pub certificates: Option<PathBuf>,
    /// The name of the cell: 1 to 255 bytes without a slash.
    pub cell: String,
    /// The time for which etcd keeps the cell for an owner that does not renew, in whole seconds.
    /// Short: others take over soon. Long: an etcd without a leader for a while does no harm.
    pub session: Duration,
}

impl EtcdOptions {
    /// The default options.
    #[must_use]
    pub fn new(endpoints: Vec<String>, cell: String) -> Self {
        Self { endpoints, certificates: None, cell, session: Duration::from_secs(5) }
    }
}

/// A cell in etcd that this server does not own.
#[derive(Debug)]
pub struct EtcdCell {
    gateway: Arc<Gateway>,
    keys: Keys,
    session: Duration,
    source: IndexSource,
}

/// The result of [`EtcdCell::take`].
#[derive(Debug)]
pub enum Taken {
    /// This server owns the cell now.
    Ours(Box<EtcdStore>),
    /// Another server owns the cell; its address.
    Theirs(String),
}

impl EtcdCell {
    /// Makes a handle without a request to etcd.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if an option is wrong.
    pub fn new(options: &EtcdOptions, source: IndexSource) -> StoreResult<Self> {
        let gateway = Gateway::new(&options.endpoints, options.certificates.as_deref())?;
        let keys = Keys::new(&options.cell)?;
        Ok(Self { gateway: Arc::new(gateway), keys, session: options.session, source })
    }

    /// Returns the address of the owner, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if no member answers.
    pub fn owner(&self) -> StoreResult<Option<String>> {
        let owner = session::owner(&self.gateway, &self.keys.owner())?;
        Ok(owner.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// Takes the cell if it has no owner; others are told that the owner is reached at
    /// `reached_at`.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if no member answers, or the cell is of a later version.
    pub fn take(&self, reached_at: &str) -> StoreResult<Taken> {
        match session::elect(&self.gateway, self.keys.owner(), reached_at, self.session)? {
            Election::Won(session) => {
                EtcdStore::open(self, session).map(|store| Taken::Ours(Box::new(store)))
            }
            Election::Lost(owner) => {
                Ok(Taken::Theirs(String::from_utf8_lossy(&owner).into_owned()))
            }
        }
    }
}

/// The store of the server that owns a cell in etcd. When it is dropped another server may take the
/// cell.
#[derive(Debug)]
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    keys: Keys,
    session: Session,
    tail: Tail,
    /// The revision of etcd that put the tail there; 0 if there is none.
    tail_changed: Int,
    cache: RefCell<Cache>,
    index: LocalIndex,
}

impl EtcdStore {
    fn open(cell: &EtcdCell, session: Session) -> StoreResult<Self> {
        let mut store = Self {
            gateway: Arc::clone(&cell.gateway),
            keys: cell.keys.clone(),
            session,
            tail: Tail::new(),
            tail_changed: Int(0),
            cache: RefCell::default(),
            index: LocalIndex::new(cell.source)?,
        };
        let tail = store.ask_range(store.keys.tail(), None, None)?;
        if let Some(tail) = tail.first() {
            store.tail = Tail::decode(&tail.value.0)?;
            store.tail_changed = tail.mod_revision;
        }
        if store.tail.pending > 0 {
            let bytes = store.read_pending()?;
            let steps: Vec<Step> =
                decode(&bytes).map_err(|_| damaged("a transaction under way"))?;
            store.carry_out_pending(steps)?;
        }
        Ok(store)
    }

    /// Sends a request, repeatedly until the session ends.
    fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        ask: &Q,
    ) -> StoreResult<A> {
        if !self.session.is_owner() {
            return Err(StoreError::Fenced);
        }
        match self.gateway.call(path, ask, self.session.ends()) {
            Ok(answer) => Ok(answer),
            Err(CallError::Away(why)) => {
                // The session may have been renewed meanwhile; but the request has no answer, so it
                // ends all the same.
                tracing::warn!("this server gives up ownership of the cell: {why}");
                self.session.lose();
                Err(StoreError::Fenced)
            }
            Err(no) => Err(no.into()),
        }
    }

    fn ask_range(
        &self,
        key: Vec<u8>,
        end: Option<Vec<u8>>,
        limit: Option<usize>,
    ) -> StoreResult<Vec<KeyValue>> {
        let limit = limit.map(|l| Int(i64::try_from(l).unwrap_or(i64::MAX)));
        let ask = RangeAsk { key: B64(key), range_end: end.map(B64), limit };
        self.ask::<_, Range>("/v3/kv/range", &ask).map(|range| range.kvs)
    }

    /// Makes one transaction of etcd: `ops`, and `tail` in place of the present one.
    fn step(&mut self, mut ops: Vec<Op>, mut tail: Tail) -> StoreResult<()> {
        tail.step = self.tail.step + 1;
        let tail_key = self.keys.tail();
        ops.push(Op::put(tail_key.clone(), encode(&tail)));
        let ask = TxnAsk {
            compare: vec![
                self.session.compare(),
                Compare::changed(tail_key.clone(), self.tail_changed),
            ],
            success: ops,
            failure: vec![self.session.look(), Op::get(tail_key)],
        };
        let answer: Txn = self.ask("/v3/kv/txn", &ask)?;
        if answer.succeeded {
            (self.tail, self.tail_changed) = (tail, answer.header.revision);
            return Ok(());
        }
        let mut found = answer.ranges();
        let (owner, at) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
        if !self.session.is_ours(&owner) {
            self.session.lose();
            return Err(StoreError::Fenced);
        }
        match at.first() {
            // Carried out by the first request, whose answer was lost.
            Some(kv) if Tail::decode(&kv.value.0)? == tail => {
                (self.tail, self.tail_changed) = (tail, kv.mod_revision);
                Ok(())
            }
            _ => {
                self.session.lose();
                Err(StoreError::Failed(
                    "the cell in etcd was changed by a process that does not own it".into(),
                ))
            }
        }
    }

    /// Carries out steps in one transaction of etcd, or through stored parts if they are too large
    /// for that.
    fn carry_out(&mut self, steps: Vec<Step>, tail: Tail) -> StoreResult<()> {
        let bytes: usize = steps.iter().map(Step::len_bytes).sum();
        if steps.len() < TXN_MAX_OPS && bytes <= TXN_MAX_BYTES {
            return self.step(steps.into_iter().map(Step::into_op).collect(), tail);
        }
        let encoded = encode(&steps);
        let mut count = 0;
        for part in encoded.chunks(PART_BYTES) {
            let put = Op::put(self.keys.pending(count), part.to_vec());
            self.step(vec![put], self.tail)?;
            count += 1;
        }
        self.step(Vec::new(), Tail { pending: count, ..tail })?;
        // It is committed: an error that etcd is full must not say that it is not.
        self.carry_out_pending(steps).map_err(|e| match e {
            StoreError::Full => StoreError::Failed("etcd is full".into()),
            e => e,
        })
    }

    fn carry_out_pending(&mut self, steps: Vec<Step>) -> StoreResult<()> {
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for step in steps {
            let more = step.len_bytes();
            if ops.len() + 1 >= TXN_MAX_OPS || (bytes + more > TXN_MAX_BYTES && !ops.is_empty()) {
                self.step(std::mem::take(&mut ops), self.tail)?;
                bytes = 0;
            }
            bytes += more;
            ops.push(step.into_op());
        }
        self.step(ops, self.tail)?;
        let parts = Op::delete_range(self.keys.pending(0), self.keys.pending(self.tail.pending));
        self.step(vec![parts], Tail { pending: 0, ..self.tail })
    }

    fn read_pending(&self) -> StoreResult<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in 0..self.tail.pending {
            let found = self.ask_range(self.keys.pending(part), None, None)?;
            let kv = found.into_iter().next();
            bytes.extend(kv.ok_or_else(|| damaged("a transaction under way"))?.value.0);
        }
        Ok(bytes)
    }

    fn record(&self, key: &[u8], kv: KeyValue) -> StoreResult<Record> {
        let (revision, len_bytes) = match layout::read(kv)? {
            Found::Whole(record) => return Ok(record),
            Found::Cut { revision, len_bytes } => (revision, len_bytes),
        };
        let mut value = Vec::new();
        for part in 0..parts(len_bytes) {
            let found = self.ask_range(self.keys.part(key, part), None, None)?;
            value.extend(found.into_iter().next().ok_or_else(|| damaged("a long record"))?.value.0);
        }
        if value.len() != len_bytes {
            return Err(damaged("a long record"));
        }
        Ok(Record { value, revision })
    }

    /// Reads keys, in as few requests as etcd allows, and caches them.
    fn fetch(&self, keys: &[&[u8]]) -> StoreResult<Vec<Option<Record>>> {
        let mut records = Vec::new();
        for chunk in keys.chunks(TXN_MAX_OPS) {
            let success = chunk.iter().map(|key| Op::get(self.keys.record(key))).collect();
            let ask = TxnAsk { success, ..TxnAsk::default() };
            let answer: Txn = self.ask("/v3/kv/txn", &ask)?;
            let found: Vec<_> = answer.ranges().collect();
            if found.len() != chunk.len() {
                return Err(damaged("an answer"));
            }
            for (key, kvs) in chunk.iter().zip(found) {
                let record = kvs.into_iter().next().map(|kv| self.record(key, kv)).transpose()?;
                self.cache.borrow_mut().put(key.to_vec(), record.clone());
                records.push(record);
            }
        }
        Ok(records)
    }

    fn fetch_unknown<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> StoreResult<()> {
        let mut unknown: Vec<&[u8]> =
            keys.into_iter().filter(|key| !self.cache.borrow().knows(key)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        self.fetch(&unknown).map(|_| ())
    }

    /// Returns the changes of a transaction as steps, and the records after it.
    fn plan(
        &self,
        transaction: &Transaction,
        revision: Revision,
    ) -> StoreResult<(Vec<Step>, After)> {
        let last: BTreeMap<_, _> = transaction.changes.iter().map(|(k, v)| (k, v)).collect();
        let (mut steps, mut after, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for (key, value) in last {
            let old = self.cache.borrow_mut().get(key);
            match value {
                Some(value) => {
                    let record = Record { value: value.clone(), revision };
                    let old_bytes = old.map(|old| old.map_or(0, |old| old.value.len()));
                    self.keys.put(key, &record, old_bytes, &mut steps);
                    after.push((key.clone(), Some(record)));
                }
                None => {
                    // It was read above, unless the cache was too small for all.
                    let Some(old) = old.map_or_else(|| self.get(key), Ok)? else { continue };
                    self.keys.remove(key, old.value.len(), &mut steps);
                    after.push((key.clone(), None));
                }
            }
            changed.push(Changed { key: Blob(key.clone()), removed: value.is_none() });
        }
        if !changed.is_empty() {
            steps.push(Step::put(self.keys.logged(revision), encode(&changed)));
        }
        Ok((steps, after))
    }
}

impl Store for EtcdStore {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Record>> {
        if !self.session.is_owner() {
            return Err(StoreError::Fenced);
        }
        if let Some(known) = self.cache.borrow_mut().get(key) {
            return Ok(known);
        }
        Ok(self.fetch(&[key])?.pop().flatten())
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Record)>> {
        let mut records = Vec::new();
        let (mut from, to) = (self.keys.record(from), self.keys.record(to));
        let mut page = PAGE;
        while from < to && records.len() < limit {
            let wanted = page.min(limit - records.len());
            let found = self.ask_range(from.clone(), Some(to.clone()), Some(wanted))?;
            let (count, mut bytes) = (found.len(), 0);
            for kv in found {
                from = [&kv.key.0[..], &[0]].concat();
                let key = self.keys.of_record(&kv.key.0)?.to_vec();
                let record = self.record(&key, kv)?;
                bytes += record.value.len();
                records.push((key, record));
            }
            if count < wanted {
                break;
            }
            if bytes < PAGE_BYTES {
                page = (page * 2).min(PAGE_MAX);
            } else if bytes > PAGE_BYTES * 16 {
                page = (page / 2).max(1);
            }
        }
        Ok(records)
    }

    fn prefetch(&self, keys: &[Vec<u8>]) -> StoreResult<()> {
        self.fetch_unknown(keys.iter().map(Vec::as_slice))
    }

    fn commit(&mut self, transaction: &Transaction) -> StoreResult<Revision> {
        let removed = transaction.changes.iter().filter(|(_, value)| value.is_none());
        let asked =
            transaction.expect.iter().map(|(key, _)| key).chain(removed.map(|(key, _)| key));
        self.fetch_unknown(asked.map(Vec::as_slice))?;
        for (key, expected) in &transaction.expect {
            if self.get(key)?.map(|record| record.revision) != *expected {
                return Err(StoreError::Conflict { key: key.clone() });
            }
        }
        let revision = Revision(self.tail.revision.0 + 1);
        let (mut steps, after) = self.plan(transaction, revision)?;
        if after.is_empty() {
            return Ok(self.tail.revision);
        }
        let mut tail = Tail { revision, ..self.tail };
        if revision.0 - tail.kept_after.0 > LOG_KEPT {
            tail.kept_after = Revision(revision.0 - LOG_KEPT);
            steps.push(Step::remove(self.keys.logged(tail.kept_after)));
        }
        self.carry_out(steps, tail)?;
        let cache = self.cache.get_mut();
        for (key, record) in after {
            cache.put(key, record);
        }
        self.index.update(&transaction.index)?;
        Ok(revision)
    }

    fn changes_max(&self) -> usize {
        CHANGES_MAX
    }

    fn revision(&self) -> StoreResult<Revision> {
        Ok(self.tail.revision)
    }

    fn changes(&self, after: Revision, limit: usize) -> StoreResult<Vec<Change>> {
        let kept_after = self.tail.kept_after;
        if after < kept_after {
            return Err(StoreError::Forgotten { kept_after });
        }
        let mut changes = Vec::new();
        let mut from = after.0.saturating_add(1);
        let end = self.tail.revision.0.saturating_add(1);
        while from < end && changes.len() < limit {
            let (key, to) = (self.keys.logged(Revision(from)), self.keys.logged(Revision(end)));
            // Each transaction has one change at least.
            let wanted = (limit - changes.len()).min(PAGE);
            let found = self.ask_range(key, Some(to), Some(wanted))?;
            if found.is_empty() {
                break;
            }
            for kv in found {
                let revision = self.keys.of_logged(&kv.key.0)?;
                from = revision.0.saturating_add(1);
                if changes.len() >= limit {
                    continue;
                }
                let list: Vec<Changed> =
                    decode(&kv.value.0).map_err(|_| damaged("the log of changes"))?;
                let list = list.into_iter();
                changes.extend(list.map(|c| Change { revision, key: c.key.0, removed: c.removed }));
            }
        }
        Ok(changes)
    }

    fn forget_before(&mut self, revision: Revision) -> StoreResult<()> {
        let kept_after = self.tail.kept_after.max(revision.min(self.tail.revision));
        if kept_after == self.tail.kept_after {
            return Ok(());
        }
        let from = self.keys.logged(self.tail.kept_after);
        let to = self.keys.logged(Revision(kept_after.0 + 1));
        let forget = Op::delete_range(from, to);
        self.step(vec![forget], Tail { kept_after, ..self.tail })
    }
}

impl CellStore for EtcdStore {
    fn search(&self, query: &Query, limit: usize) -> StoreResult<Option<Hits>> {
        Ok(self.index.search(query, limit)?)
    }

    fn texts(&self, after: RnodeId, limit: usize) -> StoreResult<Option<Vec<(RnodeId, Version)>>> {
        Ok(self.index.texts(after, limit)?)
    }

    fn having(&self, attribute: &str, limit: usize) -> StoreResult<Option<Having>> {
        Ok(self.index.having(attribute, limit)?)
    }

    fn terms(&self, max: usize) -> StoreResult<Option<Vec<Term>>> {
        Ok(self.index.terms(max)?)
    }

    fn is_owned(&self) -> bool {
        self.session.is_owner()
    }

    fn idle(&mut self) -> StoreResult<()> {
        let Some((from, to, page)) = self.index.wants() else { return Ok(()) };
        let found = self.range(&from, &to, page)?;
        Ok(self.index.learn(&found)?)
    }
}
