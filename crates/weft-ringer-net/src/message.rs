//! Messages on a connection that are not part of the client and server state machines (handshake,
//! queries, administration), and messages between clients.

use weft_ringer::mds::{Grant, Level};
use weft_ringer::wire::{
    ArchiveInfo, FromServer, Reader, SweepStep, Swept, ToServer, Wire, WireError, wire_enum,
    wire_struct,
};
use weft_ringer::{
    ArchiveId, BlockHash, Bytes, ClientId, Epoch, Generation, Mode, RnodeId, Summary,
};

/// The length of the secret that makes a client the same over restarts, in bytes.
pub const SECRET_BYTES: usize = 32;

/// A request to a metadata server. The first message on a connection is `Join` or `Observe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A client of the cell.
    Join {
        /// The secret drawn at random when its local store was made; the client's number is its
        /// hash.
        secret: Bytes,
        /// The address at which other clients reach it, as text.
        listens: Option<Bytes>,
        /// The cell that its local store belongs to, 0 if it is new.
        cell: u64,
        /// The runs of its local store.
        runs: StoreRuns,
    },
    /// Opens an observer connection, which belongs to no client.
    Observe {},
    /// A message for the state machine. Clients only.
    Mds {
        /// The message.
        message: Box<ToServer>,
    },
    /// Asks for the status of the cell.
    Status {},
    /// Searches the cell for files.
    Search {
        /// The query, as text.
        query: Bytes,
        /// The maximum number of hits.
        limit: u32,
    },
    /// Checks that the server answers.
    Ping {},
    /// Checks the consistency of the cell's records. The server does nothing else meanwhile.
    Check {},
    /// Asks for a certificate, by an invitation. The first and only message of a requester that has
    /// none.
    Enroll {
        /// The secret of the invitation.
        secret: Bytes,
        /// An Ed25519 key.
        public_key: Bytes,
        /// The member name that the requester wants.
        name: Bytes,
    },
    /// Makes an invitation. Needs an administrator.
    Invite {
        /// The new member's permissions, by paths of directories from the root of the cell.
        grants: Vec<(Bytes, Level)>,
        /// The validity of the invitation, in seconds.
        lasts_secs: u64,
    },
    /// Revokes a member permanently. Needs an administrator.
    Revoke {
        /// Its name.
        name: Bytes,
        /// Even if some files are then on no client that others can reach.
        force: bool,
    },
    /// Lists the members. Needs an administrator.
    Members {},
    /// Drops a client permanently; its copies no longer count. Needs an administrator.
    Forget {
        /// The client.
        client: ClientId,
    },
    /// Adds an archive. Needs an administrator, as the three below do.
    AddArchive {
        /// Its number and location.
        info: ArchiveInfo,
    },
    /// Removes an archive; its contents no longer count.
    RemoveArchive {
        /// The archive.
        archive: ArchiveId,
    },
    /// Lists the archives.
    Archives {},
    /// Takes a step of a sweep.
    Sweep {
        /// The number of the sweep; 0 to begin one.
        number: u64,
        /// The step.
        step: SweepStep,
    },
    /// Lists leases with their holders. Needs an administrator.
    Leases {
        /// The maximum number of leases.
        limit: u32,
    },
    /// Lists the cells attached to this one, and asks whether the summary of this cell has changed.
    CellMounts {},
    /// Asks for the summary of what may be found in the cell.
    Summary {},
    /// Sent by a proxy: one of its clients has connected. The proxy may send messages for the state
    /// machine only on behalf of these clients.
    Introduce {
        /// The client's secret, as in `Join`: its number is the hash of it.
        secret: Bytes,
        /// The address at which other clients reach it, as text.
        listens: Option<Bytes>,
        /// The fingerprint of the certificate that the client presented to the proxy.
        certificate: Option<BlockHash>,
        /// As in `Join`.
        runs: StoreRuns,
    },
    /// Sent by a proxy: one of its clients has disconnected.
    Gone {
        /// The client.
        client: ClientId,
    },
    /// Sent by a client before it hangs up: it has seen a state that this cell never had.
    SawLater {
        /// The server generation in which it saw that.
        generation: Generation,
        /// The random instance number of that generation.
        instance: u128,
        /// The highest revision seen of that generation.
        revision: u64,
    },
    /// Sent by a proxy: the same of one of its clients.
    ProxiedSawLater {
        /// The client.
        client: ClientId,
        /// As in `SawLater`.
        generation: Generation,
        /// As in `SawLater`.
        instance: u128,
        /// As in `SawLater`.
        revision: u64,
    },
    /// Asks for records of the cell's store, in the order of their keys. Needs an administrator, as
    /// does the next.
    Copy {
        /// The key after which to begin; empty for the first.
        after: Bytes,
    },
    /// Asks for the records of the store that have changed.
    ChangedSince {
        /// The revision after which changes are wanted.
        after: u64,
    },
    /// Asks for a relayed connection to a client that the requester cannot reach. The first message
    /// of a member, and the last for the server: what follows `Met` is relayed.
    Meet {
        /// The other client.
        peer: ClientId,
    },
    /// Joins a rendezvous in response to `Called`. As `Meet`.
    Come {
        /// The rendezvous.
        rendezvous: Rendezvous,
    },
}
wire_enum!(Ask {
    1 => Join { secret, listens, cell, runs },
    2 => Observe {},
    3 => Mds { message },
    4 => Status {},
    5 => Search { query, limit },
    20 => Ping {},
    21 => Check {},
    40 => Enroll { secret, public_key, name },
    41 => Invite { grants, lasts_secs },
    42 => Revoke { name, force },
    43 => Members {},
    44 => Forget { client },
    60 => Introduce { secret, listens, certificate, runs },
    61 => Gone { client },
    62 => Meet { peer },
    63 => Come { rendezvous },
    80 => AddArchive { info },
    81 => RemoveArchive { archive },
    82 => Archives {},
    83 => Sweep { number, step },
    84 => Leases { limit },
    85 => CellMounts {},
    86 => Summary {},
    100 => SawLater { generation, instance, revision },
    101 => Copy { after },
    102 => ChangedSince { after },
    103 => ProxiedSawLater { client, generation, instance, revision },
});

/// A message from a metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To `Join`.
    Joined {
        /// The client's number.
        client: ClientId,
        /// The cell's number.
        cell: u64,
    },
    /// To `Observe`.
    Welcome {},
    /// The request was refused; the connection ends if it was the first message.
    Refused {
        /// The reason, for people.
        why: Bytes,
    },
    /// From the state machine.
    Mds {
        /// The message.
        message: Box<FromServer>,
    },
    /// All connected clients, sent after `Joined`; and each that joins later.
    Peers {
        /// Those of them that other clients can reach.
        peers: Vec<Peer>,
    },
    /// To `Status`.
    Status {
        /// The status of the cell.
        status: CellStatus,
    },
    /// To `Search`.
    Found {
        /// The matching files, by path.
        hits: Vec<Hit>,
        /// Whether these are all.
        complete: bool,
    },
    /// To anything: this server does not own the cell. The connection is of no use to a client.
    Standby {
        /// The owner's address, as text, if it is known.
        owner: Option<Bytes>,
    },
    /// To `Ping`.
    Pong {},
    /// To `Check`.
    Checked {
        /// The number of rnodes.
        rnodes: u64,
        /// The number of names in directories.
        names: u64,
        /// The number of problems.
        problem_count: u64,
        /// The first of them: each a keyword for its kind, and its location.
        problems: Vec<(Bytes, Bytes)>,
    },
    /// The request was denied; the connection ends if it was the first message.
    Denied {
        /// The reason.
        denial: Denial,
    },
    /// To `Enroll`.
    Enrolled {
        /// The certificate, with the authority's behind it, as PEM.
        chain: Bytes,
        /// The authority's, as PEM.
        authority: Bytes,
    },
    /// To `Invite`.
    Invited {
        /// The secret of the invitation.
        secret: Bytes,
    },
    /// To `Revoke`.
    Revoked {},
    /// To `Members`.
    Members {
        /// The members.
        members: Vec<MemberStatus>,
    },
    /// To `Forget`.
    Forgotten {
        /// The number of files that it had copies of.
        files: u64,
    },
    /// Revoked certificates; sent after `Joined` and whenever another is revoked.
    RevokedMembers {
        /// Their fingerprints.
        certificates: Vec<BlockHash>,
    },
    /// To `AddArchive`, `RemoveArchive` and `Archives`.
    Archives {
        /// The present archives.
        archives: Vec<ArchiveInfo>,
    },
    /// To `Leases`.
    Leases {
        /// The first of them, by inode number.
        leases: Vec<LeaseStatus>,
        /// The total number of leases.
        total: u64,
    },
    /// To `CellMounts`.
    CellMounts {
        /// The cell's number.
        cell: u64,
        /// A random number of the server's present run.
        instance: u64,
        /// The last revision that may have added something that can be found.
        added: u64,
        /// The paths of the mount points and their contents, those that the requester may see.
        cell_mounts: Vec<(Bytes, Bytes)>,
        /// Whether these are all.
        complete: bool,
    },
    /// To `Summary`.
    Summary {
        /// The random number of the server's present run.
        instance: u64,
        /// The revision that the summary is of.
        revision: u64,
        /// The summary; `None` if there is none at present, or the requester may not have it.
        summary: Option<Summary>,
    },
    /// To `Sweep`.
    Swept {
        /// The state of the sweep.
        swept: Swept,
    },
    /// To `Introduce`.
    Introduced {
        /// The client's number.
        client: ClientId,
    },
    /// To `Introduce`, or later: the proxied client is not admitted, or no longer.
    NotIntroduced {
        /// The client.
        client: ClientId,
        /// The reason.
        denial: Denial,
    },
    /// Another client wants to connect to this one, which is to send `Come` on a new connection.
    Called {
        /// The client that is called.
        client: ClientId,
        /// The rendezvous.
        rendezvous: Rendezvous,
    },
    /// To `Meet` and `Come`: from here on the connection is relayed to the other client.
    Met {},
    /// After `Joined`, and from a proxy whenever its own connection is a new one: the cell's history,
    /// for the client to compare with what it has seen. Messages of a later generation never come
    /// before it.
    Generations {
        /// The last generations of its server, oldest first, the present one last.
        generations: Vec<ServerGeneration>,
        /// The present revision.
        revision: u64,
    },
    /// To a client: the messages that follow are of this revision, or of earlier ones.
    Reached {
        /// The revision.
        revision: u64,
    },
    /// To `Copy`.
    Copied {
        /// Keys and values.
        records: Vec<(Bytes, Bytes)>,
        /// Whether there are no more.
        complete: bool,
        /// The present revision.
        revision: u64,
    },
    /// To `ChangedSince`.
    Changed {
        /// Keys, and their present values.
        records: Vec<(Bytes, Option<Bytes>)>,
        /// The revision up to which these are all changes.
        upto: u64,
        /// Whether `upto` is the present revision.
        complete: bool,
    },
}

impl Answer {
    /// The refusal of a request.
    #[must_use]
    pub fn refused(why: &str) -> Self {
        Self::Refused { why: Bytes(why.as_bytes().to_vec()) }
    }
}
wire_enum!(Answer {
    1 => Joined { client, cell },
    2 => Welcome {},
    3 => Refused { why },
    4 => Mds { message },
    5 => Peers { peers },
    6 => Status { status },
    7 => Found { hits, complete },
    20 => Standby { owner },
    21 => Pong {},
    22 => Checked { rnodes, names, problem_count, problems },
    40 => Denied { denial },
    41 => Enrolled { chain, authority },
    42 => Invited { secret },
    43 => Revoked {},
    44 => Members { members },
    45 => RevokedMembers { certificates },
    46 => Forgotten { files },
    60 => Introduced { client },
    61 => NotIntroduced { client, denial },
    62 => Called { client, rendezvous },
    63 => Met {},
    80 => Archives { archives },
    81 => Swept { swept },
    82 => Leases { leases, total },
    83 => CellMounts { cell, instance, added, cell_mounts, complete },
    84 => Summary { instance, revision, summary },
    100 => Generations { generations, revision },
    101 => Reached { revision },
    102 => Copied { records, complete, revision },
    103 => Changed { records, upto, complete },
});

/// The runs of a client's local store: each start of a client draws a number at random and keeps it
/// in the store, durably, before any server hears of it. So a store that was copied, or restored
/// from an older copy, does not know the last run that the server has seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreRuns {
    /// The last run that a server has accepted, and later ones of which that is not known.
    pub before: Vec<u64>,
    /// The present run; 0 if the client has no store.
    pub now: u64,
}
wire_struct!(StoreRuns { before, now });

impl StoreRuns {
    /// Returns true if the store can be the one whose last run was `last`.
    #[must_use]
    pub fn continue_from(&self, last: u64) -> bool {
        self.now == 0 || last == 0 || self.now == last || self.before.contains(&last)
    }
}

/// A generation of a cell's server: one run of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerGeneration {
    /// The number of the generation.
    pub generation: Generation,
    /// Drawn at random when it began.
    pub instance: u128,
    /// The last revision of the cell before it.
    pub began: u64,
}
wire_struct!(ServerGeneration { generation, instance, began });

/// The reason why a connection or a request is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denial {
    /// The invitation does not exist.
    #[error("unknown invitation: this cell has not issued it")]
    NoInvitation,
    /// The invitation has expired.
    #[error("the invitation has expired: ask an administrator for a new one")]
    Expired,
    /// The invitation was used already.
    #[error("the invitation was already used: ask an administrator for a new one")]
    Used,
    /// The name is invalid or taken, perhaps by a revoked member.
    #[error("the member name is invalid or already taken")]
    Name,
    /// No certificate, or one that no member has.
    #[error("permission denied: the certificate belongs to no member of this cell")]
    Stranger,
    /// The certificate was revoked.
    #[error("permission denied: the certificate was revoked")]
    Revoked,
    /// The request needs an administrator.
    #[error("permission denied: this needs an administrator of the cell")]
    NotAdmin,
    /// The server has no authority to give certificates with.
    #[error("this server cannot issue certificates: it was started without ca-key.pem")]
    NoAuthority,
    /// The client has fewer permissions than its proxy, whose cache all its clients can read.
    #[error(
        "permission denied: the client has fewer permissions than this proxy; connect to the \
        cell's own server"
    )]
    FewerPermissions,
    /// The client's local store has another past than the one that was used last.
    #[error(
        "the local store is a copy, or an older state, of a store that another mount has used \
        since. Mount the one that was used last; or mount this one with --adopt-store: it becomes \
        another client of the cell, and changes that it had not sent become conflicts"
    )]
    Copied,
}
wire_enum!(Denial {
    1 => NoInvitation,
    2 => Expired,
    3 => Used,
    4 => Name,
    5 => Stranger,
    6 => Revoked,
    7 => NotAdmin,
    8 => NoAuthority,
    9 => FewerPermissions,
    10 => Copied,
});

/// A member of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its name.
    pub name: Bytes,
    /// Its permissions.
    pub grants: Vec<Grant>,
    /// Whether it was revoked.
    pub revoked: bool,
}
wire_struct!(MemberStatus { name, grants, revoked });

/// A client and the address at which others reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The client.
    pub client: ClientId,
    /// Its address, as text.
    pub listens: Bytes,
}
wire_struct!(Peer { client, listens });

/// The status of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellStatus {
    /// The cell's number.
    pub cell: u64,
    /// The server's generation.
    pub generation: Generation,
    /// The number of transactions so far.
    pub revision: u64,
    /// Whether the server waits for clients to reclaim their leases.
    pub in_grace: bool,
    /// The duration of an epoch, in microseconds.
    pub epoch_micros: u64,
    /// All clients that the cell has ever had.
    pub clients: Vec<ClientStatus>,
    /// Whether the server's disk is full: changes wait until there is room.
    pub is_full: bool,
}
wire_struct!(CellStatus { cell, generation, revision, in_grace, epoch_micros, clients, is_full });

/// The status of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatus {
    /// The client.
    pub client: ClientId,
    /// Its last epoch.
    pub epoch: Epoch,
    /// Whether that epoch is still going on.
    pub live: bool,
    /// Whether it is connected.
    pub connected: bool,
    /// The address at which others reach it, as text.
    pub listens: Option<Bytes>,
    /// Leases to read that it holds.
    pub reads: u64,
    /// Leases to write that it holds.
    pub writes: u64,
    /// Messages from it since the server began; of a proxied client, those from its proxy.
    pub received: u64,
    /// Messages to it.
    pub sent: u64,
    /// Recalls of leases, of the messages sent.
    pub recalls: u64,
}
wire_struct!(ClientStatus {
    client,
    epoch,
    live,
    connected,
    listens,
    reads,
    writes,
    received,
    sent,
    recalls,
});

/// A lease that a client holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The client that holds it.
    pub client: ClientId,
    /// The rnode that it is on.
    pub rnode: RnodeId,
    /// The path of the rnode, from the root of the cell, if it has one.
    pub path: Option<Bytes>,
    /// The mode of the lease.
    pub mode: Mode,
}
wire_struct!(LeaseStatus { client, rnode, path, mode });

/// A file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The rnode.
    pub rnode: RnodeId,
    /// Its path from the root of the cell.
    pub path: Bytes,
}
wire_struct!(Hit { rnode, path });

/// A rendezvous of two clients that cannot reach each other: a random number drawn by the server,
/// so that only clients that were called can join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rendezvous(pub [u8; 16]);

impl Wire for Rendezvous {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "a rendezvous";
        let bytes = from.take(16, WHAT)?;
        bytes.try_into().map(Self).map_err(|_| WireError::Short { what: WHAT })
    }
}

/// The bytes of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockBytes(pub Vec<u8>);

impl Wire for BlockBytes {
    fn put(&self, out: &mut Vec<u8>) {
        weft_ringer::wire::put_bytes(&self.0, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = from.bytes(weft_ringer::STORED_MAX_BYTES as usize, "a block")?;
        Ok(Self(bytes.to_vec()))
    }
}

/// From one client to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToPeer {
    /// Asks for a block. A peer that knows its hash may have it.
    Fetch {
        /// The rnode that it belongs to.
        rnode: RnodeId,
        /// The hash of the block.
        hash: BlockHash,
    },
    /// Asks to make a copy of a file, and to keep it. Answered with `Working` any number of times
    /// and then `Held` or `No`.
    Hold {
        /// The file. The content that the server has of it when this comes is meant, or later
        /// content.
        rnode: RnodeId,
    },
}
wire_enum!(ToPeer { 1 => Fetch { rnode, hash }, 2 => Hold { rnode } });

/// The answer of a client to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromPeer {
    /// The block.
    Block {
        /// All its bytes.
        bytes: BlockBytes,
    },
    /// This client does not have the block.
    Absent {},
    /// The copy is being made.
    Working {},
    /// The copy is made: whole, checked, durable, and known to the server.
    Held {},
    /// There will be no copy here.
    No {
        /// Whether there is too little room.
        full: bool,
        /// The reason, for people.
        why: Bytes,
    },
}
wire_enum!(FromPeer {
    1 => Block { bytes },
    2 => Absent {},
    3 => Working {},
    4 => Held {},
    5 => No { full, why },
});
