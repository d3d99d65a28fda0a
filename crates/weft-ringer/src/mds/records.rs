//! The records of a metadata server in its store, by key.
//!
//! ```text
//! c                    Cell: format and generation; every transaction expects it unchanged
//! n                    Numbers: the last slot and epoch given out
//! s client             Session
//! r rnode              Rnode
//! h rnode              Holders
//! d dir name           Dirent
//! l dir cookie         the name with that cookie: the order of a listing
//! u rnode dir cookie   empty: rnode has a name in dir, the one with that cookie
//! v rnode number       a content of a file that is kept
//! w dir rnode          a file that was removed, with the directory whose policy keeps it
//! z rnode              that directory, by the removed file
//! a rnode              the content of a file that each archive has
//! A                    ArchivesRecord: the archives
//! o rnode              an orphan: an rnode without a name, kept while a client holds it
//! p dir name           a snapshot of a directory
//! P                    the last slot that was used for a snapshot
//! q slot               a removed snapshot that is not cleared yet
//! b number             the reply to a request about snapshots
//! y rnode rnode        empty: the second, in a snapshot, is a copy of the first
//! t rnode              the version of a file's content whose text is kept
//! T rnode              that text, with the version
//! ```
//!
//! Numbers in keys are 8 bytes, big-endian, so that keys sort as numbers do.

use crate::op::{Logged, Op};
use crate::rnode::{Dirent, Holders, Name, Rnode};
use crate::store::{Facts, IndexChange, Store, StoreError, StoreResult};
use crate::types::{Cookie, Epoch, Generation, Incarnation, RnodeId, Seq};
use crate::wire::{Refused, Wire, decode, wire_struct};

/// The version of the records below.
pub(super) const FORMAT: u32 = 4;
/// The earliest version that can be read. Version 3 does not record the owner of a kept file.
pub(super) const FORMAT_MIN: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) format: u32,
    pub(super) generation: Generation,
}
wire_struct!(Cell { format, generation });

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) slot: u32,
    pub(super) epoch: Epoch,
}
wire_struct!(Numbers { slot, epoch });

/// The permanent record of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) epoch: Epoch,
    /// Whether the epoch may still be going on.
    pub(super) live: bool,
    pub(super) incarnation: Incarnation,
    /// The client's slot of rnode numbers, and the last count it used.
    pub(super) slot: u32,
    pub(super) last_count: u32,
    /// Its last change that was carried out or refused.
    pub(super) applied: Seq,
    /// Its last refused change, of those that may be refused.
    pub(super) refused: Option<Refused>,
}
wire_struct!(Session { epoch, live, incarnation, slot, last_count, applied, refused });

pub(super) const CELL: &[u8] = b"c";
pub(super) const NUMBERS: &[u8] = b"n";

pub(super) fn key(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

pub(super) fn rnode_key(id: RnodeId) -> Vec<u8> {
    key(b'r', id.0)
}

pub(super) fn dirent_key(dir: RnodeId, name: &Name) -> Vec<u8> {
    [&key(b'd', dir.0)[..], name.bytes()].concat()
}

pub(super) fn listing_key(dir: RnodeId, cookie: Cookie) -> Vec<u8> {
    [key(b'l', dir.0), cookie.0.to_be_bytes().to_vec()].concat()
}

pub(super) fn holders_key(id: RnodeId) -> Vec<u8> {
    key(b'h', id.0)
}

/// The key that records a name of an rnode in a directory.
pub(super) fn name_key(id: RnodeId, dir: RnodeId, cookie: Cookie) -> Vec<u8> {
    [&key(b'u', id.0)[..], &dir.0.to_be_bytes(), &cookie.0.to_be_bytes()].concat()
}

/// Returns the directories in which an rnode has names.
pub(super) fn directories_of(store: &dyn Store, id: RnodeId) -> StoreResult<Vec<RnodeId>> {
    let (from, to) = (key(b'u', id.0), key(b'u', id.0.saturating_add(1)));
    let mut dirs = Vec::new();
    for (key, _) in store.range(&from, &to, usize::MAX)? {
        let dir = key.get(9..17).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        dirs.push(RnodeId(dir.ok_or_else(|| damaged("name of an rnode", &key))?));
    }
    dirs.dedup();
    Ok(dirs)
}

/// Returns a directory in which an rnode has a name; the same at each call while its names stay.
pub(super) fn a_directory_of(store: &dyn Store, id: RnodeId) -> StoreResult<Option<RnodeId>> {
    let (from, to) = (key(b'u', id.0), key(b'u', id.0.saturating_add(1)));
    let Some((key, _)) = store.range(&from, &to, 1)?.pop() else { return Ok(None) };
    let dir = key.get(9..17).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
    dir.map(|dir| Some(RnodeId(dir))).ok_or_else(|| damaged("name of an rnode", &key))
}

/// Returns the clients that hold blocks of a file.
pub(super) fn load_holders(store: &dyn Store, id: RnodeId) -> StoreResult<Holders> {
    Ok(load(store, &holders_key(id), "holders")?.unwrap_or_default())
}

/// Returns the name of `id` in `dir` in the store; `?` if it has none there.
pub(super) fn name_of(store: &dyn Store, dir: RnodeId, id: RnodeId) -> StoreResult<Vec<u8>> {
    let from = [&key(b'u', id.0)[..], &dir.0.to_be_bytes()].concat();
    let to = [&key(b'u', id.0)[..], &dir.0.saturating_add(1).to_be_bytes()].concat();
    let cookie = store.range(&from, &to, 1)?.pop();
    let cookie = cookie.and_then(|(key, _)| key.get(17..25)?.try_into().ok());
    let Some(cookie) = cookie.map(u64::from_be_bytes) else { return Ok(b"?".to_vec()) };
    let key = listing_key(dir, Cookie(cookie));
    let name: Option<Name> = load(store, &key, "listing")?;
    Ok(name.map_or_else(|| b"?".to_vec(), |name| name.bytes().to_vec()))
}

/// Returns the number in a key made by [`key`].
pub(super) fn number_of(key: &[u8]) -> StoreResult<u64> {
    let bytes = key.get(1..).and_then(|b| b.try_into().ok());
    bytes.map(u64::from_be_bytes).ok_or_else(|| damaged("key", key))
}

pub(super) fn damaged(what: &str, key: &[u8]) -> StoreError {
    StoreError::Failed(format!("the record of {what} {key:02x?} is damaged"))
}

/// Loads and decodes the value of a key.
pub(super) fn load<T: Wire>(store: &dyn Store, key: &[u8], what: &str) -> StoreResult<Option<T>> {
    let Some(record) = store.get(key)? else { return Ok(None) };
    decode(&record.value).map(Some).map_err(|_| damaged(what, key))
}

pub(super) fn load_rnode(store: &dyn Store, id: RnodeId) -> StoreResult<Option<Rnode>> {
    load(store, &rnode_key(id), "rnode")
}

/// Returns the keys that the changes will read, as far as known, to prefetch them together.
pub(super) fn touched(ops: &[Logged]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut name = |dir: &RnodeId, name: &Name| {
        keys.extend([rnode_key(*dir), dirent_key(*dir, name)]);
    };
    let mut rnodes = Vec::new();
    for logged in ops {
        match &logged.op {
            Op::Create { parent, name: of, .. }
            | Op::Unlink { parent, name: of }
            | Op::Rmdir { parent, name: of } => name(parent, of),
            Op::Link { id, parent, name: of } => {
                name(parent, of);
                rnodes.push(rnode_key(*id));
            }
            Op::Rename { parent, name: of, new_parent, new_name, .. } => {
                name(parent, of);
                name(new_parent, new_name);
            }
            Op::SetAttr { id, .. }
            | Op::SetXattr { id, .. }
            | Op::RemoveXattr { id, .. }
            | Op::Keep { id } => {
                rnodes.push(rnode_key(*id));
            }
            Op::Write { id, .. } => {
                rnodes.extend([rnode_key(*id), holders_key(*id), key(b't', id.0)]);
            }
        }
    }
    keys.append(&mut rnodes);
    keys
}

/// Returns the change of the index for a record.
pub(super) fn indexed(key: &[u8], value: &[u8]) -> StoreResult<Option<IndexChange>> {
    let (kind, number, name) = match (key.first(), key.get(1..9), key.get(9..)) {
        (Some(kind), Some(number), Some(name)) => (kind, number, name),
        _ => return Err(damaged("key", key)),
    };
    let id = RnodeId(number.try_into().map_or(0, u64::from_be_bytes));
    if id.is_of_snapshot() {
        return Ok(None);
    }
    Ok(match kind {
        b'r' => {
            let rnode: Rnode = decode(value).map_err(|_| damaged("rnode", key))?;
            Some(IndexChange::File { rnode: id, facts: Some(Facts::of(&rnode)) })
        }
        b'd' => {
            let dirent: Dirent = decode(value).map_err(|_| damaged("name", key))?;
            let rnode = Some(dirent.id);
            Some(IndexChange::Name { dir: id, name: name.to_vec(), rnode })
        }
        b'T' => {
            let told = decode(value).map_err(|_| damaged("text", key))?;
            Some(IndexChange::Text { rnode: id, told: Some(told) })
        }
        _ => None,
    })
}

/// Returns the entries of `dir` after cookie `after`, at most `limit`.
pub(super) fn list(
    store: &dyn Store,
    dir: RnodeId,
    after: Cookie,
    limit: usize,
) -> StoreResult<Vec<(Name, Dirent)>> {
    let from = listing_key(dir, Cookie(after.0.saturating_add(1)));
    let to = key(b'l', dir.0.saturating_add(1));
    let mut names = Vec::new();
    for (key, record) in store.range(&from, &to, limit)? {
        let name: Name = decode(&record.value).map_err(|_| damaged("listing", &key))?;
        names.push((key, name));
    }
    let keys: Vec<_> = names.iter().map(|(_, name)| dirent_key(dir, name)).collect();
    store.prefetch(&keys)?;
    let mut entries = Vec::new();
    for (key, name) in names {
        let dirent = load(store, &dirent_key(dir, &name), "name")?;
        entries.push((name, dirent.ok_or_else(|| damaged("listing", &key))?));
    }
    Ok(entries)
}
