//! What every process of a shared file service needs of the machine, be it a server, a client or somebody
//! who only asks: connections with the messages that are said on them, certificates, clocks, and the
//! directory in which a client (or a server that is a client of another) keeps its identity.
//!
//! It is a room of its own so that neither the server nor the client has to import the other for it, and so
//! that [`weft_ringer`] itself does no I/O.
//!
//! | module | what it knows |
//! |---|---|
//! | `connection`, `outbox` | frames of [`wire`](weft_ringer::wire) on connections of [`weft_net`] |
//! | `message` | what is said around the messages of `wire`: [`Ask`], [`Answer`], [`ToPeer`], [`FromPeer`] |
//! | `observer` | asking a server: [`ask`], [`Observer`] |
//! | [`pki`], `joining` | a cell's authority, invitations, [`join`] |
//! | `servers` | which of a cell's servers to call: [`Circle`] |
//! | `store_directory`, `files` | a client's identity, locked: [`Home`]; files for its user alone |
//! | `known` | how far a cell was, to notice one that was rolled back: [`KnownCell`] |
//! | `clock`, `random` | [`now`], [`wall`], [`fill_random`] |
//!
//! # Certificates
//!
//! A directory of certificates has, beside its authority's, `server-cert.pem` for a metadata server,
//! which is called by a name, or `client-cert.pem` for a client. Clients also call each other. There
//! a certificate says that somebody belongs to the cell, not who: it is for the name
//! [`MEMBER_NAME`]. What a peer sends is checked by its hash. Over QUIC it is the same, with the TLS that is
//! part of it.
//!
//! # Invariants
//!
//! - Nothing waits for ever: a read has a deadline or ends when its owner shuts the socket down, a
//!   write that makes no progress for [`WRITE_LIMIT`] ends the connection.
//! - What a peer makes this side keep is bounded: by one frame to read, and by
//!   [`OUTBOX_MAX_BYTES`] to send. Before a peer has said who it is, a frame may have
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
    Answer, Ask, BlockBytes, CellStatus, ClientStatus, Denial, FromPeer, Hit, LeaseStatus, Life,
    Meeting, MemberStatus, Peer, SECRET_BYTES, ToPeer,
};
pub use observer::{Observer, ask};
pub use outbox::Outbox;
pub use random::fill_random;
pub use servers::Circle;
pub use store_directory::{Home, client_id};

/// The port of a metadata server, if none is said.
pub const PORT: u16 = 7473;
/// Only the user of a server, or of a client, reaches its Unix socket.
pub const SOCKET_MODE: u32 = 0o600;
/// The name in the certificate of every client of a cell.
pub const MEMBER_NAME: &str = "member.weft-ringer";
/// How long the other side may take nothing before the connection is given up.
pub const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// How long a connection may take until both sides know each other.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The longest frame of a peer that has not said who it is, in bytes.
pub const HELLO_MAX_BYTES: usize = 4096;
/// What may wait to be sent on one connection, in bytes: some of the longest frames.
pub const OUTBOX_MAX_BYTES: usize = 4 * weft_ringer::wire::frame::FRAME_MAX_BYTES;
/// How long a read waits before it looks whether it still should.
pub const PAUSE: Duration = Duration::from_millis(250);
