//! The NBD protocol: a block device of another machine, and any block device for other machines.
//!
//! Written from the protocol's public document (NetworkBlockDevice/nbd, `doc/proto.md`).
#![warn(missing_docs)]

pub mod client;
mod error;
pub mod server;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
mod uri;
pub mod wire;

pub use client::NbdDevice;
pub use error::{Error, Result};
pub use server::{Export, Server};
pub use stream::{Address, Channel, Socket};
pub use uri::Uri;
