//! A file system on which changes are durable when their calls return.

use std::fmt;
use std::sync::Arc;

use crate::{
    Attr, Caller, Entry, FallocateMode, FileFlags, FileKind, FileSystem, Handle, Ino, Layer,
    OpenFlags, Opened, RenameFlags, Result, SetAttr, XattrSet,
};

/// A layer under which changes are durable when their calls return: those of names alone, as mount(8)
/// has it with `dirsync`, or all, as with `sync`.
///
/// A call whose change is made and cannot be made durable returns the error of that.
pub struct Synchronous {
    below: Arc<dyn FileSystem>,
    /// Not those of names alone.
    all: bool,
}

impl fmt::Debug for Synchronous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Synchronous").field("all", &self.all).finish_non_exhaustive()
    }
}

impl Synchronous {
    /// Makes changes of names durable.
    #[must_use]
    pub fn names(below: Arc<dyn FileSystem>) -> Self {
        Self { below, all: false }
    }

    /// Makes all changes durable.
    #[must_use]
    pub fn all(below: Arc<dyn FileSystem>) -> Self {
        Self { below, all: true }
    }

    /// Waits for a change of a name in a directory.
    fn named<T>(&self, caller: &Caller, parent: Ino, done: T) -> Result<T> {
        self.below.fsync_dir(caller, parent)?;
        Ok(done)
    }

    /// As [`named`](Self::named), and gives the reference of the new entry back on an error.
    fn made(&self, caller: &Caller, parent: Ino, entry: Entry) -> Result<Entry> {
        let ino = entry.attr.ino;
        self.named(caller, parent, entry).inspect_err(|_| self.below.forget(ino, 1))
    }

    /// Waits for a change of an inode.
    fn changed<T>(&self, caller: &Caller, ino: Ino, done: T) -> Result<T> {
        if self.all {
            match self.below.getattr(ino)?.kind {
                FileKind::Directory => self.below.fsync_dir(caller, ino)?,
                _ => self.below.fsync(caller, ino, false)?,
            }
        }
        Ok(done)
    }
}

impl Layer for Synchronous {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
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
        let entry = self.below.mknod(caller, parent, name, kind, perm, rdev)?;
        self.made(caller, parent, entry)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let entry = self.below.mkdir(caller, parent, name, perm)?;
        self.made(caller, parent, entry)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let entry = self.below.symlink(caller, parent, name, target)?;
        self.made(caller, parent, entry)
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let entry = self.below.link(caller, ino, new_parent, new_name)?;
        self.made(caller, new_parent, entry)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.below.unlink(caller, parent, name)?;
        self.named(caller, parent, ())
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.below.rmdir(caller, parent, name)?;
        self.named(caller, parent, ())
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
        self.below.rename(caller, parent, name, new_parent, new_name, flags)?;
        self.named(caller, new_parent, ())?;
        if parent == new_parent { Ok(()) } else { self.named(caller, parent, ()) }
    }

    fn restore_name(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        self.below.restore_name(caller, ino, parent, name)?;
        self.named(caller, parent, ())
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let (entry, opened) = self.below.create(caller, parent, name, perm, flags)?;
        match self.made(caller, parent, entry) {
            Ok(entry) => Ok((entry, opened)),
            Err(e) => {
                // The error of the sync is the one to report.
                let _ = self.below.release(entry.attr.ino, opened.handle);
                Err(e)
            }
        }
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let opened = self.below.open(caller, ino, flags)?;
        if flags.contains(OpenFlags::TRUNCATE) {
            self.changed(caller, ino, ()).inspect_err(|_| {
                let _ = self.below.release(ino, opened.handle);
            })?;
        }
        Ok(opened)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = self.below.setattr(caller, ino, set)?;
        self.changed(caller, ino, attr)
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let written = self.below.write(caller, ino, handle, offset, data)?;
        self.changed(caller, ino, written)
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let written = self.below.write_cached(caller, ino, handle, offset, data)?;
        self.changed(caller, ino, written)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.below.fallocate(caller, ino, mode, offset, len_bytes)?;
        self.changed(caller, ino, ())
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
        let copied = self.below.copy_range(caller, from, from_offset, to, to_offset, len_bytes)?;
        self.changed(caller, to, copied)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.below.setxattr(caller, ino, name, value, how)?;
        self.changed(caller, ino, ())
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.below.removexattr(caller, ino, name)?;
        self.changed(caller, ino, ())
    }

    fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()> {
        self.below.set_file_flags(caller, ino, flags)?;
        self.changed(caller, ino, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemFs;
    use crate::conformance::forwarding::{Recorder, not_forwarded};

    #[test]
    fn every_call_goes_below() {
        for all in [false, true] {
            let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
            let layer = Synchronous { below: below.clone(), all };
            assert_eq!(not_forwarded(&layer, &below), ["without_waiting"]);
        }
    }
}
