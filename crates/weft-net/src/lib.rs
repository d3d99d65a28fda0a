//! Connections between machines, for every protocol of weft: where somebody is, how to call and to
//! be called, and the two halves of a connection, plain or under TLS (feature `tls`), over TCP, Unix
//! sockets or QUIC (feature `quic`).
//!
//! There is no protocol here. Threads read and write; nothing is asynchronous.
//!
//! # Invariants
//!
//! - The two halves of a [`Channel`] may be used by two threads at once; neither waits for the
//!   other, under TLS too.
//! - A read waits no longer than the socket's timeout before it says so ([`is_pause`]); who reads
//!   has a deadline and decides.
//! - A user is named as a peer's ([`Socket::peer_user`]) only while the peer's socket is open.
//! - A Unix socket is never open to more people than its mode says, and goes with its [`Listener`].
#![warn(missing_docs)]

mod address;
mod channel;
mod error;
mod listen;
mod local_user;
#[cfg(feature = "quic")]
mod quic;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tls")]
mod tls;

pub use address::Address;
pub use channel::{Channel, Secured, SendHalf, Socket, is_pause, read_full, write_all_vectored};
pub use error::{Error, Result};
pub use listen::{Listener, Listening};
#[cfg(feature = "tls")]
pub use tls::{ClientTls, Role, ServerTls, certificate_in};

/// For the end of a process that may have had connections over QUIC: ends them, and waits until what was
/// said on them has arrived and the others know that they have ended; `limit` at most. (Of other
/// connections the kernel sees to that.)
pub fn settle(limit: std::time::Duration) {
    #[cfg(feature = "quic")]
    quic::settle(limit);
    #[cfg(not(feature = "quic"))]
    let _ = limit;
}
