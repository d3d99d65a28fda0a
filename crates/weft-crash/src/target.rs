//! Targets of an exploration: any file system that can be created, mounted, checked and repaired.

use crate::Result;
use std::fmt;
use std::sync::Arc;
use weft_block::{BlockDevice, Image};
use weft_patch::{Engine, JournalMode, Policy};
use weft_vfs::FileSystem;

/// Returns the name of a policy in `weft crash --order`.
pub(crate) fn order(policy: Policy) -> &'static str {
    match policy {
        Policy::Soft => "soft",
        Policy::Async => "async",
        Policy::Journal(JournalMode::Metadata) => "journal",
        Policy::Journal(JournalMode::Ordered) => "journal=ordered",
        Policy::Journal(JournalMode::Full) => "journal=full",
    }
}

/// The guarantees of a file system on the order of its writes, in addition to keeping fsynced data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Recovery leaves nothing for a checker to find. Without it, leaks and counts that are too
    /// high are allowed.
    pub clean_after_recovery: bool,
    /// The names found after a crash are those after one operation: operations reach the disk in
    /// order and whole. Without it, each name is independently old or new.
    pub operations_in_order: bool,
    /// No file contains data that was not written into it. Without it, data that was not fsynced
    /// may be anything.
    pub no_stale_data: bool,
}

/// The severity of a check's findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing was found.
    Clean,
    /// Only further names of directories that a rename was giving or taking: all that the repair in the
    /// background leaves.
    SecondNames,
    /// Only defects that soft updates may leave.
    Leaks,
    /// A defect that must never occur.
    Damage,
}

/// The findings of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The severity of the worst finding.
    pub severity: Severity,
    /// The damage, one line each.
    pub damage: Vec<String>,
    /// The defects that soft updates may leave, one line each.
    pub leaks: Vec<String>,
}

impl Findings {
    /// No findings.
    pub const CLEAN: Self =
        Self { severity: Severity::Clean, damage: Vec::new(), leaks: Vec::new() };
}

/// The kind of a file system's trees, which decides the operations that are tried on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// Owners, modes, links, extended attributes, devices, names of 255 bytes.
    Unix,
    /// Files and folders, with case-insensitive names of 31 letters. A node keeps its inode number
    /// for ever, and no other node ever has it.
    Macintosh,
}

/// A mounted file system under test.
pub struct Mounted {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    write_back: Option<Box<dyn Fn() -> Result<()> + Send + Sync>>,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").finish_non_exhaustive()
    }
}

impl Mounted {
    /// Creates a mounted file system that writes back only on a sync.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, write_back: None }
    }

    /// Adds a function that runs one round of the write-back that a thread would run by age.
    #[must_use]
    pub fn with_write_back(self, run: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self { write_back: Some(Box::new(run)), ..self }
    }

    /// Runs one round of write-back.
    ///
    /// # Errors
    /// [`Error::Fs`](crate::Error::Fs) with `Unsupported` if the file system has no write-back by
    /// request.
    pub fn write_back(&self) -> Result<()> {
        self.write_back.as_ref().map_or_else(unsupported_write_back, |run| run())
    }
}

/// Runs one round of an engine's write-back.
pub(crate) fn write_back(engine: &Engine) -> Result<()> {
    let io =
        |e: weft_patch::Error| weft_vfs::Error::Io { errno: e.errno(), message: e.to_string() };
    engine.write_back().map_err(io).map_err(crate::Error::fs("writeback"))
}

/// Returns the error of a file system without write-back by request.
pub(crate) fn unsupported_write_back() -> Result<()> {
    let unsupported = weft_vfs::Error::Unsupported("write-back by request");
    Err(crate::Error::fs("writeback")(unsupported))
}

/// A file system under test.
pub trait Target: Send + Sync {
    /// Returns the volume with which every workload begins.
    ///
    /// # Errors
    /// [`Error::Target`](crate::Error::Target).
    fn fresh(&self) -> Result<Image>;

    /// Returns the unit in which the file system writes, in bytes.
    fn block_bytes(&self) -> usize;

    /// Returns the file system's guarantees.
    fn promises(&self) -> Promises;

    /// Returns the kind of its trees.
    fn tree(&self) -> Tree {
        Tree::Unix
    }

    /// Mounts a volume, without threads of its own if it can, so that runs are repeatable.
    /// Recovery, if any, happens here; a background repair does not.
    ///
    /// # Errors
    /// The reason why it cannot be mounted.
    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted>;

    /// Checks an unmounted volume with the file system's own checker, which changes nothing; `None`
    /// if it has none. `renames_dirs`: the workload renames directories, which a crash may leave
    /// with two names.
    ///
    /// # Errors
    /// If it cannot be checked at all.
    fn check(&self, device: Arc<dyn BlockDevice>, renames_dirs: bool) -> Result<Option<Findings>>;

    /// Repairs an unmounted volume, recovery included. Returns false if there is no repair.
    ///
    /// # Errors
    /// If it cannot be repaired.
    fn repair(&self, device: Arc<dyn BlockDevice>) -> Result<bool>;

    /// Mounts a volume, waits until the background repair has ended, and unmounts: nothing worse than
    /// [`Severity::SecondNames`] may be left. Returns false if there is no background repair.
    ///
    /// # Errors
    /// The reason why it cannot be mounted or unmounted.
    fn heal(&self, device: Arc<dyn BlockDevice>) -> Result<bool>;

    /// Returns true if e2fsck supports its volumes.
    fn is_ext2(&self) -> bool;

    /// Returns the options of the `weft crash` command that select this target.
    fn options(&self) -> String;
}
