//! The pending patches of a block that a change of it must follow: those that it overlaps, and those
//! of the bytes that it relied on.
//!
//! A block with few patches is searched; for one with many there is an [index](crate::newest). A
//! search costs time, and may find dependencies, in proportion to the patches, at each change of a
//! block that programs change again and again before it is written.
//!
//! The index must not find more than the search would: a change that follows others without need
//! waits for their befores. Where it did (in blocks with many patches, each change followed all), an
//! inode table and a bitmap waited for each other in turns, one round of write-back for each few
//! changes of one file's length.

use crate::change::Befores;
use crate::engine::Op;
use crate::graph::{Kind, NONE};
use crate::newest::Newest;
use crate::state::State;
use crate::undo::Change;
use crate::{BlockNr, PatchId, Policy, Result};
use std::ops::Range;

/// Number of patches that a change follows beyond which later ones follow it in their place, as far as
/// they rely on the same bytes. This bounds the dependencies of a change.
const MANY_FOLLOWED: usize = 16;

impl Op<'_> {
    /// Does as [`write`](Self::write) for bytes on which no others of the block rely, and of which no
    /// others decide, such as a pointer to a block. If they become what they were before a change that
    /// was not written yet, and only `befores` wait for that, then both are cancelled.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_alone(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.reads.changes(nr, &[]);
        self.state.write_alone(nr, offset, bytes, befores)
    }

    /// Takes a change of a block back that `change` contains, of bytes on which no others of the block
    /// rely: makes them `bytes`, as a part of the same patch, if nothing has changed them since, and
    /// no write has contained it yet. Returns false, and changes nothing, if that is not possible, or if
    /// a patchgroup of the operation waits for others, which may wait for `change`.
    ///
    /// A write of the block then has either what was there before the patch, or `bytes`: never what is
    /// taken back. The order of other changes, which wait for this patch, stays.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn take_back(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        change: PatchId,
    ) -> Result<bool> {
        let part = offset..offset + bytes.len();
        let done = self.state.take_back(nr, offset, bytes, change)?;
        if done {
            self.reads.changes(nr, std::slice::from_ref(&part));
        }
        Ok(done)
    }
}

impl State {
    /// Adds to `internal` the pending patches of its block that a change must follow. Returns the
    /// newest of all that it then follows, the only one that it may join: an older one would wait
    /// for a newer.
    pub(crate) fn add_followed(
        &mut self,
        buffer: u32,
        change: Change,
        relied: &[Range<usize>],
        internal: &mut Befores,
    ) -> u32 {
        if self.update_index(buffer) {
            return self.find_followed(buffer, change, relied, internal);
        }
        self.add_relied(buffer, relied, internal);
        self.add_overlapped(buffer, change, internal)
    }

    /// Returns the patch that a change of `bytes`, on which no other part of the block relies, is
    /// durable with, if it takes back pending changes that only this patch waits for: then it is no
    /// change.
    ///
    /// An example is a pointer in an indirect block, set for a write of the file and cleared for a cut
    /// of it: the inode's patch, which contains both the write and the cut, waits for the pointer,
    /// and the clearing would wait for the inode. Without that patch the block has the pointer or
    /// not, and with it, it has had the pointer and has it no more: the block as it was before is right
    /// in both cases. This holds for a patch that is written as one, so within a sector.
    pub(crate) fn taken_back_with(
        &mut self,
        buffer: u32,
        offset: usize,
        bytes: &[u8],
        befores: &[PatchId],
    ) -> Option<PatchId> {
        let b = &self.cache[buffer];
        if !self.may_take_back() || b.patches == 0 || b.external_afters == 0 {
            return None;
        }
        let mut live = befores.iter().filter_map(|&id| Some((id, self.graph.find(id)?)));
        let (id, after) = live.next()?;
        let alone = live.all(|(_, other)| other == after);
        if !alone || self.graph[after].buffer == buffer || !self.graph.is_in_one_sector(after) {
            return None;
        }
        let change = Change::Bytes { offset, len: bytes.len() };
        let mut followed = Befores::new();
        self.add_followed(buffer, change, &[], &mut followed);
        let mut taken_back = 0;
        for &patch in &followed {
            let mut afters = self.graph.afters(patch);
            if !afters.all(|a| a == after || self.graph[a].buffer == buffer) {
                return None;
            }
            taken_back += self.graph.pieces(patch).taken_back_by(offset, bytes)?;
        }
        (taken_back == bytes.len()).then_some(id)
    }

    /// Makes the bytes at `offset` of a block `bytes`, as a part of the patch of `change`, if that is the
    /// newest one of these bytes and was not written yet. Returns true if so.
    pub(crate) fn take_back(
        &mut self,
        nr: BlockNr,
        offset: usize,
        bytes: &[u8],
        change: PatchId,
    ) -> Result<bool> {
        self.check_change(nr, offset, bytes.len())?;
        let Some(patch) = self.graph.find(change) else { return Ok(false) };
        let buffer = self.load(nr, false)?;
        let (kind, of) = (self.graph[patch].kind, self.graph[patch].buffer);
        let alone = self.options.policy == Policy::Soft && self.options.merge;
        if !self.may_take_back() || !alone || of != buffer {
            return Ok(false);
        }
        let bytes_of = Change::Bytes { offset, len: bytes.len() };
        let mut followed = Befores::new();
        let newest = self.add_followed(buffer, bytes_of, &[], &mut followed);
        match kind {
            Kind::Hard if newest == NONE && self.cache[buffer].hard == patch => {}
            Kind::Soft if newest == patch && self.graph.pieces(patch).cover(bytes_of) => {}
            _ => return Ok(false),
        }
        self.counters.taken_back += 1;
        self.note_grouped(change);
        self.content_mut(buffer)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(true)
    }

    /// Returns true if the operation in progress may take a change back. What its groups wait for may
    /// wait for that change: it must be durable first, and then be undone.
    fn may_take_back(&self) -> bool {
        self.options.cancel && self.grouped.befores.is_empty()
    }

    /// Makes or drops the index of a block. Returns true if it has one.
    fn update_index(&mut self, buffer: u32) -> bool {
        let b = &self.cache[buffer];
        let limit = self.options.indexed_patches;
        if b.newest_of.is_some() {
            // Not made again and again at the limit.
            if b.patches <= limit / 2 {
                self.cache.drop_index(buffer);
                return false;
            }
            return true;
        }
        if b.patches <= limit {
            return false;
        }
        let mut newest_of = Newest::new(self.block_bytes);
        let mut at = b.oldest;
        while at != NONE {
            let patch = &self.graph[at];
            if patch.kind == Kind::Soft {
                for change in self.graph.pieces(at).changes() {
                    newest_of.note(change, at, patch.generation);
                }
            }
            at = patch.newer;
        }
        self.cache.add_index(buffer, newest_of);
        true
    }

    /// Does as [`add_followed`](Self::add_followed) with the index of the block.
    fn find_followed(
        &mut self,
        buffer: u32,
        change: Change,
        relied: &[Range<usize>],
        internal: &mut Befores,
    ) -> u32 {
        let Some(mut newest_of) = self.cache[buffer].newest_of.take() else { return NONE };
        let seen = self.graph.new_mark();
        for &patch in &*internal {
            self.graph[patch].mark = seen;
        }
        let mut found: Befores = Befores::new();
        for part in relied.iter().map(Change::of).chain([change]) {
            newest_of.find(&self.graph, part, |patch| {
                if found.last() != Some(&patch) {
                    found.push(patch);
                }
            });
        }
        self.cache[buffer].newest_of = Some(newest_of);
        for patch in found {
            if std::mem::replace(&mut self.graph[patch].mark, seen) != seen {
                internal.push(patch);
            }
        }
        let newest = internal.iter().copied().reduce(|a, b| self.graph.newer(a, b));
        newest.unwrap_or(NONE)
    }

    /// Notes in the index of a block that a patch contains a change, which followed so many others.
    pub(crate) fn note_newest(
        &mut self,
        buffer: u32,
        change: Change,
        relied: &[Range<usize>],
        followed: usize,
        patch: u32,
    ) {
        let generation = self.graph[patch].generation;
        let Some(newest_of) = &mut self.cache[buffer].newest_of else { return };
        newest_of.note(change, patch, generation);
        if followed > MANY_FOLLOWED {
            for part in relied {
                newest_of.note(Change::of(part), patch, generation);
            }
        }
    }

    /// Adds to `internal` the soft patches that the change overlaps; returns the newest of all that
    /// it then follows, the only one that it may join: an older one would wait for a newer.
    fn add_overlapped(&self, buffer: u32, change: Change, internal: &mut Befores) -> u32 {
        let b = &self.cache[buffer];
        if b.patches == 0 || (b.patches == 1 && b.hard != NONE) {
            return NONE;
        }
        let mut newest = NONE;
        let mut at = b.newest;
        while at != NONE {
            let patch = &self.graph[at];
            if patch.kind == Kind::Soft {
                let given = internal.contains(&at);
                if given || self.graph.overlap(at, change) {
                    if newest == NONE {
                        newest = at;
                    }
                    if !given {
                        internal.push(at);
                    }
                    // It waits itself for the patches below it.
                    if self.graph.pieces(at).cover(change) {
                        break;
                    }
                }
            }
            at = patch.older;
        }
        newest
    }

    /// Adds to `internal` the soft patches of the parts that a change relied on.
    fn add_relied(&self, buffer: u32, relied: &[Range<usize>], internal: &mut Befores) {
        let b = &self.cache[buffer];
        if relied.is_empty() || b.patches == 0 || (b.patches == 1 && b.hard != NONE) {
            return;
        }
        let mut at = b.newest;
        while at != NONE {
            let patch = &self.graph[at];
            if patch.kind == Kind::Soft
                && !internal.contains(&at)
                && relied.iter().any(|part| self.graph.overlap(at, Change::of(part)))
            {
                internal.push(at);
            }
            at = patch.older;
        }
    }

    /// Checks, in a debug build, that a patch follows all pending changes of these parts of its
    /// block.
    pub(crate) fn check_follows(&mut self, patch: PatchId, parts: &[Range<usize>]) {
        let Some(patch) = self.graph.find(patch) else { return };
        let buffer = self.graph[patch].buffer;
        let cache = &self.cache;
        self.graph.reaches(&[patch], usize::MAX, |b| cache[b].hard, |_, _| false);
        let mark = self.graph[patch].mark;
        let mut at = self.cache[buffer].newest;
        while at != NONE {
            let other = at;
            at = self.graph[other].older;
            let soft = self.graph[other].kind == Kind::Soft;
            let part = parts.iter().find(|part| self.graph.overlap(other, Change::of(part)));
            let Some(part) = part.filter(|_| soft) else { continue };
            let nr = self.cache[buffer].nr;
            assert!(
                self.graph[other].mark == mark,
                "a change of block {nr} was decided by bytes {part:?} of it, and does not follow \
                 patch {other} of them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::Engine;
    use crate::graph::Kind;
    use crate::state::State;
    use crate::undo::Change;
    use crate::writeback::Goal;
    use crate::{BlockNr, Options, PatchId};
    use proptest::prelude::*;
    use std::ops::Range;
    use std::sync::Arc;
    use weft_block::MemoryDevice;

    const BLOCK_BYTES: usize = 512;
    const BLOCKS: u64 = 3;

    /// One change of a block, which relied on parts of it and follows earlier changes.
    #[derive(Debug, Clone)]
    struct Made {
        nr: u64,
        change: Change,
        relied: Vec<Range<usize>>,
        befores: Vec<prop::sample::Index>,
    }

    #[derive(Debug, Clone)]
    enum Step {
        Change(Made),
        /// A round of write-back.
        Round,
        Sync,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..BLOCK_BYTES, 1..12_usize).prop_map(|(offset, len)| Change::Bytes {
                offset,
                len: len.min(BLOCK_BYTES - offset)
            }),
            // Few places, where changes meet.
            (0..12_usize, 1..9_usize).prop_map(|(offset, len)| Change::Bytes { offset, len }),
            (0..3_usize, 0..32_u32)
                .prop_map(|(word, bit)| Change::Bits { offset: word * 4, mask: 1 << bit }),
            (60..63_usize, 1..=u32::MAX)
                .prop_map(|(word, mask)| Change::Bits { offset: word * 4, mask }),
            Just(Change::Bytes { offset: 0, len: BLOCK_BYTES }),
        ]
    }

    fn relied() -> impl Strategy<Value = Vec<Range<usize>>> {
        let part = (0..BLOCK_BYTES - 8, 1..8_usize).prop_map(|(from, len)| from..from + len);
        prop_oneof![
            3 => Just(Vec::new()),
            1 => proptest::collection::vec(part, 1..30),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        let befores = proptest::collection::vec(any::<prop::sample::Index>(), 0..3);
        let made = (0..BLOCKS, change(), relied(), befores)
            .prop_map(|(nr, change, relied, befores)| Made { nr, change, relied, befores });
        prop_oneof![
            40 => made.prop_map(Step::Change),
            2 => Just(Step::Round),
            1 => Just(Step::Sync),
        ]
    }

    type Bits = Vec<bool>;

    fn bits(changes: &[Change]) -> Bits {
        let mut bits = vec![false; BLOCK_BYTES * 8];
        for change in changes {
            let (start, end) = change.range();
            for (at, bit) in bits[start * 8..end * 8].iter_mut().enumerate() {
                *bit |= match change {
                    Change::Bytes { .. } => true,
                    Change::Bits { mask, .. } => mask & (1 << at) != 0,
                };
            }
        }
        bits
    }

    fn meet(a: &Bits, b: &Bits) -> bool {
        a.iter().zip(b).any(|(a, b)| *a && *b)
    }

    /// A change in a soft patch: the bits that it has changed, and those by which others may find it.
    struct Soft {
        id: PatchId,
        nr: u64,
        is_flip: bool,
        changed: Bits,
        found_by: Bits,
    }

    fn run(options: &Options, steps: Vec<Step>) -> Result<(), TestCaseError> {
        let device = Arc::new(MemoryDevice::new(BLOCKS * BLOCK_BYTES as u64));
        let options = Options { background: false, ..options.clone() };
        let engine = Engine::new(device, BLOCK_BYTES as u32, options).unwrap();
        let mut all: Vec<PatchId> = Vec::new();
        let mut soft: Vec<Soft> = Vec::new();
        for step in steps {
            let Made { nr, change, relied, befores } = match step {
                Step::Change(made) => made,
                Step::Round => {
                    let _io = engine.shared.lock_io().unwrap();
                    engine.shared.round(Goal::All).1.unwrap();
                    continue;
                }
                Step::Sync => {
                    engine.sync().unwrap();
                    continue;
                }
            };
            let befores: Vec<PatchId> = befores
                .iter()
                .filter(|_| !all.is_empty())
                .map(|before| all[before.index(all.len())])
                .collect();
            let mut state = engine.lock();
            let internal = |state: &State, id: PatchId| -> Vec<u32> {
                let Some(patch) = state.graph.find(id) else { return Vec::new() };
                let buffer = state.graph[patch].buffer;
                let befores = state.graph.befores(patch);
                befores.filter(|b| state.graph[*b].buffer == buffer).collect()
            };
            let had: Vec<(PatchId, Vec<u32>)> =
                soft.iter().map(|s| (s.id, internal(&state, s.id))).collect();
            let id = match change {
                Change::Bytes { offset, len } => {
                    state.write(BlockNr(nr), offset, &vec![9; len], &relied, &befores).unwrap()
                }
                Change::Bits { offset, mask } => {
                    state.flip(BlockNr(nr), offset, mask, &befores).unwrap()
                }
            };
            all.push(id);
            let Some(patch) = state.graph.find(id) else { continue };
            let is_flip = matches!(change, Change::Bits { .. });
            let mut asked = vec![change];
            if !is_flip {
                asked.extend(relied.iter().map(Change::of));
            }
            let asked = bits(&asked);
            let live = |state: &State, s: &Soft| {
                let found = state.graph.find(s.id);
                found.filter(|p| s.nr == nr && state.graph[*p].kind == Kind::Soft)
            };
            // It follows all that it must.
            let State { graph, cache, .. } = &mut *state;
            graph.reaches(&[patch], usize::MAX, |buffer| cache[buffer].hard, |_, _| false);
            let mark = state.graph[patch].mark;
            for s in &soft {
                if let Some(other) = live(&state, s)
                    && meet(&s.changed, &asked)
                {
                    prop_assert_eq!(
                        state.graph[other].mark,
                        mark,
                        "{:?} does not follow patch {}",
                        change,
                        other
                    );
                }
            }
            // And no others.
            if state.graph[patch].kind != Kind::Soft {
                continue;
            }
            let same = |id: PatchId| state.graph.find(id) == Some(patch);
            let before = had.iter().find(|(id, _)| same(*id)).map_or(&[][..], |(_, had)| had);
            let follows = internal(&state, id);
            for other in follows.iter().filter(|b| !before.contains(b)) {
                let given = befores.iter().any(|b| state.graph.find(*b) == Some(*other));
                let met = soft
                    .iter()
                    .any(|s| live(&state, s) == Some(*other) && meet(&s.found_by, &asked));
                prop_assert!(given || met, "{change:?} follows patch {other}");
            }
            let mut changed = bits(&[change]);
            // With itself, if it has joined the newest of them.
            let stands = follows.len() + 1 > super::MANY_FOLLOWED;
            let found_by = if stands { asked } else { changed.clone() };
            // A bit that one patch flips twice is not changed by it.
            for s in soft.iter_mut().filter(|s| is_flip && s.is_flip && same(s.id)) {
                for (other, own) in s.changed.iter_mut().zip(&mut changed) {
                    (*other, *own) = (*other && !*own, *own && !*other);
                }
            }
            soft.push(Soft { id, nr, is_flip, changed, found_by });
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// A change follows each pending change that it must, and no others: those that a search of
        /// all earlier changes finds.
        #[test]
        fn a_change_follows_what_it_must(
            steps in proptest::collection::vec(step(), 1..200),
            indexed_patches in prop_oneof![Just(0), Just(3), Just(u32::MAX)],
            merge in any::<bool>(),
            hard_patches in any::<bool>(),
        ) {
            let options = Options { indexed_patches, merge, hard_patches, ..Options::default() };
            run(&options, steps)?;
        }
    }

    #[test]
    fn a_bit_that_a_patch_flips_twice_is_not_followed() {
        let made = |change| Step::Change(Made { nr: 1, change, relied: vec![], befores: vec![] });
        let flip = Change::Bits { offset: 8, mask: 1 << 23 };
        let steps = [flip, flip, Change::Bytes { offset: 7, len: 4 }].map(made);
        let options = Options { hard_patches: false, ..Options::default() };
        run(&options, steps.to_vec()).unwrap();
    }
}
