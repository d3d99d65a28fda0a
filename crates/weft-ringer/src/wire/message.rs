//! What client and metadata server say to each other.
//!
//! Any message may be lost, repeated, delayed and overtaken by others: nothing here needs the order
//! of a TCP connection, so a connection that breaks needs no care either. Who wants something asks
//! again until it is answered. How each message stays harmless when it comes late is said where it
//! is handled; in short:
//!
//! - a reply counts only while its request is waited for, and only from the server's present life;
//! - a request counts only in its epoch; a grant answered twice is one lease;
//! - what takes away (a recall, a lowered lease) names a token, and means every grant up to it;
//! - changes are numbered, and carried out once each, in order.

use std::collections::BTreeMap;

use weft_vfs::Time;

use super::archives::ArchiveInfo;
use super::frame::FRAME_MAX_BYTES;
use super::{Reader, Wire, WireError, decode, encode, put_bytes, wire_enum, wire_struct};
use crate::block_map::BlockMap;
use crate::error::Refusal;
use crate::locks::{ClientLocks, FileLocks, LockClaim};
use crate::op::Logged;
use crate::policy::Policy;
use crate::rnode::{Bytes, Dirent, Holders, Name, Rnode};
use crate::text::Text;
use crate::types::{
    ArchiveId, BlockHash, ClientId, Cookie, Epoch, Generation, Incarnation, Mode, RequestId,
    RnodeId, Seq, Token, Version,
};

/// From a client to its metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToServer {
    /// Who speaks. Over TLS it is checked against the certificate.
    pub client: ClientId,
    /// The epoch that the client is in; 0 before its first.
    pub epoch: Epoch,
    /// The life of the server that the client was welcomed by; 0 before that.
    pub generation: Generation,
    /// What is asked.
    pub request: Request,
}
wire_struct!(ToServer { client, epoch, generation, request });

/// A request with the number that its reply will carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// What is asked.
    pub body: RequestBody,
}
wire_struct!(Request { id, body });

/// A lease that a client holds, told to a server that has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// On what.
    pub rnode: RnodeId,
    /// How much.
    pub mode: Mode,
    /// By which grant.
    pub token: Token,
}
wire_struct!(Claim { rnode, mode, token });

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestBody {
    /// Begins a session, or goes on with the one that is there.
    Hello {
        /// Which life of the client this is.
        incarnation: Incarnation,
    },
    /// Goes on with the epoch.
    Renew {},
    /// After [`Welcome::reclaim`]: all leases that the client holds, in parts, each sent when the
    /// one before was answered.
    Reclaim {
        /// This part.
        claims: Vec<Claim>,
        /// Whether it is the last.
        last: bool,
    },
    /// Asks for a lease.
    Acquire {
        /// On what.
        rnode: RnodeId,
        /// How much.
        mode: Mode,
    },
    /// Asks for a lease to read what this name is, of which the client may not know that it has one: it
    /// is told `No` then. Under a lease on the directory; else answered as `Acquire`.
    AcquireNamed {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Name,
    },
    /// What is this name? Under a lease on the directory.
    Lookup {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Name,
    },
    /// The names behind a cookie. Under a lease on the directory.
    List {
        /// The directory.
        dir: RnodeId,
        /// After which entry.
        after: Cookie,
    },
    /// Changes, in the order they were made.
    Commit {
        /// The change before the first of these that the client has not given up.
        prev: Seq,
        /// The changes.
        ops: Vec<Logged>,
    },
    /// The client holds no more than `to` by any grant up to `token`. Not answered: if it is lost,
    /// the server asks for the lease when somebody wants it.
    Lower {
        /// On what.
        rnode: RnodeId,
        /// The last grant that this is about.
        token: Token,
        /// What is kept.
        to: Option<Mode>,
    },
    /// What is this rnode, as far as the server knows now? Needs no lease, and gives none.
    Peek {
        /// Which.
        rnode: RnodeId,
    },
    /// The client has durable, checked copies of all blocks of a file, and promises to keep them.
    Hold {
        /// Which file.
        rnode: RnodeId,
        /// The content that is meant.
        content: Version,
    },
    /// May the client drop what it has of a file, and its promise?
    Release {
        /// Which file.
        rnode: RnodeId,
        /// The content that is meant.
        content: Version,
        /// How many others must have copies; at least one in any case.
        others: u32,
    },
    /// Which of these blocks are of use to anybody?
    Needed {
        /// Of which file.
        rnode: RnodeId,
        /// The blocks.
        hashes: Vec<BlockHash>,
    },
    /// Which contents of a file were kept?
    Versions {
        /// Which file.
        rnode: RnodeId,
    },
    /// One of them.
    OldVersion {
        /// Of which file, which may be gone.
        rnode: RnodeId,
        /// Its number; 0 is what the file was when it was removed.
        number: u64,
    },
    /// Which files were removed below a directory?
    Removed {
        /// The directory.
        dir: RnodeId,
    },
    /// What a file says, so that its words are found. It counts if the file has this content still,
    /// and a policy wants it.
    Text {
        /// Which file.
        rnode: RnodeId,
        /// The content that is meant.
        content: Version,
        /// All of it.
        text: Text,
    },
    /// Keep what a directory is, with all that is below it.
    Snapshot {
        /// The directory.
        dir: RnodeId,
        /// What it is to be called.
        name: Name,
        /// Drawn by who asks: what is asked again with the same mark is done once.
        mark: u64,
    },
    /// A snapshot is of no more use.
    RemoveSnapshot {
        /// Of which directory.
        dir: RnodeId,
        /// What it is called.
        name: Name,
    },
    /// Which snapshots of a directory are there?
    Snapshots {
        /// The directory.
        dir: RnodeId,
    },
    /// Which archives has the cell?
    Archives {},
    /// An archive has acknowledged every block of a file, each put or found there after the client
    /// learnt of `era`.
    Archived {
        /// Which file.
        rnode: RnodeId,
        /// The content that is meant.
        content: Version,
        /// Which archive.
        archive: ArchiveId,
        /// As the server said before the first block was put or looked for.
        era: u64,
    },
    /// Asks for the lock lease of a file.
    AcquireLocks {
        /// Which file.
        rnode: RnodeId,
    },
    /// The client holds no lock lease by any grant up to `token`. Not answered, as `Lower`.
    LowerLocks {
        /// Of which file.
        rnode: RnodeId,
        /// The last grant that this is about.
        token: Token,
        /// What the client has locked.
        locks: FileLocks,
    },
    /// What the client has locked of a file has become less, or what it waits for is another. Needs no
    /// lease.
    TellLocks {
        /// Of which file.
        rnode: RnodeId,
        /// What the client has locked now.
        locks: FileLocks,
    },
    /// After [`Welcome::reclaim`]: files that the client has locks on or the lock lease of. Before the
    /// last `Reclaim`, in parts as there; answered as that.
    ReclaimLocks {
        /// This part.
        claims: Vec<LockClaim>,
    },
    /// `Hello`, of a [front](crate::front). What it holds it has given to clients of its own, which know
    /// nothing of its death: so the epoch of its last life is waited for to its end.
    HelloFront {
        /// Which life of the front this is.
        incarnation: Incarnation,
    },
    /// Of a front: begins an epoch of one of its clients, and so ends the one before. Answered with
    /// `Welcome`. The client has no leases here: the front has them.
    Enter {
        /// Whose.
        client: ClientId,
        /// Which life of the client it is.
        incarnation: Incarnation,
    },
    /// Of a front: a request of one of its clients, changes among them under leases of the front.
    Relay {
        /// Whose request it is.
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
    40 => HelloFront { incarnation },
    41 => Enter { client, incarnation },
    42 => Relay { client, epoch, id, body },
});

/// A request within a request, as bytes: what is enclosed in it again is not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enclosed(Vec<u8>);

impl Enclosed {
    /// Encloses a request.
    #[must_use]
    pub fn new(body: &RequestBody) -> Self {
        Self(encode(body))
    }

    /// The request.
    ///
    /// # Errors
    /// [`WireError`] if it is none.
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

/// From the metadata server to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromServer {
    /// The answer to a request.
    Reply {
        /// Which life of the server speaks.
        generation: Generation,
        /// To which request.
        id: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// Somebody else wants what you hold.
    Recall {
        /// Which life of the server speaks.
        generation: Generation,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// On what.
        rnode: RnodeId,
        /// Every grant up to this one.
        token: Token,
        /// What may be kept.
        to: Option<Mode>,
    },
    /// Somebody else wants the lock lease.
    RecallLocks {
        /// Which life of the server speaks.
        generation: Generation,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// Of which file.
        rnode: RnodeId,
        /// Every grant up to this one.
        token: Token,
    },
    /// Somebody has unlocked something that this client may wait for. If it is lost, the client asks
    /// by itself after a while.
    LocksChanged {
        /// Which life of the server speaks.
        generation: Generation,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// Of which file.
        rnode: RnodeId,
    },
    /// The answer to a request that a front relayed.
    Relayed {
        /// Which life of the server speaks.
        generation: Generation,
        /// Whose request it was.
        client: ClientId,
        /// To which of the client's requests.
        id: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// `RecallLocks`, to the client of a front.
    RelayedRecallLocks {
        /// Which life of the server speaks.
        generation: Generation,
        /// To whom.
        client: ClientId,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// Of which file.
        rnode: RnodeId,
        /// Every grant up to this one.
        token: Token,
    },
    /// `LocksChanged`, to the client of a front.
    RelayedLocksChanged {
        /// Which life of the server speaks.
        generation: Generation,
        /// To whom.
        client: ClientId,
        /// The epoch of the session that is meant.
        epoch: Epoch,
        /// Of which file.
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
    /// Its epoch. If it is another than the client was in, every lease is gone.
    pub epoch: Epoch,
    /// How long the epoch lasts from the sending of each request that renews it, by the client's
    /// clock, in microseconds.
    pub lasts_micros: u64,
    /// The high half of the numbers of rnodes this client makes.
    pub slot: u32,
    /// The largest low half that the server has seen.
    pub last_count: u32,
    /// The last of the client's changes that was carried out.
    pub applied: Seq,
    /// The last of them that was refused, if any was.
    pub refused: Option<Refused>,
    /// The server has forgotten the leases of this epoch and asks for them.
    pub reclaim: bool,
}
wire_struct!(Welcome { epoch, lasts_micros, slot, last_count, applied, refused, reclaim });

/// A name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// What it is.
    pub dirent: Dirent,
}
wire_struct!(Entry { name, dirent });

/// Part of a directory, by cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether there are no more.
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
    /// Who has its blocks.
    pub holders: Holders,
    /// Which content each archive has.
    pub archived: BTreeMap<ArchiveId, Version>,
    /// What is wanted for it.
    pub policy: Policy,
    /// The content whose text is searched for.
    pub told: Option<Version>,
}
wire_struct!(Peeked { rnode, holders, archived, policy, told });

/// What a file was.
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
    /// The blocks by their place.
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

/// A content that was kept, in a list.
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
    /// The path that it had last, from the directory that was asked about; begins with `/`.
    pub path: Bytes,
    /// When it was removed.
    pub at: Time,
    /// Length in bytes.
    pub size_bytes: u64,
}
wire_struct!(RemovedFile { rnode, path, at, size_bytes });

/// A snapshot of a directory, in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// What it is called.
    pub name: Name,
    /// The directory as it was.
    pub root: RnodeId,
    /// When it was asked for.
    pub at: Time,
    /// How many names are in it.
    pub names: u64,
}
wire_struct!(SnapshotEntry { name, root, at, names });

/// A change that was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Which.
    pub seq: Seq,
    /// Why.
    pub why: Refusal,
}
wire_struct!(Refused { seq, why });

/// An answer.
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
        /// The state that the lease is on.
        rnode: Box<Rnode>,
        /// Who has its blocks.
        holders: Holders,
        /// How much was granted.
        mode: Mode,
        /// The lease.
        token: Token,
    },
    /// To `Lookup`.
    Found {
        /// What the name is.
        dirent: Option<Dirent>,
        /// The lease on the directory under which this is true.
        token: Token,
    },
    /// To `List`.
    Listed {
        /// The entries.
        listed: Listed,
    },
    /// To `Commit`: every change up to `applied` has had its turn.
    Committed {
        /// The last of them.
        applied: Seq,
        /// The last of all that was refused, if there was any: only a change of which the server
        /// alone can tell may be.
        refused: Option<Refused>,
    },
    /// To `Commit`: changes between are missing, or one was refused that none may be.
    Broken {
        /// The last change that had its turn.
        applied: Seq,
        /// What was refused, if it is that.
        refused: Option<Refused>,
    },
    /// The request is of another epoch or another life of the server: say `Hello`.
    NoSession {},
    /// To any other: no.
    No {
        /// Why.
        why: Refusal,
    },
    /// To `Peek`.
    Peeked {
        /// What was seen.
        peeked: Box<Peeked>,
    },
    /// To `Archives`.
    Archives {
        /// Grows whenever a [sweep](super::SweepStep) has removed blocks.
        era: u64,
        /// They.
        archives: Vec<ArchiveInfo>,
    },
    /// To `Hold`, `Release`, `Text`, `Snapshot`, `RemoveSnapshot` and `Archived`: yes.
    Held {},
    /// To `Needed`.
    Needed {
        /// Those that are.
        hashes: Vec<BlockHash>,
    },
    /// To `Versions`.
    Versions {
        /// They, the newest first.
        versions: Vec<KeptVersion>,
    },
    /// To `OldVersion`, if a server kept the content that did not record the file's owner.
    OldVersion {
        /// It.
        kept: Box<Kept>,
    },
    /// To `OldVersion`.
    OwnedVersion {
        /// It.
        kept: Box<Kept>,
        /// The file's owner and group when it was kept.
        owner: KeptOwner,
    },
    /// To `Removed`.
    Removed {
        /// They, the last to be removed first.
        files: Vec<RemovedFile>,
    },
    /// To `Snapshots`.
    Snapshots {
        /// They, by name.
        snapshots: Vec<SnapshotEntry>,
    },
    /// To `AcquireLocks`.
    LocksGranted {
        /// The lease.
        token: Token,
        /// What all others have locked.
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
