//! Counters of the engine, which measure each of its optimisations.

/// Counts since the engine was opened, except for those that say "now".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Patches made: changes that could not be merged into an existing patch.
    pub patches: u64,
    /// Changes merged into an existing patch.
    pub merged: u64,
    /// Patches made without undo data, or changes merged into such a patch.
    pub hard: u64,
    /// Patches dropped because their block was freed before it was written.
    pub cancelled: u64,
    /// Changes that took back pending ones, so that no patch was needed.
    pub taken_back: u64,
    /// Patches visited to find what syncs need.
    pub visited: u64,
    /// Patches not yet durable, now.
    pub patches_now: u64,
    /// Dependencies between them, now.
    pub dependencies_now: u64,
    /// Bytes of undo data ever made.
    pub undo_bytes: u64,
    /// Bytes of undo data kept, now.
    pub undo_bytes_now: u64,
    /// Blocks with changes not yet durable, now.
    pub dirty_blocks_now: u64,
    /// Blocks written to the device in place.
    pub blocks_written: u64,
    /// Blocks written to the journal.
    pub log_blocks_written: u64,
    /// Write requests sent to the device.
    pub requests: u64,
    /// Write requests by size: entry `i` counts those of 2^i to 2^(i+1)-1 blocks.
    pub requests_by_size: [u64; 16],
    /// Flushes of the device.
    pub flushes: u64,
    /// Blocks written with some patch rolled back.
    pub rollbacks: u64,
    /// Transactions committed to the journal.
    pub transactions: u64,
    /// Blocks read from the device into the cache.
    pub blocks_read: u64,
    /// Those that were read ahead, beside one that was needed.
    pub blocks_read_ahead: u64,
    /// Those that were read while the engine's lock was held, so that all others waited.
    pub reads_under_lock: u64,
    /// Syncs that had anything to wait for.
    pub syncs: u64,
    /// Operations begun.
    pub operations: u64,
}

impl Counters {
    pub(crate) fn count_request(&mut self, len_blocks: usize) {
        self.requests += 1;
        let bucket = (usize::BITS - 1 - len_blocks.max(1).leading_zeros()) as usize;
        self.requests_by_size[bucket.min(self.requests_by_size.len() - 1)] += 1;
    }
}
