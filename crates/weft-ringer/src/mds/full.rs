//! A store without room: the server grants leases and answers reads, refuses changes, and goes on by
//! itself when there is room.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::records::{self, Session, key};
use super::{Mds, StoreError, StoreResult, ToClient};
use crate::store::{Revision, Store, Transaction};
use crate::types::{ClientId, Moment};
use crate::wire::encode;

/// The interval at which a store that was full is tried again, in microseconds.
const TRY_EVERY_MICROS: u64 = 1_000_000;

/// The changes that a store without room has put off.
#[derive(Debug, Default)]
pub(super) struct FullStore {
    /// Whether there was no room for the last transaction.
    is_full: Cell<bool>,
    /// Sessions that have ended, which the next transaction records.
    ended: RefCell<BTreeMap<ClientId, Session>>,
    /// Whether rnodes without names and holders were left.
    must_reap: Cell<bool>,
    next_try: Moment,
}

/// Returns `None` if the store had no room, so that nothing was changed.
pub(super) fn or_later<T>(done: StoreResult<T>) -> StoreResult<Option<T>> {
    match done {
        Err(StoreError::Full) => Ok(None),
        done => done.map(Some),
    }
}

impl FullStore {
    pub(super) fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// Has the next transaction record that a session has ended.
    pub(super) fn record_later(&self, client: ClientId, session: Session) {
        self.ended.borrow_mut().insert(client, session);
    }

    pub(super) fn reap_later(&self) {
        self.must_reap.set(true);
    }

    fn has_unrecorded(&self) -> bool {
        !self.ended.borrow().is_empty()
    }

    /// Adds the sessions that have ended to a transaction, unless it has later ones.
    pub(super) fn add_to(&self, transaction: &mut Transaction) {
        for (client, session) in &*self.ended.borrow() {
            let key = key(b's', client.0);
            if !transaction.changes.iter().any(|(changed, _)| *changed == key) {
                transaction.put(key, encode(session));
            }
        }
    }

    /// Takes note of the result of a transaction with [what was added](Self::add_to).
    pub(super) fn note(&self, committed: &StoreResult<Revision>, has_changed: bool) {
        match committed {
            Ok(_) if has_changed => {
                self.is_full.set(false);
                self.ended.borrow_mut().clear();
            }
            Err(StoreError::Full) => self.is_full.set(true),
            _ => {}
        }
    }
}

impl Mds {
    /// Withholds write leases and locks while the end of a session is not recorded.
    pub(super) fn withhold_writes(&mut self) {
        let has_unrecorded = self.full.has_unrecorded();
        self.leases.withholds_writes = has_unrecorded;
        self.locks.leases.withholds_writes = has_unrecorded;
    }

    /// Tries at intervals whether a store that was full has room, and then does what was put off.
    pub(super) fn try_full_store(&mut self, store: &mut dyn Store, now: Moment) -> StoreResult<()> {
        let full = &mut self.full;
        if !(full.is_full() || full.must_reap.get()) || now < full.next_try {
            return Ok(());
        }
        full.next_try = now.after(TRY_EVERY_MICROS);
        let mut transaction = Transaction::default();
        // A change of one record, which keeps its value.
        transaction.put(records::NUMBERS.to_vec(), encode(&self.numbers));
        if or_later(self.commit(store, transaction))?.is_some() && self.full.must_reap.take() {
            self.reap_all(store)?;
        }
        Ok(())
    }

    /// Ends the epochs whose time is up.
    pub(super) fn end_due(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let due = self.live.iter().filter(|(_, live)| now >= live.ends);
        let due: Vec<ClientId> = due.map(|(client, _)| *client).collect();
        for client in due {
            let Some(session) = self.sessions.get(&client).cloned() else { continue };
            self.expire(store, now, client, &session, out)?;
        }
        Ok(())
    }

    /// Ends the session of a client. If the store has no room, the next transaction records it, and
    /// no write leases are granted until then: a later generation of the server that does not know
    /// of the end would let the client reclaim its leases.
    pub(super) fn expire(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        session: &Session,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let session = Session { live: false, ..session.clone() };
        let mut transaction = Transaction::default();
        transaction.put(key(b's', client.0), encode(&session));
        if or_later(self.commit(store, transaction))?.is_none() {
            self.full.record_later(client, session.clone());
            self.withhold_writes();
        }
        self.drop_session(store, now, client, session, out)
    }

    /// Carries out a transaction, as the server that wrote the cell's record.
    pub(super) fn commit(
        &self,
        store: &mut dyn Store,
        mut transaction: Transaction,
    ) -> StoreResult<Revision> {
        transaction.expect.push((records::CELL.to_vec(), Some(self.cell)));
        self.full.add_to(&mut transaction);
        let committed = store.commit(&transaction);
        self.full.note(&committed, !transaction.changes.is_empty());
        committed
    }

    /// Returns true if the store had no room for the last transaction.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full.is_full()
    }
}
