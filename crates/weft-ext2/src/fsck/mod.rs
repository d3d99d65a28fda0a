//! Checks a volume that is not in use, and repairs its problems.
//!
//! The check has the five passes of e2fsck: inodes and the blocks they claim (`scan`), directory
//! entries and the connectivity of directories (`tree`), link counts, bitmaps and counts
//! (`counts`). A journal that has not been replayed is replayed in memory first, so that a check
//! changes nothing and still judges the state that a mount would see.
//!
//! A repair works in rounds: it corrects the problems that it can, and checks again, until none is
//! found or none changes any more. Bitmaps and counts are written when all other problems are gone.
//!
//! # Invariants
//!
//! - Nothing in a volume makes the check panic, loop, or read outside of it: every indirect block
//!   is followed once, however many pointers lead to it.
//! - Memory: two bits a block, 12 bytes an inode (of groups that are in use), 12 bytes a block of
//!   a directory, and the names of one directory as hashes.
//! - The problems that a crash under soft updates leaves are [`Severity::Leak`] or
//!   [`Severity::CountOff`]; everything else is [`Severity::Corruption`].
//!
//! Known to differ from e2fsck: attributes whose values overlap are not found; hashes in the root
//! of a tree of two levels are compared with the names below them, which e2fsck does not do.

mod bitmap;
mod check;
mod counts;
mod entries;
mod found;
mod htree;
mod journal;
mod leaks;
mod options;
mod pass;
mod problem;
mod repair;
mod report;
mod scan;
mod start;
mod superblock;
mod tree;
pub(crate) mod volume;

pub use check::check;
pub use leaks::{Extent, Leaks, find_leaks};
pub use options::{Options, Progress, Repair, Unattached};
pub use problem::{EntryProblem, InodeProblem, JournalFix, Place, Problem, Severity};
pub use report::Report;
