//! The journal policy: transactions in JBD2 format, under any file system.
//!
//! In the terms of the graph a transaction is one empty patch, its *commit*, that becomes durable
//! when the commit record does. Every journaled change waits for the commit of the running
//! transaction and for nothing else; so a block has one hard patch, and write-back in place (the
//! checkpoint) is the ordinary write-back.
//!
//! Invariants:
//! - The running transaction always fits into the free part of the log: [`State::journal_needs`]
//!   makes room before an operation begins. So a commit can always be written, and after it every
//!   block of the log can be written in place: the log cannot get stuck full.
//! - A transaction leaves the log (the tail passes it) only after each of its blocks is durable in
//!   place, or was freed by a later transaction that is committed.
//! - A block freed while a copy of it may be in the log is revoked by the transaction that frees
//!   it.
//!
//! One thread at a time commits, holding `io`; operations go on meanwhile in the next transaction.
//! A commit takes two flushes: one makes the copies in the log durable together with the file data
//! that the transaction and the callers wait for, the other the commit record. Callers share it (see
//! [`group`](crate::group)): their patches are journaled by the transaction that is written, or by
//! the one after it.

use crate::batch::Write;
use crate::engine::Shared;
use crate::graph::{Kind, NONE};
use crate::group::Wanted;
use crate::jbd2::{self, CommitTime, Format, Log, build_transaction};
use crate::state::State;
use crate::transactions::{Committing, LogWork, Logged, Transaction};
use crate::undo::Change;
use crate::writeback::Goal;
use crate::{BlockNr, Error, JournalMode, PatchId, Result};
use hashbrown::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_block::BlockDevice;

impl State {
    fn running(&mut self) -> &mut Transaction {
        let now = self.now_ms();
        let journal = self.journal.as_mut().expect("a journal policy has a journal");
        if journal.running.is_none() {
            let commit = self.graph.make(Kind::Empty, NONE);
            // No edge stands for this: it waits for its record.
            self.graph[commit].waits = 1;
            journal.running = Some(Transaction {
                number: journal.next_number,
                commit,
                blocks: Vec::new(),
                data: Vec::new(),
                revokes: HashSet::new(),
                freed: HashSet::new(),
                started_ms: now,
            });
            journal.next_number += 1;
        }
        journal.running.as_mut().expect("just made")
    }

    /// Notes a change under the journal policy.
    pub fn journal_change(&mut self, buffer: u32, change: Change) -> PatchId {
        let data = self.cache[buffer].data;
        let nr = self.cache[buffer].nr;
        let (number, commit) = {
            let running = self.running();
            (running.number, running.commit)
        };
        let mut new = std::mem::replace(&mut self.cache[buffer].transaction, number) != number;
        let overtakes = self.would_overtake_groups(buffer, number);
        let journal = self.journal.as_mut().expect("a journal policy has a journal");
        if !journal.journals(nr, data) && !overtakes {
            // A write in progress does not contain this change, which gets a patch of its own.
            let new = new || self.cache[buffer].in_flight;
            let patch = self.note_change(buffer, change, &[], &[]);
            let id = self.graph.id(patch);
            // A block that was changed by others in this transaction may not be ordered yet.
            if self.orders_data() && (new || self.grouped.active) {
                self.order_data(id);
            }
            return id;
        }
        if data && journal.mode != JournalMode::Full {
            // Changes of the same transaction may have been made in place.
            new = journal.data_blocks.insert(nr, number) != Some(number);
        }
        let id = self.graph.id(commit);
        self.note_change(buffer, change, &[], &[id]);
        let running = self.running();
        if new {
            running.blocks.push(nr);
        }
        if !running.revokes.is_empty() {
            running.revokes.remove(&nr);
        }
        if !running.freed.is_empty() {
            running.freed.remove(&nr);
        }
        id
    }

    /// Returns true if a change of file data, made in place, could be durable before the befores of its
    /// groups are, or before the rest of an atomic one. A block that the running transaction has allocated belongs to no file before its
    /// commit, which is after all that was changed until now.
    fn would_overtake_groups(&self, buffer: u32, running: u64) -> bool {
        let b = &self.cache[buffer];
        let ordered = !self.grouped.befores.is_empty() || !self.grouped.holds.is_empty();
        b.data && b.allocated_by != running && ordered
    }

    /// Notes whether a block of file data was just allocated.
    pub fn note_allocated(&mut self, buffer: u32, fresh: bool) {
        if fresh && self.journal.is_some() {
            self.cache[buffer].allocated_by = self.running().number;
        }
    }

    /// Returns true if the running transaction waits for the file data that is written now.
    pub fn orders_data(&self) -> bool {
        let mode = self.journal.as_ref().map(|journal| journal.mode);
        mode == Some(JournalMode::Ordered) || (mode.is_some() && self.grouped.active)
    }

    /// Returns true if a buffer has file data that is written in place before a commit, which a change
    /// that waits for the commit must not be merged with.
    pub fn has_ordered_data(&self, buffer: u32) -> bool {
        let b = &self.cache[buffer];
        let ordered = self.journal.as_ref().is_some_and(|j| j.mode != JournalMode::Full);
        ordered && b.data && b.hard != NONE && self.graph[b.hard].waits == 0
    }

    /// Returns the commit of the running transaction, if there is one.
    pub fn running_commit(&self) -> Option<u32> {
        Some(self.journal.as_ref()?.running.as_ref()?.commit)
    }

    /// Makes the running transaction commit only after this file data is durable.
    pub fn order_data(&mut self, id: PatchId) {
        let data = &mut self.running().data;
        if data.last() != Some(&id) {
            data.push(id);
        }
    }

    /// Notes that a block was freed by the running transaction.
    pub fn journal_free(&mut self, nr: BlockNr) {
        let buffer = self.cache.find(nr);
        let journal = self.journal.as_ref().expect("a journal policy has a journal");
        let may_be_in_log = journal.in_log.contains(&nr);
        if let Some(buffer) = buffer {
            let data = self.cache[buffer].data;
            // The transaction that is being committed may wait for this data: after a crash that
            // keeps it and loses the running one, a file still has the block.
            let awaited = journal.committing.is_some();
            if !journal.journals(nr, data) && !may_be_in_log && !awaited {
                self.cancel_freed(buffer, PatchId::DURABLE);
                return;
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.data_blocks.remove(&nr);
        }
        let running = self.running();
        if may_be_in_log {
            running.revokes.insert(nr);
        }
        if buffer.is_some() {
            running.freed.insert(nr);
        }
    }

    /// Returns the work that is needed before an operation of `max_blocks` may begin, if any.
    pub fn journal_needs(&self, max_blocks: u32) -> Result<Option<LogWork>> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let max = max_blocks as usize;
        let alone = journal.blocks_needed(max, max);
        if alone > journal.ring_blocks {
            return Err(Error::JournalTooSmall { needed: alone, available: journal.ring_blocks });
        }
        let needed = self.running_len_blocks(max);
        let something = journal.running.as_ref().is_some_and(|t| !t.is_empty());
        // A transaction of at most a quarter leaves room for the next while this one is written.
        if something && (needed > journal.ring_blocks / 4 || needed > journal.free_blocks) {
            return Ok(Some(LogWork::Commit));
        }
        Ok((needed > journal.free_blocks).then_some(LogWork::Checkpoint))
    }

    /// Returns true if the running transaction has been open since before this time, or a commit
    /// has failed.
    pub fn commit_due(&self, before_ms: u64) -> bool {
        self.journal.as_ref().is_some_and(|j| {
            let running = j.running.as_ref().filter(|t| !t.is_empty());
            j.committing.is_some() || running.is_some_and(|t| t.started_ms <= before_ms)
        })
    }

    /// Returns the number that the next transaction to commit will have: a write planned now
    /// contains the changes of all before it.
    pub fn next_sequence(&self) -> u32 {
        self.journal.as_ref().map_or(0, |j| j.next_sequence)
    }

    /// Notes that a block was written in place as the transactions before `sequence` left it: their
    /// copies of it are no longer needed.
    pub fn settle(&mut self, nr: BlockNr, sequence: u32) {
        let Some(journal) = &mut self.journal else { return };
        let Some(owed) = journal.owed.get_mut(&nr) else { return };
        owed.retain(|&mut s| {
            let settled = jbd2::is_after(sequence, s);
            if settled && let Some(logged) = journal.logged.iter_mut().find(|l| l.sequence == s) {
                logged.outstanding -= 1;
            }
            !settled
        });
        if owed.is_empty() {
            journal.owed.remove(&nr);
        }
    }

    /// Returns the number of log blocks that the running transaction takes once `more` blocks are
    /// changed and as many freed, besides those that atomic groups may still change.
    pub fn running_len_blocks(&self, more: usize) -> u32 {
        self.journal.as_ref().map_or(0, |journal| {
            let (blocks, revokes) =
                journal.running.as_ref().map_or((0, 0), |t| (t.blocks.len(), t.revokes.len()));
            let more = more + journal.held_blocks();
            journal.blocks_needed(blocks + more, revokes + more)
        })
    }

    /// Ends the running transaction: takes its copies, and reserves its part of the log, since
    /// operations go on while it is written. Does nothing if one is being written, or if atomic groups
    /// hold this one open.
    ///
    /// # Errors
    /// [`Error::Journal`]: operations changed more than they had declared.
    pub fn close_transaction(&mut self) -> Result<()> {
        let needed = self.running_len_blocks(0);
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let something = journal.running.as_ref().is_some_and(|t| !t.is_empty());
        if journal.committing.is_some() || !something || !journal.holds.is_empty() {
            return Ok(());
        }
        if needed > journal.free_blocks {
            return Err(Error::Internal(format!(
                "a transaction of {needed} blocks, and {} are free",
                journal.free_blocks
            )));
        }
        let Some(transaction) = journal.running.take() else { return Ok(()) };
        journal.closing = false;
        let cache = &self.cache;
        let mut copies: Vec<(u64, Arc<[u8]>)> = transaction
            .blocks
            .iter()
            .filter(|nr| !transaction.freed.contains(*nr))
            .filter_map(|&nr| {
                // A block that is not in memory any more has been freed and cancelled.
                let buffer = cache.find(nr)?;
                Some((nr.0, Arc::clone(&cache[buffer].content)))
            })
            .collect();
        copies.sort_unstable_by_key(|c| c.0);
        copies.dedup_by_key(|c| c.0);
        journal.in_log.extend(copies.iter().map(|c| BlockNr(c.0)));
        let len_blocks = journal.blocks_needed(copies.len(), transaction.revokes.len());
        journal.free_blocks -= len_blocks;
        journal.committing = Some(Committing { transaction, copies, len_blocks });
        Ok(())
    }

    /// Notes that the commit record is durable.
    fn committed(&mut self, start: u32, end: u32) {
        let Some(journal) = &mut self.journal else { return };
        let Some(Committing { transaction, copies, len_blocks }) = journal.committing.take() else {
            return;
        };
        let sequence = journal.next_sequence;
        journal.next_sequence = sequence.wrapping_add(1);
        journal.head = end;
        journal.logged.push_back(Logged { sequence, start, len_blocks, outstanding: copies.len() });
        for (nr, _) in copies {
            journal.owed.entry(BlockNr(nr)).or_default().push(sequence);
        }
        self.graph[transaction.commit].waits = 0;
        self.done_empties.push(transaction.commit);
        self.resolve_empties();
        self.counters.transactions += 1;
        self.counters.log_blocks_written += u64::from(len_blocks);
        for nr in transaction.freed {
            let Some(buffer) = self.cache.find(nr) else {
                self.settle(nr, sequence.wrapping_add(1));
                continue;
            };
            let b = &self.cache[buffer];
            if b.transaction > transaction.number || b.in_flight {
                continue;
            }
            if b.is_dirty() {
                self.cancel_all(buffer);
            }
            self.settle(nr, sequence.wrapping_add(1));
        }
    }

    /// Returns the first transaction of the log that is still needed, its start, and the number of
    /// log blocks that can be freed.
    fn tail(&self) -> Option<(u32, u32, u32)> {
        let journal = self.journal.as_ref()?;
        let done: u32 =
            journal.logged.iter().take_while(|l| l.outstanding == 0).map(|l| l.len_blocks).sum();
        let (sequence, start) = journal
            .logged
            .iter()
            .find(|l| l.outstanding > 0)
            .map_or((journal.next_sequence, 0), |l| (l.sequence, l.start));
        Some((sequence, start, done))
    }

    fn tail_moved(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        while journal.logged.front().is_some_and(|l| l.outstanding == 0) {
            if let Some(done) = journal.logged.pop_front() {
                journal.free_blocks += done.len_blocks;
            }
        }
        if journal.logged.is_empty() && journal.committing.is_none() {
            journal.in_log.clear();
            let running = journal.running.as_ref().map(|t| t.number);
            journal.data_blocks.retain(|_, number| Some(*number) == running);
        }
    }
}

/// The transaction to be committed: what is written for it, and where.
#[derive(Debug)]
pub(crate) struct Prepared {
    copies: Vec<(u64, Arc<[u8]>)>,
    /// Number of log blocks that were set aside for it.
    len_blocks: u32,
    revokes: Vec<u64>,
    /// File data that must be durable before the commit record.
    pub data: Vec<PatchId>,
    format: Format,
    sequence: u32,
    head: u32,
}

/// The blocks of a transaction that were written before its commit record.
struct Copies {
    /// The log block after them.
    end: u32,
    len_blocks: usize,
    crc: u32,
}

/// Writes the blocks of a transaction that come before its commit record.
fn write_copies(log: &mut Log, commit: &Prepared) -> Result<Copies> {
    let blocks: Vec<(u64, &[u8])> = commit.copies.iter().map(|(nr, c)| (*nr, &c[..])).collect();
    let Prepared { format, sequence, revokes, head, .. } = commit;
    let transaction = build_transaction(format, *sequence, &blocks, revokes).map_err(log_error)?;
    let len_blocks = transaction.blocks.len();
    debug_assert_eq!(len_blocks + 1, commit.len_blocks as usize, "what was set aside");
    if !log.needs_recovery() {
        log.set_tail(*sequence, *head).map_err(log_error)?;
    }
    let end = log.write_ring(*head, &transaction.blocks).map_err(log_error)?;
    Ok(Copies { end, len_blocks, crc: transaction.crc })
}

// By value, for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn log_error(e: jbd2::Error) -> Error {
    Error::Journal(e.to_string())
}

fn lock(log: &Mutex<Log>) -> std::sync::MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Makes room in the log for an operation.
    pub fn make_log_room(&self, work: LogWork) -> Result<()> {
        match work {
            LogWork::Commit => self.commit(),
            LogWork::Checkpoint => self.checkpoint(),
        }
    }

    /// Commits the running transaction, if it is not empty, and one whose commit had failed.
    pub fn commit(&self) -> Result<()> {
        if self.log.is_some() { self.reach(Wanted::Commits) } else { Ok(()) }
    }

    /// Writes a planned batch, which contains the data that a transaction waits for, and the
    /// transaction. The caller has held `io` since before they were planned. The errors of the batch
    /// are noted in its writes.
    ///
    /// # Errors
    /// The error because of which the transaction is not committed; it will be tried again.
    pub fn write_commit(&self, batch: Vec<Write>, commit: &Prepared) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let log = &mut *lock(log);
        let log_device = Arc::clone(log.map().device());
        let inside = Arc::as_ptr(&log_device).cast::<()>() == Arc::as_ptr(&self.device).cast();
        let flushes = inside || !batch.is_empty();
        let (copied, flushed, _) = self.write_with(batch, flushes, || write_copies(log, commit));
        flushed?;
        let copies = copied?;
        if !inside {
            log_device.flush().map_err(|e| Error::flush(&e))?;
        }
        let mut state = self.lock();
        state.counters.flushes += u64::from(!inside);
        state.counters.count_request(copies.len_blocks);
        if let Some(error) = state.failure_of(&commit.data) {
            return Err(error);
        }
        drop(state);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = CommitTime { seconds: now.as_secs(), nanoseconds: now.subsec_nanos() };
        let record = jbd2::commit_block(&commit.format, commit.sequence, copies.crc, time);
        let end = log.write_ring(copies.end, &[&record]).map_err(log_error)?;
        log_device.flush().map_err(|e| Error::flush(&e))?;
        let mut state = self.lock();
        state.counters.flushes += 1;
        state.counters.count_request(1);
        state.committed(commit.head, end);
        self.note_progress(state);
        Ok(())
    }

    /// Writes in place the blocks in the log, as far as they can be written now, and frees their
    /// space in the log.
    pub fn checkpoint(&self) -> Result<()> {
        let _io = self.lock_io()?;
        loop {
            let (wrote, result) = self.round(Goal::All);
            result?;
            let state = self.lock();
            let owed = state.journal.as_ref().is_some_and(|j| !j.owed.is_empty());
            if !wrote || !owed {
                break;
            }
        }
        self.move_tail()
    }

    /// Moves the tail of the log past the transactions that are no longer needed. The caller holds
    /// `io`.
    fn move_tail(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let Some((sequence, start, done)) = self.lock().tail() else { return Ok(()) };
        if done == 0 {
            return Ok(());
        }
        let mut log = lock(log);
        log.set_tail(sequence, start).map_err(log_error)?;
        log.map().device().flush().map_err(|e| Error::flush(&e))?;
        let mut state = self.lock();
        state.counters.flushes += 1;
        state.tail_moved();
        Ok(())
    }

    /// Commits, writes all blocks in place and empties the log.
    pub fn close_journal(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        self.commit()?;
        let _io = self.lock_io()?;
        loop {
            let (wrote, result) = self.round(Goal::All);
            result?;
            if !wrote {
                break;
            }
        }
        let next_sequence = {
            let mut state = self.lock();
            if state.cache.dirty_blocks() > 0 {
                return Err(Error::Internal("blocks left after a commit".into()));
            }
            state.tail_moved();
            state.journal.as_ref().map_or(1, |j| j.next_sequence)
        };
        lock(log).reset(next_sequence).map_err(log_error)
    }
}

impl State {
    /// Returns true if a patch is file data that is durable in place only.
    fn is_unjournaled(&self, id: PatchId) -> bool {
        let (Some(p), Some(journal)) = (self.graph.find(id), &self.journal) else { return false };
        let in_place = |b: u32| {
            let b = &self.cache[b];
            b.data && !journal.journals(b.nr, true)
        };
        let full = journal.mode == JournalMode::Full;
        !full && (self.graph[p].kind == Kind::Run || self.buffer_of(p).is_some_and(in_place))
    }

    /// Returns true if a patch is the commit of a transaction that is not durable yet.
    pub fn is_commit(&self, id: PatchId) -> bool {
        self.graph.find(id).is_some_and(|index| self.open_commits().contains(&index))
    }

    /// Returns the commits of the transaction that is being written and of the running one, or
    /// `NONE`.
    fn open_commits(&self) -> [u32; 2] {
        self.open_transactions().map(|t| t.map_or(NONE, |t| t.commit))
    }

    /// Returns the transaction that is being written, and the running one if it is not empty.
    fn open_transactions(&self) -> [Option<&Transaction>; 2] {
        let Some(journal) = &self.journal else { return [None; 2] };
        let committing = journal.committing.as_ref().map(|c| &c.transaction);
        [committing, journal.running.as_ref().filter(|t| !t.is_empty())]
    }

    /// Replaces the patches of a sync that are durable with a transaction by its commit, and those
    /// that join others by these. With `all` the sync waits for all transactions.
    pub fn put_commits_into(&mut self, roots: &mut Vec<PatchId>, all: bool) {
        let commits = self.open_commits();
        let is_join = |id: &PatchId| {
            let found = self.graph.find(*id);
            found.is_some_and(|i| self.graph[i].kind == Kind::Empty && !commits.contains(&i))
        };
        let joins = roots.iter().any(is_join);
        let mut needed = [all; 2];
        let mut joined = Vec::new();
        self.needs(roots, |index, patch| {
            for (commit, needed) in commits.iter().zip(&mut needed) {
                *needed |= *commit == index;
            }
            if joins && (patch.buffer != NONE || patch.kind == Kind::Run) {
                joined.push(index);
            }
            !joins && needed == [true; 2]
        });
        roots.extend(joined.into_iter().map(|index| self.graph.id(index)));
        for (transaction, needed) in self.open_transactions().into_iter().zip(&mut needed) {
            let number = transaction.map(|t| t.number);
            *needed |= number.is_some() && roots.iter().any(|&id| self.journaled_by(id) == number);
        }
        roots.retain(|&id| self.is_unjournaled(id));
        for (commit, needed) in commits.into_iter().zip(needed) {
            if needed && commit != NONE {
                roots.push(self.graph.id(commit));
            }
        }
    }

    /// Returns the last transaction with the block of a patch, of file data that was journaled although
    /// the mode does not journal data.
    fn journaled_by(&self, id: PatchId) -> Option<u64> {
        let buffer = self.buffer_of(self.graph.find(id)?)?;
        self.journal.as_ref()?.data_blocks.get(&self.cache[buffer].nr).copied()
    }

    /// Returns the transaction that is to be committed next, if one has ended.
    pub fn prepare_commit(&self) -> Option<Prepared> {
        let journal = self.journal.as_ref()?;
        let Committing { transaction, copies, len_blocks } = journal.committing.as_ref()?;
        Some(Prepared {
            copies: copies.clone(),
            len_blocks: *len_blocks,
            revokes: transaction.revokes.iter().map(|nr| nr.0).collect(),
            data: transaction.data.clone(),
            format: journal.format,
            sequence: journal.next_sequence,
            head: journal.head,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::write_batch;
    use crate::jbd2::LogMap;
    use crate::{Engine, Options, Owner, Policy};
    use weft_block::MemoryDevice;

    const BLOCK: usize = 1024;
    const BLOCKS: u64 = 128;
    const LOG_FROM: u64 = 64;
    const INODE: BlockNr = BlockNr(1);
    const DATA: BlockNr = BlockNr(9);

    fn engine() -> Arc<Engine> {
        let device = Arc::new(MemoryDevice::new(BLOCKS * BLOCK as u64));
        let log = jbd2::FormatOptions {
            block_bytes: BLOCK as u32,
            len_blocks: (BLOCKS - LOG_FROM) as u32,
            superblock_at: 0,
            uuid: [7; 16],
            features: jbd2::Features::default(),
            users: vec![],
        };
        let superblock = jbd2::format_journal_superblock(&log).unwrap();
        device.write_at(&superblock, LOG_FROM * BLOCK as u64).unwrap();
        let blocks: Vec<u64> = (LOG_FROM..BLOCKS).collect();
        let map = LogMap::from_blocks(device.clone(), BLOCK as u32, &blocks).unwrap();
        let policy = Policy::Journal(JournalMode::Ordered);
        let options = Options { policy, background: false, ..Options::default() };
        Engine::with_journal(device, BLOCK as u32, options, map).unwrap()
    }

    /// Writes file data and, in the same operation, the inode that has it.
    fn append(engine: &Engine, offset: usize, bytes: &[u8], fresh: bool) -> PatchId {
        let mut op = engine.begin(4).unwrap();
        let data = op.write_data(DATA, Owner(5), offset, bytes, fresh, &[]).unwrap();
        op.write(INODE, 0, &[(offset + bytes.len()) as u8], &[]).unwrap();
        data
    }

    #[test]
    fn data_that_a_commit_waits_for_is_not_cancelled_by_the_next_transaction() {
        for len_bytes in [4, BLOCK] {
            let engine = engine();
            let data = append(&engine, 0, &vec![7; len_bytes], true);
            engine.lock().close_transaction().unwrap();
            // Between the end of the transaction and the writing of its data, the file is removed.
            let mut op = engine.begin(4).unwrap();
            let cleared = op.write(INODE, 0, &[0], &[]).unwrap();
            op.free(DATA, cleared);
            assert!(!op.is_durable(data), "a commit may have it in a file without its data");
            drop(op);
            engine.shared.commit().unwrap();
            let mut found = vec![0; len_bytes];
            engine.read_device(DATA, &mut found).unwrap();
            assert_eq!(found, vec![7; len_bytes]);
            engine.sync().unwrap();
            engine.shutdown().unwrap();
        }
    }

    #[test]
    fn a_commit_waits_for_what_was_changed_while_the_block_was_written() {
        let engine = engine();
        append(&engine, 0, b"aa", true);
        // Background write-back takes the block, and it changes before the write has ended.
        let mut batch = engine.lock().plan(Goal::All);
        append(&engine, 2, b"bb", false);
        write_batch(&*engine.shared.device, &mut batch, BLOCK, BLOCK);
        engine.lock().complete(batch);
        engine.shared.commit().unwrap();
        let mut found = vec![0; 4];
        engine.read_device(DATA, &mut found).unwrap();
        assert_eq!(found, b"aabb", "the inode has four bytes");
        engine.shutdown().unwrap();
    }
}
