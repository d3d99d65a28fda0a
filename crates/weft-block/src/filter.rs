//! A device on top of another, which states only what it changes.

use crate::{BlockDevice, Change, Extent, Geometry, Result};
use std::io::IoSlice;
use std::sync::Arc;

/// A device on top of another: every call that it does not define goes to the device below,
/// unchanged. Whatever implements this trait is a [`BlockDevice`].
///
/// # Calls that belong together
///
/// The four calls that change content are one here, [`filter_change`](Self::filter_change): a filter
/// that counts, delays, moves or refuses writes cannot be bypassed by zeroes, a discard or a
/// vectored write. The others are forwarded one by one. A filter that defines one of them has to
/// look at those beside it:
///
/// | call | goes with |
/// |---|---|
/// | `filter_read` | `filter_extent`: what is said to be zeroes must read as zeroes |
/// | `filter_change` | `filter_read` and `filter_extent` if it keeps or moves what is written, and then `filter_flush` |
/// | | `filter_zeroes_are_fast` if it writes zeroes as other bytes are written |
/// | `filter_geometry` | `filter_read`, `filter_change` and `filter_extent` if it changes the length; `filter_change` if it says that the device is read-only |
///
/// [`conformance::run_filter`](crate::conformance::run_filter) finds filters that do not.
///
/// # Names
///
/// The calls have other names than those of [`BlockDevice`], as every filter has both: a call of
/// `read_at` where both traits are imported would be ambiguous.
///
/// ```
/// use weft_block::{BlockDevice, Change, Filter, MemoryDevice, Result};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// Counts the bytes that are changed.
/// struct Counted<D>(D, AtomicU64);
///
/// impl<D: BlockDevice> Filter for Counted<D> {
///     type Below = D;
///
///     fn below(&self) -> &D {
///         &self.0
///     }
///
///     fn filter_change(&self, change: Change<'_>) -> Result<()> {
///         self.1.fetch_add(change.len_bytes, Ordering::Relaxed);
///         change.apply(&self.0)
///     }
/// }
///
/// let device = Counted(MemoryDevice::new(1 << 20), AtomicU64::new(0));
/// device.write_at(b"some", 0)?;
/// device.write_zeroes(4096, 4096)?;
/// assert_eq!(device.1.into_inner(), 4100);
/// # Ok::<(), weft_block::Error>(())
/// ```
pub trait Filter: Send + Sync {
    /// The device below.
    type Below: BlockDevice + ?Sized;

    /// Returns the device below.
    fn below(&self) -> &Self::Below;

    /// [`BlockDevice::geometry`]; forwarded by default.
    fn filter_geometry(&self) -> Geometry {
        self.below().geometry()
    }

    /// [`BlockDevice::read_at`]; forwarded by default.
    ///
    /// # Errors
    /// As there.
    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below().read_at(buf, offset)
    }

    /// [`BlockDevice::read_at_nowait`]. *Not* forwarded: a filter may change what is read, or wait.
    /// By default it would wait.
    ///
    /// # Errors
    /// As there.
    fn filter_read_nowait(&self, _buf: &mut [u8], _offset: u64) -> Result<bool> {
        Ok(false)
    }

    /// Every call that changes content: [`BlockDevice::write_at`],
    /// [`write_vectored_at`](BlockDevice::write_vectored_at),
    /// [`write_zeroes`](BlockDevice::write_zeroes) and [`discard`](BlockDevice::discard). Forwarded
    /// by default, as the call that it is.
    ///
    /// # Errors
    /// As there.
    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        change.apply(self.below())
    }

    /// [`BlockDevice::flush`]; forwarded by default.
    ///
    /// # Errors
    /// As there.
    fn filter_flush(&self) -> Result<()> {
        self.below().flush()
    }

    /// [`BlockDevice::extent_at`]; forwarded by default.
    ///
    /// # Errors
    /// As there.
    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.below().extent_at(offset, len_bytes)
    }

    /// [`BlockDevice::zeroes_are_fast`]; forwarded by default.
    fn filter_zeroes_are_fast(&self) -> bool {
        self.below().zeroes_are_fast()
    }

    /// [`BlockDevice::check_whole`]; forwarded by default.
    ///
    /// # Errors
    /// As there.
    fn filter_check_whole(&self) -> Result<()> {
        self.below().check_whole()
    }
}

#[deny(clippy::missing_trait_methods, reason = "a default would not reach below")]
#[diagnostic::do_not_recommend]
impl<F: Filter> BlockDevice for F {
    fn geometry(&self) -> Geometry {
        self.filter_geometry()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.filter_read(buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.filter_read_nowait(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.filter_change(Change::write(&[IoSlice::new(buf)], offset))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.filter_change(Change::write(bufs, offset))
    }

    fn flush(&self) -> Result<()> {
        self.filter_flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.filter_change(Change::discard(offset, len_bytes))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.filter_change(Change::zero(offset, len_bytes))
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.filter_extent(offset, len_bytes)
    }

    fn zeroes_are_fast(&self) -> bool {
        self.filter_zeroes_are_fast()
    }

    fn check_whole(&self) -> Result<()> {
        self.filter_check_whole()
    }
}

/// A pointer to a device changes nothing.
impl<D: BlockDevice + ?Sized> Filter for &D {
    type Below = D;

    fn below(&self) -> &D {
        self
    }

    fn filter_read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        (**self).read_at_nowait(buf, offset)
    }
}

/// A pointer to a device changes nothing.
impl<D: BlockDevice + ?Sized> Filter for Arc<D> {
    type Below = D;

    fn below(&self) -> &D {
        self
    }

    fn filter_read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        (**self).read_at_nowait(buf, offset)
    }
}
