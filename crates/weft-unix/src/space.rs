//! Holes: making, filling and finding them.
//!
//! No block is allocated and unwritten: to allocate is to write zeroes.

use crate::data::{Placement, Source};
use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::state::State;
use crate::{Error, Result};
use weft_patch::Op;
use weft_vfs::{Error as FsError, FallocateMode, FileKind, Ino, SeekFrom};

/// Blocks a hole is made of by one operation, at most.
const PUNCH_BLOCKS: u64 = 8192;
/// Blocks of metadata that may change with it.
const PUNCH_META_BLOCKS: u32 = 64;

impl<F: Format> State<F> {
    /// Makes a hole of whole blocks `from..to`, or of a first part. Returns where it stopped.
    fn punch_step(&mut self, op: &mut Op<'_>, ino: Ino, from: u64, to: u64) -> Result<u64> {
        let (format, node) = self.with_node(ino)?;
        format.release_reserved(ino);
        node.epoch += 1;
        node.modified(format);
        let stop = to.min(from.saturating_add(PUNCH_BLOCKS));
        let mut at = from;
        let mut in_inode = Vec::new();
        while at < stop && !format.is_full() {
            let unmapped = format.unmap(op, node, at, stop - at)?;
            match (unmapped.freed, unmapped.cleared) {
                (Some(start), Some(cleared)) => format.free(op, start, unmapped.len, cleared)?,
                (Some(start), None) => in_inode.push((start, unmapped.len)),
                (None, _) => {}
            }
            at += unmapped.len;
        }
        let written = self.write_node(op, ino, &[])?;
        for (start, len) in in_inode {
            self.format.free(op, start, len, written)?;
        }
        Ok(at.min(to))
    }

    /// Finds the next data or hole from block `fbn` on.
    fn seek_block(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        mut fbn: u64,
        end: u64,
        data: bool,
    ) -> Result<Option<u64>> {
        let (format, node) = self.with_node(ino)?;
        while fbn < end {
            let run = format.map(op, node, fbn, end - fbn)?;
            if run.start.is_some() == data {
                return Ok(Some(fbn));
            }
            fbn += run.len;
        }
        Ok(None)
    }

    /// Loads a regular file; returns its length.
    pub(crate) fn load_file(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<u64> {
        let node = self.load(op, ino)?;
        match node.kind {
            FileKind::Regular => Ok(node.inode.size_bytes),
            FileKind::Directory => Err(FsError::IsADirectory.into()),
            _ => Err(FsError::Invalid("not a regular file").into()),
        }
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_fallocate(
        &self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let end = offset.checked_add(len_bytes).ok_or(FsError::TooLarge)?;
        if len_bytes == 0 {
            return Err(FsError::Invalid("a range of no bytes").into());
        }
        let size = self.look(|st, op| st.load_file(op, ino))?;
        self.change(1, &[Need::Inode(ino)], |st, op| {
            st.load(op, ino)?;
            st.check_mutable(ino, matches!(mode, FallocateMode::Allocate { .. }))
        })?;
        if mode != FallocateMode::PunchHole && end > self.file_max_bytes {
            return Err(FsError::TooLarge.into());
        }
        let (fill, keep_size) = match mode {
            FallocateMode::PunchHole => return self.punch(ino, offset, end.min(size)),
            FallocateMode::Allocate { keep_size } => (true, keep_size),
            FallocateMode::ZeroRange { keep_size } => (false, keep_size),
        };
        if keep_size && fill && end > size {
            // No blocks lie behind the end of a file: they are kept for it in memory, for as long
            // as it is open.
            let past = (end - size).div_ceil(u64::from(self.block_bytes));
            self.look(|st, op| {
                st.load(op, ino)?;
                let (format, node) = st.with_node(ino)?;
                format.reserve_blocks(op, node, past)
            })?;
        }
        let end = if keep_size { end.min(size) } else { end };
        if offset >= end {
            return Ok(());
        }
        if fill {
            let blocks = (end - offset) / u64::from(self.block_bytes);
            if blocks
                > self.lock().format.space().blocks_free + size / u64::from(self.block_bytes) + 1
            {
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

    fn punch(&self, ino: Ino, offset: u64, end: u64) -> Result<()> {
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
            let needs = [Need::Range(ino, at * bs, (at + 1) * bs)];
            at = self.change(PUNCH_META_BLOCKS, &needs, |st, op| {
                st.load(op, ino)?;
                st.punch_step(op, ino, at, last)
            })?;
        }
        Ok(())
    }

    /// Zeroes bytes within one block, unless it is a hole.
    fn zero_mapped(&self, ino: Ino, from: u64, to: u64) -> Result<()> {
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

    pub(crate) fn do_seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
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
