//! The messages between client and metadata server.
//!
//! Any message may be lost, repeated, delayed and overtaken by others: nothing here needs the order
//! of a TCP connection, so a broken connection needs no care either. A request is repeated until it
//! is answered. The handler of each message says why a late one is harmless; in short:
//!
//! - a reply counts only while its request is waited for, and only from the present generation;
//! - a request counts only in its epoch; a grant answered twice is one lease;
//! - a recall or downgrade names a token, and means every grant up to it;
//! - changes are numbered, and carried out once each, in order.

use std::collections::BTreeMap;

use weft_vfs::Time;

use super::archives::ArchiveInfo;
use super::frame::FRAME_MAX_BYTES;
use super::{Reader, Wire, WireError, decode, encode, put_bytes, wire_enum, wire_struct};
use crate::block_map::BlockMap;
use crate::error::{Refusal, Refused};
use crate::locks::{ClientLocks, FileLocks, LockClaim};
use crate::op::Logged;
use crate::policy::Policy;
use crate::rnode::{Bytes, Dirent, Holders, Name, Rnode};
use crate::text::Text;
use crate::types::{
    ArchiveId, BlockHash, ClientId, Cookie, Epoch, Generation, Incarnation, Mode, RequestId,
    RnodeId, Seq, Token, Version,
};

/// A message from a client to its metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToServer {
    /// The sender. Over TLS it is checked against the certificate.
    pub client: ClientId,
    /// The epoch that the client is in; 0 before its first.
    pub epoch: Epoch,
    /// The server's generation as of the client's last welcome; 0 before that.
    pub generation: Generation,
    /// The request.
    pub request: Request,
}
wire_struct!(ToServer { client, epoch, generation, request });

/// A request with the number that its reply will carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The request itself.
    pub body: RequestBody,
}
wire_struct!(Request { id, body });

/// A lease that a client reclaims from a restarted server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The rnode.
    pub rnode: RnodeId,
    /// The mode.
    pub mode: Mode,
    /// The grant.
    pub token: Token,
}
wire_struct!(Claim { rnode, mode, token });

/// A request's kind and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestBody {
    /// Begins a session, or continues the present one.
    Hello {
        /// The incarnation of the client.
        incarnation: Incarnation,
    },
    /// Renews the epoch.
    Renew {},
    /// After [`Welcome::reclaim`]: all leases that the client holds, in parts, each sent after the
    /// reply to the one before.
    Reclaim {
        /// This part.
        claims: Vec<Claim>,
        /// Whether it is the last.
        last: bool,
    },
    /// Asks for a lease.
    Acquire {
        /// The rnode.
        rnode: RnodeId,
        /// The mode.
        mode: Mode,
    },
    /// Requests a read lease by name; answered with `No` if the client already has one, perhaps
    /// without knowing it. Under a lease on the directory; else answered as `Acquire`.
    AcquireNamed {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Name,
    },
    /// Looks up a name. Under a lease on the directory.
    Lookup {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Name,
    },
    /// Lists the names after a cookie. Under a lease on the directory.
    List {
        /// The directory.
        dir: RnodeId,
        /// The cookie of the entry to continue after.
        after: Cookie,
    },
    /// Changes, in the order they were made.
    Commit {
        /// The number of the last change before these that the client has not given up.
        prev: Seq,
        /// The changes.
        ops: Vec<Logged>,
    },
    /// The client holds at most `to` by any grant up to `token`. Not answered: if it is lost, the
    /// server recalls the lease when another client needs it.
    Lower {
        /// The rnode.
        rnode: RnodeId,
        /// The last grant that is meant.
        token: Token,
        /// The mode that is kept; `None` for no lease.
        to: Option<Mode>,
    },
    /// Asks for an rnode as the server has it now. Needs no lease, and gives none.
    Peek {
        /// The rnode.
        rnode: RnodeId,
    },
    /// The client has durable, checked copies of all blocks of a file, and promises to keep them.
    Hold {
        /// The file.
        rnode: RnodeId,
        /// The content version that is meant.
        content: Version,
    },
    /// Asks to drop the client's blocks of a file, and its promise.
    Release {
        /// The file.
        rnode: RnodeId,
        /// The content version that is meant.
        content: Version,
        /// Number of other clients that must have copies; in any case one client or archive.
        others: u32,
    },
    /// Asks which of these blocks are still needed.
    Needed {
        /// The file.
        rnode: RnodeId,
        /// The blocks.
        hashes: Vec<BlockHash>,
    },
    /// Lists the kept contents of a file.
    Versions {
        /// The file.
        rnode: RnodeId,
    },
    /// Asks for one kept content.
    OldVersion {
        /// The file, which may be gone.
        rnode: RnodeId,
        /// Its number; 0 is the content of the file when it was removed.
        number: u64,
    },
    /// Lists the files that were removed below a directory.
    Removed {
        /// The directory.
        dir: RnodeId,
    },
    /// The text of a file, for the index. It counts if the file still has this content, and a
    /// policy asks for it.
    Text {
        /// The file.
        rnode: RnodeId,
        /// The content version that is meant.
        content: Version,
        /// The whole text.
        text: Text,
    },
    /// Makes a snapshot of a directory, with everything below it.
    Snapshot {
        /// The directory.
        dir: RnodeId,
        /// The name of the snapshot.
        name: Name,
        /// A random number chosen by the client: requests with the same mark are carried out once.
        mark: u64,
    },
    /// Removes a snapshot.
    RemoveSnapshot {
        /// The directory.
        dir: RnodeId,
        /// The name of the snapshot.
        name: Name,
    },
    /// Lists the snapshots of a directory.
    Snapshots {
        /// The directory.
        dir: RnodeId,
    },
    /// Lists the archives of the cell.
    Archives {},
    /// An archive has acknowledged every block of a file, each put or found there after the client
    /// was told of `era`.
    Archived {
        /// The file.
        rnode: RnodeId,
        /// The content version that is meant.
        content: Version,
        /// The archive.
        archive: ArchiveId,
        /// The era that the server reported before the first block was put or looked for.
        era: u64,
    },
    /// An archive, which was reached and is the right one, does not have a block of a file, or has
    /// other bytes in its place: the file no longer counts as archived there.
    ArchiveLacks {
        /// The file.
        rnode: RnodeId,
        /// The archive.
        archive: ArchiveId,
        /// The block.
        hash: BlockHash,
    },
    /// Asks for the lock lease of a file.
    AcquireLocks {
        /// The file.
        rnode: RnodeId,
    },
    /// The client holds no lock lease by any grant up to `token`. Not answered, as `Lower`.
    LowerLocks {
        /// The file.
        rnode: RnodeId,
        /// The last grant that is meant.
        token: Token,
        /// The client's locks.
        locks: FileLocks,
    },
    /// The client's locks on a file have become fewer, or it waits for other ones. Needs no lease.
    TellLocks {
        /// The file.
        rnode: RnodeId,
        /// The client's locks now.
        locks: FileLocks,
    },
    /// After [`Welcome::reclaim`]: files that the client has locked or holds the lock lease of.
    /// Before the last `Reclaim`, in parts as there; with the same reply.
    ReclaimLocks {
        /// This part.
        claims: Vec<LockClaim>,
    },
    /// The `Hello` of a [proxy](crate::proxy). It has granted its leases on to its clients, which
    /// do not notice its death: so the epoch of its last incarnation is waited for to its end.
    HelloProxy {
        /// The incarnation of the proxy.
        incarnation: Incarnation,
    },
    /// From a proxy: begins an epoch of one of its clients, and ends the one before. Answered with
    /// `Welcome`. The client has no leases at this server: the proxy has them.
    Enter {
        /// The client.
        client: ClientId,
        /// The incarnation of the client.
        incarnation: Incarnation,
    },
    /// From a proxy: a request of one of its clients, including changes under leases of the proxy.
    Relay {
        /// The client.
        client: ClientId,
        /// The epoch that the client is in.
        epoch: Epoch,
        /// The number that the client gave the request.
        id: RequestId,
        /// The request.
        body: Enclosed,
    },
}
wire_enum!(RequestBody {
    1 => Hello { incarnation },
    2 => Renew {},
    3 => Reclaim { claims, last },
    4 => Acquire { rnode, mode },
    5 => Lookup { dir, name },
    6 => List { dir, after },
    7 => Commit { prev, ops },
    8 => Lower { rnode, token, to },
    9 => AcquireLocks { rnode },
    10 => LowerLocks { rnode, token, locks },
    11 => ReclaimLocks { claims },
    12 => TellLocks { rnode, locks },
    13 => AcquireNamed { dir, name },
    20 => Peek { rnode },
    21 => Hold { rnode, content },
    22 => Release { rnode, content, others },
    23 => Needed { rnode, hashes },
    24 => Versions { rnode },
    25 => OldVersion { rnode, number },
    26 => Removed { dir },
    27 => Text { rnode, content, text },
    28 => Snapshot { dir, name, mark },
    29 => RemoveSnapshot { dir, name },
    30 => Snapshots { dir },
    32 => Archives {},
    33 => Archived { rnode, content, archive, era },
    34 => ArchiveLacks { rnode, archive, hash },
    40 => HelloProxy { incarnation },
    41 => Enter { client, incarnation },
    42 => Relay { client, epoch, id, body },
});

/// A request within a request, as bytes: requests nested deeper are not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enclosed(Vec<u8>);

impl Enclosed {
    /// Encloses a request.
    #[must_use]
    pub fn new(body: &RequestBody) -> Self {
        Self(encode(body))
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// [`WireError`] if it cannot be decoded.
    pub fn open(&self) -> Result<RequestBody, WireError> {
        decode(&self.0)
    }
}

impl Wire for Enclosed {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(&self.0, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        from.bytes(FRAME_MAX_BYTES, "an enclosed request").map(|bytes| Self(bytes.to_vec()))
    }
}

/// A message from the metadata server to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromServer {
    /// The answer to a request.
    Reply {
        /// The generation of the server.
        generation: Generation,
        /// The request.
        id: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// Another client needs a lease that this client holds.
    Recall {
        /// The generation of the server.
        generation: Generation,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// The rnode.
        rnode: RnodeId,
        /// Every grant up to this one.
        token: Token,
        /// The mode that may be kept.
        to: Option<Mode>,
    },
    /// Another client needs the lock lease.
    RecallLocks {
        /// The generation of the server.
        generation: Generation,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// The file.
        rnode: RnodeId,
        /// Every grant up to this one.
        token: Token,
    },
    /// Another client has removed a lock that this client may wait for. If it is lost, the client
    /// asks by itself after a while.
    LocksChanged {
        /// The generation of the server.
        generation: Generation,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// The file.
        rnode: RnodeId,
    },
    /// The reply to a request that a proxy relayed.
    Relayed {
        /// The generation of the server.
        generation: Generation,
        /// The client that sent the request.
        client: ClientId,
        /// The request, by the client's number.
        id: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// `RecallLocks`, for a client of a proxy.
    RelayedRecallLocks {
        /// The generation of the server.
        generation: Generation,
        /// The client.
        client: ClientId,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// The file.
        rnode: RnodeId,
        /// Every grant up to this one.
        token: Token,
    },
    /// `LocksChanged`, for a client of a proxy.
    RelayedLocksChanged {
        /// The generation of the server.
        generation: Generation,
        /// The client.
        client: ClientId,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// The file.
        rnode: RnodeId,
    },
}
wire_enum!(FromServer {
    1 => Reply { generation, id, reply },
    2 => Recall { generation, epoch, rnode, token, to },
    3 => RecallLocks { generation, epoch, rnode, token },
    4 => LocksChanged { generation, epoch, rnode },
    40 => Relayed { generation, client, id, reply },
    41 => RelayedRecallLocks { generation, client, epoch, rnode, token },
    42 => RelayedLocksChanged { generation, client, epoch, rnode },
});

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Its epoch. If it differs from the client's, every lease is gone.
    pub epoch: Epoch,
    /// The duration of the epoch from the sending of each request that renews it, by the client's
    /// clock, in microseconds.
    pub lasts_micros: u64,
    /// The high half of the numbers of rnodes that this client makes.
    pub slot: u32,
    /// The largest low half that the server has seen.
    pub last_count: u32,
    /// The last of the client's changes that was carried out.
    pub applied: Seq,
    /// The last of them that was refused, if any.
    pub refused: Option<Refused>,
    /// The server has lost the leases of this epoch in a restart and asks for them.
    pub reclaim: bool,
}
wire_struct!(Welcome { epoch, lasts_micros, slot, last_count, applied, refused, reclaim });

/// A name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// The directory entry.
    pub dirent: Dirent,
}
wire_struct!(Entry { name, dirent });

/// Part of a directory, in the order of cookies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether the listing ends here.
    pub end: bool,
    /// The lease under which this is true.
    pub token: Token,
}
wire_struct!(Listed { entries, end, token });

/// An rnode as the server has it at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peeked {
    /// The rnode.
    pub rnode: Rnode,
    /// The clients that hold its blocks.
    pub holders: Holders,
    /// The content that each archive has.
    pub archived: BTreeMap<ArchiveId, Version>,
    /// The policy that applies to it.
    pub policy: Policy,
    /// The content whose text is indexed.
    pub told: Option<Version>,
}
wire_struct!(Peeked { rnode, holders, archived, policy, told });

/// A kept content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Permission bits.
    pub perm: u16,
    /// Last change of content.
    pub mtime: Time,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// The blocks by position.
    pub blocks: BlockMap,
}
wire_struct!(Kept { perm, mtime, size_bytes, block_bytes, blocks });

/// The owner and group that a file had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptOwner {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}
wire_struct!(KeptOwner { uid, gid });

/// A kept content, in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptVersion {
    /// Its number among those of its file; later ones have larger numbers.
    pub number: u64,
    /// Last change of content.
    pub mtime: Time,
    /// Length in bytes.
    pub size_bytes: u64,
}
wire_struct!(KeptVersion { number, mtime, size_bytes });

/// A file that was removed, in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedFile {
    /// Its number.
    pub rnode: RnodeId,
    /// Its last path, from the directory that was asked about; begins with `/`.
    pub path: Bytes,
    /// The time of its removal.
    pub at: Time,
    /// Length in bytes.
    pub size_bytes: u64,
}
wire_struct!(RemovedFile { rnode, path, at, size_bytes });

/// A snapshot of a directory, in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The name of the snapshot.
    pub name: Name,
    /// The root of the snapshot.
    pub root: RnodeId,
    /// The time of the request.
    pub at: Time,
    /// The number of names in it.
    pub names: u64,
}
wire_struct!(SnapshotEntry { name, root, at, names });

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To `Hello`.
    Welcome {
        /// The session.
        welcome: Welcome,
    },
    /// To `Renew`: the epoch goes on.
    Renewed {},
    /// To `Reclaim`.
    Reclaimed {},
    /// To `Acquire` and `AcquireNamed`.
    Granted {
        /// The rnode's state under the lease.
        rnode: Box<Rnode>,
        /// The clients that hold its blocks.
        holders: Holders,
        /// The mode granted.
        mode: Mode,
        /// The lease.
        token: Token,
    },
    /// To `Lookup`.
    Found {
        /// The entry; `None` if the name does not exist.
        dirent: Option<Dirent>,
        /// The lease on the directory under which this is true.
        token: Token,
    },
    /// To `List`.
    Listed {
        /// The entries.
        listed: Listed,
    },
    /// To `Commit`: every change up to `applied` was carried out or refused.
    Committed {
        /// The last of them.
        applied: Seq,
        /// The last refused change of all, if any: only a change that the server alone can decide
        /// may be refused.
        refused: Option<Refused>,
    },
    /// To `Commit`: changes in between are missing, or a change was refused that may not be.
    Broken {
        /// The last change that was carried out or refused.
        applied: Seq,
        /// The refused change, if one was.
        refused: Option<Refused>,
    },
    /// The request is of another epoch or generation: the client must send `Hello`.
    NoSession {},
    /// To any other: a refusal.
    No {
        /// The reason.
        why: Refusal,
    },
    /// To `Peek`.
    Peeked {
        /// The rnode and what belongs to it.
        peeked: Box<Peeked>,
    },
    /// To `Archives`.
    Archives {
        /// A number that grows whenever a [sweep](super::SweepStep) has removed blocks.
        era: u64,
        /// The archives.
        archives: Vec<ArchiveInfo>,
    },
    /// To `Hold`, `Release`, `Text`, `Snapshot`, `RemoveSnapshot`,
    /// `Archived` and `ArchiveLacks`: done.
    Held {},
    /// To `Needed`.
    Needed {
        /// Those that are needed.
        hashes: Vec<BlockHash>,
    },
    /// To `Versions`.
    Versions {
        /// The kept contents, the newest first.
        versions: Vec<KeptVersion>,
    },
    /// To `OldVersion`, if the content was kept by a server that did not record the file's owner.
    OldVersion {
        /// The content.
        kept: Box<Kept>,
    },
    /// To `OldVersion`.
    OwnedVersion {
        /// The content.
        kept: Box<Kept>,
        /// The file's owner and group when it was kept.
        owner: KeptOwner,
    },
    /// To `Removed`.
    Removed {
        /// The files, the last removed first.
        files: Vec<RemovedFile>,
    },
    /// To `Snapshots`.
    Snapshots {
        /// The snapshots, by name.
        snapshots: Vec<SnapshotEntry>,
    },
    /// To `AcquireLocks`.
    LocksGranted {
        /// The lease.
        token: Token,
        /// The locks of all other clients.
        others: Vec<ClientLocks>,
    },
    /// To `TellLocks`.
    Told {},
}
wire_enum!(Reply {
    1 => Welcome { welcome },
    2 => Renewed {},
    3 => Reclaimed {},
    4 => Granted { rnode, holders, mode, token },
    5 => Found { dirent, token },
    6 => Listed { listed },
    7 => Committed { applied, refused },
    8 => Broken { applied, refused },
    9 => NoSession {},
    10 => No { why },
    11 => LocksGranted { token, others },
    12 => Told {},
    20 => Peeked { peeked },
    21 => Held {},
    22 => Needed { hashes },
    23 => Versions { versions },
    24 => OldVersion { kept },
    25 => Removed { files },
    26 => Snapshots { snapshots },
    27 => OwnedVersion { kept, owner },
    30 => Archives { era, archives },
});
