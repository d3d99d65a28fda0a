//! The options of a client.

use std::path::PathBuf;
use std::time::Duration;

use weft_net::{Address, ClientTls, ServerTls};
use weft_ringer::CellId;
use weft_ringer::client::ClientOptions;

use super::owners::OwnerOptions;

/// The options of a client.
#[derive(Debug, Clone)]
pub struct RingerFsOptions {
    /// The metadata server; several if the cell is in etcd: the client uses the one that owns it.
    pub servers: Vec<Address>,
    /// The local store; made if it is not there.
    pub directory: PathBuf,
    /// The cell that it must be. `None`: the one that the local store belongs to, or the server's
    /// if that is new.
    pub cell: Option<CellId>,
    /// The address at which other clients reach this one; `None` for `peers.sock` in the local
    /// store if the server is on a Unix socket, else any port of the address that the server is
    /// reached from.
    pub listen: Option<Address>,
    /// The certificates of this client: as a caller, and as a server. `None`: nothing is encrypted.
    pub tls: Option<(ClientTls, ServerTls)>,
    /// The directory of certificates for cells that are mounted inside: a directory for each, by
    /// its number. A cell that has none there is called without, if this cell is.
    pub cells_certificates: Option<PathBuf>,
    /// Set if a front end lets users other than root and its own attach cells, where they may set
    /// attributes.
    pub allow_attach: bool,
    /// The size of the blocks of files made here, in bytes: a power of two, 64 KiB to 4 MiB. A
    /// file has at most 65,536 blocks.
    pub block_bytes: u32,
    /// The room for blocks fetched from other clients, in bytes.
    pub cache_max_bytes: u64,
    /// The room for blocks that stay, in bytes: written here, or copies that others rely on. When
    /// it is exceeded, no copies are made here, and files that have enough other holders are
    /// removed; blocks that no other client has stay.
    pub store_max_bytes: u64,
    /// The time for which a file must be unchanged before copies of it are made.
    pub settle: Duration,
    /// The interval between scans of all blocks that stay.
    pub scan_every: Duration,
    /// The time limit of a call to the server, and of a read from the other clients.
    pub patience: Duration,
    /// The owners and groups that the mount shows.
    pub owners: OwnerOptions,
    /// Whether SQLite's shared-memory file may be used: correct if one machine alone opens the
    /// database.
    pub allow_shared_memory: bool,
    /// Set if a cell is accepted that is older than what this client has seen of it. Later state
    /// of this client is set aside then, and it begins anew.
    pub accept_older_cell: bool,
    /// Whether to begin as another client with a store that is a copy, or an older state, of one that
    /// was used since. Changes that it had not sent become conflicts.
    pub adopt_store: bool,
    /// The opener of the cell's archives.
    #[cfg(feature = "archive")]
    pub archives: crate::archive::Opener,
    /// The options of the state machine.
    pub client: ClientOptions,
}

impl RingerFsOptions {
    /// The addresses of the servers, for people.
    pub(super) fn places(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(Address::to_string).collect();
        servers.join(" or ")
    }

    /// The default options.
    #[must_use]
    pub fn new(server: Address, directory: PathBuf) -> Self {
        Self {
            servers: vec![server],
            directory,
            cell: None,
            listen: None,
            tls: None,
            cells_certificates: None,
            allow_attach: false,
            // Files of up to 16 GiB; for a small random write a whole block is stored anew.
            block_bytes: 256 << 10,
            cache_max_bytes: 10 << 30,
            store_max_bytes: u64::MAX,
            settle: Duration::from_secs(1),
            scan_every: Duration::from_secs(600),
            patience: Duration::from_secs(30),
            owners: OwnerOptions::default(),
            allow_shared_memory: false,
            accept_older_cell: false,
            adopt_store: false,
            #[cfg(feature = "archive")]
            archives: crate::archive::Opener::default(),
            client: ClientOptions { retry_micros: 500_000, ..ClientOptions::default() },
        }
    }
}
