//! The interface of the core to the platform: a [`Store`] of 512-byte blocks whose changes can be
//! ordered.
//!
//! With feature `std` the store is an operation of weft's engine, which keeps the order over power
//! cuts. [`Bare`] is any [`Device`], for a platform without the engine: it writes through, in the
//! order of the calls, an order that satisfies all befores.

use crate::Result;
use crate::layout::BLOCK_BYTES;
use core::fmt::Debug;

/// Blocks of a volume, of 512 bytes each, and changes of them.
///
/// A change takes its *befores*, changes that must be durable first, and is named by the
/// [`Patch`](Self::Patch) it returns.
pub trait Store {
    /// An identifier of a change.
    type Patch: Copy + PartialEq + Debug;

    /// The change that has always been durable.
    const DURABLE: Self::Patch;

    /// Returns true if all changes of one operation become durable together.
    fn is_atomic(&self) -> bool;

    /// Returns the content of a block of metadata.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn read(&mut self, block: u64) -> Result<&[u8]>;

    /// Changes bytes of a block of metadata.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn write(
        &mut self,
        block: u64,
        offset: usize,
        bytes: &[u8],
        befores: &[Self::Patch],
    ) -> Result<Self::Patch>;

    /// Replaces the whole content of a block of metadata.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn init(
        &mut self,
        block: u64,
        content: &[u8; BLOCK_BYTES],
        befores: &[Self::Patch],
    ) -> Result<Self::Patch>;

    /// Writes data of file `owner` from byte `offset` of `block` on, over as many blocks as the
    /// data needs. In `fresh` blocks the bytes outside `bytes` become zero.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn write_data(
        &mut self,
        block: u64,
        owner: u32,
        offset: usize,
        bytes: &[u8],
        fresh: bool,
    ) -> Result<Self::Patch>;

    /// Returns true if `count` fresh blocks of file `owner` are too many to be zeroed by an
    /// operation: the device is zeroed before it, as far as [`zeroed_part`](Self::zeroed_part).
    fn zeroes_before(&self, owner: u32, count: u64) -> bool;

    /// Returns the part of `count` fresh blocks from `block` on, first block and number, that can
    /// be zeroed on the device: changes of the others are changes of blocks that others share.
    fn zeroed_part(&self, block: u64, count: u64) -> (u64, u64);

    /// Fills `count` fresh blocks of file `owner` with zeroes.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn zero_data(&mut self, block: u64, owner: u32, count: u64) -> Result<Self::Patch>;

    /// Reads file data from byte `offset` of `block` on, over as many blocks as `buf` needs.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn read_data(&mut self, block: u64, offset: usize, buf: &mut [u8]) -> Result<()>;

    /// Records that `cleared` removed the last pointer to `count` blocks.
    fn free(&mut self, block: u64, count: u64, cleared: Self::Patch);

    /// Keeps `count` freed allocation blocks from `start` on until `cleared`, which freed them, is
    /// durable: until [`pop_freed`](Self::pop_freed) returns them.
    fn keep_freed(&mut self, start: u32, count: u32, cleared: Self::Patch);

    /// Removes and returns the kept allocation blocks that were freed first, if their freeing is
    /// durable: the first one and their number.
    fn pop_freed(&mut self) -> Option<(u32, u32)>;

    /// Returns a change that is durable when all of `patches` are.
    fn join(&mut self, patches: &[Self::Patch]) -> Result<Self::Patch>;

    /// Returns true if a change is durable.
    fn is_durable(&self, patch: Self::Patch) -> bool;
}

/// A device of bytes, for a platform without the engine.
pub trait Device {
    /// Returns the length of the device in 512-byte blocks.
    fn len_blocks(&self) -> u64;

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes `bytes` at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Makes a range of bytes read as zeroes.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        let zeroes = [0; 4096];
        let mut done = 0;
        while done < len_bytes {
            let n = (len_bytes - done).min(zeroes.len() as u64);
            let piece = zeroes.get(..usize::try_from(n).unwrap_or(0)).unwrap_or(&zeroes);
            self.write_at(piece, offset.saturating_add(done))?;
            done += n;
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn flush(&mut self) -> Result<()>;
}

/// A [`Device`] as a [`Store`]: every change is written at once.
#[derive(Debug)]
pub struct Bare<D> {
    device: D,
    block: [u8; BLOCK_BYTES],
}

const BLOCK: u64 = BLOCK_BYTES as u64;

impl<D: Device> Bare<D> {
    /// Makes a store on a device.
    pub fn new(device: D) -> Self {
        Self { device, block: [0; BLOCK_BYTES] }
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn flush(&mut self) -> Result<()> {
        self.device.flush()
    }

    /// Returns the device and drops the store.
    pub fn into_device(self) -> D {
        self.device
    }
}

impl<D: Device> Store for Bare<D> {
    type Patch = ();

    const DURABLE: () = ();

    fn is_atomic(&self) -> bool {
        false
    }

    fn read(&mut self, block: u64) -> Result<&[u8]> {
        self.device.read_at(&mut self.block, block.saturating_mul(BLOCK))?;
        Ok(&self.block)
    }

    fn write(&mut self, block: u64, offset: usize, bytes: &[u8], _befores: &[()]) -> Result<()> {
        self.device.write_at(bytes, block.saturating_mul(BLOCK) + offset as u64)
    }

    fn init(&mut self, block: u64, content: &[u8; BLOCK_BYTES], _befores: &[()]) -> Result<()> {
        self.device.write_at(content, block.saturating_mul(BLOCK))
    }

    fn write_data(
        &mut self,
        block: u64,
        _owner: u32,
        offset: usize,
        bytes: &[u8],
        fresh: bool,
    ) -> Result<()> {
        let start = block.saturating_mul(BLOCK) + offset as u64;
        let end = start + bytes.len() as u64;
        if fresh {
            let zeroes = [0; BLOCK_BYTES];
            self.device.write_at(
                zeroes.get(..offset % BLOCK_BYTES).unwrap_or(&[]),
                start - start % BLOCK,
            )?;
            let rest = usize::try_from(end.next_multiple_of(BLOCK) - end).unwrap_or(0);
            self.device.write_at(zeroes.get(..rest).unwrap_or(&[]), end)?;
        }
        self.device.write_at(bytes, start)
    }

    fn zeroes_before(&self, _owner: u32, _count: u64) -> bool {
        false
    }

    fn zeroed_part(&self, block: u64, count: u64) -> (u64, u64) {
        (block, count)
    }

    fn zero_data(&mut self, block: u64, _owner: u32, count: u64) -> Result<()> {
        self.device.write_zeroes(block.saturating_mul(BLOCK), count.saturating_mul(BLOCK))
    }

    fn read_data(&mut self, block: u64, offset: usize, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(buf, block.saturating_mul(BLOCK) + offset as u64)
    }

    fn free(&mut self, _block: u64, _count: u64, _cleared: ()) {}

    // Every change is durable: nothing is kept.
    fn keep_freed(&mut self, _start: u32, _count: u32, _cleared: ()) {}

    fn pop_freed(&mut self) -> Option<(u32, u32)> {
        None
    }

    fn join(&mut self, _patches: &[()]) -> Result<()> {
        Ok(())
    }

    fn is_durable(&self, _patch: ()) -> bool {
        true
    }
}

/// A device of weft as a device of the core.
#[cfg(feature = "std")]
pub(crate) struct Raw<'d>(pub &'d dyn weft_block::BlockDevice);

#[cfg(feature = "std")]
impl Device for Raw<'_> {
    fn len_blocks(&self) -> u64 {
        self.0.geometry().len_bytes / BLOCK_BYTES as u64
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset).map_err(|e| device_error(&e))
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.0.write_at(bytes, offset).map_err(|e| device_error(&e))
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        self.0.write_zeroes(offset, len_bytes).map_err(|e| device_error(&e))
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(|e| device_error(&e))
    }
}

#[cfg(feature = "std")]
pub(crate) fn device_error(e: &weft_block::Error) -> crate::Error {
    crate::Error::Device { errno: e.errno(), message: e.to_string() }
}
