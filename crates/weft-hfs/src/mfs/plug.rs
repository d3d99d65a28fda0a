//! The file plug's calls.

use super::fs::{DATA, Mfs, RESOURCE, ROOT};
use super::state::{State, engine_error};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FileKind, FileSystem, Handle, Ino,
    NAME_MAX_BYTES, OpenFlags, Opened, RenameFlags, Result, SetAttr, SetTime, StatFs, XattrSet,
};

const RESOURCE_FORK: &[u8] = b"user.com.apple.ResourceFork";
const FINDER_INFO: &[u8] = b"user.com.apple.FinderInfo";
const TYPE: &[u8] = b"user.hfs.type";
const CREATOR: &[u8] = b"user.hfs.creator";

impl FileSystem for Mfs {
    fn root(&self) -> Ino {
        Ino(ROOT)
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.of_root(parent)?;
        let mut state = self.lock();
        if matches!(name, b"." | b"..") {
            return Ok(Entry { attr: self.root_attr(&state), generation: 0 });
        }
        let ino = Self::find(&state, name)?;
        self.entry(&mut state, ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let last = {
            let mut state = self.lock();
            let Ok(file) = state.file_mut(ino.0) else { return };
            file.refs = file.refs.saturating_sub(count);
            file.refs == 0 && file.opens == 0 && file.gone.is_some()
        };
        if last {
            // Blocks that cannot be freed here are found by the next open.
            let _ = self.change(|state, op| state.release(op, ino.0));
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let state = self.lock();
        if ino.0 == ROOT {
            return Ok(self.root_attr(&state));
        }
        Ok(self.attr(ino.0, state.file(ino.0)?))
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if ino.0 == ROOT {
            if set.size_bytes.is_some() {
                return Err(Error::IsADirectory);
            }
            // MFS stores no attributes of its directory.
            return if self.read_only { Err(Error::ReadOnly) } else { self.getattr(ino) };
        }
        if let Some(size) = set.size_bytes {
            self.set_len(ino.0, DATA, size)?;
        }
        let modified = set.mtime.map(|time| match time {
            SetTime::Now => self.now(),
            SetTime::At(time) => self.to_mac(time),
        });
        self.change(|state, op| {
            let file = state.file_mut(ino.0)?;
            if let Some(locked) = set.perm.and_then(|perm| self.options.permissions.locks(perm)) {
                file.entry.locked = locked;
            }
            file.entry.modified = modified.unwrap_or(file.entry.modified);
            // No file is older than its content: a copy is as old as what was copied.
            file.entry.created = file.entry.created.min(modified.unwrap_or(u32::MAX));
            state.write_entry(op, ino.0, &[]).map(|_| ())
        })?;
        self.getattr(ino)
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
        self.of_root(parent)?;
        if kind != FileKind::Regular {
            return Err(Error::Unsupported("MFS has files only"));
        }
        if matches!(name, b"." | b"..") {
            return Err(Error::Exists);
        }
        let mac = Self::new_name(name)?;
        let now = self.now();
        let (file_type, creator) = crate::interchange::extension::guess(&mac);
        self.change(|state, op| {
            if state.find(&mac).is_some() || Self::find(state, name).is_ok() {
                return Err(Error::Exists);
            }
            let ino = state.create(op, mac, now)?;
            let file = state.file_mut(ino)?;
            file.entry.finder_info[..4].copy_from_slice(&file_type);
            file.entry.finder_info[4..8].copy_from_slice(&creator);
            state.write_entry(op, ino, &[])?;
            self.entry(state, ino)
        })
    }

    fn mkdir(&self, _caller: &Caller, parent: Ino, name: &[u8], _perm: u16) -> Result<Entry> {
        self.of_root(parent)?;
        if matches!(name, b"." | b"..") || Self::find(&self.lock(), name).is_ok() {
            return Err(Error::Exists);
        }
        Err(Error::Unsupported("MFS has one directory only"))
    }

    fn symlink(&self, _: &Caller, parent: Ino, _: &[u8], _: &[u8]) -> Result<Entry> {
        self.of_root(parent)?;
        Err(Error::Unsupported("MFS has no symbolic links"))
    }

    fn link(&self, _: &Caller, ino: Ino, _new_parent: Ino, _new_name: &[u8]) -> Result<Entry> {
        self.getattr(ino)?;
        Err(Error::NotPermitted)
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.of_root(parent)?;
        if matches!(name, b"." | b"..") {
            return Err(Error::IsADirectory);
        }
        self.change(|state, op| {
            let ino = Self::find(state, name)?;
            state.unlink(op, ino)
        })
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.of_root(parent)?;
        match name {
            b"." => Err(Error::Invalid("a directory cannot remove itself")),
            b".." => Err(Error::NotEmpty),
            _ => Self::find(&self.lock(), name).and(Err(Error::NotADirectory)),
        }
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
        self.of_root(parent)?;
        self.of_root(new_parent)?;
        if flags.contains(RenameFlags::EXCHANGE) {
            return Err(Error::Invalid("MFS cannot exchange names"));
        }
        let dots = |name: &[u8]| matches!(name, b"." | b"..");
        if dots(name) || dots(new_name) {
            return Err(Error::Busy);
        }
        let mac = Self::new_name(new_name)?;
        self.change(|state, op| {
            let ino = Self::find(state, name)?;
            let target = state.find(&mac);
            if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
                return Err(Error::Exists);
            }
            state.rename(op, ino, mac)
        })
    }

    fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.open_handle(Self::of_file(ino)?, flags)
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        if self.handles().close(handle).is_err() {
            return Ok(());
        }
        let last = {
            let mut state = self.lock();
            let file = state.file_mut(ino.0)?;
            file.opens = file.opens.saturating_sub(1);
            file.refs == 0 && file.opens == 0 && file.gone.is_some()
        };
        if last { self.change(|state, op| state.release(op, ino.0)) } else { Ok(()) }
    }

    fn read(&self, ino: Ino, _handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_fork(Self::of_file(ino)?, DATA, offset, buf)
    }

    fn write(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let ino = Self::of_file(ino)?;
        let flags = self.handles().get(handle).copied().unwrap_or(OpenFlags::empty());
        let at = (!flags.contains(OpenFlags::APPEND)).then_some(offset);
        let done = self.write_fork(ino, DATA, at, data)?;
        if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.sync()?;
        }
        Ok(done)
    }

    fn sync(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.engine.sync().map_err(engine_error)?;
        if self.change(State::write_counts)? {
            self.engine.sync().map_err(engine_error)?;
        }
        Ok(())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.of_root(ino)?;
        for (at, name) in [(0, b".".as_slice()), (1, b"..")] {
            let (kind, next) = (FileKind::Directory, DirCursor(at + 1));
            if cursor.0 <= at && !each(DirEntry { ino: Ino(ROOT), kind, name, next }) {
                return Ok(());
            }
        }
        for (ino, name) in self.names_from(cursor) {
            let (kind, next) = (FileKind::Regular, DirCursor(ino + 1));
            if !each(DirEntry { ino: Ino(ino), kind, name: &name, next }) {
                break;
            }
        }
        Ok(())
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.of_root(ino)?;
        for (at, name) in [(0, b".".as_slice()), (1, b"..")] {
            let (kind, next) = (FileKind::Directory, DirCursor(at + 1));
            let entry = Entry { attr: self.root_attr(&self.lock()), generation: 0 };
            if cursor.0 <= at && !each(DirEntry { ino: Ino(ROOT), kind, name, next }, entry) {
                return Ok(());
            }
        }
        for (ino, name) in self.names_from(cursor) {
            // An entry that has been removed meanwhile is left out.
            let Ok(entry) = self.entry(&mut self.lock(), ino) else { continue };
            let (kind, next) = (FileKind::Regular, DirCursor(ino + 1));
            if !each(DirEntry { ino: Ino(ino), kind, name: &name, next }, entry) {
                self.forget(Ino(ino), 1);
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        let state = self.lock();
        let free = u64::from(state.map.free());
        let files = state.named().count() as u64;
        // The number of entries if each name had 13 bytes.
        let room = u64::from(state.mdb.directory_blocks) * (512 / 64);
        Ok(StatFs {
            block_bytes: state.mdb.alloc_block_bytes,
            blocks: state.mdb.alloc_blocks.into(),
            blocks_free: free,
            blocks_available: free,
            inodes: room.max(files),
            inodes_free: room.saturating_sub(files),
            name_max_bytes: NAME_MAX_BYTES as u32,
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if ino.0 == ROOT {
            return Err(Error::NoAttribute);
        }
        let (info, len) = {
            let state = self.lock();
            let entry = &state.file(ino.0)?.entry;
            (entry.finder_info, entry.resource.len_bytes as usize)
        };
        match name {
            FINDER_INFO => Ok([info, [0; 16]].concat()),
            TYPE => Ok(info[..4].to_vec()),
            CREATOR => Ok(info[4..8].to_vec()),
            RESOURCE_FORK if len > 0 => {
                let mut content = vec![0; len];
                let got = self.read_fork(ino.0, RESOURCE, 0, &mut content)?;
                content.truncate(got);
                Ok(content)
            }
            _ => Err(Error::NoAttribute),
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if ino.0 == ROOT {
            return Ok(Vec::new());
        }
        let state = self.lock();
        let mut names = vec![FINDER_INFO.to_vec()];
        if state.file(ino.0)?.entry.resource.len_bytes > 0 {
            names.push(RESOURCE_FORK.to_vec());
        }
        Ok(names)
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        let ino = if ino.0 == ROOT {
            return Err(Error::Unsupported("attributes of the volume"));
        } else {
            ino.0
        };
        let has_fork = self.lock().file(ino)?.entry.resource.len_bytes > 0;
        let exists =
            matches!(name, FINDER_INFO | TYPE | CREATOR) || (name == RESOURCE_FORK && has_fork);
        match how {
            XattrSet::Create if exists => return Err(Error::Exists),
            XattrSet::Replace if !exists => return Err(Error::NoAttribute),
            _ => {}
        }
        let range = match (name, value.len()) {
            (RESOURCE_FORK, _) => return self.replace_resource(ino, value),
            (FINDER_INFO, 32) if value[16..].iter().any(|&b| b != 0) => {
                return Err(Error::Unsupported("MFS has no extended Finder information"));
            }
            (FINDER_INFO, 16 | 32) => 0..16,
            (TYPE, 4) => 0..4,
            (CREATOR, 4) => 4..8,
            (FINDER_INFO | TYPE | CREATOR, _) => {
                return Err(Error::Invalid(
                    "Finder information has 32 bytes, a type and a creator 4",
                ));
            }
            _ => return Err(Error::Unsupported("MFS keeps no such attribute")),
        };
        self.change(|state, op| {
            let info = &mut state.file_mut(ino)?.entry.finder_info;
            let len = range.len();
            info[range].copy_from_slice(&value[..len]);
            state.write_entry(op, ino, &[]).map(|_| ())
        })
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.getxattr(ino, name)?;
        match name {
            RESOURCE_FORK => self.set_len(ino.0, RESOURCE, 0),
            _ => self.setxattr(caller, ino, FINDER_INFO, &[0; 32], XattrSet::Any),
        }
    }

    fn unmount(&self) -> Result<()> {
        self.close()
    }
}
