//! A device that refuses every change.

use crate::{BlockDevice, Error, Extent, Geometry, Result};

/// Another device, for reading only: a part above may be trusted not to write, this makes sure.
#[derive(Debug)]
pub struct ReadOnly<D> {
    inner: D,
}

impl<D: BlockDevice> ReadOnly<D> {
    /// Wraps `inner`.
    pub fn new(inner: D) -> Self {
        Self { inner }
    }
}

impl<D: BlockDevice> BlockDevice for ReadOnly<D> {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.inner.geometry() }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.inner.extent_at(offset, len_bytes)
    }
}
