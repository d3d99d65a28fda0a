//! The interface of a metadata server's store: ordered keys, and transactions that are carried out
//! only if the records they depend on are unchanged.
//!
//! The trait is small, so that a store can be a map in memory (the model, below), SQLite in one
//! file, or a replicated cluster. Invariants of every implementation:
//!
//! - A transaction is atomic, also over a crash, and is durable when [`commit`](Store::commit)
//!   returns.
//! - Each transaction that changes something has a revision, one more than the last; a record has
//!   the revision that put it there. So "unchanged since" is one comparison.
//! - [`changes`](Store::changes) returns each change once, in the order of revisions; or an error,
//!   if they were forgotten ([`forget_before`](Store::forget_before)).

mod memory;

use crate::query::{Kind, Query};
use crate::rnode::{Rnode, TAGS_XATTR};
use crate::text::ToldText;
use crate::types::{RnodeId, Version};
use crate::wire::{Reader, Wire, WireError};

pub use memory::MemoryStore;

/// The number of transactions that have changed a store so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

impl Wire for Revision {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        u64::get(from).map(Self)
    }
}

/// A value, and the revision that put it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The bytes.
    pub value: Vec<u8>,
    /// The transaction that put it there.
    pub revision: Revision,
}

/// An atomic transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// Each key must have been put by this revision, or be absent; else the transaction fails.
    pub expect: Vec<(Vec<u8>, Option<Revision>)>,
    /// The new value of each key, or `None` to remove it. Of two changes of one key the later
    /// counts.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The changes of the index with them, in order. A store without an index ignores them.
    pub index: Vec<IndexChange>,
}

/// The attributes of an rnode that can be searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The kind.
    pub kind: Kind,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Last change of content, in seconds since 1970.
    pub mtime_secs: i64,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its `user.` attributes but the tags, without the prefix, as far as they are text of at most
    /// [`Facts::VALUE_MAX_BYTES`].
    pub attributes: Vec<(String, String)>,
}

impl Facts {
    /// The longest attribute that can be searched for, in bytes.
    pub const VALUE_MAX_BYTES: usize = 1024;

    /// Returns those of an rnode.
    #[must_use]
    pub fn of(rnode: &Rnode) -> Self {
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let attributes = rnode.xattrs.iter().filter_map(|(name, value)| {
            let is_short = value.0.len() <= Self::VALUE_MAX_BYTES;
            let name =
                name.0.strip_prefix(b"user.").filter(|_| is_short && name.0 != TAGS_XATTR)?;
            Some((text(name)?, text(&value.0)?))
        });
        Self {
            kind: rnode.kind().into(),
            size_bytes: rnode.size_bytes(),
            mtime_secs: rnode.mtime.secs,
            tags: rnode.tags().filter_map(text).collect(),
            attributes: attributes.collect(),
        }
    }
}

/// A change of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexChange {
    /// A name.
    Name {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Vec<u8>,
        /// The rnode that it names now; `None` if it was removed.
        rnode: Option<RnodeId>,
    },
    /// An rnode.
    File {
        /// The rnode.
        rnode: RnodeId,
        /// Its facts now; `None` if it was removed.
        facts: Option<Facts>,
    },
    /// The text of a file.
    Text {
        /// The file.
        rnode: RnodeId,
        /// Its text, with the version of the content; `None` if it is not indexed any more.
        told: Option<ToldText>,
    },
}

impl IndexChange {
    /// Returns true if a search may find something after this that it did not find before.
    #[must_use]
    pub fn adds(&self) -> bool {
        match self {
            Self::Name { rnode, .. } => rnode.is_some(),
            Self::File { facts, .. } => facts.is_some(),
            Self::Text { told, .. } => told.is_some(),
        }
    }
}

impl Transaction {
    /// Sets `key`.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.push((key, Some(value)));
    }

    /// Removes `key`, if it exists.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }
}

/// One key that a transaction set or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The transaction.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// Whether it was removed.
    pub removed: bool,
}

/// The reason why a call of a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A key is not as the transaction expects: nothing was changed.
    #[error("write conflict: another server changed key {key:02x?}")]
    Conflict {
        /// The key.
        key: Vec<u8>,
    },
    /// The changes asked for were forgotten: the caller must read everything anew.
    #[error("revision too old: changes are kept only after revision {}", kept_after.0)]
    Forgotten {
        /// The revision after which changes are known.
        kept_after: Revision,
    },
    /// The store is full.
    #[error("the store is full")]
    Full,
    /// This server does not own the cell, or not any more: every call is refused. The outcome of a
    /// transaction in progress is not known.
    #[error("this server no longer owns the cell")]
    Fenced,
    /// The storage below failed. The outcome of a transaction in progress is not known; opening the
    /// store again shows it.
    #[error("the store failed: {0}")]
    Failed(String),
}

/// The result of a call of a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// A store of ordered keys.
pub trait Store {
    /// Returns the record of a key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn get(&self, key: &[u8]) -> StoreResult<Option<Record>>;

    /// Returns the first `limit` records from key `from` on, in the order of keys, before key `to`.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Record)>>;

    /// Reads keys that are needed soon, if it is quicker to read them together.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn prefetch(&self, _keys: &[Vec<u8>]) -> StoreResult<()> {
        Ok(())
    }

    /// Carries out a transaction, durably. Returns its revision, or the last revision if it changes
    /// nothing.
    ///
    /// # Errors
    /// [`StoreError::Conflict`], [`StoreError::Full`]: nothing was changed. [`StoreError::Failed`].
    fn commit(&mut self, transaction: &Transaction) -> StoreResult<Revision>;

    /// Returns the most changes that a transaction may have while other requests wait.
    fn changes_max(&self) -> usize {
        usize::MAX
    }

    /// Returns the last revision.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn revision(&self) -> StoreResult<Revision>;

    /// Returns the changes after revision `after`, whole transactions in their order, at least
    /// `limit` changes if there are as many.
    ///
    /// # Errors
    /// [`StoreError::Forgotten`], [`StoreError::Failed`].
    fn changes(&self, after: Revision, limit: usize) -> StoreResult<Vec<Change>>;

    /// Discards the changes of transactions up to `revision` from [`changes`](Self::changes).
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn forget_before(&mut self, revision: Revision) -> StoreResult<()>;
}

/// The way in which the index of a cell is built from its store.
#[derive(Debug, Clone, Copy)]
pub struct IndexSource {
    /// The ranges of keys that are indexed, each from its first key to before its second, and the
    /// number of records to read at once.
    pub ranges: &'static [(&'static [u8], &'static [u8], usize)],
    /// Returns the change of the index for a key and its value.
    pub read: fn(&[u8], &[u8]) -> StoreResult<Option<IndexChange>>,
}

/// Rnodes found, with their paths.
pub type Hits = Vec<(RnodeId, Vec<u8>)>;

/// A term that can be searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// A tag.
    Tag(String),
    /// The name of an attribute, without the prefix.
    Attribute(String),
    /// A word of a name, as the index has it: in small letters, without accents.
    Word(String),
}

/// Rnodes that have an attribute, with their paths and its value.
pub type Having = Vec<(RnodeId, Vec<u8>, String)>;

/// The store of a server: it can be searched, and another server may take it over.
pub trait CellStore: Store + std::fmt::Debug + Send {
    /// Returns the rnodes that match a query with their paths, in path order, at most `limit`.
    /// `None` while the index is being built.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn search(&self, query: &Query, limit: usize) -> StoreResult<Option<Hits>>;

    /// Returns the first `limit` files after `after` whose text is indexed, each with the version
    /// of its content, in order. `None` while the index is being built.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn texts(&self, after: RnodeId, limit: usize) -> StoreResult<Option<Vec<(RnodeId, Version)>>>;

    /// Returns the first `limit` rnodes that have an attribute, named without its prefix, with
    /// their paths and its value. `None` while the index is being built.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn having(&self, attribute: &str, limit: usize) -> StoreResult<Option<Having>>;

    /// Returns all terms that can be searched for, and possibly former ones. `None` if there are
    /// more than `max`, or while the index is being built.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn terms(&self, max: usize) -> StoreResult<Option<Vec<Term>>>;

    /// Returns the last revision that may have added something that can be searched for.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn added(&self) -> StoreResult<Revision> {
        self.revision()
    }

    /// Returns descriptions of damage to the store itself, below its records, as far as it can be
    /// detected.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn damage(&self) -> StoreResult<Vec<String>> {
        Ok(Vec::new())
    }

    /// Returns true if no other server can have taken over. Data read before this call is valid if
    /// it returns true.
    fn is_owned(&self) -> bool {
        true
    }

    /// Does a little deferred work.
    ///
    /// # Errors
    /// [`StoreError`].
    fn idle(&mut self) -> StoreResult<()> {
        Ok(())
    }
}
