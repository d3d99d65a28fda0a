//! The file plug: forwards each call to the module that implements it.

use crate::data::{Placement, Source};
use crate::format::Format;
use crate::front::UnixFs;
use crate::life::CUT_META_BLOCKS;
use crate::names::{NAME_BLOCKS, What};
use crate::needs::Need;
use crate::state::OpenFile;
use crate::{Error, Result};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error as FsError, FallocateMode, FileFlags, FileKind,
    FileSystem, Handle, Ino, OpenFlags, Opened, RenameFlags, Result as FsResult, SeekFrom, SetAttr,
    StatFs, TrimRange, XattrSet,
};

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_forget(&self, ino: Ino, count: u64) {
        let doomed = {
            let mut st = self.lock();
            let root = st.root;
            let Some(node) = st.nodes.get_mut(ino) else {
                st.nodes.forget_dropped(ino, count);
                return;
            };
            node.refs = node.refs.saturating_sub(count);
            if ino == root {
                node.refs = node.refs.max(1);
            }
            if node.refs == 0 {
                st.released(ino);
            }
            !st.doomed.is_empty()
        };
        if doomed {
            self.reap();
        }
    }

    fn do_readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.look(|st, op| {
            if st.load(op, ino)?.kind != FileKind::Symlink {
                return Err(FsError::Invalid("not a symbolic link").into());
            }
            let (format, node) = st.with_node(ino)?;
            format.target(op, node)
        })
    }

    fn do_open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if writes && self.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        let handle = self.look(|st, op| {
            let node = st.load(op, ino)?;
            match node.kind {
                FileKind::Directory if writes => return Err(FsError::IsADirectory.into()),
                FileKind::Regular | FileKind::Directory => {}
                _ => return Err(FsError::Invalid("not a regular file").into()),
            }
            if writes {
                let append = flags.contains(OpenFlags::APPEND);
                st.check_mutable(ino, append && !flags.contains(OpenFlags::TRUNCATE))?;
            }
            st.node(ino)?.opens += 1;
            Ok(st.handles.open(OpenFile { ino, flags }))
        })?;
        if flags.contains(OpenFlags::TRUNCATE)
            && let Err(e) = self.do_truncate(ino, 0)
        {
            self.do_release(handle)?;
            return Err(e);
        }
        Ok(Opened { handle, keep_cache: true, direct_io: false })
    }

    fn do_release(&self, handle: Handle) -> Result<()> {
        {
            let mut st = self.lock();
            let open = st.handles.close(handle).map_err(FsError::from)?;
            if let Some(node) = st.nodes.get_mut(open.ino) {
                node.opens = node.opens.saturating_sub(1);
            }
            st.released(open.ino);
            if st.doomed.is_empty() {
                return Ok(());
            }
        }
        self.reap();
        Ok(())
    }

    fn flags_of(&self, handle: Handle) -> OpenFlags {
        if handle == Handle::NONE {
            return OpenFlags::empty();
        }
        self.lock().handles.get(handle).map_or(OpenFlags::empty(), |open| open.flags)
    }
}

impl<F: Format> FileSystem for UnixFs<F> {
    fn root(&self) -> Ino {
        self.lock().root
    }

    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        weft_patch::without_waiting(call);
        true
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> FsResult<Entry> {
        Ok(self.do_lookup(parent, name)?)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.do_forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> FsResult<Attr> {
        Ok(self.do_getattr(ino)?)
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        Ok(self.do_setattr(ino, set)?)
    }

    fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.do_readlink(ino)?)
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> FsResult<Entry> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid("mknod makes neither directories nor links"));
        }
        Ok(self.do_create(caller, parent, name, perm, &What::Node { kind, rdev })?)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> FsResult<Entry> {
        Ok(self.do_create(caller, parent, name, perm, &What::Directory)?)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> FsResult<Entry> {
        Ok(self.do_create(caller, parent, name, 0o777, &What::Symlink { target })?)
    }

    fn link(&self, _: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> FsResult<Entry> {
        let parent = new_parent;
        let needs = [Need::Inode(ino), Need::Name(parent, new_name)];
        let entry = self.change(NAME_BLOCKS, &needs, |st, op| {
            st.link(op, ino, parent, new_name)?;
            st.refer(ino)
        })?;
        self.sync_names_if_flagged(&[parent], Some(ino))?;
        Ok(entry)
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<()> {
        let blocks = NAME_BLOCKS + CUT_META_BLOCKS;
        let needs = [Need::Removal(parent, name)];
        self.change(blocks, &needs, |st, op| st.remove(op, parent, name, false))?;
        Ok(self.sync_names_if_flagged(&[parent], None)?)
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<()> {
        let needs = [Need::Removal(parent, name)];
        self.change(NAME_BLOCKS, &needs, |st, op| st.remove(op, parent, name, true))?;
        Ok(self.sync_names_if_flagged(&[parent], None)?)
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> FsResult<()> {
        let (from, to) = (parent, new_parent);
        let policy = self.policy();
        let mut blocks = NAME_BLOCKS + CUT_META_BLOCKS;
        let mut needs = vec![
            Need::Name(from, name),
            Need::Removal(to, new_name),
            Need::Way(from),
            Need::Way(to),
        ];
        if flags.contains(RenameFlags::WHITEOUT) {
            blocks += NAME_BLOCKS;
            needs.push(Need::NewInode(from, FileKind::CharDevice));
        }
        self.change(blocks, &needs, |st, op| {
            st.rename(op, policy, caller, (from, name), (to, new_name), flags)
        })?;
        Ok(self.sync_names_if_flagged(&[from, to], None)?)
    }

    fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> FsResult<Opened> {
        Ok(self.do_open(ino, flags)?)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let what = What::Node { kind: FileKind::Regular, rdev: 0 };
        let created = self.do_create(caller, parent, name, perm, &what);
        let (entry, flags) = match created {
            Ok(entry) => (entry, flags - OpenFlags::TRUNCATE),
            Err(Error::Vfs(FsError::Exists)) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                (self.do_lookup(parent, name)?, flags)
            }
            Err(e) => return Err(e.into()),
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

    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> FsResult<Entry> {
        Ok(self.do_create_unnamed(caller, parent, perm)?)
    }

    fn restore_name(&self, _: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<()> {
        Ok(self.do_restore_name(ino, parent, name)?)
    }

    fn release(&self, _ino: Ino, handle: Handle) -> FsResult<()> {
        if handle != Handle::NONE {
            self.do_release(handle)?;
        }
        Ok(())
    }

    fn read(&self, ino: Ino, _handle: Handle, offset: u64, buf: &mut [u8]) -> FsResult<usize> {
        Ok(self.do_read(ino, offset, buf)?)
    }

    fn write(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> FsResult<usize> {
        let flags = self.flags_of(handle);
        let append = flags.contains(OpenFlags::APPEND);
        let placement = if append { Placement::Append } else { Placement::Given };
        let done = self.do_write(ino, offset, placement, Source::Bytes(data))?;
        if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.do_fsync(ino, !flags.contains(OpenFlags::SYNC))?;
        } else {
            self.sync_if_flagged(ino)?;
        }
        Ok(done)
    }

    fn write_cached(
        &self,
        _: &Caller,
        ino: Ino,
        _handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> FsResult<usize> {
        let done = self.do_write(ino, offset, Placement::Cached, Source::Bytes(data))?;
        self.sync_if_flagged(ino)?;
        Ok(done)
    }

    fn fsync(&self, _: &Caller, ino: Ino, data_only: bool) -> FsResult<()> {
        Ok(self.do_fsync(ino, data_only)?)
    }

    fn sync(&self) -> FsResult<()> {
        Ok(self.do_sync()?)
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        Ok(self.do_readdir(ino, cursor, each)?)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> FsResult<()> {
        Ok(self.do_readdir_plus(ino, cursor, each)?)
    }

    fn statfs(&self) -> FsResult<StatFs> {
        Ok(self.do_statfs())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        Ok(self.do_getxattr(ino, name)?)
    }

    fn listxattr(&self, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        Ok(self.do_listxattr(ino)?)
    }

    fn has_whiteouts(&self) -> bool {
        true
    }

    fn has_acls(&self) -> bool {
        self.lock().format.limits().has_attributes
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> FsResult<()> {
        Ok(self.do_setxattr(ino, name, Some(value), how)?)
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> FsResult<()> {
        Ok(self.do_setxattr(ino, name, None, XattrSet::Replace)?)
    }

    fn trim(&self, range: &TrimRange) -> FsResult<u64> {
        Ok(self.do_trim(range)?)
    }

    fn file_flags(&self, ino: Ino) -> FsResult<FileFlags> {
        Ok(self.do_file_flags(ino)?)
    }

    fn set_file_flags(&self, _: &Caller, ino: Ino, flags: FileFlags) -> FsResult<()> {
        Ok(self.do_set_file_flags(ino, flags)?)
    }

    fn fallocate(
        &self,
        _: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> FsResult<()> {
        Ok(self.do_fallocate(ino, mode, offset, len_bytes)?)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> FsResult<u64> {
        Ok(self.do_seek(ino, from)?)
    }

    fn time_unit_nanos(&self) -> u32 {
        self.lock().format.limits().time_unit_nanos
    }

    fn unmount(&self) -> FsResult<()> {
        Ok(self.close(|_, _| Ok(()))?)
    }
}
