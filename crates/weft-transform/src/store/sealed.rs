//! A file of sealed blocks, each opened and written independently. [`super::sealed_format`]
//! describes the format on disk and why a commit is atomic.
//!
//! In memory: `size` is the plain length that readers see, `header` the last committed state.
//! Changed blocks are in `dirty`. A block below `size` that is not in `dirty` lies in the file:
//! committed, or (at or behind `header`'s last block) written ahead of the header, invisible until
//! the commit. Appending much data thus takes no memory, and still all of it becomes visible at
//! once. So does filling a hole that `header` has. `holes` are those of the current state.

mod again;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sealed_format::{
    HEADER_BYTES, HOLES_MAX, Header, Holes, LOG_END_BYTES, Layout, LogEnd, PLAIN_MAX_BYTES,
    RECORD_BYTES,
};
use super::{Atomic, Limits, Store, measured_len, read_exact, within};
use crate::{Error, Result, Seal, Sealer, Shape, Transform};

/// Bytes of blocks that are read from the file below at a time.
const RUN_BYTES: u64 = 256 << 10;

/// Maximum bytes that a commit adds to the log only to save a flush.
const LOG_APPENDED_BYTES: usize = 256 << 10;

/// A file of sealed blocks.
pub struct SealedFile {
    stage: Arc<dyn Transform>,
    below: Box<dyn Store>,
    layout: Layout,
    sealer: Box<dyn Sealer>,
    /// The committed header. Its length is 0 and its sequence 0 before the first commit.
    header: Header,
    /// The current plain length.
    size: u64,
    /// The current holes. No block in one is dirty.
    holes: Holes,
    /// Blocks were written ahead of the commit.
    is_ahead: bool,
    /// Changed blocks, each of its full plain length.
    dirty: BTreeMap<u64, Vec<u8>>,
    dirty_bytes: u64,
    dirty_max_bytes: u64,
    /// The file below has a header. It is written and flushed before anything else, so that a file
    /// without a header is empty, and never one whose first commit was interrupted.
    begun: bool,
    /// There are changes to commit.
    changed: bool,
    /// The file below may extend past the end of the last block.
    has_tail: bool,
    /// A durable log that could not be applied: until it is applied, it must not be overwritten.
    unapplied: Option<(Header, Vec<u8>)>,
    /// The block opened last.
    cached: Option<(u64, Vec<u8>)>,
}

impl std::fmt::Debug for SealedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedFile")
            .field("header", &self.header)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Returns the seal of a stage of the shape `Sealed`.
fn seal_of(stage: &Arc<dyn Transform>) -> Result<&dyn Seal> {
    match stage.shape() {
        Shape::Sealed(seal) => Ok(seal),
        _ => Err(crate::model::no_inverse(stage.name())),
    }
}

impl SealedFile {
    /// Opens the sealed file `below`, or, if `is_new`, begins one in an empty file. Finishes a
    /// commit that a crash interrupted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged header, or an empty file that is not new;
    /// [`Error::WrongKey`].
    pub fn open(
        stage: Arc<dyn Transform>,
        below: Box<dyn Store>,
        limits: &Limits,
        is_new: bool,
    ) -> Result<Self> {
        let mut below = below;
        let seal = seal_of(&stage)?;
        let overhead_bytes = seal.overhead_bytes() as u64;
        // The output of another stage is never a new file.
        let is_new = is_new && below.len_bytes()?.is_some();
        let len = measured_len(&mut *below, seal.stage(), limits.file_bytes)?;
        let (header, sealer) = if len == 0 {
            if !is_new {
                let what = "the stored file is empty, and even an empty sealed file has a header: \
                            it was cut, or put there by something else than weft; truncate it \
                            through the mount to begin it anew";
                return Err(Error::Corrupt { stage: seal.stage(), offset: 0, what: what.into() });
            }
            let mut file_id = [0; 16];
            getrandom::fill(&mut file_id).map_err(|e| Error::Io(e.into()))?;
            let header = Header {
                algorithm: seal.algorithm(),
                block_bytes: seal.block_bytes(),
                file_id,
                key_id: seal.key_id(),
                plain_bytes: 0,
                sequence: 0,
                holes: Holes::default(),
            };
            let sealer = seal.sealer(file_id, header.key_id)?;
            (header, sealer)
        } else {
            read_header(seal, &mut *below)?
        };
        let layout = Layout { block_bytes: u64::from(header.block_bytes), overhead_bytes };
        let mut file = Self {
            stage,
            below,
            layout,
            sealer,
            size: header.plain_bytes,
            holes: header.holes.clone(),
            is_ahead: false,
            header,
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            dirty_max_bytes: limits.dirty_bytes,
            begun: len > 0,
            changed: false,
            has_tail: false,
            unapplied: None,
            cached: None,
        };
        if len > file.layout.end(file.size) {
            file.has_tail = true;
            file.recover(len)?;
        }
        Ok(file)
    }

    fn stage(&self) -> &'static str {
        self.stage.name()
    }

    fn corrupt(&self, index: u64, what: impl Into<String>) -> Error {
        let offset = index.saturating_mul(self.layout.block_bytes);
        Error::Corrupt { stage: self.stage(), offset, what: what.into() }
    }

    /// Opens block `index`, whose sealed form is `sealed`, into `out`.
    fn unseal(&self, index: u64, sealed: &[u8], out: &mut [u8]) -> Result<()> {
        self.sealer.open(index, sealed, out).map_err(|what| {
            out.fill(0);
            self.corrupt(index, format!("block {index}: {what}"))
        })
    }

    /// Reads block `index` from the file below.
    fn load(&mut self, index: u64) -> Result<Vec<u8>> {
        // The length that the block was sealed with follows from the current size, because a block
        // whose length changes is dirty.
        let len = self.layout.plain_len(index, self.size);
        let mut plain = vec![0; len];
        if len > 0 && !self.holes.contains(index) {
            self.load_run(index, 1, &mut plain)?;
        }
        Ok(plain)
    }

    /// Reads `count` contiguous blocks from the file below into `out`.
    fn load_run(&mut self, first: u64, count: u64, out: &mut [u8]) -> Result<()> {
        let overhead = self.layout.overhead_bytes as usize;
        let mut sealed = vec![0; out.len() + overhead * count as usize];
        let got = self.below.read_at(self.layout.start(first), &mut sealed)?;
        let (mut rest, mut out) = (&sealed[..], out);
        let mut at = 0;
        for index in first..first + count {
            let len = self.layout.plain_len(index, self.size).min(out.len());
            let (block, after) = rest.split_at(len + overhead);
            at += block.len();
            if at > got {
                return Err(
                    self.corrupt(index, format!("block {index}: the stored file ends before"))
                );
            }
            let (plain, left) = std::mem::take(&mut out).split_at_mut(len);
            self.unseal(index, block, plain)?;
            (rest, out) = (after, left);
        }
        Ok(())
    }

    /// Returns a block for modification.
    fn block_mut(&mut self, index: u64) -> Result<&mut Vec<u8>> {
        if !self.dirty.contains_key(&index) {
            let plain = match self.cached.take() {
                Some((cached, plain)) if cached == index => plain,
                _ => self.load(index)?,
            };
            self.dirty_bytes += self.layout.block_bytes;
            self.dirty.insert(index, plain);
            self.holes.remove(index);
        }
        self.changed = true;
        Ok(self.dirty.entry(index).or_default())
    }

    /// Extends the file to `size` bytes; the new part reads as zeroes. Whole blocks of it are a hole.
    fn grow(&mut self, size: u64) -> Result<()> {
        if size > PLAIN_MAX_BYTES {
            return Err(weft_vfs::Error::TooLarge.into());
        }
        if size <= self.size {
            return Ok(());
        }
        let blocks = self.layout.blocks(self.size);
        let last = blocks.saturating_sub(1);
        let end = size.min(blocks * self.layout.block_bytes);
        if self.size < end && !self.holes.contains(last) {
            let len = self.layout.plain_len(last, end);
            self.block_mut(last)?.resize(len, 0);
        }
        self.holes.push(blocks..self.layout.blocks(size));
        self.size = size;
        self.changed = true;
        self.relieve()
    }

    /// Returns true if readers of the committed file do not see what is at the position of a block.
    fn is_unseen(&self, index: u64) -> bool {
        index >= self.layout.blocks(self.header.plain_bytes) || self.header.holes.contains(index)
    }

    /// Bounds the number of holes and memory: writes full blocks that the committed file does not have
    /// ahead of the commit, and commits early if that is not enough.
    fn relieve(&mut self) -> Result<()> {
        while self.holes.len() > HOLES_MAX {
            for index in self.holes.smallest().into_iter().flatten() {
                self.holes.remove(index);
                self.dirty.insert(index, vec![0; self.layout.plain_len(index, self.size)]);
                self.dirty_bytes += self.layout.block_bytes;
                self.relieve_memory()?;
            }
        }
        self.relieve_memory()
    }

    fn relieve_memory(&mut self) -> Result<()> {
        if self.dirty_bytes <= self.dirty_max_bytes {
            return Ok(());
        }
        let full = self.size / self.layout.block_bytes;
        let dirty = self.dirty.range(..full).map(|block| *block.0);
        let ahead: Vec<u64> = dirty.filter(|index| self.is_unseen(*index)).collect();
        self.is_ahead |= !ahead.is_empty();
        self.write_blocks(&ahead)?;
        for index in ahead {
            self.dirty.remove(&index);
            self.dirty_bytes -= self.layout.block_bytes;
        }
        if self.dirty_bytes > self.dirty_max_bytes && self.holes.len() <= HOLES_MAX {
            tracing::debug!(stage = self.stage(), "commits early, as much is dirty");
            self.commit()?;
        }
        Ok(())
    }

    /// Writes the header of a file that has none yet.
    fn write_first_header(&mut self) -> Result<()> {
        if !self.begun {
            let bytes = self.header.encode(&self.tag());
            self.below.write_at(0, &bytes)?;
            self.below.commit()?;
            self.begun = true;
        }
        Ok(())
    }

    /// Seals dirty blocks and writes them to their positions, adjacent blocks together.
    fn write_blocks(&mut self, indexes: &[u64]) -> Result<()> {
        self.write_first_header()?;
        let mut run = Vec::new();
        let mut start = 0;
        for (at, &index) in indexes.iter().enumerate() {
            if run.is_empty() {
                start = self.layout.start(index);
            }
            if let Some(plain) = self.dirty.get(&index) {
                self.sealer.seal(index, plain, &mut run)?;
            }
            let goes_on = indexes.get(at + 1) == Some(&(index + 1));
            if !goes_on || run.len() as u64 >= RUN_BYTES {
                self.has_tail = true;
                self.below.write_at(start, &run)?;
                run.clear();
            }
        }
        Ok(())
    }

    fn tag(&self) -> impl Fn(&[u8]) -> [u8; 16] + '_ {
        |bytes| self.sealer.tag(bytes)
    }

    /// Commits by a log; see [`super::sealed_format`].
    fn commit_by_log(&mut self, header: &Header, changed: &[u64]) -> Result<()> {
        let start = self.layout.end(self.size).max(self.layout.end(self.header.plain_bytes));
        let start = start.next_multiple_of(512);
        let mut log = header.encode(&self.tag()).to_vec();
        for index in changed {
            let Some(plain) = self.dirty.get(index) else { continue };
            log.extend(index.to_le_bytes());
            let len = plain.len() as u64 + self.layout.overhead_bytes;
            log.extend(len.to_le_bytes());
            self.sealer.seal(*index, plain, &mut log)?;
        }
        let end = LogEnd {
            start,
            count: changed.len() as u64,
            sequence: header.sequence,
            hash: *blake3::hash(&log).as_bytes(),
        };
        let end = end.encode(&self.tag());
        log.extend(end);
        self.has_tail = true;
        // The rest of a failed commit behind a shorter log would hide the end of the log.
        self.below.set_len(start + log.len() as u64)?;
        self.below.write_at(start, &log)?;
        self.below.commit()?;
        log.truncate(log.len() - LOG_END_BYTES);
        self.unapplied = Some((header.clone(), log));
        self.apply_pending()
    }

    /// Applies the log of the last commit, if that is still pending.
    fn apply_pending(&mut self) -> Result<()> {
        if let Some((header, log)) = self.unapplied.take() {
            if let Err(e) = self.apply(&log) {
                self.unapplied = Some((header, log));
                return Err(e);
            }
            self.has_tail = true;
            self.header = header;
        }
        Ok(())
    }

    /// Writes the blocks and the header of a log to their positions.
    fn apply(&mut self, log: &[u8]) -> Result<()> {
        let (header, mut rest) = log.split_at(HEADER_BYTES.min(log.len()));
        while let Some((record, after)) = rest.split_at_checked(RECORD_BYTES) {
            let index = u64::from_le_bytes(record[..8].try_into().unwrap_or_default());
            let len = u64::from_le_bytes(record[8..].try_into().unwrap_or_default());
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let Some((block, after)) = after.split_at_checked(len) else { break };
            self.below.write_at(self.layout.start(index), block)?;
            rest = after;
        }
        self.below.write_at(0, header)?;
        self.below.commit()
    }

    /// Looks for a log behind the last block, and applies it if it is complete.
    fn recover(&mut self, len: u64) -> Result<()> {
        let Some((start, end)) = self.find_log(len)? else { return Ok(()) };
        self.apply_from(start, end)?;
        let (header, sealer) = read_header(seal_of(&self.stage)?, &mut *self.below)?;
        self.size = header.plain_bytes;
        self.holes = header.holes.clone();
        (self.header, self.sealer) = (header, sealer);
        self.cut_tail()
    }

    /// Truncates the file below at the end of the last block.
    fn cut_tail(&mut self) -> Result<()> {
        if std::mem::take(&mut self.has_tail) {
            let end = self.layout.end(self.header.plain_bytes);
            // A file that ends with a hole is shorter.
            if self.below.len_bytes()?.is_none_or(|len| len > end) {
                self.below.set_len(end)?;
            }
        }
        Ok(())
    }
}

fn read_header(seal: &dyn Seal, below: &mut dyn Store) -> Result<(Header, Box<dyn Sealer>)> {
    let stage = seal.stage();
    let corrupt = |what: String| Error::Corrupt { stage, offset: 0, what };
    let mut bytes = [0; HEADER_BYTES];
    if below.read_at(0, &mut bytes)? < HEADER_BYTES {
        return Err(corrupt("shorter than the header of a sealed file".into()));
    }
    let header = Header::decode(&bytes).map_err(corrupt)?;
    if header.algorithm != seal.algorithm() {
        return Err(corrupt(format!(
            "sealed with algorithm {}, not {}",
            header.algorithm,
            seal.algorithm()
        )));
    }
    let sealer = seal.sealer(header.file_id, header.key_id)?;
    if !Header::tag_is_right(&bytes, &|bytes| sealer.tag(bytes)) {
        return Err(corrupt("the header does not fit its tag".into()));
    }
    Ok((header, sealer))
}

impl Store for SealedFile {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.size))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = within(offset, buf.len(), self.size);
        let block_bytes = self.layout.block_bytes;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let index = at / block_bytes;
            // The value is below the length of a block.
            let skip = (at % block_bytes) as usize;
            let plain_len = self.layout.plain_len(index, self.size);
            let step = (plain_len - skip).min(len - done);
            if let Some(plain) = self.dirty.get(&index) {
                buf[done..done + step].copy_from_slice(&plain[skip..skip + step]);
            } else if self.holes.contains(index) {
                buf[done..done + step].fill(0);
            } else if step == plain_len {
                // Whole blocks are read directly into `buf`, as many adjacent ones as possible.
                let mut count = 1;
                let mut bytes = step;
                loop {
                    let next = index + count;
                    let next_len = self.layout.plain_len(next, self.size);
                    if next_len == 0
                        || bytes + next_len > len - done
                        || bytes as u64 >= RUN_BYTES
                        || self.dirty.contains_key(&next)
                        || self.holes.contains(next)
                    {
                        break;
                    }
                    (count, bytes) = (count + 1, bytes + next_len);
                }
                self.load_run(index, count, &mut buf[done..done + bytes])?;
                done += bytes;
                continue;
            } else {
                if self.cached.as_ref().is_none_or(|(cached, _)| *cached != index) {
                    self.cached = Some((index, self.load(index)?));
                }
                if let Some((_, plain)) = &self.cached {
                    buf[done..done + step].copy_from_slice(&plain[skip..skip + step]);
                }
            }
            done += step;
        }
        Ok(len)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= PLAIN_MAX_BYTES);
        let end = end.ok_or(weft_vfs::Error::TooLarge)?;
        if data.is_empty() {
            return Ok(());
        }
        if offset > self.size {
            self.grow(offset)?;
        }
        self.cached = None;
        let block_bytes = self.layout.block_bytes;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let index = at / block_bytes;
            let skip = (at % block_bytes) as usize;
            let step = (block_bytes as usize - skip).min(data.len() - done);
            let piece = &data[done..done + step];
            let whole = skip == 0 && step >= self.layout.plain_len(index, self.size);
            if whole {
                // The old block is overwritten completely, so it need not be read (nor be
                // readable).
                if self.dirty.insert(index, piece.to_vec()).is_none() {
                    self.dirty_bytes += block_bytes;
                }
                self.holes.remove(index);
                self.changed = true;
            } else {
                let block = self.block_mut(index)?;
                if block.len() < skip + step {
                    block.resize(skip + step, 0);
                }
                block[skip..skip + step].copy_from_slice(piece);
            }
            done += step;
            self.size = self.size.max(at + step as u64);
            self.relieve()?;
        }
        debug_assert!(self.size >= end, "all of it was written");
        Ok(())
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        if len_bytes >= self.size {
            return self.grow(len_bytes);
        }
        self.cached = None;
        let block_bytes = self.layout.block_bytes;
        if !len_bytes.is_multiple_of(block_bytes) {
            let index = len_bytes / block_bytes;
            let len = self.layout.plain_len(index, len_bytes);
            if !self.holes.contains(index) {
                self.block_mut(index)?.truncate(len);
            }
        }
        self.holes.truncate(self.layout.blocks(len_bytes));
        let gone = self.dirty.split_off(&self.layout.blocks(len_bytes));
        self.dirty_bytes -= gone.len() as u64 * block_bytes;
        self.size = len_bytes;
        self.changed = true;
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.write_first_header()
    }

    fn commit(&mut self) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        self.write_first_header()?;
        self.apply_pending()?;
        let header = Header {
            plain_bytes: self.size,
            sequence: self.header.sequence + 1,
            holes: self.holes.clone(),
            ..self.header.clone()
        };
        let dirty = self.dirty.keys().copied();
        let (mut added, mut in_place): (Vec<u64>, Vec<u64>) =
            dirty.partition(|index| self.is_unseen(*index));
        let written_ahead = self.is_ahead;
        let added_bytes = added.len() as u64 * self.layout.block_bytes;
        if !in_place.is_empty() && !written_ahead && added_bytes <= LOG_APPENDED_BYTES as u64 {
            in_place.append(&mut added);
        }
        if !added.is_empty() || written_ahead || in_place.is_empty() {
            self.write_blocks(&added)?;
            self.below.commit()?;
        }
        if in_place.is_empty() {
            let bytes = header.encode(&self.tag());
            self.below.write_at(0, &bytes)?;
            self.below.commit()?;
        } else {
            self.commit_by_log(&header, &in_place)?;
        }
        self.has_tail |= header.plain_bytes < self.header.plain_bytes;
        self.header = header;
        self.dirty.clear();
        self.dirty_bytes = 0;
        (self.changed, self.is_ahead) = (false, false);
        self.cut_tail()
    }

    fn atomic(&self) -> Option<Atomic> {
        Some(Atomic { max_bytes: self.dirty_max_bytes, unit_bytes: self.layout.block_bytes })
    }

    fn is_dirty(&self) -> bool {
        self.changed
    }

    fn release_buffers(&mut self) {
        self.below.release_buffers();
    }
}
