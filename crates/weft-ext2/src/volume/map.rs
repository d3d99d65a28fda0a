//! The map of a file's blocks: twelve direct pointers, then single, double and triple indirect.
//!
//! A *leaf* is an indirect block whose numbers are those of data. Holes are zeroes at any level.

use super::cut::{CUT_BLOCKS, Cut};
use super::node::{Node, number, raw};
use super::orphans::now_secs;
use super::state::Volume;
use crate::layout::{DIRECT_SLOTS, MapPath, RoCompat, bytes};
use std::ops::Range;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{Error, FileBlocks, Patches, Result, Run, Unmapped, push_patch};
use weft_vfs::{Error as FsError, Ino};

/// The longest file whose data is read with its map: as much as the kernel reads ahead at first.
const SMALL_FILE_BYTES: u64 = 128 << 10;

/// Returns the number of a block as the volume writes it; one that no volume has if it does not
/// fit.
fn block_number(nr: BlockNr) -> u32 {
    u32::try_from(nr.0).unwrap_or(u32::MAX)
}

impl FileBlocks for Volume {
    type Cut = Cut;

    fn map(&self, op: &mut Op<'_>, node: &mut Node, fbn: u64, max: u64) -> Result<Run> {
        let path = self.path_or_too_large(fbn)?;
        let room = self.leaf_room(fbn).min(max);
        if path.depth == 0 {
            let slots = &node.own.block[path.slot..DIRECT_SLOTS];
            return self.run_of(node.ino, slots.iter().copied(), room);
        }
        let last = path.index[path.depth - 1];
        let first_fbn = fbn - last as u64;
        let leaf = match node.own.leaf {
            Some((cached, nr)) if cached == first_fbn => nr,
            _ => {
                let mut nr = node.own.block[path.slot];
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
                        return Ok(Run { start: None, len: (whole - into).min(max) });
                    }
                    self.check_block(node.ino, nr)?;
                    if level + 1 < path.depth {
                        nr = self.pointer(op, nr, path.index[level])?;
                        span /= u64::from(self.geometry.pointers_per_block());
                    }
                }
                node.own.leaf = Some((first_fbn, nr));
                nr
            }
        };
        if path.depth == 1 && op.cached(BlockNr(u64::from(leaf))).is_none() {
            op.read_ahead(self.blocks_beside(node, leaf));
        }
        let block = op.peek(BlockNr(u64::from(leaf)))?;
        let pointers = block.get(last * 4..).unwrap_or_default();
        let pointers = pointers.chunks_exact(4).map(|raw| bytes::get32(raw, 0));
        self.run_of(node.ino, pointers, room)
    }

    fn allocate(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        max: u64,
        after: &mut Patches,
        befores: &mut Patches,
    ) -> Result<(BlockNr, u64)> {
        self.ensure_leaf(op, node, fbn, befores)?;
        let want = u32::try_from(max.min(self.leaf_room(fbn))).unwrap_or(u32::MAX);
        if node.own.goal == 0 && fbn > 0 {
            // Behind the block in front, if there is one.
            if let Some(before) = self.map(op, node, fbn - 1, 1)?.start {
                node.own.goal = before.0 + 1;
            }
        }
        let had = node.inode.blocks_512 / self.sectors_per_block();
        let at_end = fbn >= node.inode.size_bytes / u64::from(self.geometry.block_bytes);
        // A file that grows in several writes will grow on: as much again.
        let reserve = if at_end && had > 0 { had.clamp(8, 1024) } else { 0 };
        let reserve = u32::try_from(reserve).unwrap_or(0);
        let goal = self.goal(node);
        let (start, n) = self.alloc_blocks(op, number(node.ino), goal, want, reserve, after)?;
        node.own.goal = u64::from(start) + u64::from(n);
        Ok((BlockNr(u64::from(start)), u64::from(n)))
    }

    /// The run lies within one leaf, whose indirect blocks exist.
    fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        (start, len): (BlockNr, u64),
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()> {
        let (start, len) = (block_number(start), u32::try_from(len).unwrap_or(0));
        let path = self.path_or_too_large(fbn)?;
        if path.depth == 0 {
            for (slot, nr) in node.own.block[path.slot..DIRECT_SLOTS].iter_mut().zip(start..) {
                if nr - start == len {
                    break;
                }
                *slot = nr;
            }
            after.iter().for_each(|p| push_patch(befores, *p));
        } else if let Some(leaf) = self.ensure_leaf(op, node, fbn, befores)? {
            let pointers: Vec<u8> = (start..start + len).flat_map(u32::to_le_bytes).collect();
            let index = path.index[path.depth - 1];
            self.set_pointers(op, node, leaf, index, &pointers, after, befores)?;
        }
        self.count_blocks(node, len)
    }

    fn unmap(&mut self, op: &mut Op<'_>, node: &mut Node, fbn: u64, max: u64) -> Result<Unmapped> {
        let Run { start: freed, len } = self.map(op, node, fbn, max)?;
        if freed.is_none() {
            return Ok(Unmapped { len, freed, cleared: None });
        }
        let n = usize::try_from(len).unwrap_or(0);
        self.uncount_blocks(node, len);
        let path = self.path_or_too_large(fbn)?;
        if path.depth == 0 {
            node.own.block[path.slot..path.slot + n].fill(0);
            return Ok(Unmapped { len, freed, cleared: None });
        }
        // Finding the run has found its leaf.
        let Some((_, leaf)) = node.own.leaf else {
            return Err(Error::Invalid("a leaf that was just read is missing".into()));
        };
        let index = path.index[path.depth - 1];
        let cleared = self.clear_pointers(op, node.ino, (leaf, index, index + n), &[])?;
        Ok(Unmapped { len, freed, cleared: Some(cleared) })
    }

    fn free(&mut self, op: &mut Op<'_>, start: BlockNr, len: u64, cleared: PatchId) -> Result<()> {
        self.free_blocks(op, block_number(start), u32::try_from(len).unwrap_or(0), cleared)
    }

    fn cut(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        keep: u64,
        whole: bool,
    ) -> Result<(Cut, u64)> {
        node.own.goal = 0;
        let mut cut = if raw(node).has_blocks(self.geometry.block_bytes) {
            self.collect(op, node, keep, CUT_BLOCKS)?
        } else {
            Cut::default()
        };
        self.uncount_blocks(node, cut.count);
        if whole && cut.from == 0 {
            cut.acl = std::mem::take(&mut node.own.file_acl);
            node.own.block = Default::default();
            node.own.dtime = now_secs();
        }
        let left = cut.from;
        Ok((cut, left))
    }

    fn want_cut(&mut self, op: &mut Op<'_>, node: &mut Node, keep: u64) -> Result<()> {
        // An inode that is deleted leaves the list of orphaned inodes, which begins there.
        op.want([self.sb_position().0])?;
        if !raw(node).has_blocks(self.geometry.block_bytes) {
            return Ok(());
        }
        let (block, leaf) = (node.own.block, node.own.leaf);
        let cut = self.collect(op, node, keep, CUT_BLOCKS);
        (node.own.block, node.own.leaf) = (block, leaf);
        cut?.groups.into_iter().try_for_each(|group| self.want_maps(op, group))
    }

    fn finish_cut(&mut self, op: &mut Op<'_>, ino: Ino, cut: Cut, written: PatchId) -> Result<()> {
        let mut cleared = written;
        if !cut.clears.is_empty() {
            let mut clears = vec![written];
            for &range in &cut.clears {
                clears.push(self.clear_pointers(op, ino, range, &[written])?);
            }
            cleared = op.join(&clears)?;
        }
        // Indirect blocks first: changes that wait for data are cancelled with them.
        for &nr in &cut.meta {
            self.free_blocks(op, nr, 1, cleared)?;
        }
        for &(start, len) in cut.data.iter().rev() {
            self.free_blocks(op, start, len, cleared)?;
        }
        if cut.acl != 0 && self.is_data_block(cut.acl) {
            self.release_xattr_block(op, cut.acl, written)?;
        }
        Ok(())
    }

    /// Sets the `large_file` feature before a file reaches 2 GiB.
    fn allow_size(
        &mut self,
        op: &mut Op<'_>,
        size_bytes: u64,
        befores: &mut Patches,
    ) -> Result<()> {
        let large = size_bytes > u64::from(i32::MAX.unsigned_abs());
        if !large || self.sb.features.ro_compat.contains(RoCompat::LARGE_FILE) {
            return Ok(());
        }
        if self.sb.revision == 0 {
            return Err(FsError::TooLarge.into());
        }
        self.sb.features.ro_compat |= RoCompat::LARGE_FILE;
        self.geometry.features = self.sb.features;
        befores.push(self.write_sb(op, &[])?);
        Ok(())
    }

    fn reserve_blocks(&mut self, op: &mut Op<'_>, node: &mut Node, want: u64) -> Result<()> {
        if want > self.free_blocks {
            return Err(FsError::NoSpace.into());
        }
        let blocks = node.inode.size_bytes.div_ceil(u64::from(self.geometry.block_bytes));
        if node.own.goal == 0 && blocks > 0 {
            let last = self.map(op, node, blocks - 1, 1)?.start;
            node.own.goal = last.map_or(0, |last| last.0 + 1);
        }
        let goal = self.goal(node);
        self.keep_window(op, number(node.ino), goal, u32::try_from(want).unwrap_or(u32::MAX))
    }

    fn release_reserved(&mut self, ino: Ino) {
        self.drop_window(number(ino));
    }
}

impl Volume {
    fn path_or_too_large(&self, fbn: u64) -> Result<MapPath> {
        let pointers = u64::from(self.geometry.pointers_per_block());
        MapPath::new(fbn, pointers).ok_or_else(|| FsError::TooLarge.into())
    }

    /// Returns the number of blocks from `fbn` to the end of its leaf (or of the direct pointers):
    /// as many as one change of pointers can cover.
    pub fn leaf_room(&self, fbn: u64) -> u64 {
        let p = u64::from(self.geometry.pointers_per_block());
        let direct = DIRECT_SLOTS as u64;
        if fbn < direct { direct - fbn } else { p - (fbn - direct) % p }
    }

    /// Returns the blocks beside the first leaf of a small file that are probably its data: those in
    /// front, to which direct pointers lead, and as many behind as the leaf has pointers. The
    /// allocators of Linux and of weft put them there, and so one request brings the whole file.
    fn blocks_beside(&self, node: &Node, leaf: u32) -> Range<BlockNr> {
        let leaf_nr = u64::from(leaf);
        if node.inode.size_bytes > SMALL_FILE_BYTES {
            return BlockNr(leaf_nr)..BlockNr(leaf_nr);
        }
        let direct = node.own.block[..DIRECT_SLOTS].iter().rev().zip(1..);
        let in_front = direct.take_while(|&(&nr, i)| nr.checked_add(i) == Some(leaf)).count();
        let blocks = node.inode.size_bytes.div_ceil(u64::from(self.geometry.block_bytes));
        let behind = blocks.saturating_sub(DIRECT_SLOTS as u64);
        BlockNr(leaf_nr - in_front as u64)..BlockNr(leaf_nr + 1 + behind)
    }

    fn run_of(&self, ino: Ino, pointers: impl Iterator<Item = u32>, max: u64) -> Result<Run> {
        let mut pointers = pointers.take(usize::try_from(max).unwrap_or(usize::MAX));
        let first = pointers.next().unwrap_or(0);
        let mut len = 1;
        if first == 0 {
            len += pointers.take_while(|p| *p == 0).count() as u64;
            return Ok(Run { start: None, len });
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
        Ok(Run { start: Some(BlockNr(u64::from(first))), len })
    }

    /// Makes sure that the indirect blocks above block `fbn` exist, so that only data blocks can be
    /// missing. Returns the leaf (`None` for a direct pointer). Adds the patches that the inode
    /// must follow to `befores`.
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
        if let Some((cached, nr)) = node.own.leaf
            && cached == first_fbn
        {
            return Ok(Some(nr));
        }
        let mut nr = node.own.block[path.slot];
        if nr == 0 {
            let (new, patches) = self.new_indirect(op, node)?;
            node.own.block[path.slot] = new;
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
                if !node.own.unreached.contains(&nr) {
                    // The pointer to it may be durable before the inode is.
                    node.own.unreached.retain(|child| *child != new);
                }
                self.set_pointers(op, node, nr, index, &new.to_le_bytes(), &patches, befores)?;
                child = new;
            } else {
                self.check_block(node.ino, child)?;
            }
            nr = child;
        }
        node.own.leaf = Some((first_fbn, nr));
        Ok(Some(nr))
    }

    fn new_indirect(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<(u32, Patches)> {
        let mut patches = Patches::new();
        let goal = self.goal(node);
        let (nr, _) = self.alloc_blocks(op, number(node.ino), goal, 1, 0, &mut patches)?;
        node.own.goal = u64::from(nr) + 1;
        let init = op.init(BlockNr(u64::from(nr)), &self.zeroes, &[])?;
        node.own.unreached.push(nr);
        op.own(BlockNr(u64::from(nr)), Owner(node.ino.0));
        push_patch(&mut patches, init);
        self.count_blocks(node, 1)?;
        Ok((nr, patches))
    }

    /// Returns the goal for the next block of a file.
    pub fn goal(&self, node: &Node) -> u64 {
        if node.own.goal != 0 { node.own.goal } else { self.first_goal(number(node.ino)) }
    }

    pub(super) fn sectors_per_block(&self) -> u64 {
        u64::from(self.geometry.block_bytes / 512)
    }

    /// Adds `blocks` to the space that a file takes.
    pub fn count_blocks(&self, node: &mut Node, blocks: u32) -> Result<()> {
        let sum = node.inode.blocks_512 + u64::from(blocks) * self.sectors_per_block();
        if sum > u64::from(u32::MAX) {
            return Err(FsError::TooLarge.into());
        }
        node.inode.blocks_512 = sum;
        Ok(())
    }

    /// Writes pointers of an indirect block. They must follow what they point to. But as long as
    /// nothing points to the indirect block itself, it is enough that the inode, which will,
    /// follows them: then the block can be written with the data around it, in one request.
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
        let patch = if node.own.unreached.contains(&nr) {
            after.iter().for_each(|p| push_patch(befores, *p));
            op.write(block, index * 4, pointers, &[])?
        } else {
            op.write(block, index * 4, pointers, after)?
        };
        op.own(block, Owner(node.ino.0));
        push_patch(befores, patch);
        Ok(())
    }

    /// Clears a range of an indirect block's pointers.
    pub fn clear_pointers(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        (nr, from, to): (u32, usize, usize),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let zeroes = self.zeroes.get(from * 4..to * 4).unwrap_or_default();
        let nr = BlockNr(u64::from(nr));
        let patch = op.write_alone(nr, from * 4, zeroes, befores)?;
        op.own(nr, Owner(ino.0));
        Ok(patch)
    }

    /// Returns the first `blocks` blocks of a file in order: for the journal, and for reading
    /// directories. A hole is an error.
    pub fn all_blocks(&self, op: &mut Op<'_>, node: &mut Node, blocks: u64) -> Result<Vec<u32>> {
        if blocks > self.geometry.blocks {
            return Err(Error::corrupt(
                format!("inode {}", node.ino.0),
                0,
                format!("a size of {blocks} blocks on a volume of {}", self.geometry.blocks),
            ));
        }
        let mut all = Vec::new();
        let mut fbn = 0;
        while fbn < blocks {
            let Run { start: Some(start), len } = self.map(op, node, fbn, blocks - fbn)? else {
                return Err(Error::corrupt(
                    format!("inode {}", node.ino.0),
                    0,
                    format!("its block {fbn} is not allocated"),
                ));
            };
            all.extend((start.0..start.0 + len).map(|nr| block_number(BlockNr(nr))));
            fbn += len;
        }
        Ok(all)
    }

    pub(super) fn uncount_blocks(&self, node: &mut Node, blocks: u64) {
        let units = blocks * self.sectors_per_block();
        node.inode.blocks_512 = node.inode.blocks_512.saturating_sub(units);
    }
}
