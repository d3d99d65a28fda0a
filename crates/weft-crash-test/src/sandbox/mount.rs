//! The mount of a worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;
use weft_fuse::{IoUring, Mount, MountOptions};
use weft_vfs::FileSystem;

use super::{Error, Result};

/// A file system mounted for the commands of a worker.
///
/// Dropping it unmounts. If a command has unmounted or moved it (root can, in the worker's
/// namespace), nothing is waited for: the worker should end, which ends the mount wherever it is.
#[derive(Debug)]
pub struct TestMount {
    /// `None` once it was dropped.
    mount: Option<Mount>,
    path: PathBuf,
    /// The kernel's number of the mount.
    id: Option<u64>,
}

/// Returns the options of a mount of which the commands are to see what they would see of a local
/// disk: permissions are checked (for root, who may become another user, those of all), there are
/// extended attributes and ACLs, and names are cached; set-user-ID bits and device nodes have no effect.
#[must_use]
pub fn mount_options() -> MountOptions {
    MountOptions {
        source: "weft-crash".into(),
        allow_other: geteuid().is_root(),
        suid: false,
        dev: false,
        // What a program does to the directory is not to be taken for more.
        sync_by_root: false,
        // Each worker would have a queue for every CPU.
        io_uring: IoUring::Off,
        ..MountOptions::default()
    }
}

impl TestMount {
    /// Mounts a file system with [`mount_options`].
    ///
    /// # Errors
    /// [`Error::Mount`].
    pub fn new(fs: Arc<dyn FileSystem>, path: &Path) -> Result<Self> {
        Self::with_options(fs, path, &mount_options())
    }

    /// Mounts a file system.
    ///
    /// # Errors
    /// [`Error::Mount`].
    pub fn with_options(
        fs: Arc<dyn FileSystem>,
        path: &Path,
        options: &MountOptions,
    ) -> Result<Self> {
        let mount = weft_fuse::mount(fs, path, options)?;
        let path = mount.mountpoint().to_owned();
        let id = mount_id(&path);
        Ok(Self { mount: Some(mount), path, id })
    }

    /// Returns the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if a program that opens the folder gets this mount: no command has unmounted it,
    /// or mounted something over it.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.id.is_some() && mount_id(&self.path) == self.id
    }

    /// Unmounts, and waits for the end of the mount, if it [is in place](Self::is_in_place).
    ///
    /// # Errors
    /// [`Error::Mount`].
    pub fn unmount(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let Some(mut mount) = self.mount.take() else { return Ok(()) };
        if !self.is_in_place() {
            // Something else is at its path, and the end of the mount may never come.
            std::mem::forget(mount);
            return Ok(());
        }
        match mount.unmount() {
            // Commands may have mounted something in it: it goes, too.
            Err(weft_fuse::Error::Busy(_)) => {
                match unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                    Ok(()) => mount.join().map_err(Error::Mount),
                    // Dropping does it with the helper.
                    Err(_) => {
                        drop(mount);
                        Ok(())
                    }
                }
            }
            other => other.map_err(Error::Mount),
        }
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Err(e) = self.finish() {
            tracing::warn!("{e}");
        }
    }
}

/// Returns the kernel's number of the mount that is at a path; no file system is asked. From Linux 6.8
/// on no other mount ever has it; before, a later one may.
fn mount_id(path: &Path) -> Option<u64> {
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    [UNIQUE, StatxFlags::MNT_ID].into_iter().find_map(|wanted| {
        let found = statx(CWD, path, flags, wanted).ok()?;
        let known = StatxFlags::from_bits_retain(found.stx_mask);
        known.contains(wanted).then_some(found.stx_mnt_id)
    })
}
