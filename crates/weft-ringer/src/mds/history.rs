//! The history of files: contents that a policy has kept, and files that have lost their last name.
//!
//! Invariants:
//! - A content is kept by a change in its client's log ([`Op::Keep`](crate::op::Op::Keep)), so in
//!   the order of all changes: it is the file's content at that position.
//! - A block is *needed* while the file, a kept content, or a removed file's record has it; a
//!   client that asks is told so, and keeps it.
//! - A kept content is removed when there are more newer ones than the policy's number, or it
//!   expires.

use std::collections::BTreeSet;

use weft_vfs::Time;

use super::Mds;
use super::batch::Batch;
use super::paths::above;
use super::records::{self, key, name_of, number_of};
use super::stop::Stop;
use crate::error::Refusal;
use crate::op::View;
use crate::policy::Policy;
use crate::rnode::{Body, Bytes, Name, Rnode};
use crate::store::{Store, StoreResult, Transaction};
use crate::types::{BlockHash, Moment, RnodeId};
use crate::wire::{
    Kept, KeptOwner, KeptVersion, Reader, RemovedFile, Reply, Wire, WireError, encode, wire_struct,
};

/// Entries in one part of a listing.
const LIST_MAX: usize = 1000;
/// Records checked for expiry at a time.
const DUE_AT_ONCE: usize = 30;
/// The interval between these checks, in microseconds.
const DUE_EVERY_MICROS: u64 = 10_000_000;
/// The longest path that is kept for a removed file, in bytes.
const PATH_MAX_BYTES: usize = 4096;
/// The deepest directory whose path is computed, in steps.
const DEPTH_MAX: usize = 4096;

/// A content that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    kept: Kept,
    until: Time,
    owner: OwnerAtEnd,
}
wire_struct!(Version { kept, until, owner });

/// A file that has lost its last name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Removed {
    path: Bytes,
    at: Time,
    until: Time,
    kept: Kept,
    owner: OwnerAtEnd,
}
wire_struct!(Removed { path, at, until, kept, owner });

/// The owner of the file: the end of a record, missing in those of version 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OwnerAtEnd(Option<KeptOwner>);

impl OwnerAtEnd {
    fn of(rnode: &Rnode) -> Self {
        Self(Some(KeptOwner { uid: rnode.uid, gid: rnode.gid }))
    }
}

impl Wire for OwnerAtEnd {
    fn put(&self, out: &mut Vec<u8>) {
        if let Some(owner) = &self.0 {
            owner.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let is_there = !from.rest().is_empty();
        Ok(Self(is_there.then(|| KeptOwner::get(from)).transpose()?))
    }
}

fn version_key(id: RnodeId, number: u64) -> Vec<u8> {
    [&key(b'v', id.0)[..], &number.to_be_bytes()].concat()
}

fn removed_key(dir: RnodeId, id: RnodeId) -> Vec<u8> {
    [&key(b'w', dir.0)[..], &id.0.to_be_bytes()].concat()
}

/// The key that gives the directory whose list a removed file is in.
fn list_key(id: RnodeId) -> Vec<u8> {
    key(b'z', id.0)
}

fn load_all<T: crate::wire::Wire>(
    store: &dyn Store,
    kind: u8,
    of: RnodeId,
    limit: usize,
) -> StoreResult<Vec<(u64, T)>> {
    let (from, to) = (key(kind, of.0), key(kind, of.0.saturating_add(1)));
    let mut all = Vec::new();
    for (key, record) in store.range(&from, &to, limit)? {
        let number = key.get(9..17).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        let value = crate::wire::decode(&record.value).ok();
        all.push(number.zip(value).ok_or_else(|| records::damaged("a version", &key))?);
    }
    Ok(all)
}

/// Returns the numbers of the contents kept of a file, in order.
fn numbers(store: &dyn Store, id: RnodeId) -> StoreResult<Vec<u64>> {
    let (from, to) = (key(b'v', id.0), key(b'v', id.0.saturating_add(1)));
    let found = store.range(&from, &to, usize::MAX)?;
    let number = |key: &Vec<u8>| {
        let number = key.get(9..17).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        number.ok_or_else(|| records::damaged("a version", key))
    };
    found.iter().map(|(key, _)| number(key)).collect()
}

/// Returns the content of a regular file as it is kept.
fn kept(rnode: &Rnode) -> Option<Kept> {
    let Body::File { size_bytes, block_bytes, blocks, .. } = &rnode.body else { return None };
    let (perm, mtime) = (rnode.perm, rnode.mtime);
    let (size_bytes, block_bytes, blocks) = (*size_bytes, *block_bytes, blocks.clone());
    Some(Kept { perm, mtime, size_bytes, block_bytes, blocks })
}

fn later(at: Time, secs: u64) -> Time {
    Time { secs: at.secs.saturating_add(i64::try_from(secs).unwrap_or(i64::MAX)), ..at }
}

/// Returns the nearest directory from `dir` up that has a policy, the policy, and the path of
/// `name` in `dir` from that directory.
fn policy_above(
    batch: &Batch<'_>,
    dir: RnodeId,
    name: &Name,
) -> Result<Option<(RnodeId, Policy, Vec<u8>)>, Stop> {
    let mut names = vec![name.bytes().to_vec()];
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        let rnode = batch.rnode(at)?;
        if let Some(policy) = Policy::of(&rnode) {
            let mut path = names.iter().rev().flat_map(|n| [b"/", &n[..]].concat());
            return Ok(Some((at, policy, path.by_ref().take(PATH_MAX_BYTES).collect())));
        }
        let Body::Directory { parent, .. } = rnode.body else { return Ok(None) };
        if parent == at {
            return Ok(None);
        }
        names.push(batch.name_of_directory(parent, at)?);
        at = parent;
    }
    Ok(None)
}

/// Returns the numbers of the contents kept of a file, except `newest`, after the transaction so
/// far.
fn older(
    store: &dyn Store,
    transaction: &Transaction,
    id: RnodeId,
    newest: u64,
) -> StoreResult<BTreeSet<u64>> {
    let mut numbers: BTreeSet<u64> = numbers(store, id)?.into_iter().collect();
    let prefix = key(b'v', id.0);
    for (key, value) in &transaction.changes {
        let number = key.strip_prefix(&prefix[..]).and_then(|n| n.try_into().ok());
        let Some(number) = number.map(u64::from_be_bytes) else { continue };
        if value.is_some() {
            numbers.insert(number);
        } else {
            numbers.remove(&number);
        }
    }
    numbers.remove(&newest);
    Ok(numbers)
}

/// Keeps the content of `rnode`, if its policy asks for history.
pub(super) fn keep(
    batch: &Batch<'_>,
    rnode: &Rnode,
    stamp: Time,
    transaction: &mut Transaction,
) -> Result<(), Stop> {
    let Body::File { content, .. } = rnode.body else { return Ok(()) };
    let Some(kept) = kept(rnode) else { return Ok(()) };
    // The policy may have changed since the client looked: then nothing is kept.
    let policy = match batch.a_directory_of(rnode.id)? {
        Some(dir) => batch.policy(dir)?,
        None => Policy::default(),
    };
    if policy.versions == 0 {
        return Ok(());
    }
    let (until, owner) = (later(stamp, policy.keep_secs), OwnerAtEnd::of(rnode));
    let version = Version { kept, until, owner };
    transaction.put(version_key(rnode.id, content.count), encode(&version));
    let older = older(batch.store, transaction, rnode.id, content.count)?;
    let room = usize::try_from(policy.versions).unwrap_or(usize::MAX).saturating_sub(1);
    for number in older.iter().take(older.len().saturating_sub(room)) {
        transaction.remove(version_key(rnode.id, *number));
    }
    Ok(())
}

/// Keeps a file that has lost its last name, `name` in `dir`.
pub(super) fn removed(
    batch: &Batch<'_>,
    rnode: &Rnode,
    (dir, name): (RnodeId, &Name),
    at: Time,
    transaction: &mut Transaction,
) -> Result<(), Stop> {
    let Some(kept) = kept(rnode).filter(|kept| kept.size_bytes > 0) else { return Ok(()) };
    let Some((list, policy, path)) = policy_above(batch, dir, name)? else { return Ok(()) };
    if policy.versions > 0 {
        let until = later(at, policy.keep_secs);
        let owner = OwnerAtEnd::of(rnode);
        let removed = Removed { path: Bytes(path), at, until, kept, owner };
        transaction.put(removed_key(list, rnode.id), encode(&removed));
        transaction.put(list_key(rnode.id), encode(&list));
    }
    Ok(())
}

/// Removes the history of an rnode that is gone, unless it is kept as a removed file.
pub(super) fn ended(
    store: &dyn Store,
    id: RnodeId,
    transaction: &mut Transaction,
) -> StoreResult<()> {
    if store.get(&list_key(id))?.is_none() {
        for number in numbers(store, id)? {
            transaction.remove(version_key(id, number));
        }
    }
    Ok(())
}

/// Returns every block in the history of an rnode.
pub(super) fn blocks(store: &dyn Store, id: RnodeId) -> StoreResult<BTreeSet<BlockHash>> {
    let versions: Vec<(u64, Version)> = load_all(store, b'v', id, usize::MAX)?;
    let mut kept: Vec<Kept> = versions.into_iter().map(|(_, v)| v.kept).collect();
    kept.extend(load_removed(store, id)?.map(|(_, removed)| removed.kept));
    Ok(kept.iter().flat_map(|kept| kept.blocks.values().map(|b| b.hash)).collect())
}

fn load_removed(store: &dyn Store, id: RnodeId) -> StoreResult<Option<(RnodeId, Removed)>> {
    let Some(list) = records::load::<RnodeId>(store, &list_key(id), "removed file")? else {
        return Ok(None);
    };
    let removed = records::load(store, &removed_key(list, id), "removed file")?;
    Ok(removed.map(|removed| (list, removed)))
}

/// Returns the contents kept of a file, the newest first.
pub(super) fn versions(store: &dyn Store, id: RnodeId) -> StoreResult<Reply> {
    let mut all: Vec<(u64, Version)> = load_all(store, b'v', id, usize::MAX)?;
    all.reverse();
    let versions = all.into_iter().take(LIST_MAX).map(|(number, version)| KeptVersion {
        number,
        mtime: version.kept.mtime,
        size_bytes: version.kept.size_bytes,
    });
    Ok(Reply::Versions { versions: versions.collect() })
}

/// Returns one kept content; number 0 is the content of the file when it was removed.
pub(super) fn version(store: &dyn Store, id: RnodeId, number: u64) -> Result<Reply, Stop> {
    let found = if number == 0 {
        load_removed(store, id)?.map(|(_, removed)| (removed.kept, removed.owner))
    } else {
        let version: Option<Version> = records::load(store, &version_key(id, number), "version")?;
        version.map(|version| (version.kept, version.owner))
    };
    let (kept, owner) = found.ok_or(Refusal::NotFound)?;
    let kept = Box::new(kept);
    Ok(match owner.0 {
        Some(owner) => Reply::OwnedVersion { kept, owner },
        None => Reply::OldVersion { kept },
    })
}

/// Returns the files that were removed below a directory, if the directory whose policy kept them
/// still lists them; with their paths from `dir`. The last removed come first.
pub(super) fn removed_below(store: &dyn Store, dir: RnodeId) -> Result<Reply, Stop> {
    let rnode = records::load_rnode(store, dir)?.ok_or(Refusal::Stale)?;
    let mut prefix = Vec::new();
    let mut list = None;
    let mut below = dir;
    for dir in above(store, &rnode)? {
        if dir.id != below {
            prefix = [b"/", &name_of(store, dir.id, below)?[..], &prefix].concat();
            below = dir.id;
        }
        if Policy::of(&dir).is_some() {
            list = Some(dir.id);
            break;
        }
    }
    let mut files = Vec::new();
    if let Some(list) = list {
        for (id, removed) in load_all::<Removed>(store, b'w', list, usize::MAX)? {
            let Some(path) = removed.path.0.strip_prefix(&prefix[..]) else { continue };
            if !path.starts_with(b"/") {
                continue;
            }
            files.push(RemovedFile {
                rnode: RnodeId(id),
                path: Bytes(path.to_vec()),
                at: removed.at,
                size_bytes: removed.kept.size_bytes,
            });
        }
    }
    files.sort_by_key(|file| std::cmp::Reverse(file.at));
    files.truncate(LIST_MAX);
    Ok(Reply::Removed { files })
}

/// The progress of the search for expired records.
#[derive(Debug)]
pub(super) struct Due {
    /// The time of day at some moment: the server's, as clients' clocks may be wrong.
    clock: (Moment, Time),
    next: Moment,
    from: Vec<u8>,
}

impl Due {
    pub(super) fn new(now: Moment, wall: Time) -> Self {
        Self { clock: (now, wall), next: now, from: b"v".to_vec() }
    }
}

impl Due {
    /// Returns the time of day at `now`.
    pub(super) fn wall(&self, now: Moment) -> Time {
        let (then, wall) = self.clock;
        later(wall, now.0.saturating_sub(then.0) / 1_000_000)
    }
}

impl Mds {
    /// Removes some expired records, at intervals.
    pub(super) fn forget_what_is_due(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
    ) -> StoreResult<()> {
        if now < self.due.next {
            return Ok(());
        }
        self.due.next = now.after(DUE_EVERY_MICROS);
        let wall = self.due.wall(now);
        // Contents are `v`, removed files `w`.
        let found = store.range(&self.due.from, b"x", DUE_AT_ONCE)?;
        let mut transaction = Transaction::default();
        for (key, record) in &found {
            let damaged = |_| records::damaged("what was kept", key);
            if key.starts_with(b"v") {
                let version: Version = crate::wire::decode(&record.value).map_err(damaged)?;
                if version.until < wall {
                    transaction.remove(key.clone());
                }
                continue;
            }
            let removed: Removed = crate::wire::decode(&record.value).map_err(damaged)?;
            if removed.until < wall {
                let id = [b"w", key.get(9..).unwrap_or_default()].concat();
                let id = RnodeId(number_of(&id)?);
                transaction.remove(key.clone());
                transaction.remove(list_key(id));
                for number in numbers(store, id)? {
                    transaction.remove(version_key(id, number));
                }
            }
        }
        self.due.from = match found.last() {
            Some((last, _)) if found.len() == DUE_AT_ONCE => [&last[..], &[0]].concat(),
            _ => b"v".to_vec(),
        };
        if transaction.changes.is_empty() {
            return Ok(());
        }
        self.commit(store, transaction).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mds::MdsOptions;
    use crate::store::{MemoryStore, StoreError};
    use crate::types::Generation;

    const FILE: RnodeId = RnodeId(7);
    const OWNER: KeptOwner = KeptOwner { uid: 1000, gid: 100 };
    const FOREVER: Time = Time { secs: i64::MAX, nanos: 0 };

    fn kept() -> Kept {
        Kept {
            perm: 0o640,
            mtime: Time::default(),
            size_bytes: 12,
            block_bytes: 4096,
            blocks: [].into_iter().collect(),
        }
    }

    /// Makes a cell of format `format` with a kept version and a removed file.
    fn cell(format: u32, owner: OwnerAtEnd) -> MemoryStore {
        let mut store = MemoryStore::new();
        let mut made = Transaction::default();
        let cell = records::Cell { format, generation: Generation(1) };
        made.put(records::CELL.to_vec(), encode(&cell));
        made.put(records::rnode_key(RnodeId::ROOT), encode(&Rnode::root(Time::default())));
        let version = Version { kept: kept(), until: FOREVER, owner };
        made.put(version_key(FILE, 3), encode(&version));
        let (path, at) = (Bytes(b"f".to_vec()), Time::default());
        let removed = Removed { path, at, until: FOREVER, kept: kept(), owner };
        made.put(removed_key(RnodeId::ROOT, FILE), encode(&removed));
        made.put(list_key(FILE), encode(&RnodeId::ROOT));
        store.commit(&made).expect("memory");
        store
    }

    fn open(store: &mut MemoryStore) -> StoreResult<Mds> {
        Mds::open(store, Moment(0), Time::default(), MdsOptions::default())
    }

    #[test]
    fn a_cell_of_format_3_opens_and_its_versions_have_no_owner() {
        let mut store = cell(3, OwnerAtEnd(None));
        open(&mut store).expect("a format that is read");
        for number in [3, 0] {
            let Ok(reply) = version(&store, FILE, number) else { panic!("{number}") };
            assert_eq!(reply, Reply::OldVersion { kept: Box::new(kept()) }, "{number}");
        }
        // A server that reads only format 3 would take an owner for damage: it must refuse the
        // cell.
        let cell: Option<records::Cell> =
            records::load(&store, records::CELL, "cell").expect("memory");
        assert_eq!(cell.map(|cell| cell.format), Some(4));
        open(&mut store).expect("its own format");
    }

    #[test]
    fn versions_of_format_4_have_an_owner() {
        let mut store = cell(4, OwnerAtEnd(Some(OWNER)));
        open(&mut store).expect("its own format");
        for number in [3, 0] {
            let Ok(reply) = version(&store, FILE, number) else { panic!("{number}") };
            let kept = Box::new(kept());
            assert_eq!(reply, Reply::OwnedVersion { kept, owner: OWNER }, "{number}");
        }
    }

    #[test]
    fn other_formats_are_refused_and_left_alone() {
        for format in [0, 2, 5, u32::MAX] {
            let mut store = cell(format, OwnerAtEnd(None));
            let before = store.get(records::CELL).expect("memory");
            assert!(matches!(open(&mut store), Err(StoreError::Failed(_))), "{format}");
            assert_eq!(store.get(records::CELL).expect("memory"), before);
        }
    }

    #[test]
    fn incomplete_owner_is_damage() {
        let mut store = cell(4, OwnerAtEnd(Some(OWNER)));
        let key = version_key(FILE, 3);
        let mut bytes = store.get(&key).expect("memory").expect("there").value;
        bytes.pop();
        let mut change = Transaction::default();
        change.put(key, bytes);
        store.commit(&change).expect("memory");
        assert!(matches!(version(&store, FILE, 3), Err(Stop::Store(_))));
    }
}
