//! A volume as a FUSE mount.

use crate::mount_options::MountOptions;
use crate::{Error, Result, Stack, Tree};
use std::os::fd::OwnedFd;
use std::path::Path;

/// A mounted volume, served by threads of this process. Dropping it unmounts.
#[derive(Debug)]
pub struct Session {
    mount: weft_fuse::Mount,
    /// Held until everything is durable.
    _lock: Option<OwnedFd>,
}

impl Stack {
    /// Mounts the volume on the directory `mountpoint` and returns while threads serve it.
    ///
    /// # Errors
    /// [`Error::Mount`] says what is missing.
    pub fn mount(self, mountpoint: &Path, options: &MountOptions) -> Result<Session> {
        Tree::from(self).mount(mountpoint, options)
    }
}

impl Session {
    pub(crate) fn new(mount: weft_fuse::Mount, lock: Option<OwnedFd>) -> Self {
        Self { mount, _lock: lock }
    }

    /// Waits until somebody unmounts (or SIGTERM or SIGINT says so), then makes everything durable.
    ///
    /// # Errors
    /// [`Error::Mount`] if the connection broke or the last writes failed.
    pub fn wait(self) -> Result<()> {
        self.mount.join().map_err(|e| Error::Mount(e.to_string()))
    }

    /// Unmounts and makes everything durable.
    ///
    /// # Errors
    /// [`Error::Mount`], also if the mount is in use.
    pub fn unmount(mut self) -> Result<()> {
        self.mount.unmount().map_err(|e| Error::Mount(e.to_string()))
    }
}

pub(crate) fn fuse_options(
    options: &MountOptions,
    source: String,
    read_only: bool,
) -> weft_fuse::MountOptions {
    let has = |name: &str| options.kernel.iter().any(|o| o == name);
    let mut fuse = weft_fuse::MountOptions { source, ..weft_fuse::MountOptions::default() };
    fuse.read_only = read_only;
    fuse.allow_other = options.allow_other;
    fuse.suid &= !has("nosuid");
    fuse.dev &= !has("nodev");
    fuse.no_exec = has("noexec");
    if let Some(threads) = options.threads {
        fuse.threads = threads;
    }
    fuse.xattrs = !options.no_xattr;
    if let Some(yes) = options.writeback {
        fuse.writeback_cache = yes;
    }
    if let Some(yes) = options.polling {
        fuse.polling = yes;
    }
    fuse
}
