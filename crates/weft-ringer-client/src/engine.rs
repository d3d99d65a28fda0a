//! The client's state machine in a process: calls from many threads, the connection to the server,
//! and timers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_ringer::client::{Call, CallId, Client, ClientAction, ClientEvent, Conflict, Outcome};
use weft_ringer::locks::LockStyle;
use weft_ringer::wire::encode;
use weft_ringer::{
    BlockHash, Body, ClientId, Epoch, Holders, Mode, Policy, Refusal, RnodeId, Seq, Version,
};
use weft_ringer_net::{Ask, Denial, Error, Home, KnownCell, Outbox, Result, client_id, now, wall};
use weft_vfs::Interrupt;

use super::blocks::Blocks;
use super::conflict_log::{Conflicts, blocks_of};
use super::encryption::{Keys, Members};
use super::errors::{ENOSPC, ETIMEDOUT, io_error};
use super::journal::Journal;
use super::lost_leases::LostLeases;
use super::mutex::locked;
use super::open::OpenBlocks;
#[cfg(feature = "archive")]
use super::opened_archives::Archives;
use super::options::RingerFsOptions;
use super::peers::{MakeCopy, PeerServer, Peers, RevokedMembers};
use super::pins::Pins;

/// The interval at which the state machine gets the time.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// The interval at which the last state seen of the cell is saved.
const SAVE_EVERY: Duration = Duration::from_secs(2);
pub(super) struct Inner {
    pub(super) client: Client,
    journal: Journal,
    /// Outcomes that no caller has taken yet.
    done: BTreeMap<CallId, (Outcome, Seq)>,
    waiting: BTreeSet<CallId>,
}

/// A replaced block of a file, to be removed once the server has the change up to `seq`.
pub(super) struct Superseded {
    pub(super) seq: Seq,
    pub(super) rnode: RnodeId,
    pub(super) hash: BlockHash,
}

/// A file whose content changed here.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnderReplicated {
    /// A directory that it has a name in, if known.
    pub(super) dir: Option<RnodeId>,
    /// The time of the next check.
    pub(super) due: Instant,
    /// True if the server may lack the text of the present content.
    pub(super) text_unsent: bool,
}

/// A final statement of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This client is not a member, or no longer.
    Denied(Denial),
    /// The cell lacks changes that this client has seen.
    Older(String),
}

/// The state that the threads of the client share below its file system.
pub(super) struct Engine {
    pub(super) options: RingerFsOptions,
    pub(super) home: Home,
    pub(super) inner: Mutex<Inner>,
    pub(super) answered: Condvar,
    next_call: AtomicU64,
    pub(super) outbox: Mutex<Option<Arc<Outbox>>>,
    pub(super) lost_leases: LostLeases,
    pub(super) known: KnownCell,
    pub(super) verdict: Mutex<Option<Verdict>>,
    /// The reason why there is no connection, as far as it is known.
    pub(super) trouble: Mutex<Option<String>>,
    /// The result of the first connection; an error if the server refused it.
    pub(super) joined: OnceLock<std::result::Result<ClientId, String>>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) keys: Keys,
    pub(super) members: Members,
    pub(super) open: OpenBlocks,
    pub(super) peers: Arc<Peers>,
    #[cfg(feature = "archive")]
    pub(super) archives: Archives,
    pub(super) peer_server: Mutex<Option<PeerServer>>,
    pub(super) superseded: Mutex<VecDeque<Superseded>>,
    /// Rnodes that may have blocks here that no client needs: the server has to be asked.
    pub(super) doubtful: Mutex<BTreeSet<RnodeId>>,
    /// The orphans that the garbage collector waits for.
    pub(super) orphans: Mutex<Vec<RnodeId>>,
    /// Whether the last mount did not leave a list of them.
    pub(super) must_scan_soon: bool,
    pub(super) conflicts: Mutex<Conflicts>,
    /// What the user of the mount should hear when it begins.
    pub(super) notes: Mutex<Vec<String>>,
    /// Files that changed here and may be under-replicated.
    pub(super) under_replicated: Mutex<BTreeMap<RnodeId, UnderReplicated>>,
    pub(super) pins: Mutex<Pins>,
    /// Revoked certificates: their clients get nothing from this one.
    pub(super) revoked: RevokedMembers,
    /// Held by the thread that rewrites the journal.
    shortening: Mutex<()>,
    pub(super) stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Opens the local store. Nothing is sent before [`start`](Self::start).
    pub(super) fn open(options: RingerFsOptions) -> Result<Arc<Self>> {
        let home = Home::open(&options.directory)?;
        if let Some(cell) = options.cell
            && home.cell()? == 0
        {
            home.set_cell(cell.0)?;
        }
        let failed = |e| Error::io(format!("the local store {}", options.directory.display()), e);
        let (mut journal, records) = Journal::open(&home.path("journal")).map_err(failed)?;
        let blocks = Blocks::open(&options.directory, options.cache_max_bytes).map_err(failed)?;
        let keys = Keys::open(&home.path("keys")).map_err(failed)?;
        let members = Members::open(home.path("member"), home.path("trusted")).map_err(failed)?;
        let damage = journal.damage.take();
        let records =
            super::open::recover(&blocks, &keys, &mut journal, records).map_err(failed)?;
        let open = OpenBlocks::new(home.incarnation);
        let conflicts = Conflicts::open(&home.path("conflicts")).map_err(failed)?;
        let known = KnownCell::open(home.path("known"));
        let pins = Pins::open(&home.path("pins")).map_err(failed)?;
        let notes = damage.into_iter().collect();
        let doubtful = super::garbage_collector::take_list(&home.path("garbage"));
        // A new store has nothing that could be garbage.
        let must_scan_soon = doubtful.is_none() && home.incarnation.0 > 1;
        let own = client_id(&home.secret);
        let client = Client::new(own, home.incarnation, records, options.client.clone());
        let inner = Inner { client, journal, done: BTreeMap::new(), waiting: BTreeSet::new() };
        let peers = Peers::new(options.tls.as_ref().map(|(client, _)| client.clone()));
        #[cfg(feature = "archive")]
        let archives = Archives::new(options.archives.clone());
        Ok(Arc::new(Self {
            options,
            home,
            inner: Mutex::new(inner),
            answered: Condvar::new(),
            next_call: AtomicU64::new(1),
            outbox: Mutex::default(),
            lost_leases: LostLeases::default(),
            known,
            verdict: Mutex::default(),
            trouble: Mutex::default(),
            joined: OnceLock::new(),
            blocks: Arc::new(blocks),
            keys,
            members,
            open,
            peers: Arc::new(peers),
            #[cfg(feature = "archive")]
            archives,
            peer_server: Mutex::default(),
            superseded: Mutex::default(),
            doubtful: Mutex::new(doubtful.unwrap_or_default()),
            orphans: Mutex::default(),
            must_scan_soon,
            conflicts: Mutex::new(conflicts),
            notes: Mutex::new(notes),
            under_replicated: Mutex::default(),
            pins: Mutex::new(pins),
            revoked: RevokedMembers::default(),
            shortening: Mutex::default(),
            stop: AtomicBool::new(false),
            threads: Mutex::default(),
        }))
    }

    /// Starts the threads, and waits until the server has accepted this client. `make_copy` serves
    /// other clients' requests for copies.
    pub(super) fn start(self: &Arc<Self>, make_copy: Arc<MakeCopy>) -> Result<()> {
        self.spawn("ringer-link", move |engine| engine.keep_connected(&make_copy))?;
        self.spawn("ringer-clock", Self::keep_time)?;
        self.spawn("ringer-known", |engine| engine.save_known())?;
        self.spawn("ringer-sealer", Self::keep_sealing)?;
        let deadline = Instant::now() + self.options.patience;
        let refused = loop {
            match self.joined.get() {
                Some(Ok(_)) => return Ok(()),
                Some(Err(why)) => {
                    break match &*locked(&self.verdict) {
                        Some(Verdict::Older(_)) => Error::OlderCell(why.clone()),
                        Some(Verdict::Denied(denial)) => Error::Denied(*denial),
                        None => Error::Refused(why.clone()),
                    };
                }
                None if Instant::now() >= deadline => {
                    break Error::timed_out(self.silent());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        self.end();
        Err(refused)
    }

    pub(super) fn spawn(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<()> {
        let engine = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || work(&engine));
        let thread = thread.map_err(|e| Error::io("cannot start a thread", e))?;
        locked(&self.threads).push(thread);
        Ok(())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Ends the connection and all threads.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        let outbox = locked(&self.outbox).take();
        if let Some(outbox) = outbox {
            outbox.drain(Duration::from_secs(2));
            outbox.close();
        }
        self.answered.notify_all();
        for thread in std::mem::take(&mut *locked(&self.threads)) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        drop(locked(&self.peer_server).take());
        self.known.save();
    }

    /// Ends the connection and all threads at once, with everything left as it is.
    pub(super) fn vanish(&self) {
        self.stop.store(true, Ordering::Release);
        if let Some(outbox) = locked(&self.outbox).take() {
            outbox.close();
        }
        self.end();
    }

    /// Makes a call, and waits for its outcome.
    pub(super) fn call(&self, call: Call) -> weft_vfs::Result<(Outcome, Seq)> {
        self.call_until(call, None, self.options.patience)
    }

    /// The same with a shorter or longer limit.
    pub(super) fn call_within(
        &self,
        call: Call,
        limit: Duration,
    ) -> weft_vfs::Result<(Outcome, Seq)> {
        self.call_until(call, None, limit)
    }

    /// The same for a call that waits for other callers: as long as it takes, or until it is
    /// interrupted.
    pub(super) fn call_interruptibly(
        self: &Arc<Self>,
        call: Call,
        interrupt: &Interrupt,
    ) -> weft_vfs::Result<(Outcome, Seq)> {
        let engine = Arc::downgrade(self);
        interrupt.on_raise(move || {
            if let Some(engine) = engine.upgrade() {
                // The lock makes sure that no thread is between its check and its wait.
                drop(locked(&engine.inner));
                engine.answered.notify_all();
            }
        });
        self.call_until(call, Some(interrupt), self.options.patience)
    }

    /// Makes a call that can be answered at once from leases; otherwise cancels it and returns
    /// `None`.
    pub(super) fn call_now(&self, call: Call) -> weft_vfs::Result<Option<(Outcome, Seq)>> {
        let id = CallId(self.next_call.fetch_add(1, Ordering::Relaxed));
        self.check_cell()?;
        let mut inner = locked(&self.inner);
        self.make_room(&mut inner, &call)?;
        inner.waiting.insert(id);
        self.handle(&mut inner, ClientEvent::Call(id, call));
        let outcome = inner.done.remove(&id);
        if outcome.is_none() {
            inner.waiting.remove(&id);
            self.handle(&mut inner, ClientEvent::Cancel(id));
        }
        Ok(outcome)
    }

    fn call_until(
        &self,
        call: Call,
        interrupt: Option<&Interrupt>,
        limit: Duration,
    ) -> weft_vfs::Result<(Outcome, Seq)> {
        let id = CallId(self.next_call.fetch_add(1, Ordering::Relaxed));
        self.check_cell()?;
        let mut inner = locked(&self.inner);
        self.make_room(&mut inner, &call)?;
        inner.waiting.insert(id);
        self.handle(&mut inner, ClientEvent::Call(id, call));
        let deadline = Instant::now() + limit;
        loop {
            if let Some(outcome) = inner.done.remove(&id) {
                return Ok(outcome);
            }
            let left = match interrupt {
                None => deadline.saturating_duration_since(Instant::now()),
                Some(_) => limit,
            };
            let is_interrupted = interrupt.is_some_and(Interrupt::is_raised);
            let hopeless = self.hopeless();
            if left.is_zero() || is_interrupted || self.is_stopped() || hopeless.is_some() {
                inner.waiting.remove(&id);
                self.handle(&mut inner, ClientEvent::Cancel(id));
                if is_interrupted {
                    return Err(weft_vfs::Error::Interrupted);
                }
                if let Some(error) = hopeless {
                    return Err(error);
                }
                if inner.client.is_server_full() {
                    let message = "the metadata server's disk is full".to_owned();
                    return Err(weft_vfs::Error::Io { errno: ENOSPC, message });
                }
                return Err(weft_vfs::Error::Io { errno: ETIMEDOUT, message: self.silent() });
            }
            let waited = self.answered.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Makes sure that the journal has room for a call that is a change.
    #[expect(clippy::unused_self, reason = "as what it is called beside")]
    fn make_room(&self, inner: &mut Inner, call: &Call) -> weft_vfs::Result<()> {
        // Space beside the operation: numbers and versions of a few rnodes.
        const BESIDE_BYTES: u64 = 1 << 10;
        let len_bytes = match call {
            Call::Apply { op, .. } => encode(op).len() as u64,
            Call::Write { blocks, redo, .. } => {
                let data = redo.iter().map(|part| part.data.0.len() as u64 + BESIDE_BYTES);
                // It may replace an earlier change, and then has that one's blocks too.
                data.sum::<u64>() + (blocks.len() as u64) * 64
            }
            _ => return Ok(()),
        };
        if inner.journal.is_behind() {
            return Err(weft_vfs::Error::NoSpace);
        }
        let unsent = inner.client.unflushed();
        inner.journal.make_room(len_bytes + BESIDE_BYTES, unsent).map_err(|e| io_error(&e))
    }

    /// Passes an event to the state machine, and carries out the actions that it returns.
    pub(super) fn handle(&self, inner: &mut Inner, event: ClientEvent) {
        let actions = inner.client.handle(now(), wall(), event);
        if actions.is_empty() {
            return;
        }
        let mut outbox = None;
        let mut answered = false;
        for action in actions {
            match action {
                ClientAction::Journal(record) => inner.journal.append(&record),
                ClientAction::SyncJournal => {
                    if let Err(e) = inner.journal.handle().and_then(|file| file.sync_data()) {
                        tracing::error!("the journal: {e}");
                    }
                }
                ClientAction::Send(message) => {
                    let outbox = outbox.get_or_insert_with(|| locked(&self.outbox).clone());
                    // A lost message is sent again.
                    if let Some(outbox) = outbox {
                        outbox.post(&Ask::Mds { message: Box::new(message) });
                    }
                }
                ClientAction::Return { call, outcome, depends } => {
                    if inner.waiting.remove(&call) {
                        inner.done.insert(call, (outcome, depends));
                        answered = true;
                    }
                }
                ClientAction::Seal { rnode } => self.open.want(rnode),
                ClientAction::Lost { rnode } => self.lost_leases.add(rnode),
                ClientAction::Conflict(conflict) => {
                    tracing::warn!(
                        "conflict: change {} of this client was not applied ({}): {:?}",
                        conflict.logged.seq.0,
                        conflict.why,
                        conflict.logged.op
                    );
                    for (rnode, hash) in blocks_of(&conflict.logged.op) {
                        if let Err(e) = self.blocks.keep(rnode, &hash) {
                            tracing::error!("cannot keep a block of a conflict: {e}");
                        }
                    }
                    if let Err(e) = locked(&self.conflicts).add(conflict) {
                        tracing::error!("cannot record a conflict: {e}");
                    }
                }
            }
        }
        if answered {
            self.answered.notify_all();
        }
    }

    /// Makes conflicts of the changes that no server has, as this client begins anew: the cell that
    /// is accepted now is not the one that they were made on, or the store is a copy. Returns their
    /// number. Durable when it returns.
    pub(super) fn give_up_unsent(&self, why: Refusal) -> Result<usize> {
        let failed = |e| Error::io("the changes that are given up", e);
        self.seal_all().and_then(|()| self.blocks.sync()).map_err(failed)?;
        let inner = locked(&self.inner);
        let mut conflicts = locked(&self.conflicts);
        let base = conflicts.base_for_another_past();
        let mut count = 0;
        for logged in inner.client.unsent() {
            for (rnode, hash) in blocks_of(&logged.op) {
                self.blocks.keep(rnode, &hash).map_err(failed)?;
            }
            let mut logged = logged.clone();
            logged.seq = Seq(base + logged.seq.0);
            conflicts.add(Conflict { logged, why }).map_err(failed)?;
            count += 1;
        }
        Ok(count)
    }

    /// Something that the user of the mount should hear when it begins, and later in its status.
    pub(super) fn note(&self, text: String) {
        tracing::warn!("{text}");
        locked(&self.notes).push(text);
    }

    /// Saves the last state seen of the cell, at intervals: in a thread of its own, because a slow
    /// disk must not hold up the renewal of the epoch.
    fn save_known(&self) {
        let mut saved = Instant::now();
        while !self.is_stopped() {
            std::thread::sleep(TICK);
            if saved.elapsed() >= SAVE_EVERY {
                self.known.save();
                saved = Instant::now();
            }
        }
    }

    fn keep_time(self: &Arc<Self>) {
        while !self.is_stopped() {
            std::thread::sleep(TICK);
            let mut inner = locked(&self.inner);
            if let Err(e) = inner.journal.catch_up() {
                tracing::debug!("the journal: {e}");
            }
            self.handle(&mut inner, ClientEvent::Tick);
            if inner.journal.is_long(false) {
                drop(inner);
                if let Err(e) = self.shorten_journal() {
                    tracing::error!("cannot compact the journal: {e}");
                }
            }
        }
    }

    /// Rewrites the journal, durably, with the records still needed: not with data written into
    /// blocks that are stored by now. Returns `false` if that could not be done yet.
    fn shorten_journal(&self) -> std::io::Result<bool> {
        let _one = locked(&self.shortening);
        self.open.set_closed(true);
        let shortened = self.seal_all().and_then(|()| self.blocks.sync()).and_then(|()| {
            let mut inner = locked(&self.inner);
            match inner.client.shortened_journal() {
                Some(records) => inner.journal.restart(&records).map(|()| true),
                None => Ok(false),
            }
        });
        self.open.set_closed(false);
        shortened
    }

    /// Makes a writer that outruns the rewriting of the journal do that itself, or wait for it.
    /// Must not be called behind a gate.
    pub(super) fn bound_journal(&self) -> std::io::Result<()> {
        let is_overlong = || locked(&self.inner).journal.is_overlong();
        if is_overlong() {
            // Another thread may be rewriting it.
            drop(locked(&self.shortening));
            if is_overlong() {
                self.shorten_journal()?;
            }
        }
        Ok(())
    }

    /// Stores the open blocks of a file, or one of them, and tells the state machine their hashes.
    pub(super) fn seal(&self, id: RnodeId, only: Option<&BlockHash>) -> std::io::Result<()> {
        let mut behind = self.open.change(id);
        let of = behind.iter().filter(|(name, b)| b.rnode == id && only.is_none_or(|o| o == *name));
        let mut names: Vec<BlockHash> = of.map(|(name, _)| *name).collect();
        names.sort_unstable();
        for name in names {
            let Some(open) = behind.get(&name) else { continue };
            let hash = open.to_store().and_then(|bytes| self.blocks.put_open(id, &name, &bytes));
            self.open.set_failing(hash.is_err());
            let hash = hash?;
            let mut inner = locked(&self.inner);
            self.handle(&mut inner, ClientEvent::Sealed { rnode: id, name, hash });
            // It may have been truncated, or overwritten as a whole.
            let seq = inner.client.last();
            locked(&self.superseded).push_back(Superseded { seq, rnode: id, hash });
            drop(inner);
            self.open.remove(&mut behind, &name);
            self.blocks.drop_base(&name);
        }
        Ok(())
    }

    /// Stores all open blocks.
    fn seal_all(&self) -> std::io::Result<()> {
        self.open.files().into_iter().try_for_each(|id| self.seal(id, None))
    }

    fn keep_sealing(self: &Arc<Self>) {
        while !self.is_stopped() {
            for id in self.open.wait(TICK) {
                if let Err(e) = self.seal(id, None) {
                    tracing::error!("cannot store data written to inode {id}: {e}");
                    std::thread::sleep(TICK);
                }
            }
            self.open.tidy();
            self.blocks.restore_spare();
        }
    }

    /// Makes everything durable here, and waits until the server has every change.
    pub(super) fn sync(&self) -> weft_vfs::Result<()> {
        let io = |e: std::io::Error| weft_vfs::Error::Io {
            errno: e.raw_os_error().unwrap_or(5),
            message: format!("the local store: {e}"),
        };
        self.home.check_place().map_err(io)?;
        self.seal_all().map_err(io)?;
        self.blocks.sync().map_err(io)?;
        let (journal, is_long) = {
            let mut inner = locked(&self.inner);
            inner.journal.catch_up().map_err(io)?;
            let needed = inner.client.unflushed() > 0;
            let journal = needed.then(|| inner.journal.handle()).transpose().map_err(io)?;
            (journal, inner.journal.is_long(true))
        };
        if let Some(journal) = journal
            && !(is_long && self.shorten_journal().map_err(io)?)
        {
            journal.sync_data().map_err(io)?;
        }
        match self.call(Call::Sync)?.0 {
            Outcome::Refused(why) => Err(why.into()),
            _ => Ok(()),
        }
    }

    /// This client's number, once the server has accepted it.
    pub(super) fn client(&self) -> Option<ClientId> {
        self.joined.get()?.as_ref().ok().copied()
    }

    /// The cell's number; 0 if that cannot be read.
    pub(super) fn cell(&self) -> u64 {
        self.home.cell().unwrap_or(0)
    }

    pub(super) fn pins_path(&self) -> std::path::PathBuf {
        self.home.path("pins")
    }

    /// The number of changes that the server may not have.
    pub(super) fn unflushed(&self) -> usize {
        locked(&self.inner).client.unflushed()
    }

    /// Returns true if the server has every change of this client.
    pub(super) fn is_all_flushed(&self) -> bool {
        self.unflushed() == 0
    }

    /// The policy for files in a directory, if leases tell it.
    pub(super) fn known_policy(&self, dir: RnodeId) -> Option<Policy> {
        let inner = locked(&self.inner);
        let mut at = dir;
        loop {
            let rnode = inner.client.cached(at)?;
            let Body::Directory { parent, .. } = rnode.body else { return None };
            match Policy::of(rnode) {
                Some(policy) => return Some(policy),
                None if parent == at => return Some(Policy::default()),
                None => at = parent,
            }
        }
    }

    /// The holders of the blocks of an rnode.
    pub(super) fn holders(&self, id: RnodeId) -> Holders {
        locked(&self.inner).client.holders(id).cloned().unwrap_or_default()
    }

    /// The client's present epoch.
    pub(super) fn epoch(&self) -> Epoch {
        locked(&self.inner).client.epoch()
    }

    /// Returns true if an rnode has no name any more, as far as a lease of this client tells.
    pub(super) fn lost_its_names(&self, id: RnodeId) -> bool {
        locked(&self.inner).client.cached(id).is_some_and(|rnode| rnode.nlink == 0)
    }

    /// Returns true if an owner has any lock on a file.
    pub(super) fn has_locks(&self, id: RnodeId, style: LockStyle, owner: u64) -> bool {
        locked(&self.inner).client.has_locks(id, style, owner)
    }

    /// Returns true if this client has any lease on an rnode.
    pub(super) fn has_lease(&self, id: RnodeId) -> bool {
        locked(&self.inner).client.mode(id).is_some()
    }

    /// All leases that this client has.
    pub(super) fn leases(&self) -> Vec<(RnodeId, Mode)> {
        locked(&self.inner).client.leases(now()).collect()
    }

    /// Takes those superseded blocks that no client needs any more.
    pub(super) fn useless_blocks(&self) -> Vec<(RnodeId, BlockHash)> {
        let inner = locked(&self.inner);
        let applied = inner.client.applied();
        let mut superseded = locked(&self.superseded);
        let (mut useless, mut later) = (Vec::new(), Vec::new());
        while let Some(old) = superseded.pop_front_if(|s| s.seq <= applied) {
            if !inner.client.is_flushed(old.rnode) {
                later.push(old);
                continue;
            }
            // If the change was given up, the block may belong to the file again.
            match inner.client.cached(old.rnode).map(|r| &r.body) {
                Some(Body::File { blocks, kept, .. }) if *kept == Version::default() => {
                    if !blocks.values().any(|b| b.hash == old.hash) {
                        useless.push((old.rnode, old.hash));
                    }
                }
                // For a file with earlier versions, the scan asks the server.
                Some(_) => {}
                // The lease is gone: this client cannot tell, and the server is asked.
                None => drop(locked(&self.doubtful).insert(old.rnode)),
            }
        }
        superseded.extend(later);
        useless
    }

    /// Returns true if a block is of no use any more. That stays so while no thread writes to the
    /// file.
    pub(super) fn is_useless(&self, rnode: RnodeId, hash: &BlockHash) -> bool {
        let inner = locked(&self.inner);
        let state = inner.client.cached(rnode).filter(|_| inner.client.is_flushed(rnode));
        matches!(state.map(|r| &r.body), Some(Body::File { blocks, .. })
            if !blocks.values().any(|b| b.hash == *hash))
    }
}
