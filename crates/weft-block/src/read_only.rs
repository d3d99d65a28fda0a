//! A device that refuses every change.

use crate::{BlockDevice, Change, Error, Filter, Geometry, Result};

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

impl<D: BlockDevice> Filter for ReadOnly<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.inner.geometry() }
    }

    fn filter_read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.inner.read_at_nowait(buf, offset)
    }

    fn filter_change(&self, _: Change<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn filter_flush(&self) -> Result<()> {
        Ok(())
    }
}
