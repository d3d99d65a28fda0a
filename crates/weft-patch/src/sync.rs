//! Syncs: choose the patches that must be durable, and run rounds until they are.
//!
//! A sync *seals* the patches it waits for: they take no more befores, so that it ends however busy
//! the volume is.

use crate::buffer::Buffer;
use crate::engine::Shared;
use crate::graph::{Kind, NONE};
use crate::state::State;
use crate::writeback::Goal;
use crate::{Owner, PatchId, Result};
use std::sync::MutexGuard;

impl Shared {
    pub fn sync_all(&self) -> Result<()> {
        if self.log.is_some() {
            return self.sync_journaled();
        }
        // No other round is in progress, as it would hold `io`. So the roots are complete.
        let mut io = self.lock_io()?;
        let mut roots: Vec<PatchId> = self.lock().seal_all();
        loop {
            let batch = {
                let mut state = self.lock();
                roots.retain(|&id| !state.is_durable(id));
                if roots.is_empty() {
                    return Ok(());
                }
                state.plan(Goal::All)
            };
            self.check_progress(&batch)?;
            self.write_planned(batch)?;
            drop(io);
            io = self.lock_io()?;
        }
    }

    pub fn sync_owner(&self, owner: Owner, also: &[PatchId]) -> Result<()> {
        if self.log.is_some() {
            return self.sync_owner_journaled(owner, also);
        }
        let io = self.lock_io()?;
        let roots = self.lock().roots_of(owner, also);
        self.make_durable_in_turn(io, roots)
    }

    /// Runs rounds until the patches are durable, and lets other threads run theirs in between.
    pub fn make_durable_in_turn<'a>(
        &'a self,
        mut io: MutexGuard<'a, ()>,
        mut roots: Vec<PatchId>,
    ) -> Result<()> {
        while !self.durable_after_round(&mut roots)? {
            drop(io);
            io = self.lock_io()?;
        }
        Ok(())
    }

    /// Runs a round for those of the patches that are not durable. Returns true if all were.
    pub fn durable_after_round(&self, roots: &mut Vec<PatchId>) -> Result<bool> {
        let (mark, batch) = {
            let mut state = self.lock();
            roots.retain(|&id| !state.is_durable(id));
            if roots.is_empty() {
                return Ok(true);
            }
            let mark = state.mark_needed(roots);
            (mark, state.plan(Goal::Marked(mark)))
        };
        self.check_progress(&batch)?;
        if let Err(e) = self.write_planned(batch)
            && self.lock().failed_marked(mark)
        {
            return Err(e);
        }
        Ok(false)
    }
}

impl State {
    /// Seals and returns every live patch that a sync waits for.
    pub fn seal_all(&mut self) -> Vec<PatchId> {
        let mut roots = self.seal_blocks(Buffer::is_dirty);
        self.add_in_flight(&mut roots, |_| true);
        roots
    }

    /// Seals and returns the patches of blocks that have been dirty since before a time: a block
    /// that changes all the time may never be ready when background write-back looks at it. Does so
    /// at most once an interval, as it visits every block.
    pub fn seal_overdue(&mut self, before_ms: u64) -> Vec<PatchId> {
        if before_ms < self.signals.overdue_from_ms {
            return Vec::new();
        }
        self.signals.overdue_from_ms =
            before_ms + u64::try_from(crate::engine::TICK.as_millis()).unwrap_or(0);
        self.seal_blocks(|b| b.is_dirty() && b.dirty_since_ms <= before_ms)
    }

    /// Seals and returns the patches of the blocks that have at least half of the maximum number of
    /// patches.
    pub fn seal_half_full(&mut self) -> Vec<PatchId> {
        let half = self.options.block_patches_max / 2;
        self.seal_blocks(|b| b.patches >= half)
    }

    fn seal_blocks(&mut self, wanted: impl Fn(&Buffer) -> bool) -> Vec<PatchId> {
        let buffers: Vec<u32> = self.cache.all().filter(|&b| wanted(&self.cache[b])).collect();
        let mut roots = Vec::new();
        for buffer in buffers {
            self.seal_buffer(buffer, &mut roots);
        }
        roots
    }

    fn seal_buffer(&mut self, buffer: u32, roots: &mut Vec<PatchId>) {
        let run = self.cache[buffer].run;
        if run != NONE {
            roots.push(self.graph.id(run));
        }
        let mut at = self.cache[buffer].oldest;
        while at != NONE {
            self.graph[at].sealed = true;
            roots.push(self.graph.id(at));
            at = self.graph[at].newer;
        }
    }

    fn add_in_flight(&self, roots: &mut Vec<PatchId>, wanted: impl Fn(u32) -> bool) {
        for write in self.failed.iter().filter(|w| wanted(w.buffer)) {
            let run = (write.run != NONE).then_some(write.run);
            roots.extend(write.patches.iter().copied().chain(run).map(|p| self.graph.id(p)));
        }
    }

    pub fn roots_of(&mut self, owner: Owner, also: &[PatchId]) -> Vec<PatchId> {
        let buffers: Vec<u32> = self.cache.dirty_of(owner).collect();
        let mut roots: Vec<PatchId> =
            also.iter().copied().filter(|&id| !self.is_durable(id)).collect();
        for &buffer in &buffers {
            self.seal_buffer(buffer, &mut roots);
        }
        self.add_in_flight(&mut roots, |b| buffers.contains(&b));
        roots
    }

    /// Marks the buffers that must be written for `roots` to be durable, and seals their patches,
    /// so that the sync ends however busy the volume is. Returns the mark.
    pub fn mark_needed(&mut self, roots: &[PatchId]) -> u32 {
        let from: Vec<u32> = roots.iter().filter_map(|&id| self.graph.find(id)).collect();
        let mut met = from.clone();
        let cache = &self.cache;
        self.graph.reaches(
            &from,
            usize::MAX,
            |buffer| cache[buffer].hard,
            |index, _| {
                met.push(index);
                false
            },
        );
        let mark = self.graph.new_mark();
        for index in met {
            self.graph[index].sealed = true;
            self.graph[index].mark = mark;
            if self.graph[index].kind == Kind::Run {
                let members: Vec<u32> = self.cache.run_from(self.graph[index].pieces).collect();
                for buffer in members {
                    self.cache[buffer].mark = mark;
                }
            } else if let Some(buffer) = self.buffer_of(index) {
                self.cache[buffer].mark = mark;
            }
        }
        for write in &self.failed {
            if write.run != NONE && self.graph[write.run].mark == mark {
                self.cache[write.buffer].mark = mark;
            }
        }
        mark
    }

    pub fn failed_marked(&self, mark: u32) -> bool {
        self.failed.iter().any(|w| self.cache[w.buffer].mark == mark)
    }
}
