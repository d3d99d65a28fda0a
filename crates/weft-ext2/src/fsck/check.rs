//! A check from the superblock on, with a repair if it is asked for.

use super::options::Options;
use super::pass::Pass;
use super::problem::Problem;
use super::report::Report;
use super::{repair, superblock};
use crate::{Error, Result};
use weft_block::BlockDevice;

/// Checks the volume on `device`, which must not be in use, and repairs it if asked to.
///
/// # Errors
/// An error that makes a check impossible: [`Error::NotExt2`], [`Error::Corrupt`] for a superblock
/// that cannot be used, [`Error::Incompatible`] for features that are not known; device errors.
pub fn check(device: &dyn BlockDevice, options: &Options<'_>) -> Result<Report> {
    let mut report = Report::default();
    let first = match superblock::read(device) {
        Err(error @ (Error::NotExt2 { .. } | Error::Corrupt { .. })) => {
            let Some((block, backup)) = superblock::first_backup(device)? else {
                return Err(error);
            };
            if options.repair.is_none() {
                return Err(Error::corrupt(
                    "superblock",
                    0,
                    format!("{error}; a repair can restore it from the backup in block {block}"),
                ));
            }
            superblock::restore(device, &backup)?;
            let problem = format!(
                "copy was invalid ({error}) and was restored from the backup in block {block}"
            );
            report.problems.push(Problem::Superblock { field: "primary", problem });
            superblock::read(device)?
        }
        other => other?,
    };
    match options.repair {
        None => {
            let pass = Pass::run(device, first, options)?;
            pass.summarise(&mut report);
            report.problems.extend(pass.found.problems.iter().cloned());
            report.remaining.clone_from(&report.problems);
            report.counts = pass.found.counts;
            report.journal = pass.recovery;
        }
        Some(how) => repair::repair(device, options, how, &mut report)?,
    }
    Ok(report)
}
