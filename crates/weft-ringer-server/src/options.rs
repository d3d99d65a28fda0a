//! The options of a server.

use std::sync::Arc;

use weft_net::{Address, ServerTls};
use weft_ringer::BlockHash;
use weft_ringer::mds::MdsOptions;
use weft_ringer_net::pki::Authority;

/// The options of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The addresses on which clients reach the server.
    pub listen: Vec<Address>,
    /// Serve the sockets that the process was started with (`LISTEN_FDS`), and not `listen`.
    pub activated: bool,
    /// Certificates. `None`: nothing is encrypted, and over TCP only root and the server's own
    /// user, on this machine, are admitted.
    pub tls: Option<ServerTls>,
    /// Without certificates: whether every peer that reaches a TCP address is admitted.
    pub insecure: bool,
    /// The authority that issues certificates to new members. `None`: every holder of a certificate
    /// of the authority has all permissions, and no client can join.
    pub authority: Option<Arc<Authority>>,
    /// Fingerprints of certificates that have all permissions. For a server with an authority.
    pub admins: Vec<BlockHash>,
    /// The maximum number of connections; more are closed as they come.
    pub connections_max: usize,
    /// The maximum number of pairs of clients that may be connected through the server in parallel.
    pub relays_max: usize,
    /// The options of the state machine.
    pub mds: MdsOptions,
}

impl ServeOptions {
    /// The default options, without addresses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            listen: Vec::new(),
            activated: false,
            tls: None,
            insecure: false,
            authority: None,
            admins: Vec::new(),
            connections_max: 1024,
            relays_max: 64,
            mds: MdsOptions::default(),
        }
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self::new()
    }
}
