//! Between the two tables: waiting clients are answered under the parent's grants, and leases that
//! the parent has recalled are released when clients have released theirs.

use super::Proxy;
use super::cache::{Cached, Waiting, Want};
use crate::error::Refusal;
use crate::mds::Step;
use crate::rnode::{Holders, Rnode};
use crate::types::{ClientId, Cookie, Mode, Moment, RequestId, RnodeId, Token};
use crate::wire::{FromServer, Listed, Reply, RequestBody};

/// Entries in one part of a listing.
const LISTING_MAX: usize = 1000;
/// The most requests that wait for one rnode; a client repeats a request beyond that.
const WAITING_MAX: usize = 4096;

impl Proxy {
    /// Carries out the grants and recalls of the lease table.
    pub(super) fn take(&mut self, now: Moment, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Grant { client, rnode, .. } if client == self.id => {
                    self.give_back(now, rnode);
                }
                Step::Grant { client, request, rnode, mode, token } => {
                    let want = Want::Grant { mode, token };
                    self.wait(now, rnode, Waiting { client, request, want });
                }
                // The proxy itself releases at once.
                Step::Recall { client, .. } if client == self.id => {}
                Step::Recall { client, rnode, token, to } => {
                    let Some(epoch) = self.locals.get(&client).map(|l| l.epoch) else { continue };
                    let generation = self.generation();
                    let recall = FromServer::Recall { generation, epoch, rnode, token, to };
                    self.tell(client, recall);
                }
            }
        }
    }

    /// Returns the cache entry of an rnode, made if it is missing.
    pub(super) fn entry(&mut self, id: RnodeId) -> &mut Cached {
        let stamp = self.next_stamp();
        self.rnodes.entry(id).or_insert_with(|| Cached { stamp, ..Cached::default() })
    }

    /// Queues a client's request about an rnode.
    pub(super) fn wait(&mut self, now: Moment, id: RnodeId, waiting: Waiting) {
        let all = &mut self.entry(id).waiting;
        let grants = |w: &Waiting| matches!(w.want, Want::Grant { .. });
        let same = |w: &Waiting| {
            w.client == waiting.client
                && (w.request == waiting.request || (grants(w) && grants(&waiting)))
        };
        all.retain(|w| !same(w));
        if all.len() < WAITING_MAX {
            all.push(waiting);
        }
        self.pump(now, id);
    }

    /// Answers the waiting requests about an rnode that can be answered, and asks the parent for
    /// missing state.
    pub(super) fn pump(&mut self, now: Moment, id: RnodeId) {
        let Some(cached) = self.rnodes.get_mut(&id) else { return };
        for waiting in std::mem::take(&mut cached.waiting) {
            let (client, request) = (waiting.client, waiting.request);
            if !self.locals.get(&client).is_some_and(|l| l.is_in_session(now)) {
                continue;
            }
            match self.answer_to(id, &waiting) {
                Ok(Some(reply)) => self.answer(client, request, reply),
                Ok(None) => {}
                Err(lacks) => {
                    self.ask(now, lacks);
                    self.entry(id).waiting.push(waiting);
                }
            }
        }
    }

    /// Returns the reply to a waiting request: `None` if it has become void; the error is the
    /// request to send to the parent.
    fn answer_to(&self, id: RnodeId, waiting: &Waiting) -> Result<Option<Reply>, RequestBody> {
        let Some(cached) = self.rnodes.get(&id) else { return Ok(None) };
        let (mode, token) = match &waiting.want {
            Want::Grant { mode, token } => {
                let held = self.leases.held(id, waiting.client);
                if held != Some((*mode, *token)) {
                    return Ok(None); // Released, or granted anew.
                }
                let mode = *mode;
                return match (&cached.state, cached.mode) {
                    (Some((rnode, holders)), Some(cover)) if cover >= mode.max(Mode::Read) => {
                        let (rnode, holders) = (Box::new(rnode.clone()), holders.clone());
                        Ok(Some(Reply::Granted { rnode, holders, mode, token: *token }))
                    }
                    _ => Err(RequestBody::Acquire { rnode: id, mode: mode.max(Mode::Read) }),
                };
            }
            Want::Name(_) | Want::List(_) => match self.leases.held(id, waiting.client) {
                Some((mode, token)) => (mode, token),
                None => return Ok(Some(Reply::No { why: Refusal::Fenced })),
            },
        };
        if mode < Mode::Read {
            return Ok(Some(Reply::No { why: Refusal::Fenced }));
        }
        if cached.mode < Some(Mode::Read) {
            return Err(RequestBody::Acquire { rnode: id, mode: Mode::Read });
        }
        match &waiting.want {
            Want::Name(name) => match cached.names.get(name) {
                Some(dirent) => Ok(Some(Reply::Found { dirent: *dirent, token })),
                None if cached.complete => Ok(Some(Reply::Found { dirent: None, token })),
                None => Err(RequestBody::Lookup { dir: id, name: name.clone() }),
            },
            Want::List(after) if cached.complete => {
                let (entries, end) = cached.list(*after, LISTING_MAX);
                Ok(Some(Reply::Listed { listed: Listed { entries, end, token } }))
            }
            _ => {
                let after = cached.listing.last().map_or(Cookie(0), |e| e.dirent.cookie);
                Err(RequestBody::List { dir: id, after })
            }
        }
    }

    /// Handles a grant of the parent; `state` is given if no event has made it invalid since.
    pub(super) fn granted(
        &mut self,
        id: RnodeId,
        mode: Mode,
        token: Token,
        state: Option<(Rnode, Holders)>,
    ) {
        let cached = self.entry(id);
        if cached.mode < Some(Mode::Read) {
            cached.forget_state();
        }
        cached.listing.clear();
        (cached.mode, cached.token) = (Some(mode), token);
        if mode >= Mode::Read && state.is_some() {
            cached.state = state;
        }
    }

    /// Handles the parent's refusal of a lease that was requested at `stamp`: waiting clients are
    /// refused.
    pub(super) fn denied(&mut self, now: Moment, id: RnodeId, why: Refusal, stamp: u64) {
        let is_changing = self.is_changing(id);
        let Some(cached) = self.rnodes.get_mut(&id) else { return };
        if why == Refusal::Stale && cached.stamp == stamp && !is_changing {
            // The rnode does not exist: the client that was about to make it did not.
            cached.mode = None;
            cached.forget_state();
        }
        let (cover, mut refused) = (cached.mode, Vec::new());
        cached.waiting.retain(|w| match w.want {
            Want::Grant { mode, token } if cover < Some(mode.max(Mode::Read)) => {
                refused.push((w.client, w.request, token));
                false
            }
            _ => true,
        });
        for (client, request, token) in refused {
            self.answer(client, request, Reply::No { why });
            // The client may have had a lesser lease before, which it keeps.
            let steps = self.leases.lower(now, client, id, token, cover);
            self.take(now, steps);
        }
        self.pump(now, id);
        self.settle(id);
    }

    /// Downgrades a recalled lease at the parent, when all clients have downgraded theirs.
    fn give_back(&mut self, now: Moment, id: RnodeId) {
        let is_held = self.leases.holders(id).any(|client| client != self.id);
        if let Some(cached) = self.rnodes.get_mut(&id)
            && let Some(to) = cached.recall.take()
        {
            let left = cached.mode.map(|mode| mode.min(to)).filter(|m| *m > Mode::Hold || is_held);
            cached.mode = left;
            if left < Some(Mode::Read) {
                cached.forget_state();
            }
            let token = cached.token;
            self.touch(id);
            self.send_lower(id, token, left);
        }
        let held = self.leases.held(id, self.id);
        let steps = held.map(|(_, token)| self.leases.lower(now, self.id, id, token, None));
        self.take(now, steps.unwrap_or_default());
        self.settle(id);
    }

    /// Handles a client's downgrade of its lease.
    pub(super) fn lowered(
        &mut self,
        now: Moment,
        client: ClientId,
        id: RnodeId,
        token: Token,
        to: Option<Mode>,
    ) {
        let steps = self.leases.lower(now, client, id, token, to);
        self.take(now, steps);
        self.settle(id);
    }

    /// Releases an rnode that no client uses, and that is not worth keeping: its state is not
    /// known, or the parent keeps it only because it is held.
    pub(super) fn settle(&mut self, id: RnodeId) {
        let Some(cached) = self.rnodes.get(&id) else { return };
        let is_worth = cached.state.as_ref().is_some_and(|(rnode, _)| rnode.nlink > 0);
        if !is_worth {
            self.let_go(id);
        }
    }

    /// Releases an rnode, if no client uses it. Returns true if it was released.
    fn let_go(&mut self, id: RnodeId) -> bool {
        let Some(cached) = self.rnodes.get(&id) else { return false };
        if self.leases.is_known(id) || !cached.waiting.is_empty() || self.is_under_way(id) {
            return false;
        }
        let (mode, token) = (cached.mode, cached.token);
        // The parent has granted nothing on an unborn rnode. A downgrade sent for it could arrive
        // late, when the client has made the rnode in another epoch, and take away the proxy's
        // lease of that time. If it is made all the same, the parent recalls the lease when another
        // client needs it.
        let is_granted = mode.is_some() && !cached.unborn;
        self.rnodes.remove(&id);
        if is_granted {
            self.send_lower(id, token, None);
        }
        true
    }

    /// Releases all rnodes that no client holds or waits for.
    pub(super) fn let_go_of_unused(&mut self) {
        for id in self.rnodes.keys().copied().collect::<Vec<_>>() {
            self.let_go(id);
        }
    }

    /// Releases rnodes beyond the limit of the cache.
    pub(super) fn let_go_of_some(&mut self) {
        let over = self.rnodes.len().saturating_sub(self.options.kept_max);
        if over == 0 {
            return;
        }
        let ids: Vec<RnodeId> =
            self.rnodes.keys().copied().filter(|id| !self.leases.is_known(*id)).collect();
        let mut left = over + over / 4;
        for id in ids {
            if left == 0 {
                break;
            }
            left -= usize::from(self.let_go(id));
        }
    }

    /// Handles a client's question about the names of a directory.
    pub(super) fn asks(
        &mut self,
        now: Moment,
        client: ClientId,
        request: RequestId,
        body: &RequestBody,
    ) {
        let (dir, want) = match body {
            RequestBody::Lookup { dir, name } => (*dir, Want::Name(name.clone())),
            RequestBody::List { dir, after } => (*dir, Want::List(*after)),
            _ => return,
        };
        if self.rnodes.contains_key(&dir) {
            self.wait(now, dir, Waiting { client, request, want });
        } else {
            self.answer(client, request, Reply::No { why: Refusal::Fenced });
        }
    }
}
