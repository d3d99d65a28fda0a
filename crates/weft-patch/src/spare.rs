//! Memory that is not needed any more: given back while the write-back thread has nothing to write.
//!
//! Blocks and patches come in bursts, and their memory is kept for the next one, as fresh memory costs
//! page faults. What a burst has left is given back when it is over: of the pool of blocks a half of
//! what was not used since the last look, and of the arenas what lies behind their last live entry.
//! Then the C library is asked to return free pages to the system, which by itself it does for the
//! end of a heap only: one inode that outlives the burst would keep all of it. That call is the one
//! that is `unsafe` here.

use crate::engine::{Engine, Op, Shared};
use crate::reads::Reads;
use crate::state::{Missing, State};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are free before the system gets them.
const RETURNED_AT_ONCE_BYTES: usize = 4 << 20;

/// Drops what the engine's user keeps and needs no more. Returns about how many bytes that was.
type Drops = Box<dyn FnMut(&mut Op<'_>) -> usize + Send>;

/// What is done while there is nothing to write.
#[derive(Default)]
pub(crate) struct Spare {
    drops: Mutex<Option<Drops>>,
    /// Bytes that were dropped since the system got some.
    free_bytes: Mutex<usize>,
}

impl fmt::Debug for Spare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").finish_non_exhaustive()
    }
}

impl Spare {
    pub fn set_drops(&self, drops: Drops) {
        *self.drops.lock().unwrap_or_else(PoisonError::into_inner) = Some(drops);
    }
}

impl Engine {
    /// Has `drops` called now and then while there is nothing to write, with an operation that changes
    /// nothing: it drops what is kept in memory and needed no more, and returns about how many bytes
    /// that was. Without [a thread](crate::Options::background) it is not called.
    pub fn when_idle(&self, drops: impl FnMut(&mut Op<'_>) -> usize + Send + 'static) {
        self.shared.spare.set_drops(Box::new(drops));
    }
}

impl Shared {
    /// Begins an operation.
    pub fn op<'a>(&'a self, max_blocks: u32, mut state: MutexGuard<'a, State>) -> Op<'a> {
        state.changed_ms = state.now_ms();
        state.missing = Missing::default();
        let log_blocks_max = state.running_len_blocks(max_blocks as usize);
        Op { shared: self, state, log_blocks_max, reads: Reads::default() }
    }

    /// Gives memory back that is not needed. The caller holds no lock, and is in no hurry.
    pub fn give_memory_back(&self) {
        let mut dropped = 0;
        if let Some(drops) = &mut *self.spare.drops.lock().unwrap_or_else(PoisonError::into_inner) {
            dropped += drops(&mut self.op(0, self.lock()));
        }
        let blocks = {
            let mut state = self.lock();
            dropped += state.graph.shrink() + state.cache.shrink();
            state.cache.take_spare()
        };
        dropped += blocks.len() * self.block_bytes as usize;
        // Without the lock: that is the larger part of the work.
        drop(blocks);
        let mut free_bytes = self.spare.free_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *free_bytes += dropped;
        if *free_bytes >= RETURNED_AT_ONCE_BYTES {
            *free_bytes = 0;
            return_free_pages();
        }
    }
}

/// Returns the free pages of the process to the system, where the C library keeps them.
fn return_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) may be called at any time and from any thread; it changes no memory that
    // is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
