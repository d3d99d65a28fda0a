//! Checks and repairs a volume that is not in use.

use crate::format::{Format, recognise};
use crate::source::open_source;
use crate::{Error, Result};
use weft_block::OpenMode;
use weft_ext2::fsck;

pub use weft_ext2::fsck::{Options, Problem, Progress, Repair, Report, Severity};

/// Checks the volume in `source`, and repairs it if the options say so.
///
/// # Errors
/// What makes a check impossible: no such source, one in use, no volume on it, an I/O error.
pub fn check(source: &str, options: &Options<'_>) -> Result<Report> {
    let mode = if options.repair.is_some() { OpenMode::READ_WRITE } else { OpenMode::READ_ONLY };
    let device = open_source(source, mode)?;
    fsck::check(&*device, options).map_err(|e| match e {
        // Not even a backup of its superblock: what is it then?
        weft_ext2::Error::NotExt2 { .. } => match recognise(&*device) {
            Ok(Format::Ext) | Err(_) => {
                Error::Volume { image: source.to_owned(), message: e.to_string() }
            }
            Ok(other) => other.refused(source),
        },
        weft_ext2::Error::Device(e) => Error::Block(e),
        e => Error::Volume { image: source.to_owned(), message: e.to_string() },
    })
}
