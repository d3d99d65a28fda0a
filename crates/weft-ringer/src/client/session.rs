//! The client's session: its epoch, and the end of the epoch.

use super::{Client, ClientAction, JournalRecord};
use crate::locks::LockClaim;
use crate::types::{Epoch, Generation, Incarnation, Moment, RequestId, Token};
use crate::wire::{Claim, RequestBody, Welcome};

/// The most leases in one part of a reclaim.
const CLAIMS_MAX: usize = 4096;
/// The most bytes of locks in one part of a reclaim.
const LOCK_CLAIMS_MAX_BYTES: usize = 1 << 20;
/// The number of renewals in an epoch: two may be lost.
const RENEWALS: u64 = 3;
/// The longest time a reply to a `Hello` or a prefetch may take, in retry times.
const PATIENCE: u64 = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// `Hello` was sent. Leases are kept, and used while the epoch lasts.
    Greeting,
    /// Reclaiming locks and leases; the remaining ones.
    Reclaiming(Vec<LockClaim>, Vec<Claim>),
    Active,
}

#[derive(Debug)]
pub(super) struct Session {
    incarnation: Incarnation,
    phase: Phase,
    pub(super) epoch: Epoch,
    pub(super) generation: Generation,
    /// The end of the epoch, by this client's clock.
    pub(super) ends: Moment,
    lasts_micros: u64,
    pub(super) slot: u32,
    renewed: Moment,
    /// Whether the server cannot begin an epoch of this client because its disk is full.
    pub(super) is_server_full: bool,
}

impl Session {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            phase: Phase::Greeting,
            epoch: Epoch(0),
            generation: Generation(0),
            ends: Moment(0),
            lasts_micros: 0,
            slot: 0,
            renewed: Moment(0),
            is_server_full: false,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }
}

impl Client {
    /// Sends `Hello` to the server, and nothing else until it answers.
    pub(super) fn greet(&mut self, now: Moment) {
        self.session.phase = Phase::Greeting;
        // A reply to an earlier `Hello` is as good: it counts from the sending of that.
        let since = |o: &super::Outstanding| now.0.saturating_sub(o.sent.0);
        let keep_micros = self.options.retry_micros * PATIENCE;
        self.forget_hints();
        self.outstanding.retain(|_, o| match o.body {
            RequestBody::Hello { .. } => since(o) < keep_micros,
            RequestBody::Renew {}
            | RequestBody::Reclaim { .. }
            | RequestBody::ReclaimLocks { .. }
            | RequestBody::Commit { .. } => false,
            _ => true,
        });
        self.forget_sent();
        let incarnation = self.session.incarnation;
        self.request(now, RequestBody::Hello { incarnation });
    }

    pub(super) fn welcomed(
        &mut self,
        now: Moment,
        generation: Generation,
        id: RequestId,
        welcome: &Welcome,
    ) {
        let hello = self.outstanding.get(&id);
        let Some(hello) = hello.filter(|o| matches!(o.body, RequestBody::Hello { .. })) else {
            return;
        };
        if generation < self.session.generation {
            return;
        }
        let sent = hello.sent;
        self.session.is_server_full = false;
        self.outstanding.retain(|_, o| !matches!(o.body, RequestBody::Hello { .. }));
        let same_epoch = welcome.epoch == self.session.epoch;
        self.session.generation = generation;
        self.session.epoch = welcome.epoch;
        if welcome.slot != self.session.slot {
            self.session.slot = welcome.slot;
            self.log.begin_slot(welcome.slot);
        }
        self.session.lasts_micros = welcome.lasts_micros;
        self.session.renewed = sent;
        self.log.use_numbers(welcome.last_count, welcome.applied);
        if same_epoch {
            self.session.ends = self.session.ends.max(sent.after(welcome.lasts_micros));
            // Grants of an earlier generation of the server are not reclaimed below.
            for outstanding in self.outstanding.values_mut() {
                outstanding.floor = outstanding.floor.max(Token::before(generation));
            }
            self.committed(welcome.applied, welcome.refused);
        } else {
            self.session.ends = sent.after(welcome.lasts_micros);
            self.lose_leases();
            self.cache.denied.clear();
            self.listings.clear();
            self.locks.forget();
            self.outstanding.clear();
            self.log_carried_out(welcome);
            self.disown_log();
        }
        self.session.phase = Phase::Active;
        if welcome.reclaim {
            let leases = self.cache.leases.iter();
            let claims = leases.map(|(&rnode, l)| Claim { rnode, mode: l.mode, token: l.token });
            let claims = claims.collect();
            self.session.phase = Phase::Reclaiming(self.lock_claims(), claims);
            self.reclaim(now);
        } else {
            self.resend_all(now);
        }
    }

    /// Drops all leases, which no longer count.
    pub(super) fn lose_leases(&mut self) {
        let lost = std::mem::take(&mut self.cache.leases).into_iter();
        let lost = lost.filter(|(_, lease)| lease.state.is_some());
        self.out.extend(lost.map(|(rnode, _)| ClientAction::Lost { rnode }));
    }

    /// Removes the changes that were carried out in the last epoch.
    fn log_carried_out(&mut self, welcome: &Welcome) {
        if welcome.applied > self.log.applied {
            self.committed_elsewhere(welcome.applied);
            let record = JournalRecord::Applied { seq: welcome.applied };
            self.out.push(ClientAction::Journal(record));
        }
    }

    fn reclaim(&mut self, now: Moment) {
        let Phase::Reclaiming(locks, left) = &mut self.session.phase else { return };
        if !locks.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            for claim in &*locks {
                bytes += crate::wire::encode(claim).len();
                if count > 0 && bytes > LOCK_CLAIMS_MAX_BYTES {
                    break;
                }
                count += 1;
            }
            let claims = locks.drain(..count).collect();
            self.request(now, RequestBody::ReclaimLocks { claims });
            return;
        }
        let claims: Vec<Claim> = left.drain(..left.len().min(CLAIMS_MAX)).collect();
        let last = left.is_empty();
        self.request(now, RequestBody::Reclaim { claims, last });
    }

    pub(super) fn reclaimed(&mut self, now: Moment, last: bool) {
        if last {
            self.session.phase = Phase::Active;
            self.resend_all(now);
        } else {
            self.reclaim(now);
        }
    }

    pub(super) fn renewed(&mut self, sent: Moment) {
        let ends = sent.after(self.session.lasts_micros);
        self.session.ends = self.session.ends.max(ends);
    }

    /// Sends unanswered requests again, and renews the epoch in time.
    pub(super) fn tick(&mut self, now: Moment) {
        if self.session.phase == Phase::Greeting {
            let hellos =
                self.outstanding.values().filter(|o| matches!(o.body, RequestBody::Hello { .. }));
            let last = hellos.map(|o| o.sent).max();
            if last.is_none_or(|sent| now >= sent.after(self.options.retry_micros)) {
                self.greet(now);
            }
            return;
        }
        if !self.is_serving(now) {
            return self.greet(now);
        }
        let every = self.session.lasts_micros / RENEWALS;
        if now >= self.session.renewed.after(every) {
            self.session.renewed = now;
            self.outstanding.retain(|_, o| {
                // The reply to an older one would renew nothing.
                !matches!(o.body, RequestBody::Renew {}) || now < o.sent.after(every * RENEWALS)
            });
            self.request(now, RequestBody::Renew {});
        }
        self.resend(now, self.options.retry_micros);
    }

    fn resend_all(&mut self, now: Moment) {
        self.resend(now, 0);
    }

    fn resend(&mut self, now: Moment, after_micros: u64) {
        let mut again = Vec::new();
        let keep_micros = self.options.retry_micros * PATIENCE;
        self.outstanding.retain(|_, o| !o.hint || now < o.sent.after(keep_micros));
        for (id, outstanding) in self.outstanding.iter_mut().filter(|(_, o)| !o.hint) {
            // The reply to a renewal counts from its first sending.
            let renews =
                matches!(outstanding.body, RequestBody::Renew {} | RequestBody::Hello { .. });
            if !renews && now >= outstanding.sent.after(after_micros) {
                outstanding.sent = now;
                again.push((*id, outstanding.body.clone()));
            }
        }
        for (id, body) in again {
            self.send(id, body);
        }
    }
}
