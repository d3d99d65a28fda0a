//! The result of a check.

use super::problem::Problem;
use alloc::vec::Vec;

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The problems of the volume.
    pub problems: Vec<Problem>,
    /// Deviations that real disks have and Macs accept: a repair corrects them, but only if the
    /// volume has problems, too.
    pub notes: Vec<Problem>,
    /// The number of files.
    pub files: u32,
    /// The number of folders, with the root.
    pub folders: u32,
    /// The number of allocation blocks in use.
    pub used_blocks: u32,
    /// The volume was unmounted cleanly.
    pub unmounted: bool,
}

impl Report {
    /// Returns true if there are no problems.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the problem of a truncated image, which a repair leaves as it is.
    #[must_use]
    pub fn cut(&self) -> Option<&Problem> {
        self.problems.iter().find(|p| matches!(p, Problem::Cut { .. }))
    }
}
