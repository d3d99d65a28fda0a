//! Where a metadata server keeps its cell: ordered keys, and transactions that happen if what they
//! were made on is still so.
//!
//! The trait is small so that a store can be anything from a map in memory (the model, below) to
//! SQLite in one file, to a cluster that agrees. Invariants of every implementation:
//!
//! - A transaction happens whole or not at all, also over a crash, and is durable when
//!   [`commit`](Store::commit) returns.
//! - Each transaction that changes something has a revision, one more than the last; a record says
//!   which revision put it there. So "nobody changed this since" is one comparison.
//! - [`changes`](Store::changes) tells each change once, in the order of revisions; or says that it
//!   cannot, if they were forgotten ([`forget_before`](Store::forget_before)).

mod memory;

use crate::query::{Kind, Query};
use crate::rnode::{Rnode, TAGS_XATTR};
use crate::text::ToldText;
use crate::types::{RnodeId, Version};
use crate::wire::{Reader, Wire, WireError};

pub use memory::MemoryStore;

/// How many transactions changed a store so far.
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
    /// By which transaction.
    pub revision: Revision,
}

/// What happens together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// Each key must have been put by this revision, or be absent; else nothing happens.
    pub expect: Vec<(Vec<u8>, Option<Revision>)>,
    /// Each key gets this value, or is removed. Of two changes of one key the later counts.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// What changes of the index with them, in its order. A store that has none leaves it out.
    pub index: Vec<IndexChange>,
}

/// What can be searched for of an rnode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
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

    /// Those of an rnode.
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
    /// What a name is.
    Name {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Vec<u8>,
        /// What it is now; `None` if it is gone.
        rnode: Option<RnodeId>,
    },
    /// What an rnode is.
    File {
        /// Which.
        rnode: RnodeId,
        /// What it is now; `None` if it is gone.
        facts: Option<Facts>,
    },
    /// What the text of a file is.
    Text {
        /// Which file.
        rnode: RnodeId,
        /// What it says, and with which content; `None` if that is not searched for any more.
        told: Option<ToldText>,
    },
}

impl IndexChange {
    /// Whether something may be found after this that was not before.
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

    /// Removes `key`, if it is there.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }
}

/// One key that a transaction set or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which transaction.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// Whether it was removed.
    pub removed: bool,
}

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A key is not as the transaction expects: nothing happened.
    #[error("somebody else changed key {key:02x?}")]
    Conflict {
        /// Which.
        key: Vec<u8>,
    },
    /// The changes asked for were forgotten: read everything anew.
    #[error("changes are known after revision {}", kept_after.0)]
    Forgotten {
        /// After which revision they are known.
        kept_after: Revision,
    },
    /// The store is full.
    #[error("the store is full")]
    Full,
    /// This server does not own the cell, or not any more: whatever it does is refused. Whether a
    /// transaction under way happened is not known.
    #[error("this server does not own the cell any more")]
    Fenced,
    /// Something below failed. Whether a transaction under way happened is not known; it is found
    /// out by opening the store again.
    #[error("the store failed: {0}")]
    Failed(String),
}

/// The result of a call of a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// A store of ordered keys.
pub trait Store {
    /// The record of a key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn get(&self, key: &[u8]) -> StoreResult<Option<Record>>;

    /// The first `limit` records from key `from` on, in the order of keys, before key `to`.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Record)>>;

    /// Reads keys that are soon asked for, if it is quicker to read them together.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn prefetch(&self, _keys: &[Vec<u8>]) -> StoreResult<()> {
        Ok(())
    }

    /// Carries out a transaction, durably. Returns its revision; that of the last one if it changes
    /// nothing.
    ///
    /// # Errors
    /// [`StoreError::Conflict`], [`StoreError::Full`]: nothing happened. [`StoreError::Failed`].
    fn commit(&mut self, transaction: &Transaction) -> StoreResult<Revision>;

    /// How many changes one transaction may have that others wait for.
    fn changes_max(&self) -> usize {
        usize::MAX
    }

    /// The last revision.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn revision(&self) -> StoreResult<Revision>;

    /// What changed after revision `after`, whole transactions in their order, at least `limit`
    /// changes if there are as many.
    ///
    /// # Errors
    /// [`StoreError::Forgotten`], [`StoreError::Failed`].
    fn changes(&self, after: Revision, limit: usize) -> StoreResult<Vec<Change>>;

    /// Lets go of what [`changes`](Self::changes) would tell of transactions up to `revision`.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn forget_before(&mut self, revision: Revision) -> StoreResult<()>;
}

/// How the index of a cell is made from what its store has.
#[derive(Debug, Clone, Copy)]
pub struct IndexSource {
    /// The keys, from each first one to before each second one, that something is told by; and how
    /// many of them are read at once.
    pub ranges: &'static [(&'static [u8], &'static [u8], usize)],
    /// What a key and its value tell.
    pub read: fn(&[u8], &[u8]) -> StoreResult<Option<IndexChange>>,
}

/// Rnodes that were found, with their paths.
pub type Hits = Vec<(RnodeId, Vec<u8>)>;

/// Something that can be searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// A tag.
    Tag(String),
    /// The name of an attribute, without the prefix.
    Attribute(String),
    /// A word of a name, as the index has it: in small letters, without accents.
    Word(String),
}

/// Paths of rnodes that have an attribute, and its value.
pub type Having = Vec<(RnodeId, Vec<u8>, String)>;

/// A store that a server works on: it can be searched, and it may be taken away.
pub trait CellStore: Store + std::fmt::Debug + Send {
    /// The rnodes that fit a query with their paths, in the order of those, at most `limit`. `None`
    /// if the index is being made still.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn search(&self, query: &Query, limit: usize) -> StoreResult<Option<Hits>>;

    /// The first `limit` files behind `after` whose text the index has, each with the content that it
    /// is of, in order. `None` if the index is being made still.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn texts(&self, after: RnodeId, limit: usize) -> StoreResult<Option<Vec<(RnodeId, Version)>>>;

    /// The first `limit` rnodes that have an attribute, named without its prefix, with their paths and
    /// its value. `None` if the index is being made still.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn having(&self, attribute: &str, limit: usize) -> StoreResult<Option<Having>>;

    /// All that can be searched for, and perhaps some that could be once. `None` if there is more than
    /// `max`, or the index is being made still.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn terms(&self, max: usize) -> StoreResult<Option<Vec<Term>>>;

    /// The last revision that may have added something that can be searched for.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn added(&self) -> StoreResult<Revision> {
        self.revision()
    }

    /// What is wrong with the store itself, below its records, as far as it can tell; for people.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn damage(&self) -> StoreResult<Vec<String>> {
        Ok(Vec::new())
    }

    /// Whether nobody else can have taken over. What was read before this is asked is right if it
    /// says so.
    fn is_owned(&self) -> bool {
        true
    }

    /// Does a little of what can wait.
    ///
    /// # Errors
    /// [`StoreError`].
    fn idle(&mut self) -> StoreResult<()> {
        Ok(())
    }
}
