//! The engine's interface: operations and syncs.

use crate::batch::{Write, fail_all, first_error, write_batch};
use crate::graph::NONE;
use crate::group::Wanted;
use crate::jbd2::{Log, LogMap};
use crate::nowait::about_to_wait;
use crate::patchgroup::Joined;
use crate::reads::Reads;
use crate::spare::Spare;
use crate::state::State;
use crate::transactions::{Journal, open_log};
use crate::writeback::Goal;
use crate::{BlockNr, Counters, Error, Options, Owner, PatchId, Policy, Result};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use weft_block::{BlockDevice, OwnerProcess};

/// The engine of one volume: its buffer cache, its patches and its write-back.
///
/// See the [crate] page for an example.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("policy", &self.shared.policy)
            .field("block_bytes", &self.shared.block_bytes)
            .field("len_blocks", &self.shared.len_blocks)
            .finish_non_exhaustive()
    }
}

/// State shared by the callers' threads and the write-back thread.
pub(crate) struct Shared {
    pub state: Mutex<State>,
    /// Held during a round, a commit or a checkpoint. Taken before `state`.
    pub io: Mutex<()>,
    /// The journal's log; used under `io`.
    pub log: Option<Mutex<Log>>,
    pub device: Arc<dyn BlockDevice>,
    pub policy: Policy,
    pub block_bytes: u32,
    pub len_blocks: u64,
    max_request_bytes: usize,
    pub(crate) memory_budget_bytes: usize,
    pub(crate) background_bytes: usize,
    pub(crate) max_age_ms: u64,
    background: bool,
    /// Wakes the write-back thread.
    pub(crate) work: Condvar,
    /// Wakes the threads that wait for memory.
    pub room: Condvar,
    /// Wakes the threads that wait for blocks that others read.
    pub fetched: Condvar,
    /// Wakes the threads that wait for the end of an atomic group.
    pub unheld: Condvar,
    pub spare: Spare,
    /// The process that may use it.
    pub owner: OwnerProcess,
}

impl Engine {
    /// Opens an engine on a device and starts its write-back thread.
    ///
    /// `block_bytes` is the unit of [`BlockNr`]: a power of two from 512 to 32,768.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad block size, or a journal policy (see
    /// [`with_journal`](Self::with_journal)).
    // Options are given away, so that a caller writes them in place.
    #[allow(clippy::needless_pass_by_value)]
    pub fn new(
        device: Arc<dyn BlockDevice>,
        block_bytes: u32,
        options: Options,
    ) -> Result<Arc<Self>> {
        if matches!(options.policy, Policy::Journal(_)) {
            return Err(Error::Invalid("a journal policy needs a journal".into()));
        }
        Self::start(device, block_bytes, &options, None)
    }

    /// Opens an engine whose changes go through a JBD2 journal, inside or outside the volume.
    ///
    /// The journal must be clean: [`recover`](crate::recover) it first.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Journal`] for a journal that cannot be used.
    // Options are given away, so that a caller writes them in place.
    #[allow(clippy::needless_pass_by_value)]
    pub fn with_journal(
        device: Arc<dyn BlockDevice>,
        block_bytes: u32,
        options: Options,
        journal: LogMap,
    ) -> Result<Arc<Self>> {
        if !matches!(options.policy, Policy::Journal(_)) {
            return Err(Error::Invalid("a journal is of use to a journal policy only".into()));
        }
        let log = open_log(journal, block_bytes)?;
        Self::start(device, block_bytes, &options, Some(log))
    }

    fn start(
        device: Arc<dyn BlockDevice>,
        block_bytes: u32,
        options: &Options,
        log: Option<Log>,
    ) -> Result<Arc<Self>> {
        if !block_bytes.is_power_of_two() || !(512..=32_768).contains(&block_bytes) {
            return Err(Error::Invalid(format!(
                "a block size of {block_bytes} bytes is not a power of two from 512 to 32768"
            )));
        }
        let mut state = State::new(Arc::clone(&device), block_bytes as usize, options.clone());
        if options.policy != Policy::Soft {
            // Under these policies changes of a block do not wait for each other, and are one
            // patch.
            state.options.block_patches_max = u32::MAX;
        }
        if let (Policy::Journal(mode), Some(log)) = (options.policy, &log) {
            state.journal = Some(Journal::new(log, mode));
        }
        let shared = Arc::new(Shared {
            policy: options.policy,
            block_bytes,
            len_blocks: state.len_blocks,
            max_request_bytes: options.max_request_bytes,
            memory_budget_bytes: options.memory_budget_bytes,
            background_bytes: options.background_bytes.min(options.memory_budget_bytes / 2),
            max_age_ms: u64::try_from(options.max_age.as_millis()).unwrap_or(u64::MAX),
            background: options.background && !state.read_only,
            state: Mutex::new(state),
            io: Mutex::new(()),
            log: log.map(Mutex::new),
            device,
            work: Condvar::new(),
            room: Condvar::new(),
            fetched: Condvar::new(),
            unheld: Condvar::new(),
            spare: Spare::default(),
            owner: OwnerProcess::this(),
        });
        let thread = if shared.background {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("weft-writeback".into())
                .spawn(move || shared.write_back())
                .map_err(|e| Error::Invalid(format!("cannot start the write-back thread: {e}")))?;
            Some(thread)
        } else {
            None
        };
        Ok(Arc::new(Self { shared, thread: Mutex::new(thread) }))
    }

    /// Starts an operation: a set of changes that a journal makes atomic, under the engine's lock,
    /// which the [`Op`] holds.
    ///
    /// `max_blocks` bounds the number of blocks that the operation changes. If it is to change any,
    /// waits while too much memory is dirty, or a block has too many pending changes.
    ///
    /// Blocks that are not in memory are read under the lock; [`look`](Self::look) and
    /// [`begin_after`](Self::begin_after) read them without it.
    ///
    /// # Errors
    /// The device's error if memory is full and writing to the device fails;
    /// [`Error::JournalTooSmall`].
    pub fn begin(&self, max_blocks: u32) -> Result<Op<'_>> {
        let shared = &*self.shared;
        let mut state = shared.lock_here()?;
        if max_blocks > 0 {
            state = shared.wait_to_begin(state, max_blocks)?;
        }
        state.counters.operations += 1;
        Ok(shared.op(max_blocks, state))
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// The first write or flush that failed. Failed writes stay in memory; another call retries
    /// them.
    pub fn sync(&self) -> Result<()> {
        about_to_wait()?;
        self.shared.reach(Wanted::All)
    }

    /// Writes back now what age and pressure would write back later: with a journal, also in place.
    /// Unlike [`sync`](Self::sync) it guarantees nothing for changes that are not ready.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn write_back(&self) -> Result<()> {
        about_to_wait()?;
        if self.shared.log.is_some() {
            return self.shared.checkpoint();
        }
        let _io = self.shared.lock_io()?;
        self.shared.round(Goal::All).1
    }

    /// Makes durable the dirty blocks of one owner, the patches `also`, and all they depend on.
    ///
    /// # Errors
    /// As [`sync`](Self::sync), for these blocks.
    pub fn sync_owner(&self, owner: Owner, also: &[PatchId]) -> Result<()> {
        about_to_wait()?;
        self.shared.reach(Wanted::Owner(owner, also.to_vec()))
    }

    /// Reads a run of blocks from the device, bypassing the cache and its lock. For file data that
    /// [`Op::cached`] did not return.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn read_device(&self, nr: BlockNr, buf: &mut [u8]) -> Result<()> {
        self.shared.read_blocks(nr, buf)
    }

    /// Returns the present counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters_now()
    }

    /// Returns the commit policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.shared.policy
    }

    /// Returns the block size in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.shared.block_bytes
    }

    /// Returns the number of blocks of the device.
    #[must_use]
    pub fn len_blocks(&self) -> u64 {
        self.shared.len_blocks
    }

    /// Makes all changes durable, closes the journal, and stops the write-back thread.
    ///
    /// # Errors
    /// As [`sync`](Self::sync). The thread is stopped in any case.
    pub fn shutdown(&self) -> Result<()> {
        self.shared.demand_owner()?;
        let result = self.sync().and_then(|()| self.shared.close_journal());
        self.stop();
        result
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic in an operation the state satisfies the safety rule, as at every moment:
        // noted changes may be written. Going on is better than losing all of them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an operation that changes so many blocks may begin.
    pub(crate) fn wait_for_room<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        max_blocks: u32,
    ) -> Result<MutexGuard<'a, State>> {
        loop {
            if let Some(work) = state.journal_needs(max_blocks)? {
                about_to_wait()?;
                drop(state);
                self.make_log_room(work)?;
                state = self.lock();
                continue;
            }
            // While a write is failing, a full block does not make operations wait; memory does.
            let full = state.full_blocks > 0 && state.failed.is_empty();
            if !full && state.dirty_bytes() <= self.memory_budget_bytes {
                return Ok(state);
            }
            about_to_wait()?;
            if self.background && state.failed.is_empty() && !self.io.is_poisoned() {
                state.signals.pressed = true;
                self.work.notify_one();
                state = self
                    .room
                    .wait_timeout(state, Duration::from_millis(100))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            } else {
                drop(state);
                self.relieve()?;
                state = self.lock();
            }
        }
    }

    /// Takes the lock under which blocks are written. A panic during a write leaves it half noted:
    /// going on could hang, or overwrite data that a recovery needs.
    pub fn lock_io(&self) -> Result<MutexGuard<'_, ()>> {
        self.demand_owner()?;
        self.io.lock().map_err(|_| Error::Halted)
    }

    /// Runs one round. The caller holds `io`. Returns true if anything was written, and the first
    /// error.
    pub fn round(&self, goal: Goal) -> (bool, Result<()>) {
        let batch = self.lock().plan(goal);
        (!batch.is_empty(), self.write_planned(batch))
    }

    /// Writes the blocks that were planned, and flushes the device. The caller has held `io` since
    /// before they were planned.
    ///
    /// # Errors
    /// The first error.
    pub fn write_planned(&self, batch: Vec<Write>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.write_with(batch, true, || ()).2
    }

    /// Writes the blocks that were planned and what `also` writes, and flushes the device once for
    /// both if `flushes` is set. Returns what `also` returned, the result of the flush, and the
    /// first error of the batch, the flush included.
    pub fn write_with<R>(
        &self,
        mut batch: Vec<Write>,
        flushes: bool,
        also: impl FnOnce() -> R,
    ) -> (R, Result<()>, Result<()>) {
        let block_bytes = self.block_bytes as usize;
        let requests = write_batch(&*self.device, &mut batch, block_bytes, self.max_request_bytes);
        let also = also();
        let flushed = if flushes { self.device.flush() } else { Ok(()) };
        let flushed = flushed.map_err(|e| Error::flush(&e));
        if let Err(e) = &flushed {
            fail_all(&mut batch, e);
        }
        let result = first_error(&batch);
        let mut state = self.lock();
        for blocks in requests {
            state.counters.count_request(blocks);
        }
        state.counters.flushes += u64::from(flushes);
        state.complete(batch);
        self.note_progress(state);
        (also, flushed, result)
    }

    /// Returns an error if there are dirty patches and nothing was planned for them: that would be
    /// a cycle, a bug of the engine. Both must have been found under one lock of the state: between
    /// two, an operation may free the blocks and cancel their patches.
    pub fn check_progress(&self, planned: &[Write]) -> Result<()> {
        if !planned.is_empty() {
            return Ok(());
        }
        debug_assert!(false, "dirty patches and nothing to write: a cycle");
        Err(Error::Internal("a cycle of dependent blocks cannot be written".into()))
    }

    /// Writes in the calling thread, when memory is full and no thread writes back.
    fn relieve(&self) -> Result<()> {
        let io = self.lock_io()?;
        let (batch, dirty) = {
            let mut state = self.lock();
            let before_ms = state.now_ms();
            let mut batch = state.plan(Goal::Background { before_ms, data: true });
            if batch.is_empty() {
                batch = state.plan(Goal::All);
            }
            (batch, state.cache.dirty_blocks() > 0)
        };
        if batch.is_empty() && self.log.is_some() {
            drop(io);
            return self.commit();
        }
        if dirty {
            self.check_progress(&batch)?;
        }
        self.write_planned(batch)
    }
}

/// An operation: changes made together, under the engine's lock.
///
/// Dropping it ends the operation; it cannot be aborted, and its changes stay.
pub struct Op<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) state: MutexGuard<'a, State>,
    /// Maximum number of log blocks of the running transaction when the operation ends.
    pub(crate) log_blocks_max: u32,
    pub(crate) reads: Reads,
    pub(crate) joined: Joined,
}

impl fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").finish_non_exhaustive()
    }
}

impl Op<'_> {
    /// Returns a whole block, through the cache, for a search. A change of the block that depends
    /// on the bytes found is made with [`write_relying`](Self::write_relying).
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::OutOfRange`].
    pub fn read(&mut self, nr: BlockNr) -> Result<&[u8]> {
        let buffer = self.state.load(nr, false)?;
        self.reads.whole(nr);
        Ok(&self.state.cache[buffer].content)
    }

    /// Returns a whole block, through the cache, to be shown to a reader or kept in memory from now
    /// on (a bitmap, an inode), where the kept form determines what later changes must follow. No
    /// change of the block is decided by the bytes themselves, and none is checked to follow them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn peek(&mut self, nr: BlockNr) -> Result<&[u8]> {
        let buffer = self.state.load(nr, false)?;
        Ok(&self.state.cache[buffer].content)
    }

    /// Returns a part of a block, all of which the next change relies on: the operation's next
    /// change of the block must follow the pending patches of these bytes, as it does if it
    /// overwrites them or names them in [`write_relying`](Self::write_relying). A debug build
    /// checks that.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::BadRange`].
    pub fn read_range(&mut self, nr: BlockNr, range: Range<usize>) -> Result<&[u8]> {
        let buffer = self.state.load(nr, false)?;
        self.reads.part(nr, range.clone());
        let (offset, len_bytes) = (range.start, range.len());
        let part = self.state.cache[buffer].content.get(range);
        part.ok_or(Error::BadRange { nr, offset, len_bytes })
    }

    /// Returns a block's content if it is in the cache; it may be newer than the device's.
    #[must_use]
    pub fn cached(&self, nr: BlockNr) -> Option<&[u8]> {
        let buffer = self.state.cache.find(nr)?;
        Some(&self.state.cache[buffer].content)
    }

    /// Changes `bytes` at byte `offset` within a block, which is read first if not cached. The
    /// change becomes durable only after all `befores` are.
    ///
    /// # Errors
    /// [`Error::Device`] from the read, [`Error::BadRange`], [`Error::ReadOnly`].
    pub fn write(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.write_relying(nr, offset, bytes, &[], befores)
    }

    /// Does as [`write`](Self::write) for bytes that other bytes of the block have decided: the
    /// change also follows every pending change of the byte ranges `relied`. This orders changes
    /// within the block only: changes in *another* block on which it relies go into `befores`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_relying(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        relied: &[Range<usize>],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let shown = self.reads.changes(nr, relied);
        let patch = self.state.write(nr, offset, bytes, relied, befores)?;
        if cfg!(debug_assertions) && !shown.is_empty() && self.shared.policy == Policy::Soft {
            self.state.check_follows(patch, &shown);
        }
        Ok(patch)
    }

    /// Flips the bits of `mask` in the little-endian 32-bit word at byte `offset` of a block.
    /// Flips of different bits do not depend on each other.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn flip(
        &mut self,
        nr: BlockNr,
        offset: usize,
        mask: u32,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.state.flip(nr, offset, mask, befores)
    }

    /// Replaces a block's content entirely, without reading it.
    ///
    /// # Errors
    /// [`Error::BadRange`] if `content` is not one block, [`Error::ReadOnly`].
    pub fn init(&mut self, nr: BlockNr, content: &[u8], befores: &[PatchId]) -> Result<PatchId> {
        self.reads.replaced(nr);
        self.state.init(nr, content, befores)
    }

    /// Writes file data at byte `offset` within a block. A `fresh` block was just allocated: the
    /// rest of it becomes zero, and it is not read.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_data(
        &mut self,
        nr: BlockNr,
        owner: Owner,
        offset: usize,
        bytes: &[u8],
        fresh: bool,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.state.write_data(nr, owner, offset, bytes, fresh, befores)
    }

    /// Makes an empty patch: durable once all `befores` are. As the before of a patch it forces
    /// an earlier write even on the same block.
    ///
    /// # Errors
    /// None today.
    pub fn join(&mut self, befores: &[PatchId]) -> Result<PatchId> {
        if self.shared.policy != Policy::Soft {
            // These need no order within a block: a join of one change is the change itself.
            let mut live = befores.iter().filter(|&&id| !self.state.is_durable(id));
            let Some(first) = live.next() else { return Ok(PatchId::DURABLE) };
            if live.all(|id| id == first) {
                return Ok(*first);
            }
        }
        Ok(self.state.join(befores))
    }

    /// Tags a cached block, so that [`Engine::sync_owner`] writes it with the owner's data.
    pub fn own(&mut self, nr: BlockNr, owner: Owner) {
        if let Some(buffer) = self.state.cache.find(nr) {
            self.state.set_owner(buffer, owner);
        }
    }

    /// Frees a block: patch `cleared` removed the last pointer to it. Pending changes of the block
    /// for which nothing else waits are cancelled; a journal revokes it.
    pub fn free(&mut self, nr: BlockNr, cleared: PatchId) {
        self.state.free(nr, cleared);
    }

    /// Returns true if a patch is durable.
    #[must_use]
    pub fn is_durable(&self, patch: PatchId) -> bool {
        self.state.is_durable(patch)
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        self.state.run = NONE;
        self.joined.end(&mut self.state);
        let log_blocks = self.state.running_len_blocks(0);
        debug_assert!(
            log_blocks <= self.log_blocks_max || std::thread::panicking(),
            "an operation changed more than it said: the transaction takes {log_blocks} blocks of \
             the log, not {}",
            self.log_blocks_max
        );
        if self.state.is_crowded(self.shared.background_bytes) && !self.state.signals.woken {
            self.state.signals.woken = true;
            self.shared.work.notify_one();
        }
    }
}
