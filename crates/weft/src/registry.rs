//! The formats that weft opens: one row each. A new format is added here alone.
//!
//! Making a volume is not part of a row: its options differ between formats, so
//! [`mkfs`](crate::mkfs) has a function for each.

use crate::check::{self, Checked};
use crate::format::{Format, Head};
use crate::image::Image;
use crate::info::{self, VolumeInfo};
use crate::stack::Volume;
use crate::{Options, Order, Result, ext, mac};
use std::sync::Arc;

/// An opened volume and the order of its writes.
pub(crate) type Opened = (Order, Arc<dyn Volume>);
/// A check, with or without repair.
type Check = fn(&str, &Image, &check::Options<'_>) -> Result<Checked>;

/// The functions of weft for one format. The first argument of each is the name of the volume for
/// messages.
pub(crate) struct Row {
    pub(crate) format: Format,
    /// The format in words that fit behind "it looks like".
    pub(crate) words: &'static str,
    /// Returns true if a device with this beginning holds such a volume.
    is_at: fn(&Head<'_>) -> bool,
    /// Opens a volume.
    pub(crate) open: fn(&str, &Image, &Options) -> Result<Opened>,
    /// Reads the figures of a volume, which may be in use.
    pub(crate) info: fn(&str, &Image) -> Result<VolumeInfo>,
    /// Checks a volume, and repairs it if the options say so; `None` for a format that weft only
    /// reads.
    pub(crate) check: Option<Check>,
}

/// All formats, in the order in which they are tried.
static ROWS: [Row; 5] = [
    Row {
        format: Format::Ext,
        words: "an ext2, ext3 or ext4 volume",
        // ext2.h: `s_magic` at 56 in the superblock at 1024.
        is_at: |head| head.has(1080, &[0x53, 0xef]),
        open: ext::open,
        info: info::ext,
        check: Some(check::ext),
    },
    Row {
        format: Format::HfsPlus { wrapped: true },
        words: "an HFS Plus volume in its HFS wrapper",
        // Technical Note TN1150: drEmbedSigWord at 124 in the MDB.
        is_at: |head| {
            head.be16(1024) == 0x4244
                && head.has_macintosh_blocks()
                && is_hfs_plus(head.be16(1024 + 124))
        },
        open: mac::open_hfs_plus,
        info: info::hfs_plus,
        check: Some(check::hfs),
    },
    Row {
        format: Format::Hfs,
        words: "an HFS volume",
        // Inside Macintosh: Files, chapter 2 (MDB): the name is 1 to 27 bytes long.
        is_at: |head| {
            head.be16(1024) == 0x4244
                && head.has_macintosh_blocks()
                && head.byte(1024 + 36).is_some_and(|len| (1..=27).contains(&len))
        },
        open: mac::open_hfs,
        info: info::hfs,
        check: Some(check::hfs),
    },
    Row {
        format: Format::Mfs,
        words: "an MFS volume",
        // Inside Macintosh II, page 119.
        is_at: |head| head.be16(1024) == 0xd2d7 && head.has_macintosh_blocks(),
        open: mac::open_mfs,
        info: info::mfs,
        check: Some(check::mfs),
    },
    Row {
        format: Format::HfsPlus { wrapped: false },
        words: "an HFS Plus volume",
        // Technical Note TN1150: blockSize at 40 in the volume header.
        is_at: |head| {
            let block_bytes = head.be32(1024 + 40);
            is_hfs_plus(head.be16(1024)) && block_bytes.is_power_of_two() && block_bytes >= 512
        },
        open: mac::open_hfs_plus,
        info: info::hfs_plus,
        check: None,
    },
];

/// The signatures of HFS Plus (`H+`) and HFSX (`HX`).
fn is_hfs_plus(signature: u16) -> bool {
    matches!(signature, 0x482b | 0x4858)
}

/// The format of the volume whose device begins with `head`, if it is one that weft opens.
pub(crate) fn recognise(head: &Head<'_>) -> Option<Format> {
    ROWS.iter().find(|row| (row.is_at)(head)).map(|row| row.format.clone())
}

impl Format {
    /// The row of a format that weft opens.
    pub(crate) fn row(&self) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.format == *self)
    }
}
