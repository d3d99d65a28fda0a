//! The client: a state machine without clock and without I/O, like the [server](crate::mds).
//!
//! [`Client::handle`] takes a moment and an event, and returns actions to carry out in this order:
//! append to the journal, send, answer calls. The calls of the file system come as events too; one
//! that can be answered under leases is answered in the same step, and costs no message.
//!
//! Invariants, beyond those of the cache (`cache`):
//! - No call is answered after the epoch's end by this client's clock.
//! - A lease is downgraded when every change under it has been carried out by the server, and
//!   before the server is told.
//! - Leases that a call needs together are kept in the order of their rnodes' numbers: a call that
//!   waits for a lease has *pinned* those it needs that have smaller numbers, and no others. So
//!   clients never wait for each other in a cycle, and never take leases from each other for ever
//!   (`pins`).
//! - A change is in the journal before its call is answered.
//!
//! The invariants of blocks that are being written are in `open`.

mod cache;
mod calls;
mod leases;
mod locks;
mod log;
mod open;
mod pins;
mod prefetch;
mod session;
mod written;

use std::collections::BTreeMap;

use weft_vfs::Time;

use self::cache::Cache;
use self::calls::Waiting;
use self::locks::Locks;
use self::log::Log;
pub use self::open::naming;
use self::prefetch::Prefetch;
use self::session::Session;
pub use self::written::{LeftOpen, Redo, Written, left_open};
use crate::block_map::Block;
use crate::encryption::Encryption;
use crate::error::Refusal;
use crate::locks::{Lock, LockStyle};
use crate::op::{Logged, Op};
use crate::rnode::{Dirent, Holders, Name, Rnode};
use crate::types::{
    BlockHash, ClientId, Epoch, Incarnation, Mode, Moment, RequestId, RnodeId, Seq, Token, Version,
};
use crate::wire::{Entry, FromServer, Reply, Request, RequestBody, ToServer};

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The time after which an unanswered request is sent again, in microseconds.
    pub retry_micros: u64,
    /// The longest time that a change waits for others before it is sent, in microseconds: a crash
    /// of this machine can keep the changes of this time from other clients for a while.
    pub flush_micros: u64,
    /// The most changes in one message.
    pub batch: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { retry_micros: 1_000_000, flush_micros: 1_000_000, batch: 256 }
    }
}

/// The number of a call, chosen by its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A call of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Looks up `name` in `dir`.
    Lookup {
        /// The directory.
        dir: RnodeId,
        /// The name.
        name: Name,
    },
    /// Returns the attributes and the block map of an rnode.
    Get {
        /// The rnode.
        id: RnodeId,
    },
    /// Lists all names of a directory, in the order of their cookies.
    List {
        /// The directory.
        dir: RnodeId,
    },
    /// A change. The `id` of [`Op::Create`] is filled in.
    Apply {
        /// The change.
        op: Op,
        /// The call is refused with [`Refusal::Changed`] unless this rnode has this version: for a
        /// change that was derived from a state read before.
        if_version: Option<(RnodeId, Version)>,
    },
    /// Writes a file, partly into open blocks. Open blocks are named as the blocks of other writes
    /// are; the first write that names an open block opens it.
    Write {
        /// The file.
        id: RnodeId,
        /// The call is refused with [`Refusal::Changed`] unless the file has this version.
        version: Version,
        /// As of [`Op::Write`].
        blocks: Vec<(u32, Option<Block>)>,
        /// As of [`Op::Write`].
        end_bytes: u64,
        /// The data for open blocks.
        redo: Vec<Redo>,
        /// The encryption of the file, if it is encrypted: `redo` then is, too.
        encryption: Option<Encryption>,
    },
    /// Waits until the server has every change up to now.
    Sync,
    /// Locks part of a file.
    Lock {
        /// The file.
        id: RnodeId,
        /// The lock.
        lock: Lock,
        /// Whether the call waits for conflicting locks; else it is refused with
        /// [`Refusal::WouldBlock`].
        wait: bool,
    },
    /// Removes an owner's locks at once. The call is answered when other clients can take the
    /// range, or the server cannot be told for some time.
    Unlock {
        /// The file.
        id: RnodeId,
        /// The kind of lock.
        style: LockStyle,
        /// The owner.
        owner: u64,
        /// The first byte.
        first: u64,
        /// The last byte.
        last: u64,
    },
    /// Returns a lock that conflicts with `lock`.
    FindLock {
        /// The file.
        id: RnodeId,
        /// The lock.
        lock: Lock,
    },
    /// Releases the lease on an rnode, if it is not in use.
    Evict {
        /// The rnode.
        id: RnodeId,
    },
    /// Sends the server a request that may be sent twice, and involves no lease.
    Ask {
        /// The request.
        body: RequestBody,
    },
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Of `Lookup`.
    Found(Option<Dirent>),
    /// Of `Get`.
    Rnode(Box<Rnode>),
    /// Of `List`.
    Names(Vec<Entry>),
    /// Of `Apply`: done; the rnode that was made, removed or renamed, if any.
    Done(Option<RnodeId>),
    /// Of `Sync`, `Evict`, `Lock` and `Unlock`.
    Finished,
    /// Of `Ask`.
    Answered(Box<Reply>),
    /// Of `FindLock`: a conflicting lock, and whether it is another client's.
    InTheWay(Option<(Lock, bool)>),
    /// Of any: refused.
    Refused(Refusal),
}

/// A record of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalRecord {
    /// A change was made.
    Made {
        /// The change.
        logged: Logged,
    },
    /// The server has carried out or refused every change up to this one.
    Applied {
        /// The last of them.
        seq: Seq,
    },
    /// A change was given up: it is a conflict.
    GivenUp {
        /// The change.
        seq: Seq,
    },
    /// A change of an earlier epoch was made again on another state, which it fits as well. It
    /// replaces the one with the same number.
    Remade {
        /// The change as it is now.
        logged: Logged,
    },
    /// A write was made, partly into open blocks.
    Wrote {
        /// The change.
        logged: Logged,
        /// The change that it replaces.
        replaces: Option<Seq>,
        /// The data for open blocks.
        redo: Vec<Redo>,
    },
    /// A write was made to an encrypted file, partly into open blocks.
    WroteEncrypted {
        /// As of `Wrote`.
        logged: Logged,
        /// As of `Wrote`.
        replaces: Option<Seq>,
        /// As of `Wrote`, with encrypted data.
        redo: Vec<Redo>,
        /// The encryption of the file.
        encryption: Encryption,
    },
    /// An open block was stored under its hash, which replaces its name in changes.
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

/// A change that did not reach the server before other clients changed the same rnodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The change.
    pub logged: Logged,
    /// The reason why it cannot be carried out now.
    pub why: Refusal,
}
crate::wire::wire_struct!(Conflict { logged, why });

/// An event for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// A message arrived.
    Message(FromServer),
    /// The file system makes a call.
    Call(CallId, Call),
    /// The caller no longer waits for a call. A change in progress may still take effect.
    Cancel(CallId),
    /// The connection to the server is restored: it may be another generation of the server, which
    /// waits for this client to reclaim its leases.
    Connected,
    /// An open block was stored under its hash.
    Sealed {
        /// Its file.
        rnode: RnodeId,
        /// The name it had.
        name: BlockHash,
        /// Its hash.
        hash: BlockHash,
    },
    /// Time has passed. The caller sends this at least ten times or so in an epoch.
    Tick,
}

/// An action that the client asks its caller to take, in the order given.
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
        /// The call.
        call: CallId,
        /// The result.
        outcome: Outcome,
        /// The result depends on this client's changes up to this one; if that has not been carried
        /// out when the epoch ends, the result showed a state that other clients will not see.
        depends: Seq,
    },
    /// Keep a conflict for the user to resolve.
    Conflict(Conflict),
    /// An rnode may change from here on without this client: cached data about it is no longer
    /// valid.
    Lost {
        /// The rnode.
        rnode: RnodeId,
    },
    /// Store all open blocks of a file, and report each with [`ClientEvent::Sealed`]. Repeated
    /// until that is done.
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
    /// The last grant that was recalled before it arrived.
    floor: Token,
    /// A prefetch that no call waits for: it is not sent again.
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
    /// Received parts of listings, with the lease they were read under.
    listings: BTreeMap<RnodeId, (Token, Vec<Entry>)>,
    prefetch: Prefetch,
    out: Vec<ClientAction>,
}

impl Client {
    /// Returns a client that begins incarnation `incarnation`, which must be larger than all
    /// before, with the log in its journal.
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
            // Replies to an earlier incarnation may still be on their way.
            next_request: (incarnation.0 << 32) + 1,
            outstanding: BTreeMap::new(),
            listings: BTreeMap::new(),
            prefetch: Prefetch::default(),
            out: Vec::new(),
        }
    }

    /// Handles an event at the moment `now`, which never goes back; `wall` is the time of day, for
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
            // A released lease may be wanted again.
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

    /// Returns the leases that this client may use at `now`.
    pub fn leases(&self, now: Moment) -> impl Iterator<Item = (RnodeId, Mode)> {
        let leases = self.cache.leases.iter().filter(move |_| self.is_serving(now));
        leases.map(|(id, lease)| (*id, lease.mode))
    }

    /// Returns the locks that this client's callers hold, as far as they are valid at `now`.
    pub fn locks(&self, now: Moment) -> impl Iterator<Item = (RnodeId, &Lock)> {
        let serving = self.is_serving(now);
        self.locks.own().filter(move |_| serving)
    }

    /// Returns true if an owner has locks on a file.
    #[must_use]
    pub fn has_locks(&self, id: RnodeId, style: LockStyle, owner: u64) -> bool {
        self.locks.has(id, style, owner)
    }

    /// Returns the client's epoch, as far as it knows; 0 before its first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.session.epoch
    }

    /// Returns the state of an rnode that this client has under a lease.
    #[must_use]
    pub fn cached(&self, id: RnodeId) -> Option<&Rnode> {
        self.cache.leases.get(&id)?.state.as_ref().map(|s| &s.rnode)
    }

    /// Returns the holders of the blocks of an rnode under a lease, as the server reported them
    /// with the grant: without writes of this client since.
    #[must_use]
    pub fn holders(&self, id: RnodeId) -> Option<&Holders> {
        self.cache.leases.get(&id)?.state.as_ref().map(|s| &s.holders)
    }

    /// Returns true if changes wait because the server's store had no room at last.
    #[must_use]
    pub fn is_server_full(&self) -> bool {
        self.session.is_server_full || (self.log.is_server_full && self.log.len() > 0)
    }

    /// Returns the client's changes that are not known to be carried out, in order.
    pub fn unsent(&self) -> impl Iterator<Item = &Logged> {
        self.log.pending()
    }

    /// Returns the number of changes that the server may not have.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.log.len()
    }

    /// Returns the mode of this client's lease on an rnode, if it has one.
    #[must_use]
    pub fn mode(&self, id: RnodeId) -> Option<Mode> {
        self.cache.leases.get(&id).map(|lease| lease.mode)
    }

    /// Returns true if the server has every change of an rnode that this client made.
    #[must_use]
    pub fn is_flushed(&self, id: RnodeId) -> bool {
        self.is_clean(id)
    }

    /// Returns the last change that the client has made.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.log.last()
    }

    /// Returns the last change that the client knows to have been carried out.
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

    /// Sends a request for data that is likely to be needed.
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

    /// Reports that at most `to` is held by grants up to `token`. Not answered.
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
                let body = self.outstanding.get(&id).map(|o| &o.body);
                let waits =
                    matches!(body, Some(RequestBody::Hello { .. } | RequestBody::Acquire { .. }));
                if waits && reply == (Reply::No { why: Refusal::NoSpace }) {
                    // It is sent again until there is room.
                    self.session.is_server_full = true;
                    return;
                }
                // A later generation of the server does not know this session.
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
            // At worst it is late and causes a useless question.
            FromServer::LocksChanged { rnode, .. } => self.locks_changed(rnode),
            // For a proxy.
            FromServer::Relayed { .. }
            | FromServer::RelayedRecallLocks { .. }
            | FromServer::RelayedLocksChanged { .. } => {}
        }
    }

    /// Handles a reply that no call waits for. A lease granted by it is released if the client does
    /// not hold it: else the server would keep an rnode without a name for this client.
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
                self.session.is_server_full = false;
                self.granted(*state, holders, mode, token);
            }
            (
                RequestBody::AcquireNamed { .. },
                Reply::Granted { rnode: state, mode, token, holders },
            ) if token > outstanding.floor => self.granted(*state, holders, mode, token),
            (RequestBody::AcquireNamed { .. }, Reply::No { why: Refusal::NotPermitted }) => {
                self.prefetch.by_number_alone = true;
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
            // A refusal: the request is made again, if it is still needed.
            _ => {}
        }
    }
}
