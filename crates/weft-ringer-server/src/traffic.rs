//! Counters of the messages between a server and its clients.

use std::collections::BTreeMap;

use weft_ringer::ClientId;
use weft_ringer::wire::FromServer;

/// Messages since the server began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Recalls of leases, of the messages sent.
    pub(super) recalls: u64,
}

/// Messages by client; those of proxied clients count for their proxy.
#[derive(Debug, Default)]
pub(super) struct Traffic(BTreeMap<ClientId, Counts>);

impl Traffic {
    pub(super) fn of(&self, client: ClientId) -> Counts {
        self.0.get(&client).copied().unwrap_or_default()
    }

    pub(super) fn received(&mut self, client: ClientId) {
        self.0.entry(client).or_default().received += 1;
    }

    pub(super) fn sent(&mut self, client: ClientId, message: &FromServer) {
        let counts = self.0.entry(client).or_default();
        counts.sent += 1;
        counts.recalls += u64::from(matches!(
            message,
            FromServer::Recall { .. }
                | FromServer::RecallLocks { .. }
                | FromServer::RelayedRecallLocks { .. }
        ));
    }
}
