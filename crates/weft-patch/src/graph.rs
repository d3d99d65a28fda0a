//! The patch graph: patches, their undo data and the dependencies between them, in arenas.
//!
//! Edges are links in two lists at once: the *befores* of the patch that waits and the *afters* of
//! the patch waited for. Nothing here allocates per patch or per edge once the arenas have grown,
//! except for undo data of more than [`INLINE_UNDO_BYTES`](crate::undo::INLINE_UNDO_BYTES).
//!
//! Invariants:
//! - An edge exists only between two live patches; making a patch durable removes its edges.
//! - `waits` of a patch is the number of its befores that are not on its own block.
//! - A patch of the arena never has the generation of an older one at its index, also if the arena
//!   was shorter in between.
//! - Befores on the same block ("internal") are always older on that block's list.

use crate::PatchId;
use crate::ids::Sector;
use crate::undo::{Change, Pieces, UndoArena};

/// "No patch", "no edge", "no piece", "no buffer".
pub(crate) const NONE: u32 = u32::MAX;

/// Entries for which an arena keeps memory whatever happens; few in tests, so that they shrink it.
pub(crate) const KEPT: usize = if cfg!(test) { 4 } else { 1024 };

/// The kind of a patch, and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Has undo data and can be rolled back.
    Soft,
    /// Has no undo data: its block is written with it or not at all.
    Hard,
    /// Changes nothing: joins others.
    Empty,
    /// Whole blocks of file data written by one operation, none of which has a patch of its own:
    /// they are linked from `pieces` and counted in `waits`.
    Run,
    /// Its write is in progress (or failed and will be repeated from the copy that was made).
    InFlight,
    /// Not in use.
    Free,
}

/// One patch: 52 bytes, and 24 for each dependency.
#[derive(Debug)]
pub(crate) struct Patch {
    pub generation: u32,
    /// Index of the buffer it changes, or `NONE`.
    pub buffer: u32,
    /// Neighbours on its buffer's list, oldest first.
    pub older: u32,
    pub newer: u32,
    /// Edges to the patches that it waits for.
    pub befores: u32,
    /// Edges to the patches that wait for it.
    pub afters: u32,
    /// Number of befores on other blocks.
    pub waits: u32,
    /// Its undo data; of a run, its first buffer.
    pub pieces: u32,
    /// Range of the block that contains its undo data, from and to: most changes of a block overlap
    /// few of its patches, and this shows it without a look at their pieces.
    hull: (u16, u16),
    /// The number of patches made before it, modulo 2^32.
    number: u32,
    /// Marks of graph walks.
    pub mark: u32,
    pub kind: Kind,
    /// About the number of rounds of write-back that it took for its befores when they were named: a
    /// measure of how deep a merge would make the graph, and no more.
    pub depth: u8,
    /// Whether a sync waits for it: it takes no more befores.
    pub sealed: bool,
    /// Scratch bit of the planner. (The external befores are counted in their block's counters.)
    pub chosen: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    before: u32,
    after: u32,
    next_of_after: u32,
    prev_of_after: u32,
    next_of_before: u32,
    prev_of_before: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    patches: Vec<Patch>,
    free_patches: Vec<u32>,
    edges: Vec<Edge>,
    free_edges: Vec<u32>,
    undo: UndoArena,
    mark: u32,
    stack: Vec<u32>,
    /// The generation of patches that are added to the arena: none had it that was there before.
    first_generation: u32,
    /// Number of patches ever made, modulo 2^32.
    made: u32,
    /// Number of live patches.
    pub live: usize,
}

impl std::ops::Index<u32> for Graph {
    type Output = Patch;
    fn index(&self, index: u32) -> &Patch {
        &self.patches[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Graph {
    fn index_mut(&mut self, index: u32) -> &mut Patch {
        &mut self.patches[index as usize]
    }
}

impl Graph {
    pub fn make(&mut self, kind: Kind, buffer: u32) -> u32 {
        self.live += 1;
        self.made = self.made.wrapping_add(1);
        let number = self.made;
        if let Some(index) = self.free_patches.pop() {
            let p = &mut self[index];
            p.number = number;
            p.buffer = buffer;
            p.kind = kind;
            return index;
        }
        let index = u32::try_from(self.patches.len()).expect("fewer than 2^32 patches in memory");
        self.patches.push(Patch {
            generation: self.first_generation,
            buffer,
            older: NONE,
            newer: NONE,
            befores: NONE,
            afters: NONE,
            waits: 0,
            pieces: NONE,
            hull: (0, 0),
            number,
            mark: 0,
            kind,
            depth: 0,
            sealed: false,
            chosen: false,
        });
        index
    }

    /// Releases a patch that has no edges any more.
    pub fn release(&mut self, index: u32) {
        debug_assert!(
            self[index].kind != Kind::Run || self[index].pieces == NONE,
            "a run has blocks"
        );
        self.drop_undo(index);
        self.live -= 1;
        let p = &mut self[index];
        debug_assert!(p.befores == NONE && p.afters == NONE, "a released patch has edges");
        let generation = p.generation.wrapping_add(1);
        *p = Patch {
            generation,
            buffer: NONE,
            older: NONE,
            newer: NONE,
            befores: NONE,
            afters: NONE,
            waits: 0,
            pieces: NONE,
            hull: (0, 0),
            number: 0,
            mark: 0,
            kind: Kind::Free,
            depth: 0,
            sealed: false,
            chosen: false,
        };
        self.free_patches.push(index);
    }

    /// Gives back the memory of the arenas that a burst has left. Returns its size in bytes.
    pub fn shrink(&mut self) -> usize {
        let before = self.arena_bytes();
        if self.patches.len() > KEPT && self.live < self.patches.len() / 2 {
            while let Some(last) = self.patches.last()
                && last.kind == Kind::Free
            {
                self.first_generation = self.first_generation.max(last.generation);
                self.patches.pop();
            }
            let len = self.patches.len();
            self.free_patches.retain(|&index| (index as usize) < len);
            self.patches.shrink_to(KEPT);
            self.free_patches.shrink_to(KEPT);
        }
        if self.edges.len() > KEPT && self.dependencies() == 0 {
            (self.edges, self.free_edges) = Default::default();
        }
        self.undo.shrink();
        before - self.arena_bytes()
    }

    fn arena_bytes(&self) -> usize {
        self.patches.capacity() * size_of::<Patch>()
            + self.edges.capacity() * size_of::<Edge>()
            + (self.free_patches.capacity() + self.free_edges.capacity()) * size_of::<u32>()
            + self.undo.arena_bytes()
    }

    /// Returns the one of two patches that was made later. Fewer than 2^31 were made between them.
    pub fn newer(&self, a: u32, b: u32) -> u32 {
        let later = self[a].number.wrapping_sub(self[b].number);
        if later < 1 << 31 { a } else { b }
    }

    /// Returns the number of the patch that was made last.
    pub fn last_number(&self) -> u32 {
        self.made
    }

    /// Returns true if a patch was made after the one with this number, of which it is true that fewer
    /// than 2^31 were made since.
    pub fn is_after(&self, patch: u32, number: u32) -> bool {
        let later = self[patch].number.wrapping_sub(number);
        later != 0 && later < 1 << 31
    }

    /// Returns the id of a patch that is not a change of one block.
    pub fn id(&self, index: u32) -> PatchId {
        PatchId { index, generation: self[index].generation, sector: Sector::SEVERAL }
    }

    /// Returns the id of a patch, for a change that it contains.
    pub fn id_of(&self, index: u32, change: Change) -> PatchId {
        PatchId { sector: Sector::of(change.range()), ..self.id(index) }
    }

    /// Returns the patch with an id, or `None` if it is durable.
    pub fn find(&self, id: PatchId) -> Option<u32> {
        let p = self.patches.get(id.index as usize)?;
        (p.generation == id.generation && p.kind != Kind::Free).then_some(id.index)
    }

    /// Returns true if the patch that had this index and generation is live and soft. The arena may
    /// be shorter now.
    pub fn is_soft(&self, index: u32, generation: u32) -> bool {
        let patch = self.patches.get(index as usize);
        patch.is_some_and(|p| p.generation == generation && p.kind == Kind::Soft)
    }

    // --- edges ---------------------------------------------------------------------------------

    /// Returns true if a short search finds that `after` already waits for `before`.
    pub fn has_edge(&self, after: u32, before: u32) -> bool {
        const LOOK_AT: usize = 16;
        let mut edge = self[before].afters;
        for _ in 0..LOOK_AT {
            if edge == NONE {
                return false;
            }
            let e = &self.edges[edge as usize];
            if e.after == after {
                return true;
            }
            edge = e.next_of_before;
        }
        false
    }

    /// Makes `after` wait for `before`. The caller updates `waits` and the counts of the buffers.
    pub fn add_edge(&mut self, after: u32, before: u32) {
        let next_of_after = self[after].befores;
        let next_of_before = self[before].afters;
        let edge = Edge {
            before,
            after,
            next_of_after,
            prev_of_after: NONE,
            next_of_before,
            prev_of_before: NONE,
        };
        let index = if let Some(index) = self.free_edges.pop() {
            self.edges[index as usize] = edge;
            index
        } else {
            self.edges.push(edge);
            u32::try_from(self.edges.len() - 1).expect("fewer than 2^32 dependencies in memory")
        };
        if next_of_after != NONE {
            self.edges[next_of_after as usize].prev_of_after = index;
        }
        if next_of_before != NONE {
            self.edges[next_of_before as usize].prev_of_before = index;
        }
        self[after].befores = index;
        self[before].afters = index;
    }

    /// Returns the number of dependencies between live patches.
    pub fn dependencies(&self) -> usize {
        self.edges.len() - self.free_edges.len()
    }

    fn remove_edge(&mut self, index: u32) {
        let e = self.edges[index as usize];
        if e.prev_of_after == NONE {
            self[e.after].befores = e.next_of_after;
        } else {
            self.edges[e.prev_of_after as usize].next_of_after = e.next_of_after;
        }
        if e.next_of_after != NONE {
            self.edges[e.next_of_after as usize].prev_of_after = e.prev_of_after;
        }
        if e.prev_of_before == NONE {
            self[e.before].afters = e.next_of_before;
        } else {
            self.edges[e.prev_of_before as usize].next_of_before = e.next_of_before;
        }
        if e.next_of_before != NONE {
            self.edges[e.next_of_before as usize].prev_of_before = e.prev_of_before;
        }
        self.free_edges.push(index);
    }

    /// Removes and returns one of the patches that wait for `before`.
    pub fn pop_after(&mut self, before: u32) -> Option<u32> {
        let edge = self[before].afters;
        if edge == NONE {
            return None;
        }
        let after = self.edges[edge as usize].after;
        self.remove_edge(edge);
        Some(after)
    }

    /// Removes and returns one of the patches that `after` waits for.
    pub fn pop_before(&mut self, after: u32) -> Option<u32> {
        let edge = self[after].befores;
        if edge == NONE {
            return None;
        }
        let before = self.edges[edge as usize].before;
        self.remove_edge(edge);
        Some(before)
    }

    pub fn befores(&self, index: u32) -> impl Iterator<Item = u32> + '_ {
        let mut edge = self[index].befores;
        std::iter::from_fn(move || {
            (edge != NONE).then(|| {
                let e = &self.edges[edge as usize];
                edge = e.next_of_after;
                e.before
            })
        })
    }

    pub fn afters(&self, index: u32) -> impl Iterator<Item = u32> + '_ {
        let mut edge = self[index].afters;
        std::iter::from_fn(move || {
            (edge != NONE).then(|| {
                let e = &self.edges[edge as usize];
                edge = e.next_of_before;
                e.after
            })
        })
    }

    // --- undo data -----------------------------------------------------------------------------

    /// Records the undo data of `change` for a patch, `content` being the block before the change.
    /// Returns the bytes of undo data added.
    pub fn add_undo(&mut self, patch: u32, change: Change, content: &[u8]) -> usize {
        if self[patch].pieces == NONE {
            self[patch].pieces = self.undo.make();
        }
        let added = self.undo.add(self[patch].pieces, change, content);
        self[patch].hull = self.pieces(patch).hull();
        added
    }

    /// Returns true if `change` overlaps the changes of a soft patch.
    pub fn overlap(&self, patch: u32, change: Change) -> bool {
        let ((from, to), (start, end)) = (self[patch].hull, change.range());
        start < usize::from(to) && usize::from(from) < end && self.pieces(patch).overlap(change)
    }

    /// Returns the undo data of a soft patch.
    pub fn pieces(&self, patch: u32) -> &Pieces {
        self.undo.get(self[patch].pieces)
    }

    /// Returns true if all changes of the patch are known, and are in one sector.
    pub fn is_in_one_sector(&self, patch: u32) -> bool {
        const SECTOR_BYTES: u16 = 512;
        let (from, to) = self[patch].hull;
        let known = self[patch].kind == Kind::Soft && to > from;
        known && from / SECTOR_BYTES == (to - 1) / SECTOR_BYTES
    }

    pub fn drop_undo(&mut self, patch: u32) {
        let list = std::mem::replace(&mut self[patch].pieces, NONE);
        if list != NONE {
            self.undo.release(list);
        }
    }

    /// Returns the size of the undo data in memory, in bytes.
    pub fn undo_bytes(&self) -> usize {
        self.undo.len_bytes
    }

    // --- walks ---------------------------------------------------------------------------------

    /// Returns a mark that no patch has yet.
    pub fn new_mark(&mut self) -> u32 {
        self.mark += 1;
        self.mark
    }

    /// Walks from `from` along befores, and to the patch that must be written together with each
    /// visited one (`together` returns the hard patch of a buffer), until `found` returns true or
    /// `bound` patches were visited. Returns true if `found` did. Visits patches in flight, which
    /// wait for nothing.
    pub fn reaches(
        &mut self,
        from: &[u32],
        bound: usize,
        together: impl Fn(u32) -> u32,
        mut found: impl FnMut(u32, &Patch) -> bool,
    ) -> bool {
        let mark = self.new_mark();
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        stack.extend_from_slice(from);
        let mut met = 0;
        let mut answer = false;
        while let Some(index) = stack.pop() {
            let patch = &mut self.patches[index as usize];
            if patch.mark == mark {
                continue;
            }
            patch.mark = mark;
            met += 1;
            if met > bound {
                break;
            }
            if found(index, patch) {
                answer = true;
                break;
            }
            if patch.kind == Kind::InFlight {
                continue;
            }
            let mut edge = patch.befores;
            if patch.buffer != NONE {
                let hard = together(patch.buffer);
                if hard != NONE && hard != index {
                    stack.push(hard);
                }
            }
            while edge != NONE {
                let e = &self.edges[edge as usize];
                stack.push(e.before);
                edge = e.next_of_after;
            }
        }
        self.stack = stack;
        answer
    }
}
