//! Memory that is not needed any more: given back while the write-back thread has nothing to write.
//!
//! Blocks and patches come in bursts, and their memory is kept for the next one, as fresh memory costs
//! page faults. What a burst has left is given back when it is over: the clean blocks above their bound,
//! the pool of blocks, and of the arenas what lies behind their last live entry.
//! Then the C library is asked to return free pages to the system, which by itself it does for the
//! end of a heap only: one inode that outlives the burst would keep all of it. That call is the one
//! that is `unsafe` here.

use crate::engine::{Engine, Op, Shared};
use crate::patchgroup::Joined;
use crate::reads::Reads;
use crate::state::{Missing, State};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are free before the system gets them.
const RETURNED_AT_ONCE_BYTES: usize = 4 << 20;

/// Calls of [`Drops`] in a row.
const DROPS_MAX: usize = 256;

/// Drops what the engine's user keeps and needs no more. Returns about how many bytes that was.
type Drops = Box<dyn FnMut(&mut Op<'_>) -> usize + Send>;

/// The state of giving memory back.
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
    /// nothing but what had to wait until now: it drops some of what is kept in memory and needed no more, and returns about how many
    /// bytes that was; it is called again until it returns 0. Without
    /// [a thread](crate::Options::background) it is not called.
    pub fn when_idle(&self, drops: impl FnMut(&mut Op<'_>) -> usize + Send + 'static) {
        self.shared.spare.set_drops(Box::new(drops));
    }
}

impl Shared {
    /// Begins an operation.
    pub fn op<'a>(&'a self, max_blocks: u32, mut state: MutexGuard<'a, State>) -> Op<'a> {
        state.changed_ms = state.now_ms();
        state.missing = Missing::default();
        let joined = Joined::begin(self, &mut state);
        // The blocks set aside for an atomic group are counted in the transaction already.
        let more = if !state.grouped.holds.is_empty() { 0 } else { max_blocks as usize };
        let log_blocks_max = state.running_len_blocks(more);
        Op { shared: self, state, log_blocks_max, reads: Reads::default(), joined }
    }

    /// Gives memory back that is not needed. The caller holds no lock, and is in no hurry.
    pub fn give_memory_back(&self) {
        let mut dropped = 0;
        if let Some(drops) = &mut *self.spare.drops.lock().unwrap_or_else(PoisonError::into_inner) {
            // Others come in between.
            for _ in 0..DROPS_MAX {
                let bytes = drops(&mut self.op(0, self.lock()));
                if bytes == 0 {
                    break;
                }
                dropped += bytes;
            }
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

#[cfg(test)]
mod tests {
    use crate::{BlockNr, Engine, Options, Owner, PatchId, Policy};
    use proptest::prelude::*;
    use std::sync::Arc;
    use weft_block::{BlockDevice, MemoryDevice};

    const BLOCKS: u64 = 200;
    const BLOCK_BYTES: usize = 512;

    fn engine(policy: Policy) -> (Arc<MemoryDevice>, Arc<Engine>) {
        let device = Arc::new(MemoryDevice::new(BLOCKS * BLOCK_BYTES as u64));
        let options =
            Options { policy, background: false, clean_cache_bytes: 0, ..Options::default() };
        (device.clone(), Engine::new(device, BLOCK_BYTES as u32, options).unwrap())
    }

    /// Changes all blocks, each after the one before.
    fn chain(engine: &Engine) -> Vec<PatchId> {
        let mut patches = Vec::new();
        for nr in 0..BLOCKS {
            let befores: Vec<PatchId> = patches.last().copied().into_iter().collect();
            let mut op = engine.begin(1).unwrap();
            patches.push(op.write(BlockNr(nr), 0, &[nr as u8], &befores).unwrap());
        }
        patches
    }

    #[test]
    fn a_patch_is_not_taken_for_one_from_before_the_arena_was_shorter() {
        let (_, engine) = engine(Policy::Soft);
        let mut old = Vec::new();
        for _ in 0..5 {
            old.extend(chain(&engine));
            engine.sync().unwrap();
            engine.shared.give_memory_back();
            let new = chain(&engine);
            let op = engine.begin(0).unwrap();
            assert!(old.iter().all(|patch| op.is_durable(*patch)), "an old patch");
            assert!(new.iter().all(|patch| !op.is_durable(*patch)), "a new patch");
            drop(op);
            old.extend(new);
        }
    }

    #[test]
    fn what_a_burst_has_left_is_given_back() {
        let (_, engine) = engine(Policy::Soft);
        let dropped = Arc::new(std::sync::Mutex::new(0));
        let count = Arc::clone(&dropped);
        engine.when_idle(move |_| {
            *count.lock().unwrap() += 1;
            0
        });
        chain(&engine);
        engine.sync().unwrap();
        assert!(engine.lock().graph.shrink() > 0, "patches");
        assert_eq!(engine.lock().graph.shrink(), 0, "twice");
        assert!(engine.lock().cache.shrink() > 0, "buffers");
        let blocks = engine.lock().cache.take_spare().len();
        assert!(blocks > 100, "{blocks} blocks of the pool");
        engine.shared.give_memory_back();
        assert_eq!(*dropped.lock().unwrap(), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, usize, u8),
        Data(u64, u8),
        Look(u64),
        Sync,
        Round,
        GiveBack,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..BLOCKS, 0..BLOCK_BYTES, any::<u8>())
                .prop_map(|(nr, at, byte)| Step::Write(nr, at, byte)),
            3 => (0..BLOCKS, any::<u8>()).prop_map(|(nr, byte)| Step::Data(nr, byte)),
            4 => (0..BLOCKS).prop_map(Step::Look),
            1 => Just(Step::Sync),
            1 => Just(Step::Round),
            2 => Just(Step::GiveBack),
        ]
    }

    proptest! {
        /// Memory that is given back at any moment was not needed.
        #[test]
        fn nothing_is_lost(
            steps in proptest::collection::vec(step(), 1..400),
            is_async in any::<bool>(),
        ) {
            let (device, engine) = engine(if is_async { Policy::Async } else { Policy::Soft });
            let mut model = vec![0_u8; BLOCKS as usize * BLOCK_BYTES];
            let mut last = PatchId::DURABLE;
            for step in steps {
                match step {
                    Step::Write(nr, at, byte) => {
                        let mut op = engine.begin(1).unwrap();
                        last = op.write(BlockNr(nr), at, &[byte], &[last]).unwrap();
                        model[nr as usize * BLOCK_BYTES + at] = byte;
                    }
                    Step::Data(nr, byte) => {
                        let bytes = [byte; BLOCK_BYTES];
                        let mut op = engine.begin(1).unwrap();
                        op.write_data(BlockNr(nr), Owner(1), 0, &bytes, true, &[]).unwrap();
                        model[nr as usize * BLOCK_BYTES..][..BLOCK_BYTES].fill(byte);
                    }
                    Step::Look(nr) => {
                        let found = engine.look(|op| op.peek(BlockNr(nr)).map(<[u8]>::to_vec));
                        let found = found.unwrap().unwrap();
                        prop_assert_eq!(&found, &model[nr as usize * BLOCK_BYTES..][..BLOCK_BYTES]);
                    }
                    Step::Sync => engine.sync().unwrap(),
                    Step::Round => engine.write_back().unwrap(),
                    Step::GiveBack => engine.shared.give_memory_back(),
                }
            }
            engine.sync().unwrap();
            let mut content = vec![0; model.len()];
            device.read_at(&mut content, 0).unwrap();
            prop_assert!(content == model);
        }
    }
}
