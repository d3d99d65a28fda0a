//! The plug itself.

use crate::{Change, Error, Result};
use std::io::IoSlice;
use std::ops::Range;

/// The unit a device writes atomically: a write is torn, if at all, at a multiple of this.
pub const SECTOR_BYTES: usize = 512;

/// The properties of a device. Fixed for its life, except `len_bytes`, which may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes.
    pub len_bytes: u64,
    /// The unit requests should be multiples of for speed, a power of two of at least 512.
    pub logical_block_bytes: u32,
    /// The unit the medium works in, a multiple of `logical_block_bytes`.
    pub physical_block_bytes: u32,
    /// Whether the device refuses writes.
    pub read_only: bool,
}

/// The content of a run of bytes, as far as it is known without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Anything.
    Data,
    /// Zeroes, for which space is set aside.
    Zero,
    /// Zeroes, for which no space is set aside: a later write may find none left.
    Hole,
}

/// A run of bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The content of the run.
    pub kind: ExtentKind,
}

impl Extent {
    /// Returns the extent from `offset` on of a device that keeps written data in a place of its own:
    /// `self` is the extent below, and `data` the first run of the device's own data that does not
    /// end before `offset`. The caller looks `data` up *before* it asks for the extent below: data
    /// that moves down in between is then in one of the two.
    #[must_use]
    pub fn under(self, offset: u64, data: Option<Range<u64>>) -> Self {
        let end = offset + self.len_bytes;
        match data.filter(|data| data.start < end && data.end > offset) {
            Some(data) if data.start <= offset => {
                Self { len_bytes: data.end.min(end) - offset, kind: ExtentKind::Data }
            }
            Some(data) => Self { len_bytes: data.start - offset, ..self },
            None => self,
        }
    }
}

/// A byte-addressed block device. See the [crate] page for what it promises.
///
/// All calls may come from many threads at once. Reads and writes are complete or fail: there are
/// no short transfers. Two concurrent requests on overlapping ranges have no defined order.
pub trait BlockDevice: Send + Sync {
    /// Length, block sizes and whether it can be written.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the end, [`Error::Io`] where the medium fails.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Fills `buf` as [`read_at`](Self::read_at) does if the content is in memory, and returns
    /// false if the call would wait for a medium: like `RWF_NOWAIT` of `preadv2(2)`. `buf` may be
    /// changed in either case. A device that cannot tell returns false, as this does by default.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        check_range("read", offset, buf.len() as u64, self.geometry().len_bytes)?;
        Ok(false)
    }

    /// Writes all of `buf` at byte `offset`. Durable only after a later [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at), and [`Error::ReadOnly`].
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()>;

    /// Writes `bufs`, one after the other, as one contiguous request at byte `offset`.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let change = Change::write(bufs, offset);
        change.check(self.geometry().len_bytes)?;
        change.apply_by_writes(|buf, at| self.write_at(buf, at))
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// [`Error::Io`]: some un-flushed write may be lost.
    fn flush(&self) -> Result<()>;

    /// Says that a range's content is no longer needed. It may read as anything afterwards.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at). A device that cannot discard does nothing.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        check_range("discard", offset, len_bytes, self.geometry().len_bytes)
    }

    /// Makes a range read as zeroes, without sending them where the device knows how.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let change = Change::zero(offset, len_bytes);
        change.check(self.geometry().len_bytes)?;
        change.apply_by_writes(|buf, at| self.write_at(buf, at))
    }

    /// Returns what is known of the bytes from `offset` on, without reading them: the first run of
    /// one kind, of at most `len_bytes` and, unless that is 0, of at least one byte. Content that the
    /// device does not know is [`ExtentKind::Data`].
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        check_range("look", offset, len_bytes, self.geometry().len_bytes)?;
        Ok(Extent { len_bytes, kind: ExtentKind::Data })
    }

    /// Reports whether [`write_zeroes`](Self::write_zeroes) takes less time than writing them.
    fn zeroes_are_fast(&self) -> bool {
        false
    }

    /// Looks whether what was written can still be there, at the cost of a system call: an image file
    /// may have been cut by another program, which no [`flush`](Self::flush) of nothing notices.
    ///
    /// # Errors
    /// [`Error::Io`], with what became of it.
    fn check_whole(&self) -> Result<()> {
        Ok(())
    }
}

/// Refuses a request that reaches past the end of a device of `device_bytes`.
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn check_range(op: &'static str, offset: u64, len_bytes: u64, device_bytes: u64) -> Result<()> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= device_bytes => Ok(()),
        _ => Err(Error::OutOfRange { op, offset, len_bytes, device_bytes }),
    }
}
