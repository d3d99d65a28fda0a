//! Makes ext2 and ext3 volumes, with the useful options of mke2fs and its choices of layout.
//!
//! # Invariants
//!
//! - The volume is made before it is named: the primary superblock is cleared first and written
//!   last, each apart from the rest by a flush, so that a half-made volume is never taken for one.
//! - Uuid and time are asked of the system in one place if not given; with both given the same
//!   options make the same bytes.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weft_block::MemoryDevice;
//! use weft_ext2::mkfs::{MkfsOptions, mkfs};
//!
//! let device = MemoryDevice::new(8 << 20);
//! let report = mkfs(&device, &MkfsOptions { label: b"backup".to_vec(), ..MkfsOptions::ext2() })?;
//! assert_eq!(report.block_bytes, 1024);
//! # Ok(())
//! # }
//! ```

mod build;
mod journal_device;
mod options;
mod plan;
mod report;
mod resize;
mod space;
mod writer;

pub use journal_device::{JournalDeviceOptions, format_journal_device};
pub use options::{Journal, MkfsOptions, Revision};
pub use report::Report;
pub(crate) use resize::rewrite as rewrite_resize_inode;

use crate::Result;
use weft_block::BlockDevice;

/// Makes a volume on `device`. The old content is lost.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for options that contradict each other or do not fit
/// the device (nothing was written then); device errors.
pub fn mkfs(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Report> {
    let plan = plan::Plan::new(device.geometry().len_bytes, options)?;
    build::build(device, &plan, options)
}
