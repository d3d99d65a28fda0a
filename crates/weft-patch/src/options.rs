//! Options of the engine, each with its default and the reason for it.

use crate::Clock;
use std::time::Duration;

/// The meaning of the dependencies of patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Dependencies are kept: the volume is consistent at every moment, except for leaks.
    #[default]
    Soft,
    /// Dependencies inside one operation are replaced by the commit record of its transaction.
    Journal(JournalMode),
    /// Dependencies are dropped; only sync and unmount order anything.
    Async,
}

/// The content of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JournalMode {
    /// Metadata; file data is written at any time. A new file can show the former content of its
    /// blocks, so a rollback journal of SQLite (except with `persist`) can be the last one, still
    /// valid.
    Metadata,
    /// Metadata; file data is durable before the transaction that refers to it commits.
    #[default]
    Ordered,
    /// Metadata and file data.
    Full,
}

/// The options of an [`Engine`](crate::Engine).
#[derive(Debug, Clone)]
pub struct Options {
    /// Soft updates, journal or async.
    pub policy: Policy,
    /// Maximum memory of dirty blocks, undo data and patches; beyond it [`begin`] waits for the
    /// write-back. A quarter gigabyte holds an untarred source tree and is little today.
    ///
    /// [`begin`]: crate::Engine::begin
    pub memory_budget_bytes: usize,
    /// Dirty memory from which on write-back starts in the background. Early, so that the device
    /// works while the callers still compute.
    pub background_bytes: usize,
    /// Age at which a dirty block is written (the kernel's 5 s commit interval), if all its changes
    /// are ready then; a block that changes without pause is written at twice that age.
    pub max_age: Duration,
    /// Maximum memory of clean metadata blocks.
    pub clean_cache_bytes: usize,
    /// Maximum size of a request for adjacent blocks.
    pub max_request_bytes: usize,
    /// Omit undo data where a rollback can never be needed.
    pub hard_patches: bool,
    /// Merge a new patch into an existing one of its block where that makes no cycle.
    pub merge: bool,
    /// Keep lists of blocks that can be written; otherwise every round searches all dirty blocks.
    pub ready_lists: bool,
    /// Cancel the pending changes of freed blocks.
    pub cancel: bool,
    /// Number of pending patches of a block beyond which those that a change must follow are found
    /// by an index of the block, and not by a search.
    pub indexed_patches: u32,
    /// Maximum number of pending patches of a block: at half of them the write-back thread writes
    /// the block, at all of them operations wait ([`begin`]). Patches of a directory whose files
    /// programs create and remove wait for each other in long chains, and an fsync takes as many
    /// flushes as its chain is long.
    ///
    /// [`begin`]: crate::Engine::begin
    pub block_patches_max: u32,
    /// Run a thread that writes back by age and pressure. Without it, only syncs write, and
    /// operations under memory pressure, in the calling thread: deterministic, for tests and crash
    /// exploration. (Such a test makes the thread's steps itself: [`write_back_step`].)
    ///
    /// [`write_back_step`]: crate::Engine::write_back_step
    pub background: bool,
    /// The clock by which blocks and transactions grow old.
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Soft,
            memory_budget_bytes: 256 << 20,
            background_bytes: 32 << 20,
            max_age: Duration::from_secs(5),
            clean_cache_bytes: 64 << 20,
            max_request_bytes: 4 << 20,
            hard_patches: true,
            merge: true,
            ready_lists: true,
            cancel: true,
            indexed_patches: 32,
            block_patches_max: 4096,
            background: true,
            clock: Clock::default(),
        }
    }
}
