//! The metadata server of a shared folder as a process: one thread runs the state machine
//! ([`weft_ringer::mds`]) and its store, two threads serve each connection.
//!
//! Invariants:
//! - A connection that speaks for a client has presented its secret; over TLS it has presented a
//!   certificate of the cell's authority before that.
//! - Without TLS, a peer over TCP is a process of root or of the server's own user on this machine,
//!   unless the options say otherwise.
//! - The thread with the state machine never waits for a connection.
//! - When the store fails the server ends, or stands by if the cell has several: its answers would
//!   not be durable.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `connection`, `event` | two threads for each connection; the queue to the thread with the state machine |
//! | `dispatch` | that thread: passes each event to the module that handles it |
//! | `admission`, `members` | local users without certificates; the members of the cell, invitations, revocation |
//! | `sessions`, `traffic` | connected clients with their permissions; counts of their messages |
//! | `administration`, `status` | requests of administrators; the status of the cell |
//! | `search`, `federation` | search in this cell; the parts of a search across cells |
//! | `archives`, `copies`, [`backup`] | archives and sweeps; pages of records for a backup; backup and restore |
//! | `rollback`, `stores`, `cell_number` | detection of an older copy of the cell, and of copied local stores; its number |
//! | `proxy`, `cluster_member`, `relay` | a proxy as a process; one of several servers on etcd; relayed connections between clients |
//! | [`store`] | SQLite in one file, etcd (feature `etcd`), the index of names, words, tags and texts |
//!
//! # Example
//!
//! ```
//! use weft_net::Address;
//! use weft_ringer_server::{ServeOptions, Server};
//!
//! # let dir = tempfile::tempdir()?;
//! let listen = vec![Address::Unix(dir.path().join("cell.sock"))];
//! let options = ServeOptions { listen, ..ServeOptions::new() };
//! let server = Server::start(&dir.path().join("family.cell"), options)?;
//! assert!(server.watch().status().is_some_and(|cell| cell.clients.is_empty()));
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod administration;
mod admission;
mod archives;
pub mod backup;
mod cell_number;
#[cfg(feature = "etcd")]
mod cluster_member;
mod connection;
mod copies;
mod dispatch;
mod event;
mod federation;
mod members;
mod options;
mod proxy;
mod relay;
mod rendezvous;
mod rollback;
mod search;
mod server;
mod sessions;
mod shared;
mod status;
pub mod store;
mod stores;
#[cfg(feature = "testing")]
pub mod testing;
mod thread;
mod traffic;

pub use self::options::ServeOptions;
pub use self::proxy::ProxyServeOptions;
pub use self::server::{Server, Watch};
