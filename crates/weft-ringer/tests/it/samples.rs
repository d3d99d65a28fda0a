//! Messages of every kind, drawn from a seed.

use weft_block::Rng;
use weft_ringer::locks::{ClientLocks, FileLocks, Lock, LockClaim, LockStyle};
use weft_ringer::op::{Change, Logged, Make, Op};
use weft_ringer::wire::{
    ArchiveInfo, Claim, Enclosed, Entry, FromServer, Kept, KeptOwner, KeptVersion, Listed, Peeked,
    Refused, RemovedFile, Reply, Request, RequestBody, SnapshotEntry, ToServer, Welcome,
};
use weft_ringer::{
    ArchiveId, Archiving, Block, BlockHash, Body, Bytes, ClientId, Cookie, Dirent, Epoch, FileId,
    Generation, Holders, Incarnation, Mode, Name, Policy, Refusal, RequestId, Rnode, RnodeId, Seq,
    Text, Token, Version,
};
use weft_vfs::{FileKind, Time};

fn number(rng: &mut Rng) -> u64 {
    // All lengths alike.
    rng.next_u64() >> rng.below(64)
}

fn small(rng: &mut Rng) -> u32 {
    (rng.next_u64() >> (32 + rng.below(32))) as u32
}

fn perm(rng: &mut Rng) -> u16 {
    (rng.next_u64() >> 52) as u16
}

fn kept(rng: &mut Rng) -> Kept {
    Kept {
        perm: perm(rng),
        mtime: time(rng),
        size_bytes: number(rng),
        block_bytes: small(rng),
        blocks: list(rng, 5, |rng| (small(rng), block(rng))).into_iter().collect(),
    }
}

fn flip(rng: &mut Rng) -> bool {
    rng.below(2) == 0
}

fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    flip(rng).then(|| make(rng))
}

fn list<T>(rng: &mut Rng, most: u64, mut make: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..rng.below(most + 1)).map(|_| make(rng)).collect()
}

fn version(rng: &mut Rng) -> Version {
    Version { count: number(rng), epoch: Epoch(number(rng)), seq: Seq(number(rng)) }
}

fn id(rng: &mut Rng) -> RnodeId {
    RnodeId(number(rng).max(1))
}

fn bytes(rng: &mut Rng) -> Bytes {
    let mut bytes = vec![0; rng.index(40)];
    rng.fill(&mut bytes);
    Bytes(bytes)
}

fn text(rng: &mut Rng) -> Text {
    let letters: String =
        (0..=rng.index(20)).map(|_| ['a', ' ', 'é', '\n'][rng.index(4)]).collect();
    Text::of(letters.into_bytes()).expect("a text")
}

pub fn name(rng: &mut Rng) -> Name {
    loop {
        let mut bytes = vec![0; 1 + rng.index(255)];
        rng.fill(&mut bytes);
        bytes.iter_mut().filter(|b| **b == b'/' || **b == 0).for_each(|b| *b = b'x');
        if let Ok(name) = Name::new(&bytes) {
            return name;
        }
    }
}

fn time(rng: &mut Rng) -> Time {
    Time { secs: number(rng).cast_signed(), nanos: small(rng) % 1_000_000_000 }
}

fn kind(rng: &mut Rng) -> FileKind {
    const KINDS: [FileKind; 7] = [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::BlockDevice,
        FileKind::CharDevice,
        FileKind::Fifo,
        FileKind::Socket,
    ];
    KINDS[rng.index(KINDS.len())]
}

fn mode(rng: &mut Rng) -> Mode {
    [Mode::Hold, Mode::Read, Mode::Write][rng.index(3)]
}

fn block(rng: &mut Rng) -> Block {
    let mut hash = [0; 32];
    rng.fill(&mut hash);
    Block { hash: BlockHash(hash), len_bytes: small(rng) }
}

fn dirent(rng: &mut Rng) -> Dirent {
    Dirent { id: id(rng), kind: kind(rng), cookie: Cookie(number(rng)) }
}

fn refused(rng: &mut Rng) -> Refused {
    Refused { seq: Seq(number(rng)), why: Refusal::NotEmpty }
}

pub fn rnode(rng: &mut Rng) -> Rnode {
    let body = match rng.below(4) {
        0 => Body::File {
            size_bytes: number(rng),
            block_bytes: small(rng),
            blocks: list(rng, 5, |rng| (small(rng), block(rng))).into_iter().collect(),
            content: version(rng),
            kept: version(rng),
        },
        1 => Body::Directory { parent: id(rng), entries: number(rng), last: Cookie(number(rng)) },
        2 => Body::Symlink { target: bytes(rng) },
        _ => Body::Special { kind: kind(rng), rdev: small(rng) },
    };
    Rnode {
        id: id(rng),
        version: version(rng),
        perm: perm(rng),
        nlink: small(rng),
        uid: small(rng),
        gid: small(rng),
        atime: time(rng),
        mtime: time(rng),
        ctime: time(rng),
        btime: time(rng),
        xattrs: list(rng, 3, |rng| (bytes(rng), bytes(rng))).into_iter().collect(),
        body,
    }
}

fn op(rng: &mut Rng) -> Op {
    match rng.below(10) {
        0 => Op::Create {
            parent: id(rng),
            name: name(rng),
            id: id(rng),
            make: match rng.below(5) {
                4 => {
                    let mut file = [0; 16];
                    rng.fill(&mut file);
                    Make::EncryptedFile { block_bytes: small(rng), file: FileId(file) }
                }
                0 => Make::File { block_bytes: small(rng) },
                1 => Make::Directory {},
                2 => Make::Symlink { target: bytes(rng) },
                _ => Make::Special { kind: kind(rng), rdev: small(rng) },
            },
            perm: perm(rng),
            uid: small(rng),
            gid: small(rng),
        },
        1 => Op::Link { id: id(rng), parent: id(rng), name: name(rng) },
        2 => Op::Unlink { parent: id(rng), name: name(rng) },
        3 => Op::Rmdir { parent: id(rng), name: name(rng) },
        4 => Op::Rename {
            parent: id(rng),
            name: name(rng),
            new_parent: id(rng),
            new_name: name(rng),
            flags: small(rng),
        },
        5 => Op::SetAttr {
            id: id(rng),
            change: Change {
                perm: maybe(rng, perm),
                uid: maybe(rng, small),
                gid: maybe(rng, small),
                size_bytes: maybe(rng, number),
                atime: maybe(rng, time),
                mtime: maybe(rng, time),
                ctime: maybe(rng, time),
                kill_privileges: flip(rng),
            },
        },
        6 => Op::SetXattr { id: id(rng), name: bytes(rng), value: bytes(rng) },
        7 => Op::RemoveXattr { id: id(rng), name: bytes(rng) },
        8 => Op::Keep { id: id(rng) },
        _ => Op::Write {
            id: id(rng),
            blocks: list(rng, 4, |rng| (small(rng), maybe(rng, block))),
            end_bytes: number(rng),
            kill_privileges: flip(rng),
        },
    }
}

fn logged(rng: &mut Rng) -> Logged {
    Logged {
        seq: Seq(number(rng)),
        epoch: Epoch(number(rng)),
        stamp: time(rng),
        op: op(rng),
        base: list(rng, 3, |rng| (id(rng), version(rng))),
    }
}

fn lock(rng: &mut Rng) -> Lock {
    Lock {
        style: if flip(rng) { LockStyle::Posix } else { LockStyle::Flock },
        owner: number(rng),
        exclusive: flip(rng),
        first: number(rng),
        last: number(rng),
        pid: small(rng),
    }
}

fn file_locks(rng: &mut Rng) -> FileLocks {
    FileLocks { held: list(rng, 3, lock), waits: list(rng, 3, lock) }
}

pub fn to_server(rng: &mut Rng) -> ToServer {
    let body = request(rng);
    ToServer {
        client: ClientId(number(rng)),
        epoch: Epoch(number(rng)),
        generation: Generation(small(rng)),
        request: Request { id: RequestId(number(rng)), body },
    }
}

fn request(rng: &mut Rng) -> RequestBody {
    match rng.below(30) {
        19 => RequestBody::HelloProxy { incarnation: Incarnation(number(rng)) },
        20 => RequestBody::Enter {
            client: ClientId(number(rng)),
            incarnation: Incarnation(number(rng)),
        },
        21 => RequestBody::Relay {
            client: ClientId(number(rng)),
            epoch: Epoch(number(rng)),
            id: RequestId(number(rng)),
            body: Enclosed::new(&request(rng)),
        },
        0 => RequestBody::Hello { incarnation: Incarnation(number(rng)) },
        1 => RequestBody::Renew {},
        2 => RequestBody::Reclaim {
            claims: list(rng, 5, |rng| Claim {
                rnode: id(rng),
                mode: mode(rng),
                token: Token(number(rng)),
            }),
            last: flip(rng),
        },
        3 => RequestBody::Acquire { rnode: id(rng), mode: mode(rng) },
        28 => RequestBody::AcquireNamed { dir: id(rng), name: name(rng) },
        4 => RequestBody::Lookup { dir: id(rng), name: name(rng) },
        5 => RequestBody::List { dir: id(rng), after: Cookie(number(rng)) },
        6 => RequestBody::Commit { prev: Seq(number(rng)), ops: list(rng, 4, logged) },
        7 => RequestBody::Lower { rnode: id(rng), token: Token(number(rng)), to: maybe(rng, mode) },
        8 => RequestBody::Peek { rnode: id(rng) },
        9 => RequestBody::Hold { rnode: id(rng), content: version(rng) },
        10 => RequestBody::Release { rnode: id(rng), content: version(rng), others: small(rng) },
        11 => RequestBody::Versions { rnode: id(rng) },
        12 => RequestBody::OldVersion { rnode: id(rng), number: number(rng) },
        13 => RequestBody::Removed { dir: id(rng) },
        23 => RequestBody::Snapshot { dir: id(rng), name: name(rng), mark: number(rng) },
        24 => RequestBody::RemoveSnapshot { dir: id(rng), name: name(rng) },
        25 => RequestBody::Snapshots { dir: id(rng) },
        22 => RequestBody::Text { rnode: id(rng), content: version(rng), text: text(rng) },
        26 => RequestBody::Archives {},
        27 => RequestBody::Archived {
            rnode: id(rng),
            content: version(rng),
            archive: ArchiveId(number(rng)),
            era: number(rng),
        },
        29 => RequestBody::ArchiveLacks {
            rnode: id(rng),
            archive: ArchiveId(number(rng)),
            hash: block(rng).hash,
        },
        14 => RequestBody::AcquireLocks { rnode: id(rng) },
        15 => RequestBody::LowerLocks {
            rnode: id(rng),
            token: Token(number(rng)),
            locks: file_locks(rng),
        },
        17 => RequestBody::TellLocks { rnode: id(rng), locks: file_locks(rng) },
        16 => RequestBody::ReclaimLocks {
            claims: list(rng, 3, |rng| LockClaim {
                rnode: id(rng),
                token: maybe(rng, |rng| Token(number(rng))),
                locks: file_locks(rng),
            }),
        },
        _ => RequestBody::Needed { rnode: id(rng), hashes: list(rng, 4, |rng| block(rng).hash) },
    }
}

fn reply(rng: &mut Rng) -> Reply {
    match rng.below(21) {
        0 => Reply::Welcome {
            welcome: Welcome {
                epoch: Epoch(number(rng)),
                lasts_micros: number(rng),
                slot: small(rng),
                last_count: small(rng),
                applied: Seq(number(rng)),
                refused: maybe(rng, refused),
                reclaim: flip(rng),
            },
        },
        1 => Reply::Renewed {},
        2 => Reply::Reclaimed {},
        3 => Reply::Granted {
            rnode: Box::new(rnode(rng)),
            holders: Holders {
                clients: list(rng, 3, |rng| (ClientId(number(rng)), version(rng)))
                    .into_iter()
                    .collect(),
                copies: list(rng, 3, |rng| (ClientId(number(rng)), version(rng)))
                    .into_iter()
                    .collect(),
            },
            mode: mode(rng),
            token: Token(number(rng)),
        },
        4 => Reply::Found { dirent: maybe(rng, dirent), token: Token(number(rng)) },
        5 => Reply::Listed {
            listed: Listed {
                entries: list(rng, 4, |rng| Entry { name: name(rng), dirent: dirent(rng) }),
                end: flip(rng),
                token: Token(number(rng)),
            },
        },
        6 => Reply::Committed { applied: Seq(number(rng)), refused: maybe(rng, refused) },
        7 => Reply::Broken { applied: Seq(number(rng)), refused: maybe(rng, refused) },
        8 => Reply::NoSession {},
        9 => Reply::Peeked {
            peeked: Box::new(Peeked {
                rnode: rnode(rng),
                holders: Holders::default(),
                archived: list(rng, 3, |rng| (ArchiveId(number(rng)), version(rng)))
                    .into_iter()
                    .collect(),
                policy: Policy {
                    copies: small(rng),
                    fsync: small(rng),
                    archive: [Archiving::No, Archiving::Later, Archiving::Fsync][rng.index(3)],
                    versions: small(rng),
                    keep_secs: number(rng),
                    every_secs: number(rng),
                    text_bytes: number(rng),
                },
                told: maybe(rng, version),
            }),
        },
        10 => Reply::Held {},
        18 => Reply::Snapshots {
            snapshots: list(rng, 3, |rng| SnapshotEntry {
                name: name(rng),
                root: id(rng),
                at: time(rng),
                names: number(rng),
            }),
        },
        17 => Reply::Archives {
            era: number(rng),
            archives: list(rng, 3, |rng| ArchiveInfo {
                archive: ArchiveId(number(rng)),
                url: bytes(rng),
            }),
        },
        16 => Reply::Told {},
        12 => Reply::Versions {
            versions: list(rng, 3, |rng| KeptVersion {
                number: number(rng),
                mtime: time(rng),
                size_bytes: number(rng),
            }),
        },
        13 => Reply::OldVersion { kept: Box::new(kept(rng)) },
        19 => Reply::OwnedVersion {
            kept: Box::new(kept(rng)),
            owner: KeptOwner { uid: small(rng), gid: small(rng) },
        },
        14 => Reply::Removed {
            files: list(rng, 3, |rng| RemovedFile {
                rnode: id(rng),
                path: bytes(rng),
                at: time(rng),
                size_bytes: number(rng),
            }),
        },
        11 => Reply::Needed { hashes: list(rng, 4, |rng| block(rng).hash) },
        15 => Reply::LocksGranted {
            token: Token(number(rng)),
            others: list(rng, 3, |rng| ClientLocks {
                client: ClientId(number(rng)),
                locks: file_locks(rng),
            }),
        },
        _ => Reply::No { why: Refusal::Stale },
    }
}

pub fn from_server(rng: &mut Rng) -> FromServer {
    if flip(rng) {
        let (generation, id) = (Generation(small(rng)), RequestId(number(rng)));
        FromServer::Reply { generation, id, reply: reply(rng) }
    } else if rng.below(4) == 0 {
        FromServer::Relayed {
            generation: Generation(small(rng)),
            client: ClientId(number(rng)),
            id: RequestId(number(rng)),
            reply: reply(rng),
        }
    } else if rng.below(4) == 0 {
        FromServer::RelayedRecallLocks {
            generation: Generation(small(rng)),
            client: ClientId(number(rng)),
            epoch: Epoch(number(rng)),
            rnode: id(rng),
            token: Token(number(rng)),
        }
    } else if rng.below(4) == 0 {
        FromServer::RelayedLocksChanged {
            generation: Generation(small(rng)),
            client: ClientId(number(rng)),
            epoch: Epoch(number(rng)),
            rnode: id(rng),
        }
    } else if flip(rng) {
        FromServer::LocksChanged {
            generation: Generation(small(rng)),
            epoch: Epoch(number(rng)),
            rnode: id(rng),
        }
    } else if flip(rng) {
        FromServer::RecallLocks {
            generation: Generation(small(rng)),
            epoch: Epoch(number(rng)),
            rnode: id(rng),
            token: Token(number(rng)),
        }
    } else {
        FromServer::Recall {
            generation: Generation(small(rng)),
            epoch: Epoch(number(rng)),
            rnode: id(rng),
            token: Token(number(rng)),
            to: maybe(rng, mode),
        }
    }
}
