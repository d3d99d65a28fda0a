//! The client as a file system: [`RingerFs`] around the state machine of
//! [`client`](weft_ringer::client), with threads, a journal, blocks in files and other clients.
//!
//! A client's local store is one directory, of one client of one cell, locked (`flock`) while it is
//! in use:
//!
//! ```text
//! identity       the secret that makes this client the same over restarts
//! cell           the number of the cell
//! known          the last generation and revision of the cell that were seen
//! incarnation    the number of starts
//! journal        changes that the server may not have
//! conflicts      changes that were given up
//! own/ cache/    blocks
//! copy/ kept/    more blocks
//! open/          the former contents of blocks that are being written
//! room/ spare    reserved room, for blocks that must be stored before other clients can go on
//! runs           the last start that the server has seen, and later ones
//! garbage        files that may have blocks here that no client needs, from the last unmount
//! pins           files and directories that are kept here whole
//! keys           keys of encrypted directories; readable for this user alone
//! member         the secret by which others hand keys to this client; made on first use
//! trusted        the members whose keys are accepted
//! peers.sock     the socket from which other clients of this machine fetch blocks
//! cells/NUMBER/  the local store of another cell that is mounted inside, as this one; with
//!                `junction`, the text of its mount point, while changes may not be with its server
//! ```
//!
//! Invariants, beyond those of the state machine:
//! - A block is in its file before the change that names it is made, so before any other client can
//!   hear of it; or it is being written (`open`), and the change is not sent.
//! - A change is in the journal (in the kernel's hands) before its call returns; it survives the
//!   end of this process. `fsync` makes blocks and journal durable and waits for the server.
//! - No call waits for ever: a call that the server does not answer within
//!   [`RingerFsOptions::patience`] fails with `ETIMEDOUT`.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `fs`, `client_fs`, `listing`, `attributes`, `control`, `locks` | [`RingerFs`], the file system; the state that its threads share; control attributes, and requests of the mount's user; file locks |
//! | `content`, `open`, `durable` | reads and writes of blocks; blocks that are being written; syncs |
//! | `engine`, `link`, `journal` | the state machine in a process, its connection, its journal |
//! | `blocks`, `verified`, `room`, `scrubbing` | blocks in files; checks of their hashes; reserved room |
//! | `peers`, `fetching`, `fetched` | exchange of blocks with other clients; fetched blocks, evicted when room is needed |
//! | `replication`, `copies`, `texts`, `garbage_collector` | copies, pins and texts for search; release of blocks and leases that are no longer needed |
//! | `archive`, `archives` | an object store and its sweep; the copies of files there (feature `archive`) |
//! | `encryption` | keys, blocks encrypted and opened, sharing of keys |
//! | `cells`, `cell_mounts` | [`CellTree`]: several clients, each of one cell, as one tree; search across them |
//! | `owners`, `accounts` | owners and groups as a mount shows them; the users and groups of this machine |
//! | `snapshots`, `history`, `folders`, `conflicts` | earlier states; query folders; changes that came too late |
//! | `invalidation`, `shared_memory` | the kernel's pages of mapped files; refusal of files that processes share memory in |
//! | `set_aside`, `verdict` | an older cell; a server's final refusals |
//!
//! # Example
//!
//! ```
//! use weft_net::Address;
//! use weft_ringer_client::{RingerFs, RingerFsOptions};
//! use weft_ringer_server::{ServeOptions, Server};
//! use weft_vfs::{FileSystem, Walker};
//!
//! # let dir = tempfile::tempdir()?;
//! let address = Address::Unix(dir.path().join("cell.sock"));
//! let options = ServeOptions { listen: vec![address.clone()], ..ServeOptions::new() };
//! let server = Server::start(&dir.path().join("family.cell"), options)?;
//!
//! let join = |store| RingerFs::join(RingerFsOptions::new(address.clone(), dir.path().join(store)));
//! let (ada, ben) = (join("ada.store")?, join("ben.store")?);
//! Walker::new(&ada).write_file(b"/greeting", b"hello", 0o644)?;
//! assert_eq!(Walker::new(&ben).read_file(b"/greeting")?, b"hello");
//! ada.unmount()?;
//! ben.unmount()?;
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod accounts;
#[cfg(feature = "archive")]
pub mod archive;
#[cfg(feature = "archive")]
mod archives;
#[cfg(not(feature = "archive"))]
#[path = "no_archives.rs"]
mod archives;
mod arguments;
mod attributes;
mod blocks;
mod cell_mounts;
mod cells;
mod client_fs;
mod conflict_log;
mod conflicts;
mod content;
mod control;
mod copies;
mod durable;
mod encryption;
mod engine;
mod errors;
mod fetched;
mod fetching;
mod folder_table;
mod folders;
mod fs;
mod garbage_collector;
mod history;
mod invalidation;
mod journal;
mod link;
mod listing;
mod locks;
mod lost_leases;
mod mutex;
mod open;
#[cfg(feature = "archive")]
mod opened_archives;
mod options;
mod owners;
mod peers;
mod pins;
mod pool;
mod references;
mod replication;
mod room;
mod scrubbing;
mod set_aside;
mod shared_memory;
mod skipped_texts;
mod snapshots;
mod texts;

mod verdict;
mod verified;

pub use attributes::{
    ENCRYPT, HISTORY_XATTR, HOLDERS_XATTR, PIN_XATTR, RESTORE_XATTR, SNAPSHOTS_XATTR, STORE_XATTR,
};
pub use cells::CellTree;
pub use conflicts::CONFLICTS_XATTR;
pub use control::{ControlReply, ControlRequest};
pub use encryption::{
    BlockError, DirectoryKey, EncryptedBlock, KEYS_XATTR, KeyTextError, MEMBER_XATTR, MemberId,
    MemberIdError, SHARE, SHARED_KEYS_XATTR, Share, Shares, SharesError, TRUSTED_XATTR, parse_keys,
};
pub use folder_table::CELLS_XATTR;
pub use folders::COMPLETE_XATTR;
pub use fs::RingerFs;
pub use options::RingerFsOptions;
pub use owners::OwnerOptions;
pub use scrubbing::SCRUB_XATTR;
