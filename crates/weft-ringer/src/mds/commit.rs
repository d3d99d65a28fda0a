//! Carrying out a client's changes: on the store's state overlaid with the earlier changes of the
//! same batch, under the leases that the client has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::batch::Batch;
use super::history;
use super::leases::Leases;
use super::records::{
    self, Session, dirent_key, key, listing_key, load_holders, name_key, rnode_key,
};
use super::stop::Stop;
use super::text;
use crate::error::Refusal;
use crate::op::{Logged, Op, View, execute, same_base};
use crate::rnode::{Holders, Rnode};
use crate::store::{Facts, IndexChange, Store, Transaction};
use crate::types::{ClientId, Epoch, RnodeId, Version};
use crate::wire::{Refused, encode};

/// The most clients recorded as holders: readers ask the newest first, and an omitted one loses
/// nothing.
const HOLDERS_MAX: usize = 16;

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
