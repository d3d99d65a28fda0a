//! weft's HFS as a target: alone, or with a journal outside the volume.

use crate::target::{Findings, Mounted, Promises, Severity, Target, Tree, order, write_back};
use crate::{Error, Result};
use std::sync::Arc;
use weft_block::{BlockDevice, Image, MemoryDevice, Partition};
use weft_hfs::layout::Name;
use weft_hfs::mkfs::{MkfsOptions, mkfs};
use weft_hfs::{Hfs, OpenOptions, fsck};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::Time;

const VOLUME_BYTES: u64 = 1 << 20;
/// The minimum of JBD2: 1024 blocks of 1 KiB.
const JOURNAL_BYTES: u64 = 1 << 20;
/// Time of all operations, so that a seed determines the run. In 2023.
const NOW: Time = Time { secs: 1_700_000_000, nanos: 0 };

/// An HFS volume with blocks of 512 bytes. Under a journal policy the journal is after it on the
/// same device: a power cut hits both at once.
///
/// A volume that was not unmounted is repaired when it is mounted, so that a check must find
/// nothing then. That must hold for ordered writes, too.
#[derive(Debug, Clone)]
pub struct HfsTarget {
    policy: Policy,
    engine: Options,
    image: Option<Image>,
    volume_bytes: u64,
    unordered: bool,
}

impl HfsTarget {
    /// Creates a target with volumes of 1 MiB.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        // No thread: a run must repeat exactly.
        let engine = Options { policy, background: false, ..Options::default() };
        Self { policy, engine, image: None, volume_bytes: VOLUME_BYTES, unordered: false }
    }

    /// Sets the engine's optimisations, budget and so on; policy and threads are not changed.
    #[must_use]
    pub fn engine(mut self, options: &Options) -> Self {
        self.engine = Options { policy: self.policy, background: false, ..options.clone() };
        self
    }

    /// Makes every workload begin with a copy of this volume instead of a fresh one.
    #[must_use]
    pub fn on_image(mut self, image: Image) -> Self {
        self.volume_bytes = image.len_bytes();
        self.image = Some(image);
        self
    }

    /// Drops all order, under [`Policy::Async`] that of the trees too: the exploration must then
    /// find damage.
    #[must_use]
    pub fn unordered(mut self) -> Self {
        self.unordered = true;
        self
    }

    fn journaled(&self) -> bool {
        matches!(self.policy, Policy::Journal(_))
    }

    /// Returns the volume and its journal on a device.
    fn parts(
        &self,
        device: &Arc<dyn BlockDevice>,
    ) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        let part = |at, len| -> Arc<dyn BlockDevice> {
            Arc::new(Partition::window(Arc::clone(device), at, len))
        };
        let journal = self.journaled().then(|| part(self.volume_bytes, JOURNAL_BYTES));
        (part(0, self.volume_bytes), journal)
    }
}

fn told(what: &str) -> impl FnOnce(weft_hfs::Error) -> Error {
    move |e| Error::Target(format!("{what}: {e}"))
}

impl Target for HfsTarget {
    fn fresh(&self) -> Result<Image> {
        let len_bytes = self.volume_bytes + if self.journaled() { JOURNAL_BYTES } else { 0 };
        let memory = Arc::new(MemoryDevice::new(len_bytes));
        let (volume, journal) = self.parts(&(Arc::clone(&memory) as Arc<dyn BlockDevice>));
        match &self.image {
            Some(image) => {
                let content = MemoryDevice::from_image(image.clone());
                let mut piece = vec![0; 1 << 20];
                let mut at = 0;
                while at < self.volume_bytes {
                    let n = (self.volume_bytes - at).min(1 << 20);
                    let piece = &mut piece[..n as usize];
                    content.read_at(piece, at)?;
                    // Zeroes stay a hole: crash images are copies of this one.
                    if piece.iter().any(|byte| *byte != 0) {
                        volume.write_at(piece, at)?;
                    }
                    at += n;
                }
            }
            None => {
                let name = Name::new(b"Crash proof").map_err(told("mkfs"))?;
                mkfs(&*volume, &MkfsOptions::new(name, 3_800_000_000)).map_err(told("mkfs"))?;
            }
        }
        if let Some(journal) = &journal {
            weft_hfs::format_journal(&*volume, &**journal).map_err(told("mkfs"))?;
        }
        drop((volume, journal));
        Ok(memory.snapshot())
    }

    fn block_bytes(&self) -> usize {
        if self.journaled() { 1024 } else { 512 }
    }

    fn promises(&self) -> Promises {
        Promises {
            clean_after_recovery: true,
            operations_in_order: self.journaled(),
            no_stale_data: matches!(
                self.policy,
                Policy::Soft | Policy::Journal(JournalMode::Ordered | JournalMode::Full)
            ),
        }
    }

    fn tree(&self) -> Tree {
        Tree::Macintosh
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted> {
        let (volume, journal) = self.parts(&device);
        let engine = self.engine.clone();
        let options = OpenOptions {
            engine,
            journal,
            unordered_trees: self.unordered,
            clock: Some(NOW),
            ..OpenOptions::default()
        };
        let fs = Hfs::open(volume, options).map_err(told("mount"))?;
        let engine = Arc::clone(fs.engine());
        let write_back = move || write_back(&engine);
        Ok(Mounted::new(fs).with_write_back(write_back))
    }

    fn heal(&self, _: Arc<dyn BlockDevice>) -> Result<bool> {
        Ok(false)
    }

    fn check(&self, device: Arc<dyn BlockDevice>, _: bool) -> Result<Option<Findings>> {
        let (volume, _) = self.parts(&device);
        let report = fsck::check(&*volume).map_err(told("fsck"))?;
        let damage: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        let severity = if damage.is_empty() { Severity::Clean } else { Severity::Damage };
        Ok(Some(Findings { severity, damage, leaks: Vec::new() }))
    }

    fn repair(&self, device: Arc<dyn BlockDevice>) -> Result<bool> {
        let (volume, journal) = self.parts(&device);
        if let Some(journal) = &journal {
            weft_hfs::replay_journal(&volume, journal).map_err(told("replaying the journal"))?;
        }
        let done = fsck::repair(&*volume).map_err(told("repair"))?;
        match done.after.problems.first() {
            None => Ok(true),
            Some(problem) => Err(Error::Target(format!("repair leaves: {problem}"))),
        }
    }

    fn is_ext2(&self) -> bool {
        false
    }

    fn options(&self) -> String {
        let order = order(self.policy);
        format!("--hfs --order {order}")
    }
}
