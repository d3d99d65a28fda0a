//! Events of a server: messages of its connections, in one queue for the thread with the state
//! machine.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use weft_ringer::wire::ToServer;
use weft_ringer::{BlockHash, Bytes, ClientId};
use weft_ringer_net::{Answer, Ask, CellStatus, Denial, Outbox, Rendezvous, StoreRuns};

use super::rollback::SawLater;

/// An event from a connection.
#[derive(Debug)]
pub(super) enum Event {
    Joined {
        number: u64,
        client: Option<ClientId>,
        /// The secret that authenticates the client.
        secret: Bytes,
        /// The fingerprint of the certificate that was presented.
        certificate: Option<BlockHash>,
        listens: Option<Bytes>,
        /// The cell that the client's local store belongs to; 0 if it is new.
        cell: u64,
        /// The runs of that store.
        runs: StoreRuns,
        outbox: Arc<Outbox>,
    },
    Left {
        number: u64,
        client: ClientId,
    },
    Message {
        number: u64,
        message: Box<ToServer>,
    },
    /// A proxy has gained a client, or lost it (`Gone`).
    Introduce {
        number: u64,
        client: ClientId,
        listens: Option<Bytes>,
        certificate: Option<BlockHash>,
        runs: StoreRuns,
    },
    Gone {
        number: u64,
        client: ClientId,
    },
    /// Another client wants to connect to a client through this server.
    Call {
        peer: ClientId,
        rendezvous: Rendezvous,
        /// The fingerprint of the requester's certificate.
        certificate: Option<BlockHash>,
        tell: SyncSender<Call>,
    },
    /// A client has seen a state that this cell never had.
    SawLater {
        /// The number of its connection, to this server or to a proxy of it.
        number: u64,
        client: ClientId,
        seen: SawLater,
    },
    /// An event of a proxy's connection to its parent.
    Upstream(UpstreamEvent),
    /// A requester without a certificate asks for one.
    Enroll {
        ask: Ask,
        outbox: Arc<Outbox>,
    },
    /// A request that needs an administrator.
    Run {
        number: u64,
        ask: Ask,
    },
    Status {
        number: u64,
    },
    /// The same, from this process.
    Describe {
        tell: SyncSender<CellStatus>,
    },
    Search {
        number: u64,
        query: Bytes,
        limit: u32,
    },
    /// A request about attached cells, or the summary.
    Look {
        number: u64,
        ask: Ask,
    },
    Ping {
        number: u64,
    },
    Check {
        number: u64,
    },
    Stop,
}

/// The result of calling a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// The client was notified.
    Called,
    /// The client is not connected.
    Absent,
    /// The caller may not connect to it.
    Denied(Denial),
}

/// An event of a proxy's connection to its parent.
#[derive(Debug)]
pub(super) enum UpstreamEvent {
    /// The connection is established.
    Linked { cell: u64, outbox: Arc<Outbox> },
    /// The parent has sent a message.
    Said { answer: Box<Answer> },
    /// The connection has ended.
    Unlinked,
}
