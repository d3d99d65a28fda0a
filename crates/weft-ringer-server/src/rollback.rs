//! Detection of a cell that was rolled back: its earlier generations, which clients compare with
//! those that they have seen, and states that clients have seen and this cell never had.
//!
//! ```text
//! g generation   GenerationRecord: a generation of the server of this cell
//! k client       SawLater: a state that a client has seen, and this cell never had
//! ```
//!
//! Invariants:
//! - A generation's record is in the store before the generation sends anything.
//! - A message to a client is preceded by its revision ([`Answer::Reached`]). So a client never
//!   knows of a later revision than it reports when it connects again.

use std::collections::BTreeMap;

use weft_ringer::mds::Problem;
use weft_ringer::store::{Revision, Store, StoreError, StoreResult, Transaction};
use weft_ringer::wire::{decode, encode, wire_struct};
use weft_ringer::{ClientId, Generation};
use weft_ringer_net::{Answer, Error, Result, ServerGeneration, fill_random};

/// The maximum numbers of generations kept, and of generations sent to clients.
const KEPT_MAX: usize = 1000;
const TOLD_MAX: usize = 256;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GenerationRecord {
    instance: u128,
    /// The last revision before it.
    began: u64,
}
wire_struct!(GenerationRecord { instance, began });

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SawLater {
    pub(super) generation: Generation,
    pub(super) instance: u128,
    pub(super) revision: u64,
}
wire_struct!(SawLater { generation, instance, revision });

/// The generations of the cell, and the clients that have seen later states.
#[derive(Debug)]
pub(super) struct Rollback {
    generations: Vec<ServerGeneration>,
    later: BTreeMap<ClientId, SawLater>,
}

fn generation_key(generation: Generation) -> Vec<u8> {
    [&b"g"[..], &generation.0.to_be_bytes()].concat()
}

fn later_key(client: ClientId) -> Vec<u8> {
    [&b"k"[..], &client.0.to_be_bytes()].concat()
}

fn damaged(what: &str) -> StoreError {
    StoreError::Failed(format!("the record of {what} is damaged"))
}

impl Rollback {
    /// Begins a generation; the store's last revision before was `began`.
    pub(super) fn open(
        store: &mut dyn Store,
        generation: Generation,
        began: Revision,
    ) -> Result<Self> {
        let mut random = [0; 16];
        fill_random(&mut random).map_err(|e| Error::io("random numbers", e))?;
        let record = GenerationRecord { instance: u128::from_be_bytes(random), began: began.0 };
        let mut transaction = Transaction::default();
        transaction.put(generation_key(generation), encode(&record));
        let mut generations = Self::load_generations(store)?;
        let excess = generations.len().saturating_sub(KEPT_MAX);
        for one in generations.drain(..excess) {
            transaction.remove(generation_key(one.generation));
        }
        store.commit(&transaction)?;
        generations.push(ServerGeneration {
            generation,
            instance: record.instance,
            began: began.0,
        });
        let later = Self::load_later(store)?;
        for (client, seen) in &later {
            tracing::error!("this cell is an older copy: {}", Self::describe(*client, seen));
        }
        Ok(Self { generations, later })
    }

    fn load_generations(store: &dyn Store) -> StoreResult<Vec<ServerGeneration>> {
        let mut generations = Vec::new();
        for (key, record) in store.range(b"g", b"h", usize::MAX)? {
            let number = key.get(1..).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
            let generation = Generation(number.ok_or_else(|| damaged("a generation"))?);
            let GenerationRecord { instance, began } =
                decode(&record.value).map_err(|_| damaged("a generation"))?;
            generations.push(ServerGeneration { generation, instance, began });
        }
        Ok(generations)
    }

    fn load_later(store: &dyn Store) -> StoreResult<BTreeMap<ClientId, SawLater>> {
        let mut later = BTreeMap::new();
        for (key, record) in store.range(b"k", b"l", usize::MAX)? {
            let number = key.get(1..).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
            let client = ClientId(number.ok_or_else(|| damaged("what a client saw"))?);
            let seen = decode(&record.value).map_err(|_| damaged("what a client saw"))?;
            later.insert(client, seen);
        }
        Ok(later)
    }

    fn describe(client: ClientId, seen: &SawLater) -> String {
        format!(
            "client {:016x} has seen revision {} of its generation {}, which the cell lacks",
            client.0, seen.revision, seen.generation.0
        )
    }

    /// The answer that a connecting client gets.
    pub(super) fn generations(&self, revision: Revision) -> Answer {
        let from = self.generations.len().saturating_sub(TOLD_MAX);
        let generations = self.generations.get(from..).unwrap_or_default().to_vec();
        Answer::Generations { generations, revision: revision.0 }
    }

    /// Records that a client has seen a state that this cell never had.
    pub(super) fn saw_later(
        &mut self,
        store: &mut dyn Store,
        client: ClientId,
        seen: SawLater,
    ) -> StoreResult<()> {
        if self.later.get(&client) == Some(&seen) {
            return Ok(());
        }
        tracing::error!("this cell is an older copy: {}", Self::describe(client, &seen));
        let mut transaction = Transaction::default();
        transaction.put(later_key(client), encode(&seen));
        match store.commit(&transaction) {
            // The client says it again at each connection.
            Err(StoreError::Full) => {}
            committed => drop(committed?),
        }
        self.later.insert(client, seen);
        Ok(())
    }

    /// Forgets the record of a client that accepts this cell, or will not come back. Returns true
    /// if there was one.
    pub(super) fn forget_client(
        &mut self,
        store: &mut dyn Store,
        client: ClientId,
    ) -> StoreResult<bool> {
        let had_seen_later = self.later.contains_key(&client);
        if had_seen_later {
            let mut transaction = Transaction::default();
            transaction.remove(later_key(client));
            store.commit(&transaction)?;
            self.later.remove(&client);
        }
        Ok(had_seen_later)
    }

    /// The problems that `doctor` reports.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.later.iter().map(|(client, seen)| Problem {
            code: "older-copy",
            text: Self::describe(*client, seen),
        })
    }
}
