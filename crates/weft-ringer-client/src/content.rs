//! The content of files: reads, fetches and writes of blocks.

use std::sync::Arc;
use std::time::Instant;

use weft_ringer::client::{Call, Outcome, Redo, Written};
use weft_ringer::mds::origin;
use weft_ringer::op::Op;
use weft_ringer::{BLOCKS_MAX, Block, BlockHash, Body, Refusal, Rnode, RnodeId, Seq};
use weft_vfs::{Error, FallocateMode, Result, SeekFrom};

use super::blocks::{Blocks, Found};
use super::client_fs::ClientFs;
use super::encryption::FileCipher;
use super::engine::Superseded;
use super::errors::io_error;
use super::mutex::locked;
use super::open::to_store;

/// Why content is not available.
pub(super) enum Lack {
    /// A block is not here, and no other client or archive returned it.
    Block(String),
    /// The file has changed since its state was read, or may change now.
    Changed,
    Failed(Error),
}

impl From<Error> for Lack {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

impl From<Lack> for Error {
    fn from(lack: Lack) -> Self {
        match lack {
            Lack::Block(message) => Self::Io { errno: 5, message },
            Lack::Changed => Refusal::Changed.into(),
            Lack::Failed(e) => e,
        }
    }
}

/// The file whose blocks are read and written, and its cipher.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) id: RnodeId,
    pub(super) cipher: Option<&'a Arc<FileCipher>>,
}

/// A file's block map, taken out of its rnode.
struct File<'a> {
    size_bytes: u64,
    block_bytes: u64,
    blocks: &'a std::collections::BTreeMap<u32, Block>,
}

fn file(rnode: &Rnode) -> Result<File<'_>> {
    match &rnode.body {
        Body::File { size_bytes, block_bytes, blocks, .. } => {
            let block_bytes = u64::from(*block_bytes);
            Ok(File { size_bytes: *size_bytes, block_bytes, blocks })
        }
        Body::Directory { .. } => Err(Error::IsADirectory),
        Body::Symlink { .. } | Body::Special { .. } => Err(Error::Invalid("not a regular file")),
    }
}

/// Former contents of blocks about to be opened, and the room for them; released on failure.
struct Bases<'a> {
    blocks: &'a Blocks,
    names: Vec<BlockHash>,
}

impl Drop for Bases<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            self.blocks.drop_base(name);
            self.blocks.release(name);
        }
    }
}

/// The part of a range that is in one block.
struct Piece {
    index: u32,
    /// The offset in the block, in bytes.
    within: usize,
    len_bytes: usize,
}

/// The blocks that a range touches.
fn pieces(block_bytes: u64, offset: u64, len_bytes: u64) -> impl Iterator<Item = Piece> {
    let end = offset.saturating_add(len_bytes);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % block_bytes;
        let len = (block_bytes - within).min(end - at);
        let index = u32::try_from(at / block_bytes).ok()?;
        at += len;
        // Both are at most the size of a block.
        Some(Piece { index, within: within as usize, len_bytes: len as usize })
    })
}

/// Splits a buffer into the parts in each block of a file, up to the file's end.
fn parts<'a>(
    file: &File<'_>,
    offset: u64,
    buf: &'a mut [u8],
) -> impl Iterator<Item = (Piece, &'a mut [u8])> {
    let left = file.size_bytes.saturating_sub(offset);
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
    let mut rest = &mut buf[..len];
    pieces(file.block_bytes, offset, len as u64).map(move |piece| {
        let (part, behind) = std::mem::take(&mut rest).split_at_mut(piece.len_bytes);
        rest = behind;
        (piece, part)
    })
}

/// Returns the data written into open blocks, as it goes to the journal.
fn for_journal(cipher: Option<&Arc<FileCipher>>, redo: &[Redo]) -> Result<Vec<Redo>> {
    let Some(cipher) = cipher else { return Ok(redo.to_vec()) };
    let encrypt = |part: &Redo| {
        let data = cipher.encrypt_redo(&part.name, part.within, &part.data.0);
        let data = Written(data.map_err(|e| io_error(&e))?.into());
        Ok(Redo { data, ..part.clone() })
    };
    redo.iter().map(encrypt).collect()
}

impl ClientFs {
    /// Fills `buf` with the bytes of a block from `within` on. After the block's end are zeroes.
    fn load(
        &self,
        source: Source<'_>,
        index: u32,
        block: &Block,
        within: usize,
        buf: &mut [u8],
    ) -> Result<(), Lack> {
        let id = source.id;
        let len = (block.len_bytes as usize).saturating_sub(within).min(buf.len());
        let (there, behind) = buf.split_at_mut(len);
        behind.fill(0);
        if there.is_empty() {
            return Ok(());
        }
        if block.hash.is_open() {
            let behind = self.engine.open.look(id);
            let open = behind.get(&block.hash).and_then(|b| b.bytes.get(within..within + len));
            let open = open.ok_or_else(|| Lack::Block("a block was sealed".into()))?;
            there.copy_from_slice(open);
            return Ok(());
        }
        if let Some(cipher) = source.cipher {
            let bytes = self.open_block(cipher, id, index, block)?;
            // `open_block` checked that there are as many.
            there.copy_from_slice(&bytes[within..within + len]);
            return Ok(());
        }
        let found = self.engine.blocks.read(id, &block.hash, within as u64, there);
        let found = found.map_err(|e| io_error(&e))?;
        if found == Found::Here {
            return Ok(());
        }
        let bytes = self.fetch(id, &block.hash, found == Found::Damaged).map_err(Lack::Block)?;
        let part = bytes.get(within..within + len);
        let part =
            part.ok_or_else(|| Lack::Block("a block is shorter than its file says".into()))?;
        there.copy_from_slice(part);
        Ok(())
    }

    /// Fetches a block, and stores it: in place of the one here, if that is damaged.
    pub(super) fn fetch(
        &self,
        id: RnodeId,
        name: &BlockHash,
        is_damaged: bool,
    ) -> std::result::Result<Vec<u8>, String> {
        if is_damaged {
            return self.heal(id, name).map_err(|why| {
                format!("block {name:?} of inode {id} is damaged in the local store: {why}")
            });
        }
        let bytes = self.fetch_block(id, name, &self.engine.holders(id))?;
        if let Err(e) = self.engine.blocks.put_fetched(id, name, &bytes) {
            tracing::debug!("cannot cache a fetched block: {e}");
        }
        Ok(bytes)
    }

    /// Fetches a block that is damaged here, and replaces it.
    pub(super) fn heal(
        &self,
        id: RnodeId,
        name: &BlockHash,
    ) -> std::result::Result<Vec<u8>, String> {
        let bytes = self.fetch_block(id, name, &self.engine.holders(id))?;
        if let Err(e) = self.engine.blocks.heal(id, name, &bytes) {
            tracing::error!("cannot repair block {name:?} of inode {id}: {e}");
        }
        Ok(bytes)
    }

    /// Fills `buf` with the bytes of a block, of the file's present content or an earlier version.
    pub(super) fn load_block(
        &self,
        source: Source<'_>,
        index: u32,
        block: &Block,
        buf: &mut [u8],
    ) -> Result<()> {
        Ok(self.load(source, index, block, 0, buf)?)
    }

    /// The same for a block kept here for a conflict, even if its file was removed.
    pub(super) fn load_kept(
        &self,
        source: Source<'_>,
        index: u32,
        block: &Block,
        buf: &mut [u8],
    ) -> Result<()> {
        if source.cipher.is_some() {
            return self.load_block(source, index, block, buf);
        }
        let bytes = self.engine.blocks.whole(source.id, &block.hash).map_err(|e| io_error(&e))?;
        let gone = || Error::Io {
            errno: 5,
            message: "a block of the conflict is missing from the local store".into(),
        };
        let bytes = bytes.ok_or_else(gone)?;
        buf.copy_from_slice(bytes.get(..buf.len()).ok_or_else(gone)?);
        Ok(())
    }

    /// Runs `work` on the file's present state; again if a block of it is gone because the file has
    /// changed.
    fn with_file<T>(
        &self,
        id: RnodeId,
        mut work: impl FnMut(&Rnode) -> Result<T, Lack>,
    ) -> Result<T> {
        let deadline = Instant::now() + self.engine.options.patience;
        loop {
            let rnode = self.get(id)?;
            match work(&rnode) {
                Ok(value) => return Ok(value),
                Err(Lack::Changed) if Instant::now() < deadline => {}
                Err(lack @ Lack::Block(_)) => {
                    // A block that is sealed has another name in the same version.
                    let same = self.get(id)? == rnode;
                    if same || Instant::now() >= deadline {
                        return Err(lack.into());
                    }
                }
                Err(lack) => return Err(lack.into()),
            }
        }
    }

    pub(super) fn read(&self, id: RnodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with_file(id, |rnode| {
            if let Some(now) = self.read_open(rnode, offset, buf)? {
                return self.read_closed(&now, offset, buf);
            }
            self.read_closed(rnode, offset, buf)
        })
    }

    /// If some of the range is in open blocks: fills in those parts, and returns the file's state
    /// at that moment.
    fn read_open(
        &self,
        rnode: &Rnode,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Option<Box<Rnode>>, Lack> {
        let has_open = |file: &File<'_>, len_bytes: u64| {
            pieces(file.block_bytes, offset, len_bytes)
                .filter_map(|piece| file.blocks.get(&piece.index))
                .any(|block| block.hash.is_open())
        };
        if !has_open(&file(rnode)?, buf.len() as u64) {
            return Ok(None);
        }
        let behind = self.engine.open.look(rnode.id);
        let Some((Outcome::Rnode(now), _)) = self.engine.call_now(Call::Get { id: rnode.id })?
        else {
            // The lease may be recalled: others may have changed the file when it is here again.
            return Err(Lack::Changed);
        };
        let file = file(&now)?;
        for (piece, part) in parts(&file, offset, buf) {
            let block = file.blocks.get(&piece.index).filter(|b| b.hash.is_open());
            let Some(block) = block else { continue };
            let open = behind.get(&block.hash).ok_or(Lack::Changed)?;
            let end = open.bytes.len().min(block.len_bytes as usize);
            let there = open.bytes.get(piece.within..end).unwrap_or(&[]);
            let len = there.len().min(part.len());
            part[..len].copy_from_slice(&there[..len]);
            part[len..].fill(0);
        }
        Ok(Some(now))
    }

    /// Fills in the parts that are not in open blocks.
    fn read_closed(&self, rnode: &Rnode, offset: u64, buf: &mut [u8]) -> Result<usize, Lack> {
        let file = file(rnode)?;
        let cipher = self.cipher(rnode)?;
        // Blocks of a file in a snapshot are stored under the number of the original file.
        let source = Source { id: origin(rnode), cipher: cipher.as_ref() };
        let mut len = 0;
        for (piece, part) in parts(&file, offset, buf) {
            len += part.len();
            match file.blocks.get(&piece.index) {
                Some(block) if block.hash.is_open() => {}
                Some(block) => self.load(source, piece.index, block, piece.within, part)?,
                None => part.fill(0),
            }
        }
        Ok(len)
    }

    /// Writes at `offset`, or at the end if there is none.
    pub(super) fn write(&self, id: RnodeId, offset: Option<u64>, data: &[u8]) -> Result<usize> {
        let _one = locked(self.writer(id));
        self.before_change(id)?;
        self.engine.bound_journal().map_err(|e| io_error(&e))?;
        self.with_file(id, |rnode| {
            let file = file(rnode)?;
            let cipher = self.cipher(rnode)?;
            let source = Source { id, cipher: cipher.as_ref() };
            if data.is_empty() {
                return Ok(0);
            }
            let offset = offset.unwrap_or(file.size_bytes);
            let longest = file.block_bytes * u64::from(BLOCKS_MAX);
            let room = longest.saturating_sub(offset);
            if room == 0 {
                return Err(Error::TooLarge.into());
            }
            let data = &data[..usize::try_from(room).unwrap_or(usize::MAX).min(data.len())];
            if self.write_open(rnode, cipher.as_ref(), offset, data)? {
                return Ok(data.len());
            }
            let (mut changed, mut done) = (Vec::new(), 0);
            for piece in pieces(file.block_bytes, offset, data.len() as u64) {
                let part = &data[done..done + piece.len_bytes];
                let old = file.blocks.get(&piece.index);
                match self.overlay(source, piece.index, old, piece.within, part) {
                    Ok(block) => changed.push((piece.index, Some(block))),
                    // The part that fits is written.
                    Err(Lack::Failed(Error::NoSpace)) if done > 0 => break,
                    Err(e) => return Err(e),
                }
                done += piece.len_bytes;
            }
            self.replace(rnode, changed, offset + done as u64)?;
            Ok(done)
        })
    }

    /// Writes into open blocks, and opens the others, if the lease for that is at hand and there is
    /// room. Returns `false` if nothing was done.
    fn write_open(
        &self,
        rnode: &Rnode,
        cipher: Option<&Arc<FileCipher>>,
        offset: u64,
        data: &[u8],
    ) -> Result<bool, Lack> {
        let (id, open, blocks) = (rnode.id, &self.engine.open, &self.engine.blocks);
        let source = Source { id, cipher };
        let file = file(rnode)?;
        let all = || pieces(file.block_bytes, offset, data.len() as u64);
        // Whole blocks are stored at once.
        if all().all(|piece| piece.len_bytes as u64 == file.block_bytes) {
            return Ok(false);
        }
        let is_open =
            |piece: &Piece| file.blocks.get(&piece.index).is_some_and(|b| b.hash.is_open());
        let new_bytes = all().filter(|piece| !is_open(piece)).count() as u64 * file.block_bytes;
        if new_bytes > 0 {
            if !open.may_open(blocks, new_bytes) {
                return Ok(false);
            }
            while let Some((id, name)) = open.oldest_if_full(new_bytes) {
                self.engine.seal(id, Some(&name)).map_err(|e| io_error(&e))?;
            }
        }
        let (mut changed, mut redo, mut images, mut done) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut bases = Bases { blocks, names: Vec::new() };
        for piece in all() {
            let part = &data[done..done + piece.len_bytes];
            done += piece.len_bytes;
            let old = file.blocks.get(&piece.index);
            let kept_bytes = old.map_or(0, |b| b.len_bytes);
            let end = (piece.within + piece.len_bytes) as u32;
            let (mut name, mut base, mut image) = (open.name(), None, Vec::new());
            match old {
                Some(old) if old.hash.is_open() => name = old.hash,
                Some(old) if piece.within > 0 || end < kept_bytes => {
                    image.resize(kept_bytes as usize, 0);
                    self.load(source, piece.index, old, 0, &mut image)?;
                    if !blocks.keep_base(id, &name, &old.hash).unwrap_or(false) {
                        return Ok(false);
                    }
                    bases.names.push(name);
                    base = Some(*old);
                }
                _ => {}
            }
            let len_bytes = kept_bytes.max(end);
            if base.is_none() && old.is_none_or(|old| !old.hash.is_open()) {
                bases.names.push(name);
            }
            if blocks.reserve(&name, u64::from(len_bytes), file.block_bytes).is_err() {
                return Ok(false);
            }
            changed.push((piece.index, Some(Block { hash: name, len_bytes })));
            let (within, data) = (piece.within as u32, Written(part.into()));
            redo.push(Redo { name, base, kept_bytes, within, data });
            images.push((piece.index, image));
        }
        let mut behind = open.change(id);
        let mut open_before = all().filter_map(|piece| file.blocks.get(&piece.index));
        if open_before.any(|b| b.hash.is_open() && !behind.contains_key(&b.hash)) {
            // It was sealed meanwhile.
            return Err(Lack::Changed);
        }
        if new_bytes > 0 && open.is_closed() {
            return Ok(false);
        }
        let end_bytes = offset + data.len() as u64;
        let new: Vec<(u32, Option<BlockHash>)> =
            changed.iter().map(|(at, block)| (*at, block.map(|b| b.hash))).collect();
        let call = Call::Write {
            id,
            version: rnode.version,
            blocks: changed,
            end_bytes,
            redo: for_journal(cipher, &redo)?,
            encryption: cipher.map(|cipher| cipher.encryption),
        };
        match self.engine.call_now(call)? {
            Some((Outcome::Done(_), seq)) => {
                open.apply(&mut behind, id, cipher, &redo, images);
                drop(behind);
                bases.names.clear();
                self.was_replaced(id, file.blocks, &new, seq);
                Ok(true)
            }
            Some((Outcome::Refused(Refusal::Changed), _)) => Err(Lack::Changed),
            Some((Outcome::Refused(why), _)) => Err(self.refused(id, why).into()),
            _ => Ok(false),
        }
    }

    /// Records that the change `seq` replaced blocks.
    fn was_replaced(
        &self,
        id: RnodeId,
        old: &std::collections::BTreeMap<u32, Block>,
        new: &[(u32, Option<BlockHash>)],
        seq: Seq,
    ) {
        let replaced = new
            .iter()
            .filter_map(|(at, hash)| old.get(at).map(|b| b.hash).filter(|old| Some(*old) != *hash));
        self.supersede(id, seq, replaced);
        self.has_changed(id);
    }

    /// Returns the block that `old` becomes when `data` is written into it.
    fn overlay(
        &self,
        source: Source<'_>,
        index: u32,
        old: Option<&Block>,
        within: usize,
        data: &[u8],
    ) -> Result<Block, Lack> {
        let end = within + data.len();
        let kept = old.map_or(0, |b| b.len_bytes as usize);
        let mut bytes;
        let whole = if within == 0 && end >= kept {
            data
        } else {
            bytes = vec![0; end.max(kept)];
            if let Some(old) = old {
                self.load(source, index, old, 0, &mut bytes)?;
            }
            bytes[within..end].copy_from_slice(data);
            &bytes
        };
        let stored = to_store(source.cipher.map(Arc::as_ref), index, whole);
        let hash = stored.and_then(|bytes| self.engine.blocks.put_own(source.id, &bytes));
        let hash = hash.map_err(|e| io_error(&e))?;
        // At most the size of a block.
        Ok(Block { hash, len_bytes: whole.len() as u32 })
    }

    /// Replaces blocks, if the file has not changed.
    fn replace(
        &self,
        rnode: &Rnode,
        blocks: Vec<(u32, Option<Block>)>,
        end_bytes: u64,
    ) -> Result<(), Lack> {
        let id = rnode.id;
        let new: Vec<(u32, Option<BlockHash>)> =
            blocks.iter().map(|(at, block)| (*at, block.map(|b| b.hash))).collect();
        let op = Op::Write { id, blocks, end_bytes, kill_privileges: false };
        let call = Call::Apply { op, if_version: Some((id, rnode.version)) };
        let old = &file(rnode)?.blocks;
        match self.engine.call(call)? {
            (Outcome::Refused(why), _) => {
                let had = |hash: &BlockHash| old.values().any(|b| b.hash == *hash);
                // One of them may belong to an earlier version: the server decides whether it is
                // removed.
                let useless = new.iter().filter_map(|(_, hash)| *hash).filter(|h| !had(h));
                self.supersede(id, Seq::default(), useless);
                Err(match why {
                    Refusal::Changed => Lack::Changed,
                    why => self.refused(id, why).into(),
                })
            }
            (_, seq) => {
                self.was_replaced(id, old, &new, seq);
                self.wrote(id, rnode.version, seq);
                Ok(())
            }
        }
    }

    /// Queues blocks for removal once the server has the change `seq`.
    fn supersede(&self, rnode: RnodeId, seq: Seq, hashes: impl Iterator<Item = BlockHash>) {
        let old = hashes.map(|hash| Superseded { seq, rnode, hash });
        locked(&self.engine.superseded).extend(old);
    }

    /// Queues the blocks after a file's new end for removal, after it was truncated.
    pub(super) fn was_cut(&self, before: &Rnode, new_bytes: u64, seq: Seq) {
        if let Ok(File { block_bytes, blocks, .. }) = file(before) {
            let gone = blocks.iter().filter(|(at, _)| u64::from(**at) * block_bytes >= new_bytes);
            self.supersede(before.id, seq, gone.map(|(_, block)| block.hash));
            self.has_changed(before.id);
        }
    }

    pub(super) fn fallocate(
        &self,
        id: RnodeId,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let grows = match mode {
            // Allocation for future writes: it cannot be guaranteed here.
            FallocateMode::Allocate { .. } => {
                return Err(Error::Unsupported("allocating ahead"));
            }
            FallocateMode::PunchHole => false,
            FallocateMode::ZeroRange { keep_size } => !keep_size,
        };
        let end = offset.checked_add(len_bytes).ok_or(Error::TooLarge)?;
        if len_bytes == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let _one = locked(self.writer(id));
        self.before_change(id)?;
        self.with_file(id, |rnode| {
            let file = file(rnode)?;
            let cipher = self.cipher(rnode)?;
            let source = Source { id, cipher: cipher.as_ref() };
            if grows && end > file.block_bytes * u64::from(BLOCKS_MAX) {
                return Err(Error::TooLarge.into());
            }
            let zeroed = end.min(file.size_bytes).saturating_sub(offset);
            let mut changed = Vec::new();
            for piece in pieces(file.block_bytes, offset, zeroed) {
                let Some(old) = file.blocks.get(&piece.index) else { continue };
                let kept = old.len_bytes as usize;
                if piece.within == 0 && piece.len_bytes >= kept {
                    changed.push((piece.index, None));
                } else if piece.within < kept {
                    let zeroes = vec![0; piece.len_bytes.min(kept - piece.within)];
                    let block =
                        self.overlay(source, piece.index, Some(old), piece.within, &zeroes)?;
                    changed.push((piece.index, Some(block)));
                }
            }
            let end_bytes = if grows { end } else { 0 };
            self.replace(rnode, changed, end_bytes)
        })
    }

    pub(super) fn seek(&self, id: RnodeId, from: SeekFrom) -> Result<u64> {
        let rnode = self.get(id)?;
        let File { size_bytes, block_bytes, blocks } = file(&rnode)?;
        let (mut at, data) = match from {
            SeekFrom::Data(at) => (at, true),
            SeekFrom::Hole(at) => (at, false),
        };
        while at < size_bytes {
            let index = at / block_bytes;
            let begins = index * block_bytes;
            let block = u32::try_from(index).ok().and_then(|i| blocks.get(&i));
            let data_end = begins + block.map_or(0, |b| u64::from(b.len_bytes));
            match (data, at < data_end) {
                (true, true) | (false, false) => return Ok(at),
                (false, true) => at = data_end,
                (true, false) => {
                    // Continues at the next block that exists.
                    let behind = u32::try_from(index + 1).ok();
                    let next = behind.and_then(|i| blocks.range(i..).next());
                    at = next.map_or(size_bytes, |(i, _)| u64::from(*i) * block_bytes);
                }
            }
        }
        let asked = match from {
            SeekFrom::Data(at) | SeekFrom::Hole(at) => at,
        };
        if data || asked >= size_bytes { Err(Error::NoAddress) } else { Ok(size_bytes) }
    }
}
