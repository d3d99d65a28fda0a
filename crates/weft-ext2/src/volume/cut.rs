//! Cutting the tail off a file: its blocks are collected first, and freed after.

use super::node::Node;
use super::state::Volume;
use crate::layout::{DIRECT_SLOTS, Geometry, SLOT_INDIRECT, bytes};
use smallvec::SmallVec;
use weft_patch::{BlockNr, Op};
use weft_unix::Result;
use weft_vfs::Ino;

/// Blocks freed by one operation, about.
pub(super) const CUT_BLOCKS: u64 = 16_384;
/// Groups that one cut frees blocks in, about.
const CUT_GROUPS: usize = 20;

/// The work of cutting a file's tail: collected first, and done after the inode's change.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Blocks freed, as runs: indirect ones first and from the top down.
    pub meta: Vec<u32>,
    pub data: Vec<(u32, u32)>,
    /// Leaves and inner blocks that stay, with the ranges of pointers to clear. Those that are clear
    /// already are left out: a change of them would follow this one.
    pub clears: Vec<(u32, usize, usize)>,
    /// Blocks freed.
    pub count: u64,
    /// The block that the cut stopped at: the file has none from here on any more.
    pub from: u64,
    /// Groups that blocks are freed in: each costs a bitmap.
    pub groups: SmallVec<[u32; 32]>,
    budget: u64,
    /// The attribute block of an inode that is deleted; 0 if it has none.
    pub acl: u32,
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
    /// Collects the blocks to free of a file from block `keep` on, from its end backwards, and
    /// stops after about `budget` blocks. Changes nothing but the inode's slots in memory.
    pub(super) fn collect(
        &self,
        op: &mut Op<'_>,
        node: &mut Node,
        keep: u64,
        budget: u64,
    ) -> Result<Cut> {
        let p = u64::from(self.geometry.pointers_per_block());
        let direct = DIRECT_SLOTS as u64;
        let spans = [(direct, 1), (direct + p, 2), (direct + p + p * p, 3)];
        let mut cut = Cut { from: keep, budget, ..Cut::default() };
        node.own.leaf = None;
        let mut complete = true;
        for (i, &(first, depth)) in spans.iter().enumerate().rev() {
            let slot = SLOT_INDIRECT + i;
            let nr = node.own.block[slot];
            if nr == 0 || keep >= first + p.pow(depth) {
                continue;
            }
            if self.cut_tree(op, node.ino, nr, depth, first, keep, &mut cut)? {
                node.own.block[slot] = 0;
            } else if cut.is_full() {
                complete = false;
                break;
            }
        }
        if complete {
            for fbn in (keep.min(direct)..direct).rev() {
                let slot = usize::try_from(fbn).unwrap_or(0);
                let nr = node.own.block[slot];
                if nr != 0 {
                    self.check_block(node.ino, nr)?;
                    cut.add(nr, &self.geometry);
                    node.own.block[slot] = 0;
                }
            }
            cut.from = keep;
        }
        Ok(cut)
    }

    /// Collects from one tree of indirect blocks. Returns whether all of it goes.
    #[expect(clippy::too_many_arguments, reason = "the state of a recursion")]
    fn cut_tree(
        &self,
        op: &mut Op<'_>,
        ino: Ino,
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
        if depth > 1 {
            let last = pointers.get(usize::try_from(low).unwrap_or(usize::MAX)..);
            let last = last.unwrap_or_default().iter().rev().filter(|&&child| child != 0);
            let leaves = usize::try_from(CUT_BLOCKS / p).unwrap_or(0) + 1;
            op.want(last.take(leaves).map(|&child| BlockNr(u64::from(child))))?;
        }
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
            let mut from = cleared;
            for part in pointers[cleared..].chunk_by(|a, b| (*a == 0) == (*b == 0)) {
                if part[0] != 0 {
                    cut.clears.push((nr, from, from + part.len()));
                }
                from += part.len();
            }
        }
        Ok(whole)
    }
}
