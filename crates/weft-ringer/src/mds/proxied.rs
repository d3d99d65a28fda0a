//! Clients of a [proxy](crate::proxy): the proxy holds the leases, the client has its own position
//! in its log, its rnode numbers and its locks.
//!
//! Invariants:
//! - A proxied client has no lease in the table, and its session is never live by itself: so if it
//!   connects directly it begins another epoch.
//! - While a client is in an epoch that it began directly, the server takes nothing for it from a
//!   proxy.
//! - A change counts only in the client's present epoch *and* in its proxy's, under leases of the
//!   proxy. Messages that the proxy sent before it ended a client's epoch change nothing after
//!   that.
//! - The locks of a client end with its epoch, and with its proxy's.

use super::records::{Numbers, Session};
use super::{Mds, ToClient, full, records};
use crate::error::Refusal;
use crate::store::{Store, StoreResult, Transaction};
use crate::types::{ClientId, Epoch, Incarnation, Moment, RequestId, Seq};
use crate::wire::{FromServer, Reply, RequestBody, Welcome, encode};

/// A proxied client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProxiedClient {
    proxy: ClientId,
    /// The request that began its epoch, so that a repeated one begins no other; unknown after a
    /// restart.
    entered: Option<RequestId>,
}

/// The origin of a request that a proxy relays.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relayed {
    pub(super) proxy: ClientId,
    pub(super) client: ClientId,
    pub(super) epoch: Epoch,
    pub(super) id: RequestId,
}

impl Mds {
    /// Returns true if a client's epoch may be going on.
    pub(super) fn is_here(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|s| s.live) || self.proxied.contains_key(&client)
    }

    /// Ends the proxying of a client whose epoch has ended; if it is a proxy, of its clients too.
    pub(super) fn forget_proxied(
        &mut self,
        now: Moment,
        client: ClientId,
        out: &mut Vec<ToClient>,
    ) {
        self.proxied.remove(&client);
        let theirs = self.proxied.iter().filter(|(_, proxied)| proxied.proxy == client);
        let theirs: Vec<ClientId> = theirs.map(|(client, _)| *client).collect();
        for client in theirs {
            self.proxied.remove(&client);
            self.drop_locks(now, client, out);
        }
    }

    /// Begins an epoch of a client of a proxy.
    pub(super) fn enter(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        (proxy, request): (ClientId, RequestId),
        client: ClientId,
        incarnation: Incarnation,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let before = self.proxied.get(&client).filter(|b| b.proxy == proxy);
        let entered = before.and_then(|b| b.entered);
        let old = self.sessions.get(&client);
        if entered.is_some_and(|entered| request < entered) {
            return Ok(()); // It is late.
        }
        // A later incarnation was seen; or the client has leases of its own, and may use them.
        let is_elsewhere = old.is_some_and(|s| {
            incarnation < s.incarnation || (s.live && s.incarnation == incarnation)
        });
        if is_elsewhere || client == proxy {
            let reply = Reply::No { why: Refusal::Fenced };
            out.push(self.reply(proxy, request, reply));
            return Ok(());
        }
        if entered != Some(request) {
            let session = self.next_session(client, incarnation, false);
            let numbers = self.numbers_with(&session);
            let mut transaction = Transaction::default();
            transaction.put(records::NUMBERS.to_vec(), encode(&numbers));
            // While the store is full, the proxy asks again.
            let ended = self.end_session(store, now, client, session, transaction, out);
            if full::or_later(ended)?.is_none() {
                return Ok(());
            }
            self.numbers = numbers;
            self.proxied.insert(client, ProxiedClient { proxy, entered: Some(request) });
        }
        let Some(session) = self.sessions.get(&client) else { return Ok(()) };
        let welcome = self.welcome(session, false);
        out.push(self.reply(proxy, request, Reply::Welcome { welcome }));
        Ok(())
    }

    /// Returns the next session of a client.
    pub(super) fn next_session(
        &self,
        client: ClientId,
        incarnation: Incarnation,
        live: bool,
    ) -> Session {
        let old = self.sessions.get(&client);
        let (slot, last_count) = match old {
            // A slot is given up early, so that its last numbers need no care.
            Some(s) if s.last_count < u32::MAX / 2 => (s.slot, s.last_count),
            _ => (self.numbers.slot + 1, 0),
        };
        Session {
            epoch: Epoch(self.numbers.epoch.0 + 1),
            live,
            incarnation,
            slot,
            last_count,
            applied: old.map_or(Seq(0), |s| s.applied),
            refused: old.and_then(|s| s.refused),
        }
    }

    /// Returns the numbers to store after a session was begun.
    pub(super) fn numbers_with(&self, session: &Session) -> Numbers {
        Numbers { slot: self.numbers.slot.max(session.slot), epoch: session.epoch }
    }

    pub(super) fn welcome(&self, session: &Session, reclaim: bool) -> Welcome {
        Welcome {
            epoch: session.epoch,
            lasts_micros: self.options.epoch_micros,
            slot: session.slot,
            last_count: session.last_count,
            applied: session.applied,
            refused: session.refused,
            reclaim,
        }
    }

    /// Returns the refusal for a client that is not in the epoch that its proxy believes.
    fn fenced(&self, relayed: Relayed) -> ToClient {
        let Relayed { proxy, client, id, .. } = relayed;
        let (generation, reply) = (self.generation, Reply::No { why: Refusal::Fenced });
        ToClient { client: proxy, message: FromServer::Relayed { generation, client, id, reply } }
    }

    /// Handles a client's request that a proxy relays. The proxy is in its epoch.
    pub(super) fn relayed(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        relayed: Relayed,
        body: RequestBody,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let Relayed { proxy, client, epoch, id } = relayed;
        let is_current = client != proxy
            && self.sessions.get(&client).is_some_and(|s| !s.live && s.epoch == epoch)
            && self.proxied.get(&client).is_none_or(|b| b.proxy == proxy);
        if !is_current {
            out.push(self.fenced(relayed));
            return Ok(());
        }
        // After a restart the client is known only by its session record.
        self.proxied.entry(client).or_insert(ProxiedClient { proxy, entered: None });
        let reply = match body {
            RequestBody::Commit { prev, ops } => {
                Some(self.commit_ops(store, proxy, client, prev, &ops)?)
            }
            RequestBody::ReclaimLocks { claims } => {
                let mut said = Vec::new();
                self.reclaim_locks(store, now, client, id, claims, &mut said)?;
                if !self.proxied.contains_key(&client) {
                    // It claims a lock that conflicts with another: its epoch is over.
                    said.retain(|send| send.client != client);
                    said.push(self.fenced(relayed));
                }
                out.append(&mut said);
                return Ok(());
            }
            body @ (RequestBody::AcquireLocks { .. }
            | RequestBody::LowerLocks { .. }
            | RequestBody::TellLocks { .. }) => {
                self.about_locks(store, now, client, id, body, out)?
            }
            body @ (RequestBody::Snapshot { .. } | RequestBody::RemoveSnapshot { .. }) => {
                self.change_snapshots(store, now, client, id, body)?
            }
            other => Some(
                self.answer_about_copies(store, client, &other)?
                    .unwrap_or(Reply::No { why: Refusal::Invalid }),
            ),
        };
        out.extend(reply.map(|reply| self.reply(client, id, reply)));
        Ok(())
    }

    /// Redirects a message for a proxied client to its proxy.
    pub(super) fn address(&self, send: ToClient) -> Option<ToClient> {
        let ToClient { client, message } = send;
        let Some(ProxiedClient { proxy, .. }) = self.proxied.get(&client).copied() else {
            return Some(ToClient { client, message });
        };
        let message = match message {
            FromServer::Reply { generation, id, reply } => {
                FromServer::Relayed { generation, client, id, reply }
            }
            FromServer::RecallLocks { generation, epoch, rnode, token } => {
                FromServer::RelayedRecallLocks { generation, client, epoch, rnode, token }
            }
            FromServer::LocksChanged { generation, epoch, rnode } => {
                FromServer::RelayedLocksChanged { generation, client, epoch, rnode }
            }
            _ => return None,
        };
        Some(ToClient { client: proxy, message })
    }
}
