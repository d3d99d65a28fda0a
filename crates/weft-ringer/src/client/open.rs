//! Blocks that are being written.
//!
//! A block's name is its hash, which is only known when the block is finished. Until then it is
//! *open*: it has a name of its own ([`BlockHash::open`]), and small writes change it in place.
//! Before other clients can see it, it is *sealed*: its bytes are stored under their hash, and the
//! hash replaces the name in all state of the client.
//!
//! Invariants:
//! - A change that names an open block is never sent, and never given up: the block is sealed
//!   first.
//! - The data that a write puts into an open block is in the journal, in the same record as the
//!   change. So after a crash a write is there wholly or not at all, whatever the state of the
//!   block.
//! - Each write makes another version of its file. One that follows another in the log, on the same
//!   file, replaces it: no other client can have seen the state in between.
//! - If writes to one open block have other changes between them, the earlier writes are sent with
//!   the block's final content. Only if the machine is lost while it sends them can other clients
//!   see the file so, without the changes between: never with bytes that were not written.
//! - An open block is sealed before the file's content is added to its history.

use std::collections::{BTreeMap, BTreeSet};

use weft_vfs::Time;

use super::cache::{Sight, Stop};
use super::calls::Tried;
use super::log::Log;
use super::written::{Wrote, names, open_in};
use super::{Call, CallId, Client, ClientAction, JournalRecord};
use crate::block_map::Block;
use crate::error::Refusal;
use crate::op::{Logged, Mark, Op, View, execute};
use crate::rnode::Body;
use crate::types::{BlockHash, Moment, RnodeId, Seq};

/// The most blocks of a change that replaces others: each write puts all of the change into the
/// journal.
const MERGED_BLOCKS_MAX: usize = 8;

/// Returns the changes at the end of a journal that name a block and have not been given up.
#[must_use]
pub fn naming(journal: &[JournalRecord], name: &BlockHash) -> Vec<Seq> {
    let log = Log::replay(journal.iter().cloned());
    let of = log.pending().filter(|l| names(&l.op).any(|n| n == *name));
    of.map(|l| l.seq).collect()
}

impl Client {
    /// Returns true if an unsent change names an open block.
    #[must_use]
    pub fn has_open_blocks(&self) -> bool {
        self.log.pending().any(|logged| open_in(&logged.op).is_some())
    }

    /// Returns a journal of this client's log, to replace the one written so far. `None` while
    /// there is no such short form.
    #[must_use]
    pub fn shortened_journal(&self) -> Option<Vec<JournalRecord>> {
        // Once all changes are made again, each has its own base versions.
        if self.has_open_blocks() || self.log.is_adopting() {
            return None;
        }
        let made = self.log.pending().map(|l| JournalRecord::Made { logged: l.clone() });
        let applied = JournalRecord::Applied { seq: self.log.applied };
        Some(std::iter::once(applied).chain(made).collect())
    }

    /// Replaces the name of an open block by the hash that it was stored under.
    pub(super) fn sealed(&mut self, rnode: RnodeId, name: BlockHash, hash: BlockHash) {
        self.out.push(ClientAction::Journal(JournalRecord::Sealed { name, hash }));
        self.log.sealed(name, hash);
        let state = self.cache.leases.get_mut(&rnode).and_then(|l| l.state.as_mut());
        if let Some(Body::File { blocks, .. }) = state.map(|s| &mut s.rnode.body) {
            let named: Vec<(u32, Block)> =
                blocks.iter().filter(|(_, b)| b.hash == name).map(|(at, b)| (*at, *b)).collect();
            for (at, block) in named {
                blocks.set(at, Some(Block { hash, ..block }));
            }
        }
    }

    /// Asks for open blocks to be sealed. Repeated until it is done.
    pub(super) fn want_sealed(&mut self, files: BTreeSet<RnodeId>) {
        self.out.extend(files.into_iter().map(|rnode| ClientAction::Seal { rnode }));
    }

    /// Returns true if a change must wait until open blocks of its file are sealed.
    pub(super) fn waits_for_seal(&mut self, op: &Op) -> bool {
        let Op::Keep { id } = op else { return false };
        let state = self.cache.leases.get(id).and_then(|l| l.state.as_ref());
        let Some(Body::File { blocks, .. }) = state.map(|s| &s.rnode.body) else { return false };
        let has_open = blocks.values().any(|b| b.hash.is_open());
        if has_open {
            self.out.push(ClientAction::Seal { rnode: *id });
        }
        has_open
    }

    pub(super) fn try_write(
        &mut self,
        now: Moment,
        wall: Time,
        call: CallId,
        write: &mut Call,
    ) -> Tried {
        let Call::Write { id, version, blocks, end_bytes, redo, encryption } = write else {
            return Tried::Wait;
        };
        let Some(waiting) = self.calls.get(&call).filter(|_| !self.log.is_unsettled()) else {
            return Tried::Wait;
        };
        let (id, kill_privileges) = (*id, false);
        let sight = Sight::new(&self.cache, waiting.pins.pinned(), true);
        let (epoch, seq) = (self.session.epoch, Seq(self.log.last().0 + 1));
        let mark = Mark { stamp: wall, epoch, seq };
        let mut op =
            Op::Write { id, blocks: blocks.clone(), end_bytes: *end_bytes, kill_privileges };
        let made = (|| {
            sight.claim(id)?;
            if sight.rnode(id)?.version != *version {
                return Err(Stop::from(Refusal::Changed));
            }
            execute(&op, mark, &sight)
        })();
        let seen = sight.seen.into_inner();
        let mut effects = match made {
            Ok(effects) => effects,
            Err(stop) => return self.stopped(now, call, stop, seen),
        };
        let mut base = effects.base.clone();
        let tail = self.log.tail().filter(|tail| tail.epoch == epoch);
        let merged = tail.and_then(|tail| Some((tail.seq, &tail.base[..], merge(&tail.op, &op)?)));
        let replaces = merged.map(|(replaced, first, merged)| {
            // The version as it would be, had both writes been one.
            if let (Some(rnode), [(_, version)]) = (effects.rnodes.get_mut(&id), first) {
                rnode.version = version.next(epoch, seq);
                if let Body::File { content, .. } = &mut rnode.body {
                    *content = rnode.version;
                }
            }
            (base, op) = (first.to_vec(), merged);
            replaced
        });
        let logged = Logged { seq, epoch, stamp: wall, op, base };
        let wrote = Wrote { logged, replaces, redo: std::mem::take(redo), encryption: *encryption };
        Tried::Write(Box::new((wrote, effects)))
    }
}

/// Returns the change with the effect of two, one after the other, if both are writes to one file
/// and the first cannot have been sent.
fn merge(first: &Op, second: &Op) -> Option<Op> {
    let Op::Write { id, blocks, end_bytes, kill_privileges } = second else { return None };
    let (id, file) = (*id, open_in(first)?);
    let Op::Write { blocks: before, end_bytes: end, kill_privileges: kill, .. } = first else {
        return None;
    };
    let mut all: BTreeMap<u32, Option<Block>> = before.iter().copied().collect();
    all.extend(blocks.iter().copied());
    if file != id || all.len() > MERGED_BLOCKS_MAX {
        return None;
    }
    let (blocks, end_bytes) = (all.into_iter().collect(), (*end).max(*end_bytes));
    Some(Op::Write { id, blocks, end_bytes, kill_privileges: *kill || *kill_privileges })
}
