//! Calls: each is attempted with the state under leases; missing state is requested, and the call
//! is attempted again.

use std::collections::BTreeSet;

use weft_vfs::Time;

use super::cache::{Names, Need, Sight, Stop};
use super::pins::Pins;
use super::written::Wrote;
use super::{Call, CallId, Client, ClientAction, Outcome};
use crate::error::Refusal;
use crate::op::{Logged, Mark, Op, View, execute};
use crate::types::{Cookie, Mode, Moment, RequestId, RnodeId, Seq};
use crate::wire::{Entry, RequestBody};

/// A call that is not answered yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Call,
    /// Leases kept for it while it waits for others.
    pub(super) pins: Pins,
    /// Of a `Sync`: the change to wait for, and the last given up when it began.
    sync_to: Option<(Seq, Seq)>,
    /// The server was asked to decide.
    asked: bool,
    /// Of a `Lock` with conflicts: the time until which it does not ask again. Of an `Unlock`: the
    /// time until which it waits.
    pub(super) blocked: Option<Moment>,
    /// Of a call about locks: the locks of other clients were reported since it began.
    pub(super) told: bool,
    /// Of an `Ask`: its last request.
    pub(super) request: Option<RequestId>,
}

impl Waiting {
    pub(super) fn new(call: Call) -> Self {
        Self {
            call,
            pins: Pins::default(),
            sync_to: None,
            asked: false,
            blocked: None,
            told: false,
            request: None,
        }
    }
}

/// The result of an attempt.
pub(super) enum Tried {
    Answer(Outcome, Seq),
    Change(Box<(Logged, crate::op::Effects)>),
    Write(Box<(Wrote, crate::op::Effects)>),
    Decide(Box<Logged>, BTreeSet<RnodeId>),
    Wait,
}

impl Client {
    pub(super) fn answer(&mut self, call: CallId, outcome: Outcome, depends: Seq) {
        self.calls.remove(&call);
        self.out.push(ClientAction::Return { call, outcome, depends });
    }

    /// Attempts all waiting calls.
    pub(super) fn attempt_all(&mut self, now: Moment, wall: Time) {
        if !self.is_serving(now) {
            return self.answer_unlocks();
        }
        self.adopt(now);
        let waiting: Vec<CallId> = self.calls.keys().copied().collect();
        for id in waiting {
            self.attempt(now, wall, id);
        }
    }

    fn attempt(&mut self, now: Moment, wall: Time, id: CallId) {
        let Some(waiting) = self.calls.get_mut(&id).filter(|w| !w.asked) else { return };
        // The data of a write may be long: it is not copied.
        let mut call = match waiting.call {
            Call::Write { .. } => std::mem::replace(&mut waiting.call, Call::Sync),
            _ => waiting.call.clone(),
        };
        // Changes left from an earlier epoch come first: they happened before.
        let comes_later =
            self.log.is_adopting() && !matches!(call, Call::Sync | Call::Unlock { .. });
        let tried = match &mut call {
            _ if comes_later => Tried::Wait,
            Call::Write { .. } => self.try_write(now, wall, id, &mut call),
            call => self.try_call(now, wall, id, call),
        };
        match tried {
            Tried::Answer(outcome, depends) => self.answer(id, outcome, depends),
            Tried::Change(change) => {
                let (logged, effects) = *change;
                let (seq, about) = (logged.seq, self.about(&logged.op));
                self.cache.apply(effects, seq);
                self.log_change(now, logged, None);
                self.answer(id, Outcome::Done(about), seq);
            }
            Tried::Write(write) => {
                let (wrote, effects) = *write;
                let seq = wrote.logged.seq;
                self.cache.apply(effects, seq);
                self.log_write(now, wrote);
                self.answer(id, Outcome::Done(None), seq);
            }
            Tried::Decide(logged, pinned) => {
                self.log_change(now, *logged, Some((id, pinned)));
                if let Some(waiting) = self.calls.get_mut(&id) {
                    waiting.asked = true;
                    waiting.pins.clear();
                }
            }
            Tried::Wait => {
                if let (Call::Write { .. }, Some(waiting)) = (&call, self.calls.get_mut(&id)) {
                    waiting.call = call;
                }
            }
        }
    }

    fn try_call(&mut self, now: Moment, wall: Time, id: CallId, call: &Call) -> Tried {
        match call {
            Call::Sync => self.try_sync(id),
            Call::Evict { id } => {
                let pinned = self.calls.values().any(|w| w.pins.pinned().contains(id))
                    || self.log.pinned().any(|p| p == id);
                if !pinned && self.session.is_active() && self.is_clean(*id) {
                    let lease = self.cache.leases.get_mut(id);
                    if let Some(lease) = lease {
                        lease.recall = Some(None);
                        self.lower(*id);
                    }
                    self.give_up_locks(*id);
                }
                Tried::Answer(Outcome::Finished, Seq::default())
            }
            Call::Apply { op, if_version } => {
                if self.log.is_unsettled() || self.waits_for_seal(op) {
                    return Tried::Wait;
                }
                let mut op = op.clone();
                if let Op::Create { id, .. } = &mut op {
                    *id = RnodeId::new(self.session.slot, self.log.next_count());
                }
                self.try_change(now, wall, id, op, *if_version)
            }
            Call::Lookup { .. } | Call::Get { .. } | Call::List { .. } => {
                self.try_read(now, id, call)
            }
            Call::Ask { body } => {
                let under_way = self.calls.get(&id).and_then(|w| w.request);
                let under_way = under_way.is_some_and(|id| self.outstanding.contains_key(&id));
                if self.session.is_active() && !under_way {
                    let request = self.request(now, body.clone());
                    if let Some(waiting) = self.calls.get_mut(&id) {
                        waiting.request = Some(request);
                    }
                }
                Tried::Wait
            }
            Call::Lock { id: rnode, lock, wait } => self.try_lock(now, id, *rnode, *lock, *wait),
            Call::FindLock { id: rnode, lock } => self.try_find_lock(now, id, *rnode, lock),
            // Handled by `try_write`.
            Call::Write { .. } => Tried::Wait,
            Call::Unlock { id: rnode, .. } => self.try_unlock(now, id, *rnode),
        }
    }

    fn try_sync(&mut self, id: CallId) -> Tried {
        let now = (self.log.last(), self.log.given_up);
        let Some(waiting) = self.calls.get_mut(&id) else { return Tried::Wait };
        let (to, given_up) = *waiting.sync_to.get_or_insert(now);
        if given_up < self.log.given_up && self.log.given_up <= to {
            return Tried::Answer(Outcome::Refused(Refusal::Fenced), Seq::default());
        }
        if !self.log.has_before(to) {
            return Tried::Answer(Outcome::Finished, Seq::default());
        }
        self.log.wanted = self.log.wanted.max(to);
        Tried::Wait
    }

    fn try_read(&mut self, now: Moment, id: CallId, call: &Call) -> Tried {
        let Some(waiting) = self.calls.get(&id) else { return Tried::Wait };
        let sight = Sight::new(&self.cache, waiting.pins.pinned(), false);
        let result = match call {
            Call::Lookup { dir, name } => sight.dirent(*dir, name).map(Outcome::Found),
            Call::Get { id } => sight.rnode(*id).map(|r| Outcome::Rnode(Box::new(r))),
            Call::List { dir } => list(&sight, *dir),
            _ => return Tried::Wait,
        };
        let seen = sight.seen.into_inner();
        match result {
            Ok(outcome) => {
                if let (Call::List { dir }, Outcome::Names(entries)) = (call, &outcome) {
                    self.prefetch.listed(*dir, entries);
                }
                Tried::Answer(outcome, self.cache.dirty(&seen))
            }
            Err(stop) => {
                let before = self.next_request;
                let tried = self.stopped(now, id, stop, seen);
                match call {
                    _ if self.next_request == before => {}
                    Call::Lookup { dir, name } => self.ask_named(now, *dir, name),
                    Call::Get { id } => self.prefetch_after(now, *id),
                    _ => {}
                }
                tried
            }
        }
    }

    fn try_change(
        &mut self,
        now: Moment,
        wall: Time,
        id: CallId,
        op: Op,
        if_version: Option<(RnodeId, crate::types::Version)>,
    ) -> Tried {
        let Some(waiting) = self.calls.get(&id) else { return Tried::Wait };
        let mut sight = Sight::new(&self.cache, waiting.pins.pinned(), true);
        let as_expected = if_version.map_or(Ok(true), |(id, version)| {
            sight.claim(id)?;
            Ok(sight.rnode(id)?.version == version)
        });
        let mark = Mark { stamp: wall, epoch: self.session.epoch, seq: Seq(self.log.last().0 + 1) };
        let logged = |op, base| {
            let Mark { stamp, epoch, seq } = mark;
            Logged { seq, epoch, stamp, op, base }
        };
        let result = match as_expected {
            Ok(true) => execute(&op, mark, &sight),
            Ok(false) => Err(Refusal::Changed.into()),
            Err(stop) => Err(stop),
        };
        match result {
            Ok(effects) if effects.rnodes.is_empty() => {
                let seen = sight.seen.into_inner();
                Tried::Answer(Outcome::Done(None), self.cache.dirty(&seen))
            }
            Ok(effects) => {
                let logged = logged(op, effects.base.clone());
                Tried::Change(Box::new((logged, effects)))
            }
            Err(Stop::Server) => {
                // The effects that it has if the server agrees.
                sight.within = Some(false);
                match execute(&op, mark, &sight) {
                    Ok(effects) => {
                        let logged = Box::new(logged(op, effects.base));
                        Tried::Decide(logged, sight.seen.into_inner())
                    }
                    Err(stop) => {
                        let seen = sight.seen.into_inner();
                        self.stopped(now, id, stop, seen)
                    }
                }
            }
            Err(stop) => {
                let seen = sight.seen.into_inner();
                self.stopped(now, id, stop, seen)
            }
        }
    }

    /// Returns the rnode that a change makes, or takes a name from. To be called before the change
    /// is made.
    pub(super) fn about(&self, op: &Op) -> Option<RnodeId> {
        match op {
            Op::Create { id, .. } => Some(*id),
            Op::Unlink { parent, name }
            | Op::Rmdir { parent, name }
            | Op::Rename { parent, name, .. } => {
                let state = self.cache.leases.get(parent)?.state.as_ref()?;
                state.names.get(name)?.map(|dirent| dirent.id)
            }
            _ => None,
        }
    }

    pub(super) fn stopped(
        &mut self,
        now: Moment,
        id: CallId,
        stop: Stop,
        seen: BTreeSet<RnodeId>,
    ) -> Tried {
        match stop {
            Stop::Refused(why) => {
                let depends = self.cache.dirty(&seen);
                Tried::Answer(Outcome::Refused(why), depends)
            }
            Stop::Need(need) => {
                if let Some(waiting) = self.calls.get_mut(&id) {
                    waiting.pins.wait_for(&need, seen);
                }
                self.ask_for(now, need);
                Tried::Wait
            }
            Stop::Server => Tried::Wait,
        }
    }

    /// Requests the state that an attempt lacks, unless a request is outstanding.
    pub(super) fn ask_for(&mut self, now: Moment, need: Need) {
        if !self.session.is_active() {
            return;
        }
        let (rnode, mode, names) = match need {
            Need::Lease(rnode, mode, names) => (rnode, mode, names),
            Need::Names(dir, names) => return self.ask_names(now, dir, names),
        };
        // A recalled lease is released first. A grant that overtakes this client's changes would
        // show the state before them.
        if self.cache.leases.get(&rnode).is_some_and(|l| l.recall.is_some()) {
            return;
        }
        let asks = |b: &RequestBody, least: Mode| matches!(b, RequestBody::Acquire { rnode: r, mode: m } if *r == rnode && *m >= least);
        if self.is_under_way(|b| asks(b, mode)) {
            return;
        }
        // It replaces a request for a lesser mode.
        self.outstanding.retain(|_, o| !asks(&o.body, Mode::Hold));
        self.request(now, RequestBody::Acquire { rnode, mode });
        // Answered under that lease, if no other client's lease conflicts; else asked again once
        // the lease is granted.
        if let Some(names) = names {
            self.ask_names(now, rnode, names);
        }
    }

    fn is_under_way(&self, wanted: impl Fn(&RequestBody) -> bool) -> bool {
        self.outstanding.values().any(|o| wanted(&o.body))
    }

    fn ask_names(&mut self, now: Moment, dir: RnodeId, names: Names) {
        let body = match names {
            Names::One(name) => RequestBody::Lookup { dir, name },
            Names::All => {
                if self.is_under_way(|b| matches!(b, RequestBody::List { dir: d, .. } if *d == dir))
                {
                    return;
                }
                // Continue a listing, if it is under the same lease.
                let token = self.cache.leases.get(&dir).map(|l| l.token);
                let listing = self.listings.get(&dir).filter(|(t, _)| Some(*t) == token);
                let last = listing.and_then(|(_, entries)| entries.last());
                let after = last.map_or(Cookie(0), |e| e.dirent.cookie);
                if after == Cookie(0) {
                    self.listings.remove(&dir);
                }
                RequestBody::List { dir, after }
            }
        };
        if !self.is_under_way(|b| *b == body) {
            self.request(now, body);
        }
    }
}

fn list(sight: &Sight<'_>, dir: RnodeId) -> Result<Outcome, Stop> {
    let state = sight.directory(dir, || Names::All)?;
    if !state.complete {
        return Err(Stop::Need(Need::Names(dir, Names::All)));
    }
    let known = state.names.iter();
    let mut entries: Vec<Entry> = known
        .filter_map(|(name, dirent)| Some(Entry { name: name.clone(), dirent: (*dirent)? }))
        .collect();
    entries.sort_by_key(|e| e.dirent.cookie);
    Ok(Outcome::Names(entries))
}
