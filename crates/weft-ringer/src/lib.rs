//! One folder shared by machines in several places: each works on it as on a local disk, bytes move
//! when somebody reads them, and nobody sees stale or torn data.
//!
//! A *cell* is a name space of *rnodes* ([`Rnode`]: what others call inodes) and names, owned by one
//! metadata server at a time. A *client* holds *leases* on rnodes: under a read lease it answers
//! from memory, under a write lease it also changes, and tells the server later. A lease is held
//! until it is recalled or the client's *epoch* ends; so what is done again under a lease costs no
//! message. Content is in blocks named by their BLAKE3 hash, kept by clients; the server knows the
//! hashes and who has them.
//!
//! # What is decided, and why
//!
//! **Every change is made by a client that holds write leases on every rnode it touches** (a
//! directory's lease covers its names). There is no second way, in which the server would change
//! things on a client's request while others hold leases. The server keeps leases apart, carries out
//! changes again in their order, and checks them. What a change does is defined once
//! ([`op::execute`]), and run at both ends on the same state. The one thing that a client cannot
//! know, whether a directory would be moved into itself, it asks by sending that change alone and
//! waiting, with its leases held.
//!
//! **A client's changes are one log.** It is numbered over all lives of the client, kept in the
//! client's journal before a change is acknowledged, and carried out in order, each change once: the
//! server keeps the number of the last one in the transaction that carries it out, so a repeated
//! request changes nothing. Giving up a lease means sending the log up to the last change under it,
//! and all before it; so what others see of one client is a prefix of what it did.
//!
//! **Time.** An epoch lasts a fixed time by the client's clock from the *sending* of the request that
//! renewed it; the server counts from its *handling* by its own clock, and waits a sixteenth longer.
//! So a client stops before its server gives its leases away, if the two clocks run alike within
//! 3% (clocks that are disciplined keep within 0.05%). Clocks are those that are never set and run
//! on during sleep; the time of day is for time stamps alone. What is not covered is a machine whose
//! clock stands still while others run, a paused guest: its reads may be late by the pause, its
//! writes are refused.
//!
//! **Fencing.** Every grant has a [`Token`], growing over all grants of a cell. The server takes
//! changes only in the client's present epoch, under write leases that its own table has, on the
//! versions that each change was made on. The end of an epoch is made durable before its leases are
//! given to others. So a late writer changes nothing.
//!
//! **The server forgets.** Leases are in its memory. Epochs are in its store: after a restart, clients
//! whose epoch had not ended tell what they hold, and nothing is granted before all have done so or
//! their time is up.
//!
//! **What the server believes a client holds is never less than what the client believes.** A client
//! gains a lease only by a reply that it waits for, from the server's present life, with a token
//! that was not recalled meanwhile; it lowers a lease before it says so. Loss, repetition and
//! reordering of messages can then only make the server believe too much, which a recall mends.
//!
//! **Locks** (`flock`, record locks) of a file are one small table, and whoever has the file's *lock
//! lease* may change its own part of it and knows the rest. It takes locks without a message, and gives
//! the lease up when asked, with what it has locked; that stays locked. To unlock takes no lease and
//! never waits. Locks are nowhere in the store: clients tell a new server theirs, and those of a client
//! go with its epoch.
//!
//! # What is promised
//!
//! - Operations on each file, and on each name of a directory, are *linearizable* over all clients:
//!   as if each had taken effect at one moment between call and return.
//! - The exception is what nobody can promise together with local writes. If a client's epoch ends
//!   (it crashed, it was cut off for longer than the epoch) before its last changes reached the
//!   server, those changes, a suffix of its log, are taken out of that order. On its return, a
//!   change whose rnodes nobody changed meanwhile takes effect then; the others are *conflicts*,
//!   kept and reported, and never silently dropped.
//! - `fsync` waits until the changes are with the server: what it covers is in the order for good.
//!
//! # Where things are
//!
//! | module | what it knows |
//! |---|---|
//! | [`op`] | what each change does |
//! | [`locks`] | ranges of a file that are locked, and what excludes what |
//! | [`Encryption`] | which key what is below a directory is encrypted with |
//! | [`Policy`] | what is wanted for the files below a directory: copies, history, what is searched for |
//! | [`Text`] | what a text file says |
//! | [`Junction`] | where a directory of a cell is another cell |
//! | [`client`] | what a client has under leases, its log, calls and recalls |
//! | [`mds`] | the metadata server: sessions, the table of leases, changes carried out |
//! | [`front`] | a server in front of another one |
//! | [`store`] | what a server keeps its cell in: keys, transactions, what changed; one in memory |
//! | [`query`] | what is searched for |
//! | [`wire`] | messages, records and frames as bytes |
//! | `summary` | what may be found in a cell, for who searches many |
//!
//! All of it is functions of what they are given: no clock, no threads, no sockets, no files. The rooms around
//! it: `weft-ringer-net` has what processes share (connections, certificates, clocks), `weft-ringer-server` the
//! metadata server as a process and its stores, `weft-ringer-client` the client as a file system.

#![warn(missing_docs)]

mod block_map;
pub mod client;
mod encryption;
mod error;
pub mod front;
mod junction;
pub mod locks;
pub mod mds;
pub mod op;
mod policy;
pub mod query;
mod rnode;
pub mod store;
mod summary;
mod text;
mod types;
pub mod wire;

pub use block_map::BlockMap;
pub use encryption::{
    ENCRYPTED_OVERHEAD_BYTES, ENCRYPTION_XATTR, Encryption, FileId, Fingerprint, KeyId, NotAnId,
    SHARES_MAX_BYTES, SHARES_XATTR, UnknownFormat, from_hex, is_encrypted,
};
pub use error::Refusal;
pub use junction::{
    JUNCTION_MAX_BYTES, JUNCTION_SERVERS_MAX, JUNCTION_XATTR, Junction, JunctionError,
};
pub use policy::{Archiving, COPIES_MAX, POLICY_XATTR, Policy, PolicyError, VERSIONS_MAX};
pub use rnode::{
    BLOCK_MAX_BYTES, BLOCK_MIN_BYTES, BLOCKS_MAX, Block, Body, Bytes, Dirent, Holders, LINKS_MAX,
    Name, Rnode, STORED_MAX_BYTES, TAGS_XATTR, TARGET_MAX_BYTES, XATTR_MAX_BYTES, XATTRS_MAX_BYTES,
};
pub use summary::Summary;
pub use text::{TEXT_MAX_BYTES, Text, ToldText};
pub use types::{
    ArchiveId, BlockHash, CellId, ClientId, Cookie, Epoch, Generation, Incarnation, Mode, Moment,
    NotAHash, RequestId, RnodeId, SNAPSHOT_SLOTS, Seq, Token, Version,
};
