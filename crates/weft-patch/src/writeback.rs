//! Write-back: rounds of writes that keep the safety rule on a device with a volatile cache.
//!
//! A round takes as many blocks as can be written now, writes them in the order of the device and
//! flushes it once; then their patches are durable and new ones are ready. So the number of flushes
//! follows the depth of the graph. Within a round no write depends on another block, since a
//! completed write may still be lost, or land after a later one, until the flush.
//!
//! A block all of whose patches are ready is written as it is. Only if there is none (for a caller
//! that syncs: none that it needs), blocks are written with their unready patches rolled back in a
//! copy.
//!
//! A failed write stays *in flight*: nothing that depends on it becomes ready, its copy is kept,
//! and each later round repeats it first. So an error is never lost and never makes the volume
//! inconsistent; every sync that needs the block gets it, until a repetition succeeds.

use crate::Owner;
use crate::batch::Write;
use crate::graph::{Kind, NONE};
use crate::state::State;
use smallvec::SmallVec;
use std::sync::Arc;

/// The blocks that a round is to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// All blocks.
    All,
    /// The blocks with this mark.
    Marked(u64),
    /// Blocks that have been dirty since before this time, and with `data` the blocks of files
    /// (with their indirect blocks, which lie between the data); no block is rolled back.
    Background { before_ms: u64, data: bool },
}

impl State {
    fn wanted(&self, buffer: u32, goal: Goal) -> bool {
        let b = &self.cache[buffer];
        match goal {
            Goal::All => true,
            Goal::Marked(mark) => b.mark == mark,
            Goal::Background { before_ms, data } => {
                let of_file = data && (b.data || b.owner != Owner::NONE);
                of_file || b.dirty_since_ms <= before_ms
            }
        }
    }

    /// Takes the writes of the next round: the failed ones, and those that are possible now.
    pub fn plan(&mut self, goal: Goal) -> Vec<Write> {
        let (mut batch, partly_ready) = self.plan_whole(goal);
        if batch.is_empty() && !matches!(goal, Goal::Background { .. }) {
            self.take_parts(&partly_ready, &mut batch);
        }
        self.end_plan(partly_ready, &mut batch);
        batch
    }

    /// Takes the failed writes and those of whole blocks. Returns them, and the blocks of which only
    /// a part can be written.
    pub fn plan_whole(&mut self, goal: Goal) -> (Vec<Write>, Vec<u32>) {
        self.planned_ms = self.now_ms();
        let mut batch = std::mem::take(&mut self.failed);
        let mut candidates = if self.options.ready_lists {
            std::mem::take(&mut self.ready)
        } else {
            self.cache.all().filter(|&b| self.cache[b].is_dirty()).collect()
        };
        let mut partly_ready = Vec::new();
        candidates.retain(|&buffer| {
            let b = &mut self.cache[buffer];
            b.queued = false;
            if !b.is_partly_ready() {
                return false;
            }
            let full = b.is_ready();
            if !self.wanted(buffer, goal) {
                self.queue_if_ready(buffer);
                return false;
            }
            if !full {
                partly_ready.push(buffer);
            }
            full
        });
        self.take_whole(&candidates, &mut batch);
        (batch, partly_ready)
    }

    /// Takes those of some blocks that can be written whole.
    pub fn take_whole(&mut self, buffers: &[u32], batch: &mut Vec<Write>) {
        for &buffer in buffers {
            let b = &self.cache[buffer];
            if b.is_partly_ready() && b.is_ready() {
                batch.extend(self.take_write(buffer));
            }
        }
    }

    /// Takes parts of blocks: of those for a part of which a patch waits, or if there are none of
    /// all, which are then the last ones.
    pub fn take_parts(&mut self, buffers: &[u32], batch: &mut Vec<Write>) {
        let waited_for = |state: &Self, b: u32| state.cache[b].external_afters > 0;
        let any = buffers.iter().any(|&b| waited_for(self, b));
        for &buffer in buffers {
            if !any || waited_for(self, buffer) {
                batch.extend(self.take_write(buffer));
            }
        }
    }

    /// Ends the planning of a round.
    pub fn end_plan(&mut self, partly_ready: Vec<u32>, batch: &mut [Write]) {
        for buffer in partly_ready {
            self.queue_if_ready(buffer);
        }
        batch.sort_unstable_by_key(|w| w.nr);
    }

    /// Makes the copy of a block to write, with the patches that are not ready rolled back.
    fn take_write(&mut self, buffer: u32) -> Option<Write> {
        if self.cache[buffer].run != NONE {
            let run = self.unlink_run(buffer);
            return Some(self.in_flight(buffer, None, SmallVec::new(), run));
        }
        let mut patches: SmallVec<[u32; 2]> = SmallVec::new();
        let mut left_out: SmallVec<[u32; 8]> = SmallVec::new();
        let mut at = self.cache[buffer].oldest;
        while at != NONE {
            let ready = self.graph[at].waits == 0
                && self.graph.befores(at).all(|b| {
                    let before = &self.graph[b];
                    before.kind == Kind::InFlight || before.chosen
                });
            self.graph[at].chosen = ready;
            if ready {
                patches.push(at);
            } else {
                left_out.push(at);
            }
            at = self.graph[at].newer;
        }
        if cfg!(debug_assertions) {
            self.check_safety(buffer, &patches, &left_out);
        }
        for &p in &patches {
            self.graph[p].chosen = false;
        }
        if patches.is_empty() {
            return None;
        }
        let rolled_back = (!left_out.is_empty()).then(|| {
            self.counters.rollbacks += 1;
            let mut copy: Vec<u8> = self.cache[buffer].content.to_vec();
            for &p in left_out.iter().rev() {
                self.graph.pieces(p).apply(&mut copy);
            }
            Arc::from(copy)
        });
        for &p in &patches {
            self.take_off_list(p);
            self.graph[p].kind = Kind::InFlight;
            self.graph.drop_undo(p);
        }
        Some(self.in_flight(buffer, rolled_back, patches, NONE))
    }

    /// Marks a block as in flight, and returns its write: as it is, or the rolled-back copy.
    fn in_flight(
        &mut self,
        buffer: u32,
        rolled_back: Option<Arc<[u8]>>,
        patches: SmallVec<[u32; 2]>,
        run: u32,
    ) -> Write {
        self.counters.blocks_written += 1;
        let sequence = self.next_sequence();
        let b = &mut self.cache[buffer];
        b.in_flight = true;
        let partial = rolled_back.is_some();
        let content = rolled_back.unwrap_or_else(|| Arc::clone(&b.content));
        let (nr, taken_ms) = (b.nr, self.planned_ms);
        Write { buffer, nr, content, patches, run, partial, sequence, taken_ms, error: None }
    }

    /// Checks the safety rule: the befores of the written patches of a block are durable (and so
    /// forgotten) or in the same write, and no hard patch is left out.
    fn check_safety(&self, buffer: u32, patches: &[u32], left_out: &[u32]) {
        for &p in patches {
            for before in self.graph.befores(p) {
                assert!(
                    patches.contains(&before) && self.graph[before].buffer == buffer,
                    "patch {p} would reach the disk before patch {before}"
                );
            }
        }
        if !patches.is_empty() {
            for &p in left_out {
                assert!(self.graph[p].kind == Kind::Soft, "hard patch {p} cannot be rolled back");
            }
        }
    }

    /// Notes the end of a round: a write that succeeded is durable if the flush succeeded.
    pub fn complete(&mut self, batch: Vec<Write>) {
        for write in batch {
            if write.error.is_some() {
                self.failed.push(write);
                continue;
            }
            if write.run != NONE {
                self.settle_run(write.run);
            }
            for &p in &write.patches {
                self.resolve_afters(p);
            }
            for &p in &write.patches {
                debug_assert!(self.graph[p].befores == NONE, "a durable patch waits");
                self.graph.release(p);
            }
            // So the block's memory is not shared when it is dropped, and can be reused.
            drop(write.content);
            if !write.partial {
                self.settle(write.nr, write.sequence);
            }
            let b = &mut self.cache[write.buffer];
            b.in_flight = false;
            if b.is_dirty() {
                // What a whole write does not contain was changed after its copy was made. What a
                // partial one has left out may be as old as the block.
                if !write.partial {
                    b.dirty_since_ms = write.taken_ms;
                }
                self.queue_if_ready(write.buffer);
            } else {
                self.cache.became_clean(write.buffer);
            }
        }
        self.resolve_empties();
    }
}
