//! Locks on files: taken without a message under a file's lock lease.
//!
//! Invariants:
//! - A lock is taken only under the lock lease, and without a conflicting lock: neither of this
//!   client nor of those reported with the lease. Meanwhile the locks of other clients can only
//!   become fewer.
//! - The lease is released at once when it is recalled: locks stay without it.
//! - Unlocking takes effect at once, whatever the server does. The server is told where it may
//!   believe otherwise, or where another client is known to wait; it tells the waiting clients. An
//!   unlock call returns when the server has been told, so that a lock then taken elsewhere finds
//!   no conflict; but it waits no longer than [`TELL_LIMIT`], and not for an unreachable server.
//! - A call that waits for a known lock does not request the lease again before it is told of an
//!   unlock, or some time has passed: or two that wait for a third would take the lease from each
//!   other.
//! - All locks are of one epoch.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::Tried;
use super::{Call, CallId, Client, Outcome};
use crate::error::Refusal;
use crate::locks::{ClientLocks, FileLocks, LOCKS_MAX, Lock, LockClaim, LockStyle};
use crate::types::{ClientId, Moment, RnodeId, Seq, Token};
use crate::wire::RequestBody;

/// The interval at which a waiting call asks for the locks of other clients anew, in retry times: a
/// client that died has left the lock, and no message says so.
const ASK_AGAIN: u64 = 2;

/// The longest wait of an unlock call until the server is told, in retry times.
const TELL_LIMIT: u64 = 2;

/// The locks of one file.
#[derive(Debug, Default)]
struct LockedFile {
    own: FileLocks,
    /// The lock lease.
    token: Option<Token>,
    /// The locks of other clients, while the lease is held.
    others: Vec<ClientLocks>,
    /// The server, or a waiting client, has not been told of an unlock.
    untold: bool,
}

/// All locks of a client.
#[derive(Debug, Default)]
pub(super) struct Locks {
    files: BTreeMap<RnodeId, LockedFile>,
    /// All files with an untold unlock, and possibly others.
    untold: BTreeSet<RnodeId>,
}

impl Locks {
    pub(super) fn own(&self) -> impl Iterator<Item = (RnodeId, &Lock)> {
        self.files.iter().flat_map(|(id, file)| file.own.held.iter().map(|lock| (*id, lock)))
    }

    pub(super) fn has(&self, id: RnodeId, style: LockStyle, owner: u64) -> bool {
        let own = self.files.get(&id).into_iter().flat_map(|file| &file.own.held);
        own.into_iter().any(|lock| (lock.style, lock.owner) == (style, owner))
    }

    /// Drops all locks, as the epoch has ended.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn drop_empty(&mut self, id: RnodeId) {
        let is_empty = |f: &LockedFile| f.own.held.is_empty() && f.token.is_none() && !f.untold;
        if self.files.get(&id).is_some_and(is_empty) {
            self.files.remove(&id);
        }
    }
}

impl Client {
    pub(super) fn try_lock(
        &mut self,
        now: Moment,
        call: CallId,
        id: RnodeId,
        lock: Lock,
        wait: bool,
    ) -> Tried {
        let refused = |why| Tried::Answer(Outcome::Refused(why), Seq::default());
        let again = self.options.retry_micros * ASK_AGAIN;
        let Some(waiting) = self.calls.get_mut(&call) else { return Tried::Wait };
        let knows = waiting.blocked.is_some_and(|until| now < until);
        let has_lease = self.locks.files.get(&id).is_some_and(|file| file.token.is_some());
        if !has_lease && knows {
            return Tried::Wait;
        }
        if has_lease && !knows && waiting.blocked.take().is_some() {
            // The locks of other clients may be fewer by now.
            self.ask_for_locks(now, id);
        }
        if let Some(stop) = self.needs_locks(now, id) {
            return stop;
        }
        if self.in_the_way(id, &lock).is_empty() {
            let Some(file) = self.locks.files.get_mut(&id) else { return Tried::Wait };
            if file.own.held.len() >= LOCKS_MAX {
                return refused(Refusal::NoLocks);
            }
            file.own.set(lock);
            return Tried::Answer(Outcome::Finished, Seq::default());
        }
        if lock.style == LockStyle::Flock {
            // To convert such a lock is to release it and take another: flock(2).
            self.unlock(id, lock.style, lock.owner, lock.first, lock.last);
        }
        if !wait {
            if self.is_told_anew(now, call, id, &lock) {
                return refused(Refusal::WouldBlock);
            }
            return Tried::Wait;
        }
        if lock.style == LockStyle::Posix && self.would_wait_for_itself(id, &lock) {
            return refused(Refusal::Deadlock);
        }
        if let Some(waiting) = self.calls.get_mut(&call) {
            waiting.blocked.get_or_insert(now.after(again));
        }
        Tried::Wait
    }

    /// Returns true if the conflicts of a lock are known to be current: another client's lock may
    /// have been removed since the lease was granted, and is asked for once.
    fn is_told_anew(&mut self, now: Moment, call: CallId, id: RnodeId, lock: &Lock) -> bool {
        let own = self.id;
        let others = self.in_the_way(id, lock).iter().any(|(client, _)| *client != own);
        let told = self.calls.get(&call).is_some_and(|waiting| waiting.told);
        if others && !told {
            self.ask_for_locks(now, id);
        }
        told || !others
    }

    pub(super) fn try_find_lock(
        &mut self,
        now: Moment,
        call: CallId,
        id: RnodeId,
        lock: &Lock,
    ) -> Tried {
        if let Some(stop) = self.needs_locks(now, id) {
            return stop;
        }
        if !self.is_told_anew(now, call, id, lock) {
            return Tried::Wait;
        }
        // POSIX: the first in the file, whoever took it and when.
        let found = self.in_the_way(id, lock).into_iter().min_by_key(|(_, held)| held.first);
        let found = found.map(|(client, lock)| (lock, client != self.id));
        Tried::Answer(Outcome::InTheWay(found), Seq::default())
    }

    /// Returns the result of a call that cannot see a file's locks yet; `None` if it can.
    fn needs_locks(&mut self, now: Moment, id: RnodeId) -> Option<Tried> {
        if self.cache.gone.contains(&id) {
            return Some(Tried::Answer(Outcome::Refused(Refusal::Stale), Seq::default()));
        }
        if self.locks.files.get(&id).is_some_and(|file| file.token.is_some()) {
            return None;
        }
        self.ask_for_locks(now, id);
        Some(Tried::Wait)
    }

    /// Requests the lock lease of a file, unless a request is outstanding.
    fn ask_for_locks(&mut self, now: Moment, id: RnodeId) {
        if !self.session.is_active() {
            return;
        }
        // A new rnode has to be known to the server first.
        let made = self.cache.leases.get(&id).filter(|lease| lease.token == Token::BORN);
        if let Some(lease) = made.filter(|lease| lease.dirty > self.log.applied) {
            self.log.wanted = self.log.wanted.max(lease.dirty);
            return;
        }
        let asks =
            |b: &RequestBody| matches!(b, RequestBody::AcquireLocks { rnode } if *rnode == id);
        if !self.outstanding.values().any(|o| asks(&o.body)) {
            self.request(now, RequestBody::AcquireLocks { rnode: id });
        }
    }

    /// Returns the locks that conflict with one of this client's.
    fn in_the_way(&self, id: RnodeId, lock: &Lock) -> Vec<(ClientId, Lock)> {
        let Some(file) = self.locks.files.get(&id) else { return Vec::new() };
        let own = file.own.in_the_way_of_own(lock).map(|held| (self.id, *held));
        let others = file.others.iter();
        let others = others.flat_map(|o| o.locks.in_the_way(lock).map(|held| (o.client, *held)));
        own.chain(others).collect()
    }

    /// Returns true if a lock would close a cycle of waiting owners: as far as can be seen from the
    /// files whose lock lease is held.
    fn would_wait_for_itself(&self, id: RnodeId, lock: &Lock) -> bool {
        let asker = (self.id, lock.owner);
        let mut left: Vec<_> = self.in_the_way(id, lock);
        let mut seen = BTreeSet::new();
        while let Some((client, held)) = left.pop() {
            let owner = (client, held.owner);
            if owner == asker {
                return true;
            }
            if seen.insert(owner) {
                left.extend(self.waited_for(client, held.owner));
            }
        }
        false
    }

    /// Returns the locks that an owner waits for.
    fn waited_for(&self, client: ClientId, owner: u64) -> Vec<(ClientId, Lock)> {
        let mut found = Vec::new();
        for (id, file) in self.locks.files.iter().filter(|(_, f)| f.token.is_some()) {
            let waits = if client == self.id {
                self.waits(*id)
            } else {
                let of_client = file.others.iter().filter(|o| o.client == client);
                of_client.flat_map(|o| o.locks.waits.iter().copied()).collect()
            };
            let of_owner = |w: &&Lock| (w.style, w.owner) == (LockStyle::Posix, owner);
            for wait in waits.iter().filter(of_owner) {
                let all = file.others.iter().map(|o| (o.client, &o.locks));
                for (holder, locks) in all.chain([(self.id, &file.own)]) {
                    let held = locks.in_the_way(wait);
                    let not_its = |h: &&Lock| (holder, h.owner) != (client, owner);
                    found.extend(held.filter(not_its).map(|h| (holder, *h)));
                }
            }
        }
        found
    }

    /// Returns the locks that this client's callers wait for.
    fn waits(&self, id: RnodeId) -> Vec<Lock> {
        let waits = self.calls.values().filter_map(|w| match w.call {
            Call::Lock { id: of, lock, wait: true } if of == id => Some(lock),
            _ => None,
        });
        waits.take(LOCKS_MAX).collect()
    }

    fn told_locks(&self, id: RnodeId) -> FileLocks {
        let held = self.locks.files.get(&id).map(|file| file.own.held.clone());
        FileLocks { held: held.unwrap_or_default(), waits: self.waits(id) }
    }

    pub(super) fn unlock(
        &mut self,
        id: RnodeId,
        style: LockStyle,
        owner: u64,
        first: u64,
        last: u64,
    ) {
        let Some(file) = self.locks.files.get_mut(&id) else { return };
        if !file.own.clear(style, owner, first, last) {
            return;
        }
        let others_wait = file.others.iter().any(|o| !o.locks.waits.is_empty());
        if file.token.is_none() || others_wait {
            file.untold = true;
            self.locks.untold.insert(id);
        }
        self.locks_changed(id);
    }

    /// Returns the result of an unlock call, if it need not wait any longer.
    pub(super) fn try_unlock(&mut self, now: Moment, call: CallId, id: RnodeId) -> Tried {
        let until = now.after(self.options.retry_micros * TELL_LIMIT);
        let tells =
            |b: &RequestBody| matches!(b, RequestBody::TellLocks { rnode, .. } if *rnode == id);
        let is_told = !self.locks.files.get(&id).is_some_and(|file| file.untold)
            && !self.outstanding.values().any(|o| tells(&o.body));
        let waiting = self.calls.get_mut(&call);
        let is_late = waiting.is_none_or(|w| *w.blocked.get_or_insert(until) <= now);
        match is_told || is_late || !self.session.is_active() {
            true => Tried::Answer(Outcome::Finished, Seq::default()),
            false => Tried::Wait,
        }
    }

    /// Answers all unlock calls: the epoch is over, and all locks with it.
    pub(super) fn answer_unlocks(&mut self) {
        let unlocks = self.calls.iter().filter(|(_, w)| matches!(w.call, Call::Unlock { .. }));
        for id in unlocks.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.answer(id, Outcome::Finished, Seq::default());
        }
    }

    /// Lets lock calls try again after an unlock, by this client or another.
    pub(super) fn locks_changed(&mut self, id: RnodeId) {
        for waiting in self.calls.values_mut() {
            if matches!(waiting.call, Call::Lock { id: of, .. } if of == id) {
                // It asks anew.
                waiting.blocked = waiting.blocked.map(|_| Moment(0));
            }
        }
    }

    /// Notes that a waiting call was cancelled. Other clients may still believe that it waits.
    pub(super) fn waits_no_more(&mut self, id: RnodeId) {
        let file = self.locks.files.entry(id).or_default();
        if file.token.is_none() {
            file.untold = true;
            self.locks.untold.insert(id);
        }
    }

    /// Tells the server about unlocks.
    pub(super) fn tell_unlocked(&mut self, now: Moment) {
        if self.locks.untold.is_empty() || !self.session.is_active() {
            return;
        }
        for id in std::mem::take(&mut self.locks.untold) {
            let Some(file) = self.locks.files.get_mut(&id).filter(|file| file.untold) else {
                continue;
            };
            file.untold = false;
            let tells =
                |b: &RequestBody| matches!(b, RequestBody::TellLocks { rnode, .. } if *rnode == id);
            self.outstanding.retain(|_, o| !tells(&o.body));
            let locks = self.told_locks(id);
            self.request(now, RequestBody::TellLocks { rnode: id, locks });
            self.locks.drop_empty(id);
        }
    }

    pub(super) fn locks_granted(&mut self, id: RnodeId, token: Token, others: Vec<ClientLocks>) {
        let file = self.locks.files.entry(id).or_default();
        (file.token, file.others) = (Some(token), others);
        for waiting in self.calls.values_mut() {
            let is_about = matches!(
                waiting.call,
                Call::Lock { id: of, .. } | Call::FindLock { id: of, .. } if of == id
            );
            if is_about {
                (waiting.blocked, waiting.told) = (None, true);
            }
        }
    }

    /// Handles a recall of every grant of the lock lease up to `token`.
    pub(super) fn locks_recalled(&mut self, id: RnodeId, token: Token) {
        for outstanding in self.outstanding.values_mut() {
            if matches!(outstanding.body, RequestBody::AcquireLocks { rnode } if rnode == id) {
                outstanding.floor = outstanding.floor.max(token);
            }
        }
        let held = self.locks.files.get(&id).and_then(|file| file.token);
        if held.is_none_or(|held| held <= token) {
            self.lower_locks(id, token);
        }
    }

    fn lower_locks(&mut self, id: RnodeId, token: Token) {
        let locks = self.told_locks(id);
        if let Some(file) = self.locks.files.get_mut(&id) {
            (file.token, file.others) = (None, Vec::new());
        }
        self.locks.drop_empty(id);
        let request = self.next_request();
        self.send(request, RequestBody::LowerLocks { rnode: id, token, locks });
    }

    /// Releases the lock lease of a file without locks of this client.
    pub(super) fn give_up_locks(&mut self, id: RnodeId) {
        let Some(file) = self.locks.files.get(&id) else { return };
        let Some(token) = file.token.filter(|_| file.own.held.is_empty()) else { return };
        if self.waits(id).is_empty() {
            self.lower_locks(id, token);
        }
    }

    /// Returns the locks to reclaim from a restarted server.
    pub(super) fn lock_claims(&self) -> Vec<LockClaim> {
        let claim = |(&rnode, file): (&RnodeId, &LockedFile)| LockClaim {
            rnode,
            token: file.token,
            locks: self.told_locks(rnode),
        };
        self.locks.files.iter().map(claim).collect()
    }
}
