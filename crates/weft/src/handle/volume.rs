//! An opened volume as a handle.
//!
//! Each call holds the volume open; closing it waits for the calls in progress, and later ones fail. In a
//! process that was forked from the one that opened it every call fails before it takes a lock, and what is
//! dropped there is left as it is: nothing is written, and no thread is waited for that is not there.

use super::group::Member;
use super::{File, Group};
use crate::{Error, Options, Order, Result, Stack};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use weft_block::OwnerProcess;
use weft_order::{Kind, UndoableGroups};
use weft_vfs::path::Listed;
use weft_vfs::{Attr, Caller, FileSystem, OpenFlags, RenameFlags, Walker};

/// The name of a volume in [`Error::Closed`].
const VOLUME: &str = "the volume";

/// A volume that is opened once and shared by all that use it. A clone is the same volume.
///
/// Permissions are not checked, as the image belongs to the user; new files belong to the user of this
/// process. Paths are bytes, and start at the root of the volume. The last handle that is dropped
/// closes the volume; only [`close`](Self::close) reports whether everything became durable.
///
/// It belongs to the process that opened it. In a child of `fork` every call of it, its files and its groups
/// fails with [`Error::OtherProcess`], and dropping them there does nothing.
#[derive(Debug, Clone)]
pub struct Volume(pub(super) Arc<Opened>);

#[derive(Debug)]
pub(super) struct Opened {
    source: String,
    /// The process that may use it.
    owner: OwnerProcess,
    open: RwLock<Option<Open>>,
    /// The groups, to be closed with the volume.
    groups: Mutex<Vec<Weak<Member>>>,
}

/// An open volume, with the groups of it that can be aborted.
#[derive(Debug)]
pub(super) struct Open {
    pub stack: Stack,
    pub undoable: UndoableGroups,
}

impl Open {
    fn close(self) -> Result<()> {
        self.undoable.keep_all();
        drop(self.undoable);
        self.stack.close()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.owner.is_this() {
            return std::mem::forget(open);
        }
        if let Some(Err(e)) = open.map(Open::close) {
            tracing::error!("{}: {e}", self.source);
        }
    }
}

impl Opened {
    /// Returns an error in a process that was forked from the one that opened the volume.
    pub fn demand_owner(&self) -> Result<()> {
        if self.owner.is_this() { Ok(()) } else { Err(Error::OtherProcess(VOLUME)) }
    }

    /// Runs a call on the volume, which stays open meanwhile.
    pub fn with<R>(&self, call: impl FnOnce(&Open) -> Result<R>) -> Result<R> {
        self.demand_owner()?;
        super::group::leave_ended();
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        call(open.as_ref().ok_or(Error::Closed(VOLUME))?)
    }

    /// Runs a call on the file system, in the groups of this thread.
    pub fn with_fs<R>(
        &self,
        action: &'static str,
        path: &[u8],
        call: impl FnOnce(&dyn FileSystem) -> weft_vfs::Result<R>,
    ) -> Result<R> {
        self.with(|open| {
            let groups = super::group::undoable_of_thread();
            open.undoable.with_fs(&groups, call).map_err(|e| Error::file(action, path, e))
        })
    }

    /// Adds a group to those that are closed with the volume.
    pub fn add(&self, member: &Arc<Member>) -> Result<()> {
        self.with(|_| {
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            if groups.len() == groups.capacity() {
                groups.retain(|group| group.strong_count() > 0);
            }
            groups.push(Arc::downgrade(member));
            Ok(())
        })
    }

    /// Runs a call on a path of the volume.
    pub fn at<R>(
        &self,
        action: &'static str,
        path: &[u8],
        call: impl FnOnce(&Walker<'_>) -> weft_vfs::Result<R>,
    ) -> Result<R> {
        self.with_fs(action, path, |fs| call(&Walker::owned_by(fs, caller())))
    }
}

/// The caller of all calls: new files belong to the user of this process.
pub(super) fn caller() -> Caller {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Caller { uid: uid.as_raw(), gid: gid.as_raw(), ..Caller::ROOT }
}

impl Volume {
    /// Opens the volume in `source`, as [`Stack::open`] does.
    ///
    /// # Errors
    /// Those of [`Stack::open`].
    pub fn open(source: &str, options: &Options) -> Result<Self> {
        Stack::open(source, options).map(Self::from)
    }

    /// Makes everything durable, marks the volume clean and closes it. Its files and groups are closed
    /// with it: their calls fail from then on, and an atomic group ends and keeps its changes. The image is
    /// free for others at once, but for threads that are still in one of its groups: each holds it until
    /// its next call of weft, or its end.
    ///
    /// # Errors
    /// [`Error::Closed`]; those of [`Stack::close`], after which the volume is closed as well.
    pub fn close(&self) -> Result<()> {
        self.0.demand_owner()?;
        let mut open = self.0.open.write().unwrap_or_else(PoisonError::into_inner);
        let open = open.take().ok_or(Error::Closed(VOLUME))?;
        // Each holds the device, which others can open once all are closed. Before the volume: it would
        // wait for atomic ones, and what closing it changes is in none of them.
        let groups = self.0.groups.lock().unwrap_or_else(PoisonError::into_inner).split_off(0);
        groups.iter().filter_map(Weak::upgrade).for_each(|group| group.close());
        super::group::leave_ended();
        open.close()
    }

    /// The source that was opened.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Returns the order of the volume's writes.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn order(&self) -> Result<Order> {
        self.0.with(|open| Ok(open.stack.order()))
    }

    /// Returns true if the volume refuses changes.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn is_read_only(&self) -> Result<bool> {
        self.0.with(|open| Ok(open.stack.is_read_only()))
    }

    /// Returns the attributes of the inode at `path`; symbolic links are followed.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Closed`], as for all calls with a path.
    pub fn stat(&self, path: &[u8]) -> Result<Attr> {
        self.0.at("examine", path, |walker| walker.resolve(path)?.stat())
    }

    /// As [`stat`](Self::stat), but of a symbolic link itself.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn stat_link(&self, path: &[u8]) -> Result<Attr> {
        self.0.at("examine", path, |walker| walker.resolve_link(path)?.stat())
    }

    /// Returns the names of the directory `path` without `.` and `..`, in its own order.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn list(&self, path: &[u8]) -> Result<Vec<Listed>> {
        self.0.at("list", path, |walker| walker.resolve(path)?.list())
    }

    /// Opens a file. With permission bits in `create` it is made if it does not exist, and with
    /// [`OpenFlags::EXCLUSIVE`] only then.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn open_file(&self, path: &[u8], flags: OpenFlags, create: Option<u16>) -> Result<File> {
        File::open(&self.0, path, flags, create)
    }

    /// Returns the whole content of a file, which must fit into memory.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn read_file(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.0.at("read", path, |walker| walker.read_file(path))
    }

    /// Makes a file, or replaces the content of an existing one.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn write_file(&self, path: &[u8], content: &[u8], perm: u16) -> Result<()> {
        self.0.at("write", path, |walker| walker.write_file(path, content, perm).map(drop))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn make_dir(&self, path: &[u8], perm: u16) -> Result<()> {
        self.0.at("make", path, |walker| walker.mkdir(path, perm).map(drop))
    }

    /// Removes a name that is not that of a directory.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn remove_file(&self, path: &[u8]) -> Result<()> {
        self.0.at("remove", path, |walker| {
            let place = walker.place(path)?;
            if place.wants_dir {
                return Err(weft_vfs::Error::NotADirectory);
            }
            walker.fs().unlink(&caller(), place.dir.ino(), &place.name)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        self.0.at("remove", path, |walker| {
            let place = walker.place(path)?;
            walker.fs().rmdir(&caller(), place.dir.ino(), &place.name)
        })
    }

    /// Renames; what `new_path` named before is replaced, as by rename(2).
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn rename(&self, path: &[u8], new_path: &[u8]) -> Result<()> {
        self.0.at("rename", path, |walker| walker.rename(path, new_path, RenameFlags::empty()))
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    pub fn sync(&self) -> Result<()> {
        self.0.at("sync", b"/", |walker| walker.fs().sync())
    }

    /// Makes a patchgroup of this volume, as [`Group::on_volume`] does.
    ///
    /// # Errors
    /// Those of [`Group::on_volume`].
    pub fn group(&self) -> Result<Group> {
        Group::on_volume(self)
    }

    /// Makes a patchgroup of a kind, as [`Group::on_volume_of_kind`] does.
    ///
    /// # Errors
    /// Those of [`Group::on_volume_of_kind`].
    pub fn group_of_kind(&self, kind: Kind) -> Result<Group> {
        Group::on_volume_of_kind(self, kind)
    }
}

impl From<Stack> for Volume {
    fn from(stack: Stack) -> Self {
        let source = stack.source().to_owned();
        let groups = Mutex::default();
        let undoable = UndoableGroups::new(stack.share());
        let open = RwLock::new(Some(Open { stack, undoable }));
        Self(Arc::new(Opened { source, owner: OwnerProcess::this(), open, groups }))
    }
}
