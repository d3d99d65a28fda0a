//! Holes: making, filling and finding them.
//!
//! The format has no blocks that are allocated but unwritten: to allocate is to write zeroes.

use super::data::{Placement, Source};
use super::{Ext2, State};
use crate::layout::DIRECT_SLOTS;
use crate::{Error, Result};
use weft_patch::Op;
use weft_vfs::{Error as FsError, FallocateMode, FileKind, SeekFrom};

/// Blocks a hole is made of by one operation, at most.
const PUNCH_BLOCKS: u64 = 8192;
/// Blocks of metadata that may change with it.
const PUNCH_META_BLOCKS: u32 = 64;

impl State {
    /// Makes a hole of whole blocks `from..to`, or of a first part. Returns where it stopped.
    fn punch_step(&mut self, op: &mut Op<'_>, ino: u32, from: u64, to: u64) -> Result<u64> {
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        vol.drop_window(ino);
        node.epoch += 1;
        node.modified();
        let stop = to.min(from.saturating_add(PUNCH_BLOCKS));
        let units = vol.geometry.block_bytes / 512;
        let mut at = from;
        let mut direct = Vec::new();
        while at < stop {
            let (start, run) = vol.map_run(op, node, at, stop - at)?;
            if start == 0 {
                at += run;
                continue;
            }
            let n = u32::try_from(run).unwrap_or(0);
            node.inode.blocks_512 = node.inode.blocks_512.saturating_sub(n * units);
            if at < DIRECT_SLOTS as u64 {
                let slot = usize::try_from(at).unwrap_or(0);
                node.inode.block[slot..slot + n as usize].fill(0);
                direct.push((start, n));
            } else if let Some((leaf, index)) = vol.leaf_of(op, node, at)? {
                let range = (leaf, index, index + n as usize);
                let cleared = vol.clear_pointers(op, ino, range, &[])?;
                vol.free_blocks(op, start, n, cleared)?;
            }
            at += run;
            if vol.touched_groups() >= 8 {
                break;
            }
        }
        let written = self.write_node(op, ino, &[])?;
        for (start, n) in direct {
            self.vol.free_blocks(op, start, n, written)?;
        }
        Ok(at.min(to))
    }

    /// Finds the next data or hole from block `fbn` on.
    fn seek_block(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        mut fbn: u64,
        end: u64,
        data: bool,
    ) -> Result<Option<u64>> {
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        while fbn < end {
            let (start, run) = vol.map_run(op, node, fbn, end - fbn)?;
            if (start != 0) == data {
                return Ok(Some(fbn));
            }
            fbn += run;
        }
        Ok(None)
    }

    /// Keeps up to `want` blocks behind the end of a file for it.
    fn keep_space(&mut self, op: &mut Op<'_>, ino: u32, want: u32) -> Result<()> {
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        if u64::from(want) > vol.free_blocks {
            return Err(FsError::NoSpace.into());
        }
        let bs = u64::from(vol.geometry.block_bytes);
        let blocks = node.inode.size_bytes.div_ceil(bs);
        if node.goal == 0 && blocks > 0 {
            let (last, _) = vol.map_run(op, node, blocks - 1, 1)?;
            node.goal = if last == 0 { 0 } else { u64::from(last) + 1 };
        }
        let goal = vol.goal(node);
        vol.keep_window(op, ino, goal, want)
    }

    /// Loads a regular file; returns its length.
    pub(super) fn load_file(&mut self, op: &mut Op<'_>, ino: u32) -> Result<u64> {
        let node = self.load(op, ino)?;
        match node.kind {
            FileKind::Regular => Ok(node.inode.size_bytes),
            FileKind::Directory => Err(FsError::IsADirectory.into()),
            _ => Err(FsError::Invalid("not a regular file").into()),
        }
    }
}

impl Ext2 {
    pub(super) fn do_fallocate(
        &self,
        ino: u32,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let end = offset.checked_add(len_bytes).ok_or(FsError::TooLarge)?;
        if len_bytes == 0 {
            return Err(FsError::Invalid("a range of no bytes").into());
        }
        let size = self.look(|st, op| st.load_file(op, ino))?;
        self.change(1, |st, op| {
            st.load(op, ino)?;
            st.check_mutable(ino, matches!(mode, FallocateMode::Allocate { .. }))
        })?;
        if mode != FallocateMode::PunchHole && end > self.max_file_bytes {
            return Err(FsError::TooLarge.into());
        }
        let (fill, keep_size) = match mode {
            FallocateMode::PunchHole => return self.punch(ino, offset, end.min(size)),
            FallocateMode::Allocate { keep_size } => (true, keep_size),
            FallocateMode::ZeroRange { keep_size } => (false, keep_size),
        };
        if keep_size && fill && end > size {
            // The format allows no blocks behind the end of a file: they are kept for it in
            // memory, for as long as it is open.
            let past = (end - size).div_ceil(u64::from(self.block_bytes));
            self.look(|st, op| st.keep_space(op, ino, u32::try_from(past).unwrap_or(u32::MAX)))?;
        }
        let end = if keep_size { end.min(size) } else { end };
        if offset >= end {
            return Ok(());
        }
        if fill {
            let blocks = (end - offset) / u64::from(self.block_bytes);
            if blocks > self.lock().vol.free_blocks + size / u64::from(self.block_bytes) + 1 {
                return Err(FsError::NoSpace.into());
            }
        }
        let mut at = offset;
        while at < end {
            let n = usize::try_from((end - at).min(1 << 30)).unwrap_or(1 << 30);
            let source = if fill { Source::Fill(n) } else { Source::Zeroes(n) };
            let done = self.do_write(ino, at, Placement::Given, source)?;
            if done == 0 {
                return Err(FsError::NoSpace.into());
            }
            at += done as u64;
        }
        self.reap();
        Ok(())
    }

    fn punch(&self, ino: u32, offset: u64, end: u64) -> Result<()> {
        if offset >= end {
            return Ok(());
        }
        let bs = u64::from(self.block_bytes);
        let size = self.look(|st, op| st.load_file(op, ino))?;
        let first = offset.div_ceil(bs);
        // The last block goes whole if nothing of the file is behind it.
        let last = if end >= size { end.div_ceil(bs) } else { end / bs };
        for (from, to) in [(offset, end.min(first * bs)), (last.max(first) * bs, end)] {
            if from < to {
                self.zero_mapped(ino, from, to)?;
            }
        }
        let mut at = first;
        while at < last {
            at = self.change(PUNCH_META_BLOCKS, |st, op| {
                st.load(op, ino)?;
                st.punch_step(op, ino, at, last)
            })?;
        }
        Ok(())
    }

    /// Zeroes bytes within one block, unless it is a hole.
    fn zero_mapped(&self, ino: u32, from: u64, to: u64) -> Result<()> {
        let bs = u64::from(self.block_bytes);
        let mapped = self.look(|st, op| {
            st.load(op, ino)?;
            Ok(st.seek_block(op, ino, from / bs, from / bs + 1, true)?.is_some())
        })?;
        if mapped {
            let n = usize::try_from(to - from).unwrap_or(0);
            self.do_write(ino, from, Placement::Given, Source::Zeroes(n))?;
        }
        Ok(())
    }

    pub(super) fn do_seek(&self, ino: u32, from: SeekFrom) -> Result<u64> {
        let bs = u64::from(self.block_bytes);
        self.look(|st, op| {
            let size = st.load_file(op, ino)?;
            let (at, data) = match from {
                SeekFrom::Data(at) => (at, true),
                SeekFrom::Hole(at) => (at, false),
            };
            if at >= size {
                return Err(Error::from(FsError::NoAddress));
            }
            let found = st.seek_block(op, ino, at / bs, size.div_ceil(bs), data)?;
            match found {
                Some(fbn) => Ok((fbn * bs).max(at)),
                None if data => Err(FsError::NoAddress.into()),
                None => Ok(size),
            }
        })
    }
}
