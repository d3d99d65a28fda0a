//! Reads of blocks without the engine's lock.
//!
//! An operation holds the lock, and what it has changed stays: it can neither wait for the device
//! nor be taken back. So it is tried first with the blocks in memory alone, as long as it only
//! reads. If one is missing, the operation ends, the block is read with no lock held, and the
//! operation is tried again. So a block that must come from a slow device delays the operations
//! that need it, and no others. (LeanStore restarts the operations on its trees like that; ZFS
//! holds what a transaction will read before it begins.)
//!
//! The blocks that one try misses are read together: adjacent ones in one request, and up to
//! [`IN_FLIGHT_MAX`] requests at a time, so that they take as long as the slowest.
//!
//! While a block is being read another operation may bring it into the cache, change it, write it
//! and drop it: what the read returns is then old, and is not kept.
//!
//! # Read-ahead
//!
//! An operation may name blocks that others will probably read soon ([`Op::read_ahead`]). They make
//! requests longer, never more: only those are read that join a block that is needed. They are
//! subject to the same rule of being overtaken. A request that fails is repeated for the blocks that
//! are needed, so a bad block beside them fails nobody. [`Cache`](crate::buffer::Cache) bounds what
//! they take of the memory.

use crate::engine::{Engine, Op, Shared};
use crate::nowait::about_to_wait;
use crate::reads::Reads;
use crate::state::{Missing, State};
use crate::{BlockNr, Error, Result};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Tries of an operation before it reads under the lock. With a cache too small for all the blocks
/// that it reads, it would be tried for ever.
const TRIES: u32 = 64;
/// Blocks fetched by one try at most, without those that are read ahead.
const FETCH_MAX: usize = 1024;
/// Bytes read ahead by one try at most. That many take a tenth of a second on a slow line.
const AHEAD_MAX_BYTES: usize = 1 << 20;
/// Requests of one caller in flight at a time.
pub(crate) const IN_FLIGHT_MAX: usize = 16;

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

    /// Reads runs of blocks from the device, bypassing the cache and its lock, several at a time: for
    /// file data that [`Op::cached`] did not return. Each run is its first block and a buffer for
    /// whole blocks.
    ///
    /// # Errors
    /// [`Error::Device`] of the first run that failed. The others have been read then.
    pub fn read_runs(&self, runs: Vec<(BlockNr, &mut [u8])>) -> Result<()> {
        for_each_at_once(runs, |(nr, buf)| self.read_device(nr, buf))
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
            let missing = std::mem::take(&mut op.state.missing);
            if missing.blocks.is_empty() {
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

    /// Names blocks that will probably be read soon: under [`Engine::look`] and
    /// [`Engine::begin_after`] those that are not in memory are read in the same request as a block
    /// that is missing and that they join. Without such a block nothing is read. A range that is
    /// long for the cache is left out, as is what would make one try read ahead more than a
    /// mebibyte.
    pub fn read_ahead(&mut self, blocks: Range<BlockNr>) {
        let State { missing, cache, block_bytes, .. } = &mut *self.state;
        if !missing.noted || missing.ahead.contains(&blocks) {
            return;
        }
        let len = |range: &Range<BlockNr>| range.end.0.saturating_sub(range.start.0);
        let noted: u64 = missing.ahead.iter().map(len).sum();
        let max = cache.max_read_ahead().min(AHEAD_MAX_BYTES / *block_bytes) as u64;
        if noted + len(&blocks) <= max {
            missing.ahead.push(blocks);
        }
    }
}

/// Calls `f` with each of `items`, from up to [`IN_FLIGHT_MAX`] threads at a time, and returns the
/// first error. An item is dropped before the thread that handled it takes the next.
fn for_each_at_once<T: Send>(mut items: Vec<T>, f: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let threads = items.len().min(IN_FLIGHT_MAX);
    // What must not wait does not by itself: another thread would.
    if threads <= 1 || about_to_wait().is_err() {
        return items.into_iter().try_for_each(f);
    }
    items.reverse();
    let items = Mutex::new(items);
    let failed = Mutex::new(None);
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        while let Some(item) = next() {
            if let Err(e) = f(item) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without more threads, these do all the work.
            if Builder::new().name("weft-read".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A block to be read; `ahead` if no operation has asked for it yet.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    nr: BlockNr,
    ahead: bool,
}

/// Adjacent blocks that one thread reads in one request. Dropped, it lets others read those that it
/// did not bring.
struct Fetch<'a> {
    shared: &'a Shared,
    blocks: Vec<Wanted>,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        for block in &self.blocks {
            state.cache.end_fetch(block.nr);
        }
        drop(state);
        self.shared.fetched.notify_all();
    }
}

impl Shared {
    /// Reads a run of blocks from the device, or fails if it must not wait for the device and would.
    pub fn read_blocks(&self, nr: BlockNr, buf: &mut [u8]) -> Result<()> {
        let offset = nr.0.saturating_mul(u64::from(self.block_bytes));
        if about_to_wait().is_err() {
            let is_read = self.device.read_at_nowait(buf, offset);
            return match is_read.map_err(|e| Error::device(nr, &e))? {
                true => Ok(()),
                false => Err(Error::WouldWait),
            };
        }
        self.device.read_at(buf, offset).map_err(|e| Error::device(nr, &e))
    }

    /// Brings blocks into memory, without the lock; or waits for other threads that do.
    fn fetch(&self, missing: Missing) -> Result<()> {
        let first = missing.blocks[0];
        let mut state = self.lock();
        let fetches = self.begin_fetches(&mut state, missing);
        if fetches.is_empty() {
            about_to_wait()?;
            while state.cache.is_fetched(first) {
                state = self.fetched.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            return Ok(());
        }
        drop(state);
        for_each_at_once(fetches, |fetch| fetch.run())
    }

    /// Divides the blocks that are neither in memory nor being read into requests.
    fn begin_fetches(&self, state: &mut State, missing: Missing) -> Vec<Fetch<'_>> {
        let Missing { mut blocks, ahead, .. } = missing;
        blocks.sort_unstable();
        blocks.dedup();
        blocks.truncate(FETCH_MAX);
        let ahead = ahead.into_iter().flat_map(|range| (range.start.0..range.end.0).map(BlockNr));
        let ahead = ahead.filter(|nr| nr.0 < state.len_blocks).map(|nr| Wanted { nr, ahead: true });
        let blocks = blocks.into_iter().map(|nr| Wanted { nr, ahead: false });
        let mut wanted: Vec<Wanted> =
            blocks.chain(ahead).filter(|block| state.cache.may_fetch(block.nr)).collect();
        wanted.sort_unstable_by_key(|block| (block.nr, block.ahead));
        wanted.dedup_by_key(|block| block.nr);
        let runs = wanted.chunk_by(|a, b| a.nr.0 + 1 == b.nr.0);
        let needed = runs.filter(|run| run.iter().any(|block| !block.ahead));
        needed
            .map(|run| {
                run.iter().for_each(|block| state.cache.begin_fetch(block.nr));
                Fetch { shared: self, blocks: run.to_vec() }
            })
            .collect()
    }
}

impl Fetch<'_> {
    /// Reads the blocks, and keeps those that are not old by then. If that fails, reads those that
    /// are needed alone.
    fn run(&self) -> Result<()> {
        let read = self.read(&self.blocks);
        if read.is_ok() || self.blocks.iter().all(|block| !block.ahead) {
            return read;
        }
        self.blocks
            .chunk_by(|a, b| a.ahead == b.ahead)
            .filter(|part| !part[0].ahead)
            .try_for_each(|part| self.read(part))
    }

    fn read(&self, blocks: &[Wanted]) -> Result<()> {
        let Self { shared, .. } = self;
        let block_bytes = shared.block_bytes as usize;
        let first = blocks[0].nr;
        let mut content = vec![0; blocks.len() * block_bytes];
        shared.read_blocks(first, &mut content)?;
        let mut state = shared.lock();
        for (block, bytes) in blocks.iter().zip(content.chunks_exact(block_bytes)) {
            state.cache.keep_fetched(block.nr, bytes, block.ahead);
            state.counters.blocks_read += 1;
            state.counters.blocks_read_ahead += u64::from(block.ahead);
        }
        Ok(())
    }
}
