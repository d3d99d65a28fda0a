//! Leaks of a crash under soft updates, found while the volume is mounted.
//!
//! The mount takes a frozen view of the device before its first write
//! (`weft_block::SnapshotDevice`), lets a thread run [`find_leaks`] on it, and then, under its own
//! lock, frees the listed blocks and inodes. That is sound without another check: the allocator
//! cannot take a block or inode that was marked as taken and belonged to nothing at the time of the
//! mount, and no name leads to it. Counts are given as differences, because the mount may have
//! changed the counts themselves.
//!
//! What was found besides decides how much may be freed ([`Extent`]): a file is known to have no name
//! only if all directories were read, and a block to have no owner only if all inodes were.

use super::check::check;
use super::options::Options;
use super::problem::{EntryProblem, InodeProblem, Problem, Severity};
use super::volume::Volume;
use crate::Result;
use crate::layout::bytes::get32;
use hashbrown::HashMap;
use weft_block::BlockDevice;

/// How much of the leaks can be told from the rest of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Extent {
    /// Nothing: an inode or the metadata is damaged, and blocks may belong to what cannot be read.
    Nothing,
    /// The blocks that no inode has. A directory is damaged, and files may have names in it.
    Blocks,
    /// Everything.
    #[default]
    All,
}

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
    /// Other directories that no directory names, to be moved to lost+found: they were being made or
    /// removed, but that cannot be proved of any of them.
    pub nameless: Vec<u32>,
    /// Directories whose `..` is that before a rename: the directory, the inode that `..` names, and the
    /// one that it should name.
    pub parents: Vec<(u32, u32, u32)>,
    /// Further names of directories, which stay.
    pub second_names: u32,
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
    /// The generations of the inodes in `sectors` and `sizes`.
    pub generations: HashMap<u32, u32>,
    /// Problems other than leaks: the volume needs a repair.
    pub corruption: Vec<Problem>,
    /// What may be freed in spite of these.
    pub extent: Extent,
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
    let listed = report.problems.len() as u64;
    // By directory: the second names of directories in it.
    let mut second_names: HashMap<u32, u32> = HashMap::new();
    for problem in report.problems {
        match problem {
            Problem::BlockBitmap { first, len, leaked: true } => leaks.blocks.push((first, len)),
            Problem::InodeBitmap { first, len, leaked: true } => {
                leaks.inodes.extend(first..first.saturating_add(len));
            }
            Problem::Unattached { ino, .. } => leaks.unattached.push(ino),
            Problem::Unconnected { ino, empty: true, looped: false } => leaks.directories.push(ino),
            Problem::Unconnected { ino, looped: false, .. } => leaks.nameless.push(ino),
            Problem::Entry { ino, problem: EntryProblem::Parent { found, expected }, .. } => {
                leaks.parents.push((ino, found, expected));
            }
            Problem::Entry { ino: dir, problem: EntryProblem::SecondName(ino), .. }
                if ino != crate::layout::ROOT_INO =>
            {
                leaks.second_names += 1;
                *second_names.entry(dir).or_default() += 1;
            }
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
    // A directory goes on counting a subdirectory by the second name of that: which of the names a user
    // removes, and with it the `..` that counts, is not known.
    for (ino, by) in &mut leaks.excess_links {
        *by = by.saturating_sub(second_names.get(ino).copied().unwrap_or(0));
    }
    leaks.excess_links.retain(|(_, by)| *by > 0);
    leaks.extent = leaks.corruption.iter().map(allows).min().unwrap_or_default();
    if report.counts.iter().sum::<u64>() > listed {
        // What was not listed is not known.
        leaks.extent = Extent::Nothing;
    }
    let sectors = leaks.sectors.iter().map(|(ino, _)| *ino);
    let inodes: Vec<u32> = sectors.chain(leaks.sizes.iter().map(|(ino, ..)| *ino)).collect();
    if !inodes.is_empty() {
        leaks.generations = generations(device, &inodes)?;
    }
    Ok(leaks)
}

/// Reads the generations of some inodes.
fn generations(device: &dyn BlockDevice, inodes: &[u32]) -> Result<HashMap<u32, u32>> {
    let geometry = crate::superblock::read(device)?.geometry();
    let volume = Volume { device, geometry, overlay: HashMap::new() };
    let descriptors = volume.descriptors()?;
    let mut all = HashMap::new();
    let mut content = Vec::new();
    for &ino in inodes {
        let Some((group, index)) = volume.geometry.inode_group(ino) else { continue };
        let Some(desc) = descriptors.get(group as usize) else { continue };
        let (block, offset) = volume.geometry.inode_position(desc.inode_table, index);
        volume.read(block, &mut content)?;
        all.insert(ino, get32(&content, offset + 0x64));
    }
    Ok(all)
}

/// Returns what may be freed on a volume with this problem, which soft updates do not leave.
fn allows(problem: &Problem) -> Extent {
    match problem {
        // Of the names and counts alone: every inode and its blocks are known.
        Problem::Entry { .. }
        | Problem::Hole { .. }
        | Problem::NoRoot
        | Problem::Unconnected { .. }
        | Problem::LinkCount { .. }
        | Problem::AttributeRefs { .. }
        | Problem::Inode {
            problem: InodeProblem::Attributes(_) | InodeProblem::HashTree(_), ..
        } => Extent::Blocks,
        _ => Extent::Nothing,
    }
}
