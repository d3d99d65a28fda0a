//! Syncs: the patches that must be durable, and the blocks that they need.
//!
//! A sync *seals* the patches it waits for: they take no more befores, so that it ends however busy
//! the volume is.

use crate::buffer::Buffer;
use crate::graph::{Kind, NONE, Patch};
use crate::state::State;
use crate::{Error, Owner, PatchId};
use hashbrown::HashSet;

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

    /// Walks the patches that must be durable for `roots` to be, these included, until `found` returns
    /// true; returns true if it did.
    pub fn needs(&mut self, roots: &[PatchId], mut found: impl FnMut(u32, &Patch) -> bool) -> bool {
        let from: Vec<u32> = roots.iter().filter_map(|&id| self.graph.find(id)).collect();
        let Self { cache, graph, counters, .. } = self;
        counters.visited += roots.len() as u64;
        graph.reaches(
            &from,
            usize::MAX,
            |buffer| cache[buffer].hard,
            |index, patch| {
                counters.visited += 1;
                found(index, patch)
            },
        )
    }

    /// Marks the buffers that must be written for `roots` to be durable, those in flight included,
    /// and seals their patches, so that the sync ends however busy the volume is. Returns the mark.
    pub fn mark_needed(&mut self, roots: &[PatchId]) -> u64 {
        let mut met = Vec::new();
        self.needs(roots, |index, _| {
            met.push(index);
            false
        });
        self.needed_mark += 1;
        let mark = self.needed_mark;
        for &index in &met {
            self.graph[index].sealed = true;
            if self.graph[index].kind == Kind::Run {
                let members: Vec<u32> = self.cache.run_from(self.graph[index].pieces).collect();
                for buffer in members {
                    self.cache[buffer].mark = mark;
                }
            } else if let Some(buffer) = self.buffer_of(index) {
                self.cache[buffer].mark = mark;
            }
        }
        if !self.failed.is_empty() {
            let met: HashSet<u32> = met.into_iter().collect();
            for write in self.failed.iter().filter(|w| met.contains(&w.run)) {
                self.cache[write.buffer].mark = mark;
            }
        }
        mark
    }

    /// Returns the error of a failed write that these patches need, if there is one.
    pub fn failure_of(&mut self, roots: &[PatchId]) -> Option<Error> {
        if self.failed.is_empty() {
            return None;
        }
        let mark = self.mark_needed(roots);
        self.failed.iter().find(|w| self.cache[w.buffer].mark == mark)?.error.clone()
    }

    /// Returns true if all of the patches are being written, with all that they need, or are
    /// durable.
    pub fn is_in_flight(&mut self, roots: &[PatchId]) -> bool {
        !self.needs(roots, |_, patch| match patch.kind {
            Kind::InFlight => false,
            Kind::Run => patch.pieces != NONE,
            _ => true,
        })
    }
}
