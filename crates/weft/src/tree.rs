//! A file system that is ready to be mounted: an opened volume or a directory of the host, perhaps
//! with networks of transformations on its files.

use crate::mount_options::MountOptions;
use crate::networks::Networks;
use crate::{Error, Result, Session, Stack, mounts};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weft_transform::TransformFs;
use weft_vfs::{FileSystem, HostDir};

/// How a source begins that is a directory of the host: `hostdir:/srv/data`.
pub const HOST_DIRECTORY: &str = "hostdir:";

/// How a source begins that is a client of a cell of the shared file service: the path of its local
/// store follows.
pub const CELL_STORE: &str = "ringer:";

/// How long the kernel may trust names and attributes of a directory that others change too.
const SHARED_LIFETIME: Duration = Duration::from_secs(1);

/// A file system, ready to be mounted or walked.
pub struct Tree {
    source: String,
    fs: Arc<dyn FileSystem>,
    read_only: bool,
    /// Others change the files too: how long the kernel may trust what it knows.
    shared: Option<Duration>,
    /// Owners and modes are what the members of a cell have set, not this machine's users alone.
    has_foreign_owners: bool,
    /// With networks on its files, among them views by name.
    networks: Option<Arc<TransformFs>>,
    /// Views are snapshots, which the kernel reads by itself.
    has_snapshots: bool,
    /// A name has several spellings.
    has_aliases: bool,
    /// Files have companions, whose length follows theirs.
    has_companions: bool,
    /// What tells its inodes from those of other trees, of a directory of the host.
    identity: Option<String>,
    /// Keeps other processes of weft from the same directory.
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
            identity: None,
            lock: None,
        }
    }
}

impl Tree {
    /// The directory of the host that `source` names as `hostdir:PATH`; `None` if it names
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
            identity: std::fs::metadata(path).ok().map(|found| format!("device {}", found.dev())),
            lock: Some(lock),
        })
    }

    /// A cell of the shared file service with those attached in it, as a client has them. The kernel trusts nothing: what the
    /// client has under leases it answers at once, and what others change is seen at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the path of the local store is not UTF-8.
    #[cfg(feature = "ringer")]
    pub fn cell(store: &Path, fs: weft_ringer_client::CellTree) -> Result<Self> {
        let path = store
            .to_str()
            .ok_or_else(|| Error::Invalid(format!("{} is not UTF-8", store.display())))?;
        Ok(Self {
            source: format!("{CELL_STORE}{path}"),
            fs: Arc::new(fs),
            read_only: false,
            shared: Some(Duration::ZERO),
            has_foreign_owners: true,
            networks: None,
            has_snapshots: false,
            has_aliases: false,
            has_companions: false,
            identity: None,
            lock: None,
        })
    }

    /// The same with networks on its files.
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

    /// Mounts it on the directory `mountpoint` and returns while threads serve it.
    ///
    /// # Errors
    /// [`Error::Mount`] says what is missing.
    pub fn mount(self, mountpoint: &Path, options: &MountOptions) -> Result<Session> {
        let source = mounts::absolute_source(&self.source)?;
        let read_only = options.read_only || self.read_only;
        let failed = |e: weft_fuse::Error| Error::Mount(e.to_string());
        let mut fuse = crate::mount::fuse_options(options, source, read_only);
        if self.has_foreign_owners {
            // A setuid program or a device node of theirs would have this machine's root.
            let asked = |name: &str| options.kernel.iter().any(|o| o == name);
            fuse.suid &= asked("suid");
            fuse.dev &= asked("dev");
        }
        if let Some(lifetime) = self.shared {
            fuse.shared = true;
            fuse.lifetime = lifetime;
        }
        // Without effect for all but a directory of the host, and outputs that are kept there.
        fuse.passthrough = options.passthrough.unwrap_or(self.lock.is_some() || self.has_snapshots);
        if self.has_aliases {
            // The kernel knows one spelling of a name, and would go on believing in the others.
            fuse.lifetime = Duration::ZERO;
            // The kernel must ask for the length of a companion.
            fuse.writeback_cache &= !self.has_companions;
        }
        fuse.absent_names = self.networks.is_none();
        // Without it the kernel lets in the user who mounts, and nobody else.
        if let Some(networks) = self.networks.as_ref().filter(|_| !options.allow_other) {
            networks.serve_one_user();
        }
        let mount = weft_fuse::mount(self.fs, mountpoint, &fuse).map_err(failed)?;
        mount.unmount_on_signals().map_err(failed)?;
        Ok(Session::new(mount, self.lock))
    }
}

/// Locks a directory against other processes of weft; `None` if one of them has it.
fn lock_directory(path: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::host("open", path, e))?;
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(fd)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(Error::host("lock", path, e)),
    }
}

/// Whether no process of weft has opened the directory of a source any more.
pub(crate) fn is_free(path: &Path) -> bool {
    !matches!(lock_directory(path), Ok(None))
}

/// A directory of the host takes descriptors for the files that are used most, and two for each that
/// is open: as many as this process may have.
fn more_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
