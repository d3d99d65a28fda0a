//! The metadata server: a state machine without clock and without I/O but for its [`Store`].
//!
//! [`Mds::handle`] takes a moment and an event and returns the messages to send; all state that
//! must survive is in the store when it returns. After a failure of the store the server must stop
//! and be opened anew: the outcome of its last transaction is unknown.
//!
//! Invariants, beyond those of the lease table (`leases`):
//! - A session's end is in the store before its leases are granted to others; for reading also
//!   before that while the store is full (`full`).
//! - A client's log is applied in order, each change once; the number of the last change is stored
//!   in the same transaction as its effects.
//! - Every transaction expects the cell's record as this server wrote it. So of two servers on one
//!   store the older can change nothing.

mod access;
mod answered;
mod archives;
mod batch;
mod check;
mod commit;
mod copies;
mod full;
mod history;
mod leases;
mod locks;
mod names;
mod options;
mod paths;
mod proxied;
mod records;
mod snapshots;
mod stop;
mod sweep;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use weft_vfs::Time;

pub use self::access::{Access, Grant, Level, find_directory};
use self::archives::Archives;
pub use self::check::{Checked, PROBLEMS_MAX, Problem, check};
use self::commit::carry_out;
pub(crate) use self::commit::note_writer;
pub use self::copies::sole_holders;
pub(crate) use self::leases::{Leases, Step};
use self::locks::LockTable;
pub use self::options::{MdsOptions, RootOwner};
pub use self::paths::path_of;
use self::proxied::{ProxiedClient, Relayed};
use self::records::{Cell, Numbers, Session, key};
pub use self::snapshots::{ORIGIN_XATTR, SNAPSHOT_NAMES_MAX, origin};
use self::stop::Stop;
pub use self::sweep::{ADD_AT_ONCE, DELETE_LIMIT, SweepError};
use crate::error::Refusal;
use crate::op::Logged;
use crate::owner_names::OWNERS_XATTR;
use crate::rnode::Rnode;
use crate::store::{
    IndexChange, IndexSource, Revision, Store, StoreError, StoreResult, Transaction,
};
use crate::types::{
    ClientId, Epoch, Generation, Incarnation, Mode, Moment, RequestId, RnodeId, Seq, Token,
};
use crate::wire::{Claim, FromServer, Refused, Reply, RequestBody, ToServer, encode};

/// The margin that the server adds to a client's own count of its epoch: one part in this many.
const MARGIN: u64 = 16;

/// The way to build the index from a cell's records, for a store without one.
pub const INDEX: IndexSource = IndexSource {
    // Other requests wait while a page is read; a text is as long as many names.
    ranges: &[(b"d", b"e", 1000), (b"r", b"s", 1000), (b"T", b"U", 20)],
    read: records::indexed,
};

/// An event for the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MdsEvent {
    /// A message arrived.
    Message(ToServer),
    /// Time has passed. The caller sends this at least a few times in an epoch.
    Tick,
}

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToClient {
    /// The receiver.
    pub client: ClientId,
    /// The message.
    pub message: FromServer,
}

/// A client that the server knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownClient {
    /// The client.
    pub client: ClientId,
    /// Its last epoch.
    pub epoch: Epoch,
    /// Whether that epoch may still be going on.
    pub live: bool,
    /// Number of read leases it holds.
    pub reads: u64,
    /// Number of write leases it holds.
    pub writes: u64,
}

#[derive(Debug)]
struct Live {
    /// The moment the epoch ends, if it is not renewed.
    ends: Moment,
    /// The client has not yet reclaimed its leases.
    must_reclaim: bool,
}

/// A metadata server of one cell.
#[derive(Debug)]
pub struct Mds {
    options: MdsOptions,
    generation: Generation,
    /// The revision of the cell's record: of the transaction that began this generation.
    cell: Revision,
    numbers: Numbers,
    sessions: BTreeMap<ClientId, Session>,
    live: BTreeMap<ClientId, Live>,
    /// Proxied clients.
    proxied: BTreeMap<ClientId, ProxiedClient>,
    leases: Leases,
    locks: LockTable,
    archives: Archives,
    /// The end of the time in which a client that must reclaim its leases is welcomed.
    reclaim_until: Moment,
    due: history::Due,
    texts: text::Sweep,
    snapshots: snapshots::Snapshots,
    /// Questions of clients that wait for a lease.
    questions: Vec<names::Question>,
    /// Whether the store had no room for the last transaction.
    full: full::FullStore,
}

impl Mds {
    /// Opens the cell in `store`, and makes it if the store is empty. `wall` is the time of day,
    /// for the root's time stamps.
    ///
    /// # Errors
    /// [`StoreError`]; a cell of a later version is [`StoreError::Failed`].
    pub fn open(
        store: &mut dyn Store,
        now: Moment,
        wall: Time,
        options: MdsOptions,
    ) -> StoreResult<Self> {
        let mut transaction = Transaction::default();
        let old: Option<Cell> = records::load(store, records::CELL, "cell")?;
        let known = records::FORMAT_MIN..=records::FORMAT;
        if let Some(other) = old.as_ref().filter(|c| !known.contains(&c.format)) {
            let (theirs, ours) = (other.format, records::FORMAT);
            let what = format!("the cell has format version {theirs}, this server supports {ours}");
            return Err(StoreError::Failed(what));
        }
        let before = store.get(records::CELL)?.map(|r| r.revision);
        transaction.expect.push((records::CELL.to_vec(), before));
        let generation = Generation(old.as_ref().map_or(1, |c| c.generation.0 + 1));
        let cell = Cell { format: records::FORMAT, generation };
        transaction.put(records::CELL.to_vec(), encode(&cell));
        let numbers = match records::load(store, records::NUMBERS, "numbers")? {
            Some(numbers) => numbers,
            None => Numbers { slot: 0, epoch: Epoch(0) },
        };
        if old.is_none() {
            let RootOwner { uid, gid, perm, names } = &options.root;
            let mut root = Rnode { uid: *uid, gid: *gid, perm: *perm, ..Rnode::root(wall) };
            if !names.is_empty() {
                let text = crate::Bytes(names.to_string().into_bytes());
                root.xattrs.insert(crate::Bytes(OWNERS_XATTR.to_vec()), text);
            }
            transaction.put(records::rnode_key(root.id), encode(&root));
        }
        let cell = store.commit(&transaction)?;

        let mut sessions = BTreeMap::new();
        for (key, record) in store.range(b"s", b"t", usize::MAX)? {
            let session: Session = crate::wire::decode(&record.value)
                .map_err(|_| records::damaged("session", &key))?;
            sessions.insert(ClientId(records::number_of(&key)?), session);
        }
        let mut mds = Self {
            leases: Leases::new(generation, options.recall_retry_micros),
            locks: LockTable::new(generation, options.recall_retry_micros),
            reclaim_until: now.after(options.epoch_micros * 2),
            due: history::Due::new(now, wall),
            texts: text::Sweep::new(),
            snapshots: snapshots::Snapshots::load(store)?,
            questions: Vec::new(),
            archives: Archives::load(store, generation, now)?,
            options,
            generation,
            cell,
            numbers,
            sessions,
            live: BTreeMap::new(),
            proxied: BTreeMap::new(),
            full: full::FullStore::default(),
        };
        // Each epoch may have been renewed just before the last generation ended, which was before
        // now.
        let ends = mds.session_end(now);
        for (client, _) in mds.sessions.iter().filter(|(_, s)| s.live) {
            mds.live.insert(*client, Live { ends, must_reclaim: true });
        }
        mds.leases.grace = !mds.live.is_empty();
        mds.locks.leases.grace = mds.leases.grace;
        if !mds.leases.grace {
            mds.reap_all(store)?;
        }
        Ok(mds)
    }

    /// Returns the generation of the server.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the lease of a client, as far as the server knows: never less than the client
    /// believes.
    #[must_use]
    pub fn held(&self, rnode: RnodeId, client: ClientId) -> Option<(Mode, Token)> {
        self.leases.held(rnode, client)
    }

    /// Returns every client that ever began a session.
    pub fn clients(&self) -> impl Iterator<Item = KnownClient> {
        let counts = self.leases.counts();
        self.sessions.iter().map(move |(&client, session)| {
            let (reads, writes) = counts.get(&client).copied().unwrap_or_default();
            let live = session.live || self.proxied.contains_key(&client);
            KnownClient { client, epoch: session.epoch, live, reads, writes }
        })
    }

    /// Returns true while the server waits for clients to reclaim their leases.
    #[must_use]
    pub fn in_grace(&self) -> bool {
        self.leases.grace
    }

    fn session_end(&self, now: Moment) -> Moment {
        now.after(self.options.epoch_micros + self.options.epoch_micros / MARGIN)
    }

    /// Returns the refusal of a request, without looking at the request.
    #[must_use]
    pub fn deny(&self, message: &ToServer) -> ToClient {
        let reply = Reply::No { why: Refusal::NotPermitted };
        self.reply(message.client, message.request.id, reply)
    }

    /// Handles an event at the moment `now`; `now` never goes back. Returns the messages to send.
    ///
    /// # Errors
    /// [`StoreError`]: the server must stop.
    pub fn handle(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        event: MdsEvent,
    ) -> StoreResult<Vec<ToClient>> {
        let mut out = Vec::new();
        self.withhold_writes();
        self.end_due(store, now, &mut out)?;
        match event {
            MdsEvent::Message(message) => self.message(store, now, message, &mut out)?,
            MdsEvent::Tick => {
                let steps = self.leases.advance_all(now);
                self.take(store, now, steps, &mut out)?;
                self.try_full_store(store, now)?;
                if !self.is_full() {
                    full::or_later(self.forget_what_is_due(store, now))?;
                    full::or_later(self.sweep_texts(store))?;
                    full::or_later(self.clear_snapshots(store))?;
                }
                let steps = self.locks.leases.advance_all(now);
                self.take_locks(steps, &mut out);
            }
        }
        self.advance_snapshots(store, now, &mut out)?;
        Ok(out.into_iter().filter_map(|send| self.address(send)).collect())
    }

    /// Stores `session` in place of the client's old one, and drops the leases of that.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was changed, here either.
    fn end_session(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        session: Session,
        mut transaction: Transaction,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        transaction.put(key(b's', client.0), encode(&session));
        self.commit(store, transaction)?;
        self.drop_session(store, now, client, session, out)
    }

    /// Replaces the session of a client by one that is recorded, and drops the leases of the old one.
    fn drop_session(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        session: Session,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        self.sessions.insert(client, session);
        self.live.remove(&client);
        self.questions.retain(|q| q.client != client);
        let (steps, touched) = self.leases.drop_client(now, client);
        self.reap(store, touched)?;
        self.take(store, now, steps, out)?;
        self.drop_locks(now, client, out);
        self.forget_proxied(now, client, out);
        self.end_grace(store, now, out)
    }

    fn end_grace(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        if !self.leases.grace || self.live.values().any(|live| live.must_reclaim) {
            return Ok(());
        }
        self.leases.grace = false;
        self.locks.leases.grace = false;
        self.reap_all(store)?;
        let steps = self.leases.advance_all(now);
        self.take(store, now, steps, out)?;
        let steps = self.locks.leases.advance_all(now);
        self.take_locks(steps, out);
        Ok(())
    }

    fn message(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        message: ToServer,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let ToServer { client, epoch, generation, request } = message;
        let id = request.id;
        if let RequestBody::Hello { incarnation } = request.body {
            return self.hello(store, now, client, id, incarnation, out);
        }
        if let RequestBody::HelloProxy { incarnation } = request.body {
            // The proxy's clients may still rely on what it gave them, and the proxy does not know
            // of them any more.
            let old = self.sessions.get(&client);
            if old.is_some_and(|s| s.live && s.incarnation != incarnation) {
                return Ok(());
            }
            return self.hello(store, now, client, id, incarnation, out);
        }
        let in_session = generation == self.generation
            && self.sessions.get(&client).is_some_and(|s| s.live && s.epoch == epoch);
        let live = self.live.get_mut(&client).filter(|_| in_session);
        let reply = match (live, request.body) {
            // Not answered: the client expects no reply.
            (None, RequestBody::Lower { .. } | RequestBody::LowerLocks { .. }) => return Ok(()),
            (None, _) => Reply::NoSession {},
            (Some(live), RequestBody::Renew {}) => {
                live.ends =
                    now.after(self.options.epoch_micros + self.options.epoch_micros / MARGIN);
                Reply::Renewed {}
            }
            (Some(live), RequestBody::Reclaim { claims, last }) => {
                if live.must_reclaim {
                    return self.reclaim(store, now, client, id, &claims, last, out);
                }
                Reply::Reclaimed {}
            }
            (Some(live), RequestBody::ReclaimLocks { claims }) => {
                if live.must_reclaim {
                    return self.reclaim_locks(store, now, client, id, claims, out);
                }
                Reply::Reclaimed {}
            }
            (Some(live), RequestBody::Relay { client: of, epoch, id: theirs, body }) => {
                let may_reclaim = live.must_reclaim;
                let relayed = Relayed { proxy: client, client: of, epoch, id: theirs };
                if let Ok(body) = body.open()
                    && may_reclaim == matches!(body, RequestBody::ReclaimLocks { .. })
                {
                    return self.relayed(store, now, relayed, body, out);
                }
                // The proxy's client has reclaimed already, or must first; or the request cannot be
                // decoded.
                if may_reclaim { Reply::NoSession {} } else { Reply::Reclaimed {} }
            }
            (Some(live), _) if live.must_reclaim => Reply::NoSession {},
            (Some(_), RequestBody::Enter { client: of, incarnation }) => {
                return self.enter(store, now, (client, id), of, incarnation, out);
            }
            (
                Some(_),
                body @ (RequestBody::AcquireLocks { .. }
                | RequestBody::LowerLocks { .. }
                | RequestBody::TellLocks { .. }),
            ) => match self.about_locks(store, now, client, id, body, out)? {
                Some(reply) => reply,
                None => return Ok(()),
            },
            (Some(_), RequestBody::Acquire { rnode, mode: Mode::Write })
                if rnode.is_of_snapshot() =>
            {
                Reply::No { why: Refusal::NotPermitted }
            }
            (
                Some(_),
                body @ (RequestBody::Snapshot { .. } | RequestBody::RemoveSnapshot { .. }),
            ) => match self.change_snapshots(store, now, client, id, body)? {
                Some(reply) => reply,
                None => return Ok(()),
            },
            (Some(_), RequestBody::Acquire { rnode, mode }) => {
                store.prefetch(&[records::rnode_key(rnode), records::holders_key(rnode)])?;
                if records::load_rnode(store, rnode)?.is_some() {
                    let steps = self.leases.acquire(now, client, id, rnode, mode);
                    if steps.is_empty() && mode == Mode::Write && self.leases.withholds_writes {
                        // It is granted when there is room.
                        let reply = Reply::No { why: Refusal::NoSpace };
                        out.push(self.reply(client, id, reply));
                    }
                    return self.take(store, now, steps, out);
                }
                Reply::No { why: Refusal::Stale }
            }
            (Some(_), RequestBody::Lower { rnode, token, to }) => {
                let steps = self.leases.lower(now, client, rnode, token, to);
                self.reap(store, [rnode])?;
                return self.take(store, now, steps, out);
            }
            (
                Some(_),
                body @ (RequestBody::Lookup { .. }
                | RequestBody::List { .. }
                | RequestBody::AcquireNamed { .. }),
            ) => return self.about_names(store, now, client, id, body, out),
            (Some(_), RequestBody::Commit { prev, ops }) => {
                self.commit_ops(store, client, client, prev, &ops)?
            }
            (Some(_), RequestBody::Hello { .. } | RequestBody::HelloProxy { .. }) => {
                Reply::NoSession {}
            }
            (Some(_), other) => match self.answer_about_copies(store, client, &other)? {
                Some(reply) => reply,
                None => return Ok(()),
            },
        };
        out.push(self.reply(client, id, reply));
        Ok(())
    }

    fn reply(&self, client: ClientId, id: RequestId, reply: Reply) -> ToClient {
        let generation = self.generation;
        ToClient { client, message: FromServer::Reply { generation, id, reply } }
    }

    fn hello(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        id: RequestId,
        incarnation: Incarnation,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let ends = self.session_end(now);
        let old = self.sessions.get(&client);
        if old.is_some_and(|s| incarnation < s.incarnation) {
            return Ok(()); // From an earlier incarnation.
        }
        let goes_on = old.is_some_and(|s| s.live && s.incarnation == incarnation);
        if let Some(live) = self.live.get_mut(&client).filter(|_| goes_on) {
            if live.must_reclaim && now >= self.reclaim_until {
                return Ok(()); // Its time to reclaim is over, and others wait; its epoch ends soon.
            }
            live.ends = ends;
        } else {
            let session = self.next_session(client, incarnation, true);
            let numbers = self.numbers_with(&session);
            let mut transaction = Transaction::default();
            transaction.put(records::NUMBERS.to_vec(), encode(&numbers));
            match self.end_session(store, now, client, session, transaction, out) {
                // The client asks again. No number may be used that a later generation could use
                // again, so no session begins while there is no room.
                Err(StoreError::Full) => {
                    let reply = Reply::No { why: Refusal::NoSpace };
                    out.push(self.reply(client, id, reply));
                    return Ok(());
                }
                ended => ended?,
            }
            self.numbers = numbers;
            self.live.insert(client, Live { ends, must_reclaim: false });
        }
        let Some(session) = self.sessions.get(&client) else { return Ok(()) };
        let reclaim = self.live.get(&client).is_some_and(|live| live.must_reclaim);
        let welcome = self.welcome(session, reclaim);
        out.push(self.reply(client, id, Reply::Welcome { welcome }));
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "a message, taken apart")]
    fn reclaim(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        id: RequestId,
        claims: &[Claim],
        last: bool,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        for &Claim { rnode, mode, token } in claims {
            // An rnode that the client made and has not committed yet comes with its changes.
            let is_there = records::load_rnode(store, rnode)?.is_some();
            if is_there && !self.leases.install(client, rnode, mode, token) {
                return self.refuse_claim(store, now, client, id, out);
            }
        }
        out.push(self.reply(client, id, Reply::Reclaimed {}));
        if last && let Some(live) = self.live.get_mut(&client) {
            live.must_reclaim = false;
            self.end_grace(store, now, out)?;
        }
        Ok(())
    }

    /// Ends the session of a client whose claim conflicts with a lease reclaimed before: the first
    /// claim wins.
    fn refuse_claim(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        client: ClientId,
        id: RequestId,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let Some(session) = self.sessions.get(&client).cloned() else { return Ok(()) };
        self.expire(store, now, client, &session, out)?;
        out.push(self.reply(client, id, Reply::NoSession {}));
        Ok(())
    }

    /// Sends the grants and recalls that the lease table asks for.
    fn take(
        &mut self,
        store: &dyn Store,
        now: Moment,
        steps: Vec<Step>,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        for step in steps {
            let message = match step {
                Step::Grant { client: snapshots::SERVER, rnode, token, .. } => {
                    self.snapshots.granted(rnode, token);
                    continue;
                }
                Step::Grant { client, request, rnode, mode, token } => {
                    let reply = match records::load_rnode(store, rnode)? {
                        Some(state) => {
                            let (holders, rnode) =
                                (records::load_holders(store, rnode)?, state.into());
                            Reply::Granted { rnode, holders, mode, token }
                        }
                        None => Reply::No { why: Refusal::Stale },
                    };
                    out.push(self.reply(client, request, reply));
                    self.answer_questions(store, now, client, rnode, out)?;
                    continue;
                }
                Step::Recall { client, rnode, token, to } => {
                    let Some(epoch) = self.sessions.get(&client).map(|s| s.epoch) else { continue };
                    let generation = self.generation;
                    let message = FromServer::Recall { generation, epoch, rnode, token, to };
                    ToClient { client, message }
                }
            };
            out.push(message);
        }
        Ok(())
    }

    /// Carries out changes of `client` under the leases of `holder`: its own, or its proxy's.
    fn commit_ops(
        &mut self,
        store: &mut dyn Store,
        holder: ClientId,
        client: ClientId,
        prev: Seq,
        ops: &[Logged],
    ) -> StoreResult<Reply> {
        let Some(session) = self.sessions.get(&client) else { return Ok(Reply::NoSession {}) };
        let applied = session.applied;
        let in_order = ops.windows(2).all(|pair| pair[0].seq < pair[1].seq);
        if prev > applied || !in_order {
            return Ok(Reply::Broken { applied, refused: None });
        }
        if ops.last().is_none_or(|last| last.seq <= applied) {
            return Ok(Reply::Committed { applied, refused: session.refused });
        }
        store.prefetch(&records::touched(ops))?;
        let mut outcome = match carry_out(store, &self.leases, (holder, client), session, ops) {
            Ok(outcome) => outcome,
            Err((Stop::Store(error), _)) => return Err(error),
            Err((Stop::Refused(_), refused)) => return Ok(Reply::Broken { applied, refused }),
        };
        outcome.transaction.put(key(b's', client.0), encode(&outcome.session));
        match self.commit(store, outcome.transaction) {
            Ok(_) => {}
            Err(StoreError::Full) => {
                let refused = Some(Refused { seq: applied, why: Refusal::NoSpace });
                return Ok(Reply::Broken { applied, refused });
            }
            Err(error) => return Err(error),
        }
        self.archives.spare(ops);
        for id in outcome.made {
            self.leases.install(holder, id, Mode::Write, Token::BORN);
        }
        if outcome.moves_policies {
            self.texts.begin();
        }
        let (applied, refused) = (outcome.session.applied, outcome.session.refused);
        self.sessions.insert(client, outcome.session);
        Ok(Reply::Committed { applied, refused })
    }

    /// Removes those of `rnodes` that have neither a name nor a holder.
    fn reap(
        &self,
        store: &mut dyn Store,
        rnodes: impl IntoIterator<Item = RnodeId>,
    ) -> StoreResult<()> {
        if self.leases.grace {
            return Ok(()); // A client that has not reclaimed yet may hold them.
        }
        let mut transaction = Transaction::default();
        for id in rnodes {
            let orphan = key(b'o', id.0);
            if !self.leases.is_known(id) && store.get(&orphan)?.is_some() {
                let of_archives = archives::archived_key(id);
                let keys = [orphan, records::rnode_key(id), records::holders_key(id), of_archives];
                for key in keys {
                    transaction.remove(key);
                }
                transaction.index.push(IndexChange::File { rnode: id, facts: None });
                history::ended(store, id, &mut transaction)?;
                text::outdated(store, id, &mut transaction)?;
                self.snapshots.ended(store, id, &mut transaction)?;
            }
        }
        if transaction.changes.is_empty() {
            return Ok(());
        }
        if full::or_later(self.commit(store, transaction))?.is_none() {
            self.full.reap_later();
        }
        Ok(())
    }

    fn reap_all(&self, store: &mut dyn Store) -> StoreResult<()> {
        let orphans = store.range(b"o", b"p", usize::MAX)?;
        let ids: StoreResult<BTreeSet<u64>> =
            orphans.iter().map(|(key, _)| records::number_of(key)).collect();
        self.reap(store, ids?.into_iter().map(RnodeId))
    }
}
