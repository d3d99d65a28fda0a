//! The leases of a client: granted with their state, recalled, and released when not in use.

use std::collections::BTreeSet;

use super::cache::{Lease, State};
use super::{Client, ClientAction};
use crate::rnode::{Holders, Rnode};
use crate::types::{Mode, RnodeId, Seq, Token};
use crate::wire::{Entry, RequestBody};

impl Client {
    /// Returns the state of a directory, if it is under the same lease that a reply was given
    /// under.
    pub(super) fn read_under(&mut self, dir: RnodeId, token: Token) -> Option<&mut State> {
        let lease = self.cache.leases.get_mut(&dir).filter(|l| l.token == token)?;
        lease.state.as_mut()
    }

    pub(super) fn listed(&mut self, dir: RnodeId, token: Token, entries: Vec<Entry>, end: bool) {
        let (_, mut all) =
            self.listings.remove(&dir).filter(|(t, _)| *t == token).unwrap_or((token, Vec::new()));
        all.extend(entries);
        if !end {
            self.listings.insert(dir, (token, all));
        } else if let Some(state) = self.read_under(dir, token) {
            for Entry { name, dirent } in all {
                state.names.entry(name).or_insert(Some(dirent));
            }
            state.complete = true;
        }
    }

    /// Handles the grant of a lease.
    pub(super) fn granted(&mut self, rnode: Rnode, holders: Holders, mode: Mode, token: Token) {
        let id = rnode.id;
        match self.cache.leases.get_mut(&id) {
            // Requested twice, once by name: the later grant came first.
            Some(lease) if lease.token > token => {}
            Some(lease) => {
                // The state held all along is at least as new as the one received.
                debug_assert!(
                    lease.state.as_ref().is_none_or(|s| s.rnode.version >= rnode.version),
                    "{id} changed under a lease"
                );
                if mode >= Mode::Read && lease.state.is_none() {
                    lease.state = Some(State::new(rnode));
                }
                if let Some(state) = &mut lease.state {
                    state.holders = holders;
                }
                (lease.mode, lease.token, lease.recall) = (mode, token, None);
            }
            None => {
                let state = (mode >= Mode::Read).then(|| State { holders, ..State::new(rnode) });
                let dirty = Seq::default();
                self.cache.leases.insert(id, Lease { mode, token, state, dirty, recall: None });
            }
        }
    }

    /// Handles a recall of every grant of `rnode` up to `token`.
    pub(super) fn recalled(&mut self, rnode: RnodeId, token: Token, to: Option<Mode>) {
        self.forget_named();
        // A grant that has not arrived yet is meant too.
        for outstanding in self.outstanding.values_mut() {
            if matches!(outstanding.body, RequestBody::Acquire { rnode: r, .. } if r == rnode) {
                outstanding.floor = outstanding.floor.max(token);
            }
        }
        match self.cache.leases.get_mut(&rnode) {
            Some(lease) if lease.token <= token => {
                lease.token = token;
                lease.recall = Some(lease.recall.map_or(to, |earlier| earlier.min(to)));
                self.cache.recalled.insert(rnode);
            }
            // Granted anew since.
            Some(_) => {}
            None => self.send_lower(rnode, token, None),
        }
    }

    /// Downgrades the recalled leases that are not in use. Returns true if there were any.
    pub(super) fn answer_recalls(&mut self) -> bool {
        if !self.session.is_active() || self.cache.recalled.is_empty() {
            return false;
        }
        let leases = &self.cache.leases;
        let pending = |id: &RnodeId| leases.get(id).is_some_and(|l| l.recall.is_some());
        self.cache.recalled.retain(pending);
        let pinned: BTreeSet<RnodeId> = self
            .calls
            .values()
            .flat_map(|c| c.pins.pinned())
            .chain(self.log.pinned())
            .copied()
            .collect();
        let mut ready = Vec::new();
        for id in &self.cache.recalled {
            let Some(lease) = self.cache.leases.get(id).filter(|_| !pinned.contains(id)) else {
                continue;
            };
            if lease.dirty > self.log.applied {
                self.log.wanted = self.log.wanted.max(lease.dirty);
            } else {
                ready.push(*id);
            }
        }
        for id in &ready {
            self.lower(*id);
        }
        !ready.is_empty()
    }

    /// Carries out the recall of a lease that is not in use.
    pub(super) fn lower(&mut self, id: RnodeId) {
        self.forget_named();
        let Some(lease) = self.cache.leases.get_mut(&id) else { return };
        let Some(to) = lease.recall.take() else { return };
        let (token, left) = (lease.token, to.map(|to| to.min(lease.mode)));
        if lease.state.is_some() && left.is_none_or(|mode| mode < Mode::Read) {
            self.out.push(ClientAction::Lost { rnode: id });
        }
        match left {
            Some(mode) => {
                lease.mode = mode;
                if mode < Mode::Read {
                    lease.state = None;
                }
            }
            None => drop(self.cache.leases.remove(&id)),
        }
        self.send_lower(id, token, left);
    }
}
