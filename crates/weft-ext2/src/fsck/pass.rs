//! One check: its five passes, in their order.

use super::counts::{self, Counts};
use super::found::Found;
use super::options::{Options, Progress};
use super::problem::Problem;
use super::report::Report;
use super::volume::Volume;
use super::{journal, scan, start, superblock, tree};
use crate::Result;
use crate::layout::Superblock;
use hashbrown::HashMap;
use weft_block::BlockDevice;
use weft_patch::jbd2;

/// One check, with everything it found.
pub(super) struct Pass<'d> {
    pub volume: Volume<'d>,
    pub superblock: Superblock,
    pub found: Found,
    counts: Vec<Counts>,
    pub recovery: Option<jbd2::Recovery>,
}

impl Pass<'_> {
    /// Puts the numbers of inodes and blocks into the report.
    pub(super) fn summarise(&self, report: &mut Report) {
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

impl<'d> Pass<'d> {
    /// Runs the five passes.
    pub(super) fn run(
        device: &'d dyn BlockDevice,
        superblock: Superblock,
        options: &Options<'d>,
    ) -> Result<Self> {
        let tell = |pass, done, total| {
            if let Some(progress) = options.progress {
                progress(Progress { pass, done, total });
            }
        };
        let mut superblock = superblock;
        let mut volume =
            Volume { device, geometry: superblock.geometry(), overlay: HashMap::new() };
        let mut found = Found::new(&volume.geometry, options.max_problems);
        start::groups(&volume, &mut found)?;
        let recovery = journal::replay_in_memory(&mut volume, &superblock, &mut found, options)?;
        if !volume.overlay.is_empty() {
            // The journal may hold descriptors and the superblock itself.
            superblock = superblock::replayed(&volume, &superblock)?;
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
        superblock::check_fields(&volume, &superblock, &mut found)?;
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
        tree::Tree::new(&volume, &superblock, &mut found)
            .run(|done, total| tell(2, done, total))?;
        tell(3, 0, 1);
        tree::connect(&mut found);
        tell(4, 0, 1);
        tree::links(&mut found, volume.geometry.first_inode);
        tree::attribute_refs(&mut found);
        tell(5, 0, 1);
        let counts = counts::check(&volume, &superblock, &mut found)?;
        tell(5, 1, 1);
        Ok(Self { volume, superblock, found, counts, recovery })
    }
}
