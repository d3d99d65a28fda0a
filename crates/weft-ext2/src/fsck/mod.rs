//! Checks a volume that is not in use, and repairs what can be repaired.
//!
//! The check has the five passes of e2fsck: inodes and the blocks they claim (`scan`), what
//! directories say and whether they hang together (`tree`), link counts, bitmaps and counts
//! (`counts`). A journal that has not been replayed is replayed in memory first, so that a check
//! changes nothing and still judges what a mount would see.
//!
//! A repair goes round: it changes what it can of what was found, and checks again, until nothing
//! is found or nothing more changes. Bitmaps and counts are written when everything else is right.
//!
//! # Invariants
//!
//! - Nothing in a volume makes the check panic, loop, or read outside of it: every indirect block
//!   is followed once, whoever claims it.
//! - Memory: two bits a block, 12 bytes an inode (of groups that are in use), 12 bytes a block of
//!   a directory, and the names of one directory as hashes.
//! - What soft updates leave behind is [`Severity::Leak`] or [`Severity::CountOff`]; everything
//!   else is [`Severity::Corruption`].
//!
//! Known to differ from e2fsck: attributes whose values overlap are not found; hashes in the root
//! of a tree of two levels are compared with the names below them, which e2fsck does not do.

mod bitmap;
mod counts;
mod entries;
mod found;
mod htree;
mod leaks;
mod problem;
mod repair;
mod scan;
mod start;
mod tree;
mod volume;

pub use leaks::{Leaks, find_leaks};
pub use problem::{EntryProblem, InodeProblem, Place, Problem, Severity};

use crate::layout::{Incompat, Superblock};
use crate::{Error, Result};
use counts::Counts;
use found::Found;
use hashbrown::HashMap;
use volume::Volume;
use weft_block::BlockDevice;
use weft_patch::jbd2;

/// The treatment of a file that has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unattached {
    /// It gets one in lost+found, if it has content.
    #[default]
    Reattach,
    /// It is deleted. Right after a crash under soft updates, where such a file had been removed
    /// or had not got its name yet.
    Free,
}

/// Options of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// Files without a name.
    pub unattached: Unattached,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The pass, from 1 to 5.
    pub pass: u8,
    /// Steps of it that are done.
    pub done: u64,
    /// Steps it has.
    pub total: u64,
}

/// Options of a check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The repair to make; `None` only checks.
    pub repair: Option<Repair>,
    /// A function that is called with the progress of the check.
    pub progress: Option<&'a dyn Fn(Progress)>,
    /// The most problems to list; all are counted.
    pub max_problems: usize,
    /// The external journal, if the volume has one.
    pub journal: Option<&'a dyn BlockDevice>,
    /// The time a repair leaves in the volume, seconds since 1970; `None`: now.
    pub time: Option<u32>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("repair", &self.repair)
            .field("max_problems", &self.max_problems)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { repair: None, progress: None, max_problems: 100_000, journal: None, time: None }
    }
}

impl Options<'_> {
    /// Returns the options to check and repair.
    #[must_use]
    pub fn repair() -> Self {
        Self { repair: Some(Repair::default()), ..Self::default() }
    }
}

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

/// Checks the volume on `device`, which must not be in use, and repairs it if asked to.
///
/// # Errors
/// An error that makes a check impossible: [`Error::NotExt2`], [`Error::Corrupt`] for a superblock
/// that cannot be used, [`Error::Incompatible`] for features that are not known; device errors.
pub fn check(device: &dyn BlockDevice, options: &Options<'_>) -> Result<Report> {
    let mut report = Report::default();
    let superblock = match start::superblock(device) {
        Err(error @ (Error::NotExt2 { .. } | Error::Corrupt { .. })) => {
            let Some((block, backup)) = repair::backup_superblock(device)? else {
                return Err(error);
            };
            if options.repair.is_none() {
                return Err(Error::corrupt(
                    "superblock",
                    0,
                    format!("{error}; a repair can take the backup in block {block}"),
                ));
            }
            repair::restore_superblock(device, &backup)?;
            let problem = format!("cannot be used ({error}): taken from block {block}");
            report.problems.push(Problem::Superblock { field: "primary", problem });
            start::superblock(device)?
        }
        other => other?,
    };
    match options.repair {
        None => {
            let pass = run(device, superblock, options)?;
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

/// One check, with everything it found.
struct Pass<'d> {
    volume: Volume<'d>,
    superblock: Superblock,
    found: Found,
    counts: Vec<Counts>,
    recovery: Option<jbd2::Recovery>,
}

impl Pass<'_> {
    fn summarise(&self, report: &mut Report) {
        let geometry = &self.volume.geometry;
        let free: u32 = self.counts.iter().map(|c| c.free_inodes).sum();
        report.inodes = geometry.inodes;
        report.blocks = geometry.blocks;
        report.inodes_used = geometry.inodes.saturating_sub(free);
        report.directories = u32::try_from(self.found.dirs.len()).unwrap_or(u32::MAX);
        let free: u64 = self.counts.iter().map(|c| u64::from(c.free_blocks)).sum();
        report.blocks_used = geometry.blocks.saturating_sub(free);
    }
}

/// The five passes.
fn run<'d>(
    device: &'d dyn BlockDevice,
    superblock: Superblock,
    options: &Options<'d>,
) -> Result<Pass<'d>> {
    let tell = |pass, done, total| {
        if let Some(progress) = options.progress {
            progress(Progress { pass, done, total });
        }
    };
    let mut superblock = superblock;
    let mut volume = Volume { device, geometry: superblock.geometry(), overlay: HashMap::new() };
    let mut found = Found::new(&volume.geometry, options.max_problems);
    start::groups(&volume, &mut found)?;
    let recovery = journal(&mut volume, &superblock, &mut found, options)?;
    if !volume.overlay.is_empty() {
        // The journal may hold descriptors and the superblock itself.
        superblock = replayed_superblock(&volume, &superblock)?;
        volume.geometry = superblock.geometry();
        let mut again = Found::new(&volume.geometry, options.max_problems);
        for problem in std::mem::take(&mut found.problems) {
            if matches!(problem, Problem::Journal { .. }) {
                again.report(problem);
            }
        }
        found = again;
        start::groups(&volume, &mut found)?;
    }
    start::superblock_fields(&volume, &superblock, &mut found)?;
    start::resize_inode(&volume, &mut found)?;
    let groups = u64::from(volume.geometry.groups);
    tell(1, 0, groups);
    let mut scan = scan::Scan {
        volume: &volume,
        superblock: &superblock,
        found: &mut found,
        buffers: Default::default(),
    };
    scan.run(|done| tell(1, done, groups))?;
    tree::Tree::new(&volume, &superblock, &mut found).run(|done, total| tell(2, done, total))?;
    tell(3, 0, 1);
    tree::connect(&mut found);
    tell(4, 0, 1);
    tree::links(&mut found, volume.geometry.first_inode);
    tree::attribute_refs(&mut found);
    tell(5, 0, 1);
    let counts = counts::check(&volume, &superblock, &mut found)?;
    tell(5, 1, 1);
    Ok(Pass { volume, superblock, found, counts, recovery })
}

/// Replays a journal into memory.
fn journal(
    volume: &mut Volume<'_>,
    superblock: &Superblock,
    found: &mut Found,
    options: &Options<'_>,
) -> Result<Option<jbd2::Recovery>> {
    use crate::layout::Compat;
    let flagged = superblock.features.incompat.contains(Incompat::RECOVER);
    if !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        if flagged {
            let problem = "say needs_recovery, but there is no journal".into();
            found.report(Problem::Superblock { field: "features", problem });
        }
        return Ok(None);
    }
    let Some(log) = start::journal(volume, superblock, found, options.journal)? else {
        if flagged && superblock.journal_inode == 0 && options.journal.is_none() {
            let problem = "it is external and must be replayed, but was not given".into();
            found.report(Problem::Journal { problem });
        }
        return Ok(None);
    };
    if !log.needs_recovery() {
        return Ok(None);
    }
    if !flagged {
        let problem = "holds transactions, but the superblock does not say needs_recovery".into();
        found.report(Problem::Journal { problem });
    }
    let mut overlay = HashMap::new();
    let recovery = log
        .recover_before_damage(volume.geometry.blocks, |block, content: &[u8]| {
            overlay.insert(block, content.into());
            Ok::<(), std::convert::Infallible>(())
        })
        .map_err(repair::journal_error)?;
    volume.overlay = overlay;
    if let Some(damage) = recovery.damage {
        found.report(Problem::Journal { problem: format!("is damaged: {damage}") });
    }
    Ok(Some(recovery))
}

/// The superblock as it is after the journal's replay.
fn replayed_superblock(volume: &Volume<'_>, before: &Superblock) -> Result<Superblock> {
    let raw = start::superblock_bytes(volume)?;
    let superblock = Superblock::parse(&raw)?;
    superblock.check_features()?;
    if superblock.len_bytes() > volume.device.geometry().len_bytes
        || superblock.block_bytes() != before.block_bytes()
    {
        return Err(Error::corrupt("journal", 0, "it would change the size of the volume"));
    }
    Ok(superblock)
}
