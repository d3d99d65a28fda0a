//! The plug itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::defaults::{copy_by_reading, create_by_mknod, list_by_lookup, seek_without_holes};
use crate::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, Error, FallocateMode, FileFlags,
    FileKind, FileLock, Handle, Ino, Interrupt, Invalidate, LockStyle, NAME_MAX_BYTES, OpenFlags,
    Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, TrimRange, XattrSet,
};

/// The reason in the error of every call on an extended attribute, by default.
const NO_ATTRIBUTES: &str = "extended attributes";

/// A file system. See the [crate] page for references and lifetimes.
///
/// Names are bytes, 1 to 255 of them, without `/` and NUL; an implementation checks them. Every
/// call that changes something, or makes changes durable, names the [`Caller`] for whom that is done.
/// A new inode belongs to the caller's user and group, or to the parent's group if the parent is
/// setgid (and a new directory is then setgid too). The front checks permission bits; a
/// [`FileSystem`] does not.
///
/// Reading, writing, allocating and seeking need a reference on the inode and no open handle: a
/// front may pass [`Handle::NONE`] (stateless I/O). An open handle adds its [`OpenFlags`] (append,
/// synchronous writes) and keeps the inode alive.
///
/// Six calls have no default: a read-only file system defines no others, and by default the calls
/// that change it fail with [`Error::ReadOnly`]. A file system on top of another is a
/// [`Layer`](crate::Layer).
pub trait FileSystem: Send + Sync {
    // ---- Calls without a default ----

    /// Returns the root directory. It needs no reference.
    fn root(&self) -> Ino;

    /// Finds `name` in `parent` and takes a reference on it. `.` and `..` are names too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NameTooLong`].
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if no inode has this number.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Reads into `buf` from byte `offset` on. Returns the number of bytes read, less than `buf`
    /// holds only at the end of the file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`].
    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Calls `each` with the names of a directory from `cursor` on, `.` and `..` included, until
    /// it returns `false`. An entry that was there all along is seen exactly once.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Makes everything durable. Has no default, as the loss of written data is noticed too late.
    ///
    /// # Errors
    /// Any write error.
    fn sync(&self) -> Result<()>;

    /// Runs `call`, and returns true, if this file system can keep its calls from waiting: those
    /// that `call` makes, in this thread, fail with [`Error::WouldBlock`](crate::Error::WouldBlock)
    /// if they would wait for a device or another host, and then have changed nothing, so that they
    /// can be made again where waiting is no harm. So one thread can serve many callers, and hand
    /// over the calls that take long. (`RWF_NOWAIT` of `preadv2(2)`, for every call.) Not to be made
    /// like that are calls that end something: [`forget`](Self::forget),
    /// [`forget_many`](Self::forget_many), [`release`](Self::release), [`unmount`](Self::unmount).
    ///
    /// By default returns false, and does not run `call`.
    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        let _ = call;
        false
    }

    // ---- References ----

    /// Releases `count` references. Does nothing by default, as is right for a file system in which
    /// no inode goes with its last reference.
    fn forget(&self, ino: Ino, count: u64) {
        let _ = (ino, count);
    }

    /// Releases references on many inodes.
    fn forget_many(&self, references: &[(Ino, u64)]) {
        for &(ino, count) in references {
            self.forget(ino, count);
        }
    }

    // ---- Other calls that read ----

    /// Lists a directory as [`readdir`](Self::readdir) does, with the attributes of each name.
    /// Takes a reference on each entry for which `each` returned `true`, except `.` and `..`. By
    /// default looks each name up.
    ///
    /// # Errors
    /// Those of [`readdir`](Self::readdir), and of [`lookup`](Self::lookup) for a name that cannot
    /// be looked up. The references to the entries before it are taken.
    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        list_by_lookup(self, ino, cursor, each)
    }

    /// Returns the target of a symbolic link, 1 to 4095 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the inode is no symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.getattr(ino)?;
        Err(Error::Invalid("not a symbolic link"))
    }

    /// Finds data or a hole, and returns its offset in bytes. By default all of a file is data.
    ///
    /// # Errors
    /// [`Error::NoAddress`] at or past the end.
    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        seek_without_holes(self.getattr(ino)?.size_bytes, from)
    }

    /// Returns space and inode counts. By default all are zero, as for a file system without limits
    /// of its own.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { block_bytes: 4096, name_max_bytes: NAME_MAX_BYTES as u32, ..StatFs::default() })
    }

    /// Returns the unit of stored times, in nanoseconds: a power of ten up to a second.
    fn time_unit_nanos(&self) -> u32 {
        1
    }

    // ---- Calls that change names and attributes ----

    /// Changes attributes and returns all of them. Any change sets ctime to now unless `set`
    /// gives one; a change of length sets mtime too unless `set` gives one (also a change to the
    /// same length). Space freed by a cut and given back by growing reads as zeroes.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoSpace`], [`Error::Overflow`].
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let _ = (caller, ino, set);
        Err(Error::ReadOnly)
    }

    /// Makes a node of any kind but a directory or a symbolic link. `rdev` counts for device
    /// nodes only. Takes a reference on the new inode.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], ...
    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let _ = (caller, parent, name, kind, perm, rdev);
        Err(Error::ReadOnly)
    }

    /// Makes a directory. Takes a reference on it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`], [`Error::NoSpace`], ...
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let _ = (caller, parent, name, perm);
        Err(Error::ReadOnly)
    }

    /// Makes a symbolic link to `target`. Takes a reference on it.
    ///
    /// # Errors
    /// Those of [`mknod`](Self::mknod); [`Error::NameTooLong`] if `target` has over 4095 bytes.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let _ = (caller, parent, name, target);
        Err(Error::ReadOnly)
    }

    /// Gives `ino` another name. Takes a reference on it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`], [`Error::NotPermitted`] for a directory.
    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let _ = (caller, ino, new_parent, new_name);
        Err(Error::ReadOnly)
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Error::ReadOnly)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotADirectory`], [`Error::Invalid`] for `.`.
    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Error::ReadOnly)
    }

    /// Renames, atomically also over a crash: the target name is the old file or the new one.
    ///
    /// # Errors
    /// The errno of `renameat2(2)`.
    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let _ = (caller, parent, name, new_parent, new_name, flags);
        Err(Error::ReadOnly)
    }

    /// Reports whether [`rename`](Self::rename) heeds [`RenameFlags::WHITEOUT`]; it is not called with it
    /// otherwise. By default it does not.
    fn has_whiteouts(&self) -> bool {
        false
    }

    /// Makes a regular file without a name, in the file system and with the owner that one in
    /// `parent` would have. Takes a reference on it, by which it lives until [`link`](Self::link)
    /// gives it a name.
    ///
    /// # Errors
    /// Those of [`mknod`](Self::mknod); [`Error::Unsupported`] if every file needs a name.
    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        let _ = (caller, parent, perm);
        Err(Error::Unsupported("files without a name"))
    }

    /// Gives an inode whose last name was removed, and on which there is still a reference, a name
    /// again: the undoing of a removal. A directory gets another [generation](Entry::generation), as
    /// fronts know it as one that is gone.
    ///
    /// # Errors
    /// Those of [`link`](Self::link); [`Error::Exists`] also if the inode has a name;
    /// [`Error::Unsupported`] where that cannot be done.
    fn restore_name(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, ino, parent, name);
        Err(Error::Unsupported("names that come back"))
    }

    // ---- Open files ----

    /// Reports whether a front must announce every opening and closing: by [`open`](Self::open) or
    /// [`create`](Self::create), [`flush`](Self::flush) and [`release`](Self::release), with the
    /// handle in between. If not (the default), a front may leave these calls out.
    fn is_stateful(&self) -> bool {
        false
    }

    /// Opens a regular file. By default opens it for reading only, without a handle.
    ///
    /// # Errors
    /// [`Error::IsADirectory`] for writing one, [`Error::ReadOnly`].
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let _ = caller;
        if self.getattr(ino)?.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(Error::ReadOnly);
        }
        Ok(Opened { handle: Handle::NONE, keep_cache: true, direct_io: false })
    }

    /// Makes and opens a regular file in one step; an existing one is opened unless
    /// [`OpenFlags::EXCLUSIVE`]. Takes a reference on it. By default calls [`mknod`](Self::mknod)
    /// and [`open`](Self::open), one after the other.
    ///
    /// # Errors
    /// Those of [`mknod`](Self::mknod) and [`open`](Self::open).
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        create_by_mknod(self, caller, parent, name, perm, flags)
    }

    /// Tells the file system that a process closes a descriptor of an open file. A handle may have
    /// several descriptors (`dup(2)`, `fork(2)`): the front calls this once for each, before
    /// [`release`](Self::release), and `close(2)` returns the result. The file stays open.
    ///
    /// # Errors
    /// The error that keeps written data from being stored.
    fn flush(&self, ino: Ino, handle: Handle) -> Result<()> {
        let _ = (ino, handle);
        Ok(())
    }

    /// Closes a handle of [`open`](Self::open) or [`create`](Self::create).
    ///
    /// # Errors
    /// An error of an earlier write that was not reported yet.
    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        let _ = (ino, handle);
        Ok(())
    }

    /// Returns the file of the host that has exactly the content of an open file: a front may let
    /// the kernel read and write the host's file from now on, past this file system, until the
    /// handle is released, also by a handle of `direct_io`. A returned file counts as used. By
    /// default there is none.
    fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        let _ = (ino, handle);
        None
    }

    /// Returns the time for which a front may cache the attributes of an inode that it asks for
    /// after this call: zero where the length is not known yet, `None` for as long as no change is
    /// [announced](Self::set_invalidate). A front asks a [stateful](Self::is_stateful) file system
    /// only.
    fn attr_lifetime(&self, ino: Ino) -> Option<Duration> {
        let _ = ino;
        None
    }

    /// Returns the time for which a front may cache the name that an inode was looked up by; `None`
    /// for as long as no change is [announced](Self::set_invalidate). A front asks a
    /// [stateful](Self::is_stateful) file system only.
    fn name_lifetime(&self, ino: Ino) -> Option<Duration> {
        let _ = ino;
        None
    }

    // ---- Calls that change content ----

    /// Writes all of `data` at byte `offset` (at the end under [`OpenFlags::APPEND`]). Returns
    /// the number of bytes taken, fewer than all only if the volume filled up on the way.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let _ = (caller, ino, handle, offset, data);
        Err(Error::ReadOnly)
    }

    /// Writes whole pages of a front's cache, of a mapping for example: always at byte `offset`,
    /// whatever flags the handle was opened with, as a page has its place in the file. Also to a
    /// file that may only be [appended](FileFlags::APPEND) to: its last page begins before its end.
    /// The handle is any one of those open for writing; no caller is known that has changed the
    /// page by it.
    ///
    /// By default a [`write`](Self::write) without a handle.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let _ = handle;
        self.write(caller, ino, Handle::NONE, offset, data)
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::NoSpace`].
    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let _ = (caller, ino, mode, offset, len_bytes);
        Err(Error::Unsupported("fallocate"))
    }

    /// Copies a range of one file to another (or to another place of the same file, if the two do
    /// not overlap). Returns the number of bytes copied, fewer than `len_bytes` at the end of the
    /// source, or if the volume filled up on the way.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and [`write`](Self::write).
    fn copy_range(
        &self,
        caller: &Caller,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        copy_by_reading(self, caller, (from, from_offset), (to, to_offset), len_bytes)
    }

    // ---- Further attributes ----

    /// Returns the value of an extended attribute; `name` carries its prefix (`user.mime_type`).
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::Unsupported`].
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (ino, name);
        Err(Error::Unsupported(NO_ATTRIBUTES))
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let _ = ino;
        Ok(Vec::new())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Exists`], [`Error::NoAttribute`], [`Error::Unsupported`];
    /// [`Error::Access`] for a default ACL of an inode that is no directory.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        let _ = (caller, ino, name, value, how);
        Err(Error::Unsupported(NO_ATTRIBUTES))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, ino, name);
        Err(Error::Unsupported(NO_ATTRIBUTES))
    }

    /// Reports whether the file system keeps POSIX ACLs, as [`acl`](crate::acl) describes them:
    /// setting one changes the mode with it, [`setattr`](Self::setattr) of the mode changes the
    /// ACL, and a new file in a directory with a default ACL inherits it in place of the
    /// [umask](crate::Caller::umask). A front may then let the kernel enforce them. If not (the
    /// default), setting one is [`Error::Unsupported`]: an ACL that is kept and not obeyed would
    /// mislead its owner.
    fn has_acls(&self) -> bool {
        false
    }

    /// Reports whether an extended attribute describes the whole mount, or acts for its user, so
    /// that the permissions of the file do not decide access to it. A front lets only its own user
    /// and root get, set or remove such an attribute. `user` is the requester, and `value` the new
    /// value in a request to set it.
    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        let _ = (user, ino, name, value);
        false
    }

    /// Reports whether only the owner of a file may set or remove an extended attribute, as it
    /// changes the content that the readers of the file see. A front refuses users other than the
    /// owner, root and its own user.
    fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool {
        let _ = (ino, name);
        false
    }

    /// Returns the flags of a regular file or directory that `lsattr(1)` shows.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] if the file system keeps none.
    fn file_flags(&self, ino: Ino) -> Result<FileFlags> {
        let _ = ino;
        Err(Error::UnknownCommand)
    }

    /// Sets the flags that users may set to those in `flags`; the others stay as they are. The file
    /// system obeys [`IMMUTABLE`](FileFlags::IMMUTABLE) and [`APPEND`](FileFlags::APPEND), also for
    /// root: a forbidden change is [`Error::NotPermitted`]. The front checks which flags a user may
    /// set.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] if the file system keeps none; [`Error::Unsupported`] for flags
    /// that such a file cannot have.
    fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()> {
        let _ = (caller, ino, flags);
        Err(Error::UnknownCommand)
    }

    // ---- Commands and locks ----

    /// Executes a command of `ioctl(2)` on an open file: `request` is its number as `_IOC` makes
    /// it, with the length of `data` in it if the caller passes any.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] for a command that the file system does not know. The answer may
    /// report other errors, with data.
    fn command(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        request: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        let _ = (caller, ino, handle, request, data);
        Err(Error::UnknownCommand)
    }

    /// Reports whether the file system has locks of its own: [`lock`](Self::lock),
    /// [`unlock`](Self::unlock) and [`find_lock`](Self::find_lock). If not (the default), the
    /// kernel or the front keeps them. A file system that has them is
    /// [stateful](Self::is_stateful).
    fn has_locks(&self) -> bool {
        false
    }

    /// Takes a lock, by an open `handle`. With `wait` the call waits while locks of other owners
    /// conflict with it, until it is interrupted.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] without `wait`; [`Error::Interrupted`], [`Error::Deadlock`] with it;
    /// [`Error::NoLocks`].
    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: &FileLock,
        wait: Option<&Interrupt>,
    ) -> Result<()> {
        let _ = (ino, handle, lock, wait);
        Err(Error::Unsupported("locks"))
    }

    /// Releases the locks of `owner` from byte `first` to byte `last`. Never waits for other
    /// owners. A front also calls it when a file is closed, for the whole range.
    fn unlock(
        &self,
        ino: Ino,
        handle: Handle,
        style: LockStyle,
        owner: u64,
        first: u64,
        last: u64,
    ) {
        let _ = (ino, handle, style, owner, first, last);
    }

    /// Returns a lock that conflicts with `lock`, if there is one.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    fn find_lock(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>> {
        let _ = (ino, lock);
        Err(Error::Unsupported("locks"))
    }

    // ---- The front above ----

    /// Tells the file system where to announce changes that did not come through the front (a
    /// repair in the background, a peer). A front that caches calls this once.
    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        let _ = sink;
    }

    // ---- Calls that make changes durable ----

    /// Makes a file's content (and unless `data_only` all its attributes and its name) durable. By
    /// default makes everything durable.
    ///
    /// # Errors
    /// A write error that touched this file since the last call.
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        let _ = (caller, data_only);
        self.getattr(ino)?;
        self.sync()
    }

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// Those of [`fsync`](Self::fsync).
    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.fsync(caller, ino, false)
    }

    /// Discards the free extents of the volume within a range, as `fstrim(8)` asks for. Returns the
    /// number of bytes discarded.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] if the file system has no device; [`Error::Invalid`] if no extent
    /// can be in such a range; [`Error::ReadOnly`].
    fn trim(&self, range: &TrimRange) -> Result<u64> {
        let _ = range;
        Err(Error::UnknownCommand)
    }

    /// Prepares for the end of use: makes everything durable and marks the volume clean. Releases
    /// all references and handles that the front still holds: an inode that only they kept alive is
    /// freed.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    fn unmount(&self) -> Result<()> {
        self.sync()
    }
}
