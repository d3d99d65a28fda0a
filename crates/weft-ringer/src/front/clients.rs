//! Towards clients: their epochs, and their requests.

use std::collections::BTreeSet;

use super::Front;
use super::cache::{Cached, touched};
use crate::error::Refusal;
use crate::op::{Logged, Op};
use crate::rnode::Name;
use crate::types::{ClientId, Epoch, Incarnation, Mode, Moment, RequestId, RnodeId, Seq, Token};
use crate::wire::{Refused, Reply, RequestBody, ToServer, Welcome};

/// How much longer than a client's own count the front waits, as a share of the epoch.
const MARGIN: u64 = 16;

/// A client in its epoch, or after it.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) epoch: Epoch,
    incarnation: Incarnation,
    /// The moment the epoch ends, if it is not renewed.
    ends: Moment,
    /// The parent takes nothing of it any more. What the client has is its own until the end.
    fenced: bool,
    slot: u32,
    last_count: u32,
    applied: Seq,
    refused: Option<Refused>,
    /// It has had to do with locks in this epoch.
    pub(super) has_locked: bool,
    /// The parent has forgotten its locks.
    pub(super) must_tell: bool,
    /// A hello that is answered when another epoch has begun.
    hello: Option<(RequestId, Incarnation)>,
}

impl Local {
    pub(super) fn is_in_session(&self, now: Moment) -> bool {
        !self.fenced && now < self.ends
    }
}

impl Front {
    /// How long an epoch of a client lasts by its own clock, and the front's count of that.
    pub(super) fn span(&self) -> (u64, u64) {
        let lasts = self.parent.lasts_micros / 2;
        (lasts, lasts + lasts / MARGIN)
    }

    /// Until when a client may be given leases at `now`: no longer than the front has them.
    fn vouch(&self, now: Moment) -> Option<Moment> {
        let ends = now.after(self.span().1);
        (ends <= self.parent.ends).then_some(ends)
    }

    /// Ends the epochs whose time is up. The parent is told before their leases go to others.
    pub(super) fn end_due(&mut self, now: Moment) {
        if !self.is_serving(now) {
            return; // All are over; so is everything else.
        }
        let due = self.locals.iter_mut().filter(|(_, l)| now >= l.ends);
        let due = due.map(|(client, local)| {
            local.must_tell = false;
            (*client, local.incarnation)
        });
        for (client, incarnation) in due.collect::<Vec<_>>() {
            self.enter(now, client, incarnation);
        }
        self.go_on_claiming(now);
    }

    /// Asks the parent to begin another epoch for a client, unless that is being done.
    fn enter(&mut self, now: Moment, client: ClientId, incarnation: Incarnation) {
        if !self.is_entering(client) {
            self.request(now, RequestBody::Enter { client, incarnation });
        }
    }

    /// The parent takes nothing of a client's epoch any more: no more is the client given.
    pub(super) fn fence(&mut self, now: Moment, client: ClientId) {
        let Some(local) = self.locals.get_mut(&client) else { return };
        local.fenced = true;
        local.must_tell = false;
        self.go_on_claiming(now);
    }

    pub(super) fn client_says(&mut self, now: Moment, message: ToServer) {
        let ToServer { client, epoch, generation, request } = message;
        // Who is waited for asks again.
        if !self.is_serving(now) || client == self.id {
            return;
        }
        let id = request.id;
        if let RequestBody::Hello { incarnation } = request.body {
            return self.hello(now, client, id, incarnation);
        }
        let current = generation == self.generation();
        let vouched = self.vouch(now);
        if let RequestBody::Lower { rnode, .. } = request.body
            && self.changes_under_way(client, Some(rnode))
        {
            return; // Before it knows what has become of its changes it lowers nothing.
        }
        let local = self.locals.get_mut(&client);
        let local = local.filter(|l| current && l.epoch == epoch && l.is_in_session(now));
        let Some(local) = local else {
            // Not answered: it asks for nothing.
            let silent =
                matches!(request.body, RequestBody::Lower { .. } | RequestBody::LowerLocks { .. });
            if !silent {
                self.answer(client, id, Reply::NoSession {});
            }
            return;
        };
        match request.body {
            RequestBody::Renew {} if local.must_tell => {
                self.answer(client, id, Reply::NoSession {});
            }
            RequestBody::Renew {} => {
                // Longer than the front's own epoch it cannot be.
                if let Some(ends) = vouched {
                    local.ends = local.ends.max(ends);
                    self.answer(client, id, Reply::Renewed {});
                }
            }
            RequestBody::Reclaim { last, .. } => {
                // The front has not forgotten.
                local.must_tell &= !last;
                self.go_on_claiming(now);
                self.answer(client, id, Reply::Reclaimed {});
            }
            RequestBody::ReclaimLocks { .. } if !local.must_tell => {
                self.answer(client, id, Reply::Reclaimed {});
            }
            RequestBody::Acquire { rnode, mode } => {
                let steps = self.leases.acquire(now, client, id, rnode, mode);
                self.take(now, steps);
            }
            RequestBody::AcquireNamed { dir, name } => {
                let rnode = self.named(client, dir, &name);
                match rnode.and_then(|rnode| self.leases.acquire_named(now, client, id, rnode)) {
                    Some(steps) => self.take(now, steps),
                    // It asks when it has been told what that is.
                    None => self.answer(client, id, Reply::No { why: Refusal::Busy }),
                }
            }
            RequestBody::Lower { rnode, token, to } => self.lowered(now, client, rnode, token, to),
            body @ (RequestBody::Lookup { .. } | RequestBody::List { .. }) => {
                self.asks(now, client, id, &body);
            }
            RequestBody::Commit { prev, ops } => self.commit(now, client, id, prev, ops),
            body @ (RequestBody::AcquireLocks { .. }
            | RequestBody::LowerLocks { .. }
            | RequestBody::ReclaimLocks { .. }
            | RequestBody::TellLocks { .. }) => {
                local.has_locked = true;
                self.relay(now, client, id, &body);
            }
            body @ (RequestBody::Peek { .. }
            | RequestBody::Hold { .. }
            | RequestBody::Release { .. }
            | RequestBody::Needed { .. }
            | RequestBody::Archives {}
            | RequestBody::Archived { .. }
            | RequestBody::Versions { .. }
            | RequestBody::OldVersion { .. }
            | RequestBody::Removed { .. }
            | RequestBody::Text { .. }
            | RequestBody::Snapshot { .. }
            | RequestBody::RemoveSnapshot { .. }
            | RequestBody::Snapshots { .. }) => self.relay(now, client, id, &body),
            // A front has no fronts.
            RequestBody::Hello { .. }
            | RequestBody::HelloFront { .. }
            | RequestBody::Enter { .. }
            | RequestBody::Relay { .. } => {
                self.answer(client, id, Reply::No { why: Refusal::Invalid });
            }
        }
    }

    /// What a name is that a client may know, if the front does.
    fn named(&self, client: ClientId, dir: RnodeId, name: &Name) -> Option<RnodeId> {
        self.leases.held(dir, client).filter(|(mode, _)| *mode >= Mode::Read)?;
        let cached = self.rnodes.get(&dir).filter(|c| c.mode >= Some(Mode::Read))?;
        (*cached.names.get(name)?).map(|dirent| dirent.id)
    }

    fn hello(&mut self, now: Moment, client: ClientId, id: RequestId, incarnation: Incarnation) {
        let vouched = self.vouch(now);
        if let Some(local) = self.locals.get_mut(&client) {
            if incarnation < local.incarnation {
                return; // From a life that is over.
            }
            if incarnation == local.incarnation && local.is_in_session(now) {
                if let Some(ends) = vouched {
                    local.ends = local.ends.max(ends);
                    let reclaim = local.must_tell;
                    self.welcome(client, id, reclaim);
                }
                return;
            }
            local.hello = Some((id, incarnation));
            // It goes on with what it has until it is welcomed.
            if incarnation == local.incarnation && now < local.ends {
                return;
            }
        } else {
            let local = Local {
                epoch: Epoch(0),
                incarnation,
                ends: now,
                fenced: true,
                slot: 0,
                last_count: 0,
                applied: Seq(0),
                refused: None,
                has_locked: false,
                must_tell: false,
                hello: Some((id, incarnation)),
            };
            self.locals.insert(client, local);
        }
        self.enter(now, client, incarnation);
    }

    fn welcome(&mut self, client: ClientId, id: RequestId, reclaim: bool) {
        let (lasts_micros, _) = self.span();
        let Some(local) = self.locals.get(&client) else { return };
        let welcome = Welcome {
            epoch: local.epoch,
            lasts_micros,
            slot: local.slot,
            last_count: local.last_count,
            applied: local.applied,
            refused: local.refused,
            reclaim,
        };
        self.answer(client, id, Reply::Welcome { welcome });
    }

    /// The parent has begun another epoch for a client, or knows of a later one that it has elsewhere:
    /// what it had in the last is nobody's.
    pub(super) fn entered(&mut self, now: Moment, client: ClientId, welcome: Option<&Welcome>) {
        let Some(old) = self.locals.remove(&client) else { return };
        self.forget_relays(client);
        let written: Vec<RnodeId> = self.rnodes.keys().copied().collect();
        for id in written {
            if self.leases.held(id, client).is_some_and(|(mode, _)| mode == Mode::Write) {
                self.forget(id);
                // What it was about to make it makes elsewhere now, if at all.
                if let Some(cached) = self.rnodes.get_mut(&id).filter(|c| c.unborn) {
                    (cached.mode, cached.unborn) = (None, false);
                }
            }
        }
        let (steps, touched) = self.leases.drop_client(now, client);
        let vouched = self.vouch(now);
        if let (Some((id, incarnation)), Some(ends), Some(welcome)) = (old.hello, vouched, welcome)
        {
            let local = Local {
                epoch: welcome.epoch,
                incarnation,
                ends,
                fenced: false,
                slot: welcome.slot,
                last_count: welcome.last_count,
                applied: welcome.applied,
                refused: welcome.refused,
                has_locked: false,
                must_tell: false,
                hello: None,
            };
            self.locals.insert(client, local);
            self.welcome(client, id, false);
        }
        self.go_on_claiming(now);
        self.take(now, steps);
        for id in touched {
            self.settle(id);
        }
    }

    /// Hands changes on, if the client has the leases for them.
    fn commit(
        &mut self,
        now: Moment,
        client: ClientId,
        id: RequestId,
        prev: Seq,
        ops: Vec<Logged>,
    ) {
        let Some(local) = self.locals.get(&client) else { return };
        let (applied, slot, last_count) = (local.applied, local.slot, local.last_count);
        if prev > applied {
            return self.answer(client, id, Reply::Broken { applied, refused: None });
        }
        let mut made = BTreeSet::new();
        for logged in ops.iter().filter(|o| o.seq > applied) {
            let may = |id: &RnodeId| {
                let held = self.leases.held(*id, client);
                made.contains(id) || held.is_some_and(|(mode, _)| mode == Mode::Write)
            };
            if !logged.base.iter().all(|(id, _)| may(id)) {
                let refused = Some(Refused { seq: logged.seq, why: Refusal::Fenced });
                return self.answer(client, id, Reply::Broken { applied, refused });
            }
            if let Op::Create { id, .. } = logged.op
                && id.slot() == slot
                && id.count() > last_count
            {
                made.insert(id);
            }
        }
        for id in made {
            // It may have asked for it before, and the parent not yet have said that there is no such thing.
            let held = self.leases.held(id, client).map(|(mode, _)| mode);
            if held.min(self.covers(id)) < Some(Mode::Write) {
                self.born(client, id);
            }
        }
        for id in ops.iter().flat_map(touched) {
            self.touch(id);
        }
        self.relay(now, client, id, &RequestBody::Commit { prev, ops });
    }

    /// A client is about to make an rnode: it is the client's, from when the parent hears of it. Who
    /// asked for it before asked for nothing.
    fn born(&mut self, client: ClientId, id: RnodeId) {
        for waiting in self.rnodes.remove(&id).map(|c| c.waiting).unwrap_or_default() {
            self.answer(waiting.client, waiting.request, Reply::No { why: Refusal::Stale });
        }
        self.leases.clear(id);
        self.leases.install(client, id, Mode::Write, Token::BORN);
        let stamp = self.next_stamp();
        let (mode, unborn) = (Some(Mode::Write), true);
        let cached = Cached { mode, stamp, unborn, ..Cached::default() };
        self.rnodes.insert(id, cached);
    }

    /// The parent has answered to changes of a client.
    pub(super) fn carried_out(
        &mut self,
        now: Moment,
        client: ClientId,
        ops: &[Logged],
        reply: &Reply,
    ) {
        for id in ops.iter().flat_map(touched) {
            self.touch(id);
        }
        let alone = !self.changes_under_way(client, None);
        let Some(local) = self.locals.get_mut(&client) else { return };
        let before = local.applied;
        let (applied, as_sent) = match *reply {
            Reply::Committed { applied, refused } => {
                local.refused = refused;
                let newly = refused.is_some_and(|r| r.seq > before);
                (applied, alone && !newly)
            }
            Reply::Broken { applied, .. } => (applied, false),
            _ => (before, false),
        };
        local.applied = before.max(applied);
        for logged in ops.iter().filter(|o| o.seq <= applied) {
            if let Op::Create { id, .. } = logged.op {
                local.last_count = local.last_count.max(id.count());
                if let Some(cached) = self.rnodes.get_mut(&id) {
                    cached.unborn = false;
                }
            }
        }
        let first = ops.first().map_or(Seq(0), |o| o.seq);
        if as_sent && before < first {
            for logged in ops.iter().filter(|o| o.seq <= applied) {
                self.follow(client, logged);
            }
        } else {
            // They may be known to be carried out by the answer to others, which followed those alone.
            for id in ops.iter().flat_map(touched) {
                self.forget(id);
            }
        }
        let touched: BTreeSet<RnodeId> = ops.iter().flat_map(touched).collect();
        for id in touched {
            self.pump(now, id);
            self.settle(id);
        }
    }
}
