//! Connections between machines, for every protocol of weft: addresses, connecting and listening,
//! and the two halves of a connection, plain or under TLS (feature `tls`), over TCP, Unix sockets
//! or QUIC (feature `quic`).
//!
//! This crate has no protocol of its own. Threads read and write; nothing is asynchronous.
//!
//! # Invariants
//!
//! - The two halves of a [`Channel`] may be used by two threads at once; neither waits for the
//!   other, under TLS too.
//! - A read waits no longer than the socket's timeout before it returns ([`is_pause`]); the reader
//!   has a deadline and decides.
//! - A peer's user ([`Socket::peer_user`]) is returned only while the peer's socket is open.
//! - A Unix socket is never open to more users than its mode allows, and is removed with its
//!   [`Listener`].
//!
//! # Example
//!
//! ```
//! use std::io::Write;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use weft_net::{Address, Channel, Listener, read_full};
//!
//! # let dir = tempfile::tempdir()?;
//! let address = Address::Unix(dir.path().join("greeter.sock"));
//! let _listening = Listener::bind(&address, 0o600)?.start("greeter", |socket| {
//!     let mut channel = Channel::plain(Arc::new(socket));
//!     let _ = channel.writer.write_all(b"hello");
//! })?;
//!
//! let mut channel = Channel::plain(Arc::new(address.connect(Duration::from_secs(10))?));
//! let mut greeting = [0; 5];
//! read_full(&mut *channel.reader, &mut greeting, None)?;
//! assert_eq!(&greeting, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod address;
mod channel;
mod error;
mod inherited;
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
pub use inherited::{inherited_count, inherited_listeners};
pub use listen::{Listener, Listening, Seat, bind_unix};
#[cfg(feature = "tls")]
pub use tls::{ClientTls, Role, ServerTls, certificate_in};

/// Ends all QUIC connections of this process, before the process ends, and waits until the sent
/// data has arrived and the peers know of the end; `limit` at most. (For other connections the
/// kernel does that.)
pub fn settle(limit: std::time::Duration) {
    #[cfg(feature = "quic")]
    quic::settle(limit);
    #[cfg(not(feature = "quic"))]
    let _ = limit;
}
