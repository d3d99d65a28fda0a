//! The lease table: holders, waiting requests, recalls.
//!
//! Invariants:
//! - Of one rnode, either one client holds [`Mode::Write`] and no other [`Mode::Read`], or none
//!   does.
//! - Requests are served in order of arrival; none overtakes.
//! - Each grant has a token of its own, larger than all before. A repeated request gets the same
//!   grant.
//! - An entry is downgraded by its client alone, for a token that is not older than the entry's, or
//!   by the end of the client's epoch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::types::{ClientId, Generation, Mode, Moment, RequestId, RnodeId, Token};

/// A message that the table asks its caller to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Grants a lease to a client.
    Grant { client: ClientId, request: RequestId, rnode: RnodeId, mode: Mode, token: Token },
    /// Asks a client to downgrade its lease.
    Recall { client: ClientId, rnode: RnodeId, token: Token, to: Option<Mode> },
}

#[derive(Debug, Clone, Copy)]
struct Held {
    mode: Mode,
    token: Token,
    /// The last request that was granted.
    request: RequestId,
    /// The last time the client was asked to downgrade it.
    recalled: Option<Moment>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    client: ClientId,
    request: RequestId,
    mode: Mode,
    by_name: bool,
}

#[derive(Debug, Default)]
struct Entry {
    held: BTreeMap<ClientId, Held>,
    queue: VecDeque<Waiting>,
}

impl Entry {
    /// Returns the mode that a holder of `holder` must downgrade to before `wanted` can be granted;
    /// `None` if the two do not conflict.
    fn must_lower(holder: Mode, wanted: Mode) -> Option<Mode> {
        match (holder, wanted) {
            (Mode::Write, Mode::Read) => Some(Mode::Read),
            (Mode::Read | Mode::Write, Mode::Write) => Some(Mode::Hold),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    generation: Generation,
    granted: u32,
    table: BTreeMap<RnodeId, Entry>,
    /// All rnodes with waiting requests, and possibly some without: so a tick costs nothing for
    /// leases that no client waits for.
    awaited: BTreeSet<RnodeId>,
    /// The grace period: nothing is granted before all clients have reclaimed their leases.
    pub(crate) grace: bool,
    /// Set while no write lease is granted: readers go before clients that wait to write.
    pub(crate) withholds_writes: bool,
    retry_micros: u64,
}

impl super::Mds {
    /// Returns every lease, with its holder and its mode.
    pub fn leases(&self) -> impl Iterator<Item = (RnodeId, ClientId, Mode)> {
        self.leases.all()
    }
}

impl Leases {
    pub(crate) fn new(generation: Generation, retry_micros: u64) -> Self {
        let (table, awaited) = (BTreeMap::new(), BTreeSet::new());
        let (grace, withholds_writes) = (false, false);
        Self { generation, granted: 0, table, awaited, grace, withholds_writes, retry_micros }
    }

    /// Returns the lease that a client holds, with the token of the grant.
    pub(crate) fn held(&self, rnode: RnodeId, client: ClientId) -> Option<(Mode, Token)> {
        self.table.get(&rnode)?.held.get(&client).map(|h| (h.mode, h.token))
    }

    /// Returns the clients that hold a lease on an rnode.
    pub(crate) fn holders(&self, rnode: RnodeId) -> impl Iterator<Item = ClientId> {
        self.table.get(&rnode).into_iter().flat_map(|entry| entry.held.keys().copied())
    }

    /// Returns true if a client holds a write lease on an rnode.
    pub(crate) fn is_written(&self, rnode: RnodeId) -> bool {
        let entry = self.table.get(&rnode);
        entry.is_some_and(|entry| entry.held.values().any(|held| held.mode == Mode::Write))
    }

    /// Returns true if any client holds or waits for a lease on an rnode.
    pub(crate) fn is_known(&self, rnode: RnodeId) -> bool {
        self.table.contains_key(&rnode)
    }

    /// Returns all leases held.
    pub(crate) fn all(&self) -> impl Iterator<Item = (RnodeId, ClientId, Mode)> {
        self.table.iter().flat_map(|(rnode, entry)| {
            entry.held.iter().map(|(client, held)| (*rnode, *client, held.mode))
        })
    }

    /// Returns the number of read and write leases of each client.
    pub(crate) fn counts(&self) -> BTreeMap<ClientId, (u64, u64)> {
        let mut counts: BTreeMap<ClientId, (u64, u64)> = BTreeMap::new();
        for (client, held) in self.table.values().flat_map(|entry| &entry.held) {
            let (reads, writes) = counts.entry(*client).or_default();
            *reads += u64::from(held.mode == Mode::Read);
            *writes += u64::from(held.mode == Mode::Write);
        }
        counts
    }

    /// Handles a request for a lease.
    pub(crate) fn acquire(
        &mut self,
        now: Moment,
        client: ClientId,
        request: RequestId,
        rnode: RnodeId,
        mode: Mode,
    ) -> Vec<Step> {
        let entry = self.table.entry(rnode).or_default();
        if let Some(held) = entry.held.get(&client) {
            if request < held.request {
                return Vec::new(); // It is late; the client has had a reply to a later request.
            }
            if request == held.request {
                let (mode, token) = (held.mode, held.token);
                return vec![Step::Grant { client, request, rnode, mode, token }];
            }
        }
        match entry.queue.iter_mut().find(|w| w.client == client) {
            Some(waiting) if request < waiting.request && !waiting.by_name => return Vec::new(),
            Some(waiting) => *waiting = Waiting { client, request, mode, by_name: false },
            None => {
                entry.queue.push_back(Waiting { client, request, mode, by_name: false });
                self.awaited.insert(rnode);
            }
        }
        self.advance(now, rnode)
    }

    /// Handles a request for a read lease by name: as the client may not know that it has a lease
    /// on that rnode, or has asked for one, `None` is returned then. Its requests by number go
    /// before this one, also earlier ones.
    pub(crate) fn acquire_named(
        &mut self,
        now: Moment,
        client: ClientId,
        request: RequestId,
        rnode: RnodeId,
    ) -> Option<Vec<Step>> {
        let entry = self.table.entry(rnode).or_default();
        if entry.held.contains_key(&client) || entry.queue.iter().any(|w| w.client == client) {
            return None;
        }
        entry.queue.push_back(Waiting { client, request, mode: Mode::Read, by_name: true });
        self.awaited.insert(rnode);
        Some(self.advance(now, rnode))
    }

    /// Returns true if a client waits for a lease.
    pub(crate) fn is_awaited_by(&self, rnode: RnodeId, client: ClientId) -> bool {
        let entry = self.table.get(&rnode);
        entry.is_some_and(|entry| entry.queue.iter().any(|w| w.client == client))
    }

    /// Installs a lease that a client reclaims from an earlier generation of the server, or has on
    /// an rnode that it made. Returns `false` if another client's lease conflicts.
    pub(crate) fn install(
        &mut self,
        client: ClientId,
        rnode: RnodeId,
        mode: Mode,
        token: Token,
    ) -> bool {
        let entry = self.table.entry(rnode).or_default();
        let others = entry.held.iter().filter(|(c, _)| **c != client);
        let excluded = others.map(|(_, h)| h.mode).any(|m| Entry::must_lower(m, mode).is_some());
        if !excluded {
            let held = Held { mode, token, request: RequestId(0), recalled: None };
            entry.held.insert(client, held);
        }
        !excluded
    }

    /// Removes the entry of an rnode that no client holds or waits for: the rnode did not exist
    /// before.
    pub(crate) fn clear(&mut self, rnode: RnodeId) {
        self.table.remove(&rnode);
    }

    /// Downgrades a client's lease to at most `to`, for grants up to `token`.
    pub(crate) fn lower(
        &mut self,
        now: Moment,
        client: ClientId,
        rnode: RnodeId,
        token: Token,
        to: Option<Mode>,
    ) -> Vec<Step> {
        let Some(entry) = self.table.get_mut(&rnode) else { return Vec::new() };
        let Some(held) = entry.held.get_mut(&client).filter(|h| h.token <= token) else {
            return Vec::new();
        };
        match to {
            Some(to) if to < held.mode => {
                held.mode = to;
                held.recalled = None;
            }
            Some(_) => {}
            None => drop(entry.held.remove(&client)),
        }
        self.advance(now, rnode)
    }

    /// Drops all leases of a client whose epoch has ended. Also returns the rnodes that it held or
    /// waited for.
    pub(crate) fn drop_client(
        &mut self,
        now: Moment,
        client: ClientId,
    ) -> (Vec<Step>, Vec<RnodeId>) {
        let mut touched = Vec::new();
        for (rnode, entry) in &mut self.table {
            let waiting = entry.queue.len();
            entry.queue.retain(|w| w.client != client);
            if entry.held.remove(&client).is_some() || entry.queue.len() != waiting {
                touched.push(*rnode);
            }
        }
        (touched.iter().flat_map(|&rnode| self.advance(now, rnode)).collect(), touched)
    }

    /// Advances all waiting requests: after the grace period, and where a recall was not answered.
    pub(crate) fn advance_all(&mut self, now: Moment) -> Vec<Step> {
        let table = &self.table;
        let is_awaited =
            |rnode: &RnodeId| table.get(rnode).is_some_and(|entry| !entry.queue.is_empty());
        self.awaited.retain(is_awaited);
        let waiting: Vec<RnodeId> = self.awaited.iter().copied().collect();
        waiting.into_iter().flat_map(|rnode| self.advance(now, rnode)).collect()
    }

    /// Grants the leases of one rnode that can be granted, and recalls those that conflict with the
    /// next.
    fn advance(&mut self, now: Moment, rnode: RnodeId) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(entry) = self.table.get_mut(&rnode) else { return steps };
        let withholds = self.withholds_writes;
        let is_next = |waiting: &Waiting| !withholds || waiting.mode != Mode::Write;
        while let Some(at) = entry.queue.iter().position(is_next) {
            if self.grace {
                break;
            }
            let Some(&Waiting { client, request, mode, by_name }) = entry.queue.get(at) else {
                break;
            };
            let mut excluded = false;
            for (&holder, held) in entry.held.iter_mut().filter(|(c, _)| **c != client) {
                let Some(to) = Entry::must_lower(held.mode, mode) else { continue };
                excluded = true;
                if held.recalled.is_none_or(|at| now >= at.after(self.retry_micros)) {
                    held.recalled = Some(now);
                    let (client, token) = (holder, held.token);
                    steps.push(Step::Recall { client, rnode, token, to: Some(to) });
                }
            }
            if excluded {
                break;
            }
            entry.queue.remove(at);
            // The requested mode may be less than the mode held: the larger one stays.
            let mode = entry.held.get(&client).map_or(mode, |h| h.mode.max(mode));
            self.granted += 1;
            let token = Token::new(self.generation, self.granted);
            let last = if by_name { RequestId(0) } else { request };
            entry.held.insert(client, Held { mode, token, request: last, recalled: None });
            steps.push(Step::Grant { client, request, rnode, mode, token });
        }
        if entry.held.is_empty() && entry.queue.is_empty() {
            self.table.remove(&rnode);
        }
        steps
    }
}
