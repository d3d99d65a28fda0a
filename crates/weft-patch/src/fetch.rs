//! Reads of blocks without the engine's lock.
//!
//! An operation holds the lock, and what it has changed stays: it can neither wait for the device
//! nor be taken back. So it is tried first with the blocks in memory alone, as long as it only
//! reads. If one is missing, the operation ends, the block is read with no lock held, and the
//! operation is tried again. So a block that must come from a slow device delays the operations
//! that need it, and no others. (LeanStore restarts the operations on its trees like that; ZFS
//! holds what a transaction will read before it begins.)
//!
//! While a block is being read another operation may bring it into the cache, change it, write it
//! and drop it: what the read returns is then old, and is not kept.

use crate::engine::{Engine, Op, Shared};
use crate::nowait::about_to_wait;
use crate::reads::Reads;
use crate::{BlockNr, Error, Result};
use std::sync::PoisonError;

/// Tries of an operation before it reads under the lock. With a cache too small for all the blocks
/// that it reads, it would be tried for ever.
const TRIES: u32 = 64;
/// Blocks fetched by one try at most.
const FETCH_MAX: usize = 1024;

impl Engine {
    /// Runs `look` with an operation that changes nothing, and returns its result. Blocks that it
    /// reads and that are not in memory are read without the engine's lock: `look` is run again
    /// after that, so it must do nothing that is not right to do twice before it has read all that
    /// it reads, and give back whatever locks it takes.
    ///
    /// # Errors
    /// As [`begin`](Self::begin). Failed reads are returned to `look`.
    pub fn look<'a, R>(&'a self, look: impl FnMut(&mut Op<'a>) -> R) -> Result<R> {
        Ok(self.when_cached(0, look)?.1)
    }

    /// Starts an operation as [`begin`](Self::begin) does, after the blocks that `reads` reads have
    /// been brought into memory without the engine's lock: what an operation is known to need is
    /// read before it begins. `reads` changes nothing, and is subject to the rules of
    /// [`look`](Self::look).
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_after<'a>(
        &'a self,
        max_blocks: u32,
        mut reads: impl FnMut(&mut Op<'a>),
    ) -> Result<Op<'a>> {
        let (mut op, ()) = self.when_cached(max_blocks, |op| {
            if op.state.missing.noted {
                reads(op);
            }
        })?;
        // The operation reads again what decides its changes.
        op.reads = Reads::default();
        Ok(op)
    }

    /// Begins an operation, runs `reads`, and returns both if all blocks were in memory; else reads
    /// the missing ones and tries again. The last try reads under the lock.
    fn when_cached<'a, R>(
        &'a self,
        max_blocks: u32,
        mut reads: impl FnMut(&mut Op<'a>) -> R,
    ) -> Result<(Op<'a>, R)> {
        for _ in 0..TRIES {
            let mut op = self.begin(max_blocks)?;
            op.state.missing.noted = true;
            let result = reads(&mut op);
            op.state.missing.noted = false;
            let missing = std::mem::take(&mut op.state.missing.blocks);
            if missing.is_empty() {
                return Ok((op, result));
            }
            drop(op);
            match self.shared.fetch(missing) {
                Ok(()) => {}
                Err(Error::WouldWait) => return Err(Error::WouldWait),
                // The operation meets the error again, if it needs that block at all.
                Err(_) => break,
            }
        }
        let mut op = self.begin(max_blocks)?;
        let result = reads(&mut op);
        Ok((op, result))
    }
}

impl Op<'_> {
    /// Asks for blocks that will be read later: under [`Engine::look`] and
    /// [`Engine::begin_after`] all that are missing are read together before the next try. Does
    /// nothing in an operation that has begun.
    ///
    /// # Errors
    /// [`Error::NotInMemory`] if some are missing, of these or of those that were read before.
    pub fn want(&mut self, blocks: impl IntoIterator<Item = BlockNr>) -> Result<()> {
        if !self.state.missing.noted {
            return Ok(());
        }
        for nr in blocks {
            if self.state.cache.touch(nr).is_none() && nr.0 < self.state.len_blocks {
                self.state.missing.blocks.push(nr);
            }
        }
        self.state.missing.blocks.first().map_or(Ok(()), |&nr| Err(Error::NotInMemory { nr }))
    }
}

/// The blocks that one thread reads. Dropped, it lets others read those that it did not bring.
struct Fetch<'a> {
    shared: &'a Shared,
    blocks: Vec<BlockNr>,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        for nr in &self.blocks {
            state.cache.end_fetch(*nr);
        }
        drop(state);
        self.shared.fetched.notify_all();
    }
}

impl Shared {
    /// Brings blocks into memory, without the lock; or waits for other threads that do.
    fn fetch(&self, mut wanted: Vec<BlockNr>) -> Result<()> {
        wanted.sort_unstable();
        wanted.dedup();
        wanted.truncate(FETCH_MAX);
        let mut state = self.lock();
        let first = wanted[0];
        wanted.retain(|&nr| state.cache.begin_fetch(nr));
        if wanted.is_empty() {
            about_to_wait()?;
            while state.cache.is_fetched(first) {
                state = self.fetched.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            return Ok(());
        }
        drop(state);
        let fetch = Fetch { shared: self, blocks: wanted };
        for run in fetch.blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
            self.fetch_run(run)?;
        }
        Ok(())
    }

    /// Reads adjacent blocks in one request, and keeps those that are not old by then.
    fn fetch_run(&self, run: &[BlockNr]) -> Result<()> {
        let block_bytes = self.block_bytes as usize;
        let mut content = vec![0; run.len() * block_bytes];
        self.read_blocks(run[0], &mut content)?;
        let mut state = self.lock();
        for (&nr, bytes) in run.iter().zip(content.chunks_exact(block_bytes)) {
            state.cache.keep_fetched(nr, bytes);
        }
        state.counters.blocks_read += run.len() as u64;
        Ok(())
    }
}
