//! The [`FileSystem`] of a tree of cells: each call goes to the client whose inode it names.

use std::sync::Arc;

use weft_ringer::{CELL_MOUNT_XATTR, CellMount};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileLock, FileSystem,
    Handle, Ino, Interrupt, Invalidate, LockStyle, OpenFlags, Opened, RenameFlags, Result,
    SeekFrom, SetAttr, StatFs, XattrSet,
};

use super::nodes::is_mapped;
use super::tree::{At, CellTree};
use crate::errors::ETIMEDOUT;
use crate::folder_table::CELLS_XATTR;
use crate::fs::RingerFs;
use crate::mutex::locked;

/// Permission bits for lookup in a directory, and for listing it.
const SEARCH: u16 = 1;
const LIST: u16 = 4;
/// The prefix of attributes that show the state of a mount and control it.
const OWN: &[u8] = b"user.weft.";

impl CellTree {
    /// Returns the entry for the result of a call that makes or finds something in `parent`.
    fn entry(&self, at: &At, fs: &Arc<RingerFs>, parent: Ino, found: Entry) -> Result<Entry> {
        self.show(&at.place, fs, parent, found, false)
    }

    fn attr(&self, at: &At, attr: Attr) -> Attr {
        Attr { ino: self.number(&at.place, attr.ino), ..at.place.without_power(attr) }
    }

    /// For the root of a cell inside: returns its client, if the cell was entered and answers soon.
    fn attributes_of_root(&self, at: &At) -> Result<Option<Arc<RingerFs>>> {
        let Some(fs) = at.place.fs() else { return Ok(None) };
        if fs.is_at_hand() {
            return Ok(Some(Arc::clone(fs)));
        }
        let message = format!("timed out waiting for cell {}", fs.cell());
        Err(Error::Io { errno: ETIMEDOUT, message })
    }

    /// Checks the value that makes a directory a mount point. The cell checks the directory itself.
    fn check_cell_mount(at: &At, value: &[u8]) -> Result<()> {
        let cell_mount = CellMount::parse(value).map_err(|e| {
            tracing::info!("refused to attach a cell: {e}");
            Error::Invalid("not a valid address of a cell")
        })?;
        if at.is_inner_root() {
            return Err(Error::Exists);
        }
        if at.place.is_within(cell_mount.cell) { Err(Error::SymlinkLoop) } else { Ok(()) }
    }
}

/// The names of the attributes that this mount sees.
fn seen(at: &At, mut names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    names.retain(|name| at.place.is_seen(name));
    names
}

impl FileSystem for CellTree {
    fn root(&self) -> Ino {
        self.outer.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let at = self.at(parent)?;
        if let (b"..", true, Some(above)) = (name, at.is_inner_root(), &at.place.above) {
            let fs = self.cells.enter(&above.place)?;
            let found = fs.lookup(above.dir, name)?;
            let holder = self.number(&above.place, found.attr.ino);
            return self.show(&above.place, &fs, holder, found, false);
        }
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        let found = fs.lookup(at.ino, name)?;
        self.entry(&at, &fs, parent, found)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if !is_mapped(ino.0) {
            return self.outer.forget(ino, count);
        }
        let Some(gone) = locked(&self.upward.nodes).forget(ino.0, count) else { return };
        let own = Ino(gone.ino);
        if let Some(fs) = gone.place.fs().filter(|fs| !fs.is_root(own)) {
            fs.forget(own, gone.count);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let at = self.at(ino)?;
        if at.is_inner_root() {
            // They may be those of the directory at the mount point.
            return Ok(Attr { ino, ..at.place.root_attr()? });
        }
        let fs = self.cells.enter(&at.place)?;
        Ok(self.attr(&at, fs.getattr(at.ino)?))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let (at, fs) = self.walk(ino)?;
        Ok(self.attr(&at, fs.setattr(caller, at.ino, set)?))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let (at, fs) = self.walk(ino)?;
        fs.readlink(at.ino)
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
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        let made = fs.mknod(caller, at.ino, name, kind, perm, rdev)?;
        self.entry(&at, &fs, parent, made)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        let made = fs.mkdir(caller, at.ino, name, perm)?;
        self.entry(&at, &fs, parent, made)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        let made = fs.symlink(caller, at.ino, name, target)?;
        self.entry(&at, &fs, parent, made)
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let (at, into, fs) = self.both(ino, new_parent)?;
        let linked = fs.link(caller, at.ino, into, new_name)?;
        self.entry(&at, &fs, new_parent, linked)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        fs.unlink(caller, at.ino, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        fs.rmdir(caller, at.ino, name)
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
        let (from, into, fs) = self.both(parent, new_parent)?;
        fs.rename(caller, from.ino, name, into, new_name, flags)
    }

    fn is_stateful(&self) -> bool {
        self.outer.is_stateful()
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let (at, fs) = self.walk(ino)?;
        let opened = fs.open(caller, at.ino, flags)?;
        self.hold(&at);
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
        let (at, fs) = self.walk_in(parent, SEARCH)?;
        let (made, opened) = fs.create(caller, at.ino, name, perm, flags)?;
        let own = made.attr.ino;
        match self.entry(&at, &fs, parent, made) {
            Ok(entry) => {
                self.hold(&At { ino: own, ..at });
                Ok((entry, opened))
            }
            Err(e) => {
                let _ = fs.release(own, opened.handle);
                Err(e)
            }
        }
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        let (at, fs) = self.walk(ino)?;
        fs.release(at.ino, handle)?;
        self.unshow(ino);
        Ok(())
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (at, fs) = self.walk(ino)?;
        fs.read(at.ino, handle, offset, buf)
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let (at, fs) = self.walk(ino)?;
        fs.write(caller, at.ino, handle, offset, data)
    }

    fn has_locks(&self) -> bool {
        self.outer.has_locks()
    }

    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: &FileLock,
        wait: Option<&Interrupt>,
    ) -> Result<()> {
        let (at, fs) = self.walk(ino)?;
        fs.lock(at.ino, handle, lock, wait)
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
        if let Ok((at, fs)) = self.walk(ino) {
            fs.unlock(at.ino, handle, style, owner, first, last);
        }
    }

    fn find_lock(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>> {
        let (at, fs) = self.walk(ino)?;
        fs.find_lock(at.ino, lock)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        let (at, fs) = self.walk(ino)?;
        fs.fsync(caller, at.ino, data_only)
    }

    fn sync(&self) -> Result<()> {
        let outer = self.outer.sync();
        outer.and(self.cells.sync())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (at, fs) = self.walk_in(ino, LIST)?;
        fs.readdir(at.ino, cursor, &mut |dirent| each(self.show_name(&at, dirent)))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let (at, fs) = self.walk_in(ino, LIST)?;
        let mut failed = None;
        fs.readdir_plus(at.ino, cursor, &mut |dirent, mut entry| {
            let dirent = self.show_name(&at, dirent);
            if dirent.name == b"." || dirent.name == b".." {
                // The client takes back the reference that came with it.
                entry.attr.ino = dirent.ino;
                return each(dirent, entry);
            }
            let own = entry.attr.ino;
            let shown = match self.show(&at.place, &fs, ino, entry, true) {
                Ok(shown) => shown,
                Err(Error::Stale(_)) => {
                    // Removed since it was listed.
                    fs.forget(own, 1);
                    return true;
                }
                Err(e) => {
                    failed = Some(e);
                    return false;
                }
            };
            let number = shown.attr.ino;
            let is_own = number == self.number(&at.place, own);
            let dirent = DirEntry { ino: number, ..dirent };
            match (each(dirent, shown), is_own) {
                (true, true) => true,
                // The location behind the mount point holds a reference on it.
                (true, false) => {
                    fs.forget(own, 1);
                    true
                }
                // The client takes back its own reference.
                (false, _) => {
                    self.unshow(number);
                    false
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn statfs(&self) -> Result<StatFs> {
        // The local stores of all cells are below that of the outermost.
        self.outer.statfs()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let at = self.at(ino)?;
        if name == CELLS_XATTR && at.place.key == 0 && at.ino == self.outer.root() {
            return Ok(self.cells.describe());
        }
        if !at.place.is_seen(name) {
            return Err(Error::NoAttribute);
        }
        let fs = match &at.place.above {
            Some(above) if at.is_inner_root() => {
                if name == CELL_MOUNT_XATTR {
                    return self.cells.enter(&above.place)?.getxattr(above.dir, name);
                }
                if name.starts_with(OWN) {
                    self.cells.enter(&at.place)?
                } else {
                    // A listing with attributes also asks for those of a mount point.
                    self.attributes_of_root(&at)?.ok_or(Error::NoAttribute)?
                }
            }
            _ => self.cells.enter(&at.place)?,
        };
        fs.getxattr(at.ino, name)
    }

    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        if !name.starts_with(OWN) {
            return false;
        }
        // To read the attribute, or to detach the cell, the permissions of the visible root are
        // enough.
        if name == CELL_MOUNT_XATTR && value.is_some() && !self.allow_attach {
            return true;
        }
        // For a cell that cannot be reached, other users are told nothing.
        let inner = self.at(ino).and_then(|at| {
            let fs = self.cells.enter(&at.place)?;
            Ok(fs.is_for_owner(user, at.ino, name, value))
        });
        name == CELLS_XATTR || inner.unwrap_or(true)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let at = self.at(ino)?;
        if at.is_inner_root() {
            let fs = self.attributes_of_root(&at)?;
            let Some(fs) = fs else { return Ok(Vec::new()) };
            return Ok(seen(&at, fs.listxattr(at.ino)?));
        }
        Ok(seen(&at, self.cells.enter(&at.place)?.listxattr(at.ino)?))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        let at = self.at(ino)?;
        if name == CELL_MOUNT_XATTR {
            Self::check_cell_mount(&at, value)?;
        }
        if !at.place.is_seen(name) {
            return Err(Error::Unsupported("security attributes in an attached cell"));
        }
        self.cells.enter(&at.place)?.setxattr(caller, at.ino, name, value, how)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let at = self.at(ino)?;
        match &at.place.above {
            _ if !at.place.is_seen(name) => Err(Error::NoAttribute),
            Some(above) if at.is_inner_root() && name == CELL_MOUNT_XATTR => {
                self.cells.enter(&above.place)?.removexattr(caller, above.dir, name)
            }
            _ => self.cells.enter(&at.place)?.removexattr(caller, at.ino, name),
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
        let (at, fs) = self.walk(ino)?;
        fs.fallocate(caller, at.ino, mode, offset, len_bytes)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let (at, fs) = self.walk(ino)?;
        fs.seek(at.ino, from)
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        self.outer.set_invalidate(Arc::clone(&sink));
        self.upward.sink.set(sink);
    }

    fn unmount(&self) -> Result<()> {
        // The cells inside first: waiting for their servers does not block use of the outermost.
        let inner = self.cells.leave();
        self.outer.unmount().and(inner)
    }
}
