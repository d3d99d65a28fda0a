//! The texts of files, kept for the index.
//!
//! Invariants:
//! - The text kept of a file (`t` and `T`, see `records`) is that of its present content: the
//!   transaction that changes the content removes the text.
//! - The index has exactly the texts that are kept, with the same contents: both change in one
//!   transaction.
//!
//! In addition, texts that no policy asks for any more are removed: they are swept after every
//! change that may give a file another policy, and when the server starts. A sweep also repairs
//! violations of the first invariant, as a server that knows of no texts would leave them.

use std::collections::{BTreeMap, BTreeSet};

use super::Mds;
use super::check::{Checked, Problem};
use super::paths::policy;
use super::records::{self, key, number_of};
use super::stop::Stop;
use crate::encryption::is_encrypted;
use crate::error::Refusal;
use crate::op::{Effects, Op};
use crate::policy::POLICY_XATTR;
use crate::rnode::{Body, Rnode};
use crate::store::{CellStore, IndexChange, Store, StoreError, StoreResult, Transaction};
use crate::text::{Text, ToldText};
use crate::types::{RnodeId, Version};
use crate::wire::{Reply, decode, encode};

/// Files that a sweep checks each time.
const SWEPT_AT_ONCE: usize = 100;
/// Files whose index entries are read at a time.
const PAGE: usize = 1000;

fn content_key(id: RnodeId) -> Vec<u8> {
    key(b't', id.0)
}

fn text_key(id: RnodeId) -> Vec<u8> {
    key(b'T', id.0)
}

/// Returns the version of a file's content whose text is kept.
pub(super) fn told(store: &dyn Store, id: RnodeId) -> StoreResult<Option<Version>> {
    records::load(store, &content_key(id), "text")
}

fn put(id: RnodeId, told: ToldText, transaction: &mut Transaction) {
    transaction.put(content_key(id), encode(&told.content));
    transaction.put(text_key(id), encode(&told));
    transaction.index.push(IndexChange::Text { rnode: id, told: Some(told) });
}

fn remove(id: RnodeId, transaction: &mut Transaction) {
    transaction.remove(content_key(id));
    transaction.remove(text_key(id));
    transaction.index.push(IndexChange::Text { rnode: id, told: None });
}

/// Removes the text of a file whose content has changed, or that is gone.
pub(super) fn outdated(
    store: &dyn Store,
    id: RnodeId,
    transaction: &mut Transaction,
) -> StoreResult<()> {
    if store.get(&content_key(id))?.is_some() {
        remove(id, transaction);
    }
    Ok(())
}

/// Returns true if a file may have another policy after a change: its names or a policy changed.
pub(super) fn moves_policies(op: &Op, effects: &Effects) -> bool {
    let is_named = |rnode: &&Rnode| rnode.nlink > 0 && !rnode.is_dir();
    let named = || effects.rnodes.values().filter(is_named).count();
    match op {
        Op::SetXattr { name, .. } | Op::RemoveXattr { name, .. } => name.0 == POLICY_XATTR,
        Op::Rename { parent, new_parent, .. } => parent != new_parent || named() > 1,
        Op::Link { .. } => true,
        Op::Unlink { .. } => named() > 0,
        _ => false,
    }
}

/// The progress of a sweep.
#[derive(Debug)]
pub(super) struct Sweep {
    /// The next key; `None` if no sweep is in progress.
    from: Option<Vec<u8>>,
    /// A policy may have changed since the sweep began: another follows.
    again: bool,
}

impl Sweep {
    pub(super) fn new() -> Self {
        Self { from: Some(b"t".to_vec()), again: false }
    }

    /// Begins a sweep; if one is in progress, another follows it.
    pub(super) fn begin(&mut self) {
        match self.from {
            None => *self = Self::new(),
            Some(_) => self.again = true,
        }
    }
}

impl Mds {
    /// Stores the text of a file that a client sent.
    pub(super) fn take_text(
        &self,
        store: &mut dyn Store,
        id: RnodeId,
        content: Version,
        text: &Text,
    ) -> Result<Reply, Stop> {
        let rnode = records::load_rnode(store, id)?.ok_or(Refusal::Stale)?;
        let Body::File { size_bytes, content: now, .. } = &rnode.body else {
            return Err(Refusal::Invalid.into());
        };
        if *now != content {
            return Err(Refusal::Changed.into());
        }
        if is_encrypted(&rnode) {
            return Err(Refusal::NotPermitted.into());
        }
        if id.is_of_snapshot() || *size_bytes != text.size_bytes() {
            return Err(Refusal::Invalid.into());
        }
        if rnode.nlink == 0 || policy(store, &rnode)?.text_bytes < *size_bytes {
            return Err(Refusal::NotPermitted.into());
        }
        if told(store, id)? == Some(content) {
            return Ok(Reply::Held {});
        }
        let mut transaction = Transaction::default();
        put(id, ToldText { content, text: text.clone() }, &mut transaction);
        match self.commit(store, transaction) {
            Ok(_) => Ok(Reply::Held {}),
            Err(StoreError::Full) => Err(Refusal::NoSpace.into()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes some of the texts that no policy asks for, if a sweep is in progress.
    pub(super) fn sweep_texts(&mut self, store: &mut dyn Store) -> StoreResult<()> {
        let Some(from) = self.texts.from.take() else { return Ok(()) };
        let found = store.range(&from, b"u", SWEPT_AT_ONCE)?;
        let mut transaction = Transaction::default();
        for (key, record) in &found {
            let id = RnodeId(number_of(key)?);
            let content: Option<Version> = decode(&record.value).ok();
            let wanted = match records::load_rnode(store, id)? {
                Some(rnode) => match rnode.body {
                    Body::File { size_bytes, content: now, .. } => {
                        let room = policy(store, &rnode)?.text_bytes;
                        content == Some(now) && size_bytes <= room
                    }
                    _ => false,
                },
                None => false,
            };
            if !wanted {
                remove(id, &mut transaction);
            }
        }
        match found.last() {
            Some((last, _)) if found.len() == SWEPT_AT_ONCE => {
                self.texts.from = Some([&last[..], &[0]].concat());
            }
            _ if std::mem::take(&mut self.texts.again) => self.texts = Sweep::new(),
            _ => {}
        }
        if transaction.changes.is_empty() {
            return Ok(());
        }
        let committed = self.commit(store, transaction).map(|_| ());
        if matches!(committed, Err(StoreError::Full)) {
            self.texts.from = Some(from);
        }
        committed
    }

    /// Checks that the index has the texts that are kept, and no others, and repairs it. The
    /// records of the texts themselves are checked by [`check`](super::check()).
    ///
    /// # Errors
    /// Those of the store.
    pub fn check_texts(
        &mut self,
        store: &mut dyn CellStore,
        checked: &mut Checked,
    ) -> StoreResult<()> {
        let Some(indexed) = indexed(store)? else { return Ok(()) };
        let kept = kept(store)?;
        let ids: BTreeSet<RnodeId> = indexed.keys().chain(kept.keys()).copied().collect();
        for id in ids {
            let (is, should) = (indexed.get(&id), kept.get(&id));
            if is == should {
                continue;
            }
            let text = match (is, should) {
                (Some(_), None) => {
                    format!("text index: removed the entry of inode {id}, whose text is not stored")
                }
                (None, _) => format!("text index: added the missing entry of inode {id}"),
                (Some(_), Some(_)) => {
                    format!("text index: replaced the outdated entry of inode {id}")
                }
            };
            checked.add(Problem { code: "text-index", text });
            let mut transaction = Transaction::default();
            // An unreadable text is of no use.
            let told = store.get(&text_key(id))?.and_then(|r| decode(&r.value).ok());
            match told {
                Some(told) => put(id, told, &mut transaction),
                None => remove(id, &mut transaction),
            }
            // The index changes only together with records; this record keeps its value.
            transaction.put(records::NUMBERS.to_vec(), encode(&self.numbers));
            self.commit(store, transaction)?;
        }
        // Sweep the records themselves.
        self.texts.begin();
        Ok(())
    }
}

/// Returns the files whose texts are indexed, with the contents that the texts are of.
fn indexed(store: &dyn CellStore) -> StoreResult<Option<BTreeMap<RnodeId, Version>>> {
    let (mut all, mut after) = (BTreeMap::new(), RnodeId(0));
    loop {
        let Some(page) = store.texts(after, PAGE)? else { return Ok(None) };
        let Some((last, _)) = page.last() else { return Ok(Some(all)) };
        after = *last;
        all.extend(page);
    }
}

/// Returns the files whose texts are kept, with the contents.
fn kept(store: &dyn CellStore) -> StoreResult<BTreeMap<RnodeId, Version>> {
    let (mut all, mut from) = (BTreeMap::new(), b"t".to_vec());
    loop {
        let page = store.range(&from, b"u", PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(all) };
        from = [&last[..], &[0]].concat();
        for (key, record) in &page {
            // The default version stands for an unreadable record; no file has it.
            let content = decode(&record.value).unwrap_or_default();
            all.insert(RnodeId(number_of(key)?), content);
        }
    }
}
