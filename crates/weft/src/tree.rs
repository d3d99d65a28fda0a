//! A file system that is ready to be mounted: an opened volume or a directory of the host, perhaps
//! with networks of transformations on its files.

use crate::directory_lock::lock_directory;
use crate::mount::{Session, fuse_options};
use crate::mount_options::MountOptions;
use crate::networks::Networks;
use crate::source::{CELL_STORE, HOST_DIRECTORY};
use crate::{Error, Result, Stack, mounts};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weft_transform::TransformFs;
use weft_vfs::{FileSystem, HostDir, Synchronous};

/// The time for which the kernel may cache names and attributes of a directory that other programs
/// change too.
const SHARED_LIFETIME: Duration = Duration::from_secs(1);

/// A file system, ready to be mounted or walked.
pub struct Tree {
    source: String,
    fs: Arc<dyn FileSystem>,
    read_only: bool,
    /// The time for which the kernel may cache names and attributes; `Some` if others change the
    /// files too.
    shared: Option<Duration>,
    /// Whether owners and modes are set by the members of a cell and not only by users of this
    /// machine.
    has_foreign_owners: bool,
    /// The networks on the files, including views by name.
    networks: Option<Arc<TransformFs>>,
    /// Whether views are snapshots, which the kernel reads directly.
    has_snapshots: bool,
    /// Whether a name has several spellings.
    has_aliases: bool,
    /// Whether files have companions, whose length follows that of the file.
    has_companions: bool,
    /// Whether the file system is another than that of the source.
    is_behind: bool,
    /// Distinguishes the inodes of a directory of the host from those of other trees.
    identity: Option<String>,
    /// The cell, for requests of the mount's user.
    #[cfg(feature = "ringer")]
    cell: Option<std::sync::Weak<weft_ringer_client::CellTree>>,
    /// The lock that keeps other processes of weft out of the same directory.
    lock: Option<OwnedFd>,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("source", &self.source).finish_non_exhaustive()
    }
}

impl From<Stack> for Tree {
    fn from(stack: Stack) -> Self {
        Self {
            source: stack.source().to_owned(),
            fs: stack.share(),
            read_only: stack.is_read_only(),
            shared: None,
            has_foreign_owners: false,
            networks: None,
            has_snapshots: false,
            has_aliases: stack.names_have_aliases(),
            has_companions: stack.shows_companions(),
            is_behind: false,
            identity: None,
            #[cfg(feature = "ringer")]
            cell: None,
            lock: None,
        }
    }
}

impl Tree {
    /// Opens the directory of the host that `source` names as `hostdir:PATH`; `None` if it names
    /// something else.
    ///
    /// # Errors
    /// [`Error::Host`]; [`Error::Invalid`] if another process of weft has opened it.
    pub fn host_directory(source: &str) -> Option<Result<Self>> {
        let path = source.strip_prefix(HOST_DIRECTORY)?;
        Some(Self::open_directory(source, Path::new(path)))
    }

    fn open_directory(source: &str, path: &Path) -> Result<Self> {
        let lock = lock_directory(path)?.ok_or_else(|| {
            Error::Invalid(format!("{} is in use by another process of weft", path.display()))
        })?;
        more_descriptors();
        let fs = HostDir::open(path)
            .map_err(|e| Error::host("open", path, std::io::Error::from_raw_os_error(e.errno())))?;
        Ok(Self {
            source: source.to_owned(),
            fs: Arc::new(fs),
            read_only: false,
            shared: Some(SHARED_LIFETIME),
            has_foreign_owners: false,
            networks: None,
            has_snapshots: false,
            has_aliases: false,
            has_companions: false,
            is_behind: false,
            #[cfg(feature = "ringer")]
            cell: None,
            identity: std::fs::metadata(path).ok().map(|found| format!("device {}", found.dev())),
            lock: Some(lock),
        })
    }

    /// Makes the tree of a cell of the shared file service, with the cells attached in it, as a
    /// client sees it. The kernel caches nothing: the client answers at once from what it holds
    /// under leases, and changes by other clients are seen at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the path of the local store is not UTF-8.
    #[cfg(feature = "ringer")]
    pub fn cell(store: &Path, fs: weft_ringer_client::CellTree) -> Result<Self> {
        let path = store
            .to_str()
            .ok_or_else(|| Error::Invalid(format!("{} is not UTF-8", store.display())))?;
        let fs = Arc::new(fs);
        Ok(Self {
            source: format!("{CELL_STORE}{path}"),
            cell: Some(Arc::downgrade(&fs)),
            fs,
            read_only: false,
            shared: Some(Duration::ZERO),
            has_foreign_owners: true,
            networks: None,
            has_snapshots: false,
            has_aliases: false,
            has_companions: false,
            is_behind: false,
            identity: None,
            lock: None,
        })
    }

    /// Shows another file system in place of this one, which is below it. Nobody else changes the
    /// files, and an `fsync` of the root is one of a directory: it makes nothing else durable.
    #[must_use]
    pub fn behind(self, fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, shared: None, is_behind: true, ..self }
    }

    /// Adds networks of transformations on the files.
    ///
    /// # Errors
    /// Those of [`Networks::over`].
    pub fn with_networks(mut self, networks: &Networks) -> Result<Self> {
        let shared = self.shared.is_some();
        let fs = networks.over_for_mount(self.fs, shared, self.identity.take())?;
        self.fs = fs.clone();
        self.networks = Some(fs);
        self.has_snapshots = networks.snapshot_views;
        Ok(self)
    }

    /// The file system.
    #[must_use]
    pub fn share(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs)
    }

    /// Mounts the tree on the directory `mountpoint` and returns while threads serve it.
    ///
    /// # Errors
    /// [`Error::Mount`] names what is missing.
    pub fn mount(self, mountpoint: &Path, options: &MountOptions) -> Result<Session> {
        if let Some(path) = self.source.strip_prefix(HOST_DIRECTORY)
            && let Some(above) = mountpoint.canonicalize().ok().as_deref().and_then(Path::parent)
            && mounts::is_within(above, Path::new(path))
        {
            // Whoever walks it would wait for this process, which waits for itself.
            return Err(Error::Usage(format!(
                "{} is in {path}, which would hold itself there, without an end; mount it elsewhere",
                mountpoint.display()
            )));
        }
        let source = mounts::absolute_source(&self.source)?;
        let read_only = options.read_only || self.read_only;
        let failed = |e: weft_fuse::Error| Error::Mount(e.to_string());
        let mut fuse = fuse_options(options, source, read_only);
        let asked = |name: &str| options.kernel.iter().any(|o| o == name);
        if self.has_foreign_owners {
            // A setuid program or a device node of another member would get root on this machine.
            fuse.suid &= asked("suid");
            fuse.dev &= asked("dev");
        }
        if let Some(lifetime) = self.shared {
            fuse.shared = true;
            fuse.lifetime = lifetime;
        }
        // Takes effect only for a directory of the host, and for outputs that are kept there.
        fuse.passthrough = options.passthrough.unwrap_or(self.lock.is_some() || self.has_snapshots);
        if self.is_behind {
            fuse.passthrough = false;
            fuse.sync_by_root = false;
        }
        if self.has_aliases {
            // The kernel knows one spelling of a name, and would keep stale entries for the others.
            fuse.lifetime = Duration::ZERO;
            // The length of a companion must be fetched from the file system each time.
            fuse.writeback_cache &= !self.has_companions;
        }
        fuse.absent_names = self.networks.is_none();
        // Without `allow_other` the kernel admits only the user who mounts.
        if let Some(networks) = self.networks.as_ref().filter(|_| !options.allow_other) {
            networks.serve_one_user();
        }
        let mut top = self.fs;
        if asked("sync") || asked("dirsync") {
            top = if asked("sync") {
                // What the kernel writes to files of the host, or collects, would not be durable.
                (fuse.passthrough, fuse.writeback_cache) = (false, false);
                Arc::new(Synchronous::all(top))
            } else {
                Arc::new(Synchronous::names(top))
            };
        }
        let mount = weft_fuse::mount(top, mountpoint, &fuse).map_err(failed)?;
        if !options.leave_signals {
            mount.unmount_on_signals().map_err(failed)?;
        }
        let session = Session::new(mount, self.lock);
        #[cfg(feature = "ringer")]
        if let Some(cell) = self.cell {
            return Ok(session.with_control(cell));
        }
        Ok(session)
    }
}

impl Stack {
    /// Mounts the volume on the directory `mountpoint` and returns while threads serve it.
    ///
    /// # Errors
    /// [`Error::Mount`] names what is missing.
    pub fn mount(self, mountpoint: &Path, options: &MountOptions) -> Result<Session> {
        Tree::from(self).mount(mountpoint, options)
    }
}

/// Raises the limit of open files to the maximum: a directory of the host takes descriptors for the
/// files that are used most, and two for each open file.
fn more_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
