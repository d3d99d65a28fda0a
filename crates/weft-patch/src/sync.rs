//! Syncs: the patches that must be durable, and the blocks that they need.
//!
//! A sync *seals* the patches it waits for: they take no more befores, so that it ends however busy
//! the volume is.

use crate::buffer::Buffer;
use crate::duties::TICK;
use crate::graph::{Kind, NONE, Patch};
use crate::state::State;
use crate::{BlockNr, Error, Owner, PatchId};
use hashbrown::HashSet;

/// Ticks without a change after which a block counts as one that no longer changes.
const CALM_TICKS: u64 = 2;

/// Blocks whose patches were sealed.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    at_ms: u64,
    blocks: Vec<BlockNr>,
    pub patches: Vec<PatchId>,
}

impl State {
    /// Seals and returns every live patch that a sync waits for.
    pub fn seal_all(&mut self) -> Vec<PatchId> {
        let mut roots = self.seal_blocks(Buffer::is_dirty).patches;
        self.add_in_flight(&mut roots, |_| true);
        roots
    }

    /// Seals the patches of old blocks that are not written by age: one that changes all the time may
    /// never be ready when background write-back looks at it, and blocks of which each waits for a
    /// part of the other never are. Those have twice the maximum age before they are sealed, or the
    /// age itself once they no longer change. Under a journal, blocks of file data alone: commits make
    /// the rest durable. Does so at most once an interval, as it visits every block.
    pub fn seal_overdue(&mut self, now_ms: u64, max_age_ms: u64) -> Sealed {
        let tick_ms = u64::try_from(TICK.as_millis()).unwrap_or(0);
        let before = |ms: u64| now_ms.checked_sub(ms);
        if now_ms < self.signals.overdue_from_ms {
            return Sealed::default();
        }
        self.signals.overdue_from_ms = now_ms + tick_ms;
        let (old, calm) = (before(max_age_ms), before(CALM_TICKS * tick_ms));
        let overdue = before(max_age_ms.saturating_mul(2));
        let is_since = |ms: u64, limit: Option<u64>| limit.is_some_and(|limit| ms <= limit);
        let journal = self.journal.as_ref();
        let wanted = |b: &Buffer| {
            let in_place = journal.is_none_or(|j| !j.journals(b.nr, b.data));
            let is_calm = is_since(b.changed_ms, calm) && is_since(b.dirty_since_ms, old);
            b.is_dirty() && in_place && (is_calm || is_since(b.dirty_since_ms, overdue))
        };
        let buffers = self.cache.all().filter(|&b| wanted(&self.cache[b])).collect();
        self.seal_buffers(buffers)
    }

    /// Seals and returns the patches of the blocks that have at least half of the maximum number of
    /// patches.
    pub fn seal_half_full(&mut self) -> Sealed {
        let half = self.options.block_patches_max / 2;
        self.seal_blocks(|b| b.patches >= half)
    }

    fn seal_blocks(&mut self, wanted: impl Fn(&Buffer) -> bool) -> Sealed {
        let buffers = self.cache.all().filter(|&b| wanted(&self.cache[b])).collect();
        self.seal_buffers(buffers)
    }

    fn seal_buffers(&mut self, buffers: Vec<u32>) -> Sealed {
        let mut sealed = Sealed { at_ms: self.now_ms(), ..Sealed::default() };
        for buffer in buffers {
            self.seal_buffer(buffer, &mut sealed.patches);
            sealed.blocks.push(self.cache[buffer].nr);
        }
        sealed
    }

    /// Notes that sealed patches are durable: what their blocks wait with is younger.
    pub fn note_written(&mut self, sealed: &Sealed) {
        for &nr in &sealed.blocks {
            if let Some(buffer) = self.cache.find(nr) {
                let since_ms = &mut self.cache[buffer].dirty_since_ms;
                *since_ms = sealed.at_ms.max(*since_ms);
            }
        }
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
