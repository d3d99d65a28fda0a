//! The calls of [`FileSystem`].

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, RenameFlags as HostRename, XattrFlags, fdatasync,
    fstatvfs, fsync, linkat, listxattr, listxattr_query, mkdirat, mknodat, openat, readlinkat,
    removexattr, renameat_with, seek, setxattr, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::acls;
use super::attributes::{self, New, WANTED, kind, kind_of, stat};
use super::descriptors::magic;
use super::errno::os;
use super::inodes::Inode;
use super::{HostDir, Named};
use crate::mutex::locked;
use crate::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileSystem, Handle,
    Ino, OpenFlags, Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, XattrSet, check_name,
    copy_by_reading,
};

/// The size of the buffer for names listed by the host, in bytes.
const LISTING_BYTES: usize = 16 << 10;

impl HostDir {
    /// Looks up the inode just created as `name`, and sets its owner and mode.
    fn made(&self, parent: &Arc<Inode>, name: &[u8], new: &New<'_>) -> Result<Entry> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = self.fd(parent)?;
        let fd = self.opening(|| openat(&above, name, flags, Mode::empty()))?;
        new.finish(&fd)?;
        Ok(self.entry(&self.keep(fd, parent, name)?))
    }

    /// Creates a regular file and opens it in one step, so that no other process can replace it in
    /// between.
    fn make_file(&self, parent: &Arc<Inode>, name: &[u8], new: &New<'_>) -> Result<Entry> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = self.fd(parent)?;
        let file = self.opening(|| openat(&above, name, flags, Mode::RUSR | Mode::WUSR))?;
        new.finish_file(&file)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = magic(file.as_fd());
        let fd = self.opening(|| openat(CWD, &*path, flags, Mode::empty()))?;
        Ok(self.entry(&self.keep(fd, parent, name)?))
    }

    /// A path to an inode, valid as long as the descriptor is held.
    fn path(&self, ino: Ino) -> Result<(Named, String)> {
        let named = self.fd(&*self.inode(ino)?)?;
        let path = magic(named.as_fd());
        Ok((named, path))
    }

    /// Removes a name. An inode that is still referenced is held open from then on: otherwise the
    /// host would reuse its number for another inode.
    fn remove(&self, parent: &Inode, name: &[u8], flags: AtFlags) -> Result<()> {
        let referred = self.referred(parent, name);
        unlinkat(self.fd(parent)?, name, flags).map_err(os)?;
        if let Some((inode, named)) = referred {
            inode.pin(named);
        }
        Ok(())
    }

    /// Calls `each` with the names of a directory: number on the host, kind, name, cursor behind.
    fn each_name(
        &self,
        directory: &Inode,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let named = self.fd(directory)?;
        let fd = match self.opening(|| openat(&named, c".", flags, Mode::empty())) {
            // A removed directory is empty.
            Err(Error::NotFound) => return Ok(()),
            opened => opened?,
        };
        if cursor != DirCursor::START {
            seek(&fd, rustix::fs::SeekFrom::Start(cursor.0)).map_err(os)?;
        }
        let is_root = directory.ino == self.root.ino;
        let mut buf = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut names = RawDir::new(&fd, &mut buf);
        while let Some(entry) = names.next() {
            let entry = match entry {
                Err(Errno::NOENT) => return Ok(()),
                entry => entry.map_err(os)?,
            };
            let name = entry.file_name().to_bytes();
            let kind = match entry.file_type() {
                // Few file systems omit the kind.
                FileType::Unknown => {
                    let at = AtFlags::SYMLINK_NOFOLLOW;
                    match rustix::fs::statx(&named, name, at, WANTED) {
                        Ok(found) => kind(&found),
                        Err(_) => continue,
                    }
                }
                known => kind_of(known),
            };
            // The directory above the root is not shown.
            let ino = if is_root && name == b".." {
                directory.ino
            } else {
                locked(&self.inodes).number(directory, entry.ino())
            };
            let next = DirCursor(entry.next_entry_cookie());
            if !each(DirEntry { ino, kind, name, next }) {
                break;
            }
        }
        Ok(())
    }
}

fn open_flags(flags: OpenFlags) -> OFlags {
    let mut host = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    for (ours, theirs) in [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::TRUNCATE, OFlags::TRUNC),
        (OpenFlags::DSYNC, OFlags::DSYNC),
        (OpenFlags::SYNC, OFlags::SYNC),
    ] {
        host.set(theirs, flags.contains(ours));
    }
    host
}

impl FileSystem for HostDir {
    fn root(&self) -> Ino {
        self.root.ino
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        Ok(self.entry(&self.find(&self.directory(parent)?, name)?))
    }

    fn forget(&self, ino: Ino, count: u64) {
        if ino != self.root.ino {
            self.give_back(ino, count);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.inode(ino)?;
        Ok(attributes::attr(ino, &self.shown(self.fd(&inode)?)?))
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let inode = self.inode(ino)?;
        let fd = self.fd(&inode)?;
        if let Some(size) = set.size_bytes {
            if i64::try_from(size).is_err() {
                return Err(Error::TooLarge);
            }
            attributes::set_size(self.own_content(&inode, true)?, size)?;
        }
        let _own = self.modes.read().unwrap_or_else(PoisonError::into_inner);
        attributes::set(&fd, inode.kind, set)?;
        Ok(attributes::attr(ino, &stat(&fd)?))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        Ok(readlinkat(self.fd(&inode)?, c"", Vec::new()).map_err(os)?.into_bytes())
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
        let parent = self.directory(parent)?;
        check_name(name)?;
        let named = self.fd(&parent)?;
        let above = stat(&named)?;
        let perm = acls::perm_of_new(&named, caller, perm)?;
        let new = New { caller, kind, perm, parent: &above };
        let (host, rdev) = match kind {
            FileKind::Regular => return self.make_file(&parent, name, &new),
            FileKind::Directory | FileKind::Symlink => {
                return Err(Error::Invalid("mknod makes no directory and no symbolic link"));
            }
            FileKind::BlockDevice => (FileType::BlockDevice, rdev),
            FileKind::CharDevice => (FileType::CharacterDevice, rdev),
            FileKind::Fifo => (FileType::Fifo, 0),
            FileKind::Socket => (FileType::Socket, 0),
        };
        mknodat(&named, name, host, Mode::RUSR | Mode::WUSR, rdev.into()).map_err(os)?;
        self.made(&parent, name, &new)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let parent = self.directory(parent)?;
        check_name(name)?;
        let named = self.fd(&parent)?;
        let above = stat(&named)?;
        let perm = acls::perm_of_new(&named, caller, perm)?;
        mkdirat(&named, name, Mode::RWXU).map_err(os)?;
        let new = New { caller, kind: FileKind::Directory, perm, parent: &above };
        self.made(&parent, name, &new)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let parent = self.directory(parent)?;
        check_name(name)?;
        let named = self.fd(&parent)?;
        let above = stat(&named)?;
        symlinkat(target, &named, name).map_err(os)?;
        let new = New { caller, kind: FileKind::Symlink, perm: 0o777, parent: &above };
        self.made(&parent, name, &new)
    }

    fn link(&self, _: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let inode = self.inode(ino)?;
        // The same errors as other file systems, whatever else is wrong.
        if inode.kind == FileKind::Directory {
            return Err(Error::NotPermitted);
        }
        let parent = self.directory(new_parent)?;
        check_name(new_name)?;
        let (named, path) = self.path(ino)?;
        linkat(CWD, path, self.fd(&parent)?, new_name, AtFlags::SYMLINK_FOLLOW).map_err(os)?;
        locked(&self.inodes).add_uses(&inode, 1);
        inode.is_named(&parent, new_name);
        let attributes = stat(&named)?;
        Ok(self.entry(&(inode, attributes)))
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.directory(parent)?;
        check_name(name)?;
        self.remove(&parent, name, AtFlags::empty())
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.directory(parent)?;
        check_name(name)?;
        self.remove(&parent, name, AtFlags::REMOVEDIR)
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
        let (parent, new_parent) = (self.directory(parent)?, self.directory(new_parent)?);
        check_name(name)?;
        check_name(new_name)?;
        let mut host = HostRename::empty();
        host.set(HostRename::NOREPLACE, flags.contains(RenameFlags::NO_REPLACE));
        host.set(HostRename::EXCHANGE, flags.contains(RenameFlags::EXCHANGE));
        let moving = self.referred(&parent, name);
        let there = self.referred(&new_parent, new_name);
        let (from, to) = (self.fd(&parent)?, self.fd(&new_parent)?);
        renameat_with(&from, name, &to, new_name, host).map_err(os)?;
        if let Some((moved, _)) = moving {
            moved.is_named(&new_parent, new_name);
        }
        match there {
            Some((there, _)) if flags.contains(RenameFlags::EXCHANGE) => {
                there.is_named(&parent, name);
            }
            Some((there, named)) => there.pin(named),
            None => {}
        }
        Ok(())
    }

    fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory),
            // Opening a FIFO would wait, and opening a device may have any side effect.
            _ => return Err(Error::Invalid("not a regular file")),
        }
        let quiet = flags.contains(OpenFlags::NOATIME);
        let quietly = quiet.then(|| self.open_inode(&inode, open_flags(flags) | OFlags::NOATIME));
        let file = match quietly {
            Some(Ok(file)) => file,
            // Only the owner may ask the host for that.
            _ => self.open_inode(&inode, open_flags(flags))?,
        };
        // Other processes may change the host's files at any time: cached content is checked at
        // each open, as on NFS.
        let keep_cache = inode.is_as_last_opened(&stat(&file)?);
        let handle = self.new_handle(inode, file, flags)?;
        Ok(Opened { handle, keep_cache, direct_io: false })
    }

    fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        let opened = locked(&self.handles).get(handle).cloned();
        opened.filter(|opened| opened.inode.ino == ino).map(|opened| opened.file)
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        locked(&self.handles).close_if(handle, |opened| opened.inode.ino == ino)?;
        self.give_back(ino, 1);
        Ok(())
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_content(ino, handle, offset, buf)
    }

    fn write(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.write_content(ino, handle, offset, data)
    }

    fn write_cached(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let handle = if self.appends(handle) { Handle::NONE } else { handle };
        self.write_content(ino, handle, offset, data)
    }

    fn fsync(&self, _: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {
                let file = self.own_content(&inode, false)?;
                if data_only { fdatasync(&file) } else { fsync(&file) }.map_err(os)
            }
            FileKind::Directory => {
                match self.open_inode(&inode, OFlags::RDONLY | OFlags::DIRECTORY) {
                    // A file without a name needs no durable name.
                    Err(Error::NotFound) => Ok(()),
                    directory => fsync(directory?).map_err(os),
                }
            }
            // The host has no call for these.
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        let root = self.open_inode(&self.root, OFlags::RDONLY | OFlags::DIRECTORY)?;
        syncfs(root).map_err(os)
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.each_name(&*self.directory(ino)?, cursor, each)
    }

    fn statfs(&self) -> Result<StatFs> {
        let host = fstatvfs(&self.root_fd).map_err(os)?;
        let unit = if host.f_frsize == 0 { host.f_bsize } else { host.f_frsize };
        Ok(StatFs {
            block_bytes: u32::try_from(unit).unwrap_or(u32::MAX),
            blocks: host.f_blocks,
            blocks_free: host.f_bfree,
            blocks_available: host.f_bavail,
            inodes: host.f_files,
            inodes_free: host.f_ffree,
            name_max_bytes: u32::try_from(host.f_namemax).unwrap_or(255),
        })
    }

    // Some of the host's file systems below may have no ACLs: setting one fails there.
    fn has_acls(&self) -> bool {
        true
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (_inode, path) = self.path(ino)?;
        let inode = self.inode(ino)?;
        match self.as_owner(&inode, || attributes::extended(&path, name)) {
            // On an error, a kernel that asks in order to check permissions would refuse the file.
            Err(Error::Unsupported(_)) if acls::is_acl(name) => Err(Error::NoAttribute),
            found => found,
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let (_inode, path) = self.path(ino)?;
        loop {
            let len = listxattr_query(&*path).map_err(os)?;
            let mut list = vec![0; len];
            match listxattr(&*path, &mut list[..]) {
                Ok(len) => {
                    let names = list[..len].split(|&byte| byte == 0);
                    return Ok(names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect());
                }
                Err(Errno::RANGE) => {}
                Err(e) => return Err(os(e)),
            }
        }
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        let (_inode, path) = self.path(ino)?;
        let flags = match how {
            XattrSet::Any => XattrFlags::empty(),
            XattrSet::Create => XattrFlags::CREATE,
            XattrSet::Replace => XattrFlags::REPLACE,
        };
        acls::check(&path, name, Some((value, how)))?;
        let inode = self.inode(ino)?;
        self.as_owner(&inode, || setxattr(&*path, name, value, flags).map_err(os))
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let (_inode, path) = self.path(ino)?;
        acls::check(&path, name, None)?;
        let inode = self.inode(ino)?;
        self.as_owner(&inode, || removexattr(&*path, name).map_err(os))
    }

    fn fallocate(
        &self,
        _: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.allocate(ino, mode, offset, len_bytes)
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
        if let Some(done) = self.copy_on_host(from, from_offset, to, to_offset, len_bytes)? {
            return Ok(done);
        }
        copy_by_reading(self, caller, (from, from_offset), (to, to_offset), len_bytes)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.seek_content(ino, from)
    }

    fn unmount(&self) -> Result<()> {
        let result = self.sync();
        locked(&self.handles).clear();
        locked(&self.inodes).keep_only(&self.root);
        self.descriptors.close_all();
        result
    }
}
