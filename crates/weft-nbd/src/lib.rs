//! The NBD protocol: the block device of another machine as a device, and any block device as an
//! export for other machines.
//!
//! Written from the protocol's public document (NetworkBlockDevice/nbd, `doc/proto.md`): fixed
//! newstyle handshake, structured replies, extended headers, `base:allocation`, block sizes, many
//! connections, TLS (feature `tls`, on by default).
//!
//! | part | content |
//! |---|---|
//! | [`wire`] | the codec: bytes and values, no I/O |
//! | [`server`] | [`Server`]: exports of devices, for any client |
//! | [`client`] | [`NbdDevice`]: an export as a device, which outlives its connections |
//! | [`Uri`] | the address of an export as text |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use weft_block::{BlockDevice, MemoryDevice};
//! use weft_nbd::{Export, NbdDevice, Server, client, server};
//! use weft_net::Address;
//!
//! # let dir = tempfile::tempdir()?;
//! let socket = Address::Unix(dir.path().join("disk.sock"));
//! let disk = Export::new("disk", Arc::new(MemoryDevice::new(1 << 20)));
//! let mut server = Server::new(vec![disk], server::Options::default())?;
//! server.listen(&socket)?;
//!
//! let device = NbdDevice::connect(client::Options::new(socket, "disk"))?;
//! device.write_at(b"over there", 4096)?;
//! device.flush()?; // durable at the server
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod client;
mod error;
pub mod server;
mod uri;
pub mod wire;

pub use client::NbdDevice;
pub use error::{Error, Result};
pub use server::{Export, Server};
pub use uri::Uri;
