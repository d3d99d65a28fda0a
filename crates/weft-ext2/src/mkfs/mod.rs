//! Makes ext2 and ext3 volumes, with the useful options of mke2fs and its choices of layout.
//!
//! # Invariants
//!
//! - The volume is made before it is named: the primary superblock is cleared first and written
//!   last, each apart from the rest by a flush, so that a half-made volume is never taken for one.
//! - What is not given (uuid, time) is asked of the system in one place; with both given the same
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
mod resize;
mod space;

pub use journal_device::{JournalDeviceOptions, format_journal_device};
pub use options::{Journal, MkfsOptions, Revision};

use crate::Result;
use crate::layout::{DIRECT_SLOTS, Geometry, Inode, SLOT_DOUBLE, SLOT_INDIRECT, SLOT_TRIPLE};
use smallvec::SmallVec;
use weft_block::BlockDevice;

/// The volume that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u32,
    /// Blocks free for files.
    pub free_blocks: u32,
    /// Blocks only root may take.
    pub reserved_blocks: u32,
    /// Inodes of the volume.
    pub inodes: u32,
    /// Inodes free for files.
    pub free_inodes: u32,
    /// Size of an inode in bytes.
    pub inode_bytes: u32,
    /// Block groups.
    pub groups: u32,
    /// Length of the journal inside the volume, in blocks; 0 if there is none.
    pub journal_blocks: u32,
    /// The volume's uuid.
    pub uuid: [u8; 16],
    /// Names of the features.
    pub features: Vec<String>,
}

/// Makes a volume on `device`. What was there is lost.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for options that contradict each other or do not fit
/// the device (nothing was written then); device errors.
pub fn mkfs(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Report> {
    let plan = plan::Plan::new(device.geometry().len_bytes, options)?;
    build::build(device, &plan, options)
}

/// The way from an inode to block `i` of its file, with `pointers` to an indirect block: the slot
/// of the inode, and the index in each table from there on. `None` past what a file can have.
pub(crate) fn map_path(i: u64, pointers: u64) -> Option<(usize, SmallVec<[usize; 3]>)> {
    let n = |v: u64| usize::try_from(v).unwrap_or(usize::MAX);
    let direct = DIRECT_SLOTS as u64;
    if i < direct {
        return Some((n(i), SmallVec::new()));
    }
    let i = i - direct;
    if i < pointers {
        return Some((SLOT_INDIRECT, SmallVec::from_slice(&[n(i)])));
    }
    let i = i - pointers;
    if i < pointers * pointers {
        return Some((SLOT_DOUBLE, SmallVec::from_slice(&[n(i / pointers), n(i % pointers)])));
    }
    let i = i - pointers * pointers;
    (i < pointers * pointers * pointers).then(|| {
        let path = [n(i / pointers / pointers), n(i / pointers % pointers), n(i % pointers)];
        (SLOT_TRIPLE, SmallVec::from_slice(&path))
    })
}

/// Writes the resize inode's map anew, for a repair; returns the inode. `double` is a free block.
pub(crate) fn rewrite_resize_inode(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    double: u64,
    time: u32,
) -> Result<Inode> {
    resize::write(&build::Writer::new(device, geometry, time), geometry, double)
}
