//! What happens to a server: what its connections say, in one queue for the thread that has the state machine.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use weft_ringer::wire::ToServer;
use weft_ringer::{BlockHash, Bytes, ClientId};
use weft_ringer_net::{Answer, Ask, CellStatus, Meeting, Outbox};

use super::relay::Call;
use super::rollback::SawLater;

/// What comes from connections.
#[derive(Debug)]
pub(super) enum Event {
    Joined {
        number: u64,
        client: Option<ClientId>,
        /// By which the client has shown who it is.
        secret: Bytes,
        /// The fingerprint of the certificate that was shown.
        certificate: Option<BlockHash>,
        listens: Option<Bytes>,
        /// The cell that the client's local store belongs to; 0 if it is new.
        cell: u64,
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
    /// A front has a client, or has it no more.
    Bring {
        number: u64,
        client: ClientId,
        listens: Option<Bytes>,
        certificate: Option<BlockHash>,
    },
    Gone {
        number: u64,
        client: ClientId,
    },
    /// Somebody wants to talk with a client through this server.
    Call {
        peer: ClientId,
        meeting: Meeting,
        /// What who asks has shown.
        certificate: Option<BlockHash>,
        tell: SyncSender<Call>,
    },
    /// A client has seen what this cell never was.
    SawLater {
        client: ClientId,
        seen: SawLater,
    },
    /// Of a proxy alone.
    Upstream(UpstreamEvent),
    /// Somebody without a certificate asks for one.
    Enroll {
        ask: Ask,
        outbox: Arc<Outbox>,
    },
    /// Something that only who runs the cell may ask.
    Run {
        number: u64,
        ask: Ask,
    },
    Status {
        number: u64,
    },
    /// The same, of somebody in this process.
    Describe {
        tell: SyncSender<CellStatus>,
    },
    Search {
        number: u64,
        query: Bytes,
        limit: u32,
    },
    /// Something about what is attached, and what may be found.
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

/// What a proxy's connection to its own server says.
#[derive(Debug)]
pub(super) enum UpstreamEvent {
    /// It is there.
    Linked { cell: u64, outbox: Arc<Outbox> },
    /// The server has said something.
    Said { answer: Box<Answer> },
    /// It has ended.
    Unlinked,
}
