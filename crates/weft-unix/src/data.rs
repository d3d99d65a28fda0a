//! Reading and writing files.
//!
//! A write is cut into steps; each is one operation: blocks are allocated, their content written,
//! pointers set (after the content and the bitmap bits), and last the inode (after the pointers).
//!
//! A read finds the map and the cached blocks under the lock, and the rest on the device without
//! it; a counter of the inode tells whether something changed meanwhile.

use crate::Result;
use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::node::{Node, Patches, push_patch};
use crate::state::State;
use smallvec::SmallVec;
use weft_patch::{BlockNr, JournalMode, Op, Owner, Policy, in_patchgroup};
use weft_vfs::{Error as FsError, FileKind, Ino};

/// Bytes written by one operation.
const STEP_BYTES: usize = 1 << 20;
/// The same where data goes through the journal.
const STEP_JOURNALED_BYTES: usize = 128 << 10;
/// The largest block of any engine.
const MAX_BLOCK_BYTES: usize = 32 << 10;
/// Blocks of metadata one step may change.
pub(crate) const STEP_META_BLOCKS: u32 = 48;
/// The longest run that is read by way of a buffer if only the end of its last block is not read:
/// of a longer one, the buffer gets that block alone, in a request of its own.
const CUT_MAX_BYTES: usize = 64 << 10;
/// Reads without the lock before one is done under it.
const OPTIMISTIC_READS: u32 = 3;

/// Blocks of a file that a read must get from the device: the first block, the bytes to skip in it,
/// and the range of the caller's buffer that they fill.
struct Miss {
    nr: u64,
    skip: usize,
    at: usize,
    len: usize,
}

impl Miss {
    fn blocks(&self, block_bytes: u32) -> impl Iterator<Item = BlockNr> {
        let count = (self.skip + self.len).div_ceil(block_bytes as usize) as u64;
        (self.nr..self.nr + count).map(BlockNr)
    }
}

/// The destination of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The offset given.
    Given,
    /// The end of the file.
    Append,
    /// The offset given, for whole pages of a cache: the last of these begins before the end of a
    /// file that may only be appended to.
    Cached,
}

/// The content of a write step.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
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

    /// Returns the `len` bytes from `from` on, which must exist.
    fn part(self, from: usize, len: usize) -> Self {
        match self {
            Self::Bytes(b) => Self::Bytes(b.get(from..from + len).unwrap_or_default()),
            Self::Zeroes(_) => Self::Zeroes(len),
            Self::Fill(_) => Self::Fill(len),
        }
    }
}

/// Writes the part of `source` that goes to one run of blocks (or one hole). Returns its length in
/// bytes. Adds the patches that the inode must follow to `befores`.
fn write_run<F: Format>(
    format: &mut F,
    op: &mut Op<'_>,
    node: &mut Node<F>,
    block_bytes: usize,
    at: u64,
    source: Source<'_>,
    befores: &mut Patches,
) -> Result<usize> {
    let bs = block_bytes as u64;
    let owner = Owner(node.ino.0);
    let zeroes: &[u8] = &[0; MAX_BLOCK_BYTES];
    let fbn = at / bs;
    let last = (at + source.len() as u64 - 1) / bs;
    let mapped = format.map(op, node, fbn, last - fbn + 1)?;
    let fresh = mapped.start.is_none();
    let mut after = Patches::new();
    let (start, run) = match mapped.start {
        Some(start) => (start, mapped.len),
        None => format.allocate(op, node, fbn, mapped.len, &mut after, befores)?,
    };
    let mut done = 0;
    for i in 0..run {
        let from = if i == 0 { usize::try_from(at % bs).unwrap_or(0) } else { 0 };
        let n = (block_bytes - from).min(source.len() - done);
        let bytes = match source {
            Source::Bytes(b) => b.get(done..done + n).unwrap_or_default(),
            Source::Zeroes(_) => &zeroes[..n],
            Source::Fill(_) if fresh => &zeroes[..n],
            Source::Fill(_) => &[],
        };
        if !bytes.is_empty() {
            let patch = op.write_data(BlockNr(start.0 + i), owner, from, bytes, fresh, &[])?;
            if fresh {
                push_patch(&mut after, patch);
            }
        }
        done += n;
    }
    if fresh {
        format.point(op, node, fbn, (start, run), &after, befores)?;
    }
    Ok(done)
}

impl<F: Format> State<F> {
    /// Writes as much of `source` at `offset` as one operation takes, and raises the file's length
    /// to the end of that. Returns the number of bytes written.
    fn write_step(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        offset: u64,
        source: Source<'_>,
    ) -> Result<usize> {
        let block_bytes = self.block_bytes as usize;
        let old = self.node(ino)?.inode.size_bytes;
        let end = offset + source.len() as u64;
        let mut befores = Patches::new();
        if end > old {
            self.format.allow_size(op, end, &mut befores)?;
        }
        if offset > old {
            befores.extend(self.zero_tail(op, ino, old, offset, &[])?);
        }
        let (format, node) = self.with_node(ino)?;
        node.epoch += 1;
        let mut done = 0;
        let mut failed = None;
        while done < source.len() && !format.is_full() {
            let rest = source.part(done, source.len() - done);
            let at = offset + done as u64;
            match write_run(format, op, node, block_bytes, at, rest, &mut befores) {
                Ok(n) => done += n,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        // Also after a failure: blocks of the map may have been made.
        if done > 0 {
            node.inode.size_bytes = old.max(offset + done as u64);
            node.modified(format);
        }
        self.write_node(op, ino, &befores)?;
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// Reads the blocks that are in the cache, and adds the others to `misses`. Returns the number
    /// of bytes of both.
    fn read_cached(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        offset: u64,
        buf: &mut [u8],
        misses: &mut SmallVec<[Miss; 4]>,
    ) -> Result<usize> {
        let block_bytes = self.block_bytes as usize;
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
        let (format, node) = self.with_node(ino)?;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let fbn = at / bs;
            let last = (offset + len as u64 - 1) / bs;
            let mapped = format.map(op, node, fbn, last - fbn + 1)?;
            let mut skip = usize::try_from(at % bs).unwrap_or(0);
            let run_bytes = usize::try_from(mapped.len.saturating_mul(bs)).unwrap_or(usize::MAX);
            let Some(start) = mapped.start else {
                let n = (run_bytes - skip).min(len - done);
                buf[done..done + n].fill(0);
                done += n;
                continue;
            };
            for i in 0..mapped.len {
                let n = (block_bytes - skip).min(len - done);
                let nr = start.0 + i;
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

impl<F: Format> UnixFs<F> {
    /// Reads from the device what was not in the cache, all of it at once: a run of whole blocks
    /// into its place, another one by way of a buffer.
    fn read_misses(&self, misses: &[Miss], buf: &mut [u8]) -> Result<()> {
        let block_bytes = self.block_bytes as usize;
        let mut whole = Vec::with_capacity(misses.len());
        let mut cut = Vec::new();
        let (mut rest, mut done) = (buf, 0);
        for miss in misses {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(miss.at - done);
            let (mut to, behind) = from.split_at_mut(miss.len);
            (rest, done) = (behind, miss.at + miss.len);
            let mut nr = miss.nr;
            if miss.skip == 0 && miss.len.is_multiple_of(block_bytes) {
                whole.push((BlockNr(nr), to));
                continue;
            }
            if miss.skip == 0 && miss.len > CUT_MAX_BYTES {
                let (blocks, end) = to.split_at_mut(miss.len / block_bytes * block_bytes);
                nr += (blocks.len() / block_bytes) as u64;
                whole.push((BlockNr(miss.nr), blocks));
                to = end;
            }
            let blocks = vec![0; (miss.skip + to.len()).next_multiple_of(block_bytes)];
            cut.push((BlockNr(nr), blocks, miss.skip, to));
        }
        let buffers = cut.iter_mut().map(|(nr, blocks, ..)| (*nr, blocks.as_mut_slice()));
        whole.extend(buffers);
        self.engine.read_runs(whole)?;
        for (_, blocks, skip, to) in cut {
            to.copy_from_slice(&blocks[skip..skip + to.len()]);
        }
        Ok(())
    }

    pub(crate) fn do_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.relieve_lazy()?;
        for _ in 0..OPTIMISTIC_READS {
            let mut misses = SmallVec::new();
            let (len, version) = self.look(|st, op| {
                misses.clear();
                let len = st.read_cached(op, ino, offset, buf, &mut misses)?;
                self.note_access(st, ino);
                Ok((len, st.node(ino)?.version()))
            })?;
            if misses.is_empty() {
                return Ok(len);
            }
            self.read_misses(&misses, buf)?;
            let same = self.lock().nodes.get(ino).is_some_and(|node| node.version() == version);
            if same {
                return Ok(len);
            }
        }
        self.look(|st, op| {
            let mut misses = SmallVec::new();
            let len = st.read_cached(op, ino, offset, buf, &mut misses)?;
            op.want(misses.iter().flat_map(|miss| miss.blocks(self.block_bytes)))?;
            self.read_misses(&misses, buf)?;
            Ok(len)
        })
    }

    /// Writes `source` in steps.
    pub(crate) fn do_write(
        &self,
        ino: Ino,
        offset: u64,
        placement: Placement,
        source: Source<'_>,
    ) -> Result<usize> {
        // Patchgroups journal data, too.
        let journaled = match self.policy() {
            Policy::Journal(mode) => mode == JournalMode::Full || in_patchgroup(),
            Policy::Soft | Policy::Async => false,
        };
        let step_bytes = if journaled { STEP_JOURNALED_BYTES } else { STEP_BYTES };
        let max = self.file_max_bytes;
        if source.len() == 0 {
            self.look(|st, op| st.load_file(op, ino))?;
        }
        let mut at = offset;
        let mut done = 0;
        while done < source.len() {
            // Data that goes past the journal takes no room in it.
            let blocks = match self.policy() {
                Policy::Journal(_) if !journaled => 0,
                _ => {
                    let blocks = |bytes| u32::try_from(bytes).unwrap_or(0) / self.block_bytes;
                    // A short write touches one block more than it fills, at either end.
                    blocks(step_bytes).min(blocks(source.len() - done) + 2)
                }
            };
            if placement == Placement::Append && done == 0 {
                at = self.lock().nodes.get(ino).map_or(at, |node| node.inode.size_bytes);
            }
            let end = at.saturating_add((source.len() - done).min(step_bytes) as u64);
            let needs = [Need::Range(ino, at, end)];
            let result = self.change_only(blocks + STEP_META_BLOCKS, &needs, |st, op| {
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
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}
