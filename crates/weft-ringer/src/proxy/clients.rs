//! Towards the clients of the proxy: their epochs, and their requests.

use std::collections::BTreeSet;

use super::Proxy;
use super::cache::{Cached, touched};
use crate::error::Refusal;
use crate::op::{Logged, Op};
use crate::rnode::Name;
use crate::types::{ClientId, Epoch, Incarnation, Mode, Moment, RequestId, RnodeId, Seq, Token};
use crate::wire::{Refused, Reply, RequestBody, ToServer, Welcome};

/// The margin that the proxy adds to a client's own count of its epoch: one part in this many.
const MARGIN: u64 = 16;

/// A client in its epoch, or after it.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) epoch: Epoch,
    incarnation: Incarnation,
    /// The moment the epoch ends, if it is not renewed.
    ends: Moment,
    /// The parent no longer accepts this epoch. The client keeps its leases until the end.
    fenced: bool,
    slot: u32,
    last_count: u32,
    applied: Seq,
    refused: Option<Refused>,
    /// The client has used locks in this epoch.
    pub(super) has_locked: bool,
    /// The parent has lost the client's locks in a restart.
    pub(super) must_tell: bool,
    /// A `Hello` that is answered when another epoch has begun.
    hello: Option<(RequestId, Incarnation)>,
}

impl Local {
    pub(super) fn is_in_session(&self, now: Moment) -> bool {
        !self.fenced && now < self.ends
    }
}

impl Proxy {
    /// Returns the duration of a client's epoch by its own clock, and the proxy's count of that, in
    /// microseconds.
    pub(super) fn span(&self) -> (u64, u64) {
        let lasts = self.parent.lasts_micros / 2;
        (lasts, lasts + lasts / MARGIN)
    }

    /// Returns the time until which a client may be given leases at `now`: no longer than the proxy
    /// has them.
    fn vouch(&self, now: Moment) -> Option<Moment> {
        let ends = now.after(self.span().1);
        (ends <= self.parent.ends).then_some(ends)
    }

    /// Ends the epochs whose time is up. The parent is told before their leases are granted to
    /// others.
    pub(super) fn end_due(&mut self, now: Moment) {
        if !self.is_serving(now) {
            return; // All epochs are over, and so is all state.
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

    /// Asks the parent to begin another epoch for a client, unless a request is outstanding.
    fn enter(&mut self, now: Moment, client: ClientId, incarnation: Incarnation) {
        if !self.is_entering(client) {
            self.request(now, RequestBody::Enter { client, incarnation });
        }
    }

    /// Fences a client whose epoch the parent no longer accepts: it gets no more leases.
    pub(super) fn fence(&mut self, now: Moment, client: ClientId) {
        let Some(local) = self.locals.get_mut(&client) else { return };
        local.fenced = true;
        local.must_tell = false;
        self.go_on_claiming(now);
    }

    pub(super) fn client_says(&mut self, now: Moment, message: ToServer) {
        let ToServer { client, epoch, generation, request } = message;
        // Not answered: the client repeats its request.
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
            return; // It must not downgrade a lease before it knows the result of its changes.
        }
        let local = self.locals.get_mut(&client);
        let local = local.filter(|l| current && l.epoch == epoch && l.is_in_session(now));
        let Some(local) = local else {
            // Not answered: the client expects no reply.
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
                // The renewal cannot be longer than the proxy's own epoch.
                if let Some(ends) = vouched {
                    local.ends = local.ends.max(ends);
                    self.answer(client, id, Reply::Renewed {});
                }
            }
            RequestBody::Reclaim { last, .. } => {
                // The proxy has not lost the client's leases.
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
                    // The client asks once it has the reply to the lookup.
                    None => self.answer(client, id, Reply::No { why: Refusal::AlreadyLeased }),
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
            | RequestBody::ArchiveLacks { .. }
            | RequestBody::Versions { .. }
            | RequestBody::OldVersion { .. }
            | RequestBody::Removed { .. }
            | RequestBody::Text { .. }
            | RequestBody::Snapshot { .. }
            | RequestBody::RemoveSnapshot { .. }
            | RequestBody::Snapshots { .. }) => self.relay(now, client, id, &body),
            // A proxy has no proxies.
            RequestBody::Hello { .. }
            | RequestBody::HelloProxy { .. }
            | RequestBody::Enter { .. }
            | RequestBody::Relay { .. } => {
                self.answer(client, id, Reply::No { why: Refusal::Invalid });
            }
        }
    }

    /// Returns the rnode of a name that the client may know, if the proxy knows it.
    fn named(&self, client: ClientId, dir: RnodeId, name: &Name) -> Option<RnodeId> {
        self.leases.held(dir, client).filter(|(mode, _)| *mode >= Mode::Read)?;
        let cached = self.rnodes.get(&dir).filter(|c| c.mode >= Some(Mode::Read))?;
        (*cached.names.get(name)?).map(|dirent| dirent.id)
    }

    fn hello(&mut self, now: Moment, client: ClientId, id: RequestId, incarnation: Incarnation) {
        let vouched = self.vouch(now);
        if let Some(local) = self.locals.get_mut(&client) {
            if incarnation < local.incarnation {
                return; // From an earlier incarnation.
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
            // The client keeps its leases until it is welcomed.
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

    /// Drops a client's last epoch and its leases, as the parent has begun another epoch for it, or
    /// knows of a later one elsewhere.
    pub(super) fn entered(&mut self, now: Moment, client: ClientId, welcome: Option<&Welcome>) {
        let Some(old) = self.locals.remove(&client) else { return };
        self.forget_relays(client);
        let written: Vec<RnodeId> = self.rnodes.keys().copied().collect();
        for id in written {
            if self.leases.held(id, client).is_some_and(|(mode, _)| mode == Mode::Write) {
                self.forget(id);
                // An rnode that it was about to make is made elsewhere now, if at all.
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

    /// Relays changes, if the client has the leases for them.
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
            // The client may have requested a lease on it before, and the parent not yet replied
            // that it does not exist.
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

    /// Installs a client's lease on an rnode that it is about to make: the rnode is the client's
    /// from the time that the parent receives it. Earlier requests for it are refused.
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

    /// Handles the parent's reply to changes of a client.
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
            // The reply to other changes, which alone were followed, may have shown that these were
            // carried out.
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
