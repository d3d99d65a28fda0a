//! The result of a check.

use super::problem::{Problem, Severity};
use weft_patch::jbd2;

/// The findings of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The problems found.
    pub problems: Vec<Problem>,
    /// The problems that remain: without a repair, the same.
    pub remaining: Vec<Problem>,
    /// The numbers of leaks, counts off and corruptions, also of those not listed.
    pub counts: [u64; 3],
    /// The content of the journal: replayed by a repair, or in memory for a check.
    pub journal: Option<jbd2::Recovery>,
    /// Files and other inodes in use, directories and reserved ones included.
    pub inodes_used: u32,
    /// Directories.
    pub directories: u32,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Inodes of the volume.
    pub inodes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
}

impl Report {
    /// Reports whether no problem remains.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.remaining.is_empty()
    }

    /// Returns the severity of the worst problem that remains.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.remaining.iter().map(Problem::severity).max()
    }
}
