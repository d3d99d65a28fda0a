//! Towards the parent: the proxy's session, requests and their replies, recalls.

use std::collections::BTreeMap;

use super::cache::touched;
use super::{Proxy, ProxyAction};
use crate::error::Refusal;
use crate::mds::Leases;
use crate::op::Logged;
use crate::types::{
    ClientId, Epoch, Generation, Incarnation, Mode, Moment, RequestId, RnodeId, Token,
};
use crate::wire::{Claim, Enclosed, FromServer, Reply, Request, RequestBody, ToServer, Welcome};

/// The most leases in one part of a reclaim.
const CLAIMS_MAX: usize = 4096;
/// The number of renewals in an epoch. Clients are given half of it at a time, so that some
/// renewals may be lost before a client has to wait.
const RENEWALS: u64 = 6;
/// The longest time a reply to a `Hello` may take, in retry times.
const HELLOS: u64 = 16;
/// The most requests of one client in progress.
const RELAYS_MAX: usize = 1024;

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    /// Clients reclaim their locks from the parent.
    LockClaims,
    /// Reclaiming leases; the remaining ones.
    Reclaiming(Vec<Claim>),
    Active,
}

/// A request in progress.
#[derive(Debug)]
struct Asked {
    body: RequestBody,
    sent: Moment,
    /// The last time it was asked for.
    wanted: Moment,
    /// The last grant that was recalled before it arrived.
    floor: Token,
    /// The stamp of the rnode that it is about.
    stamp: u64,
    /// Of a relayed request: its client, its number, and its changes.
    relayed: Option<(ClientId, RequestId, Vec<Logged>)>,
}

#[derive(Debug)]
pub(super) struct Parent {
    incarnation: Incarnation,
    phase: Phase,
    pub(super) epoch: Epoch,
    generation: Generation,
    /// The end of the epoch, by the proxy's clock.
    pub(super) ends: Moment,
    pub(super) lasts_micros: u64,
    renewed: Moment,
    next_request: u64,
    asked: BTreeMap<RequestId, Asked>,
}

impl Parent {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            phase: Phase::Greeting,
            epoch: Epoch(0),
            generation: Generation(0),
            ends: Moment(0),
            lasts_micros: 0,
            renewed: Moment(0),
            next_request: (incarnation.0 << 32) + 1,
            asked: BTreeMap::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let renews = |a: &Asked| matches!(a.body, RequestBody::Renew {});
        self.phase == Phase::Active && self.asked.values().all(renews)
    }
}

impl Proxy {
    pub(super) fn next_request(&mut self) -> RequestId {
        let id = RequestId(self.parent.next_request);
        self.parent.next_request += 1;
        id
    }

    fn send(&mut self, id: RequestId, body: RequestBody) {
        let message = ToServer {
            client: self.id,
            epoch: self.parent.epoch,
            generation: self.parent.generation,
            request: Request { id, body },
        };
        self.out.push(ProxyAction::ToParent(message));
    }

    fn request_relayed(
        &mut self,
        now: Moment,
        body: RequestBody,
        relayed: Option<(ClientId, RequestId, Vec<Logged>)>,
    ) {
        let id = self.next_request();
        let about = match &body {
            RequestBody::Acquire { rnode, .. } => Some(*rnode),
            RequestBody::Lookup { dir, .. } | RequestBody::List { dir, .. } => Some(*dir),
            _ => None,
        };
        let stamp = about.and_then(|id| self.rnodes.get(&id)).map_or(0, |c| c.stamp);
        let (sent, wanted, floor) = (now, now, Token::BORN);
        let asked = Asked { body: body.clone(), sent, wanted, floor, stamp, relayed };
        self.parent.asked.insert(id, asked);
        if self.may_send(&body) {
            self.send(id, body);
        }
    }

    /// Returns true if the parent would accept a request now; else it is sent once the parent does.
    fn may_send(&self, body: &RequestBody) -> bool {
        match body {
            RequestBody::HelloProxy { .. }
            | RequestBody::Reclaim { .. }
            | RequestBody::Renew {} => true,
            RequestBody::Relay { body, .. } if self.parent.phase == Phase::LockClaims => {
                matches!(body.open(), Ok(RequestBody::ReclaimLocks { .. }))
            }
            _ => self.parent.phase == Phase::Active,
        }
    }

    pub(super) fn request(&mut self, now: Moment, body: RequestBody) {
        self.request_relayed(now, body, None);
    }

    /// Sends the parent a request, unless it is outstanding.
    pub(super) fn ask(&mut self, now: Moment, body: RequestBody) {
        let under_way = |a: &Asked| match (&a.body, &body) {
            (
                RequestBody::Acquire { rnode: a, mode: had },
                RequestBody::Acquire { rnode: b, mode },
            ) => a == b && had >= mode,
            (RequestBody::List { dir: a, .. }, RequestBody::List { dir: b, .. }) => a == b,
            (a, b) => a == b,
        };
        if self.parent.asked.values().any(under_way) {
            return;
        }
        if let RequestBody::Acquire { rnode, .. } = &body {
            // It replaces a request for a lesser mode.
            let less =
                |a: &Asked| matches!(&a.body, RequestBody::Acquire { rnode: r, .. } if r == rnode);
            self.parent.asked.retain(|_, a| !less(a));
        }
        self.request(now, body);
    }

    /// Returns true if an epoch of a client is being begun.
    pub(super) fn is_entering(&self, of: ClientId) -> bool {
        let enters =
            |a: &Asked| matches!(a.body, RequestBody::Enter { client, .. } if client == of);
        self.parent.asked.values().any(enters)
    }

    /// Relays a client's request, unless it is outstanding.
    pub(super) fn relay(
        &mut self,
        now: Moment,
        client: ClientId,
        id: RequestId,
        body: &RequestBody,
    ) {
        let (mut count, mut is_there) = (0, false);
        for asked in self.parent.asked.values_mut() {
            let Some((_, request, _)) = asked.relayed.as_ref().filter(|(c, _, _)| *c == client)
            else {
                continue;
            };
            count += 1;
            if *request == id {
                is_there = true;
                asked.wanted = now;
            }
        }
        let Some(local) = self.locals.get(&client) else { return };
        if is_there || count >= RELAYS_MAX {
            return;
        }
        let relay =
            RequestBody::Relay { client, epoch: local.epoch, id, body: Enclosed::new(body) };
        match body {
            // No reply is expected.
            RequestBody::LowerLocks { .. } => {
                if self.may_send(&relay) {
                    let id = self.next_request();
                    self.send(id, relay);
                }
            }
            RequestBody::Commit { ops, .. } => {
                self.request_relayed(now, relay, Some((client, id, ops.clone())));
            }
            _ => self.request_relayed(now, relay, Some((client, id, Vec::new()))),
        }
    }

    /// Forgets a client's relayed requests: they are of its last epoch.
    pub(super) fn forget_relays(&mut self, client: ClientId) {
        let theirs = |a: &Asked| a.relayed.as_ref().is_some_and(|(c, _, _)| *c == client);
        self.parent.asked.retain(|_, a| !theirs(a));
    }

    /// Returns true if changes of a client (of rnode `about`, if given) are in progress.
    pub(super) fn changes_under_way(&self, of: ClientId, about: Option<RnodeId>) -> bool {
        let relayed = self.parent.asked.values().filter_map(|a| a.relayed.as_ref());
        let mut changes = relayed.filter(|(c, _, _)| *c == of).flat_map(|(_, _, ops)| ops);
        changes.any(|op| about.is_none_or(|id| touched(op).any(|t| t == id)))
    }

    /// Returns true if a change of an rnode is in progress, of any client.
    pub(super) fn is_changing(&self, id: RnodeId) -> bool {
        let relayed = self.parent.asked.values().filter_map(|a| a.relayed.as_ref());
        relayed.flat_map(|(_, _, ops)| ops).flat_map(touched).any(|t| t == id)
    }

    /// Returns true if any request in progress is about an rnode.
    pub(super) fn is_under_way(&self, id: RnodeId) -> bool {
        let about = |a: &Asked| match &a.body {
            RequestBody::Acquire { rnode, .. } => *rnode == id,
            _ => a.relayed.iter().flat_map(|(_, _, ops)| ops).flat_map(touched).any(|t| t == id),
        };
        self.parent.asked.values().any(about)
    }

    pub(super) fn greet(&mut self, now: Moment) {
        self.parent.phase = Phase::Greeting;
        // A reply to an earlier `Hello` is as good: it counts from the sending of that.
        let keep_micros = self.options.retry_micros * HELLOS;
        self.parent.asked.retain(|_, a| match a.body {
            RequestBody::HelloProxy { .. } => now.0.saturating_sub(a.sent.0) < keep_micros,
            RequestBody::Renew {} | RequestBody::Reclaim { .. } => false,
            _ => true,
        });
        let incarnation = self.parent.incarnation;
        self.request(now, RequestBody::HelloProxy { incarnation });
    }

    pub(super) fn tick(&mut self, now: Moment) {
        let steps = self.leases.advance_all(now);
        self.take(now, steps);
        self.let_go_of_some();
        if self.parent.phase == Phase::Greeting || !self.is_serving(now) {
            let hellos = self.parent.asked.values();
            let hellos = hellos.filter(|a| matches!(a.body, RequestBody::HelloProxy { .. }));
            let last = hellos.map(|a| a.sent).max();
            if self.parent.phase != Phase::Greeting
                || last.is_none_or(|sent| now >= sent.after(self.options.retry_micros))
            {
                self.greet(now);
            }
            return;
        }
        let every = self.parent.lasts_micros / RENEWALS;
        if now >= self.parent.renewed.after(every) {
            self.parent.renewed = now;
            self.parent.asked.retain(|_, a| {
                // The reply to an older one would renew nothing.
                !matches!(a.body, RequestBody::Renew {}) || now < a.sent.after(every * RENEWALS)
            });
            self.request(now, RequestBody::Renew {});
        }
        self.go_on_claiming(now);
        // A request that its client no longer repeats is dropped; the result of changes has to be
        // known.
        let keep_micros = self.options.retry_micros * HELLOS;
        self.parent.asked.retain(|_, a| match &a.relayed {
            Some((_, _, ops)) if ops.is_empty() => now < a.wanted.after(keep_micros),
            _ => true,
        });
        self.resend(now, self.options.retry_micros);
    }

    fn resend(&mut self, now: Moment, after_micros: u64) {
        let mut again = Vec::new();
        for (id, asked) in &self.parent.asked {
            // The reply to a renewal counts from its first sending.
            let renews =
                matches!(asked.body, RequestBody::Renew {} | RequestBody::HelloProxy { .. });
            if !renews && now >= asked.sent.after(after_micros) && self.may_send(&asked.body) {
                again.push((*id, asked.body.clone()));
            }
        }
        for (id, body) in again {
            if let Some(asked) = self.parent.asked.get_mut(&id) {
                asked.sent = now;
            }
            self.send(id, body);
        }
    }

    pub(super) fn parent_says(&mut self, now: Moment, message: FromServer) {
        match message {
            FromServer::Reply { generation, id, reply } => self.replied(now, generation, id, reply),
            FromServer::Recall { generation, epoch, rnode, token, to } => {
                if self.is_of_session(generation, epoch) {
                    self.recalled(now, rnode, token, to);
                }
            }
            FromServer::Relayed { generation, client, id, reply } => {
                if generation == self.parent.generation {
                    self.relayed(now, client, id, reply);
                }
            }
            FromServer::RelayedRecallLocks { generation, client, epoch, rnode, token } => {
                let current = self.locals.get(&client).is_some_and(|l| l.epoch == epoch);
                if current && generation == self.parent.generation {
                    let generation = self.generation();
                    let recall = FromServer::RecallLocks { generation, epoch, rnode, token };
                    self.tell(client, recall);
                }
            }
            FromServer::RelayedLocksChanged { client, epoch, rnode, .. } => {
                let generation = self.generation();
                self.tell(client, FromServer::LocksChanged { generation, epoch, rnode });
            }
            // For a client that connects directly.
            FromServer::RecallLocks { .. } | FromServer::LocksChanged { .. } => {}
        }
    }

    fn is_of_session(&self, generation: Generation, epoch: Epoch) -> bool {
        self.parent.phase == Phase::Active
            && generation == self.parent.generation
            && epoch == self.parent.epoch
    }

    fn replied(&mut self, now: Moment, generation: Generation, id: RequestId, reply: Reply) {
        let greets = |a: &Asked| matches!(a.body, RequestBody::HelloProxy { .. });
        if let Reply::Welcome { welcome } = &reply
            && let Some(hello) = self.parent.asked.get(&id).filter(|a| greets(a))
        {
            let sent = hello.sent;
            if generation >= self.parent.generation {
                self.welcomed(now, generation, sent, welcome);
            }
            return;
        }
        // A later generation of the parent does not know this session.
        let forgotten = generation > self.parent.generation && reply == Reply::NoSession {};
        if generation != self.parent.generation && !forgotten {
            return;
        }
        if reply == (Reply::NoSession {}) {
            if self.parent.asked.contains_key(&id) && self.parent.phase != Phase::Greeting {
                self.greet(now);
            }
            return;
        }
        let Some(asked) = self.parent.asked.remove(&id) else { return };
        match (asked.body, reply) {
            (RequestBody::Renew {}, Reply::Renewed {}) => {
                let ends = asked.sent.after(self.parent.lasts_micros);
                self.parent.ends = self.parent.ends.max(ends);
            }
            (RequestBody::Reclaim { last, .. }, Reply::Reclaimed {}) => {
                if last {
                    self.become_active(now);
                } else {
                    self.claim(now);
                }
            }
            (
                RequestBody::Acquire { rnode, .. },
                Reply::Granted { rnode: state, holders, mode, token },
            ) if token > asked.floor && state.id == rnode => {
                let fresh = self.rnodes.get(&rnode).is_some_and(|c| c.stamp == asked.stamp);
                self.granted(rnode, mode, token, fresh.then_some((*state, holders)));
                self.pump(now, rnode);
                self.settle(rnode);
            }
            (RequestBody::Acquire { rnode, .. }, Reply::No { why }) => {
                self.denied(now, rnode, why, asked.stamp);
            }
            (RequestBody::Acquire { rnode, .. }, _) => self.pump(now, rnode),
            (RequestBody::Lookup { dir, name }, Reply::Found { dirent, token }) => {
                if let Some(cached) = self.rnodes.get_mut(&dir)
                    && (cached.stamp, cached.token) == (asked.stamp, token)
                {
                    cached.names.entry(name).or_insert(dirent);
                }
                self.pump(now, dir);
            }
            (RequestBody::List { dir, .. }, Reply::Listed { listed }) => {
                if let Some(cached) = self.rnodes.get_mut(&dir)
                    && (cached.stamp, cached.token) == (asked.stamp, listed.token)
                {
                    cached.listing.extend(listed.entries);
                    if listed.end {
                        for entry in std::mem::take(&mut cached.listing) {
                            cached.names.entry(entry.name).or_insert(Some(entry.dirent));
                        }
                        cached.complete = true;
                    }
                }
                self.pump(now, dir);
            }
            (RequestBody::Lookup { dir, .. } | RequestBody::List { dir, .. }, _) => {
                self.pump(now, dir);
            }
            (RequestBody::Enter { client, .. }, Reply::Welcome { welcome }) => {
                self.entered(now, client, Some(&welcome));
            }
            (RequestBody::Enter { client, .. }, _) => self.entered(now, client, None),
            (RequestBody::Relay { .. }, reply) => {
                // A reply to `Relay` itself: the parent does not permit the request, or cannot
                // decode it.
                if let Some((client, id, ops)) = asked.relayed {
                    for id in ops.iter().flat_map(touched) {
                        self.forget(id);
                    }
                    self.answer(client, id, reply);
                }
            }
            // A refusal: the request is made again, if it is still needed.
            _ => {}
        }
    }

    fn welcomed(&mut self, now: Moment, generation: Generation, sent: Moment, welcome: &Welcome) {
        let greets = |a: &Asked| matches!(a.body, RequestBody::HelloProxy { .. });
        self.parent.asked.retain(|_, a| !greets(a));
        self.parent.generation = generation;
        self.parent.lasts_micros = welcome.lasts_micros;
        self.parent.renewed = sent;
        let ends = sent.after(welcome.lasts_micros);
        if welcome.epoch != self.parent.epoch {
            // Another epoch: all leases are gone. Clients are told when they next ask.
            self.parent.epoch = welcome.epoch;
            self.parent.ends = ends;
            self.parent.asked.clear();
            self.locals.clear();
            self.rnodes.clear();
            let retry_micros = self.options.recall_retry_micros;
            self.leases = Leases::new(self.generation(), retry_micros);
            if welcome.reclaim {
                // The parent began this epoch in an earlier generation, and waits for leases to be
                // reclaimed.
                self.parent.phase = Phase::Reclaiming(Vec::new());
                self.claim(now);
            } else {
                self.become_active(now);
            }
            return;
        }
        self.parent.ends = self.parent.ends.max(ends);
        for asked in self.parent.asked.values_mut() {
            asked.floor = asked.floor.max(Token::before(generation));
        }
        if welcome.reclaim {
            self.parent.phase = Phase::LockClaims;
            for local in self.locals.values_mut() {
                local.must_tell = local.has_locked;
            }
            self.go_on_claiming(now);
            self.resend(now, 0);
        } else {
            self.become_active(now);
        }
    }

    /// Reclaims the proxy's leases, when all clients have reclaimed their locks.
    pub(super) fn go_on_claiming(&mut self, now: Moment) {
        if self.parent.phase != Phase::LockClaims || self.locals.values().any(|l| l.must_tell) {
            return;
        }
        let held = self.rnodes.iter().filter_map(|(&rnode, cached)| {
            Some(Claim { rnode, mode: cached.mode?, token: cached.token })
        });
        self.parent.phase = Phase::Reclaiming(held.collect());
        self.claim(now);
    }

    fn claim(&mut self, now: Moment) {
        let Phase::Reclaiming(left) = &mut self.parent.phase else { return };
        let claims: Vec<Claim> = left.drain(..left.len().min(CLAIMS_MAX)).collect();
        let last = left.is_empty();
        self.request(now, RequestBody::Reclaim { claims, last });
    }

    fn become_active(&mut self, now: Moment) {
        self.parent.phase = Phase::Active;
        self.resend(now, 0);
        let waiting = self.rnodes.iter().filter(|(_, c)| !c.waiting.is_empty());
        let waiting: Vec<RnodeId> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            self.pump(now, id);
        }
    }

    /// Handles a recall of every grant of an rnode up to `token`.
    fn recalled(&mut self, now: Moment, rnode: RnodeId, token: Token, to: Option<Mode>) {
        // A grant that has not arrived yet is meant too.
        for asked in self.parent.asked.values_mut() {
            if matches!(asked.body, RequestBody::Acquire { rnode: r, .. } if r == rnode) {
                asked.floor = asked.floor.max(token);
            }
        }
        let to = to.unwrap_or(Mode::Hold);
        match self.rnodes.get_mut(&rnode) {
            Some(cached) if cached.mode.is_some() => {
                if cached.token > token {
                    return; // Granted anew since.
                }
                cached.token = token;
                let to = cached.recall.map_or(to, |earlier| earlier.min(to));
                cached.recall = Some(to);
                // It waits behind earlier requests, as any other.
                let wanted = if to == Mode::Read { Mode::Read } else { Mode::Write };
                let request = RequestId(self.next_stamp());
                let steps = self.leases.acquire(now, self.id, request, rnode, wanted);
                self.take(now, steps);
            }
            _ => self.send_lower(rnode, token, None),
        }
    }

    /// Reports that at most `to` is held by grants up to `token`. Not answered.
    pub(super) fn send_lower(&mut self, rnode: RnodeId, token: Token, to: Option<Mode>) {
        // If it is not sent now, a recall asks for it later.
        if self.parent.phase == Phase::Active {
            let id = self.next_request();
            self.send(id, RequestBody::Lower { rnode, token, to });
        }
    }

    /// Handles the parent's reply to a client's request.
    fn relayed(&mut self, now: Moment, client: ClientId, id: RequestId, reply: Reply) {
        let found = self.parent.asked.iter().find(|(_, a)| {
            a.relayed.as_ref().is_some_and(|(c, request, _)| (*c, *request) == (client, id))
        });
        let Some(asked) = found.map(|(key, _)| *key).and_then(|key| self.parent.asked.remove(&key))
        else {
            return;
        };
        let ops = asked.relayed.map(|(_, _, ops)| ops).unwrap_or_default();
        if reply == (Reply::No { why: Refusal::Fenced }) {
            // The parent knows of a later epoch of this client, or of none.
            for id in ops.iter().flat_map(touched) {
                self.forget(id);
            }
            self.fence(now, client);
            self.answer(client, id, Reply::NoSession {});
            return;
        }
        if !ops.is_empty() {
            self.carried_out(now, client, &ops, &reply);
        }
        self.answer(client, id, reply);
    }
}
