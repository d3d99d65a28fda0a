//! The findings of weft on a volume after a power cut: its recovery, and the result of fsck.

use std::hash::Hash;
use std::sync::Arc;

use rustix::process::{getgid, getuid};
use weft_block::{BlockDevice, Image, MemoryDevice, Partition};
use weft_ext2::fsck::{self, EntryProblem, Problem, Severity};
use weft_ext2::{Ext2, OpenOptions};
use weft_hfs::Hfs;
use weft_patch::{Engine, JournalMode, Options, Policy};
use weft_vfs::memfs::{Snapshot, hash128};
use weft_vfs::{FileSystem, Ino};

use super::{VolumeFormat, VolumeKind};
use crate::load::load_tree;
use crate::{Error, Result};

/// A mounted volume.
pub(crate) struct Mounted {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) engine: Arc<Engine>,
}

/// The findings of weft in a state.
pub(crate) struct Built {
    /// The tree; empty if the volume is damaged.
    pub(crate) tree: Snapshot,
    /// Why a check need not look at the tree: the volume cannot be mounted or read, or fsck finds
    /// what a power cut must not leave.
    pub(crate) damage: Option<String>,
}

impl Built {
    pub(crate) fn whole(tree: Snapshot) -> Self {
        Self { tree, damage: None }
    }

    /// Two states with the same hash get the same verdict.
    pub(crate) fn hash(&self) -> u128 {
        match &self.damage {
            None => self.tree.hash(),
            Some(damage) => hash128(|hasher| damage.hash(hasher)),
        }
    }
}

impl VolumeKind {
    pub(crate) fn policy(&self) -> Result<Policy> {
        Ok(match self.order.as_str() {
            "soft" => Policy::Soft,
            "async" => Policy::Async,
            "journal" | "journal=metadata" => Policy::Journal(JournalMode::Metadata),
            "journal=ordered" => Policy::Journal(JournalMode::Ordered),
            "journal=full" => Policy::Journal(JournalMode::Full),
            other => return Err(Error::Volume(format!("{other:?} is no order of writes"))),
        })
    }

    /// The volume, and the journal that is behind it on its device, if there is one.
    pub(crate) fn parts(
        &self,
        device: Arc<dyn BlockDevice>,
    ) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        if self.journal_bytes == 0 {
            return (device, None);
        }
        let volume_bytes = device.geometry().len_bytes.saturating_sub(self.journal_bytes);
        let part = |at, len| -> Arc<dyn BlockDevice> {
            Arc::new(Partition::window(Arc::clone(&device), at, len))
        };
        (part(0, volume_bytes), Some(part(volume_bytes, self.journal_bytes)))
    }

    /// Mounts a volume as weft does after a power cut. It has no thread of its own, so that a program
    /// writes the same blocks each time.
    pub(crate) fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted> {
        let engine = Options { policy: self.policy()?, background: false, ..Options::default() };
        let failed = |e: &dyn std::fmt::Display| Error::Volume(format!("mounting the volume: {e}"));
        Ok(match self.format {
            VolumeFormat::Ext => {
                let options = OpenOptions { engine, no_healing: true, ..OpenOptions::default() };
                let fs = Ext2::open(device, options).map_err(|e| failed(&e))?;
                Mounted { engine: Arc::clone(fs.engine()), fs }
            }
            VolumeFormat::Hfs => {
                let (volume, journal) = self.parts(device);
                let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
                let permissions = weft_hfs::Permissions { uid, gid, ..Default::default() };
                let options =
                    weft_hfs::OpenOptions { engine, journal, permissions, ..Default::default() };
                let fs = Hfs::open(volume, options).map_err(|e| failed(&e))?;
                Mounted { engine: Arc::clone(fs.engine()), fs }
            }
        })
    }

    /// Recovers a volume after a power cut, and reads it. The tree shares what is the same with `like`.
    pub(crate) fn built(&self, image: Image, like: &Snapshot) -> Built {
        match self.recovered(image, like) {
            Ok(tree) => Built::whole(tree),
            Err(damage) => Built { tree: Snapshot::new(), damage: Some(damage.to_string()) },
        }
    }

    fn recovered(&self, image: Image, like: &Snapshot) -> Result<Snapshot> {
        let device = Arc::new(MemoryDevice::from_image(image));
        // What was written in any order is mounted after a repair, as its manual says. HFS keeps an
        // order of its trees in any case, and repairs them when it is mounted.
        if self.format == VolumeFormat::Ext && self.policy()? == Policy::Async {
            let report = fsck::check(&*device, &fsck::Options::repair())
                .map_err(|e| Error::Volume(format!("repairing the volume: {e}")))?;
            if let Some(problem) = report.remaining.first().filter(|_| self.fsck) {
                return Err(Error::Volume(format!("fsck --repair leaves: {problem}")));
            }
        }
        let Mounted { fs, .. } = self.mount(Arc::clone(&device) as Arc<dyn BlockDevice>)?;
        let tree = read_tree(&*fs, like)?;
        if self.fsck {
            fs.unmount().map_err(Error::fs("unmounting the volume"))?;
            self.check(device)?;
        }
        Ok(tree)
    }

    /// Says what fsck finds on a recovered volume that a power cut must not leave there.
    fn check(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        let damage = match self.format {
            VolumeFormat::Ext => self.check_ext(&*device)?,
            VolumeFormat::Hfs => {
                let report = weft_hfs::fsck::check(&*self.parts(device).0)
                    .map_err(|e| Error::Volume(format!("fsck: {e}")))?;
                report.problems.iter().map(ToString::to_string).collect()
            }
        };
        if damage.is_empty() {
            return Ok(());
        }
        Err(Error::Volume(format!("fsck: {}", damage.join("\nfsck: "))))
    }

    fn check_ext(&self, device: &dyn BlockDevice) -> Result<Vec<String>> {
        let report = fsck::check(device, &fsck::Options::default())
            .map_err(|e| Error::Volume(format!("fsck: {e}")))?;
        let soft = self.policy()? == Policy::Soft;
        let is_damage = |problem: &&Problem| match problem {
            // With soft updates a directory may lack its name, or have two: healing mends that.
            Problem::Unconnected { .. } => !soft,
            Problem::Entry {
                problem: EntryProblem::SecondName(_) | EntryProblem::Parent { .. },
                ..
            } => !soft,
            other => other.severity() == Severity::Corruption,
        };
        Ok(report.problems.iter().filter(is_damage).map(ToString::to_string).collect())
    }
}

/// The number of an inode in the tree of a volume, and in the recording.
pub(crate) fn number(root: Ino, ino: Ino) -> u64 {
    // No file has the number of the root of a tree: in ext2 it is that of bad blocks, in HFS that of
    // the folder above the root.
    if ino == root { Snapshot::ROOT } else { ino.0 }
}

/// Reads the tree of a volume, with the numbers of its inodes. It shares what is the same with `like`.
pub(crate) fn read_tree(fs: &dyn FileSystem, like: &Snapshot) -> Result<Snapshot> {
    let root = fs.root();
    let mut held = Vec::new();
    let tree = load_tree(fs, u64::MAX, like, &mut |ino, is_root| {
        if !is_root {
            held.push((ino, 1));
        }
        number(root, ino)
    });
    fs.forget_many(&held);
    tree.map_err(Error::fs("reading the volume"))
}
