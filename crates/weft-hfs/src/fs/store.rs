//! The core's store over the engine, and its device over weft's.

use crate::layout::{BLOCK_BYTES, CATALOG_ID, EXTENTS_ID};
use crate::store::{Store, device_error};
use crate::{Error, Result};
use smallvec::SmallVec;
use weft_block::BlockDevice;
use weft_patch::{BlockNr, Engine, Op, Owner, PatchId, Pending, Policy};

/// From this number on, fresh blocks are zeroed on the device before the operation, past the cache.
const ZERO_BLOCKS: u64 = 2048;

/// An operation of the engine as a store of 512-byte blocks.
///
/// Without a journal a block of the engine is one of the volume, so that its writes are atomic. A
/// journal has blocks of 1024 bytes at least.
pub(super) struct OpStore<'a, 'e> {
    op: &'a mut Op<'e>,
    engine: &'e Engine,
    device: &'e dyn BlockDevice,
    /// Freed allocation blocks whose freeing may not be durable.
    pending: &'a mut Pending,
    /// The number of the volume's blocks in one of the engine's.
    per: u64,
    atomic: bool,
    /// The first block of the allocation blocks, and the number of blocks of each.
    geometry: (u64, u64),
    /// No change waits for the data of files.
    loose_data: bool,
}

impl<'a, 'e> OpStore<'a, 'e> {
    pub fn new(
        op: &'a mut Op<'e>,
        engine: &'e Engine,
        device: &'e dyn BlockDevice,
        pending: &'a mut Pending,
        geometry: (u64, u64),
    ) -> Self {
        let per = u64::from(engine.block_bytes()) / BLOCK_BYTES as u64;
        let atomic = matches!(engine.policy(), Policy::Journal(_));
        Self { op, engine, device, pending, per, atomic, geometry, loose_data: false }
    }

    /// Makes no change wait for the data of files. A sync of a file still writes its data: the file
    /// owns the blocks.
    pub fn with_loose_data(mut self) -> Self {
        self.loose_data = true;
        self
    }

    /// Returns the engine's block that holds a block of the volume, and the byte offset in it.
    fn place(&self, block: u64) -> (BlockNr, usize) {
        let within = usize::try_from(block % self.per).unwrap_or(0);
        (BlockNr(block / self.per), within * BLOCK_BYTES)
    }

    /// Returns true if a block of the engine lies within one allocation block. Any other may hold
    /// both data and metadata; it is journaled whole then, as a block is either data or metadata.
    fn is_pure(&self, nr: BlockNr) -> bool {
        let (first_block, per_alloc) = self.geometry;
        let (from, to) = (nr.0 * self.per, (nr.0 + 1) * self.per - 1);
        let alloc =
            |block: u64| block.checked_sub(first_block).and_then(|b| b.checked_div(per_alloc));
        self.per == 1 || (alloc(from).is_some() && alloc(from) == alloc(to))
    }

    fn engine_bytes(&self) -> usize {
        self.engine.block_bytes() as usize
    }
}

pub(super) fn engine_error(e: &weft_patch::Error) -> Error {
    match e {
        weft_patch::Error::ReadOnly => Error::ReadOnly,
        weft_patch::Error::NotInMemory { .. } => Error::NotInMemory,
        e => Error::Device { errno: e.errno(), message: e.to_string() },
    }
}

impl Store for OpStore<'_, '_> {
    type Patch = PatchId;

    const DURABLE: PatchId = PatchId::DURABLE;

    fn is_atomic(&self) -> bool {
        self.atomic
    }

    fn read(&mut self, block: u64) -> Result<&[u8]> {
        let (nr, at) = self.place(block);
        let raw = self.op.read(nr).map_err(|e| engine_error(&e))?;
        Ok(raw.get(at..at + BLOCK_BYTES).unwrap_or(&[]))
    }

    fn write(
        &mut self,
        block: u64,
        offset: usize,
        bytes: &[u8],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, at) = self.place(block);
        // A change within a node or a bitmap depends on the rest of its block.
        let block = at..at + BLOCK_BYTES;
        let written = self.op.write_relying(nr, at + offset, bytes, &[block], befores);
        written.map_err(|e| engine_error(&e))
    }

    fn init(
        &mut self,
        block: u64,
        content: &[u8; BLOCK_BYTES],
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, at) = self.place(block);
        if self.per == 1 {
            self.op.init(nr, content, befores)
        } else {
            let block = at..at + BLOCK_BYTES;
            self.op.write_relying(nr, at, content, &[block], befores)
        }
        .map_err(|e| engine_error(&e))
    }

    fn write_data(
        &mut self,
        block: u64,
        owner: u32,
        offset: usize,
        bytes: &[u8],
        fresh: bool,
    ) -> Result<PatchId> {
        let padded: Vec<u8>;
        let (mut rest, start, fresh) = if fresh && self.per > 1 {
            // Half of a block of the engine may belong to another file: the zeroes are written
            // explicitly.
            let len = (offset + bytes.len()).next_multiple_of(BLOCK_BYTES);
            let mut all = vec![0; len];
            crate::layout::put(&mut all, offset, bytes);
            padded = all;
            (padded.as_slice(), 0, false)
        } else {
            (bytes, offset, fresh)
        };
        let owner = Owner(u64::from(owner));
        let (mut nr, at) = self.place(block + (start / BLOCK_BYTES) as u64);
        let mut at = at + start % BLOCK_BYTES;
        let mut patches: SmallVec<[PatchId; 4]> = SmallVec::new();
        while !rest.is_empty() {
            let n = (self.engine_bytes() - at).min(rest.len());
            let (now, later) = rest.split_at(n);
            let patch = if self.is_pure(nr) {
                self.op.write_data(nr, owner, at, now, fresh, &[])
            } else {
                let own = at..at + now.len();
                self.op.write_relying(nr, at, now, &[own], &[])
            }
            .map_err(|e| engine_error(&e))?;
            if patches.last() != Some(&patch) {
                patches.push(patch);
            }
            (rest, nr, at) = (later, BlockNr(nr.0 + 1), 0);
        }
        let tree = [EXTENTS_ID, CATALOG_ID].map(|id| Owner(u64::from(id))).contains(&owner);
        if self.loose_data && !tree {
            return Ok(PatchId::DURABLE);
        }
        self.join(&patches)
    }

    fn zeroes_before(&self, owner: u32, count: u64) -> bool {
        // Under a journal the nodes of a tree would all go through the log.
        let tree = matches!(owner, EXTENTS_ID | CATALOG_ID);
        count >= ZERO_BLOCKS || (self.atomic && tree)
    }

    fn zeroed_part(&self, block: u64, count: u64) -> (u64, u64) {
        let (mut first, mut end) = (block, block + count);
        while first < end && !self.is_pure(self.place(first).0) {
            first += 1;
        }
        while first < end && !self.is_pure(self.place(end - 1).0) {
            end -= 1;
        }
        (first, end - first)
    }

    fn zero_data(&mut self, block: u64, owner: u32, count: u64) -> Result<PatchId> {
        static CHUNK: [u8; 64 * BLOCK_BYTES] = [0; 64 * BLOCK_BYTES];
        let mut patches: SmallVec<[PatchId; 4]> = SmallVec::new();
        let mut done = 0;
        while done < count {
            let n = (count - done).min(64);
            let bytes = CHUNK.get(..usize::try_from(n).unwrap_or(64) * BLOCK_BYTES);
            patches.push(self.write_data(block + done, owner, 0, bytes.unwrap_or(&CHUNK), true)?);
            done += n;
        }
        patches.dedup();
        self.join(&patches)
    }

    fn read_data(&mut self, block: u64, offset: usize, buf: &mut [u8]) -> Result<()> {
        let mut misses = Misses::new();
        self.read_cached(block, offset, buf, 0, &mut misses);
        let size = self.engine_bytes() as u64;
        let blocks = misses.iter().flat_map(|miss| {
            let end = (miss.byte + miss.len as u64).div_ceil(size);
            (miss.byte / size..end).map(BlockNr)
        });
        self.op.want(blocks).map_err(|e| engine_error(&e))?;
        read_misses(self.device, &misses, buf)
    }

    fn free(&mut self, block: u64, count: u64, cleared: PatchId) {
        for nr in block.div_ceil(self.per)..(block + count) / self.per {
            self.op.free(BlockNr(nr), cleared);
        }
    }

    fn keep_freed(&mut self, start: u32, count: u32, cleared: PatchId) {
        self.pending.add(start.into(), count.into(), cleared);
    }

    fn pop_freed(&mut self) -> Option<(u32, u32)> {
        let (start, count) = self.pending.pop_durable(self.op)?;
        // Both were added as such.
        Some((u32::try_from(start).ok()?, u32::try_from(count).ok()?))
    }

    fn join(&mut self, patches: &[PatchId]) -> Result<PatchId> {
        let mut all: SmallVec<[PatchId; 8]> = SmallVec::new();
        for &patch in patches {
            if !all.contains(&patch) && !self.is_durable(patch) {
                all.push(patch);
            }
        }
        match all.as_slice() {
            [] => Ok(PatchId::DURABLE),
            [one] => Ok(*one),
            many => self.op.join(many).map_err(|e| engine_error(&e)),
        }
    }

    fn is_durable(&self, patch: PatchId) -> bool {
        patch == PatchId::DURABLE || self.op.is_durable(patch)
    }
}

impl OpStore<'_, '_> {
    /// Reads file data as [`read_data`](Store::read_data) does, as far as it is in the cache. Adds
    /// the other parts to `misses`, where `buf` begins at byte `start` of the caller's buffer.
    pub fn read_cached(
        &self,
        block: u64,
        offset: usize,
        buf: &mut [u8],
        start: usize,
        misses: &mut Misses,
    ) {
        let (nr, at) = self.place(block + (offset / BLOCK_BYTES) as u64);
        let size = self.engine_bytes();
        let first = nr.0 * size as u64 + (at + offset % BLOCK_BYTES) as u64;
        let mut done = 0;
        while done < buf.len() {
            let byte = first + done as u64;
            let within = usize::try_from(byte % size as u64).unwrap_or(0);
            let len = (size - within).min(buf.len() - done);
            if let Some(content) = self.op.cached(BlockNr(byte / size as u64)) {
                if let (Some(to), Some(from)) =
                    (buf.get_mut(done..done + len), content.get(within..within + len))
                {
                    to.copy_from_slice(from);
                }
            } else {
                match misses.last_mut() {
                    // Blocks that follow each other are read at once.
                    Some(last)
                        if last.byte + last.len as u64 == byte
                            && last.at + last.len == start + done =>
                    {
                        last.len += len;
                    }
                    _ => misses.push(Miss { byte, at: start + done, len }),
                }
            }
            done += len;
        }
    }
}

/// A part of a read that is not in the cache.
#[derive(Debug)]
pub(super) struct Miss {
    /// Its first byte on the device.
    byte: u64,
    /// The place in the caller's buffer, and the number of bytes.
    at: usize,
    len: usize,
}

/// The parts of a read that are not in the cache.
pub(super) type Misses = SmallVec<[Miss; 4]>;

/// Reads the parts of a read that were not in the cache.
pub(super) fn read_misses(device: &dyn BlockDevice, misses: &Misses, buf: &mut [u8]) -> Result<()> {
    for miss in misses {
        let Some(part) = buf.get_mut(miss.at..miss.at + miss.len) else { continue };
        device.read_at(part, miss.byte).map_err(|e| device_error(&e))?;
    }
    Ok(())
}
