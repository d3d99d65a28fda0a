//! Snapshots: a directory and everything below it, as it was at one moment.
//!
//! A snapshot is a tree of rnodes of its own, made in one transaction from the server's state, in a
//! slot of numbers that no client has ([`RnodeId::is_of_snapshot`]). A client with read access to
//! the directory reads the snapshot as any other tree, under read leases; write leases are not
//! granted on it, so it never changes. Its root has the directory as its parent, and no directory
//! has a name for it.
//!
//! Invariants:
//! - Before a snapshot is made, every write lease below the directory is recalled once, also those
//!   on rnodes that become known by that. A client that downgrades a lease has sent all changes up
//!   to the last one under it. So the snapshot holds every change that was acknowledged before it
//!   was asked for, and of the changes after that a prefix of each client's log.
//! - A block is *needed* while a snapshot of its file has it (`y`): a client that asks is told so,
//!   and keeps it. Clients ask about every block before they remove it.
//! - A removed snapshot becomes invisible at once, by one transaction, and is then cleared bit by
//!   bit (`q`), also after a restart.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use weft_vfs::Time;

use super::answered::{self, Answer, Answers};
use super::records::{self, key, number_of};
use super::stop::Stop;
use super::{Mds, ToClient};
use crate::error::Refusal;
use crate::rnode::{Body, Bytes, Name, Rnode};
use crate::store::{Store, StoreError, StoreResult, Transaction};
use crate::types::{
    BlockHash, ClientId, Mode, Moment, RequestId, RnodeId, SNAPSHOT_SLOTS, Version,
};
use crate::wire::{Reply, RequestBody, SnapshotEntry, decode, encode, wire_struct};

/// The most names below a directory of which a snapshot is made: the server serves no other request
/// while it makes one.
pub const SNAPSHOT_NAMES_MAX: usize = 20_000;
/// The most snapshots of one directory.
const SNAPSHOTS_MAX: usize = 1000;
/// The most passes over the tree for write leases. Each pass goes one directory deeper into the
/// part of the tree that the server did not know of when the snapshot was asked for.
const PASSES_MAX: u32 = 64;
/// The most snapshots that wait to be made.
const MAKING_MAX: usize = 16;
/// Records that are removed at a time.
const CLEARED_AT_ONCE: usize = 300;
/// Names that are read at a time.
const PAGE: usize = 1000;
/// The server's own client number for leases. A client has this number by a chance of one in 2^64.
pub(super) const SERVER: ClientId = ClientId(u64::MAX);
/// The attribute of an rnode in a snapshot with the number of the inode that it is a copy of.
pub const ORIGIN_XATTR: &[u8] = b"trusted.weft.origin";

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Snapshot {
    root: RnodeId,
    at: Time,
    names: u64,
    /// The mark of the request that made it: a repeated request makes no other.
    mark: u64,
}
wire_struct!(Snapshot { root, at, names, mark });

const LAST_SLOT: &[u8] = b"P";

fn snapshot_key(dir: RnodeId, name: &Name) -> Vec<u8> {
    [&key(b'p', dir.0)[..], name.bytes()].concat()
}

fn cleared_key(slot: u32) -> Vec<u8> {
    key(b'q', u64::from(slot))
}

fn origin_key(origin: RnodeId, copy: RnodeId) -> Vec<u8> {
    [&key(b'y', origin.0)[..], &copy.0.to_be_bytes()].concat()
}

/// Returns the inode that an rnode in a snapshot is a copy of; its own number if it is in no
/// snapshot, or is a directory in a snapshot of an earlier version of weft, which did not record
/// that.
#[must_use]
pub fn origin(rnode: &Rnode) -> RnodeId {
    let text = rnode.xattrs.get(&Bytes(ORIGIN_XATTR.to_vec()));
    let number = text.and_then(|text| std::str::from_utf8(&text.0).ok()?.parse().ok());
    number.filter(|_| rnode.id.is_of_snapshot()).map_or(rnode.id, RnodeId)
}

/// A snapshot in progress.
#[derive(Debug)]
struct Making {
    client: ClientId,
    request: RequestId,
    dir: RnodeId,
    name: Name,
    mark: u64,
    at: Time,
    passes: u32,
    /// The rnodes whose leases were recalled.
    recalled: BTreeSet<RnodeId>,
    /// Those of them that the server waits for a lease on.
    waiting: BTreeSet<RnodeId>,
}

/// The snapshots in progress.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    making: Vec<Making>,
    next_request: u64,
    /// Leases granted to the server, to be released.
    granted: Vec<(RnodeId, crate::types::Token)>,
    /// Whether removed snapshots may remain to be cleared.
    clears: Cell<bool>,
    answers: Answers,
}

impl Snapshots {
    pub(super) fn load(store: &dyn Store) -> StoreResult<Self> {
        let answers = Answers::load(store)?;
        Ok(Self { clears: Cell::new(true), answers, ..Self::default() })
    }

    /// Removes the snapshots of a directory that is gone.
    pub(super) fn ended(
        &self,
        store: &dyn Store,
        dir: RnodeId,
        transaction: &mut Transaction,
    ) -> StoreResult<()> {
        for (name, Snapshot { root, .. }) in of_directory(store, dir)? {
            transaction.remove(snapshot_key(dir, &name));
            transaction.put(cleared_key(root.slot()), Vec::new());
            self.clears.set(true);
        }
        Ok(())
    }

    /// Notes a lease granted to the server.
    pub(super) fn granted(&mut self, rnode: RnodeId, token: crate::types::Token) {
        self.granted.push((rnode, token));
    }
}

/// Returns the slots of removed snapshots that are being cleared.
pub(super) fn cleared_slots(store: &dyn Store) -> StoreResult<BTreeSet<u32>> {
    let found = store.range(b"q", b"r", usize::MAX)?;
    // These keys were made from slots.
    found.iter().map(|(key, _)| Ok(u32::try_from(number_of(key)?).unwrap_or(0))).collect()
}

fn of_directory(store: &dyn Store, dir: RnodeId) -> StoreResult<Vec<(Name, Snapshot)>> {
    let (from, to) = (key(b'p', dir.0), key(b'p', dir.0.saturating_add(1)));
    let read = |(key, record): (Vec<u8>, crate::store::Record)| {
        let name = key.get(9..).and_then(|name| Name::new(name).ok());
        let snapshot = decode(&record.value).ok();
        name.zip(snapshot).ok_or_else(|| records::damaged("snapshot", &key))
    };
    store.range(&from, &to, usize::MAX)?.into_iter().map(read).collect()
}

/// Returns the roots of all snapshots, each with its directory.
pub(super) fn roots(store: &dyn Store) -> StoreResult<BTreeMap<RnodeId, RnodeId>> {
    let mut roots = BTreeMap::new();
    for (key, record) in store.range(b"p", b"q", usize::MAX)? {
        let dir = key.get(..9).map(number_of).transpose()?.map(RnodeId);
        let snapshot = decode::<Snapshot>(&record.value).ok();
        let found = dir.zip(snapshot).ok_or_else(|| records::damaged("snapshot", &key))?;
        roots.insert(found.1.root, found.0);
    }
    Ok(roots)
}

/// Returns every block of a file in snapshots.
pub(super) fn blocks(store: &dyn Store, id: RnodeId) -> StoreResult<BTreeSet<BlockHash>> {
    let (from, to) = (key(b'y', id.0), key(b'y', id.0.saturating_add(1)));
    let mut hashes = BTreeSet::new();
    for (key, _) in store.range(&from, &to, usize::MAX)? {
        let copy = key.get(9..17).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        let copy = copy.ok_or_else(|| records::damaged("snapshot", &key))?;
        let rnode = records::load_rnode(store, RnodeId(copy))?;
        if let Some(Body::File { blocks, .. }) = rnode.map(|r| r.body) {
            hashes.extend(blocks.values().map(|b| b.hash));
        }
    }
    Ok(hashes)
}

/// Returns the snapshots of a directory.
pub(super) fn list(store: &dyn Store, dir: RnodeId) -> Result<Reply, Stop> {
    let rnode = records::load_rnode(store, dir)?.ok_or(Refusal::Stale)?;
    if !rnode.is_dir() {
        return Err(Refusal::NotADirectory.into());
    }
    let entry = |(name, Snapshot { root, at, names, .. })| SnapshotEntry { name, root, at, names };
    let snapshots = of_directory(store, dir)?.into_iter().map(entry).collect();
    Ok(Reply::Snapshots { snapshots })
}

/// Returns each file that is in a snapshot, with its copies there.
pub(super) fn origins(store: &dyn Store) -> StoreResult<BTreeSet<(RnodeId, RnodeId)>> {
    let number = |bytes: Option<&[u8]>| Some(u64::from_be_bytes(bytes?.try_into().ok()?));
    let read = |key: &Vec<u8>| {
        let pair = number(key.get(1..9)).zip(number(key.get(9..17)));
        let pair = pair.map(|(origin, copy)| (RnodeId(origin), RnodeId(copy)));
        pair.ok_or_else(|| records::damaged("snapshot", key))
    };
    store.range(b"y", b"z", usize::MAX)?.iter().map(|(key, _)| read(key)).collect()
}

/// The tree of a directory: each rnode once, a directory before its entries; and the names, each
/// with its directory. `None` if there are more names than a snapshot may have.
type Tree = (Vec<RnodeId>, Vec<(RnodeId, Name, crate::rnode::Dirent)>);

fn tree(store: &dyn Store, dir: RnodeId) -> StoreResult<Option<Tree>> {
    let (mut order, mut seen, mut names) = (vec![dir], BTreeSet::from([dir]), Vec::new());
    let mut left = vec![dir];
    while let Some(dir) = left.pop() {
        let mut after = crate::types::Cookie(0);
        loop {
            let page = records::list(store, dir, after, PAGE)?;
            let is_last = page.len() < PAGE;
            for (name, dirent) in page {
                after = dirent.cookie;
                if seen.insert(dirent.id) {
                    order.push(dirent.id);
                    if dirent.kind == weft_vfs::FileKind::Directory {
                        left.push(dirent.id);
                    }
                }
                names.push((dir, name, dirent));
                if names.len() > SNAPSHOT_NAMES_MAX {
                    return Ok(None);
                }
            }
            if is_last {
                break;
            }
        }
    }
    Ok(Some((order, names)))
}

/// Adds a copy of the tree in the store to the transaction.
fn copy(
    store: &dyn Store,
    making: &Making,
    slot: u32,
    transaction: &mut Transaction,
) -> Result<(), Stop> {
    let (order, names) = tree(store, making.dir)?.ok_or(Refusal::TooLarge)?;
    let numbers = 1..=u32::try_from(order.len()).map_err(|_| Refusal::TooLarge)?;
    let new: BTreeMap<RnodeId, RnodeId> =
        order.iter().zip(numbers).map(|(id, n)| (*id, RnodeId::new(slot, n))).collect();
    let copy_of = |id: RnodeId| new.get(&id).copied().ok_or(Refusal::Stale);
    let mut links: BTreeMap<RnodeId, u32> = BTreeMap::new();
    for (_, _, dirent) in &names {
        *links.entry(dirent.id).or_default() += 1;
    }
    for id in &order {
        let mut rnode = records::load_rnode(store, *id)?.ok_or(Refusal::Stale)?;
        rnode.id = copy_of(*id)?;
        let number = Bytes(id.0.to_string().into_bytes());
        rnode.xattrs.insert(Bytes(ORIGIN_XATTR.to_vec()), number);
        match &mut rnode.body {
            // The root's parent is the directory that it is a snapshot of.
            Body::Directory { parent, .. } if *id == making.dir => *parent = making.dir,
            Body::Directory { parent, .. } => *parent = copy_of(*parent)?,
            Body::File { kept, .. } => {
                *kept = Version::default();
                transaction.put(origin_key(*id, rnode.id), Vec::new());
                let holders = records::load_holders(store, *id)?;
                transaction.put(records::holders_key(rnode.id), encode(&holders));
            }
            Body::Symlink { .. } | Body::Special { .. } => {}
        }
        if !rnode.is_dir() {
            rnode.nlink = links.get(id).copied().unwrap_or(0);
        }
        transaction.put(records::rnode_key(rnode.id), encode(&rnode));
    }
    for (dir, name, mut dirent) in names.iter().cloned() {
        let dir = copy_of(dir)?;
        dirent.id = copy_of(dirent.id)?;
        transaction.put(records::dirent_key(dir, &name), encode(&dirent));
        transaction.put(records::listing_key(dir, dirent.cookie), encode(&name));
        transaction.put(records::name_key(dirent.id, dir, dirent.cookie), Vec::new());
    }
    let (root, names) = (copy_of(making.dir)?, names.len() as u64);
    let snapshot = Snapshot { root, at: making.at, names, mark: making.mark };
    transaction.put(snapshot_key(making.dir, &making.name), encode(&snapshot));
    transaction.put(LAST_SLOT.to_vec(), encode(&slot));
    let fits = transaction.changes.len() + answered::CHANGES <= store.changes_max();
    if fits { Ok(()) } else { Err(Refusal::TooLarge.into()) }
}

impl Mds {
    /// Handles a request to make or remove a snapshot. A request that is repeated because its reply
    /// was late is carried out once: another client may have removed the snapshot since, or made
    /// the removed one anew.
    pub(super) fn change_snapshots(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        request: RequestId,
        body: RequestBody,
    ) -> StoreResult<Option<Reply>> {
        if let Some(reply) = self.snapshots.answers.to(client, request) {
            return Ok(Some(reply));
        }
        let mut transaction = Transaction::default();
        let reply = match body {
            RequestBody::Snapshot { dir, name, mark } => {
                let at = self.due.wall(now);
                self.begin_snapshot(store, client, request, dir, name, mark, at)?
            }
            RequestBody::RemoveSnapshot { dir, name } => {
                Some(self.remove_snapshot(store, dir, &name, &mut transaction)?)
            }
            _ => Some(Reply::No { why: Refusal::Invalid }),
        };
        let Some(reply) = reply else { return Ok(None) };
        self.commit_answer(store, transaction, Answer { client, request, reply }).map(Some)
    }

    /// Commits a transaction with the reply in it.
    fn commit_answer(
        &mut self,
        store: &mut dyn Store,
        mut transaction: Transaction,
        mut answer: Answer,
    ) -> StoreResult<Reply> {
        self.snapshots.answers.put(&answer, &mut transaction);
        match self.commit(store, transaction) {
            Ok(_) => {}
            Err(StoreError::Full) => answer.reply = Reply::No { why: Refusal::NoSpace },
            Err(e) => return Err(e),
        }
        let reply = answer.reply.clone();
        self.snapshots.answers.push(answer);
        Ok(reply)
    }

    /// Begins a snapshot. Returns `None` if the reply is sent once the snapshot is made.
    #[expect(clippy::too_many_arguments, reason = "a message, taken apart")]
    fn begin_snapshot(
        &mut self,
        store: &dyn Store,
        client: ClientId,
        request: RequestId,
        dir: RnodeId,
        name: Name,
        mark: u64,
        at: Time,
    ) -> StoreResult<Option<Reply>> {
        let is_same = |m: &&mut Making| m.dir == dir && m.name == name && m.mark == mark;
        if let Some(making) = self.snapshots.making.iter_mut().find(is_same) {
            (making.client, making.request) = (client, request);
            return Ok(None);
        }
        let no = |why| Ok(Some(Reply::No { why }));
        match records::load_rnode(store, dir)? {
            None => return no(Refusal::Stale),
            Some(rnode) if !rnode.is_dir() => return no(Refusal::NotADirectory),
            Some(rnode) if rnode.nlink == 0 || dir.is_of_snapshot() => return no(Refusal::Invalid),
            Some(_) => {}
        }
        let all = of_directory(store, dir)?;
        if let Some((_, there)) = all.iter().find(|(n, _)| *n == name) {
            let reply = Reply::No { why: Refusal::Exists };
            return Ok(Some(if there.mark == mark { Reply::Held {} } else { reply }));
        }
        if all.len() >= SNAPSHOTS_MAX {
            return no(Refusal::NoSpace);
        }
        if self.snapshots.making.len() >= MAKING_MAX {
            return no(Refusal::TooManySnapshots);
        }
        let (recalled, waiting, passes) = (BTreeSet::new(), BTreeSet::new(), 0);
        let making = Making { client, request, dir, name, mark, at, passes, recalled, waiting };
        self.snapshots.making.push(making);
        Ok(None)
    }

    /// Removes a snapshot.
    fn remove_snapshot(
        &self,
        store: &dyn Store,
        dir: RnodeId,
        name: &Name,
        transaction: &mut Transaction,
    ) -> StoreResult<Reply> {
        let key = snapshot_key(dir, name);
        let there: Option<Snapshot> = records::load(store, &key, "snapshot")?;
        let Some(there) = there else { return Ok(Reply::No { why: Refusal::NotFound }) };
        transaction.remove(key);
        transaction.put(cleared_key(there.root.slot()), Vec::new());
        self.snapshots.clears.set(true);
        Ok(Reply::Held {})
    }

    /// Advances the snapshots in progress.
    pub(super) fn advance_snapshots(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        loop {
            // The server releases its leases at once: no client has to wait for a snapshot.
            let granted = std::mem::take(&mut self.snapshots.granted);
            for (rnode, token) in &granted {
                let steps = self.leases.lower(now, SERVER, *rnode, *token, None);
                self.take(store, now, steps, out)?;
                for making in &mut self.snapshots.making {
                    making.waiting.remove(rnode);
                }
            }
            self.reap(store, granted.iter().map(|(rnode, _)| *rnode))?;
            let ready = self.snapshots.making.iter().position(|m| m.waiting.is_empty());
            let Some(ready) = ready.filter(|_| !self.leases.grace) else {
                if self.snapshots.granted.is_empty() {
                    return Ok(());
                }
                continue;
            };
            let mut making = self.snapshots.making.swap_remove(ready);
            let wanted = self.written_below(store, &making)?;
            if wanted.is_empty() || making.passes >= PASSES_MAX {
                let reply = self.make_snapshot(store, &making)?;
                out.push(self.reply(making.client, making.request, reply));
                continue;
            }
            making.passes += 1;
            making.recalled.extend(&wanted);
            making.waiting.extend(&wanted);
            self.snapshots.making.push(making);
            for rnode in wanted {
                self.snapshots.next_request += 1;
                let request = RequestId(self.snapshots.next_request);
                let steps = self.leases.acquire(now, SERVER, request, rnode, Mode::Read);
                self.take(store, now, steps, out)?;
            }
        }
    }

    /// Returns the rnodes below the directory under write leases that were not recalled yet.
    fn written_below(&self, store: &dyn Store, making: &Making) -> StoreResult<Vec<RnodeId>> {
        // A tree that is too large is refused when it is copied.
        let Some((order, _)) = tree(store, making.dir)? else { return Ok(Vec::new()) };
        let is_wanted = |id: &RnodeId| !making.recalled.contains(id) && self.leases.is_written(*id);
        Ok(order.into_iter().filter(is_wanted).collect())
    }

    fn make_snapshot(&mut self, store: &mut dyn Store, making: &Making) -> StoreResult<Reply> {
        let last: Option<u32> = records::load(store, LAST_SLOT, "snapshots")?;
        let slot = last.unwrap_or(SNAPSHOT_SLOTS) + 1;
        let mut transaction = Transaction::default();
        let copied = if store.get(&snapshot_key(making.dir, &making.name))?.is_some() {
            Err(Refusal::Exists.into())
        } else {
            copy(store, making, slot, &mut transaction)
        };
        let reply = match copied {
            Ok(()) => Reply::Held {},
            Err(Stop::Refused(why)) => {
                transaction = Transaction::default();
                Reply::No { why }
            }
            Err(Stop::Store(e)) => return Err(e),
        };
        let Making { client, request, .. } = *making;
        self.commit_answer(store, transaction, Answer { client, request, reply })
    }

    /// Clears some records of removed snapshots.
    pub(super) fn clear_snapshots(&mut self, store: &mut dyn Store) -> StoreResult<()> {
        if !self.snapshots.clears.get() {
            return Ok(());
        }
        let Some(slot) = cleared_slots(store)?.pop_first() else {
            self.snapshots.clears.set(false);
            return Ok(());
        };
        let mut transaction = Transaction::default();
        // An rnode gives the key of its `y` record: both are removed last, together.
        for kind in *b"dluhr" {
            let left = CLEARED_AT_ONCE.saturating_sub(transaction.changes.len());
            let (from, to) = (RnodeId::new(slot, 0), RnodeId::new(slot + 1, 0));
            for (key, record) in store.range(&key(kind, from.0), &key(kind, to.0), left)? {
                if kind == b'r' {
                    let rnode: Rnode =
                        decode(&record.value).map_err(|_| records::damaged("rnode", &key))?;
                    transaction.remove(origin_key(origin(&rnode), rnode.id));
                }
                transaction.remove(key);
            }
        }
        if transaction.changes.is_empty() {
            transaction.remove(cleared_key(slot));
        }
        self.commit(store, transaction).map(|_| ())
    }
}
