//! Carrying out a client's changes: on the store's state overlaid with the earlier changes of the
//! same batch, under the leases that the client has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::copies::load_holders;
use super::history;
use super::leases::Leases;
use super::records::{self, Session, dirent_key, key, listing_key, name_key, rnode_key};
use super::text;
use crate::error::Refusal;
use crate::op::{Logged, Op, View, execute};
use crate::policy::Policy;
use crate::rnode::{Body, Dirent, Holders, Name, Rnode};
use crate::store::{Facts, IndexChange, Store, StoreError, Transaction};
use crate::types::{ClientId, Epoch, Mode, RnodeId, Version};
use crate::wire::{Refused, encode};

/// The most clients recorded as holders: readers ask the newest first, and an omitted one loses
/// nothing.
const HOLDERS_MAX: usize = 16;

/// The reason why a batch was not carried out.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    Store(StoreError),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The state of a batch, and the holder of its leases.
pub(super) struct Batch<'a> {
    pub(super) store: &'a dyn Store,
    leases: &'a Leases,
    /// The client that holds the leases.
    holder: ClientId,
    rnodes: RefCell<BTreeMap<RnodeId, Rnode>>,
    dirents: RefCell<BTreeMap<(RnodeId, Name), Option<Dirent>>>,
    made: BTreeSet<RnodeId>,
    /// Whether the change at hand asked a question that only a server can answer.
    asked: Cell<bool>,
    moves_policies: bool,
}

impl Batch<'_> {
    /// Returns a directory in which an rnode has a name.
    pub(super) fn a_directory_of(&self, id: RnodeId) -> Result<Option<RnodeId>, Stop> {
        let dirents = self.dirents.borrow();
        let found = dirents.iter().find(|(_, dirent)| dirent.is_some_and(|d| d.id == id));
        match found {
            Some(((dir, _), _)) => Ok(Some(*dir)),
            None => Ok(records::a_directory_of(self.store, id)?),
        }
    }

    /// Returns the name of directory `id` in `parent`.
    pub(super) fn name_of_directory(&self, parent: RnodeId, id: RnodeId) -> Result<Vec<u8>, Stop> {
        let dirents = self.dirents.borrow();
        let is_its = |dir: RnodeId, to: &Option<Dirent>| {
            dir == parent && to.is_some_and(|dirent| dirent.id == id)
        };
        match dirents.iter().find(|((dir, _), to)| is_its(*dir, to)) {
            Some(((_, name), _)) => Ok(name.bytes().to_vec()),
            None => Ok(history::name_in_store(self.store, parent, id)?),
        }
    }

    /// Returns the policy of the files in a directory.
    pub(super) fn policy(&self, dir: RnodeId) -> Result<Policy, Stop> {
        let mut at = dir;
        loop {
            let rnode = self.rnode(at)?;
            match rnode.body {
                Body::Directory { parent, .. } => match Policy::of(&rnode) {
                    Some(policy) => return Ok(policy),
                    None if parent == at => return Ok(Policy::default()),
                    None => at = parent,
                },
                _ => return Err(Refusal::NotADirectory.into()),
            }
        }
    }
}

impl View for Batch<'_> {
    type Stop = Stop;

    fn rnode(&self, id: RnodeId) -> Result<Rnode, Stop> {
        if let Some(rnode) = self.rnodes.borrow().get(&id) {
            return Ok(rnode.clone());
        }
        Ok(records::load_rnode(self.store, id)?.ok_or(Refusal::Stale)?)
    }

    fn claim(&self, id: RnodeId) -> Result<(), Stop> {
        let held = self.leases.held(id, self.holder).is_some_and(|(mode, _)| mode == Mode::Write);
        if held || self.made.contains(&id) { Ok(()) } else { Err(Refusal::Fenced.into()) }
    }

    fn dirent(&self, dir: RnodeId, name: &Name) -> Result<Option<Dirent>, Stop> {
        if let Some(dirent) = self.dirents.borrow().get(&(dir, name.clone())) {
            return Ok(*dirent);
        }
        Ok(records::load(self.store, &dirent_key(dir, name), "name")?)
    }

    fn is_within(&self, dir: RnodeId, ancestor: RnodeId) -> Result<bool, Stop> {
        self.asked.set(true);
        let mut at = dir;
        loop {
            if at == ancestor {
                return Ok(true);
            }
            let Body::Directory { parent, .. } = self.rnode(at)?.body else {
                return Err(Refusal::NotADirectory.into());
            };
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
    }
}

/// The outcome of a batch: the transaction, without the server's additions, the session after it,
/// and the rnodes it made.
pub(super) struct Outcome {
    pub(super) transaction: Transaction,
    pub(super) session: Session,
    pub(super) made: BTreeSet<RnodeId>,
    /// Whether a file may have another policy after the batch.
    pub(super) moves_policies: bool,
}

/// Carries out those of `ops` that were not carried out before; all or none. They are a client's,
/// under the leases of a holder, which is the client or its proxy. The error names the change.
pub(super) fn carry_out(
    store: &dyn Store,
    leases: &Leases,
    (holder, client): (ClientId, ClientId),
    session: &Session,
    ops: &[Logged],
) -> Result<Outcome, (Stop, Option<Refused>)> {
    let mut session = session.clone();
    let mut transaction = Transaction::default();
    let mut batch = Batch {
        store,
        leases,
        holder,
        rnodes: RefCell::default(),
        dirents: RefCell::default(),
        made: BTreeSet::new(),
        asked: Cell::new(false),
        moves_policies: false,
    };
    let (mut written, mut contents) = (BTreeMap::new(), BTreeSet::new());
    for logged in ops {
        if logged.seq <= session.applied {
            continue;
        }
        batch.asked.set(false);
        match carry_out_one(&mut batch, &mut session, logged, &mut transaction) {
            Ok(()) => {}
            // The client waits for the result of such a change.
            Err(Stop::Refused(why)) if batch.asked.get() => {
                session.refused = Some(Refused { seq: logged.seq, why });
            }
            Err(stop) => {
                let refused = match &stop {
                    Stop::Refused(why) => Some(Refused { seq: logged.seq, why: *why }),
                    Stop::Store(_) => None,
                };
                return Err((stop, refused));
            }
        }
        session.applied = logged.seq;
        if let Op::Write { id, .. } = &logged.op {
            let version = batch.rnodes.borrow().get(id).map(|r| r.version);
            written.extend(version.map(|v| (*id, v)));
        }
        contents.extend(has_other_content(&logged.op));
    }
    for (id, version) in written {
        let mut holders = load_holders(store, id).map_err(|e| (e.into(), None))?;
        note_writer(&mut holders, client, version);
        transaction.put(records::holders_key(id), encode(&holders));
    }
    for id in contents {
        text::outdated(store, id, &mut transaction).map_err(|e| (e.into(), None))?;
    }
    let moves_policies = batch.moves_policies;
    for (id, rnode) in batch.rnodes.into_inner() {
        if rnode.nlink == 0 {
            transaction.put(key(b'o', id.0), Vec::new());
        }
        transaction.put(rnode_key(id), encode(&rnode));
        let facts = Some(Facts::of(&rnode));
        transaction.index.push(IndexChange::File { rnode: id, facts });
    }
    Ok(Outcome { transaction, session, made: batch.made, moves_policies })
}

/// Returns the file whose content a change replaces.
fn has_other_content(op: &Op) -> Option<RnodeId> {
    match op {
        Op::Write { id, .. } => Some(*id),
        Op::SetAttr { id, change } => change.size_bytes.map(|_| *id),
        _ => None,
    }
}

/// Records a client as a holder of a file's blocks that it wrote, as of `version`.
pub(crate) fn note_writer(holders: &mut Holders, client: ClientId, version: Version) {
    holders.clients.insert(client, version);
    while holders.clients.len() > HOLDERS_MAX {
        let oldest = holders.clients.iter().min_by_key(|(_, version)| **version);
        let Some(oldest) = oldest.map(|(client, _)| *client) else { break };
        holders.clients.remove(&oldest);
    }
}

fn carry_out_one(
    batch: &mut Batch<'_>,
    session: &mut Session,
    logged: &Logged,
    transaction: &mut Transaction,
) -> Result<(), Stop> {
    if let Op::Create { id, .. } = logged.op {
        // Numbers are used once: no number is made again that other clients may remember.
        if id.slot() != session.slot || id.count() <= session.last_count {
            return Err(Refusal::Invalid.into());
        }
        session.last_count = id.count();
    }
    // A change can only be of an epoch that began: it names the states after it.
    if logged.epoch == Epoch(0) || logged.epoch > session.epoch {
        return Err(Refusal::Invalid.into());
    }
    let effects = execute(&logged.op, logged.mark(), &*batch)?;
    if !same_base(&effects.base, &logged.base) {
        return Err(Refusal::Fenced.into());
    }
    note_history(batch, logged, &effects.rnodes, transaction)?;
    batch.moves_policies |= text::moves_policies(&logged.op, &effects);
    for ((dir, name), dirent) in effects.dirents {
        if let Some(old) = batch.dirent(dir, &name)? {
            transaction.remove(listing_key(dir, old.cookie));
            transaction.remove(name_key(old.id, dir, old.cookie));
        }
        match dirent {
            Some(new) => {
                transaction.put(listing_key(dir, new.cookie), encode(&name));
                transaction.put(name_key(new.id, dir, new.cookie), Vec::new());
                transaction.put(dirent_key(dir, &name), encode(&new));
            }
            None => transaction.remove(dirent_key(dir, &name)),
        }
        let rnode = dirent.map(|d| d.id);
        transaction.index.push(IndexChange::Name { dir, name: name.bytes().to_vec(), rnode });
        batch.dirents.borrow_mut().insert((dir, name), dirent);
    }
    if let Op::Create { id, .. } = logged.op {
        batch.made.insert(id);
    }
    batch.rnodes.borrow_mut().extend(effects.rnodes);
    Ok(())
}

/// Adds history records for a change, on the state before its effects.
fn note_history(
    batch: &Batch<'_>,
    logged: &Logged,
    effects: &BTreeMap<RnodeId, Rnode>,
    transaction: &mut Transaction,
) -> Result<(), Stop> {
    let place = match &logged.op {
        Op::Keep { id } => {
            let kept = effects.get(id).map(|r| history::keep(batch, r, logged.stamp, transaction));
            return kept.unwrap_or(Ok(()));
        }
        Op::Unlink { parent, name } => (*parent, name),
        Op::Rename { new_parent, new_name, .. } => (*new_parent, new_name),
        _ => return Ok(()),
    };
    for rnode in effects.values().filter(|r| r.nlink == 0) {
        history::removed(batch, rnode, place, logged.stamp, transaction)?;
    }
    Ok(())
}

pub(crate) fn same_base<T: Ord + Clone>(a: &[T], b: &[T]) -> bool {
    let sorted = |list: &[T]| {
        let mut list = list.to_vec();
        list.sort();
        list
    };
    sorted(a) == sorted(b)
}
