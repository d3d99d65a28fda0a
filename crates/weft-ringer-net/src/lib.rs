//! The parts that every process of a shared file service needs, be it a server, a client or an
//! administrator's command: connections and the messages on them, certificates, clocks, and the
//! store directory in which a client (or a server that is a client of another) keeps its identity.
//!
//! It is a crate of its own so that neither the server nor the client has to import the other for
//! it, and so that [`weft_ringer`] itself does no I/O.
//!
//! | module | contents |
//! |---|---|
//! | `connection`, `outbox` | frames of [`wire`](weft_ringer::wire) on [`weft_net`] connections |
//! | `message` | messages around those of `wire`: [`Ask`], [`Answer`], [`ToPeer`], [`FromPeer`] |
//! | `observer` | requests to a server: [`ask`], [`Observer`] |
//! | [`pki`], `joining` | a cell's authority, invitations, [`join`] |
//! | `servers` | the server list of a cell, and failover: [`ServerList`] |
//! | `store_directory`, `files` | a client's identity, locked: [`Home`]; files for its user alone |
//! | `known` | the last state seen of a cell, to notice a rollback: [`KnownCell`] |
//! | `clock`, `random` | [`now`], [`wall`], [`fill_random`] |
//!
//! # Certificates
//!
//! A directory of certificates has, beside its authority's, `server-cert.pem` for a metadata
//! server, which is called by a name, or `client-cert.pem` for a client. Clients also call each
//! other. There a certificate proves membership of the cell, not an identity: it is for the name
//! [`MEMBER_NAME`]. The blocks that a peer sends are checked by their hash. Over QUIC it is the
//! same, with the TLS that is part of it.
//!
//! # Invariants
//!
//! - Nothing waits for ever: a read has a deadline or ends when its owner shuts the socket down, a
//!   write that makes no progress for [`WRITE_LIMIT`] ends the connection.
//! - The memory that a peer can make this side use is bounded: by one frame to read, and by
//!   [`OUTBOX_MAX_BYTES`] to send. Before a peer is authenticated, a frame may have
//!   [`HELLO_MAX_BYTES`].

#![warn(missing_docs)]

mod clock;
mod connection;
mod error;
mod files;
mod joining;
mod known;
mod message;
mod observer;
mod outbox;
pub mod pki;
mod random;
mod servers;
mod store_directory;

use std::time::Duration;

pub use clock::{now, wall};
pub use connection::{Conversation, Receiver};
pub use error::{Error, Result};
pub use files::{private, private_dir, replace};
pub use joining::join;
pub use known::{KnownCell, Seen};
pub use message::{
    Answer, Ask, BlockBytes, CellStatus, ClientStatus, Denial, FromPeer, Hit, LeaseStatus,
    MemberStatus, Peer, Rendezvous, SECRET_BYTES, ServerGeneration, StoreRuns, ToPeer,
};
pub use observer::{Observer, ask};
pub use outbox::Outbox;
pub use random::fill_random;
pub use servers::ServerList;
pub use store_directory::{Home, client_id};

/// The default port of a metadata server.
pub const PORT: u16 = 7473;
/// The mode of a server's or client's Unix socket: only its own user can connect.
pub const SOCKET_MODE: u32 = 0o600;
/// The name in the certificate of every client of a cell.
pub const MEMBER_NAME: &str = "member.weft-ringer";
/// How long the peer may accept nothing before the connection is given up.
pub const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// How long a connection may take until both sides are authenticated.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The longest frame of a peer that is not yet authenticated, in bytes.
pub const HELLO_MAX_BYTES: usize = 4096;
/// The most bytes that may wait to be sent on one connection: some of the longest frames.
pub const OUTBOX_MAX_BYTES: usize = 4 * weft_ringer::wire::frame::FRAME_MAX_BYTES;
/// The read timeout, after which a reader checks whether it should go on.
pub const PAUSE: Duration = Duration::from_millis(250);
