//! What is explored: any file system that can be made, mounted, checked and repaired.

use crate::Result;
use std::fmt;
use std::sync::Arc;
use weft_block::{BlockDevice, Image};
use weft_patch::{Engine, JournalMode, Policy};
use weft_vfs::FileSystem;

/// A policy as `weft crash --order` names it.
pub(crate) fn order(policy: Policy) -> &'static str {
    match policy {
        Policy::Soft => "soft",
        Policy::Async => "async",
        Policy::Journal(JournalMode::Metadata) => "journal",
        Policy::Journal(JournalMode::Ordered) => "journal=ordered",
        Policy::Journal(JournalMode::Full) => "journal=full",
    }
}

/// What a file system promises about the order of what it writes, beyond keeping what was fsynced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Recovery leaves nothing at all for a checker to find. Without it, leaks and counts that are
    /// too high are allowed.
    pub clean_after_recovery: bool,
    /// The names found after a crash are those after one operation: operations reach the disk in
    /// order and whole. Without it, each name is old or new for itself.
    pub operations_in_order: bool,
    /// No file shows anything that was not written into it. Without it, data that was not fsynced
    /// may be anything.
    pub no_stale_data: bool,
}

/// How bad what a check found is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing was found.
    Clean,
    /// Only what soft updates may leave.
    Leaks,
    /// Something that must never happen.
    Damage,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The worst of it.
    pub severity: Severity,
    /// What is damaged, one line each; leaks are not listed.
    pub damage: Vec<String>,
}

impl Findings {
    /// Nothing.
    pub const CLEAN: Self = Self { severity: Severity::Clean, damage: Vec::new() };
}

/// What a file system's trees are made of, which says what is tried on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// Owners, modes, links, extended attributes, devices, names of 255 bytes.
    Unix,
    /// Files and folders, names of 31 letters, in which case does not count. A node keeps its inode
    /// number for ever, and no other ever has it.
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
    /// A file system that writes back only when it is told to sync.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, write_back: None }
    }

    /// Also says how to run one round of the write-back that a thread would run by age.
    #[must_use]
    pub fn with_write_back(self, run: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self { write_back: Some(Box::new(run)), ..self }
    }

    /// Runs one round of write-back.
    ///
    /// # Errors
    /// [`Error::Fs`](crate::Error::Fs) with `Unsupported` if the file system cannot be told to.
    pub fn write_back(&self) -> Result<()> {
        self.write_back.as_ref().map_or_else(unsupported_write_back, |run| run())
    }
}

/// One round of an engine's write-back.
pub(crate) fn write_back(engine: &Engine) -> Result<()> {
    let io =
        |e: weft_patch::Error| weft_vfs::Error::Io { errno: e.errno(), message: e.to_string() };
    engine.write_back().map_err(io).map_err(crate::Error::fs("writeback"))
}

/// What a file system answers that has no write-back to be run by request.
pub(crate) fn unsupported_write_back() -> Result<()> {
    let unsupported = weft_vfs::Error::Unsupported("write-back by request");
    Err(crate::Error::fs("writeback")(unsupported))
}

/// A file system under test.
pub trait Target: Send + Sync {
    /// The volume that every workload begins with.
    ///
    /// # Errors
    /// [`Error::Target`](crate::Error::Target).
    fn fresh(&self) -> Result<Image>;

    /// The unit in which the file system writes, in bytes.
    fn block_bytes(&self) -> usize;

    /// What it promises.
    fn promises(&self) -> Promises;

    /// What its trees are made of.
    fn tree(&self) -> Tree {
        Tree::Unix
    }

    /// Mounts a volume, without threads of its own if it can, so that runs are repeatable.
    /// Recovery, where there is any, happens here; a repair in the background does not.
    ///
    /// # Errors
    /// Whatever keeps it from being mounted.
    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted>;

    /// Checks an unmounted volume with the file system's own checker, which changes nothing;
    /// `None` if it has none. `renames_dirs`: the workload renames directories, which a crash may
    /// leave with two names.
    ///
    /// # Errors
    /// If it cannot be checked at all.
    fn check(&self, device: Arc<dyn BlockDevice>, renames_dirs: bool) -> Result<Option<Findings>>;

    /// Repairs an unmounted volume, recovery included; `false` if it knows no repair.
    ///
    /// # Errors
    /// If it cannot be repaired.
    fn repair(&self, device: Arc<dyn BlockDevice>) -> Result<bool>;

    /// Mounts a volume, lets the repair in the background come to its end, and unmounts; `false`
    /// if there is none.
    ///
    /// # Errors
    /// Whatever keeps it from being mounted or unmounted.
    fn heal(&self, device: Arc<dyn BlockDevice>) -> Result<bool>;

    /// Whether e2fsck understands its volumes.
    fn is_ext2(&self) -> bool;

    /// The options of the `weft crash` command that select this target.
    fn options(&self) -> String;
}
