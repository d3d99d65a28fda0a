//! The local stores of clients: the last run of each, by which a copy of a store, or an older state of
//! it, is recognised; and the certificate that it was last used with.
//!
//! ```text
//! S client   StoreRecord
//! ```
//!
//! Invariant: a client begins a session only after the run of its store is recorded. So of two
//! stores with one past, the second to be used does not know the last run, and is refused.

use std::collections::{BTreeMap, BTreeSet};

use weft_ringer::store::{Store, StoreError, StoreResult, Transaction};
use weft_ringer::wire::{decode, encode, wire_struct};
use weft_ringer::{BlockHash, ClientId};
use weft_ringer_net::{Denial, StoreRuns};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StoreRecord {
    /// The last run; 0 if the client has no store.
    run: u64,
    certificate: Option<BlockHash>,
}
wire_struct!(StoreRecord { run, certificate });

/// The stores of all clients that the cell has had.
#[derive(Debug)]
pub(super) struct Stores {
    records: BTreeMap<ClientId, StoreRecord>,
}

fn store_key(client: ClientId) -> Vec<u8> {
    [&b"S"[..], &client.0.to_be_bytes()].concat()
}

impl Stores {
    pub(super) fn load(store: &dyn Store) -> StoreResult<Self> {
        let damaged = || StoreError::Failed("the record of a client's store is damaged".into());
        let mut records = BTreeMap::new();
        for (key, record) in store.range(b"S", b"T", usize::MAX)? {
            let number = key.get(1..).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
            let client = ClientId(number.ok_or_else(damaged)?);
            records.insert(client, decode(&record.value).map_err(|_| damaged())?);
        }
        Ok(Self { records })
    }

    /// Records the run of a client's store, unless another run has been seen since the last that
    /// the store knows.
    pub(super) fn admit(
        &mut self,
        store: &mut dyn Store,
        client: ClientId,
        runs: &StoreRuns,
        certificate: Option<BlockHash>,
    ) -> StoreResult<Result<(), Denial>> {
        let last = self.records.get(&client).copied();
        if let Some(last) = last.filter(|last| !runs.continue_from(last.run)) {
            tracing::error!(
                "refused client {:016x}: its local store is a copy, or an older state, of one that \
                was used since (run {:016x}, and this one is {:016x})",
                client.0,
                last.run,
                runs.now
            );
            return Ok(Err(Denial::Copied));
        }
        let record = StoreRecord { run: runs.now, certificate };
        if last != Some(record) {
            let mut transaction = Transaction::default();
            transaction.put(store_key(client), encode(&record));
            match store.commit(&transaction) {
                // It is noticed as long as this server runs; and clients cannot wait for room.
                Ok(_) | Err(StoreError::Full) => {}
                Err(e) => return Err(e),
            }
            self.records.insert(client, record);
        }
        Ok(Ok(()))
    }

    /// Returns the clients that were last used with a certificate.
    pub(super) fn of_certificate(&self, certificate: BlockHash) -> BTreeSet<ClientId> {
        let of = |(_, record): &(&ClientId, &StoreRecord)| record.certificate == Some(certificate);
        self.records.iter().filter(of).map(|(client, _)| *client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::store::MemoryStore;

    #[test]
    fn second_of_two_stores_with_one_past_is_refused() {
        let mut store = MemoryStore::new();
        let mut stores = Stores::load(&store).expect("memory");
        let client = ClientId(7);
        let admit = |stores: &mut Stores, store: &mut MemoryStore, before: &[u64], now| {
            let runs = StoreRuns { before: before.to_vec(), now };
            stores.admit(store, client, &runs, None).expect("memory")
        };
        assert_eq!(admit(&mut stores, &mut store, &[], 1), Ok(()));
        // Connects again, and is started again; the answer to 2 was lost.
        assert_eq!(admit(&mut stores, &mut store, &[], 1), Ok(()));
        assert_eq!(admit(&mut stores, &mut store, &[1], 2), Ok(()));
        assert_eq!(admit(&mut stores, &mut store, &[1, 2], 3), Ok(()));
        // The server never heard of 4.
        assert_eq!(admit(&mut stores, &mut store, &[3, 4], 5), Ok(()));
        // A copy made at 5 is started, and then the other.
        assert_eq!(admit(&mut stores, &mut store, &[5], 6), Ok(()));
        let mut stores = Stores::load(&store).expect("memory");
        assert_eq!(admit(&mut stores, &mut store, &[5], 7), Err(Denial::Copied));
        assert_eq!(admit(&mut stores, &mut store, &[3], 5), Err(Denial::Copied), "still running");
        // An older state.
        assert_eq!(admit(&mut stores, &mut store, &[3], 8), Err(Denial::Copied));
        assert_eq!(admit(&mut stores, &mut store, &[6], 9), Ok(()));
    }
}
