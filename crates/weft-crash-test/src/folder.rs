//! The path on which the tests of a user mount: the same in every run, as programs write absolute paths into
//! their files (virtual environments, git worktrees, tablespaces), and these must mean the same in the
//! check, and when a recording is searched again.
//!
//! Each worker mounts in a namespace of its own, so that tests at the same time share the path. It is not
//! below the directory for temporary files, as some programs treat files there in another way (vim makes
//! no backup of them). A directory of another user is never used: its owner could take the mount away.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::process::geteuid;

use crate::mutex::locked;

/// The parent of the directories of all users, on every Linux, and writable by all.
const PARENT: &str = "/var/tmp";

/// How often the directory is looked for again that another process has removed.
const ATTEMPTS: usize = 100;

/// The numbers of the tests that this process runs at the same time.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The directory of a user, which is removed when no test of the user uses it any more.
#[derive(Debug)]
pub(crate) struct Folder {
    base: PathBuf,
    /// Shared by all tests of the user.
    lock: File,
    /// The number of the test, the smallest that is free: what one records the next searches.
    number: u32,
}

impl Folder {
    /// `None` if there is no such directory that belongs to this user alone.
    pub(crate) fn new() -> Option<Self> {
        let found = Self::new_in(Path::new(PARENT));
        if let Err(e) = &found {
            tracing::info!("no folder in {PARENT}: {e}");
        }
        found.ok()
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        let uid = geteuid().as_raw();
        let base = parent.join(format!("weft-crash-{uid}"));
        for _ in 0..ATTEMPTS {
            // A program of a test may become another user: it has to get through.
            make(&base)?;
            let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = match openat(CWD, &base, how, Mode::empty()) {
                Ok(fd) => File::from(fd),
                // The last test before this one has just removed it.
                Err(rustix::io::Errno::NOENT) => continue,
                Err(e) => return Err(e.into()),
            };
            let found = lock.metadata()?;
            if found.uid() != uid || found.mode() & 0o022 != 0 {
                return Err(io::Error::other(format!("{} is another's", base.display())));
            }
            // Another holds it alone only while it removes the directory.
            let is_locked = flock(&lock, FlockOperation::LockShared).is_ok();
            if is_locked && is_at(&lock, &base) && make(&base.join("mnt")).is_ok() {
                return Ok(Self { base, lock, number: take_number() });
            }
        }
        Err(io::Error::other(format!("{} is removed each time", base.display())))
    }

    /// Returns the folder, for mounts in a namespace.
    pub(crate) fn path(&self) -> PathBuf {
        self.base.join("mnt")
    }

    /// Returns the directory for mount points of this test that others see.
    pub(crate) fn shared(&self) -> PathBuf {
        self.base.join(format!("run-{}-{}", std::process::id(), self.number))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A mount point that is removed is unmounted in every namespace: not while others use it. What
        // cannot be removed is left to the next test.
        let _ = std::fs::remove_dir(self.shared());
        locked(&RUNNING).remove(&self.number);
        let is_last = flock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_last && is_at(&self.lock, &self.base) {
            let removed = std::fs::remove_dir(self.path());
            let _ = removed.and_then(|()| std::fs::remove_dir(&self.base));
        }
    }
}

fn take_number() -> u32 {
    let mut running = locked(&RUNNING);
    let free = (0..).find(|number| !running.contains(number)).unwrap_or(u32::MAX);
    running.insert(free);
    free
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Returns true if a path still names an open directory.
fn is_at(directory: &File, path: &Path) -> bool {
    let same = |found: &std::fs::Metadata| (found.dev(), found.ino());
    let named = std::fs::symlink_metadata(path).map(|found| same(&found));
    matches!((named, directory.metadata()), (Ok(named), Ok(own)) if named == same(&own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_a_user_share_a_folder_that_the_last_one_removes() {
        let parent = tempfile::tempdir().unwrap();
        let one = Folder::new_in(parent.path()).unwrap();
        let two = Folder::new_in(parent.path()).unwrap();
        assert_eq!(one.path(), two.path());
        assert_ne!(one.shared(), two.shared());
        assert!(one.path().is_dir());
        drop(one);
        assert!(two.path().is_dir());
        let base = two.base.clone();
        drop(two);
        assert!(!base.exists());
        // Many at once: each has it while it lives.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let folder = Folder::new_in(parent.path()).unwrap();
                        assert!(folder.path().is_dir());
                    }
                });
            }
        });
        assert!(!base.exists());
    }

    #[test]
    fn what_is_not_this_users_own_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let base = parent.path().join(format!("weft-crash-{}", geteuid().as_raw()));
        std::os::unix::fs::symlink(elsewhere.path(), &base).unwrap();
        assert!(Folder::new_in(parent.path()).is_err());
        std::fs::remove_file(&base).unwrap();
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Folder::new_in(parent.path()).is_err());
    }
}
