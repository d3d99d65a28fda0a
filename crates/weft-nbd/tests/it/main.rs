//! Client and server against each other, and each against a peer that breaks the rules.

mod bench;
mod conformance;
mod extended;
mod hostile_client;
mod hostile_server;
mod model;
mod protocol;
mod reconnect;
#[cfg(feature = "tls")]
mod tls;
