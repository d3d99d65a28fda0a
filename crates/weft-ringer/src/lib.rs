//! One folder shared by machines in several places: each works on it as on a local disk, file
//! content is transferred when it is read, and no reader sees stale or torn data.
//!
//! A *cell* is a name space of *rnodes* ([`Rnode`]: inodes) and names, owned by one metadata server
//! at a time. A *client* holds *leases* on rnodes: under a read lease it answers from memory, under
//! a write lease it also makes changes, and tells the server later. A lease is held until it is
//! recalled or the client's *epoch* ends; so repeated operations under a lease cost no message.
//! Content is in blocks named by their BLAKE3 hash, kept by clients; the server knows the hashes
//! and which clients hold them.
//!
//! # Design decisions
//!
//! **Every change is made by a client that holds write leases on every rnode it touches** (a
//! directory's lease covers its names). There is no second way, in which the server would change
//! things on a client's request while other clients hold leases. The server keeps leases apart,
//! replays changes in their order, and checks them. The effect of a change is defined once
//! ([`op::execute`]), and run at both ends on the same state. The one thing that a client cannot
//! know, whether a directory would be moved into itself, it asks by sending that change alone and
//! waiting, with its leases held.
//!
//! **A client's changes are one log.** It is numbered over all incarnations of the client, kept in
//! the client's journal before a change is acknowledged, and carried out in order, each change
//! once: the server stores the number of the last change in the transaction that carries it out, so
//! a repeated request changes nothing. To release a lease, a client sends the log up to the last
//! change under it; so other clients always see a prefix of one client's changes.
//!
//! **Time.** An epoch lasts a fixed time by the client's clock from the *sending* of the request
//! that renewed it; the server counts from its *handling* by its own clock, and waits a sixteenth
//! longer. So a client stops before its server grants its leases to others, if the two clocks agree
//! within 3% (disciplined clocks keep within 0.05%). The clocks used are never set and run on
//! during sleep; the time of day is for time stamps alone. Not covered is a machine whose clock
//! stands still while others run, a paused guest: its reads may be stale by the length of the
//! pause, its writes are refused.
//!
//! **Fencing.** Every grant has a [`Token`], growing over all grants of a cell. The server takes
//! changes only in the client's present epoch, under write leases in its own table, and on the
//! versions that each change was made on. The end of an epoch is made durable before its leases are
//! granted to others. So a late writer changes nothing.
//!
//! **Server restarts.** Leases are in the server's memory. Epochs are in its store: after a
//! restart, clients whose epoch had not ended reclaim their leases, and the server grants nothing
//! before all have done so or their time is up.
//!
//! **What the server believes a client holds is never less than what the client believes.** A
//! client gains a lease only by a reply that it waits for, from the server's present generation,
//! with a token that was not recalled meanwhile; it downgrades a lease before it tells the server.
//! So after loss, repetition and reordering of messages the server at most believes too much, and a
//! recall corrects that.
//!
//! **Locks** (`flock`, record locks) of a file are one small table. The holder of the file's *lock
//! lease* may change its own part of the table and knows the rest. It takes locks without a
//! message, and releases the lease when asked, reporting the ranges it has locked; those stay
//! locked. To unlock takes no lease and never waits. Locks are not in the store: clients report
//! theirs to a restarted server, and a client's locks end with its epoch.
//!
//! # Guarantees
//!
//! - Operations on each file, and on each name of a directory, are *linearizable* over all clients:
//!   as if each had taken effect at one moment between call and return.
//! - The exception cannot be avoided with local writes. If a client's epoch ends (it crashed, or
//!   was cut off for longer than the epoch) before its last changes reached the server, those
//!   changes, a suffix of its log, are taken out of that order. On its return, a change whose
//!   rnodes no other client changed meanwhile takes effect then; the others are *conflicts*, kept
//!   and reported, and never silently dropped.
//! - `fsync` waits until the changes are with the server: changes that it covers stay in the order.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`op`] | the changes, and the effect of each |
//! | [`locks`] | byte ranges of a file that are locked, and which locks conflict |
//! | [`Encryption`] | the key that content below a directory is encrypted with |
//! | [`Policy`] | settings for the files below a directory: copies, history, text indexing |
//! | [`Text`] | the content of a text file, for the index |
//! | [`CellMount`] | a directory that is the mount point of another cell |
//! | [`client`] | a client: its state under leases, its log, calls and recalls |
//! | [`mds`] | the metadata server: sessions, the lease table, changes carried out |
//! | [`proxy`] | a proxy: a server in front of another one |
//! | [`store`] | the interface of a cell's store: keys, transactions, change feed; one in memory |
//! | [`query`] | search queries |
//! | [`wire`] | messages, records and frames as bytes |
//! | `summary` | a Bloom filter of a cell's index, for a search over many cells |
//!
//! This crate does no I/O: it has no clock, no threads, no sockets and no files. The crates around
//! it: `weft-ringer-net` has what processes share (connections, certificates, clocks),
//! `weft-ringer-server` the metadata server as a process and its stores, `weft-ringer-client` the
//! client as a file system.

#![warn(missing_docs)]

mod block_map;
mod cell_mount;
pub mod client;
mod encryption;
mod error;
pub mod locks;
pub mod mds;
pub mod op;
mod owner_names;
mod policy;
pub mod proxy;
pub mod query;
mod rnode;
pub mod store;
mod summary;
mod text;
mod types;
pub mod wire;

pub use block_map::{
    BLOCK_MAX_BYTES, BLOCK_MIN_BYTES, BLOCKS_MAX, Block, BlockMap, ENCRYPTED_OVERHEAD_BYTES,
    STORED_MAX_BYTES,
};
pub use cell_mount::{
    CELL_MOUNT_MAX_BYTES, CELL_MOUNT_SERVERS_MAX, CELL_MOUNT_XATTR, CellMount, CellMountError,
};
pub use encryption::{
    ENCRYPTION_XATTR, Encryption, FileId, Fingerprint, KeyId, NotAnId, SHARES_MAX_BYTES,
    SHARES_XATTR, UnknownFormat, from_hex, is_encrypted,
};
pub use error::Refusal;
pub use owner_names::{NOBODY, OWNERS_XATTR, OwnerKind, OwnerNames};
pub use policy::{Archiving, COPIES_MAX, POLICY_XATTR, Policy, PolicyError, VERSIONS_MAX};
pub use rnode::{
    Body, Bytes, Dirent, Holders, LINKS_MAX, Name, Rnode, TAGS_XATTR, TARGET_MAX_BYTES,
    XATTR_MAX_BYTES, XATTRS_MAX_BYTES,
};
pub use summary::Summary;
pub use text::{TEXT_MAX_BYTES, Text, ToldText};
pub use types::{
    ArchiveId, BlockHash, CellId, ClientId, Cookie, Epoch, Generation, Incarnation, Mode, Moment,
    NotAHash, RequestId, RnodeId, SNAPSHOT_SLOTS, Seq, Token, Version,
};
