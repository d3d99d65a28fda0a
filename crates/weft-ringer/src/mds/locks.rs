//! Locks on files: the holder of each file's lock lease, and the locks of each client as far as it
//! has reported them.
//!
//! Invariants:
//! - The locks that the server knows of a client on a file are never less than what the client
//!   believes, unless it holds the file's lock lease.
//! - A client's locks end with its epoch.
//! - The report with a client's highest request number counts, in whatever order reports arrive.

use std::collections::BTreeMap;

use super::leases::{Leases, Step};
use super::records::load_rnode;
use super::{Mds, ToClient};
use crate::error::Refusal;
use crate::locks::{ClientLocks, FileLocks, LOCKS_MAX, LockClaim};
use crate::store::{Store, StoreResult};
use crate::types::{ClientId, Generation, Mode, Moment, RequestId, RnodeId, Token};
use crate::wire::{FromServer, Reply, RequestBody};

#[derive(Debug)]
pub(super) struct LockTable {
    pub(super) leases: Leases,
    told: BTreeMap<RnodeId, BTreeMap<ClientId, Told>>,
}

/// A client's report about a file, and the number of its request. Kept for the epoch, even if
/// empty.
#[derive(Debug, Default)]
struct Told {
    locks: FileLocks,
    request: RequestId,
}

impl LockTable {
    pub(super) fn new(generation: Generation, retry_micros: u64) -> Self {
        Self { leases: Leases::new(generation, retry_micros), told: BTreeMap::new() }
    }

    /// Records a client's report. Returns true if other clients may have waited for the change.
    fn tell(
        &mut self,
        client: ClientId,
        request: RequestId,
        rnode: RnodeId,
        mut locks: FileLocks,
    ) -> bool {
        locks.held.truncate(LOCKS_MAX);
        locks.waits.truncate(LOCKS_MAX);
        let told = self.told.entry(rnode).or_default().entry(client).or_default();
        if request < told.request {
            return false;
        }
        let before = std::mem::replace(told, Told { locks, request });
        before.locks.held != told.locks.held && !before.locks.held.is_empty()
    }

    /// Returns the clients that wait for a lock on the file, and the holder of its lock lease,
    /// except `but`.
    fn interested(&self, rnode: RnodeId, but: ClientId) -> Vec<ClientId> {
        let of_file = self.told.get(&rnode).into_iter().flatten();
        let waits = of_file.filter(|(_, told)| !told.locks.waits.is_empty());
        let mut all: Vec<_> = waits.map(|(client, _)| *client).collect();
        all.extend(self.leases.holders(rnode));
        all.sort_unstable();
        all.dedup();
        all.retain(|client| *client != but);
        all
    }

    /// Releases a lock lease, with its holder's locks.
    fn lower(
        &mut self,
        now: Moment,
        client: ClientId,
        request: RequestId,
        rnode: RnodeId,
        token: Token,
        locks: FileLocks,
    ) -> (Vec<Step>, Vec<ClientId>) {
        // A late message, about an earlier grant, is ignored.
        if self.leases.held(rnode, client).is_none_or(|(_, held)| held > token) {
            return Default::default();
        }
        let is_less = self.tell(client, request, rnode, locks);
        let steps = self.leases.lower(now, client, rnode, token, None);
        (steps, if is_less { self.interested(rnode, client) } else { Vec::new() })
    }

    /// Drops a client's locks and lock leases. Also returns the files that it had locked.
    fn drop_client(&mut self, now: Moment, client: ClientId) -> (Vec<Step>, Vec<RnodeId>) {
        let mut unlocked = Vec::new();
        self.told.retain(|rnode, of_file| {
            let told = of_file.remove(&client);
            unlocked.extend(told.filter(|t| !t.locks.held.is_empty()).map(|_| *rnode));
            !of_file.is_empty()
        });
        (self.leases.drop_client(now, client).0, unlocked)
    }

    /// Returns the locks of all clients except `client`.
    fn others(&self, rnode: RnodeId, client: ClientId) -> Vec<ClientLocks> {
        let of_file = self.told.get(&rnode).into_iter().flatten();
        let others = of_file.filter(|(other, _)| **other != client);
        let others = others.filter(|(_, told)| !told.locks.is_empty());
        others.map(|(&client, told)| ClientLocks { client, locks: told.locks.clone() }).collect()
    }
}

impl Mds {
    fn hint(&self, rnode: RnodeId, clients: Vec<ClientId>, out: &mut Vec<ToClient>) {
        for client in clients {
            let Some(epoch) = self.sessions.get(&client).map(|s| s.epoch) else { continue };
            let generation = self.generation;
            let message = FromServer::LocksChanged { generation, epoch, rnode };
            out.push(ToClient { client, message });
        }
    }

    /// Drops the locks of a client whose epoch has ended.
    pub(super) fn drop_locks(&mut self, now: Moment, client: ClientId, out: &mut Vec<ToClient>) {
        let (steps, unlocked) = self.locks.drop_client(now, client);
        self.take_locks(steps, out);
        for rnode in unlocked {
            self.hint(rnode, self.locks.interested(rnode, client), out);
        }
    }

    /// Records the locks reported by a client that has no lock lease, or keeps it.
    pub(super) fn tell_locks(
        &mut self,
        client: ClientId,
        request: RequestId,
        rnode: RnodeId,
        locks: FileLocks,
        out: &mut Vec<ToClient>,
    ) {
        if self.locks.tell(client, request, rnode, locks) {
            self.hint(rnode, self.locks.interested(rnode, client), out);
        }
    }

    /// Releases a lock lease, with its holder's locks.
    #[expect(clippy::too_many_arguments, reason = "a message, taken apart")]
    pub(super) fn lower_locks(
        &mut self,
        now: Moment,
        client: ClientId,
        request: RequestId,
        rnode: RnodeId,
        token: Token,
        locks: FileLocks,
        out: &mut Vec<ToClient>,
    ) {
        let (steps, waiting) = self.locks.lower(now, client, request, rnode, token, locks);
        self.take_locks(steps, out);
        self.hint(rnode, waiting, out);
    }

    /// Handles a request about locks of a client in its session. Returns `None` if the reply is
    /// sent later, or not at all.
    pub(super) fn about_locks(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        id: RequestId,
        body: RequestBody,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<Option<Reply>> {
        match body {
            RequestBody::AcquireLocks { rnode } => {
                if load_rnode(store, rnode)?.is_none() {
                    return Ok(Some(Reply::No { why: Refusal::Stale }));
                }
                let steps = self.locks.leases.acquire(now, client, id, rnode, Mode::Write);
                self.take_locks(steps, out);
                Ok(None)
            }
            RequestBody::LowerLocks { rnode, token, locks } => {
                self.lower_locks(now, client, id, rnode, token, locks, out);
                Ok(None)
            }
            RequestBody::TellLocks { rnode, locks } => {
                if load_rnode(store, rnode)?.is_some() {
                    self.tell_locks(client, id, rnode, locks, out);
                }
                Ok(Some(Reply::Told {}))
            }
            _ => Ok(Some(Reply::No { why: Refusal::Invalid })),
        }
    }

    /// Sends the grants and recalls that the table of lock leases asks for.
    pub(super) fn take_locks(&self, steps: Vec<Step>, out: &mut Vec<ToClient>) {
        for step in steps {
            let message = match step {
                Step::Grant { client, request, rnode, token, .. } => {
                    let others = self.locks.others(rnode, client);
                    self.reply(client, request, Reply::LocksGranted { token, others })
                }
                Step::Recall { client, rnode, token, .. } => {
                    let Some(epoch) = self.sessions.get(&client).map(|s| s.epoch) else { continue };
                    let generation = self.generation;
                    let message = FromServer::RecallLocks { generation, epoch, rnode, token };
                    ToClient { client, message }
                }
            };
            out.push(message);
        }
    }

    /// Installs the locks that a client reclaims.
    pub(super) fn reclaim_locks(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        id: RequestId,
        claims: Vec<LockClaim>,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        for LockClaim { rnode, token, locks } in claims {
            if load_rnode(store, rnode)?.is_none() {
                continue;
            }
            let fits = token
                .is_none_or(|token| self.locks.leases.install(client, rnode, Mode::Write, token));
            if !fits {
                return self.refuse_claim(store, now, client, id, out);
            }
            self.locks.tell(client, id, rnode, locks);
        }
        out.push(self.reply(client, id, Reply::Reclaimed {}));
        Ok(())
    }
}
