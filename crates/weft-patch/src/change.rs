//! Making a change: decides whether it becomes a patch of its own or joins an existing one, and
//! whether it needs undo data.
//!
//! Two invariants hold for the graph. Its edges are of two kinds: a patch waits for its befores,
//! and every patch of a block waits for the block's *hard* patch, as no write of the block can
//! leave that one out. It must have **no cycle**, and it must stay **shallow**, since its depth is
//! the number of flushes. No patch waits for a new patch, so by itself it does no harm; harm can
//! come only from giving an existing patch a new before (merging), or from being hard (which makes
//! the older patches of its block wait for its befores). So both are done only if
//! - there are no new befores,
//! - or no patch waits for the one that gets them (the block from outside, or the soft patch),
//! - or the new befores are on blocks that can be written whole now (no path leads on from there),
//!   and undo data would be costly,
//!
//! - or the change replaces one that the patch has already, its befores do not lead there, and they
//!   are less deep in the graph than those that the patch has.
//!
//! The last case is that of an inode that changes again and again. Without it each of its states was
//! written, in a round of its own wherever another block waited for one state and the next state
//! for that block: 900 rounds for a file that was written and cut 1000 times.
//!
//! Looser rules are tempting and wrong. Allowing every merge that makes no cycle, or the last case
//! for small changes too, made an untar of 26,000 files 140 flushes deep: each directory block
//! waited for the inodes of its entries, and its own inode waited for it.
//!
//! **While patchgroups exist**, and no journal, only the first case is left: no patch gets a before that it was made
//! without. A sync of one group then writes what the group needs, and not what others have changed in
//! the same blocks: 8 blocks for a file among 10,000, where it was 872, as each block of inodes waited
//! for the data of all of its files. An untar of others takes a fifth more time meanwhile, as their
//! changes have a patch each.
//!
//! File data has a form of its own: whole blocks written without reading them (no undo data, no
//! befores) have no patch each but share one, the *run* of the operation.

use crate::graph::{Kind, NONE};
use crate::ids::Sector;
use crate::state::State;
use crate::undo::{Change, INLINE_UNDO_BYTES};
use crate::{Owner, PatchId};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Maximum number of patches that a debug build visits in search of a cycle.
const CHECK_BOUND: usize = 500;

/// Maximum number of patches that are visited to see that a merge makes no cycle.
const SEARCH_BOUND: usize = 16;

pub(crate) type Befores = SmallVec<[u32; 8]>;

impl State {
    /// Notes a change of a buffer, which `relied` on other parts of it. The caller changes the
    /// content *afterwards*.
    pub(crate) fn note_change(
        &mut self,
        buffer: u32,
        change: Change,
        relied: &[Range<usize>],
        befores: &[PatchId],
    ) -> u32 {
        let (mut external, mut internal, torn) =
            self.split_befores(buffer, Sector::of(change.range()), befores);
        if !torn.is_empty() {
            external.push(self.make_empty(&torn));
        }
        self.now_dirty(buffer);
        if self.cache[buffer].run != NONE {
            self.leave_run(buffer);
        }
        let newest_under = self.add_followed(buffer, change, relied, &mut internal);
        let patch = if internal.is_empty() && self.may_be_hard(buffer, change, &external) {
            self.make_hard(buffer, &external)
        } else {
            let patch = self.make_soft(buffer, change, &external, &internal, newest_under);
            self.note_newest(buffer, change, relied, internal.len(), patch);
            patch
        };
        if cfg!(debug_assertions) {
            self.check_acyclic(patch);
        }
        self.queue_if_ready(buffer);
        patch
    }

    fn now_dirty(&mut self, buffer: u32) {
        if !self.cache[buffer].is_dirty() {
            self.cache.became_dirty(buffer, self.changed_ms);
        }
        self.cache[buffer].changed_ms = self.changed_ms;
    }

    /// Notes that a clean buffer was filled with file data, as a part of the operation's run.
    pub(crate) fn note_data(&mut self, buffer: u32) -> u32 {
        self.now_dirty(buffer);
        let owner = self.cache[buffer].owner;
        if self.run_owner != owner {
            self.run = NONE;
            self.run_owner = owner;
        }
        self.counters.hard += 1;
        if self.run == NONE {
            self.counters.patches += 1;
            self.run = self.graph.make(Kind::Run, NONE);
        } else {
            self.counters.merged += 1;
        }
        let run = self.run;
        self.cache.link_run(buffer, run, self.graph[run].pieces);
        self.graph[run].pieces = buffer;
        self.graph[run].waits += 1;
        self.queue_if_ready(buffer);
        run
    }

    /// Gives a buffer of a run a patch of its own, which the run waits for.
    fn leave_run(&mut self, buffer: u32) {
        let run = self.unlink_run(buffer);
        let patch = self.new_patch(Kind::Hard, buffer);
        self.cache[buffer].hard = patch;
        self.graph.add_edge(run, patch);
        self.cache[buffer].external_afters += 1;
    }

    /// Removes a buffer from its run, which still counts it in `waits`.
    pub(crate) fn unlink_run(&mut self, buffer: u32) -> u32 {
        let run = self.cache[buffer].run;
        self.graph[run].pieces = self.cache.unlink_run(buffer, self.graph[run].pieces);
        run
    }

    /// Counts a block of a run as durable (or cancelled).
    pub(crate) fn settle_run(&mut self, run: u32) {
        self.graph[run].waits -= 1;
        if self.graph[run].waits == 0 {
            self.done_empties.push(run);
        }
    }

    /// Sorts the befores of a change of this sector into external, internal and torn ones. Befores
    /// that are durable or in flight on the same block are left out, as is the block's hard patch,
    /// which is in every write; soft ones of the block are internal; those in another sector of the
    /// block are torn: they need a write of their own.
    fn split_befores(
        &self,
        buffer: u32,
        sector: Sector,
        befores: &[PatchId],
    ) -> (Befores, Befores, Befores) {
        let (mut external, mut internal, mut torn) =
            (Befores::new(), Befores::new(), Befores::new());
        for &id in befores {
            let Some(index) = self.graph.find(id) else { continue };
            let patch = &self.graph[index];
            let list = if patch.buffer != buffer || buffer == NONE {
                &mut external
            } else if patch.kind == Kind::InFlight {
                continue;
            } else if !sector.is_whole_with(id.sector) {
                &mut torn
            } else if patch.kind == Kind::Soft {
                &mut internal
            } else {
                continue;
            };
            if !list.contains(&index) {
                list.push(index);
            }
        }
        (external, internal, torn)
    }

    /// Returns true if a change of this block needs no undo data.
    fn may_be_hard(&self, buffer: u32, change: Change, external: &[u32]) -> bool {
        if !self.options.hard_patches {
            return false;
        }
        let b = &self.cache[buffer];
        let hard = b.hard;
        let sealed = self.keeps_apart() || hard != NONE && self.graph[hard].sealed;
        if !external.is_empty() && self.has_ordered_data(buffer) {
            return false;
        }
        if b.external_afters == 0 && !sealed {
            return true;
        }
        // A patch that leads nowhere now may lead on later, so this is only for changes that are
        // costly to undo.
        let costly = change.undo_bytes() > INLINE_UNDO_BYTES && !sealed;
        external.iter().all(|&e| {
            (hard != NONE && self.graph.has_edge(hard, e)) || (costly && self.leads_nowhere(e))
        })
    }

    /// Returns true if no patch may get more befores than it was made with. With a journal there is no
    /// need: what is in place later than its transaction is waited for by nobody.
    fn keeps_apart(&self) -> bool {
        self.journal.is_none() && self.groups.load(Ordering::Relaxed) > 0
    }

    /// Returns true if waiting for a patch means waiting for the next round and no more.
    fn leads_nowhere(&self, patch: u32) -> bool {
        let p = &self.graph[patch];
        match p.kind {
            Kind::Run | Kind::InFlight => true,
            Kind::Empty | Kind::Free => false,
            Kind::Hard | Kind::Soft => self.cache[p.buffer].is_ready(),
        }
    }

    /// Checks, in a debug build, that the befores of a patch do not lead back to it, or for a hard
    /// patch to its block.
    fn check_acyclic(&mut self, patch: u32) {
        let buffer = self.graph[patch].buffer;
        let hard = self.graph[patch].kind == Kind::Hard;
        let from: Befores = self
            .graph
            .befores(patch)
            .filter(|&b| !hard || self.graph[b].buffer != buffer)
            .collect();
        let cache = &self.cache;
        let cycle = self.graph.reaches(
            &from,
            CHECK_BOUND,
            |buffer| cache[buffer].hard,
            |index, p| {
                p.kind != Kind::InFlight && if hard { p.buffer == buffer } else { index == patch }
            },
        );
        assert!(!cycle, "the befores of patch {patch} lead back to it");
    }

    fn make_hard(&mut self, buffer: u32, external: &[u32]) -> u32 {
        self.counters.hard += 1;
        let hard = self.cache[buffer].hard;
        if hard != NONE && self.options.merge {
            self.counters.merged += 1;
            self.add_befores(hard, external);
            return hard;
        }
        let patch = self.new_patch(Kind::Hard, buffer);
        if hard != NONE {
            // Unmerged, the hard patches of a block form a chain that walks can follow.
            self.graph.add_edge(patch, hard);
        }
        self.cache[buffer].hard = patch;
        self.add_befores(patch, external);
        patch
    }

    fn make_soft(
        &mut self,
        buffer: u32,
        change: Change,
        external: &[u32],
        internal: &[u32],
        newest_under: u32,
    ) -> u32 {
        let target = if self.options.merge {
            self.merge_target(buffer, change, external, internal, newest_under)
        } else {
            NONE
        };
        let patch = if target == NONE {
            self.new_patch(Kind::Soft, buffer)
        } else {
            self.counters.merged += 1;
            target
        };
        for &before in internal {
            if before != patch && !self.graph.has_edge(patch, before) {
                self.graph.add_edge(patch, before);
                self.graph[patch].depth = self.graph[patch].depth.max(self.graph[before].depth);
            }
        }
        self.add_befores(patch, external);
        let content = &self.cache[buffer].content;
        let undo = self.graph.add_undo(patch, change, content);
        self.counters.undo_bytes += undo as u64;
        patch
    }

    /// Returns the soft patch that a change can join: the newest it overlaps, or else the newest of
    /// the block.
    fn merge_target(
        &mut self,
        buffer: u32,
        change: Change,
        external: &[u32],
        internal: &[u32],
        newest_under: u32,
    ) -> u32 {
        let mut target = newest_under;
        if target == NONE {
            target = self.cache[buffer].newest;
            while target != NONE && self.graph[target].kind != Kind::Soft {
                target = self.graph[target].older;
            }
            if target == NONE {
                return NONE;
            }
        }
        if !self.graph.pieces(target).can_take(change) {
            return NONE;
        }
        let t = &self.graph[target];
        let (waited_for, sealed) = (t.afters != NONE, t.sealed || self.keeps_apart());
        if sealed {
            let known = |&before: &u32| before == target || self.graph.has_edge(target, before);
            return if external.iter().chain(internal).all(known) { target } else { NONE };
        }
        let mut led: Befores = Befores::new();
        for &before in external.iter().chain(internal) {
            let known = before == target || self.graph.has_edge(target, before);
            if !known && waited_for && !self.leads_nowhere(before) {
                led.push(before);
            }
        }
        if led.is_empty() || self.may_wait_for(target, change, &led) { target } else { NONE }
    }

    /// Returns true if a patch, for which others wait, may wait for these too, for a change that
    /// replaces one of it: if that makes the graph no deeper, and no cycle.
    fn may_wait_for(&mut self, patch: u32, change: Change, befores: &[u32]) -> bool {
        let depth = self.graph[patch].depth;
        let deep = |&before: &u32| {
            let own = self.graph[before].buffer == self.graph[patch].buffer;
            self.depth_below(before) + u8::from(!own) > depth
        };
        if !self.graph.pieces(patch).cover(change) || befores.iter().any(deep) {
            return false;
        }
        let mut met = 0;
        let cache = &self.cache;
        !self.graph.reaches(
            befores,
            usize::MAX,
            |buffer| cache[buffer].hard,
            |index, _| {
                met += 1;
                index == patch || met > SEARCH_BOUND
            },
        )
    }

    /// Returns the depth of the graph at a patch, for those that wait for it.
    fn depth_below(&self, patch: u32) -> u8 {
        if self.leads_nowhere(patch) {
            return 0;
        }
        let p = &self.graph[patch];
        let hard = self.buffer_of(patch).map_or(NONE, |buffer| self.cache[buffer].hard);
        // Less than the greatest, so that one more is no overflow.
        p.depth.max(if hard == NONE { 0 } else { self.graph[hard].depth }).min(u8::MAX - 1)
    }

    /// Makes a patch and appends it as the newest to its block's list.
    fn new_patch(&mut self, kind: Kind, buffer: u32) -> u32 {
        self.counters.patches += 1;
        let patch = self.graph.make(kind, buffer);
        let newest = std::mem::replace(&mut self.cache[buffer].newest, patch);
        self.graph[patch].older = newest;
        if newest == NONE {
            self.cache[buffer].oldest = patch;
        } else {
            self.graph[newest].newer = patch;
        }
        self.cache[buffer].patches += 1;
        let patches = self.cache[buffer].patches;
        self.half_full_blocks += usize::from(patches == self.options.block_patches_max / 2);
        self.full_blocks += usize::from(patches == self.options.block_patches_max);
        patch
    }

    /// Makes `patch` wait for patches of other blocks.
    pub(crate) fn add_befores(&mut self, patch: u32, external: &[u32]) {
        for &before in external {
            if self.graph.has_edge(patch, before) {
                continue;
            }
            let rounds = u8::from(self.graph[patch].kind != Kind::Empty);
            let depth = self.depth_below(before) + rounds;
            self.graph[patch].depth = self.graph[patch].depth.max(depth);
            self.graph.add_edge(patch, before);
            let b = &self.graph[before];
            if b.buffer != NONE && b.kind != Kind::InFlight {
                let buffer = b.buffer;
                self.cache[buffer].external_afters += 1;
            }
            let p = &mut self.graph[patch];
            p.waits += 1;
            if p.waits == 1 && p.buffer != NONE {
                let hard = p.kind == Kind::Hard;
                let b = &mut self.cache[p.buffer];
                b.waiting += 1;
                b.hard_waiting += u32::from(hard);
            }
        }
    }

    /// Makes an empty patch; durable at once if all its befores are.
    pub(crate) fn join(&mut self, befores: &[PatchId]) -> PatchId {
        let (external, ..) = self.split_befores(NONE, Sector::SEVERAL, befores);
        if external.is_empty() {
            return PatchId::DURABLE;
        }
        let patch = self.make_empty(&external);
        self.graph.id(patch)
    }

    fn make_empty(&mut self, befores: &[u32]) -> u32 {
        self.counters.patches += 1;
        let patch = self.graph.make(Kind::Empty, NONE);
        self.add_befores(patch, befores);
        patch
    }

    /// Cancels the pending changes of a freed block, if nothing waits for them but `cleared`, which removed
    /// the last pointer to it, and ends of groups that [may wait](Self::may_wait_for_removal) for that
    /// removal instead.
    ///
    /// A patch that waits for them can have been merged into `cleared`: for example the link count
    /// of a directory that waits for a name in this block, where the pointer to the block is in the
    /// same block of inodes. A write that is torn between sectors would contain the count without
    /// the cleared pointer, so the two count as one patch only within a sector. For file data only
    /// pointers and sizes of its inode wait, which one sector holds.
    pub(crate) fn cancel_freed(&mut self, buffer: u32, cleared: PatchId) {
        let b = &self.cache[buffer];
        if !self.options.cancel || b.in_flight {
            return;
        }
        let whole = |patch: &u32| b.data || self.graph.is_in_one_sector(*patch);
        let removal = self.graph.find(cleared);
        let cleared = removal.filter(whole);
        let (run, oldest) = (b.run, b.oldest);
        let mut ends = Befores::new();
        let mut at = if run == NONE { oldest } else { run };
        while at != NONE {
            let own = |after: u32| run == NONE && self.graph[after].buffer == buffer;
            for after in self.graph.afters(at) {
                if Some(after) == cleared || own(after) {
                    continue;
                }
                if !self.may_wait_for_removal(after) {
                    return;
                }
                ends.push(after);
            }
            at = if run == NONE { self.graph[at].newer } else { NONE };
        }
        let removal = self.running_commit().or(removal);
        for end in ends {
            self.add_befores(end, removal.as_slice());
        }
        if run != NONE || oldest != NONE {
            self.cancel_all(buffer);
        }
    }

    /// Cancels all pending changes of a buffer that is dirty and not in flight.
    pub(crate) fn cancel_all(&mut self, buffer: u32) {
        if self.cache[buffer].run != NONE {
            self.counters.cancelled += 1;
            let run = self.unlink_run(buffer);
            self.settle_run(run);
        }
        while self.cache[buffer].oldest != NONE {
            let patch = self.cache[buffer].oldest;
            self.counters.cancelled += 1;
            self.take_off_list(patch);
            while let Some(before) = self.graph.pop_before(patch) {
                self.lost_after(before, buffer);
            }
            self.resolve_afters(patch);
            self.graph.release(patch);
        }
        self.resolve_empties();
        let data = self.cache[buffer].data;
        self.cache.became_clean(buffer);
        if !data {
            self.cache.drop_clean(buffer);
        }
    }

    /// Updates the count of a before's block when a patch of `buffer` no longer waits for it.
    fn lost_after(&mut self, before: u32, buffer: u32) {
        let p = &self.graph[before];
        if p.buffer != NONE && p.buffer != buffer && p.kind != Kind::InFlight {
            let b = p.buffer;
            self.cache[b].external_afters -= 1;
        }
    }

    /// Removes a patch from its block's list and counts.
    pub(crate) fn take_off_list(&mut self, patch: u32) {
        let (buffer, older, newer, waits, kind) = {
            let p = &self.graph[patch];
            (p.buffer, p.older, p.newer, p.waits, p.kind)
        };
        if older == NONE {
            self.cache[buffer].oldest = newer;
        } else {
            self.graph[older].newer = newer;
        }
        if newer == NONE {
            self.cache[buffer].newest = older;
        } else {
            self.graph[newer].older = older;
        }
        let external = self.graph.afters(patch).filter(|&a| self.graph[a].buffer != buffer).count();
        let patches = self.cache[buffer].patches;
        self.half_full_blocks -= usize::from(patches == self.options.block_patches_max / 2);
        self.full_blocks -= usize::from(patches == self.options.block_patches_max);
        let b = &mut self.cache[buffer];
        b.external_afters -= u32::try_from(external).expect("edge counts fit 32 bits");
        b.patches -= 1;
        if b.hard == patch {
            b.hard = NONE;
        }
        if waits > 0 {
            b.waiting -= 1;
            b.hard_waiting -= u32::from(kind == Kind::Hard);
        }
        let p = &mut self.graph[patch];
        p.older = NONE;
        p.newer = NONE;
    }

    /// Resolves the dependencies on a patch that is durable (or cancelled).
    pub(crate) fn resolve_afters(&mut self, patch: u32) {
        let buffer = self.graph[patch].buffer;
        while let Some(after) = self.graph.pop_after(patch) {
            let a = &self.graph[after];
            let (after_buffer, after_kind) = (a.buffer, a.kind);
            if after_buffer == buffer && buffer != NONE {
                self.queue_if_ready(buffer);
                continue;
            }
            self.graph[after].waits -= 1;
            if self.graph[after].waits > 0 {
                continue;
            }
            if after_buffer == NONE {
                self.done_empties.push(after);
                continue;
            }
            let b = &mut self.cache[after_buffer];
            b.waiting -= 1;
            b.hard_waiting -= u32::from(after_kind == Kind::Hard);
            self.queue_if_ready(after_buffer);
        }
    }

    /// Makes the empty patches durable whose befores are all durable.
    pub(crate) fn resolve_empties(&mut self) {
        while let Some(empty) = self.done_empties.pop() {
            self.resolve_afters(empty);
            self.graph.release(empty);
        }
    }

    /// Puts a block on the ready list if some of its patches can be written.
    pub(crate) fn queue_if_ready(&mut self, buffer: u32) {
        let b = &mut self.cache[buffer];
        if self.options.ready_lists && !b.queued && b.is_partly_ready() {
            b.queued = true;
            self.ready.push(buffer);
        }
    }

    /// Returns the content of a buffer for a change, copied first if a write of it is in progress.
    pub(crate) fn content_mut(&mut self, buffer: u32) -> &mut [u8] {
        std::sync::Arc::make_mut(&mut self.cache[buffer].content)
    }

    pub(crate) fn set_owner(&mut self, buffer: u32, owner: Owner) {
        self.cache.set_owner(buffer, owner);
    }
}
