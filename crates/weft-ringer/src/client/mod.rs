//! The client: a state machine without clock and without I/O, like the [server](crate::mds).
//!
//! [`Client::handle`] takes a moment and an event, and returns what to do in this order: append to
//! the journal, send, answer calls. The calls of a front come as events too; one that finds what it
//! needs under leases is answered in the same step, and costs no message.
//!
//! Invariants, beyond those of the cache (`cache`):
//! - Nothing is answered after the epoch's end by this client's clock.
//! - A lease is lowered when every change under it has been carried out by the server, and before
//!   the server is told.
//! - Leases that a call needs together are kept in the order of their rnodes' numbers: one that waits for a
//!   lease has *pinned* those it needs that have smaller numbers, and no others. So no clients wait for each
//!   other in a circle, and none take leases from each other for ever (`calls::Pins`).
//! - A change is in the journal before its call is answered.
//!
//! Those of blocks that are being written are in `open`.

mod ahead;
mod cache;
mod calls;
mod leases;
mod locks;
mod log;
mod open;
mod session;

use std::collections::BTreeMap;

use weft_vfs::Time;

use self::ahead::Ahead;
use self::cache::Cache;
use self::calls::Waiting;
use self::locks::Locks;
use self::log::Log;
pub use self::open::{LeftOpen, Redo, Written, left_open, naming};
use self::session::Session;
use crate::encryption::Encryption;
use crate::error::Refusal;
use crate::locks::{Lock, LockStyle};
use crate::op::{Logged, Op};
use crate::rnode::{Block, Dirent, Holders, Name, Rnode};
use crate::types::{
    BlockHash, ClientId, Epoch, Incarnation, Mode, Moment, RequestId, RnodeId, Seq, Token, Version,
};
use crate::wire::{Entry, FromServer, Reply, Request, RequestBody, ToServer};

/// What can be set.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// After how long a request that was not answered is sent again, in microseconds.
    pub retry_micros: u64,
    /// How long a change may wait for others before it is sent, in microseconds: what a crash of
    /// this machine can keep from the others for a while.
    pub flush_micros: u64,
    /// Changes in one message.
    pub batch: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { retry_micros: 1_000_000, flush_micros: 1_000_000, batch: 256 }
    }
}

/// The number that a front gave a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What a front wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// What is `name` in `dir`?
    Lookup {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Name,
    },
    /// The attributes and the block map of an rnode.
    Get {
        /// Which.
        id: RnodeId,
    },
    /// All names of a directory, in the order of their cookies.
    List {
        /// The directory.
        dir: RnodeId,
    },
    /// A change. The `id` of [`Op::Create`] is filled in.
    Apply {
        /// The change.
        op: Op,
        /// It is refused with [`Refusal::Busy`] unless this rnode has this version: for what was
        /// worked out from a state read before.
        if_version: Option<(RnodeId, Version)>,
    },
    /// A write of which some is in open blocks. They are named as the blocks of other writes are; an
    /// open block that is named anew is opened by that.
    Write {
        /// The file.
        id: RnodeId,
        /// It is refused with [`Refusal::Busy`] unless the file has this version.
        version: Version,
        /// As of [`Op::Write`].
        blocks: Vec<(u32, Option<Block>)>,
        /// As of [`Op::Write`].
        end_bytes: u64,
        /// What is written into open blocks.
        redo: Vec<Redo>,
        /// How the file is encrypted, if it is: as `redo` is then.
        encryption: Option<Encryption>,
    },
    /// Waits until every change up to now is with the server.
    Sync,
    /// Locks part of a file.
    Lock {
        /// Which file.
        id: RnodeId,
        /// The lock.
        lock: Lock,
        /// Whether the call waits while others are in the way; else it is refused with
        /// [`Refusal::WouldBlock`].
        wait: bool,
    },
    /// Gives up what an owner has locked. Done at once, and answered when others can lock it, or cannot be
    /// told for some time.
    Unlock {
        /// Which file.
        id: RnodeId,
        /// The kind of lock.
        style: LockStyle,
        /// Whose.
        owner: u64,
        /// The first byte.
        first: u64,
        /// The last byte.
        last: u64,
    },
    /// Who is in the way of a lock?
    FindLock {
        /// Which file.
        id: RnodeId,
        /// The lock.
        lock: Lock,
    },
    /// Gives up the lease on an rnode, if nothing is under way on it.
    Evict {
        /// Which.
        id: RnodeId,
    },
    /// Asks the server something that may be asked twice, and has to do with no lease.
    Ask {
        /// What.
        body: RequestBody,
    },
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Of `Lookup`.
    Found(Option<Dirent>),
    /// Of `Get`.
    Rnode(Box<Rnode>),
    /// Of `List`.
    Names(Vec<Entry>),
    /// Of `Apply`: done; the rnode that was made, removed or renamed, if that was it.
    Done(Option<RnodeId>),
    /// Of `Sync`, `Evict`, `Lock` and `Unlock`.
    Finished,
    /// Of `Ask`.
    Answered(Box<Reply>),
    /// Of `FindLock`: one that is in the way, and whether it is another client's.
    InTheWay(Option<(Lock, bool)>),
    /// Of any: no.
    Refused(Refusal),
}

/// What a journal holds, record after record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalRecord {
    /// A change was made.
    Made {
        /// Which.
        logged: Logged,
    },
    /// Every change up to this one has had its turn at the server.
    Applied {
        /// The last of them.
        seq: Seq,
    },
    /// A change was given up: it is a conflict.
    GivenUp {
        /// Which.
        seq: Seq,
    },
    /// A change of an earlier epoch was made again on another state, which it goes with as well. It
    /// takes the place of the one with the same number.
    Remade {
        /// As it is now.
        logged: Logged,
    },
    /// A write was made, some of it into open blocks.
    Wrote {
        /// The change.
        logged: Logged,
        /// The one that it takes the place of.
        replaces: Option<Seq>,
        /// What was written into open blocks.
        redo: Vec<Redo>,
    },
    /// A write was made to an encrypted file, some of it into open blocks.
    WroteEncrypted {
        /// As of `Wrote`.
        logged: Logged,
        /// As of `Wrote`.
        replaces: Option<Seq>,
        /// The same, with encrypted data.
        redo: Vec<Redo>,
        /// How the file is encrypted.
        encryption: Encryption,
    },
    /// An open block is stored under its hash: changes that name it name that.
    Sealed {
        /// The block.
        name: BlockHash,
        /// Its hash.
        hash: BlockHash,
    },
}
crate::wire::wire_enum!(JournalRecord {
    1 => Made { logged },
    2 => Applied { seq },
    3 => GivenUp { seq },
    4 => Remade { logged },
    5 => Wrote { logged, replaces, redo },
    6 => Sealed { name, hash },
    7 => WroteEncrypted { logged, replaces, redo, encryption },
});

/// A change that did not reach the server before others changed the same things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The change.
    pub logged: Logged,
    /// Why it cannot be carried out now.
    pub why: Refusal,
}
crate::wire::wire_struct!(Conflict { logged, why });

/// What happens to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// A message came.
    Message(FromServer),
    /// A front calls.
    Call(CallId, Call),
    /// A front waits for a call no longer. A change that was on its way may take effect all the
    /// same.
    Cancel(CallId),
    /// There is a connection to the server again: it may be another life of it, which waits for this
    /// client to tell what it holds.
    Connected,
    /// An open block is stored under its hash.
    Sealed {
        /// Its file.
        rnode: RnodeId,
        /// The name it had.
        name: BlockHash,
        /// Its hash.
        hash: BlockHash,
    },
    /// Time has passed. Comes at least some ten times in an epoch.
    Tick,
}

/// What a client wants done, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAction {
    /// Append to the journal.
    Journal(JournalRecord),
    /// Make the journal durable.
    SyncJournal,
    /// Send to the server.
    Send(ToServer),
    /// Answer a call.
    Return {
        /// Which.
        call: CallId,
        /// With what.
        outcome: Outcome,
        /// The answer depends on this client's changes up to this one; if that has not been carried
        /// out when the epoch ends, the answer was of a state that others will not see.
        depends: Seq,
    },
    /// Keep for the user to settle.
    Conflict(Conflict),
    /// What an rnode is may change from here on without this client: what a front has cached of it is no
    /// longer sure.
    Lost {
        /// Which.
        rnode: RnodeId,
    },
    /// Store all open blocks of a file, and tell: each with [`ClientEvent::Sealed`]. Comes again until
    /// that is done.
    Seal {
        /// The file.
        rnode: RnodeId,
    },
}

/// A request that waits for its reply.
#[derive(Debug, Clone)]
struct Outstanding {
    body: RequestBody,
    sent: Moment,
    /// Grants up to this one were recalled before they came.
    floor: Token,
    /// Nobody waits for it: it is not sent again.
    hint: bool,
}

/// A client of one cell.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    options: ClientOptions,
    session: Session,
    cache: Cache,
    log: Log,
    locks: Locks,
    calls: BTreeMap<CallId, Waiting>,
    next_request: u64,
    outstanding: BTreeMap<RequestId, Outstanding>,
    /// Parts of listings that have come, with the lease they were read under.
    listings: BTreeMap<RnodeId, (Token, Vec<Entry>)>,
    ahead: Ahead,
    out: Vec<ClientAction>,
}

impl Client {
    /// A client that begins its life number `incarnation`, which must be larger than all before,
    /// with what its journal holds.
    #[must_use]
    pub fn new(
        id: ClientId,
        incarnation: Incarnation,
        journal: impl IntoIterator<Item = JournalRecord>,
        options: ClientOptions,
    ) -> Self {
        Self {
            id,
            options,
            session: Session::new(incarnation),
            cache: Cache::default(),
            log: Log::replay(journal),
            locks: Locks::default(),
            calls: BTreeMap::new(),
            // Answers to an earlier life may still be on their way.
            next_request: (incarnation.0 << 32) + 1,
            outstanding: BTreeMap::new(),
            listings: BTreeMap::new(),
            ahead: Ahead::default(),
            out: Vec::new(),
        }
    }

    /// Takes an event at the moment `now`, which never goes back; `wall` is the time of day, for
    /// time stamps.
    pub fn handle(&mut self, now: Moment, wall: Time, event: ClientEvent) -> Vec<ClientAction> {
        match event {
            ClientEvent::Message(message) => self.message(now, message),
            ClientEvent::Call(id, call) => {
                if let Call::Unlock { id, style, owner, first, last } = call {
                    self.unlock(id, style, owner, first, last);
                }
                self.calls.insert(id, Waiting::new(call));
            }
            ClientEvent::Cancel(id) => self.cancel(id),
            ClientEvent::Connected => self.greet(now),
            ClientEvent::Sealed { rnode, name, hash } => self.sealed(rnode, name, hash),
            ClientEvent::Tick => self.tick(now),
        }
        self.attempt_all(now, wall);
        self.tell_unlocked(now);
        while self.answer_recalls() {
            // What was given back may be wanted again.
            self.attempt_all(now, wall);
        }
        self.flush(now);
        std::mem::take(&mut self.out)
    }

    fn cancel(&mut self, id: CallId) {
        let Some(waiting) = self.calls.remove(&id) else { return };
        waiting.request.map(|id| self.outstanding.remove(&id));
        if let Call::Lock { id, .. } = waiting.call {
            self.waits_no_more(id);
        }
    }

    /// The leases that this client would use at `now`.
    pub fn leases(&self, now: Moment) -> impl Iterator<Item = (RnodeId, Mode)> {
        let leases = self.cache.leases.iter().filter(move |_| self.is_serving(now));
        leases.map(|(id, lease)| (*id, lease.mode))
    }

    /// What this client's callers have locked, as far as it may vouch for it at `now`.
    pub fn locks(&self, now: Moment) -> impl Iterator<Item = (RnodeId, &Lock)> {
        let serving = self.is_serving(now);
        self.locks.own().filter(move |_| serving)
    }

    /// Whether an owner has locked anything of a file.
    #[must_use]
    pub fn has_locks(&self, id: RnodeId, style: LockStyle, owner: u64) -> bool {
        self.locks.has(id, style, owner)
    }

    /// The epoch that the client is in, as far as it knows; 0 before its first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.session.epoch
    }

    /// The state of an rnode as this client has it under a lease.
    #[must_use]
    pub fn cached(&self, id: RnodeId) -> Option<&Rnode> {
        self.cache.leases.get(&id)?.state.as_ref().map(|s| &s.rnode)
    }

    /// Who has the blocks of an rnode under a lease, as the server said when it granted it: what
    /// others wrote before that, without what this client wrote since.
    #[must_use]
    pub fn holders(&self, id: RnodeId) -> Option<&Holders> {
        self.cache.leases.get(&id)?.state.as_ref().map(|s| &s.holders)
    }

    /// The client's changes that have not been carried out, as far as the client knows.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.log.len()
    }

    /// What this client's lease on an rnode allows, if it has one.
    #[must_use]
    pub fn mode(&self, id: RnodeId) -> Option<Mode> {
        self.cache.leases.get(&id).map(|lease| lease.mode)
    }

    /// Whether the server knows every change of an rnode that this client made.
    #[must_use]
    pub fn is_flushed(&self, id: RnodeId) -> bool {
        self.is_clean(id)
    }

    /// The last change that the client has made.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.log.last()
    }

    /// The last change that the client knows to have been carried out.
    #[must_use]
    pub fn applied(&self) -> Seq {
        self.log.applied
    }

    fn is_serving(&self, now: Moment) -> bool {
        now < self.session.ends
    }

    fn next_request(&mut self) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        id
    }

    fn request(&mut self, now: Moment, body: RequestBody) -> RequestId {
        let id = self.next_request();
        let outstanding =
            Outstanding { body: body.clone(), sent: now, floor: Token::BORN, hint: false };
        self.outstanding.insert(id, outstanding);
        self.send(id, body);
        id
    }

    /// Asks for what is likely to be wanted.
    fn hint(&mut self, now: Moment, body: RequestBody) {
        let id = self.request(now, body);
        if let Some(outstanding) = self.outstanding.get_mut(&id) {
            outstanding.hint = true;
        }
    }

    fn send(&mut self, id: RequestId, body: RequestBody) {
        let message = ToServer {
            client: self.id,
            epoch: self.session.epoch,
            generation: self.session.generation,
            request: Request { id, body },
        };
        self.out.push(ClientAction::Send(message));
    }

    /// Says that no more than `to` is held by grants up to `token`. Nobody waits for an answer.
    fn send_lower(&mut self, rnode: RnodeId, token: Token, to: Option<Mode>) {
        let id = self.next_request();
        self.send(id, RequestBody::Lower { rnode, token, to });
    }

    fn message(&mut self, now: Moment, message: FromServer) {
        match message {
            FromServer::Reply { generation, id, reply } => {
                if let Reply::Welcome { welcome } = reply {
                    return self.welcomed(now, generation, id, &welcome);
                }
                // A later life of the server has forgotten this session.
                let forgotten =
                    generation > self.session.generation && reply == Reply::NoSession {};
                if generation != self.session.generation && !forgotten {
                    return;
                }
                let Some(outstanding) = self.outstanding.remove(&id) else {
                    return self.answered_late(reply);
                };
                let asks = self.calls.iter().find(|(_, waiting)| waiting.request == Some(id));
                if let Some((&call, _)) = asks.filter(|_| reply != Reply::NoSession {}) {
                    self.answer(call, Outcome::Answered(Box::new(reply)), Seq::default());
                    return;
                }
                self.replied(now, outstanding, reply);
            }
            FromServer::Recall { generation, epoch, rnode, token, to } => {
                let of_session = self.session.is_active()
                    && generation == self.session.generation
                    && epoch == self.session.epoch;
                if of_session {
                    self.recalled(rnode, token, to);
                }
            }
            FromServer::RecallLocks { generation, epoch, rnode, token } => {
                let of_session = self.session.is_active()
                    && generation == self.session.generation
                    && epoch == self.session.epoch;
                if of_session {
                    self.locks_recalled(rnode, token);
                }
            }
            // It comes late at worst: what it says is asked for.
            FromServer::LocksChanged { rnode, .. } => self.locks_changed(rnode),
            // For a front.
            FromServer::Relayed { .. }
            | FromServer::RelayedRecallLocks { .. }
            | FromServer::RelayedLocksChanged { .. } => {}
        }
    }

    /// The answer to what nobody waits for any more. A lease that came so is given back, if it is not
    /// held: else what has lost its last name would be kept for it.
    fn answered_late(&mut self, reply: Reply) {
        if let Reply::Granted { rnode, token, .. } = reply
            && !self.cache.leases.contains_key(&rnode.id)
        {
            self.send_lower(rnode.id, token, None);
        }
    }

    fn replied(&mut self, now: Moment, outstanding: Outstanding, reply: Reply) {
        match (outstanding.body, reply) {
            (_, Reply::NoSession {}) => self.greet(now),
            (RequestBody::Renew {}, Reply::Renewed {}) => self.renewed(outstanding.sent),
            (RequestBody::Reclaim { last, .. }, Reply::Reclaimed {}) => self.reclaimed(now, last),
            (RequestBody::ReclaimLocks { .. }, Reply::Reclaimed {}) => self.reclaimed(now, false),
            (RequestBody::AcquireLocks { rnode }, Reply::LocksGranted { token, others })
                if token > outstanding.floor =>
            {
                self.locks_granted(rnode, token, others);
            }
            (RequestBody::AcquireLocks { rnode }, Reply::No { why: Refusal::Stale }) => {
                self.cache.set_gone(rnode);
            }
            (
                RequestBody::Acquire { rnode, .. },
                Reply::Granted { rnode: state, mode, token, holders },
            ) if token > outstanding.floor && state.id == rnode => {
                self.granted(*state, holders, mode, token);
            }
            (
                RequestBody::AcquireNamed { .. },
                Reply::Granted { rnode: state, mode, token, holders },
            ) if token > outstanding.floor => self.granted(*state, holders, mode, token),
            (RequestBody::AcquireNamed { .. }, Reply::No { why: Refusal::NotPermitted }) => {
                self.ahead.by_number_alone = true;
            }
            (RequestBody::Acquire { rnode, .. }, Reply::No { why: Refusal::Stale }) => {
                self.cache.set_gone(rnode);
            }
            (RequestBody::Acquire { rnode, mode }, Reply::No { why: Refusal::NotPermitted }) => {
                self.cache.set_denied(rnode, mode);
            }
            (RequestBody::Lookup { dir, name }, Reply::Found { dirent, token }) => {
                if let Some(state) = self.read_under(dir, token) {
                    state.names.entry(name).or_insert(dirent);
                }
            }
            (RequestBody::List { dir, .. }, Reply::Listed { listed }) => {
                self.listed(dir, listed.token, listed.entries, listed.end);
            }
            (RequestBody::Commit { .. }, Reply::Committed { applied, refused }) => {
                self.committed(applied, refused);
            }
            (RequestBody::Commit { .. }, Reply::Broken { applied, refused }) => {
                self.commit_broken(now, applied, refused);
            }
            // No: what was asked for is asked for again, if it is still wanted.
            _ => {}
        }
    }
}
