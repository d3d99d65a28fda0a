//! Blocks: allocating runs of them near a goal, reserving and freeing them.

use super::bits::{Bits, for_words32};
use super::state::Volume;
use weft_patch::{BlockNr, Op, PatchId};
use weft_unix::{Error, Format as _, Patches, Result, push_patch};
use weft_vfs::Error as FsError;

/// Runs shorter than this are taken only where no longer one is near.
const GOOD_RUN: u32 = 16;
/// Groups searched for a good run before any run will do.
const GOOD_RUN_GROUPS: u32 = 16;
/// The longest reservation, in blocks.
const MAX_WINDOW: u32 = 2048;
/// Blocks kept in a row for the first blocks of a group's new directories.
const DIR_WINDOW: u32 = 32;

impl Volume {
    /// Returns the block bitmap of a group, read at its first use. Corrects the descriptor's count.
    pub(super) fn block_bits(&mut self, op: &mut Op<'_>, group: u32) -> Result<&mut Bits> {
        let g = &self.groups[group as usize];
        if g.blocks.is_none() {
            let desc = g.desc;
            let len = u32::try_from(self.geometry.group_blocks(group)).unwrap_or(0);
            let first = self.geometry.group_first_block(group);
            let mut bits =
                Box::new(Bits::new(op.peek(BlockNr(u64::from(desc.block_bitmap)))?, len));
            let free = u16::try_from(bits.free()).unwrap_or(u16::MAX);
            // Whatever the bitmap says, metadata is not for files.
            let overhead = u32::try_from(self.geometry.group_overhead_blocks(group)).unwrap_or(len);
            bits.set_busy(0, overhead.min(len), true);
            for (block, n) in [
                (desc.block_bitmap, 1),
                (desc.inode_bitmap, 1),
                (desc.inode_table, self.geometry.inode_table_blocks()),
            ] {
                let bit = u64::from(block).saturating_sub(first);
                bits.set_busy(u32::try_from(bit).unwrap_or(len), n, true);
            }
            self.free_blocks =
                (self.free_blocks + u64::from(free)).saturating_sub(u64::from(desc.free_blocks));
            let g = &mut self.groups[group as usize];
            g.desc.free_blocks = free;
            g.blocks = Some(bits);
        }
        self.groups[group as usize]
            .blocks
            .as_deref_mut()
            .ok_or_else(|| Error::Invalid("a bitmap that was just loaded is missing".into()))
    }

    /// Reads every bitmap, so that all counts are right (after a crash they may not be).
    pub fn load_all_bitmaps(&mut self, op: &mut Op<'_>) -> Result<()> {
        for group in 0..self.geometry.groups {
            let before = self.groups[group as usize].desc;
            self.block_bits(op, group)?;
            self.inode_bits(op, group)?;
            if self.groups[group as usize].desc != before {
                self.touch(group);
            }
        }
        Ok(())
    }

    /// Returns the number of free blocks of a group, as far as known without reading its bitmap.
    pub(super) fn group_avail(&self, group: u32) -> u32 {
        let g = &self.groups[group as usize];
        g.blocks.as_ref().map_or(u32::from(g.desc.free_blocks), |bits| bits.avail())
    }

    /// Returns the number of blocks that can be allocated without waiting for a patch.
    pub fn blocks_at_once(&self) -> u64 {
        self.free_blocks.saturating_sub(self.pending_blocks.count() + self.held_blocks)
    }

    /// Makes freed blocks available whose freeing is durable, the oldest first.
    pub(super) fn drain_blocks(&mut self, op: &Op<'_>) {
        while let Some((start, len)) = self.pending_blocks.pop_durable(op) {
            self.set_range_busy(start, len, false);
        }
    }

    pub(super) fn set_range_busy(&mut self, start: u64, len: u64, on: bool) {
        if let Some((group, bit)) = self.geometry.block_group(start)
            && let Some(bits) = &mut self.groups[group as usize].blocks
        {
            bits.set_busy(bit, u32::try_from(len).unwrap_or(u32::MAX), on);
        }
    }

    /// Releases a file's reservation.
    pub fn drop_window(&mut self, ino: u32) {
        if let Some((start, len)) = self.windows.remove(&ino) {
            self.set_range_busy(u64::from(start), u64::from(len), false);
        }
    }

    fn drop_all_windows(&mut self) {
        for (_, (start, len)) in std::mem::take(&mut self.windows) {
            self.set_range_busy(u64::from(start), u64::from(len), false);
        }
    }

    /// Returns a goal for the first block of a file with inode `ino`: in the inode's group, behind
    /// the run that was last allocated there.
    pub fn first_goal(&self, ino: u32) -> u64 {
        let group = self.geometry.inode_group(ino).map_or(0, |(group, _)| group);
        let cursor = self.groups[group as usize].blocks.as_ref().map_or(0, |b| b.cursor);
        self.geometry.group_first_block(group) + u64::from(cursor)
    }

    /// Allocates 1 to `want` blocks in a row for file `ino`, near `goal`; marks them in the bitmap
    /// and adds the patches of that to `patches`. Reserves up to `reserve` blocks behind them for
    /// the same file. Returns the first block and the number of blocks.
    pub fn alloc_blocks(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        goal: u64,
        want: u32,
        reserve: u32,
        patches: &mut Patches,
    ) -> Result<(u32, u32)> {
        debug_assert!(want > 0);
        self.drain_blocks(op);
        if let Some(&(start, len)) = self.windows.get(&ino) {
            if u64::from(start) == goal && len > 0 {
                let n = len.min(want);
                if n == len {
                    self.windows.remove(&ino);
                } else {
                    self.windows.insert(ino, (start + n, len - n));
                }
                // The window's blocks are busy but not used: taking them keeps them busy.
                let (group, bit) = self.locate(start)?;
                self.take_run(op, group, bit, n, patches)?;
                if n == len && reserve > 0 {
                    self.set_window(ino, group, bit + n, reserve);
                }
                return Ok((start, n));
            }
            self.drop_window(ino);
        }
        let mut found = self.search(op, goal, want)?;
        if found.is_none() {
            self.settle(op);
            self.drop_all_windows();
            found = self.search(op, goal, want)?;
        }
        let Some((group, bit, len)) = found else { return Err(FsError::NoSpace.into()) };
        self.take_run(op, group, bit, len, patches)?;
        if reserve > 0 && len == want {
            self.set_window(ino, group, bit + len, reserve);
        }
        let start = self.geometry.group_first_block(group) + u64::from(bit);
        Ok((u32::try_from(start).unwrap_or(u32::MAX), len))
    }

    /// Allocates the first block of a new directory, beside those of the other new directories of
    /// its group: they are written together, walked together, and out of the way of file data.
    pub fn alloc_first_dir_block(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        patches: &mut Patches,
    ) -> Result<u32> {
        let group = self.geometry.inode_group(ino).map_or(0, |(group, _)| group);
        // No inode has this number, so it can name the group's window.
        let keeper = u32::MAX - group;
        let goal = match self.windows.get(&keeper) {
            Some(&(start, _)) => u64::from(start),
            None => self.first_goal(ino),
        };
        Ok(self.alloc_blocks(op, keeper, goal, 1, DIR_WINDOW - 1, patches)?.0)
    }

    fn locate(&self, block: u32) -> Result<(u32, u32)> {
        self.geometry
            .block_group(u64::from(block))
            .ok_or_else(|| Error::corrupt("block number", u64::from(block), "outside the volume"))
    }

    fn set_window(&mut self, ino: u32, group: u32, bit: u32, want: u32) {
        let first = self.geometry.group_first_block(group);
        if let Some(bits) = &mut self.groups[group as usize].blocks {
            let len = if bit < bits.len() { bits.free_run(bit, want.min(MAX_WINDOW)) } else { 0 };
            // Not the last blocks of a group that is filling up.
            if len > 0 && bits.avail() > 4 * len {
                bits.set_busy(bit, len, true);
                let start = u32::try_from(first + u64::from(bit)).unwrap_or(u32::MAX);
                self.windows.insert(ino, (start, len));
            }
        }
    }

    /// Reserves up to `want` blocks from `goal` on for a file, as far as they are free.
    pub fn keep_window(&mut self, op: &mut Op<'_>, ino: u32, goal: u64, want: u32) -> Result<()> {
        self.drop_window(ino);
        if let Some((group, bit)) = self.geometry.block_group(goal) {
            self.block_bits(op, group)?;
            self.set_window(ino, group, bit, want);
        }
        Ok(())
    }

    fn search(&mut self, op: &mut Op<'_>, goal: u64, want: u32) -> Result<Option<(u32, u32, u32)>> {
        let (goal_group, goal_bit) = self.geometry.block_group(goal).unwrap_or((0, 0));
        let groups = self.geometry.groups;
        // Right at the goal, the longest there is.
        if self.group_avail(goal_group) > 0 {
            let bits = self.block_bits(op, goal_group)?;
            let run = if goal_bit < bits.len() { bits.free_run(goal_bit, want) } else { 0 };
            if run >= want.min(GOOD_RUN) {
                return Ok(Some((goal_group, goal_bit, run)));
            }
        }
        // A good run in this group or the next ones.
        let good = want.min(GOOD_RUN);
        for i in 0..groups.min(GOOD_RUN_GROUPS) {
            let group = (goal_group + i) % groups;
            if self.group_avail(group) < good {
                continue;
            }
            let from = if i == 0 { goal_bit } else { 0 };
            let bits = self.block_bits(op, group)?;
            let start = bits.find_run(from, good).or_else(|| bits.find_run(0, good));
            if let Some(start) = start {
                return Ok(Some((group, start, bits.free_run(start, want))));
            }
        }
        // Any run anywhere.
        for i in 0..groups {
            let group = (goal_group + i) % groups;
            if self.group_avail(group) == 0 {
                continue;
            }
            let bits = self.block_bits(op, group)?;
            if let Some(start) = bits.find_free(0) {
                return Ok(Some((group, start, bits.free_run(start, want))));
            }
        }
        Ok(None)
    }

    fn take_run(
        &mut self,
        op: &mut Op<'_>,
        group: u32,
        bit: u32,
        len: u32,
        patches: &mut Patches,
    ) -> Result<()> {
        let bitmap = BlockNr(u64::from(self.groups[group as usize].desc.block_bitmap));
        for_words32(bit, len, |offset, mask| {
            let patch = op.flip(bitmap, offset, mask, &[])?;
            push_patch(patches, patch);
            Ok::<(), Error>(())
        })?;
        self.touch(group);
        let g = &mut self.groups[group as usize];
        if let Some(bits) = &mut g.blocks {
            bits.take(bit, len);
            bits.cursor = bit + len;
        }
        g.desc.free_blocks = g.desc.free_blocks.saturating_sub(u16::try_from(len).unwrap_or(0));
        self.free_blocks = self.free_blocks.saturating_sub(u64::from(len));
        Ok(())
    }

    /// Frees `len` blocks from `start` on. `cleared` is the patch that removed the pointers to
    /// them; they are allocated again only when it is durable.
    pub fn free_blocks(
        &mut self,
        op: &mut Op<'_>,
        start: u32,
        len: u32,
        cleared: PatchId,
    ) -> Result<()> {
        for i in 0..len {
            op.free(BlockNr(u64::from(start) + u64::from(i)), cleared);
        }
        let mut at = start;
        let end = start + len;
        while at < end {
            let (group, bit) = self.locate(at)?;
            let bits = self.block_bits(op, group)?;
            let n = (end - at).min(bits.len() - bit);
            if let Some(i) = (0..n).find(|i| !bits.is_used(bit + i)) {
                return Err(Error::corrupt(
                    format!("block bitmap of group {group}"),
                    u64::from(at + i),
                    "a block that a file has is marked free",
                ));
            }
            bits.give(bit, n);
            self.touch(group);
            let g = &mut self.groups[group as usize];
            g.desc.free_blocks = g.desc.free_blocks.saturating_add(u16::try_from(n).unwrap_or(0));
            let bitmap = BlockNr(u64::from(g.desc.block_bitmap));
            self.free_blocks += u64::from(n);
            for_words32(bit, n, |offset, mask| {
                op.flip(bitmap, offset, mask, &[cleared])?;
                Ok::<(), Error>(())
            })?;
            self.pending_blocks.add(u64::from(at), u64::from(n), cleared);
            at += n;
        }
        Ok(())
    }
}
