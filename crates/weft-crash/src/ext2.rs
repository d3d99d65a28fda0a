//! weft's ext2 and ext3 as targets.

use crate::target::{Findings, Mounted, Promises, Severity, Target, order, write_back};
use crate::{Error, Result};
use std::sync::Arc;
use weft_block::{BlockDevice, Image, MemoryDevice};
use weft_ext2::fsck::{self, EntryProblem, Problem};
use weft_ext2::mkfs::{Journal, MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::FileSystem as _;

/// An ext2 volume (ext3 under a journal policy), small enough that hundreds of images a second can
/// be judged.
#[derive(Debug, Clone)]
pub struct Ext2Target {
    policy: Policy,
    block_bytes: u32,
    inode_bytes: u32,
    len_blocks: u32,
    engine: Options,
    inodes_in_memory: Option<usize>,
    image: Option<Image>,
}

impl Ext2Target {
    /// Creates a target with blocks of 1 KiB, which cross most block boundaries with the least
    /// data.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        // No thread: a run must repeat exactly.
        let engine = Options { policy, background: false, ..Options::default() };
        // A journal has the minimum size of JBD2, 1024 blocks.
        let len_blocks = if matches!(policy, Policy::Journal(_)) { 3072 } else { 1536 };
        Self {
            policy,
            block_bytes: 1024,
            inode_bytes: 256,
            len_blocks,
            engine,
            inodes_in_memory: None,
            image: None,
        }
    }

    /// Sets the block size: 1024, 2048 or 4096 bytes.
    #[must_use]
    pub fn block_bytes(mut self, block_bytes: u32) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// Sets the inode size: 128 or 256 bytes.
    #[must_use]
    pub fn inode_bytes(mut self, inode_bytes: u32) -> Self {
        self.inode_bytes = inode_bytes;
        self
    }

    /// Sets the length in blocks; every 8 blocks for each byte of a block are a group of their own.
    #[must_use]
    pub fn len_blocks(mut self, len_blocks: u32) -> Self {
        self.len_blocks = len_blocks;
        self
    }

    /// Sets the engine's optimisations, budget and so on; policy and threads are not changed.
    #[must_use]
    pub fn engine(mut self, options: &Options) -> Self {
        self.engine = Options { policy: self.policy, background: false, ..options.clone() };
        self
    }

    /// Keeps at most so many inodes in memory that need not stay.
    #[must_use]
    pub fn inodes_in_memory(mut self, max: usize) -> Self {
        self.inodes_in_memory = Some(max);
        self
    }

    /// Makes every workload begin with a copy of this volume instead of a fresh one.
    #[must_use]
    pub fn on_image(mut self, image: Image) -> Self {
        self.image = Some(image);
        self
    }

    fn open(&self, device: Arc<dyn BlockDevice>, no_healing: bool) -> Result<Arc<Ext2>> {
        let Self { engine, inodes_in_memory, .. } = self.clone();
        let options =
            OpenOptions { engine, inodes_in_memory, no_healing, ..OpenOptions::default() };
        Ext2::open(device, options).map_err(told("mount"))
    }

    fn journaled(&self) -> bool {
        matches!(self.policy, Policy::Journal(_))
    }
}

fn told(what: &str) -> impl FnOnce(weft_ext2::Error) -> Error {
    move |e| Error::Target(format!("{what}: {e}"))
}

fn is_unconnected(problem: &Problem) -> bool {
    matches!(problem, Problem::Unconnected { .. })
}

impl Target for Ext2Target {
    fn fresh(&self) -> Result<Image> {
        if let Some(image) = &self.image {
            return Ok(image.clone());
        }
        let block = u64::from(self.block_bytes);
        let journal = Journal::Internal { len_bytes: Some(1024 * block) };
        let len_bytes = u64::from(self.len_blocks) * block;
        let base = if self.journaled() { MkfsOptions::ext3() } else { MkfsOptions::ext2() };
        let options = MkfsOptions {
            block_bytes: Some(self.block_bytes),
            inode_bytes: Some(self.inode_bytes),
            inodes: Some(128),
            journal: self.journaled().then_some(journal),
            // The same volume every time: a seed determines the run.
            uuid: Some(*b"weft crash proof"),
            time: Some(1_700_000_000),
            ..base
        };
        let device = MemoryDevice::new(len_bytes);
        mkfs(&device, &options).map_err(told("mkfs"))?;
        Ok(device.snapshot())
    }

    fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    fn promises(&self) -> Promises {
        Promises {
            clean_after_recovery: self.journaled(),
            operations_in_order: self.journaled(),
            no_stale_data: self.policy != Policy::Journal(JournalMode::Metadata),
        }
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted> {
        let fs = self.open(device, true)?;
        let engine = Arc::clone(fs.engine());
        let write_back = move || write_back(&engine);
        Ok(Mounted::new(fs).with_write_back(write_back))
    }

    fn heal(&self, device: Arc<dyn BlockDevice>) -> Result<bool> {
        let fs = self.open(device, false)?;
        fs.finish_healing();
        fs.unmount().map_err(Error::fs("unmounting"))?;
        Ok(true)
    }

    fn check(&self, device: Arc<dyn BlockDevice>, renames_dirs: bool) -> Result<Option<Findings>> {
        let report = fsck::check(&*device, &fsck::Options::default()).map_err(told("fsck"))?;
        let unconnected = report.problems.iter().any(is_unconnected);
        let is_damage = |p: &Problem| match p {
            // A new directory, with its content, before its name is written.
            Problem::Unconnected { .. } => false,
            Problem::Entry { problem: EntryProblem::SecondName(_), .. } => !renames_dirs,
            Problem::Entry { problem: EntryProblem::Parent { .. }, .. } => {
                !renames_dirs && !unconnected
            }
            other => other.severity() == fsck::Severity::Corruption,
        };
        let holders: Vec<u32> = report
            .problems
            .iter()
            .filter_map(|p| match p {
                Problem::Entry { ino, problem: EntryProblem::SecondName(_), .. } => Some(*ino),
                _ => None,
            })
            .collect();
        let severity = |p: &Problem| match p {
            p if is_damage(p) => Severity::Damage,
            Problem::Entry { problem: EntryProblem::SecondName(_), .. } => Severity::SecondNames,
            // The directory with the second name counts it.
            Problem::LinkCount { ino, .. } if holders.contains(ino) => Severity::SecondNames,
            _ => Severity::Leaks,
        };
        let mut found = Findings::CLEAN;
        for problem in &report.problems {
            let severity = severity(problem);
            let lines =
                if severity == Severity::Damage { &mut found.damage } else { &mut found.leaks };
            lines.push(problem.to_string());
            found.severity = found.severity.max(severity);
        }
        Ok(Some(found))
    }

    fn repair(&self, device: Arc<dyn BlockDevice>) -> Result<bool> {
        let report = fsck::check(&*device, &fsck::Options::repair()).map_err(told("repair"))?;
        match report.remaining.first() {
            None => Ok(true),
            Some(problem) => Err(Error::Target(format!("repair leaves: {problem}"))),
        }
    }

    fn is_ext2(&self) -> bool {
        true
    }

    fn options(&self) -> String {
        let order = order(self.policy);
        let (block, inode) = (self.block_bytes, self.inode_bytes);
        format!("--order {order} --block-size {block} --inode-size {inode}")
    }
}
