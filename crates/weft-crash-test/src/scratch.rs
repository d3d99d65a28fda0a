//! The directory for the files of a test, and those that tests have left which were killed.
//!
//! A test holds a lock (`flock`) of its directory, which the kernel frees when the process ends in any
//! way: a directory that can be locked belongs to nobody. Its age says nothing, as a test may run for
//! days.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::folder::Folder;
use crate::sandbox::MountPoints;
use crate::{Error, Result};

/// The beginning of their names. No directory that begins so is ever left unlocked by its owner.
const PREFIX: &str = "weft-crash-run-";

/// A directory for the files of a test.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: TempDir,
    /// The folder of the user's tests; without one the mount points are in the directory.
    folder: Option<Folder>,
    /// Its lock. No process that is started inherits it.
    _lock: File,
}

impl Scratch {
    /// Makes a directory, after those have been removed that tests have left behind.
    pub(crate) fn new() -> Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> Result<Self> {
        const ATTEMPTS: usize = 100;
        let failed = || Error::io("making a directory for temporary files");
        remove_left(parent);
        for _ in 0..ATTEMPTS {
            let directory =
                tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).map_err(failed())?;
            // Another test may take it for left behind before it is locked, and remove it.
            if let Some(lock) = lock(directory.path()) {
                return Ok(Self { directory, folder: Folder::new(), _lock: lock });
            }
        }
        let source = std::io::Error::other("it is removed each time");
        Err(failed()(source))
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Where workers mount.
    pub(crate) fn mount_points(&self) -> MountPoints {
        match &self.folder {
            Some(folder) => MountPoints { own: folder.path(), shared: folder.shared() },
            None => MountPoints { own: self.path().join("mnt"), shared: self.path().to_owned() },
        }
    }

    /// The recording.
    pub(crate) fn recording(&self) -> PathBuf {
        self.path().join("recording")
    }

    pub(crate) fn promises(&self, worker: u32) -> PathBuf {
        self.path().join(format!("promises-{worker}"))
    }
}

/// Locks a directory of this user. `None` if another process has locked it, or it is not there any
/// more.
fn lock(path: &Path) -> Option<File> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(openat(CWD, path, how, Mode::empty()).ok()?);
    let found = directory.metadata().ok()?;
    if found.uid() != geteuid().as_raw() {
        return None;
    }
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    let named = std::fs::symlink_metadata(path).ok()?;
    let is_same = (named.dev(), named.ino()) == (found.dev(), found.ino());
    is_same.then_some(directory)
}

/// Removes the directories of tests that were killed. What cannot be removed is left.
fn remove_left(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let path = entry.path();
        if !is_ours || has_mounts(&path) {
            continue;
        }
        // The lock is held until it is gone.
        let Some(_lock) = lock(&path) else { continue };
        match std::fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "removed what a killed test had left"),
            Err(e) => tracing::warn!(path = %path.display(), "cannot be removed: {e}"),
        }
    }
}

/// Returns true if something is mounted in a directory: it would be removed with it. Tests mount only
/// in namespaces of their own.
fn has_mounts(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return true };
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return true };
    let table = String::from_utf8_lossy(&table);
    let mut points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| Path::new(point).starts_with(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_without_an_owner_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let left = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir_all(path.join("deep/er")).unwrap();
            std::fs::write(path.join("recording"), "data").unwrap();
            path
        };
        let dead = left("weft-crash-run-dead");
        let others = [left("weft-crash-other"), left("other")];
        let elsewhere = left("elsewhere");
        let link = parent.path().join("weft-crash-run-link");
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        let alive = Scratch::new_in(parent.path()).unwrap();
        assert!(!dead.exists());
        let second = Scratch::new_in(parent.path()).unwrap();
        for kept in [alive.path(), second.path(), &others[0], &others[1], &elsewhere, &link] {
            assert!(kept.exists(), "{}", kept.display());
        }
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }
}
