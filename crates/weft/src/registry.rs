//! The formats that weft opens: one row each. A new format is added here, and its marks to
//! [`format`](crate::format).
//!
//! Making a volume is not part of a row: its options differ between formats, so
//! [`mkfs`](crate::mkfs) has a function for each.

use crate::check_volume::{self, Checked};
use crate::format::Format;
use crate::image::{self, Image};
use crate::info::{self, VolumeInfo};
use crate::open::{Opened, Options};
use crate::source::open_source;
use crate::{Result, ext, mac};
use weft_block::OpenMode;

/// A check, with or without repair.
type Check = fn(&str, &Image, &check_volume::Options<'_>) -> Result<Checked>;

/// The functions of weft for one format. The first argument of each is the name of the volume for
/// messages.
pub(crate) struct Row {
    format: Format,
    /// Opens a volume.
    pub(crate) open: fn(&str, &Image, &Options) -> Result<Opened>,
    /// Reads the figures of a volume, which may be in use.
    info: fn(&str, &Image) -> Result<VolumeInfo>,
    /// Checks a volume, and repairs it if the options say so; `None` for a format that weft only
    /// reads.
    pub(crate) check: Option<Check>,
}

/// All formats.
static ROWS: [Row; 5] = [
    Row { format: Format::Ext, open: ext::open, info: info::ext, check: Some(check_volume::ext) },
    Row {
        format: Format::HfsPlus { wrapped: true },
        open: mac::open_hfs_plus,
        info: info::hfs_plus,
        check: Some(check_volume::hfs),
    },
    Row {
        format: Format::Hfs,
        open: mac::open_hfs,
        info: info::hfs,
        check: Some(check_volume::hfs),
    },
    Row {
        format: Format::Mfs,
        open: mac::open_mfs,
        info: info::mfs,
        check: Some(check_volume::mfs),
    },
    Row {
        format: Format::HfsPlus { wrapped: false },
        open: mac::open_hfs_plus,
        info: info::hfs_plus,
        check: None,
    },
];

/// The row of the format in `image`, if weft opens it.
pub(crate) fn row(image: &Image) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.format == image.format)
}

/// The row of the format in `image`, which is called `source` in the error for any other.
pub(crate) fn row_of(source: &str, image: &Image) -> Result<&'static Row> {
    row(image).ok_or_else(|| image.format.clone().refused(source))
}

/// Reads the figures of the volume in `source`, without a lock, so that it may be mounted.
///
/// # Errors
/// [`Error::Unrecognised`](crate::Error::Unrecognised), [`Error::Volume`](crate::Error::Volume) for
/// a damaged superblock, [`Error::Block`](crate::Error::Block).
pub fn info(source: &str) -> Result<VolumeInfo> {
    let image = image::unwrap(source, open_source(source, OpenMode::PEEK)?)?;
    (row_of(source, &image)?.info)(source, &image)
}
