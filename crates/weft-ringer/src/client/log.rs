//! The client's log of changes, and its transmission to the server.
//!
//! A change is first *adopted*: made on states under write leases of the present epoch. New changes
//! are adopted as they are made; those left from an earlier epoch are made again, each on the
//! versions that it was first made on, or given up. Only adopted changes are sent, from the front
//! of the log, one message at a time.
//!
//! Of those left from an earlier epoch, a change that *commutes* with the changes of other clients
//! (a new name that is still free) is made again on the new state. It is another change then: it
//! has a new mark, and later changes that build on it are found by the versions before and after.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::cache::{Sight, Stop};
use super::pins::Pins;
use super::written::{Wrote, open_in, seal};
use super::{CallId, Client, ClientAction, Conflict, JournalRecord, Outcome};
use crate::error::Refusal;
use crate::op::{Logged, Mark, Op, execute, same_base};
use crate::types::{BlockHash, Moment, RequestId, RnodeId, Seq, Version};
use crate::wire::{Refused, RequestBody, encode};

/// The most bytes of changes in one message: well below the limit of a frame.
const BATCH_MAX_BYTES: usize = 1 << 20;

/// A change in the log.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) logged: Logged,
    /// The time it was made, in this incarnation.
    pub(super) since: Moment,
    pub(super) adopted: bool,
    /// The call that waits for the server's decision, with the leases that it needs.
    pub(super) decides: Option<(CallId, BTreeSet<RnodeId>)>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pending: VecDeque<Pending>,
    pub(super) applied: Seq,
    last: Seq,
    /// The largest low half used in an rnode's number.
    last_count: u32,
    /// Changes up to this one are to be sent now.
    pub(super) wanted: Seq,
    /// The request with the changes being sent.
    sent: Option<RequestId>,
    /// Nothing is sent before this: the server's store was full.
    hold: Moment,
    /// Whether the server's store had no room at last.
    pub(super) is_server_full: bool,
    /// The last change that was given up.
    pub(super) given_up: Seq,
    /// The leases of the change being adopted.
    adopting: Pins,
    /// The versions after changes that were made again on another state: each old version with the
    /// new.
    remade: BTreeMap<(RnodeId, Version), Version>,
}

impl Log {
    pub(super) fn replay(journal: impl IntoIterator<Item = JournalRecord>) -> Self {
        let mut log = Self::default();
        for record in journal {
            match record {
                JournalRecord::Made { logged } => log.read(logged),
                JournalRecord::Wrote { logged, replaces, .. }
                | JournalRecord::WroteEncrypted { logged, replaces, .. } => {
                    log.pending.retain(|p| Some(p.logged.seq) != replaces);
                    log.read(logged);
                }
                JournalRecord::Sealed { name, hash } => log.sealed(name, hash),
                JournalRecord::Applied { seq } => log.applied = log.applied.max(seq),
                JournalRecord::GivenUp { seq } => log.pending.retain(|p| p.logged.seq != seq),
                JournalRecord::Remade { logged } => {
                    if let Some(at) = log.pending.iter().position(|p| p.logged.seq == logged.seq) {
                        log.remake(at, logged);
                    }
                }
            }
        }
        let applied = log.applied;
        log.pending.retain(|p| p.logged.seq > applied);
        log
    }

    /// Adds a change from the journal.
    fn read(&mut self, logged: Logged) {
        self.last = self.last.max(logged.seq);
        let (since, adopted, decides) = (Moment(0), false, None);
        self.pending.push_back(Pending { logged, since, adopted, decides });
    }

    /// Returns the changes that the server may not have, in order.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Logged> {
        self.pending.iter().map(|p| &p.logged)
    }

    /// Returns the last change, if no call waits for it.
    pub(super) fn tail(&self) -> Option<&Logged> {
        let tail = self.pending.back()?;
        let is_free = tail.adopted && tail.decides.is_none() && tail.logged.seq > self.wanted;
        is_free.then_some(&tail.logged)
    }

    /// Replaces the name of a sealed block by its hash.
    pub(super) fn sealed(&mut self, name: BlockHash, hash: BlockHash) {
        self.pending.iter_mut().for_each(|p| seal(&mut p.logged.op, name, hash));
    }

    /// Replaces a change with the one made again.
    fn remake(&mut self, at: usize, new: Logged) {
        let old = std::mem::replace(&mut self.pending[at].logged, new);
        let new = &self.pending[at].logged;
        let after = |logged: &Logged| -> BTreeMap<RnodeId, Version> {
            let Mark { epoch, seq, .. } = logged.mark();
            let made = created(&logged.op).map(|id| (id, Version::default()));
            let before = logged.base.iter().copied().chain(made);
            before.map(|(id, version)| (id, version.next(epoch, seq))).collect()
        };
        let now = after(new);
        for (id, was) in after(&old) {
            if let Some(is) = now.get(&id) {
                self.remade.insert((id, was), *is);
            }
        }
    }

    /// Returns the base of a change, with the versions of changes made again.
    fn present(&self, base: &[(RnodeId, Version)]) -> Vec<(RnodeId, Version)> {
        let present = |(id, mut version): (RnodeId, Version)| {
            // Each step leads to a later epoch.
            while let Some(next) = self.remade.get(&(id, version)) {
                version = *next;
            }
            (id, version)
        };
        base.iter().copied().map(present).collect()
    }

    /// Returns true if a change up to `seq` is still pending.
    pub(super) fn has_before(&self, seq: Seq) -> bool {
        self.pending.front().is_some_and(|p| p.logged.seq <= seq)
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn last(&self) -> Seq {
        self.last
    }

    /// Returns the leases that undecided changes need.
    pub(super) fn pinned(&self) -> impl Iterator<Item = &RnodeId> {
        let decided = self.pending.iter().filter_map(|p| p.decides.as_ref());
        decided.flat_map(|(_, pinned)| pinned).chain(self.adopting.pinned())
    }

    /// Returns true if new changes must wait: the state they would be made on is not settled.
    pub(super) fn is_unsettled(&self) -> bool {
        self.pending.iter().any(|p| !p.adopted || p.decides.is_some())
    }

    /// Returns true if changes of an earlier epoch are left.
    pub(super) fn is_adopting(&self) -> bool {
        self.pending.iter().any(|p| !p.adopted)
    }

    /// Returns the next number of a new rnode; used up when the change is logged.
    pub(super) fn next_count(&self) -> u32 {
        self.last_count + 1
    }

    /// Begins to number new rnodes in `slot`.
    pub(super) fn begin_slot(&mut self, slot: u32) {
        let made = self.pending.iter().filter_map(|p| match p.logged.op {
            Op::Create { id, .. } if id.slot() == slot => Some(id.count()),
            _ => None,
        });
        self.last_count = made.max().unwrap_or(0);
    }

    pub(super) fn use_numbers(&mut self, last_count: u32, applied: Seq) {
        self.last_count = self.last_count.max(last_count);
        self.last = self.last.max(applied);
    }
}

impl Client {
    /// Logs a change that was, or is to be, carried out on `base`.
    pub(super) fn log_change(
        &mut self,
        now: Moment,
        logged: Logged,
        decides: Option<(CallId, BTreeSet<RnodeId>)>,
    ) {
        if let Op::Create { id, .. } = logged.op {
            self.log.last_count = self.log.last_count.max(id.count());
        }
        self.log.last = logged.seq;
        if decides.is_some() {
            self.log.wanted = logged.seq;
        }
        self.out.push(ClientAction::Journal(JournalRecord::Made { logged: logged.clone() }));
        self.log.pending.push_back(Pending { logged, since: now, adopted: true, decides });
    }

    /// Logs a write into open blocks, replacing the last change of the log if one is given.
    pub(super) fn log_write(&mut self, now: Moment, wrote: Wrote) {
        let (logged, replaces) = (wrote.logged.clone(), wrote.replaces);
        let pending = &mut self.log.pending;
        let replaced = pending.pop_back_if(|p| Some(p.logged.seq) == replaces);
        // The first of them has waited longest.
        let since = replaced.map_or(now, |p| p.since);
        self.log.last = logged.seq;
        self.out.push(ClientAction::Journal(wrote.record()));
        self.log.pending.push_back(Pending { logged, since, adopted: true, decides: None });
    }

    /// Makes the changes of an earlier epoch again, as far as leases are held.
    pub(super) fn adopt(&mut self, now: Moment) {
        let left = self.log.pending.iter().filter(|p| !p.adopted);
        let open: BTreeSet<RnodeId> = left.filter_map(|p| open_in(&p.logged.op)).collect();
        if !open.is_empty() {
            return self.want_sealed(open);
        }
        while let Some(at) = self.log.pending.iter().position(|p| !p.adopted) {
            let logged = self.log.pending[at].logged.clone();
            let sight = Sight::new(&self.cache, self.log.adopting.pinned(), true);
            let result = execute(&logged.op, logged.mark(), &sight);
            let result = match result {
                Ok(effects) if same_base(&effects.base, &logged.base) => Ok(Some((effects, None))),
                Ok(effects)
                    if logged.epoch < self.session.epoch
                        && (commutes(&logged.op)
                            || same_base(&effects.base, &self.log.present(&logged.base))) =>
                {
                    // It leads to another state, so it gets another mark: once in an epoch.
                    let epoch = self.session.epoch;
                    let moved = Logged { epoch, base: effects.base, ..logged.clone() };
                    let effects = execute(&moved.op, moved.mark(), &sight);
                    effects.map(|effects| Some((effects, Some(moved))))
                }
                Ok(_) => Ok(None),
                Err(stop) => Err(stop),
            };
            let seen = sight.seen.into_inner();
            let why = match result {
                Ok(Some((effects, moved))) => {
                    self.cache.apply(effects, logged.seq);
                    if let Some(logged) = moved {
                        let record = JournalRecord::Remade { logged: logged.clone() };
                        self.out.push(ClientAction::Journal(record));
                        self.log.remake(at, logged);
                    }
                    self.log.pending[at].adopted = true;
                    self.log.pending[at].since = now;
                    self.log.adopting.clear();
                    continue;
                }
                Ok(None) => Refusal::Fenced,
                Err(Stop::Refused(why)) => why,
                // The call that asked for the decision is gone.
                Err(Stop::Server) => Refusal::Fenced,
                Err(Stop::Need(need)) => {
                    self.log.adopting.wait_for(&need, seen);
                    self.ask_for(now, need);
                    return;
                }
            };
            self.give_up(at, why);
            self.log.adopting.clear();
        }
    }

    /// Gives up a change. Later ones that build on it have bases that never existed, and are given
    /// up when their turn comes.
    fn give_up(&mut self, at: usize, why: Refusal) {
        let Some(Pending { logged, .. }) = self.log.pending.remove(at) else { return };
        let seq = logged.seq;
        self.log.given_up = self.log.given_up.max(seq);
        // A crash between the two actions must not lose the conflict. A content that was not kept
        // is no loss: it is not the file's present content.
        if !matches!(logged.op, Op::Keep { .. }) {
            self.out.push(ClientAction::Conflict(Conflict { logged, why }));
        }
        self.out.push(ClientAction::Journal(JournalRecord::GivenUp { seq }));
    }

    /// Removes the changes that the server received before the last epoch ended.
    pub(super) fn committed_elsewhere(&mut self, applied: Seq) {
        self.log.applied = applied;
        let mut carried_out = Vec::new();
        self.log.pending.retain_mut(|p| {
            let left = p.logged.seq > applied;
            if let Some((call, _)) = p.decides.take_if(|_| !left) {
                carried_out.push(call);
            }
            left
        });
        for call in carried_out {
            // The change may or may not have been carried out: the caller must look.
            self.answer(call, Outcome::Refused(Refusal::Fenced), Seq::default());
        }
    }

    /// Ends the epoch: the changes left in the log are to be made again.
    ///
    /// No lease is left, and calls come after the changes made again: they pin none meanwhile.
    pub(super) fn disown_log(&mut self) {
        self.log.sent = None;
        self.log.adopting.clear();
        for waiting in self.calls.values_mut() {
            waiting.pins.clear();
        }
        let mut undecided = Vec::new();
        self.log.pending.retain_mut(|p| {
            p.adopted = false;
            match p.decides.take() {
                // It was not carried out, and its call is told so.
                Some((call, _)) => undecided.push((call, p.logged.seq)),
                None => return true,
            }
            false
        });
        for (call, seq) in undecided {
            self.out.push(ClientAction::Journal(JournalRecord::GivenUp { seq }));
            self.answer(call, Outcome::Refused(Refusal::Fenced), Seq::default());
        }
    }

    /// Forgets the request in progress: its reply will not come, or not count, and it is sent
    /// again.
    pub(super) fn forget_sent(&mut self) {
        self.log.sent = None;
    }

    /// Sends the changes that are due.
    pub(super) fn flush(&mut self, now: Moment) {
        if !self.session.is_active() {
            return;
        }
        let many = self.log.pending.len() >= self.options.batch;
        let is_due = |p: &Pending| {
            let old = now >= p.since.after(self.options.flush_micros);
            p.adopted && (self.log.wanted >= p.logged.seq || old || many)
        };
        let due = self.log.pending.iter().take_while(|p| is_due(p)).take(self.options.batch);
        let open: BTreeSet<RnodeId> = due.filter_map(|p| open_in(&p.logged.op)).collect();
        let is_first_due = self.log.pending.front().is_some_and(is_due);
        self.want_sealed(open);
        if !is_first_due || self.log.sent.is_some() || now < self.log.hold {
            return;
        }
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for pending in &self.log.pending {
            // A change that the server decides is sent alone.
            let alone = pending.decides.is_some() && !ops.is_empty();
            bytes += encode(&pending.logged).len();
            let full = ops.len() >= self.options.batch || bytes > BATCH_MAX_BYTES;
            let is_open = open_in(&pending.logged.op).is_some();
            if !pending.adopted || is_open || alone || (full && !ops.is_empty()) {
                break;
            }
            ops.push(pending.logged.clone());
            if pending.decides.is_some() {
                break;
            }
        }
        if ops.is_empty() {
            return;
        }
        let prev = self.log.applied;
        let id = self.request(now, RequestBody::Commit { prev, ops });
        self.log.sent = Some(id);
    }

    /// Removes the changes up to `applied`, which the server has carried out.
    pub(super) fn committed(&mut self, applied: Seq, refused: Option<Refused>) {
        self.log.is_server_full = false;
        self.log.sent = None;
        if applied <= self.log.applied {
            return;
        }
        self.log.applied = applied;
        self.log.last = self.log.last.max(applied);
        self.out.push(ClientAction::Journal(JournalRecord::Applied { seq: applied }));
        while let Some(pending) = self.log.pending.pop_front_if(|p| p.logged.seq <= applied) {
            let Some((call, pinned)) = pending.decides else { continue };
            let mark = pending.logged.mark();
            let Logged { seq, op, .. } = pending.logged;
            if let Some(Refused { why, .. }) = refused.filter(|r| r.seq == seq) {
                self.answer(call, Outcome::Refused(why), Seq::default());
                continue;
            }
            let mut sight = Sight::new(&self.cache, &pinned, true);
            sight.within = Some(false);
            let about = self.about(&op);
            if let Ok(effects) = execute(&op, mark, &sight) {
                self.cache.apply(effects, seq);
            }
            self.answer(call, Outcome::Done(about), seq);
        }
    }

    /// Handles the refusal of a commit.
    pub(super) fn commit_broken(&mut self, now: Moment, applied: Seq, refused: Option<Refused>) {
        self.committed(applied, None);
        match refused {
            None => {}
            // The next attempt may find room.
            Some(Refused { why: Refusal::NoSpace, .. }) => {
                self.log.hold = now.after(self.options.retry_micros);
                self.log.is_server_full = true;
            }
            // The client's state differs from the server's. The client releases all leases, and
            // makes again the changes that it can.
            Some(Refused { seq, why }) => {
                let held: Vec<_> = std::mem::take(&mut self.cache.leases).into_iter().collect();
                for (id, lease) in held {
                    self.send_lower(id, lease.token, None);
                    self.out.push(ClientAction::Lost { rnode: id });
                }
                self.forget_named();
                self.outstanding.retain(|_, o| !matches!(o.body, RequestBody::Acquire { .. }));
                self.disown_log();
                if let Some(at) = self.log.pending.iter().position(|p| p.logged.seq == seq) {
                    self.give_up(at, why);
                }
            }
        }
    }

    /// Returns true if the server has every change of an rnode.
    pub(super) fn is_clean(&self, id: RnodeId) -> bool {
        self.cache.leases.get(&id).is_none_or(|l| l.dirty <= self.log.applied)
    }
}

/// Returns the rnode that a change makes.
fn created(op: &Op) -> Option<RnodeId> {
    match op {
        Op::Create { id, .. } => Some(*id),
        _ => None,
    }
}

/// Returns true if a change that can be carried out is correct whatever other clients did to the
/// same rnodes: a new name takes nothing from them.
fn commutes(op: &Op) -> bool {
    matches!(op, Op::Create { .. } | Op::Link { .. })
}
