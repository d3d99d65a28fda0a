//! The map of a file's blocks: twelve direct pointers, then single, double and triple indirect.
//!
//! A *leaf* is an indirect block whose numbers are those of data. Holes are zeroes at any level.

use super::{Patches, Volume, push_patch};
use crate::fs::Node;
use crate::layout::{DIRECT_SLOTS, Geometry, SLOT_INDIRECT, bytes};
use crate::{Error, Result};
use smallvec::SmallVec;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_vfs::Error as FsError;

/// Groups that one cut frees blocks in, about.
const CUT_GROUPS: usize = 20;

/// Where the pointer to one block of a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Path {
    /// Slot of the inode.
    slot: usize,
    /// Levels of indirect blocks.
    depth: usize,
    /// Index in the indirect block of each level.
    index: [usize; 3],
}

/// What cutting a file's tail needs to be done: collected first, changed after.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Blocks freed, as runs: indirect ones first and from the top down.
    pub meta: Vec<u32>,
    pub data: Vec<(u32, u32)>,
    /// Leaves and inner blocks that stay, with the range of pointers to clear.
    pub clears: Vec<(u32, usize, usize)>,
    /// Blocks freed.
    pub count: u64,
    /// The file has nothing from this block on any more: where the cut stopped.
    pub from: u64,
    /// Groups that blocks are freed in: each costs a bitmap.
    groups: SmallVec<[u32; 32]>,
    budget: u64,
}

impl Cut {
    fn is_full(&self) -> bool {
        self.count >= self.budget || self.groups.len() >= CUT_GROUPS
    }

    fn count(&mut self, block: u32, geometry: &Geometry) {
        self.count += 1;
        let group = block / geometry.blocks_per_group;
        if self.groups.last() != Some(&group) && !self.groups.contains(&group) {
            self.groups.push(group);
        }
    }

    fn add(&mut self, block: u32, geometry: &Geometry) {
        self.count(block, geometry);
        // Walked from the end: runs grow downwards.
        match self.data.last_mut() {
            Some((start, len)) if block.checked_add(1) == Some(*start) => {
                *start = block;
                *len += 1;
            }
            _ => self.data.push((block, 1)),
        }
    }
}

impl Volume {
    fn path(&self, fbn: u64) -> Option<Path> {
        let p = u64::from(self.geometry.pointers_per_block());
        let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let direct = DIRECT_SLOTS as u64;
        if fbn < direct {
            return Some(Path { slot: at(fbn), depth: 0, index: [0; 3] });
        }
        let n = fbn - direct;
        if n < p {
            return Some(Path { slot: SLOT_INDIRECT, depth: 1, index: [at(n), 0, 0] });
        }
        let n = n - p;
        if n < p * p {
            let index = [at(n / p), at(n % p), 0];
            return Some(Path { slot: SLOT_INDIRECT + 1, depth: 2, index });
        }
        let n = n - p * p;
        if n < p * p * p {
            let index = [at(n / (p * p)), at(n / p % p), at(n % p)];
            return Some(Path { slot: SLOT_INDIRECT + 2, depth: 3, index });
        }
        None
    }

    fn path_or_too_large(&self, fbn: u64) -> Result<Path> {
        self.path(fbn).ok_or_else(|| FsError::TooLarge.into())
    }

    /// Blocks from `fbn` to the end of its leaf (or of the direct pointers): what one change of
    /// pointers can cover.
    pub fn leaf_room(&self, fbn: u64) -> u64 {
        let p = u64::from(self.geometry.pointers_per_block());
        let direct = DIRECT_SLOTS as u64;
        if fbn < direct { direct - fbn } else { p - (fbn - direct) % p }
    }

    /// The run of blocks that starts with block `fbn` of a file: its first block (0 for a hole),
    /// and how many follow each other on the volume (or are holes), 1 to `max`.
    pub fn map_run(
        &self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        max: u64,
    ) -> Result<(u32, u64)> {
        let path = self.path_or_too_large(fbn)?;
        let room = self.leaf_room(fbn).min(max);
        if path.depth == 0 {
            let slots = &node.inode.block[path.slot..DIRECT_SLOTS];
            return self.run_of(node.ino, slots.iter().copied(), room);
        }
        let last = path.index[path.depth - 1];
        let first_fbn = fbn - last as u64;
        let leaf = match node.leaf {
            Some((cached, nr)) if cached == first_fbn => nr,
            _ => {
                let mut nr = node.inode.block[path.slot];
                let mut span = u64::from(self.geometry.pointers_per_block())
                    .pow(u32::try_from(path.depth - 1).unwrap_or(0));
                for level in 0..path.depth {
                    if nr == 0 {
                        // A hole as wide as the missing block's span, from fbn on.
                        let whole = span * u64::from(self.geometry.pointers_per_block());
                        let into = (level..path.depth).fold(0_u64, |into, l| {
                            into * u64::from(self.geometry.pointers_per_block())
                                + path.index[l] as u64
                        });
                        return Ok((0, (whole - into).min(max)));
                    }
                    self.check_block(node.ino, nr)?;
                    if level + 1 < path.depth {
                        nr = self.pointer(op, nr, path.index[level])?;
                        span /= u64::from(self.geometry.pointers_per_block());
                    }
                }
                node.leaf = Some((first_fbn, nr));
                nr
            }
        };
        let block = op.peek(BlockNr(u64::from(leaf)))?;
        let pointers = block.get(last * 4..).unwrap_or_default();
        let pointers = pointers.chunks_exact(4).map(|raw| bytes::get32(raw, 0));
        self.run_of(node.ino, pointers, room)
    }

    fn run_of(
        &self,
        ino: u32,
        pointers: impl Iterator<Item = u32>,
        max: u64,
    ) -> Result<(u32, u64)> {
        let mut pointers = pointers.take(usize::try_from(max).unwrap_or(usize::MAX));
        let first = pointers.next().unwrap_or(0);
        let mut len = 1;
        if first == 0 {
            len += pointers.take_while(|p| *p == 0).count() as u64;
            return Ok((0, len));
        }
        self.check_block(ino, first)?;
        let mut last = first;
        for p in pointers {
            if last.checked_add(1) != Some(p) || !self.is_data_block(p) {
                break;
            }
            last = p;
            len += 1;
        }
        Ok((first, len))
    }

    /// Makes sure that the indirect blocks above block `fbn` exist, so that only data blocks can
    /// be missing. Returns the leaf (`None` for a direct pointer). What the inode must follow is
    /// added to `befores`.
    pub fn ensure_leaf(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        befores: &mut Patches,
    ) -> Result<Option<u32>> {
        let path = self.path_or_too_large(fbn)?;
        if path.depth == 0 {
            return Ok(None);
        }
        let last = path.index[path.depth - 1];
        let first_fbn = fbn - last as u64;
        if let Some((cached, nr)) = node.leaf
            && cached == first_fbn
        {
            return Ok(Some(nr));
        }
        let mut nr = node.inode.block[path.slot];
        if nr == 0 {
            let (new, patches) = self.new_indirect(op, node)?;
            node.inode.block[path.slot] = new;
            patches.iter().for_each(|p| push_patch(befores, *p));
            nr = new;
        } else {
            self.check_block(node.ino, nr)?;
        }
        for level in 1..path.depth {
            let index = path.index[level - 1];
            let mut child = self.pointer(op, nr, index)?;
            if child == 0 {
                let (new, patches) = self.new_indirect(op, node)?;
                self.set_pointers(op, node, nr, index, &new.to_le_bytes(), &patches, befores)?;
                child = new;
            } else {
                self.check_block(node.ino, child)?;
            }
            nr = child;
        }
        node.leaf = Some((first_fbn, nr));
        Ok(Some(nr))
    }

    fn new_indirect(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<(u32, Patches)> {
        let mut patches = Patches::new();
        let goal = self.goal(node);
        let (nr, _) = self.alloc_blocks(op, node.ino, goal, 1, 0, &mut patches)?;
        node.goal = u64::from(nr) + 1;
        let init = op.init(BlockNr(u64::from(nr)), &self.zeroes, &[])?;
        node.unreached.push(nr);
        op.own(BlockNr(u64::from(nr)), Owner(u64::from(node.ino)));
        push_patch(&mut patches, init);
        self.count_blocks(node, 1)?;
        Ok((nr, patches))
    }

    /// Where the next block of a file should go.
    pub fn goal(&self, node: &Node) -> u64 {
        if node.goal != 0 { node.goal } else { self.first_goal(node.ino) }
    }

    /// Adds to the space a file takes.
    pub fn count_blocks(&self, node: &mut Node, blocks: u32) -> Result<()> {
        let units = blocks * (self.geometry.block_bytes / 512);
        node.inode.blocks_512 =
            node.inode.blocks_512.checked_add(units).ok_or(FsError::TooLarge)?;
        Ok(())
    }

    /// Points blocks `fbn` on at the `len` blocks from `start` on, all within one leaf whose
    /// indirect blocks exist. `data` are the patches of their content and their bitmap bits.
    pub fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        (start, len): (u32, u32),
        data: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()> {
        let path = self.path_or_too_large(fbn)?;
        if path.depth == 0 {
            for (slot, nr) in node.inode.block[path.slot..DIRECT_SLOTS].iter_mut().zip(start..) {
                if nr - start == len {
                    break;
                }
                *slot = nr;
            }
            data.iter().for_each(|p| push_patch(befores, *p));
            return Ok(());
        }
        let Some(leaf) = self.ensure_leaf(op, node, fbn, befores)? else { return Ok(()) };
        let pointers: Vec<u8> = (start..start + len).flat_map(u32::to_le_bytes).collect();
        self.set_pointers(op, node, leaf, path.index[path.depth - 1], &pointers, data, befores)
    }

    /// Writes pointers of an indirect block. They must follow what they point to. But as long as
    /// nothing points to the indirect block itself, it is enough that what will (the inode) does:
    /// then the block can be written with the data around it, in one request.
    #[expect(clippy::too_many_arguments, reason = "the two places that set pointers")]
    fn set_pointers(
        &self,
        op: &mut Op<'_>,
        node: &Node,
        nr: u32,
        index: usize,
        pointers: &[u8],
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()> {
        let block = BlockNr(u64::from(nr));
        let patch = if node.unreached.contains(&nr) {
            after.iter().for_each(|p| push_patch(befores, *p));
            op.write(block, index * 4, pointers, &[])?
        } else {
            op.write(block, index * 4, pointers, after)?
        };
        op.own(block, Owner(u64::from(node.ino)));
        push_patch(befores, patch);
        Ok(())
    }

    /// Collects what there is to free of a file from block `keep` on, from its end backwards,
    /// stopping after about `budget` blocks. Nothing is changed but the inode's slots in memory.
    pub fn cut(&self, op: &mut Op<'_>, node: &mut Node, keep: u64, budget: u64) -> Result<Cut> {
        let p = u64::from(self.geometry.pointers_per_block());
        let direct = DIRECT_SLOTS as u64;
        let spans = [(direct, 1), (direct + p, 2), (direct + p + p * p, 3)];
        let mut cut = Cut { from: keep, budget, ..Cut::default() };
        node.leaf = None;
        let mut complete = true;
        for (i, &(first, depth)) in spans.iter().enumerate().rev() {
            let slot = SLOT_INDIRECT + i;
            let nr = node.inode.block[slot];
            if nr == 0 || keep >= first + p.pow(depth) {
                continue;
            }
            if self.cut_tree(op, node.ino, nr, depth, first, keep, &mut cut)? {
                node.inode.block[slot] = 0;
            } else if cut.is_full() {
                complete = false;
                break;
            }
        }
        if complete {
            for fbn in (keep.min(direct)..direct).rev() {
                let slot = usize::try_from(fbn).unwrap_or(0);
                let nr = node.inode.block[slot];
                if nr != 0 {
                    self.check_block(node.ino, nr)?;
                    cut.add(nr, &self.geometry);
                    node.inode.block[slot] = 0;
                }
            }
            cut.from = keep;
        }
        Ok(cut)
    }

    /// Collects from one tree of indirect blocks; says whether all of it goes.
    #[expect(clippy::too_many_arguments, reason = "the state of a recursion")]
    fn cut_tree(
        &self,
        op: &mut Op<'_>,
        ino: u32,
        nr: u32,
        depth: u32,
        first: u64,
        keep: u64,
        cut: &mut Cut,
    ) -> Result<bool> {
        self.check_block(ino, nr)?;
        let p = u64::from(self.geometry.pointers_per_block());
        let span = p.pow(depth - 1);
        let pointers: Vec<u32> = op
            .peek(BlockNr(u64::from(nr)))?
            .chunks_exact(4)
            .map(|raw| bytes::get32(raw, 0))
            .collect();
        let low = keep.saturating_sub(first) / span;
        let meta_at = cut.meta.len();
        let mut whole = true;
        let mut cleared = pointers.len();
        let mut any = false;
        for (index, &child) in pointers.iter().enumerate().rev() {
            if (index as u64) < low {
                whole &= keep <= first;
                break;
            }
            let child_first = first + index as u64 * span;
            if child == 0 {
                cleared = index;
                continue;
            }
            if cut.is_full() {
                whole = false;
                cut.from = cut.from.max(child_first + span);
                break;
            }
            if depth == 1 {
                self.check_block(ino, child)?;
                cut.add(child, &self.geometry);
            } else if !self.cut_tree(op, ino, child, depth - 1, child_first, keep, cut)? {
                whole = false;
                break;
            }
            cleared = index;
            any = true;
        }
        whole &= keep <= first;
        if whole {
            cut.meta.insert(meta_at, nr);
            cut.count(nr, &self.geometry);
        } else if any {
            cut.clears.push((nr, cleared, pointers.len()));
        }
        Ok(whole)
    }

    /// Clears a range of an indirect block's pointers.
    pub fn clear_pointers(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        (nr, from, to): (u32, usize, usize),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let zeroes = self.zeroes.get(from * 4..to * 4).unwrap_or_default();
        let nr = BlockNr(u64::from(nr));
        let patch = op.write(nr, from * 4, zeroes, befores)?;
        op.own(nr, Owner(u64::from(ino)));
        Ok(patch)
    }

    /// The indirect block and index that hold the pointer to block `fbn`, for making a hole
    /// (`None` for a direct pointer, or where there is a hole already).
    pub fn leaf_of(
        &self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
    ) -> Result<Option<(u32, usize)>> {
        let path = self.path_or_too_large(fbn)?;
        if path.depth == 0 || self.map_run(op, node, fbn, 1)?.0 == 0 {
            return Ok(None);
        }
        Ok(node.leaf.map(|(_, nr)| (nr, path.index[path.depth - 1])))
    }

    /// All blocks of a file in order, each run with its first file block: for the journal, and
    /// for reading directories. A hole is an error.
    pub fn all_blocks(&self, op: &mut Op<'_>, node: &mut Node, blocks: u64) -> Result<Vec<u32>> {
        if blocks > self.geometry.blocks {
            return Err(Error::corrupt(
                format!("inode {}", node.ino),
                0,
                format!("a size of {blocks} blocks on a volume of {}", self.geometry.blocks),
            ));
        }
        let mut all = Vec::new();
        let mut fbn = 0;
        while fbn < blocks {
            let (start, len) = self.map_run(op, node, fbn, blocks - fbn)?;
            if start == 0 {
                return Err(Error::corrupt(
                    format!("inode {}", node.ino),
                    0,
                    format!("block {fbn} of it is missing"),
                ));
            }
            for i in 0..u32::try_from(len).unwrap_or(0) {
                all.push(start + i);
            }
            fbn += len;
        }
        Ok(all)
    }
}
