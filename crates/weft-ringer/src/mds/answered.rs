//! The reply cache: the last requests about snapshots that were answered, and their replies.
//!
//! A request may arrive again after it was answered: its client had not received the reply, or a
//! proxy sent it twice. To carry it out again would make anew a snapshot that another client has
//! removed since, or remove one that another client has made.
//!
//! Invariant: a reply is stored by the transaction that it is about, so a later generation of the
//! server knows it as well. Refusals are stored too: what was refused may be possible by now.

use std::collections::VecDeque;

use super::records::{damaged, key, number_of};
use crate::store::{Store, StoreResult, Transaction};
use crate::types::{ClientId, RequestId};
use crate::wire::{Reply, decode, encode, wire_struct};

/// The most replies kept.
const ANSWERS_MAX: u64 = 1000;
/// The changes that a reply adds to a transaction.
pub(super) const CHANGES: usize = 2;

/// The reply to a client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) client: ClientId,
    pub(super) request: RequestId,
    pub(super) reply: Reply,
}
wire_struct!(Answer { client, request, reply });

/// The last replies, each with its number.
#[derive(Debug, Default)]
pub(super) struct Answers {
    last: VecDeque<(u64, Answer)>,
    next: u64,
}

impl Answers {
    /// Loads the replies from the store.
    pub(super) fn load(store: &dyn Store) -> StoreResult<Self> {
        let mut answers = Self::default();
        for (key, record) in store.range(b"b", b"c", usize::MAX)? {
            let number = number_of(&key)?;
            let answer = decode(&record.value).map_err(|_| damaged("answer", &key))?;
            answers.last.push_back((number, answer));
            answers.next = number + 1;
        }
        Ok(answers)
    }

    /// Returns the reply to a request that was answered before.
    pub(super) fn to(&self, client: ClientId, request: RequestId) -> Option<Reply> {
        let is_it = |answer: &Answer| (answer.client, answer.request) == (client, request);
        self.last.iter().find(|(_, a)| is_it(a)).map(|(_, answer)| answer.reply.clone())
    }

    /// Adds a reply to the transaction that it is about.
    pub(super) fn put(&self, answer: &Answer, transaction: &mut Transaction) {
        transaction.put(key(b'b', self.next), encode(answer));
        if let Some((oldest, _)) = self.last.front().filter(|_| self.is_full()) {
            transaction.remove(key(b'b', *oldest));
        }
    }

    /// Adds a reply whose transaction was committed.
    pub(super) fn push(&mut self, answer: Answer) {
        if self.is_full() {
            self.last.pop_front();
        }
        self.last.push_back((self.next, answer));
        self.next += 1;
    }

    fn is_full(&self) -> bool {
        self.last.len() as u64 >= ANSWERS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn reply_cache_is_bounded_and_survives_a_restart() {
        let mut store = MemoryStore::new();
        let mut answers = Answers::load(&store).expect("memory");
        let client = ClientId(7);
        for number in 0..ANSWERS_MAX + 10 {
            let answer = Answer { client, request: RequestId(number), reply: Reply::Held {} };
            let mut transaction = Transaction::default();
            answers.put(&answer, &mut transaction);
            assert!(transaction.changes.len() <= CHANGES);
            store.commit(&transaction).expect("memory");
            answers.push(answer);
        }
        let loaded = Answers::load(&store).expect("memory");
        assert_eq!((&loaded.last, loaded.next), (&answers.last, answers.next));
        assert_eq!(loaded.to(client, RequestId(9)), None);
        assert_eq!(loaded.to(client, RequestId(10)), Some(Reply::Held {}));
        assert_eq!(loaded.to(ClientId(8), RequestId(10)), None);
        assert_eq!(loaded.last.len() as u64, ANSWERS_MAX);
    }
}
