//! Checks and repairs a volume that is not in use.

use crate::check_volume::{ext, hfs};
use crate::format::Format;
use crate::image::{self, Image};
use crate::source::open_source;
use crate::{Error, Result, registry};
use weft_block::{BlockDevice, OpenMode};

pub use crate::check_volume::{Checked, Found, MacReport};
pub use weft_ext2::fsck::{JournalFix, Options, Problem, Progress, Repair, Report, Severity};

/// Checks the volume in `source`, and repairs it if the options say so.
///
/// # Errors
/// Conditions that make a check impossible: no such source, one in use, no volume on it, an I/O
/// error.
pub fn check(source: &str, options: &Options<'_>) -> Result<Checked> {
    let mode = if options.repair.is_some() { OpenMode::READ_WRITE } else { OpenMode::READ_ONLY };
    let image = image::unwrap(source, open_source(source, mode)?)?;
    let wrong = image.verify();
    let checked = match registry::row(&image) {
        Some(row) => match row.check {
            Some(check) => check(source, &image, options),
            None => Err(not_checked(source, &image, &wrong)),
        },
        // A damaged superblock or MDB may have a copy. Without a copy of an MDB, ext2 is tried.
        None if has_copy_of_mdb(&*image.device)? => hfs(source, &image, options),
        None => ext(source, &image, options),
    };
    checked.map(|mut checked| {
        if let Checked::Mac(report) = &mut checked {
            let fix = "leave the image as it is: a repair cannot correct this";
            let found = wrong.iter().map(|what| Found {
                what: what.clone(),
                fix: fix.into(),
                repairable: false,
            });
            report.problems.splice(0..0, found);
            report.remaining.splice(0..0, wrong);
        }
        checked
    })
}

/// The error for a volume of a format that weft only reads: with the state of the checksums around it.
fn not_checked(source: &str, image: &Image, wrong: &[String]) -> Error {
    if !wrong.is_empty() {
        return Error::Volume { image: source.to_owned(), message: wrong.join("; ") };
    }
    let sums = if image.has_checksums() { "; the checksums of the image are right" } else { "" };
    let other = match image.format {
        Format::HfsPlus { .. } => " (fsck.hfsplus of Debian's hfsprogs does)",
        _ => "",
    };
    let words = image.format.words();
    Error::Invalid(format!(
        "{source} is {words}; weft reads those and does not check them{other}{sums}"
    ))
}

/// Returns true if the last block but one is a sound copy of an MDB.
fn has_copy_of_mdb(device: &dyn BlockDevice) -> Result<bool> {
    let blocks = device.geometry().len_bytes / 512;
    if blocks < weft_hfs::mkfs::MIN_BLOCKS {
        return Ok(false);
    }
    let mut raw = [0; 512];
    device.read_at(&mut raw, (blocks - 2) * 512)?;
    Ok(weft_hfs::layout::Mdb::parse(&raw).is_ok_and(|mdb| mdb.check(blocks).is_ok()))
}
