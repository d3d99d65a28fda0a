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

/// Why an extended attribute is refused by default.
const NO_ATTRIBUTES: &str = "extended attributes";

/// A file system. See the [crate] page for references and lifetimes.
///
/// Names are bytes, 1 to 255 of them, without `/` and NUL; an implementation checks them. Those
/// calls that take a [`Caller`] use it for ownership: a new inode belongs to the caller's user and
/// group, or to the parent's group if the parent is setgid (and a new directory is then setgid
/// too). Permission bits are checked by the front ([`FileSystem`] calls by themselves do not).
///
/// Reading, writing, allocating and seeking need a reference on the inode and no open handle: a
/// front may pass [`Handle::NONE`] (stateless I/O). What an open handle adds is its
/// [`OpenFlags`] (append, synchronous writes) and a hold on the inode's life.
///
/// Six calls have no default: a file system that is only read defines no others, and what changes
/// it is [`Error::ReadOnly`]. A file system on top of another is a [`Layer`](crate::Layer).
pub trait FileSystem: Send + Sync {
    // ---- What every file system has ----

    /// The root directory. It needs no reference.
    fn root(&self) -> Ino;

    /// Finds `name` in `parent` and takes a reference on it. `.` and `..` are names too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NameTooLong`].
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if the number names nothing.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Reads into `buf` from byte `offset` on; returns how many bytes, fewer only at the end.
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

    /// Makes everything durable. Without a default: what is written and not kept is noticed too late.
    ///
    /// # Errors
    /// Any write error.
    fn sync(&self) -> Result<()>;

    // ---- References ----

    /// Gives back `count` references. Does nothing by default, as is right where no inode goes with
    /// its last reference.
    fn forget(&self, ino: Ino, count: u64) {
        let _ = (ino, count);
    }

    /// Gives back references on many inodes.
    fn forget_many(&self, references: &[(Ino, u64)]) {
        for &(ino, count) in references {
            self.forget(ino, count);
        }
    }

    // ---- What reads, in other forms ----

    /// As [`readdir`](Self::readdir), with the attributes of each name; takes a reference on each
    /// entry for which `each` returned `true`, except `.` and `..`. By default each name is looked up.
    ///
    /// # Errors
    /// As [`readdir`](Self::readdir), and of a file that cannot be looked up. The references to the
    /// entries before it are taken.
    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        list_by_lookup(self, ino, cursor, each)
    }

    /// The target of a symbolic link, 1 to 4095 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.getattr(ino)?;
        Err(Error::Invalid("not a symbolic link"))
    }

    /// Finds data or a hole. By default all of a file is data.
    ///
    /// # Errors
    /// [`Error::NoAddress`] at or past the end.
    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        seek_without_holes(self.getattr(ino)?.size_bytes, from)
    }

    /// Space and inode counts. By default all zero, as of file systems that have no limits of their own.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { block_bytes: 4096, name_max_bytes: NAME_MAX_BYTES as u32, ..StatFs::default() })
    }

    /// The unit in which times are kept, in nanoseconds: a power of ten up to a second.
    fn time_unit_nanos(&self) -> u32 {
        1
    }

    // ---- What changes names and attributes ----

    /// Changes attributes and returns all of them. Any change sets ctime to now unless `set`
    /// gives one; a change of length sets mtime too unless `set` gives one (also a change to the
    /// same length). Space freed by a cut and given back by growing reads as zeroes.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoSpace`], [`Error::Overflow`].
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let _ = (ino, set);
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
    /// As [`mknod`](Self::mknod); [`Error::NameTooLong`] if `target` has over 4095 bytes.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let _ = (caller, parent, name, target);
        Err(Error::ReadOnly)
    }

    /// Gives `ino` another name. Takes a reference on it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`], [`Error::NotPermitted`] for a directory.
    fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let _ = (ino, new_parent, new_name);
        Err(Error::ReadOnly)
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (parent, name);
        Err(Error::ReadOnly)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotADirectory`], [`Error::Invalid`] for `.`.
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (parent, name);
        Err(Error::ReadOnly)
    }

    /// Renames, atomically also over a crash: the target name is the old file or the new one.
    ///
    /// # Errors
    /// The errno of `renameat2(2)`.
    fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let _ = (parent, name, new_parent, new_name, flags);
        Err(Error::ReadOnly)
    }

    /// Makes a regular file without a name, in the file system and with the owner that one in
    /// `parent` would have. Takes a reference on it, by which it lives until [`link`](Self::link)
    /// gives it a name.
    ///
    /// # Errors
    /// As [`mknod`](Self::mknod); [`Error::Unsupported`] if every file needs a name.
    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        let _ = (caller, parent, perm);
        Err(Error::Unsupported("files without a name"))
    }

    // ---- Open files ----

    /// Whether a front must tell of every opening and closing: by [`open`](Self::open) or
    /// [`create`](Self::create), [`flush`](Self::flush) and [`release`](Self::release), with the
    /// handle in between. If not (the default), a front may leave all of that out, and spare it.
    fn is_stateful(&self) -> bool {
        false
    }

    /// Opens a regular file. By default only for reading, without a handle.
    ///
    /// # Errors
    /// [`Error::IsADirectory`] for writing one, [`Error::ReadOnly`].
    fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if self.getattr(ino)?.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(Error::ReadOnly);
        }
        Ok(Opened { handle: Handle::NONE, keep_cache: true, direct_io: false })
    }

    /// Makes and opens a regular file in one step; an existing one is opened unless
    /// [`OpenFlags::EXCLUSIVE`]. Takes a reference on it. By default [`mknod`](Self::mknod) and
    /// [`open`](Self::open), one after the other.
    ///
    /// # Errors
    /// As [`mknod`](Self::mknod) and [`open`](Self::open).
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

    /// Somebody closes a descriptor of an open file, of which there may be several (`dup(2)`, `fork(2)`):
    /// comes once for each, before [`release`](Self::release), and what it returns is what
    /// `close(2)` returns. The file stays open.
    ///
    /// # Errors
    /// What keeps that which was written from being kept.
    fn flush(&self, ino: Ino, handle: Handle) -> Result<()> {
        let _ = (ino, handle);
        Ok(())
    }

    /// Closes a handle of [`open`](Self::open) or [`create`](Self::create).
    ///
    /// # Errors
    /// An error of an earlier write that nobody has been told of may be told here.
    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        let _ = (ino, handle);
        Ok(())
    }

    /// The file of the host that has exactly the content of an open file, in its place: a front may
    /// let the kernel read and write that one from now on, past this file system, until the handle
    /// is released. What is asked for counts as used.
    fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        let _ = (ino, handle);
        None
    }

    /// How long a front may keep attributes of an inode that it asks for after this; `None` until
    /// it hears otherwise. Not at all where the length is not known yet. Asked only of a
    /// [stateful](Self::is_stateful) file system.
    fn attr_lifetime(&self, ino: Ino) -> Option<Duration> {
        let _ = ino;
        None
    }

    /// How long a front may keep the name that an inode was looked up by; `None` until it hears
    /// otherwise. Asked only of a [stateful](Self::is_stateful) file system.
    fn name_lifetime(&self, ino: Ino) -> Option<Duration> {
        let _ = ino;
        None
    }

    // ---- What changes content ----

    /// Writes all of `data` at byte `offset` (at the end under [`OpenFlags::APPEND`]). Returns
    /// how many bytes were taken: fewer than all only when the volume filled up on the way.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    fn write(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let _ = (ino, handle, offset, data);
        Err(Error::ReadOnly)
    }

    /// As [`write`](Self::write), for whole pages of a front's cache: that a file may only be
    /// [appended](FileFlags::APPEND) to does not count, as its last page begins before its end.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn write_cached(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(ino, handle, offset, data)
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::NoSpace`].
    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        let _ = (ino, mode, offset, len_bytes);
        Err(Error::Unsupported("fallocate"))
    }

    /// Copies a range of one file to another (or to another place of the same file, if the two
    /// do not overlap). Returns how many bytes were copied: fewer than asked at the end of the
    /// source, or where the volume filled up on the way.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and [`write`](Self::write).
    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        copy_by_reading(self, (from, from_offset), (to, to_offset), len_bytes)
    }

    // ---- Attributes beside the common ones ----

    /// The value of an extended attribute; `name` carries its prefix (`user.mime_type`).
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::Unsupported`].
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (ino, name);
        Err(Error::Unsupported(NO_ATTRIBUTES))
    }

    /// The names of all extended attributes.
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
    /// [`Error::Access`] for a default ACL of what is no directory.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        let _ = (ino, name, value, how);
        Err(Error::Unsupported(NO_ATTRIBUTES))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let _ = (ino, name);
        Err(Error::Unsupported(NO_ATTRIBUTES))
    }

    /// Whether the file system keeps POSIX ACLs, as [`acl`](crate::acl) says: one that is set changes
    /// the mode with it, [`setattr`](Self::setattr) of the mode changes the ACL, and what is made in
    /// a directory with a default ACL inherits it in place of the
    /// [umask](crate::Caller::umask). A front may then let the kernel enforce them. If not (the
    /// default), setting one is [`Error::Unsupported`]: kept but not obeyed, it would promise what
    /// is not so.
    fn has_acls(&self) -> bool {
        false
    }

    /// Whether an extended attribute speaks of the whole mount, or acts for its user, so that the permissions of
    /// the file do not say who may get, set or remove it. A front lets only its own user and root do so.
    /// `user` is the one who asks, and `value` what the attribute is to be set to, if that is asked.
    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        let _ = (user, ino, name, value);
        false
    }

    /// True for an extended attribute that only the owner of a file may set or remove, as it changes what
    /// the readers of the file see. A front refuses users other than the owner, root and its own user.
    fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool {
        let _ = (ino, name);
        false
    }

    /// The flags of a regular file or directory that `lsattr(1)` shows.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] if the file system keeps none.
    fn file_flags(&self, ino: Ino) -> Result<FileFlags> {
        let _ = ino;
        Err(Error::UnknownCommand)
    }

    /// Sets the flags that users may set to those in `flags`; the others stay as they are. The file
    /// system obeys [`IMMUTABLE`](FileFlags::IMMUTABLE) and [`APPEND`](FileFlags::APPEND), also
    /// for root: what they forbid is [`Error::NotPermitted`]. Who may set which is checked by the
    /// front.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] if the file system keeps none; [`Error::Unsupported`] for flags that
    /// such a file cannot have.
    fn set_file_flags(&self, ino: Ino, flags: FileFlags) -> Result<()> {
        let _ = (ino, flags);
        Err(Error::UnknownCommand)
    }

    // ---- Commands and locks ----

    /// Gives an open file a command, by `ioctl(2)`: `request` is its number as `_IOC` makes it, with
    /// the length of `data` in it if the caller hands any in.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] of all that the file system does not know. What else goes wrong
    /// may be said in the answer, with data.
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

    /// Whether the file system has locks of its own: [`lock`](Self::lock), [`unlock`](Self::unlock) and
    /// [`find_lock`](Self::find_lock). If not (the default), they are the kernel's affair, or the
    /// front's. One that has them is [stateful](Self::is_stateful).
    fn has_locks(&self) -> bool {
        false
    }

    /// Takes a lock, by an open `handle`. With `wait` the call waits while it is in the way of others'
    /// locks, until it is interrupted.
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

    /// Gives up what `owner` has locked from byte `first` to byte `last`. Never waits for others; comes
    /// also when a file is closed, of all that its owner may have locked.
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

    /// A lock that is in the way of `lock`.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
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

    // ---- What keeps it ----

    /// Makes a file's content (and unless `data_only` all its attributes and its name) durable;
    /// by default everything.
    ///
    /// # Errors
    /// A write error that touched this file since the last call.
    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        let _ = data_only;
        self.getattr(ino)?;
        self.sync()
    }

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    fn fsync_dir(&self, ino: Ino) -> Result<()> {
        self.fsync(ino, false)
    }

    /// Gives free space back to the device, as `fstrim(8)` asks for: discards the free extents of the
    /// volume within a range. Returns how many bytes that were.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`] if the file system has no device; [`Error::Invalid`] if no extent
    /// can be in such a range; [`Error::ReadOnly`].
    fn trim(&self, range: &TrimRange) -> Result<u64> {
        let _ = range;
        Err(Error::UnknownCommand)
    }

    /// Prepares for the end of use: everything durable, the volume marked clean. All references
    /// and handles that are still out count as given back: an inode that lived by them is freed.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    fn unmount(&self) -> Result<()> {
        self.sync()
    }
}
