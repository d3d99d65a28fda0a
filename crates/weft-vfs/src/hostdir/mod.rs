//! A directory of the host as a [`FileSystem`](crate::FileSystem).
//!
//! Every inode that somebody refers to is held by a descriptor that names it and no more (`O_PATH`),
//! and every call goes through such a descriptor: so no call depends on what a path means at the
//! moment, and nobody who renames things under it can lead it out of the directory. Calls that need
//! more than a name open the inode again by `/proc/self/fd`, which must therefore be mounted.
//!
//! Each referenced inode takes a descriptor, two if its content is used: a program that serves many
//! files raises its limit (`RLIMIT_NOFILE`).
//!
//! New inodes are made by this process and then given to the caller, which takes privilege; without
//! it they stay this process's. The change time cannot be set: the host does that.

mod attributes;
mod calls;
mod content;
mod errno;
mod inodes;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, openat, statx};

use crate::{Entry, Error, FileKind, Handle, Ino, Result, check_name};
use errno::os;
use inodes::{Inode, Inodes};

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
    inodes: Mutex<Inodes>,
    handles: Mutex<HashMap<Handle, Opened>>,
    next_handle: AtomicU64,
}

/// An open file.
#[derive(Debug, Clone)]
struct Opened {
    inode: Arc<Inode>,
    file: Arc<OwnedFd>,
}

impl fmt::Debug for HostDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDir").field("root", &self.root.ino).finish_non_exhaustive()
    }
}

/// What is asked of `statx`.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept under these locks is whole after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attributes of the inode of a descriptor.
fn stat(fd: impl AsFd) -> Result<Statx> {
    statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, WANTED).map_err(os)
}

/// The path that leads to the inode of a descriptor, whatever names it has.
fn magic(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl HostDir {
    /// The directory at `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::Access`]; [`Error::Unsupported`]
    /// without `/proc`.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(os)?;
        let attributes = stat(&fd)?;
        if stat(openat(CWD, magic(fd.as_fd()), flags, Mode::empty()).map_err(|_| NO_PROC)?)?.stx_ino
            != attributes.stx_ino
        {
            return Err(NO_PROC);
        }
        let mut inodes = Inodes::default();
        let root = inodes.add(fd, &attributes);
        inodes.add_uses(&root, 1);
        Ok(Self {
            root,
            inodes: Mutex::new(inodes),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
        })
    }

    fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        locked(&self.inodes).get(ino)
    }

    /// A directory, for calls that name something in it.
    fn directory(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory { Ok(inode) } else { Err(Error::NotADirectory) }
    }

    /// The inode of a name, with one use.
    fn find(&self, parent: &Inode, name: &[u8]) -> Result<(Arc<Inode>, Statx)> {
        check_name(name)?;
        if name == b".." {
            return self.parent(parent);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&parent.fd, name, flags, Mode::empty()).map_err(os)?;
        self.keep(fd)
    }

    /// The directory above, but not above the root, not even if somebody moved this one out of it.
    fn parent(&self, directory: &Inode) -> Result<(Arc<Inode>, Statx)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = |fd: BorrowedFd<'_>| openat(fd, "..", flags, Mode::empty()).map_err(os);
        let start = if directory.ino == self.root.ino { c"." } else { c".." };
        let above = openat(&directory.fd, start, flags, Mode::empty()).map_err(os)?;
        let root = inodes::key(&stat(&self.root.fd)?);
        let mut at = above.try_clone().map_err(|e| errno::from_io(&e))?;
        loop {
            let here = inodes::key(&stat(&at)?);
            if here == root {
                return self.keep(above);
            }
            at = up(at.as_fd())?;
            if inodes::key(&stat(&at)?) == here {
                // The root of the host: this directory is not below ours any more.
                return Err(Error::NotFound);
            }
        }
    }

    /// Takes a descriptor into the table; the inode gets one use.
    fn keep(&self, fd: OwnedFd) -> Result<(Arc<Inode>, Statx)> {
        let attributes = stat(&fd)?;
        let mut inodes = locked(&self.inodes);
        let inode = inodes.add(fd, &attributes);
        inodes.add_uses(&inode, 1);
        Ok((inode, attributes))
    }

    fn entry(&self, (inode, attributes): &(Arc<Inode>, Statx)) -> Entry {
        Entry { attr: attributes::attr(inode.ino, attributes), generation: 0 }
    }

    fn new_handle(&self, inode: Arc<Inode>, file: OwnedFd) -> Handle {
        let handle = Handle(self.next_handle.fetch_add(1, Ordering::Relaxed));
        locked(&self.inodes).add_uses(&inode, 1);
        locked(&self.handles).insert(handle, Opened { inode, file: Arc::new(file) });
        handle
    }
}

const NO_PROC: Error = Error::Unsupported("a directory of the host without /proc mounted");

/// The kind of a file, as the host calls it.
fn kind_of(file_type: FileType) -> FileKind {
    match file_type {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}
