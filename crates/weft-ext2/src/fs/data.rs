//! Reading and writing files.
//!
//! A write is cut into steps; each is one operation: blocks are allocated, their content written,
//! pointers set (after the content and the bitmap bits), and last the inode (after the pointers).
//!
//! A read finds the map and the cached blocks under the lock, and the rest on the device without
//! it; a counter of the inode tells whether something changed meanwhile.

use super::{Ext2, State};
use crate::volume::{Patches, push_patch};
use crate::{Error, Result};
use smallvec::SmallVec;
use weft_patch::{BlockNr, JournalMode, Op, Owner, Policy};
use weft_vfs::{Error as FsError, FileKind};

/// Bytes written by one operation.
const STEP_BYTES: usize = 1 << 20;
/// The same where data goes through the journal.
const STEP_JOURNALED_BYTES: usize = 128 << 10;
/// Groups one operation allocates from.
const STEP_GROUPS: usize = 8;
/// Blocks of metadata one step may change.
pub(super) const STEP_META_BLOCKS: u32 = 48;
/// Reads without the lock before one is done under it.
const OPTIMISTIC_READS: u32 = 3;

/// Blocks of a file that a read must get from the device: first block, bytes to skip, and where
/// they go.
struct Miss {
    nr: u64,
    skip: usize,
    at: usize,
    len: usize,
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// To the offset given.
    Given,
    /// To the end of the file.
    Append,
    /// To the offset given, as whole pages of a cache: these begin before the end of a file that may
    /// only be appended to.
    Cached,
}

/// What a write step puts.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This many zeroes, everywhere.
    Zeroes(usize),
    /// This many zeroes, where there is a hole.
    Fill(usize),
}

impl Source<'_> {
    fn len(&self) -> usize {
        match *self {
            Self::Bytes(b) => b.len(),
            Self::Zeroes(n) | Self::Fill(n) => n,
        }
    }

    /// The `len` bytes from `from` on, which must be there.
    fn part(self, from: usize, len: usize) -> Self {
        match self {
            Self::Bytes(b) => Self::Bytes(b.get(from..from + len).unwrap_or_default()),
            Self::Zeroes(_) => Self::Zeroes(len),
            Self::Fill(_) => Self::Fill(len),
        }
    }
}

impl State {
    /// Writes as much of `source` at `offset` as one operation takes. With `grow` the length goes
    /// up to the end of it.
    pub(super) fn write_step(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        offset: u64,
        source: Source<'_>,
    ) -> Result<usize> {
        let old = self.node(ino)?.inode.size_bytes;
        let end = offset + source.len() as u64;
        let mut befores = if end > old { self.need_large_file(op, end)? } else { Patches::new() };
        if offset > old {
            befores.extend(self.zero_tail(op, ino, old, offset, &[])?);
        }
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        node.epoch += 1;
        node.unreached.clear();
        let mut done = 0;
        let mut failed = None;
        while done < source.len() && vol.touched_groups() < STEP_GROUPS {
            let rest = source.part(done, source.len() - done);
            match Self::write_run(vol, op, node, offset + done as u64, rest, &mut befores) {
                Ok(n) => done += n,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        // Also after a failure: indirect blocks may have been made.
        if done > 0 {
            node.inode.size_bytes = old.max(offset + done as u64);
            node.modified();
        }
        self.write_node(op, ino, &befores)?;
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// Writes the part of `source` that goes to one run of blocks (or one hole). Returns its
    /// length in bytes. What the inode must follow is added to `befores`.
    fn write_run(
        vol: &mut crate::volume::Volume,
        op: &mut Op<'_>,
        node: &mut super::Node,
        at: u64,
        source: Source<'_>,
        befores: &mut Patches,
    ) -> Result<usize> {
        let block_bytes = vol.block_bytes();
        let bs = block_bytes as u64;
        let owner = Owner(u64::from(node.ino));
        let zeroes: &[u8] = &[0; 4096];
        let fbn = at / bs;
        let last = (at + source.len() as u64 - 1) / bs;
        let (mut start, mut run) = vol.map_run(op, node, fbn, last - fbn + 1)?;
        let fresh = start == 0;
        let mut patches = Patches::new();
        if fresh {
            let (first, n) = Self::take_hole(vol, op, node, fbn, run, befores, &mut patches)?;
            (start, run) = (first, u64::from(n));
        }
        let mut done = 0;
        for i in 0..run {
            let from = if i == 0 { usize::try_from(at % bs).unwrap_or(0) } else { 0 };
            let n = (block_bytes - from).min(source.len() - done);
            let nr = BlockNr(u64::from(start) + i);
            let bytes = match source {
                Source::Bytes(b) => b.get(done..done + n).unwrap_or_default(),
                Source::Zeroes(_) => &zeroes[..n],
                Source::Fill(_) if fresh => &zeroes[..n],
                Source::Fill(_) => &[],
            };
            if !bytes.is_empty() {
                let patch = op.write_data(nr, owner, from, bytes, fresh, &[])?;
                if fresh {
                    push_patch(&mut patches, patch);
                }
            }
            done += n;
        }
        if fresh {
            let n = u32::try_from(run).unwrap_or(0);
            vol.point(op, node, fbn, (start, n), &patches, befores)?;
            vol.count_blocks(node, n)?;
        }
        Ok(done)
    }

    /// Allocates blocks for a hole of `run` blocks at `fbn`, or for its first part.
    fn take_hole(
        vol: &mut crate::volume::Volume,
        op: &mut Op<'_>,
        node: &mut super::Node,
        fbn: u64,
        run: u64,
        befores: &mut Patches,
        patches: &mut Patches,
    ) -> Result<(u32, u32)> {
        vol.ensure_leaf(op, node, fbn, befores)?;
        let want = u32::try_from(run.min(vol.leaf_room(fbn))).unwrap_or(u32::MAX);
        if node.goal == 0 && fbn > 0 {
            // Behind the block in front, if there is one.
            let (before, _) = vol.map_run(op, node, fbn - 1, 1)?;
            if before != 0 {
                node.goal = u64::from(before) + 1;
            }
        }
        let units = vol.geometry.block_bytes / 512;
        let had = node.inode.blocks_512 / units;
        let at_end = fbn >= node.inode.size_bytes / u64::from(vol.geometry.block_bytes);
        // A file that grows in several writes will grow on: as much again.
        let reserve = if at_end && had > 0 { had.clamp(8, 1024) } else { 0 };
        let goal = vol.goal(node);
        let (start, n) = vol.alloc_blocks(op, node.ino, goal, want, reserve, patches)?;
        node.goal = u64::from(start) + u64::from(n);
        Ok((start, n))
    }

    /// Reads what the cache has, and lists what it has not. Returns the bytes there are.
    fn read_cached(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        offset: u64,
        buf: &mut [u8],
        misses: &mut SmallVec<[Miss; 4]>,
    ) -> Result<usize> {
        let block_bytes = self.vol.block_bytes();
        let bs = block_bytes as u64;
        let node = self.load(op, ino)?;
        if node.kind == FileKind::Directory {
            return Err(FsError::IsADirectory.into());
        }
        if node.kind != FileKind::Regular {
            return Err(FsError::Invalid("not a regular file").into());
        }
        let left = node.inode.size_bytes.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let fbn = at / bs;
            let last = (offset + len as u64 - 1) / bs;
            let (start, run) = vol.map_run(op, node, fbn, last - fbn + 1)?;
            let mut skip = usize::try_from(at % bs).unwrap_or(0);
            let run_bytes = usize::try_from(run.saturating_mul(bs)).unwrap_or(usize::MAX);
            if start == 0 {
                let n = (run_bytes - skip).min(len - done);
                buf[done..done + n].fill(0);
                done += n;
                continue;
            }
            for i in 0..run {
                let n = (block_bytes - skip).min(len - done);
                let nr = u64::from(start) + i;
                if let Some(content) = op.cached(BlockNr(nr)) {
                    if let Some(from) = content.get(skip..skip + n) {
                        buf[done..done + n].copy_from_slice(from);
                    }
                } else {
                    match misses.last_mut() {
                        Some(m)
                            if m.at + m.len == done
                                && (m.skip + m.len).is_multiple_of(block_bytes)
                                && m.nr + (m.skip + m.len) as u64 / bs == nr =>
                        {
                            m.len += n;
                        }
                        _ => misses.push(Miss { nr, skip, at: done, len: n }),
                    }
                }
                skip = 0;
                done += n;
            }
        }
        Ok(len)
    }
}

impl Ext2 {
    fn read_misses(&self, misses: &[Miss], buf: &mut [u8]) -> Result<()> {
        let block_bytes = self.block_bytes as usize;
        let mut bounce = Vec::new();
        for miss in misses {
            let to = &mut buf[miss.at..miss.at + miss.len];
            let whole = if miss.skip == 0 { miss.len / block_bytes * block_bytes } else { 0 };
            if whole > 0 {
                self.engine.read_device(BlockNr(miss.nr), &mut to[..whole])?;
            }
            let rest = &mut to[whole..];
            if !rest.is_empty() {
                let need = (miss.skip + rest.len()).next_multiple_of(block_bytes);
                bounce.resize(need, 0);
                let first = miss.nr + (whole / block_bytes) as u64;
                self.engine.read_device(BlockNr(first), &mut bounce[..need])?;
                rest.copy_from_slice(&bounce[miss.skip..miss.skip + rest.len()]);
            }
        }
        Ok(())
    }

    pub(super) fn do_read(&self, ino: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.relieve_lazy()?;
        for _ in 0..OPTIMISTIC_READS {
            let mut misses = SmallVec::new();
            let (len, epoch) = self.look(|st, op| {
                let len = st.read_cached(op, ino, offset, buf, &mut misses)?;
                self.note_access(st, ino);
                Ok((len, st.node(ino)?.epoch))
            })?;
            if misses.is_empty() {
                return Ok(len);
            }
            self.read_misses(&misses, buf)?;
            let same = self.lock().nodes.get(&ino).is_some_and(|node| node.epoch == epoch);
            if same {
                return Ok(len);
            }
        }
        self.look(|st, op| {
            let mut misses = SmallVec::new();
            let len = st.read_cached(op, ino, offset, buf, &mut misses)?;
            self.read_misses(&misses, buf)?;
            Ok(len)
        })
    }

    /// Writes `source` in steps.
    pub(super) fn do_write(
        &self,
        ino: u32,
        offset: u64,
        placement: Placement,
        source: Source<'_>,
    ) -> Result<usize> {
        let journaled = self.policy() == Policy::Journal(JournalMode::Full);
        let step_bytes = if journaled { STEP_JOURNALED_BYTES } else { STEP_BYTES };
        let max = self.max_file_bytes;
        if source.len() == 0 {
            self.look(|st, op| st.load_file(op, ino))?;
        }
        let mut at = offset;
        let mut done = 0;
        let mut retried = false;
        while done < source.len() {
            // Data that goes past the journal takes no room in it.
            let blocks = match self.policy() {
                Policy::Journal(JournalMode::Metadata | JournalMode::Ordered) => 0,
                _ => u32::try_from(step_bytes).unwrap_or(0) / self.block_bytes,
            };
            let result = self.change_inner(blocks + STEP_META_BLOCKS, |st, op| {
                let size = st.load_file(op, ino)?;
                let append = placement == Placement::Append;
                st.check_mutable(ino, placement != Placement::Given || at >= size)?;
                if append && done == 0 {
                    at = st.node(ino)?.inode.size_bytes;
                }
                if at >= max {
                    return Err(FsError::TooLarge.into());
                }
                // Steps end at their multiples, so that the next ones are aligned.
                let room = step_bytes - usize::try_from(at % step_bytes as u64).unwrap_or(0);
                let n = (source.len() - done)
                    .min(room)
                    .min(usize::try_from(max - at).unwrap_or(usize::MAX));
                st.write_step(op, ino, at, source.part(done, n))
            });
            match result {
                Ok(n) => {
                    done += n;
                    at += n as u64;
                    retried = false;
                }
                Err(Error::Vfs(FsError::NoSpace)) if !retried && self.make_room()? => {
                    retried = true;
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}
