//! A directory of the host as a [`FileSystem`](crate::FileSystem).
//!
//! Every call goes through an `O_PATH` descriptor of its inode. So no call depends on the current
//! meaning of a path, and a process that renames files meanwhile cannot lead a call out of the
//! directory. Calls that need more than a name open the inode again by `/proc/self/fd`, which must
//! therefore be mounted.
//!
//! The number of descriptors is limited ([`HostDirOptions::descriptors`]), however many inodes a
//! kernel refers to: the least recently used are closed, and opened again by a file handle, or,
//! without the privilege for that and on other devices, by the name that the inode had when it was
//! looked up. If another process has renamed or removed such an inode meanwhile, calls on it fail
//! with [`Error::Stale`]. An inode that is removed through this file system stays open as long as
//! it is referenced, as does an inode with an open handle.
//!
//! Inode numbers are the host's, and stay the same after they are forgotten (see `numbers`).
//!
//! New inodes are created by this process and then given to the caller, which needs privilege;
//! without it they belong to the user of this process. The change time cannot be set: the host sets
//! it.

mod acls;
mod attributes;
mod calls;
mod content;
mod descriptors;
mod errno;
mod handle;
mod inodes;
mod numbers;
mod own_files;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::{CWD, Mode, OFlags, Statx, openat};
use rustix::io::Errno;

use crate::mutex::locked;
use crate::{Entry, Error, FileKind, Handle, HandleTable, Ino, OpenFlags, Result, check_name};
use attributes::stat;
use descriptors::{Descriptor, Descriptors, magic};
use errno::os;
use handle::FileHandle;
use inodes::{Inode, Inodes, Way};
use numbers::key;

/// A directory of the host.
///
/// ```no_run
/// use weft_vfs::{FileSystem, HostDir, Walker};
/// let fs = HostDir::open("/srv/data".as_ref())?;
/// for name in Walker::new(&fs).resolve(b"/")?.list()? {
///     println!("{}", String::from_utf8_lossy(&name.name));
/// }
/// # Ok::<(), weft_vfs::Error>(())
/// ```
pub struct HostDir {
    root: Arc<Inode>,
    /// The descriptor of the root, for opening by handle.
    root_fd: Arc<OwnedFd>,
    /// Whether inodes of the root's device are opened again by their handle.
    by_handle: bool,
    descriptors: Descriptors,
    inodes: Mutex<Inodes>,
    handles: Mutex<HandleTable<Opened>>,
    /// Held for writing while the mode of a file is not the one to be shown (`own_files`).
    modes: RwLock<()>,
}

/// Options for a directory of the host.
#[derive(Debug, Clone)]
pub struct HostDirOptions {
    /// Maximum number of descriptors kept open for inodes without an open file handle. Each of
    /// those needs two more. By default a quarter of the limit of the process (`RLIMIT_NOFILE`),
    /// and at most 16384.
    pub descriptors: usize,
    /// Whether to reopen inodes by `open_by_handle_at(2)`, where that is possible.
    pub by_handle: bool,
}

/// The limit of descriptors kept open by default: opening one again costs a few microseconds.
const DESCRIPTORS_MAX: u64 = 16_384;

impl Default for HostDirOptions {
    fn default() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let max = limit.map_or(DESCRIPTORS_MAX, |limit| (limit / 4).clamp(16, DESCRIPTORS_MAX));
        Self { descriptors: usize::try_from(max).unwrap_or(usize::MAX), by_handle: true }
    }
}

/// An open file.
#[derive(Debug, Clone)]
struct Opened {
    inode: Arc<Inode>,
    /// Keeps the inode addressable as long as the file is open.
    _named: Arc<Descriptor>,
    file: Arc<OwnedFd>,
    /// Whether it was opened with `O_APPEND`.
    appends: bool,
}

impl fmt::Debug for HostDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDir").field("root", &self.root.ino).finish_non_exhaustive()
    }
}

impl HostDir {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::Access`]; [`Error::Unsupported`]
    /// without `/proc`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &HostDirOptions::default())
    }

    /// Opens the directory at `path` with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, options: &HostDirOptions) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (fd, readable) = match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => (fd, true),
            // A directory that may be entered but not listed.
            Err(Errno::ACCESS) => {
                (openat(CWD, path, flags | OFlags::PATH, Mode::empty()).map_err(os)?, false)
            }
            Err(e) => return Err(os(e)),
        };
        let attributes = stat(&fd)?;
        let again = openat(CWD, magic(fd.as_fd()), flags | OFlags::PATH, Mode::empty());
        let again = again.map_err(|_| NO_PROC)?;
        if stat(&again)?.stx_ino != attributes.stx_ino {
            return Err(NO_PROC);
        }
        let opens_handles = || {
            let handle = FileHandle::of(fd.as_fd())?;
            let opened = handle.open(fd.as_fd(), OFlags::PATH | OFlags::CLOEXEC).ok()?;
            (key(&stat(&opened).ok()?) == key(&attributes)).then_some(())
        };
        let by_handle = options.by_handle && readable && opens_handles().is_some();
        let mut inodes = Inodes::default();
        let descriptors = Descriptors::new(options.descriptors);
        let root = inodes.add(&fd, &attributes, || Way::Held);
        inodes.add_uses(&root, 1);
        Ok(Self {
            root,
            root_fd: Arc::new(fd),
            by_handle,
            descriptors,
            inodes: Mutex::new(inodes),
            handles: Mutex::default(),
            modes: RwLock::default(),
        })
    }

    /// Calls `open`; if this process has no descriptor left, closes some and tries once more.
    fn opening(&self, open: impl Fn() -> std::result::Result<OwnedFd, Errno>) -> Result<OwnedFd> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.descriptors.make_room();
                open().map_err(os)
            }
            opened => opened.map_err(os),
        }
    }

    /// A descriptor that names an inode.
    fn fd(&self, inode: &Inode) -> Result<Named> {
        if inode.ino == self.root.ino {
            return Ok(Named::Root(self.root_fd.clone()));
        }
        self.named(inode).map(Named::Inode)
    }

    fn named(&self, inode: &Inode) -> Result<Arc<Descriptor>> {
        if let Some(named) = inode.named() {
            return Ok(named);
        }
        let stale = || Error::Stale(inode.ino.0);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match inode.way() {
            Way::Held => self.root_fd.try_clone().map_err(|e| errno::from_io(&e))?,
            Way::Handle(handle) => {
                match self.opening(|| handle.open(self.root_fd.as_fd(), flags)) {
                    Err(Error::Io { errno, .. }) if errno == Errno::STALE.raw_os_error() => {
                        return Err(stale());
                    }
                    opened => opened?,
                }
            }
            Way::Name(parent, name) => {
                let parent = self.fd(&parent)?;
                let open = || openat(&parent, &*name, flags, Mode::empty());
                match self.opening(open) {
                    Err(Error::NotFound | Error::NotADirectory) => return Err(stale()),
                    opened => opened?,
                }
            }
        };
        if !inode.is(&fd, &stat(&fd)?) {
            return Err(stale());
        }
        let named = self.descriptors.keep(fd);
        inode.set_named(&named);
        Ok(named)
    }

    /// Opens an inode again.
    fn open_inode(&self, inode: &Inode, flags: OFlags) -> Result<OwnedFd> {
        let named = self.fd(inode)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let path = magic(named.as_fd());
        self.as_owner(inode, || self.opening(|| openat(CWD, &*path, flags, Mode::empty())))
    }

    /// The attributes of an inode of the host, with its own mode.
    fn shown(&self, fd: impl AsFd) -> Result<Statx> {
        let _own = self.modes.read().unwrap_or_else(PoisonError::into_inner);
        stat(fd)
    }

    fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        locked(&self.inodes).get(ino)
    }

    /// Returns a directory, for calls on names in it.
    fn directory(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory { Ok(inode) } else { Err(Error::NotADirectory) }
    }

    /// Looks up the inode of a name, and adds one use.
    fn find(&self, parent: &Arc<Inode>, name: &[u8]) -> Result<(Arc<Inode>, Statx)> {
        check_name(name)?;
        if name == b".." {
            return self.parent(parent);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = self.fd(parent)?;
        let fd = self.opening(|| openat(&above, name, flags, Mode::empty()))?;
        self.keep(fd, parent, name)
    }

    /// Returns the parent directory, but never one above the root, even if another process has
    /// moved this directory out of the tree.
    fn parent(&self, directory: &Inode) -> Result<(Arc<Inode>, Statx)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let named = self.fd(directory)?;
        let start = if directory.ino == self.root.ino { c"." } else { c".." };
        let above = self.opening(|| openat(&named, start, flags, Mode::empty()))?;
        let root = self.root.key;
        let mut at = above.try_clone().map_err(|e| errno::from_io(&e))?;
        loop {
            let here = key(&stat(&at)?);
            if here == root {
                break;
            }
            at = self.opening(|| openat(&at, "..", flags, Mode::empty()))?;
            if key(&stat(&at)?) == here {
                // The root of the host: this directory is no longer below the root of this file
                // system.
                return Err(Error::NotFound);
            }
        }
        let attributes = self.shown(&above)?;
        // A caller that came here by names mostly holds a reference on it.
        let known = locked(&self.inodes).of_host(&key(&attributes));
        if let Some(known) = known.filter(|known| known.is(&above, &attributes)) {
            locked(&self.inodes).add_uses(&known, 1);
            return Ok((known, attributes));
        }
        let way = match directory.way() {
            Way::Name(parent, _) if parent.key == key(&attributes) => parent.way(),
            // Without a handle the directory could not be opened again.
            _ if !self.has_handle(&attributes) => return Err(Error::Stale(directory.ino.0)),
            way => way,
        };
        self.keep_by(above, attributes, || way)
    }

    /// Returns true if inodes of the device are opened again by their handle.
    fn has_handle(&self, attributes: &Statx) -> bool {
        let key = key(attributes);
        self.by_handle && (key.0, key.1) == (self.root.key.0, self.root.key.1)
    }

    /// Adds the inode of a name to the table, given a descriptor of it, with one use.
    fn keep(&self, fd: OwnedFd, parent: &Arc<Inode>, name: &[u8]) -> Result<(Arc<Inode>, Statx)> {
        let attributes = self.shown(&fd)?;
        let by_name = || Way::Name(parent.clone(), name.into());
        let (inode, attributes) = self.keep_by(fd, attributes, by_name)?;
        if name != b"." {
            inode.is_named(parent, name);
        }
        Ok((inode, attributes))
    }

    /// Adds the inode with a known way to open it again; a handle is preferred.
    fn keep_by(
        &self,
        fd: OwnedFd,
        attributes: Statx,
        other: impl FnOnce() -> Way,
    ) -> Result<(Arc<Inode>, Statx)> {
        let handle = || self.has_handle(&attributes).then(|| FileHandle::of(fd.as_fd())).flatten();
        let way = || handle().map_or_else(other, Way::Handle);
        let mut inodes = locked(&self.inodes);
        let inode = inodes.add(&fd, &attributes, way);
        inodes.add_uses(&inode, 1);
        drop(inodes);
        if inode.ino != self.root.ino && inode.named().is_none() {
            inode.set_named(&self.descriptors.keep(fd));
        }
        Ok((inode, attributes))
    }

    /// Returns the inode of a name, if it is referenced, with a descriptor of it.
    fn referred(&self, parent: &Inode, name: &[u8]) -> Option<(Arc<Inode>, Arc<Descriptor>)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = self.fd(parent).ok()?;
        let fd = self.opening(|| openat(&above, name, flags, Mode::empty())).ok()?;
        let attributes = stat(&fd).ok()?;
        let inode = locked(&self.inodes).of_host(&key(&attributes))?;
        if inode.ino == self.root.ino || !inode.is(&fd, &attributes) {
            return None;
        }
        let named = inode.named().unwrap_or_else(|| self.descriptors.keep(fd));
        inode.set_named(&named);
        Some((inode, named))
    }

    fn entry(&self, (inode, attributes): &(Arc<Inode>, Statx)) -> Entry {
        Entry { attr: attributes::attr(inode.ino, attributes), generation: 0 }
    }

    fn new_handle(&self, inode: Arc<Inode>, file: OwnedFd, flags: OpenFlags) -> Result<Handle> {
        let named = self.named(&inode)?;
        locked(&self.inodes).add_uses(&inode, 1);
        let appends = flags.contains(OpenFlags::APPEND);
        let opened = Opened { inode, _named: named, file: Arc::new(file), appends };
        Ok(locked(&self.handles).open(opened))
    }

    /// Releases uses of an inode.
    fn give_back(&self, ino: Ino, count: u64) {
        let open = locked(&self.inodes).drop_uses(ino, count);
        for descriptor in open {
            self.descriptors.close(&descriptor);
        }
    }
}

/// A descriptor that names an inode.
enum Named {
    Root(Arc<OwnedFd>),
    Inode(Arc<Descriptor>),
}

impl AsFd for Named {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(fd) => fd.as_fd(),
            Self::Inode(descriptor) => descriptor.as_fd(),
        }
    }
}

const NO_PROC: Error = Error::Unsupported("a directory of the host without /proc mounted");
