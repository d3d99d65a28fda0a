//! The calls of the file plug that companions change; all others go to the volume unchanged.

use super::fork_view::ForkView;
use super::forks::Forks;
use super::names::{Part, split};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use weft_vfs::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, Error, FallocateMode, FileFlags,
    FileKind, FileLock, Handle, Ino, Interrupt, Layer, LockStyle, OpenFlags, Opened, RenameFlags,
    Result, SeekFrom, SetAttr, XattrSet, copy_by_reading, seek_without_holes,
};

/// Attributes with the same content as companions.
fn says_fork(name: &[u8]) -> bool {
    name.starts_with(b"user.com.apple.ResourceFork")
        || name.starts_with(b"user.com.apple.FinderInfo")
        || name.starts_with(b"user.hfs.")
}

/// The number of a file itself, not of a companion.
fn own(ino: Ino) -> Result<Ino> {
    match split(ino) {
        (ino, None) => Ok(ino),
        (_, Some(_)) => Err(Error::UnknownCommand),
    }
}

impl Layer for ForkView {
    fn below(&self) -> &dyn weft_vfs::FileSystem {
        &*self.inner
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if let Some((entry, ..)) = self.lookup_companion(parent, name)? {
            return Ok(entry);
        }
        match self.lookup_own(parent, name) {
            Ok(entry) if self.is_of_waiting(parent, name, entry.attr.ino)? => {
                self.inner.forget(entry.attr.ino, 1);
                Err(Error::NotFound)
            }
            // The companion could be made, however long its name is.
            Err(e @ (Error::NameTooLong | Error::Invalid(_))) => {
                Err(self.with_base(parent, name, |_, _, _| Ok(Error::NotFound))?.unwrap_or(e))
            }
            other => other,
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let (base, part) = split(ino);
        if part == Some(Part::Double) {
            self.unheld(base, count);
        }
        self.inner.forget(base, count);
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        for &(ino, count) in references {
            self.forget(ino, count);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        match split(ino) {
            (base, Some(part)) => self.attr_of(base, part),
            (ino, None) => self.inner.getattr(ino),
        }
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match split(ino) {
            (base, Some(part)) => {
                if let Some(len_bytes) = set.size_bytes {
                    self.cut_part(base, part, len_bytes)?;
                }
                // Its times are the file's: a copy sets those of both. Its permissions are, too.
                if set.mtime.is_some() && !self.companions().says_date(base) {
                    let mtime = SetAttr { mtime: set.mtime, ..SetAttr::default() };
                    self.inner.setattr(caller, base, &mtime)?;
                }
                self.attr_of(base, part)
            }
            (ino, None) => self.inner.setattr(caller, ino, set),
        }
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match split(ino) {
            (_, Some(_)) => Err(Error::Invalid("no symbolic link")),
            (ino, None) => self.inner.readlink(ino),
        }
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        if kind == FileKind::Regular
            && let Some(entry) = self.make_companion(parent, name, true)?
        {
            return Ok(entry);
        }
        self.make_way(caller, parent, name)?;
        let stored = self.stored_name(parent, name)?;
        let entry = self.inner.mknod(caller, parent, &stored, kind, perm, rdev)?;
        self.made(caller, parent, name, entry)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        if self.has_companion(parent, name)? {
            return Err(Error::Exists);
        }
        self.make_way(caller, parent, name)?;
        let entry = self.inner.mkdir(caller, parent, name, perm)?;
        self.made(caller, parent, name, entry)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        if self.has_companion(parent, name)? {
            return Err(Error::NotADirectory);
        }
        self.inner.rmdir(caller, parent, name)
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        match split(ino) {
            (_, Some(_)) => Err(Error::NotPermitted),
            (_, None) if self.has_companion(new_parent, new_name)? => Err(Error::Exists),
            (ino, None) => self.inner.link(caller, ino, new_parent, new_name),
        }
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        if let Some((_, base, part)) = self.lookup_companion(parent, name)? {
            let removed = self.with_base(parent, name, |base, base_name, part| {
                self.clear_part(base, base_name, part)
            });
            self.drop_companion(base, part);
            return removed.map(drop);
        }
        let entry = match self.lookup_own(parent, name) {
            Ok(entry) => entry,
            // The volume says what is wrong.
            Err(_) => return self.inner.unlink(caller, parent, name),
        };
        let ino = entry.attr.ino;
        let settled = if self.forks == Forks::AppleDouble && !self.is_read_only {
            self.settle(ino, false).and_then(|_| self.leave_double(parent, name, &entry.attr))
        } else {
            Ok(())
        };
        let removed = settled.and_then(|()| {
            let stored = self.stored_name(parent, name)?;
            self.inner.unlink(caller, parent, &stored)
        });
        if removed.is_ok() {
            self.companions().drop_bytes(ino);
            self.own().remove(&ino);
        }
        self.inner.forget(ino, 1);
        removed
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let names = ((parent, name), (new_parent, new_name));
        if self.rename_companion(caller, names, flags)?.is_some() {
            return Ok(());
        }
        self.make_way(caller, new_parent, new_name)?;
        let (from, to) = (self.lookup_own(parent, name), self.lookup_own(new_parent, new_name));
        let carried = match (&from, &to) {
            (Ok(from), Ok(to)) if flags.is_empty() => {
                self.carry_over((&from.attr, name), (&to.attr, new_name))
            }
            _ => Ok(()),
        };
        let renamed = carried.and_then(|()| {
            let stored = self.stored_name(parent, name)?;
            let new_stored = self.stored_name(new_parent, new_name)?;
            self.inner.rename(caller, parent, &stored, new_parent, &new_stored, flags)
        });
        for entry in [from, to].into_iter().flatten() {
            self.inner.forget(entry.attr.ino, 1);
        }
        renamed?;
        let entry = self.lookup_own(new_parent, new_name)?;
        let ino = entry.attr.ino;
        if self.forks == Forks::AppleDouble {
            self.companions().moved(ino, new_parent, Part::Double.name(new_name));
        }
        let adopted = self.made(caller, new_parent, new_name, entry);
        if adopted.is_ok() {
            self.inner.forget(ino, 1);
        }
        adopted.map(drop)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let (base, Some(part)) = split(ino) else { return self.inner.open(caller, ino, flags) };
        let opened = self.inner.open(caller, base, flags - OpenFlags::TRUNCATE - OpenFlags::APPEND);
        // A folder has a companion too, and cannot be opened as a file.
        let opened = match opened {
            Err(Error::IsADirectory) => {
                Opened { handle: Handle::NONE, keep_cache: false, direct_io: false }
            }
            other => other?,
        };
        if part == Part::Double {
            self.companions().opened(base);
        }
        if flags.contains(OpenFlags::TRUNCATE)
            && let Err(e) = self.cut_part(base, part, 0)
        {
            let _ = self.release(ino, opened.handle);
            return Err(e);
        }
        Ok(opened)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
        if let Some(entry) = self.make_companion(parent, name, exclusive)? {
            let opened = self.open(caller, entry.attr.ino, flags)?;
            return Ok((Entry { attr: self.getattr(entry.attr.ino)?, ..entry }, opened));
        }
        self.make_way(caller, parent, name)?;
        let stored = self.stored_name(parent, name)?;
        let (entry, opened) = self.inner.create(caller, parent, &stored, perm, flags)?;
        let ino = entry.attr.ino;
        let made = self.made(caller, parent, name, entry).inspect_err(|_| {
            let _ = self.inner.release(ino, opened.handle);
        })?;
        Ok((made, opened))
    }

    /// An AppleDouble is stored when it is closed: a front must say when that is.
    fn is_stateful(&self) -> bool {
        self.inner.is_stateful() || self.forks == Forks::AppleDouble && !self.is_read_only
    }

    fn flush(&self, ino: Ino, handle: Handle) -> Result<()> {
        let (base, part) = split(ino);
        if part == Some(Part::Double) {
            self.settle(base, handle == Handle::NONE)?;
        }
        if handle == Handle::NONE {
            return Ok(());
        }
        self.inner.flush(base, handle)
    }

    fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        match split(ino) {
            (_, Some(_)) => None,
            (ino, None) => self.inner.backing(ino, handle),
        }
    }

    // The content of a companion changes with its file.
    fn attr_lifetime(&self, ino: Ino) -> Option<Duration> {
        self.inner.attr_lifetime(split(ino).0)
    }

    fn name_lifetime(&self, ino: Ino) -> Option<Duration> {
        self.inner.name_lifetime(split(ino).0)
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        let (base, part) = split(ino);
        let closed = if part == Some(Part::Double) { self.closed(base) } else { Ok(()) };
        if handle == Handle::NONE {
            return closed;
        }
        self.inner.release(base, handle).and(closed)
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match split(ino) {
            (base, Some(part)) => self.read_part(base, part, offset, buf),
            (ino, None) => self.inner.read(ino, handle, offset, buf),
        }
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        match split(ino) {
            (base, Some(part)) => self.write_part(base, part, offset, data),
            (ino, None) => self.inner.write(caller, ino, handle, offset, data),
        }
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        match split(ino) {
            (base, Some(part)) => self.write_part(base, part, offset, data),
            (ino, None) => self.inner.write_cached(caller, ino, handle, offset, data),
        }
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        let (base, part) = split(ino);
        if part == Some(Part::Double)
            && let Some(plain) = self.settle(base, true)?
        {
            self.inner.fsync(caller, plain, data_only)?;
        }
        self.inner.fsync(caller, base, data_only)
    }

    fn sync(&self) -> Result<()> {
        let settled = self.settle_all();
        self.inner.sync().and(settled)
    }

    fn unmount(&self) -> Result<()> {
        let settled = self.settle_all();
        self.inner.unmount().and(settled)
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, cursor, false, &mut |found, _| each(found))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.list(ino, cursor, true, &mut |found, entry| {
            entry.is_none_or(|entry| each(found, entry))
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match split(ino) {
            (ino, None) if !says_fork(name) => self.inner.getxattr(ino, name),
            _ => Err(Error::NoAttribute),
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let (ino, None) = split(ino) else { return Ok(Vec::new()) };
        let all = self.inner.listxattr(ino)?;
        Ok(all.into_iter().filter(|name| !says_fork(name)).collect())
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        match split(ino) {
            // Not shown as attributes, but taken: they come with files from elsewhere.
            (ino, None) => self.inner.setxattr(caller, ino, name, value, how),
            (_, Some(_)) => Err(Error::Unsupported("it has no attributes of its own")),
        }
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        match split(ino) {
            (ino, None) if !says_fork(name) => self.inner.removexattr(caller, ino, name),
            _ => Err(Error::NoAttribute),
        }
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        match split(ino) {
            (_, Some(_)) => Err(Error::Unsupported("fallocate")),
            (ino, None) => self.inner.fallocate(caller, ino, mode, offset, len_bytes),
        }
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        match split(ino) {
            (ino, None) => self.inner.seek(ino, from),
            (base, Some(part)) => seek_without_holes(self.attr_of(base, part)?.size_bytes, from),
        }
    }

    fn copy_range(
        &self,
        caller: &Caller,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        if let ((from, None), (to, None)) = (split(from), split(to)) {
            return self.inner.copy_range(caller, from, from_offset, to, to_offset, len_bytes);
        }
        copy_by_reading(self, caller, (from, from_offset), (to, to_offset), len_bytes)
    }

    // A companion has no flags, and knows no commands: both would be the file's.

    fn file_flags(&self, ino: Ino) -> Result<FileFlags> {
        self.inner.file_flags(own(ino)?)
    }

    fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()> {
        self.inner.set_file_flags(caller, own(ino)?, flags)
    }

    fn command(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        request: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        self.inner.command(caller, own(ino)?, handle, request, data)
    }

    // A query of a companion's attributes is one of its file's.

    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        self.inner.is_for_owner(user, split(ino).0, name, value)
    }

    fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool {
        self.inner.is_owners_to_set(split(ino).0, name)
    }

    // Locks of a companion are its file's: both change together.

    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: &FileLock,
        wait: Option<&Interrupt>,
    ) -> Result<()> {
        self.inner.lock(split(ino).0, handle, lock, wait)
    }

    fn unlock(
        &self,
        ino: Ino,
        handle: Handle,
        style: LockStyle,
        owner: u64,
        first: u64,
        last: u64,
    ) {
        self.inner.unlock(split(ino).0, handle, style, owner, first, last);
    }

    fn find_lock(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>> {
        self.inner.find_lock(split(ino).0, lock)
    }
}
