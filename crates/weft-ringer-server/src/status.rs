//! The status of a cell: its clients, and the leases they hold.

use weft_ringer::Bytes;
use weft_ringer::mds::path_of;
use weft_ringer::store::StoreResult;
use weft_ringer_net::{Answer, CellStatus, ClientStatus, LeaseStatus};

use super::dispatch::{ANSWER_PATHS_MAX_BYTES, Dispatcher};
use super::traffic::Counts;

/// The maximum number of leases in one list: their paths are looked up, one by one.
const LEASES_MAX: usize = 10_000;

impl Dispatcher {
    /// The cell, its clients and the message counts of each.
    pub(super) fn status(&self) -> CellStatus {
        let clients = self.mds.clients().map(|known| {
            let (session, proxied) = self.sessions.of_client(known.client);
            let Counts { received, sent, recalls } = self.traffic.of(known.client);
            ClientStatus {
                client: known.client,
                epoch: known.epoch,
                live: known.live,
                connected: session.is_some() || proxied.is_some(),
                listens: session
                    .map(|s| &s.listens)
                    .or(proxied.map(|p| &p.listens))
                    .cloned()
                    .flatten(),
                reads: known.reads,
                writes: known.writes,
                received,
                sent,
                recalls,
            }
        });
        CellStatus {
            cell: self.cell,
            generation: self.mds.generation(),
            revision: self.store.revision().map_or(0, |r| r.0),
            in_grace: self.mds.in_grace(),
            epoch_micros: self.epoch_micros,
            clients: clients.collect(),
            is_full: self.mds.is_full(),
        }
    }

    /// Lists the first of all leases.
    pub(super) fn list_leases(&self, limit: u32) -> StoreResult<Answer> {
        let limit = usize::try_from(limit).unwrap_or(LEASES_MAX).min(LEASES_MAX);
        let mut leases = Vec::new();
        let (mut total, mut bytes) = (0, 0);
        for (rnode, client, mode) in self.mds.leases() {
            total += 1;
            if leases.len() >= limit || bytes > ANSWER_PATHS_MAX_BYTES {
                continue;
            }
            let path = path_of(&*self.store, rnode)?.map(Bytes);
            bytes += path.as_ref().map_or(0, |path| path.0.len());
            leases.push(LeaseStatus { client, rnode, path, mode });
        }
        Ok(Answer::Leases { leases, total })
    }
}
