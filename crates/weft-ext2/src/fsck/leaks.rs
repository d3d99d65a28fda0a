//! Leaks of a crash under soft updates, found while the volume is mounted.
//!
//! The mount takes a frozen view of the device before its first write
//! (`weft_block::SnapshotDevice`), lets a thread run [`find_leaks`] on it, and then, under its own
//! lock, frees the listed blocks and inodes. That is sound without another check: the allocator
//! cannot take a block or inode that was marked as taken and belonged to nothing at the time of the
//! mount, and no name leads to it. Counts are given as differences, because the mount may have
//! changed the counts themselves.

use super::check::check;
use super::options::Options;
use super::problem::{InodeProblem, Problem, Severity};
use crate::Result;
use weft_block::BlockDevice;

/// The blocks, inodes and counts that can be corrected, as of the frozen view.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leaks {
    /// Runs of blocks (first, length) that are marked as taken and belong to nothing.
    pub blocks: Vec<(u32, u32)>,
    /// Inodes that are marked as taken and are free (no links).
    pub inodes: Vec<u32>,
    /// Inodes with links that no directory names: to be deleted with their blocks.
    pub unattached: Vec<u32>,
    /// Empty directories that no directory names, to be deleted with their blocks (the count of
    /// the directory above is among `excess_links`, if it has not been lowered yet: to be done
    /// after).
    pub directories: Vec<u32>,
    /// Inodes with more links than names, and by how many.
    pub excess_links: Vec<(u32, u32)>,
    /// Inodes whose count of 512-byte units is off, and the number to add to it.
    pub sectors: Vec<(u32, i64)>,
    /// Files (and directories) whose size lags behind their blocks: inode, the size as stored, the
    /// size that covers the blocks. Only to be set while the size is still the one stored.
    pub sizes: Vec<(u32, u64, u64)>,
    /// Attribute blocks whose reference count is too high, and by how many.
    pub attribute_refs: Vec<(u32, u32)>,
    /// Groups whose descriptor counts directories wrongly, and the number to add.
    pub directory_counts: Vec<(u32, i64)>,
    /// Problems other than leaks. If there are any, nothing should be freed: the volume needs a
    /// repair.
    pub corruption: Vec<Problem>,
}

impl Leaks {
    /// Reports whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Finds the leaks of a crash under soft updates. `device` must not change meanwhile.
///
/// # Errors
/// Those of [`check`].
pub fn find_leaks(device: &dyn BlockDevice) -> Result<Leaks> {
    let report = check(device, &Options { max_problems: 1_000_000, ..Options::default() })?;
    let mut leaks = Leaks::default();
    for problem in report.problems {
        match problem {
            Problem::BlockBitmap { first, len, leaked: true } => leaks.blocks.push((first, len)),
            Problem::InodeBitmap { first, len, leaked: true } => {
                leaks.inodes.extend(first..first.saturating_add(len));
            }
            Problem::Unattached { ino, .. } => leaks.unattached.push(ino),
            Problem::Unconnected { ino, empty: true } => leaks.directories.push(ino),
            Problem::LinkCount { ino, found, expected } if u32::from(found) > expected => {
                leaks.excess_links.push((ino, u32::from(found) - expected));
            }
            Problem::Inode { ino, problem: InodeProblem::BlockCount { found, expected } } => {
                let expected = i64::try_from(expected).unwrap_or(i64::MAX);
                leaks.sectors.push((ino, expected.saturating_sub(i64::from(found))));
            }
            Problem::Inode { ino, problem: InodeProblem::Size { found, expected, lags: true } } => {
                leaks.sizes.push((ino, found, expected));
            }
            Problem::AttributeRefs { block, found, expected } if found > expected => {
                leaks.attribute_refs.push((block, found - expected));
            }
            Problem::Count { group: Some(group), which: "directories", found, expected } => {
                leaks.directory_counts.push((group, i64::from(expected) - i64::from(found)));
            }
            // The mount keeps the free counts itself, and frees orphaned inodes.
            other if other.severity() < Severity::Corruption => {}
            other => leaks.corruption.push(other),
        }
    }
    Ok(leaks)
}
