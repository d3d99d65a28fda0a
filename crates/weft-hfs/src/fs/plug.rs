//! The file plug: each call is passed to the module that implements it.

use super::hfs::Hfs;
use super::node::plain;
use crate::layout::{Fork, ROOT_ID};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileSystem, Handle,
    Ino, OpenFlags, Opened, RenameFlags, Result, SetAttr, StatFs, XattrSet,
};

impl Hfs {
    fn flags_of(&self, handle: Handle) -> OpenFlags {
        if handle == Handle::NONE {
            return OpenFlags::empty();
        }
        self.lock().handles.get(handle).map_or(OpenFlags::empty(), |open| open.flags)
    }

    fn fork_of(&self, handle: Handle) -> Fork {
        if handle == Handle::NONE {
            return Fork::Data;
        }
        self.lock().handles.get(handle).map_or(Fork::Data, |open| open.fork)
    }
}

impl FileSystem for Hfs {
    fn root(&self) -> Ino {
        Ino(u64::from(ROOT_ID))
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.do_lookup(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.do_forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.do_getattr(ino)
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.do_setattr(ino, set)
    }

    fn mknod(
        &self,
        _caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        _perm: u16,
        _rdev: u32,
    ) -> Result<Entry> {
        match kind {
            FileKind::Regular => self.do_create(parent, name, false),
            FileKind::Directory | FileKind::Symlink => {
                Err(Error::Invalid("mknod makes neither directories nor links"))
            }
            _ => Err(Error::NotPermitted),
        }
    }

    fn mkdir(&self, _caller: &Caller, parent: Ino, name: &[u8], _perm: u16) -> Result<Entry> {
        self.do_create(parent, name, true)
    }

    fn symlink(&self, _: &Caller, _: Ino, name: &[u8], _: &[u8]) -> Result<Entry> {
        Err(if matches!(name, b"." | b"..") { Error::Exists } else { Error::NotPermitted })
    }

    fn link(&self, _: &Caller, _ino: Ino, _new_parent: Ino, _new_name: &[u8]) -> Result<Entry> {
        Err(Error::NotPermitted)
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.do_remove(parent, name, false)
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.do_remove(parent, name, true)
    }

    fn rename(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.do_rename((parent, name), (new_parent, new_name), flags)
    }

    fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        Ok(self.do_open(plain(ino)?, Fork::Data, flags)?)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        _perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let (entry, flags) = match self.do_create(parent, name, false) {
            Ok(entry) => (entry, flags - OpenFlags::TRUNCATE),
            Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                (self.do_lookup(parent, name)?, flags)
            }
            Err(e) => return Err(e),
        };
        match self.open(caller, entry.attr.ino, flags) {
            Ok(opened) if flags.contains(OpenFlags::TRUNCATE) => {
                let attr = self.do_getattr(entry.attr.ino)?;
                Ok((Entry { attr, ..entry }, opened))
            }
            Ok(opened) => Ok((entry, opened)),
            Err(e) => {
                self.do_forget(entry.attr.ino, 1);
                Err(e)
            }
        }
    }

    fn release(&self, _ino: Ino, handle: Handle) -> Result<()> {
        if handle != Handle::NONE {
            self.do_release(handle)?;
        }
        Ok(())
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.do_read(plain(ino)?, self.fork_of(handle), offset, buf)?)
    }

    fn write(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let flags = self.flags_of(handle);
        let offset = (!flags.contains(OpenFlags::APPEND)).then_some(offset);
        let done = self.do_write(plain(ino)?, self.fork_of(handle), offset, data)?;
        if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.do_fsync(ino)?;
        }
        Ok(done)
    }

    fn write_cached(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        Ok(self.do_write(plain(ino)?, self.fork_of(handle), Some(offset), data)?)
    }

    fn fsync(&self, _: &Caller, ino: Ino, _data_only: bool) -> Result<()> {
        self.do_fsync(ino)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.do_sync()?)
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.do_readdir(ino, cursor, false, &mut |entry, _| each(entry))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.do_readdir(ino, cursor, true, &mut |entry, attr| {
            attr.is_none_or(|attr| each(entry, attr))
        })
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.do_statfs())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.do_getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.do_listxattr(ino)
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.do_setxattr(ino, name, Some(value), how)
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.do_setxattr(ino, name, None, XattrSet::Replace)
    }

    fn fallocate(
        &self,
        _: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        match mode {
            FallocateMode::Allocate { keep_size } => {
                Ok(self.do_allocate(plain(ino)?, offset, len_bytes, keep_size)?)
            }
            _ => Err(Error::Unsupported("HFS files have no holes")),
        }
    }

    fn time_unit_nanos(&self) -> u32 {
        1_000_000_000
    }

    fn unmount(&self) -> Result<()> {
        Ok(self.close()?)
    }
}
