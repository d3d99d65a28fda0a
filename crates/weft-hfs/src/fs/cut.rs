//! A truncated image: it ends before its volume does, and is read up to its end.

use crate::layout::{BLOCK_BYTES, MDB_BLOCK, Mdb};
use std::io;
use std::sync::Arc;
use weft_block::{
    BlockDevice, Change, Error, Extent, ExtentKind, Filter, Geometry, Result, check_range,
};

/// A device as long as the volume on it: reads past the end of the image fail.
pub(super) struct CutDevice {
    image: Arc<dyn BlockDevice>,
    len_bytes: u64,
}

impl CutDevice {
    /// The device, if the MDB on it tells of a longer volume.
    pub fn around(image: &Arc<dyn BlockDevice>) -> Option<Self> {
        let mut raw = [0; BLOCK_BYTES];
        image.read_at(&mut raw, MDB_BLOCK * BLOCK_BYTES as u64).ok()?;
        let mdb = Mdb::parse(&raw).ok()?;
        let len_bytes = mdb.least_blocks().checked_mul(BLOCK_BYTES as u64)?;
        let sound = mdb.check(mdb.least_blocks()).is_ok();
        // Where only the copy of the MDB is missing, nothing of the volume is.
        let cut = mdb.end_block() > image.geometry().len_bytes / BLOCK_BYTES as u64;
        (sound && cut).then(|| Self { image: Arc::clone(image), len_bytes })
    }

    /// Describes the problem.
    pub fn problem(&self) -> String {
        let (there, least) = (self.image.geometry().len_bytes, self.len_bytes);
        format!(
            "the image is truncated: it ends after {there} bytes, its volume has at least {least}"
        )
    }
}

impl Filter for CutDevice {
    type Below = Arc<dyn BlockDevice>;

    fn below(&self) -> &Self::Below {
        &self.image
    }

    fn filter_geometry(&self) -> Geometry {
        Geometry { len_bytes: self.len_bytes, read_only: true, ..self.image.geometry() }
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let there = self.image.geometry().len_bytes;
        let len_bytes = buf.len() as u64;
        if offset.checked_add(len_bytes).is_none_or(|end| end > there) {
            let source =
                io::Error::other(format!("the image is truncated: it ends at byte {there}"));
            return Err(Error::Io { op: "read", offset, len_bytes, source });
        }
        self.image.read_at(buf, offset)
    }

    fn filter_change(&self, _: Change<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn filter_flush(&self) -> Result<()> {
        Ok(())
    }

    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        check_range("look", offset, len_bytes, self.len_bytes)?;
        match self.image.geometry().len_bytes.saturating_sub(offset).min(len_bytes) {
            0 => Ok(Extent { len_bytes, kind: ExtentKind::Data }),
            there => self.image.extent_at(offset, there),
        }
    }
}
