//! The log as the state knows it: its positions, what waits for the next commit, and what the
//! commit in progress has taken.
//!
//! Invariants:
//! - a slot is in `pending` once, if it is touched, and not otherwise;
//! - a block of which a durable record may remain, and which is in no slot, is in `removed` or
//!   `removed_committing`, or was dropped without a record: then `unlogged_drops` is not 0;
//! - one commit at a time has taken records, and it has ended when `held_before` is empty again.

use crate::format::log::Item;
use crate::format::superblock::Superblock;
use crate::policy::BlockKey;
use crate::slots::Masks;
use hashbrown::HashSet;

/// Positions in the log, in block numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogPosition {
    /// The oldest block that recovery needs.
    pub(crate) tail: u64,
    /// The next block to be written.
    pub(crate) next: u64,
    /// The end of the durable part: all blocks with lower numbers are flushed.
    pub(crate) durable: u64,
    /// The sequence number of the newest checkpoint.
    pub(crate) checkpoint: u64,
}

impl LogPosition {
    /// Returns the positions of an empty log that begins at a block number.
    pub(crate) fn empty(number: u64, checkpoint: u64) -> Self {
        Self { tail: number, next: number, durable: number, checkpoint }
    }

    /// Returns the number of blocks in use.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.next - self.tail
    }

    /// Moves the end over blocks that are durable.
    pub(crate) fn advance(&mut self, blocks: u64) {
        self.next += blocks;
        self.durable = self.next;
    }
}

/// An incomplete last batch that waits for the checkpoint's dirty entries: the versions that it
/// would supersede may be there.
#[derive(Debug)]
pub(crate) struct Last(pub(crate) Vec<Item>);

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) sb: Superblock,
    pub(crate) at: LogPosition,
    /// A batch at the log's end, found by recovery, that may be incomplete.
    pub(crate) last_batch: Option<Last>,
    /// True if the cache keeps its content when it is closed.
    persistent: bool,
    /// Touched slots, in the order in which they were touched.
    pending: Vec<u32>,
    /// True if the next flush must commit the pending changes.
    must_commit: bool,
    /// Blocks that left the index since the last commit: a durable record may still refer to them.
    removed: HashSet<BlockKey>,
    /// Blocks that left the index before the commit in progress, and after the one before.
    removed_committing: HashSet<BlockKey>,
    /// Number of blocks dropped without a log record. Until a checkpoint that began after them, the
    /// reason for their drop (intents, an origin being forgotten) must stay, so that recovery drops
    /// them again.
    unlogged_drops: u64,
    /// True from when a commit has gathered its records until they are durable.
    commit_running: bool,
    /// Slots of the commit in progress, each with the sub-blocks that were held before for durable
    /// records.
    held_before: Vec<(u32, u16)>,
    last_commit_ms: u64,
}

impl Log {
    pub(crate) fn new(sb: Superblock) -> Self {
        Self {
            sb,
            at: LogPosition::default(),
            last_batch: None,
            persistent: true,
            pending: Vec::new(),
            must_commit: false,
            removed: HashSet::new(),
            removed_committing: HashSet::new(),
            unlogged_drops: 0,
            commit_running: false,
            held_before: Vec::new(),
            last_commit_ms: 0,
        }
    }

    pub(crate) fn persistent(&self) -> bool {
        self.persistent
    }

    pub(crate) fn set_persistent(&mut self, on: bool) {
        self.persistent = on;
    }

    /// Returns the touched slots, in the order in which they were touched.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.pending
    }

    /// Notes that a slot has been touched that was not. Returns whether it joins a block of the log
    /// that other slots have begun: the first change of a batch, and each that overflows a block,
    /// begins a write.
    pub(crate) fn add_pending(&mut self, slot: u32) -> bool {
        let per_block = 4000 / crate::format::record::padded_bytes(self.sb.subs());
        let joins = !self.pending.len().is_multiple_of(per_block);
        self.pending.push(slot);
        joins
    }

    /// Notes that the next flush must commit, if a slot with these masks has changed.
    pub(crate) fn must_commit_if_dirty(&mut self, masks: Masks) {
        self.must_commit |= (masks.dirty | masks.held) != 0;
    }

    /// Returns true if a flush has to commit.
    pub(crate) fn flush_needs_commit(&self) -> bool {
        self.must_commit || self.commit_running
    }

    /// Drops the pending changes of slots from `slots` on.
    pub(crate) fn forget_slots_from(&mut self, slots: u32) {
        self.pending.retain(|slot| *slot < slots);
    }

    /// Takes the touched slots out, for a commit, or to forget them.
    pub(crate) fn take_pending(&mut self) -> Vec<u32> {
        self.must_commit = false;
        std::mem::take(&mut self.pending)
    }

    /// Notes the sub-blocks of a slot that were held before the commit that begins.
    pub(crate) fn remember_held(&mut self, slot: u32, held: u16) {
        self.held_before.push((slot, held));
    }

    /// Begins a commit of what has been taken; `any`: there is something to write.
    pub(crate) fn begin_commit(&mut self, any: bool, now_ms: u64) {
        self.commit_running = any;
        self.last_commit_ms = now_ms;
        let removed = std::mem::take(&mut self.removed);
        self.removed_committing.extend(removed);
    }

    /// Ends a commit that is durable.
    pub(crate) fn end_commit(&mut self) {
        self.commit_running = false;
        self.held_before.clear();
        self.removed_committing.clear();
    }

    /// Ends a commit that had nothing to write, or has failed.
    pub(crate) fn stop_commit(&mut self) {
        self.commit_running = false;
    }

    /// Takes the slots of a failed commit out, each with the sub-blocks that were held before it.
    pub(crate) fn take_held_before(&mut self) -> Vec<(u32, u16)> {
        std::mem::take(&mut self.held_before)
    }

    /// Notes that a block has left the index.
    pub(crate) fn add_removed(&mut self, key: BlockKey) {
        if self.persistent {
            self.removed.insert(key);
        }
    }

    /// Returns true if a durable record may refer to a block that has left the index.
    pub(crate) fn is_removed(&self, key: BlockKey) -> bool {
        self.removed.contains(&key) || self.removed_committing.contains(&key)
    }

    pub(crate) fn unlogged_drops(&self) -> u64 {
        self.unlogged_drops
    }

    /// Counts a block that was dropped without a log record.
    pub(crate) fn count_unlogged_drop(&mut self) {
        self.unlogged_drops += 1;
    }

    /// Forgets drops that a durable checkpoint contains.
    pub(crate) fn forget_unlogged_drops(&mut self, drops: u64) {
        self.unlogged_drops -= drops;
    }

    /// Returns true if a commit is due after `interval_ms` without one.
    pub(crate) fn is_due(&self, now_ms: u64, interval_ms: u64) -> bool {
        now_ms >= self.last_commit_ms + interval_ms
    }

    /// Returns true if the log has room for a batch of this length.
    pub(crate) fn has_room(&self, blocks: u64) -> bool {
        self.at.used_blocks() + blocks <= self.sb.log_blocks
    }
}
