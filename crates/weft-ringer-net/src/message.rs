//! What is said on connections around the messages of client and metadata server, and between
//! clients.

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

/// To a metadata server. The first message on a connection is `Join` or `Observe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A client of the cell.
    Join {
        /// What it chose at random when its local store was made; its number is the hash of it.
        secret: Bytes,
        /// Where other clients reach it, as text.
        listens: Option<Bytes>,
        /// The cell that its local store belongs to, 0 if it is new.
        cell: u64,
    },
    /// Somebody who only looks.
    Observe {},
    /// For the state machine. Only of a client.
    Mds {
        /// The message.
        message: Box<ToServer>,
    },
    /// How is the cell?
    Status {},
    /// Which files fit?
    Search {
        /// The query, as text.
        query: Bytes,
        /// How many are wanted.
        limit: u32,
    },
    /// Is somebody there?
    Ping {},
    /// Do the cell's records fit together? The server does nothing else meanwhile.
    Check {},
    /// Asks for a certificate, by an invitation. The first and only message of who has none.
    Enroll {
        /// The secret of the invitation.
        secret: Bytes,
        /// An Ed25519 key.
        public_key: Bytes,
        /// The name that the member wants.
        name: Bytes,
    },
    /// Makes an invitation. Needs an administrator.
    Invite {
        /// What who joins may do, by paths of directories from the root of the cell.
        grants: Vec<(Bytes, Level)>,
        /// For how long it is good, in seconds.
        lasts_secs: u64,
    },
    /// Sends a member away for good. Needs an administrator.
    Revoke {
        /// Its name.
        name: Bytes,
    },
    /// Lists the members. Needs an administrator.
    Members {},
    /// A client will not come back: it counts no more as one that has copies. Needs an administrator.
    Forget {
        /// Which.
        client: ClientId,
    },
    /// Adds an archive. Needs an administrator, as the three below do.
    AddArchive {
        /// Its number, and where it is.
        info: ArchiveInfo,
    },
    /// Counts on an archive no more.
    RemoveArchive {
        /// Which.
        archive: ArchiveId,
    },
    /// Which archives are there?
    Archives {},
    /// Takes a step of a sweep.
    Sweep {
        /// Which sweep; 0 to begin one.
        number: u64,
        /// The step.
        step: SweepStep,
    },
    /// Lists leases with their holders. Needs an administrator.
    Leases {
        /// How many are wanted.
        limit: u32,
    },
    /// Which cells are attached, and is a summary of this one as it was?
    Junctions {},
    /// What may be found in the cell?
    Summary {},
    /// Of a front: one of its clients has come. For the state machine it speaks of those alone.
    Bring {
        /// The client's secret, as in `Join`: its number is the hash of it.
        secret: Bytes,
        /// Where other clients reach it, as text.
        listens: Option<Bytes>,
        /// The fingerprint of the certificate that it has shown the front.
        certificate: Option<BlockHash>,
    },
    /// Of a front: one of its clients has gone.
    Gone {
        /// Which.
        client: ClientId,
    },
    /// Of a client, before it hangs up: it has seen what this cell never was.
    SawLater {
        /// Which life of a server.
        generation: Generation,
        /// Its number at random.
        instance: u128,
        /// How far that was.
        revision: u64,
    },
    /// Asks for records of the cell's store, in the order of their keys. Of an administrator, as the next.
    Copy {
        /// Behind which key; empty for the first.
        after: Bytes,
    },
    /// Asks what has changed in the store.
    ChangedSince {
        /// After which revision.
        after: u64,
    },
    /// Wants to talk with a client that it does not reach. The first message of a member, and the last
    /// for the server: what follows `Met` is passed on.
    Meet {
        /// Which.
        peer: ClientId,
    },
    /// Comes to a meeting that it was called to. As `Meet`.
    Come {
        /// Which meeting.
        meeting: Meeting,
    },
}
wire_enum!(Ask {
    1 => Join { secret, listens, cell },
    2 => Observe {},
    3 => Mds { message },
    4 => Status {},
    5 => Search { query, limit },
    20 => Ping {},
    21 => Check {},
    40 => Enroll { secret, public_key, name },
    41 => Invite { grants, lasts_secs },
    42 => Revoke { name },
    43 => Members {},
    44 => Forget { client },
    60 => Bring { secret, listens, certificate },
    61 => Gone { client },
    62 => Meet { peer },
    63 => Come { meeting },
    80 => AddArchive { info },
    81 => RemoveArchive { archive },
    82 => Archives {},
    83 => Sweep { number, step },
    84 => Leases { limit },
    85 => Junctions {},
    86 => Summary {},
    100 => SawLater { generation, instance, revision },
    101 => Copy { after },
    102 => ChangedSince { after },
});

/// From a metadata server.
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
    /// No; the connection ends if it was the first message.
    Refused {
        /// Why, for people.
        why: Bytes,
    },
    /// From the state machine.
    Mds {
        /// The message.
        message: Box<FromServer>,
    },
    /// All clients that are connected, after `Joined`; and each that joins later.
    Peers {
        /// Those of them that can be reached.
        peers: Vec<Peer>,
    },
    /// To `Status`.
    Status {
        /// How it is.
        status: CellStatus,
    },
    /// To `Search`.
    Found {
        /// What fits, by path.
        hits: Vec<Hit>,
        /// Whether that is all.
        complete: bool,
    },
    /// To anything: this server does not own the cell. The connection is of no use to a client.
    Standby {
        /// Where the owner is reached, as text, as far as it is known.
        owner: Option<Bytes>,
    },
    /// To `Ping`.
    Pong {},
    /// To `Check`.
    Checked {
        /// Rnodes.
        rnodes: u64,
        /// Names in directories.
        names: u64,
        /// How many problems there are.
        problem_count: u64,
        /// The first of them: a word for what is wrong, and where.
        problems: Vec<(Bytes, Bytes)>,
    },
    /// No, for this reason; the connection ends if it was the first message.
    Denied {
        /// Why.
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
        /// They.
        members: Vec<MemberStatus>,
    },
    /// To `Forget`.
    Forgotten {
        /// How many files it had copies of.
        files: u64,
    },
    /// Certificates that are good no more; comes after `Joined` and whenever there is one more.
    Outcasts {
        /// Their fingerprints.
        certificates: Vec<BlockHash>,
    },
    /// To `AddArchive`, `RemoveArchive` and `Archives`.
    Archives {
        /// Those that there are now.
        archives: Vec<ArchiveInfo>,
    },
    /// To `Leases`.
    Leases {
        /// The first of them, by inode number.
        leases: Vec<LeaseStatus>,
        /// How many there are.
        total: u64,
    },
    /// To `Junctions`.
    Junctions {
        /// The cell's number.
        cell: u64,
        /// The server's present life, at random.
        life: u64,
        /// The last revision that may have added something to find.
        added: u64,
        /// The paths of junctions, and what they say, as far as who asks may know of them.
        junctions: Vec<(Bytes, Bytes)>,
        /// Whether these are all.
        complete: bool,
    },
    /// To `Summary`.
    Summary {
        /// The server's present life.
        life: u64,
        /// The revision that it is of.
        revision: u64,
        /// It; `None` if there is none for now, or not for who asks.
        summary: Option<Summary>,
    },
    /// To `Sweep`.
    Swept {
        /// How it stands.
        swept: Swept,
    },
    /// To `Bring`.
    Brought {
        /// The client's number.
        client: ClientId,
    },
    /// To `Bring`, or later: that client may not come, or no more.
    NotBrought {
        /// Which.
        client: ClientId,
        /// Why.
        denial: Denial,
    },
    /// Somebody wants to talk with a client: it is to say `Come` on a new connection.
    Called {
        /// Which client.
        client: ClientId,
        /// To which meeting.
        meeting: Meeting,
    },
    /// To `Meet` and `Come`: what is said from here on is to the other client, and from it.
    Met {},
    /// After `Joined`: the cell's past, for the client to compare with what it has seen.
    Lives {
        /// The last lives of its servers, this one's at the end.
        lives: Vec<Life>,
        /// The present revision.
        revision: u64,
    },
    /// To a client: what comes is of this revision, or of earlier ones.
    Reached {
        /// Which.
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
        /// Keys, and what they have now.
        records: Vec<(Bytes, Option<Bytes>)>,
        /// These are all up to this revision.
        upto: u64,
        /// Whether that is the present one.
        complete: bool,
    },
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
    45 => Outcasts { certificates },
    46 => Forgotten { files },
    60 => Brought { client },
    61 => NotBrought { client, denial },
    62 => Called { client, meeting },
    63 => Met {},
    80 => Archives { archives },
    81 => Swept { swept },
    82 => Leases { leases, total },
    83 => Junctions { cell, life, added, junctions, complete },
    84 => Summary { life, revision, summary },
    100 => Lives { lives, revision },
    101 => Reached { revision },
    102 => Copied { records, complete, revision },
    103 => Changed { records, upto, complete },
});

/// A life of a server of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Which.
    pub generation: Generation,
    /// Drawn at random when it began.
    pub instance: u128,
    /// The last revision of the cell before it.
    pub began: u64,
}
wire_struct!(Life { generation, instance, began });

/// Why somebody is not let in, or may not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denial {
    /// No such invitation.
    #[error("the invitation is not one of this cell")]
    NoInvitation,
    /// Too late.
    #[error("the invitation has expired")]
    Expired,
    /// Somebody has joined by it.
    #[error("the invitation was used already")]
    Used,
    /// Not a name, or one that is taken, perhaps by who was sent away.
    #[error("a member cannot have that name, or another has it")]
    Name,
    /// No certificate, or one that no member has.
    #[error("the certificate is not that of a member of this cell")]
    Stranger,
    /// Sent away.
    #[error("the certificate was revoked")]
    Revoked,
    /// It needs an administrator.
    #[error("permission denied: this needs an administrator of the cell")]
    NotAdmin,
    /// The server has no authority to give certificates with.
    #[error("this server cannot give certificates: it was started without its authority's key")]
    NoAuthority,
    /// What a front has read, its clients have read.
    #[error("who may do less than a front may is not served by it: go to the cell's own server")]
    Less,
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
    9 => Less,
});

/// A member of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its name.
    pub name: Bytes,
    /// What it may do.
    pub grants: Vec<Grant>,
    /// Whether it was sent away.
    pub revoked: bool,
}
wire_struct!(MemberStatus { name, grants, revoked });

/// A client that others reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Which.
    pub client: ClientId,
    /// Where, as text.
    pub listens: Bytes,
}
wire_struct!(Peer { client, listens });

/// How a cell is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellStatus {
    /// The cell's number.
    pub cell: u64,
    /// Which life of the server this is.
    pub generation: Generation,
    /// Transactions so far.
    pub revision: u64,
    /// Whether the server waits for clients to tell what they hold.
    pub in_grace: bool,
    /// How long an epoch lasts, in microseconds.
    pub epoch_micros: u64,
    /// Every client that was ever here.
    pub clients: Vec<ClientStatus>,
}
wire_struct!(CellStatus { cell, generation, revision, in_grace, epoch_micros, clients });

/// How a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatus {
    /// Which.
    pub client: ClientId,
    /// Its last epoch.
    pub epoch: Epoch,
    /// Whether that goes on.
    pub live: bool,
    /// Whether there is a connection.
    pub connected: bool,
    /// Where others reach it, as text.
    pub listens: Option<Bytes>,
    /// Leases to read that it holds.
    pub reads: u64,
    /// Leases to write that it holds.
    pub writes: u64,
    /// Messages from it since the server began; of one that a front has, the front's.
    pub received: u64,
    /// Messages to it.
    pub sent: u64,
    /// Leases asked back, of those.
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
    /// Who holds it.
    pub client: ClientId,
    /// On what.
    pub rnode: RnodeId,
    /// The path of that, from the root of the cell, if it has one.
    pub path: Option<Bytes>,
    /// How much.
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

/// A meeting of two clients that do not reach each other: drawn at random by the server, so that
/// nobody comes who was not called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Meeting(pub [u8; 16]);

impl Wire for Meeting {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "a meeting";
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
    /// Asks for a block. Who knows its hash may have it.
    Fetch {
        /// Of which rnode.
        rnode: RnodeId,
        /// Which.
        hash: BlockHash,
    },
    /// Asks to make a copy of a file, and to keep it. Answered with `Working` any number of times
    /// and then `Held` or `No`.
    Hold {
        /// Which file. The content that the server has of it when this comes is meant, or a later.
        rnode: RnodeId,
    },
}
wire_enum!(ToPeer { 1 => Fetch { rnode, hash }, 2 => Hold { rnode } });

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromPeer {
    /// The block.
    Block {
        /// All its bytes.
        bytes: BlockBytes,
    },
    /// It is not here.
    Absent {},
    /// The copy is being made.
    Working {},
    /// The copy is made: whole, checked, durable, and known to the server.
    Held {},
    /// There will be no copy here.
    No {
        /// Whether it is for want of room.
        full: bool,
        /// Why, for people.
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
