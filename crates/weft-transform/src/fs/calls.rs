//! The calls of [`FileSystem`]: the short ones are implemented here, the others in the modules for
//! their subjects.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_vfs::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, Error, FallocateMode, FileFlags,
    FileKind, FileLock, FileSystem, Handle, Ino, Interrupt, Invalidate, LockStyle, OpenFlags,
    Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, TrimRange, XattrSet, copy_by_reading,
    seek_without_holes,
};

use super::access::ACCESS_LIST;
use super::archive_tree::Trees;
use super::inode::Inode;
use super::inodes::{InodeTable, is_synthetic};
use super::locks::locked;
use super::options::{CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, NETWORK_ATTRIBUTE, STORED_ATTRIBUTE};
use super::path::check_visible;
use super::rules::is_rules_file;
use super::transform_fs::TransformFs;

/// Forwards invalidations from below, with the inode numbers of this file system.
struct Upward {
    inodes: Arc<std::sync::Mutex<InodeTable>>,
    sink: Arc<dyn Invalidate>,
}

impl Invalidate for Upward {
    fn inode(&self, ino: Ino, data: bool) {
        let ino = locked(&self.inodes).number(ino);
        self.sink.inode(ino, data);
    }

    fn entry(&self, parent: Ino, name: &[u8]) {
        let parent = locked(&self.inodes).number(parent);
        self.sink.entry(parent, name);
    }

    fn settle(&self) {
        self.sink.settle();
    }
}

impl TransformFs {
    /// Announces a change of a file to its views, and to the cached rules if it is a rules file.
    pub(super) fn touched(&self, inode: &Inode) {
        self.changed(inode);
        self.rules_may_differ(inode);
    }

    /// Forgets cached rules if `inode` is a rules file: its content or its permissions have changed.
    pub(super) fn rules_may_differ(&self, inode: &Inode) {
        if is_rules_file(&locked(&inode.path)) {
            self.forget_rules();
        }
    }

    /// Returns the inode below that has the flags of `ino`; synthetic inodes and views have none.
    fn flagged(&self, ino: Ino) -> Result<Ino> {
        if is_synthetic(ino) {
            return Err(Error::UnknownCommand);
        }
        let inode = self.inode(ino)?;
        if inode.view_name.is_some() || locked(&inode.file).is_view() {
            return Err(Error::UnknownCommand);
        }
        Ok(inode.below())
    }

    /// Returns the inode below of `ino`; `None` for synthetic inodes.
    pub(super) fn inode_below(&self, ino: Ino) -> Option<Ino> {
        self.inode(ino).ok().map(|inode| inode.below())
    }

    /// Measures a file that listings show, and that nobody has open: whoever has, reads.
    fn measure(&self, inode: &Inode) -> Result<()> {
        if inode.view_name.is_some()
            || inode.is_plain()
            || locked(&self.handles).values().any(|open| open.ino == inode.ino)
        {
            return Ok(());
        }
        self.mount.file(inode).measure()
    }

    /// Writes to a file; `cached` is true for [`FileSystem::write_cached`].
    fn write_file(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        cached: bool,
    ) -> Result<usize> {
        let inode = self.inode(ino)?;
        self.touched(&inode);
        let open = self.open_flags(handle);
        if inode.is_plain() {
            let (below, fs) = (self.below_handle(handle), &self.mount.below);
            let caller = &self.caller_below(caller);
            return if cached {
                fs.write_cached(caller, inode.below(), below, offset, data)
            } else {
                fs.write(caller, inode.below(), below, offset, data)
            };
        }
        if data.is_empty() {
            return Ok(0);
        }
        let append = open.is_some_and(|open| open.flags.contains(OpenFlags::APPEND));
        let offset = (cached || !append).then_some(offset);
        let taken = self.mount.file(&inode).write(offset, data)?;
        let durable = OpenFlags::SYNC | OpenFlags::DSYNC;
        if !cached && open.is_some_and(|open| open.flags.intersects(durable)) {
            self.fsync(caller, inode.ino, false)?;
        }
        Ok(taken)
    }
}

/// Maximum number of lookups of a name whose inode keeps changing.
const LOOKUPS: usize = 100;

// Not a layer: a file that is rewritten gets another inode below, so no call may be passed down
// with the inode number of this file system.
#[deny(clippy::missing_trait_methods, reason = "a default would not reach below")]
impl FileSystem for TransformFs {
    fn root(&self) -> Ino {
        self.mount.below.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if is_synthetic(parent) {
            return self.synthetic_lookup(parent, name);
        }
        let parent = self.inode(parent)?;
        if check_visible(name).is_err() {
            return Err(Error::NotFound);
        }
        for _ in 0..LOOKUPS {
            let below = match self.mount.below.lookup(parent.below(), name) {
                Err(Error::NotFound) => {
                    let meter = self.meter_lookup(parent.ino, name);
                    return meter.or_else(|_| self.view(&parent, name));
                }
                below => below?,
            };
            let entry = self.found(&parent, name, below, false)?;
            // The inode has no name any more: the file was rewritten or removed since the lookup.
            if entry.attr.nlink > 0 || matches!(name, b"." | b"..") {
                return Ok(entry);
            }
            self.forget(entry.attr.ino, 1);
        }
        Err(Error::Busy)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if is_synthetic(ino) {
            self.synthetic_forget(ino, count);
        } else if ino != self.root() {
            self.mount.release_uses(ino, count);
        }
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        for &(ino, count) in references {
            self.forget(ino, count);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if is_synthetic(ino) {
            return self.synthetic_attr(ino);
        }
        let inode = self.inode(ino)?;
        self.measure(&inode)?;
        self.attr(&inode)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if is_synthetic(ino) {
            return self.synthetic_attr(ino).and(Err(Error::ReadOnly));
        }
        let inode = self.inode(ino)?;
        if locked(&inode.file).is_view() {
            return Err(Error::ReadOnly);
        }
        // A change of only mode or owner does not change the content: readers of a tree can go on.
        if set.size_bytes.is_some() || set.mtime.is_some() {
            self.touched(&inode);
        } else {
            Self::permissions_change(&inode);
        }
        let mut attr = if inode.is_plain() {
            self.mount.below.setattr(&self.caller_below(caller), inode.below(), set)?
        } else {
            self.mount.file(&inode).setattr(set)?.0
        };
        self.rules_may_differ(&inode);
        attr.ino = inode.ino;
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if is_synthetic(ino) {
            return self.tree_link(ino);
        }
        self.mount.below.readlink(self.inode(ino)?.below())
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
        let parent = self.inode(parent)?;
        check_visible(name)?;
        let made = if kind == FileKind::Regular {
            self.make_regular(caller, &parent, name, perm, rdev)?
        } else {
            let _names = locked(&self.mount.names);
            self.mount.below.mknod(caller, parent.below(), name, kind, perm, rdev)?
        };
        self.named(name);
        self.found(&parent, name, made, true)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let parent = self.inode(parent)?;
        check_visible(name)?;
        let made = self.mount.below.mkdir(caller, parent.below(), name, perm)?;
        self.found(&parent, name, made, true)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let parent = self.inode(parent)?;
        check_visible(name)?;
        let made = self.mount.below.symlink(caller, parent.below(), name, target)?;
        self.found(&parent, name, made, true)
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        self.add_name(caller, ino, new_parent, new_name)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove_name(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove_directory(caller, parent, name)
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
        self.change_name(caller, parent, name, new_parent, new_name, flags)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.open_file(caller, ino, flags)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.create_file(caller, parent, name, perm, flags)
    }

    // The path of a file determines the rules that apply to it, and this one would have none.
    fn create_unnamed(&self, _: &Caller, _: Ino, _: u16) -> Result<Entry> {
        Err(Error::Unsupported("files without a name"))
    }

    // A file of which the last name was removed is forgotten here, with its rules.
    fn restore_name(&self, _: &Caller, _: Ino, _: Ino, _: &[u8]) -> Result<()> {
        Err(Error::Unsupported("names that come back"))
    }

    fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        self.file_below(ino, handle)
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn has_acls(&self) -> bool {
        self.mount.below.has_acls()
    }

    fn has_whiteouts(&self) -> bool {
        // A rename may be a move between networks.
        false
    }

    fn attr_lifetime(&self, ino: Ino) -> Option<Duration> {
        self.lifetime_of_attr(ino)
    }

    fn name_lifetime(&self, ino: Ino) -> Option<Duration> {
        self.lifetime_of_name(ino)
    }

    fn flush(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.flush_file(ino, handle)
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.release_file(ino, handle)
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if is_synthetic(ino) {
            return self.synthetic_read(ino, handle, offset, buf);
        }
        let inode = self.inode(ino)?;
        if inode.is_plain() {
            return self.mount.below.read(inode.below(), self.below_handle(handle), offset, buf);
        }
        if let Some(entry) = self.snapshot_entry(&inode) {
            return Ok(entry.read_at(offset, buf).map_err(crate::Error::from)?);
        }
        let through = |buf: &mut [u8]| match self.mount.read_in_place(&inode, offset, buf) {
            Some(read) => read,
            None => self.mount.file(&inode).read(offset, buf),
        };
        let read = self.read_output(&inode, offset, buf, through);
        read.inspect_err(|e| {
            if !matches!(e, Error::Interrupted) {
                tracing::error!(ino = ino.0, offset, "{e}");
            }
        })
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.write_file(caller, ino, handle, offset, data, false)
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.write_file(caller, ino, handle, offset, data, true)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        if is_synthetic(ino) {
            return self.synthetic_attr(ino).map(drop);
        }
        let inode = self.inode(ino)?;
        if inode.view_name.is_some() {
            return Ok(());
        }
        self.mount.commit(&inode)?;
        self.mount.below.fsync(&self.caller_below(caller), inode.below(), data_only)
    }

    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()> {
        if is_synthetic(ino) {
            return self.synthetic_attr(ino).map(drop);
        }
        self.mount.below.fsync_dir(caller, self.inode(ino)?.below())
    }

    /// Stages, and the mount below, wait as they like.
    fn without_waiting(&self, _call: &mut dyn FnMut()) -> bool {
        false
    }

    fn sync(&self) -> Result<()> {
        self.commit_all().and(self.mount.below.sync())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, cursor, each)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.list_plus(ino, cursor, each)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.mount.below.statfs()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if is_synthetic(ino) {
            return self.synthetic_attribute(ino, name);
        }
        self.attribute(&*self.inode(ino)?, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if is_synthetic(ino) {
            let list = self.synthetic_attribute(ino, ACCESS_LIST).map(|_| ACCESS_LIST.to_vec());
            return self.synthetic_attr(ino).map(|_| list.into_iter().collect());
        }
        self.attributes(&*self.inode(ino)?)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.set_attribute(caller, &*self.inode(ino)?, name, value, how)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.remove_attribute(caller, &*self.inode(ino)?, name)
    }

    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        let commands = [NETWORK_ATTRIBUTE, STORED_ATTRIBUTE, CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE];
        if commands.contains(&name) {
            return false;
        }
        let below = |ino| self.mount.below.is_for_owner(user, ino, name, value);
        self.inode_below(ino).is_some_and(below)
    }

    // All readers see the file through its network, and a log stage in it records their reads.
    fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool {
        let below = |ino| self.mount.below.is_owners_to_set(ino, name);
        matches!(name, NETWORK_ATTRIBUTE | STORED_ATTRIBUTE | CONVERT_ATTRIBUTE)
            || self.inode_below(ino).is_some_and(below)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        self.touched(&inode);
        if inode.is_plain() {
            let caller = self.caller_below(caller);
            return self.mount.below.fallocate(&caller, inode.below(), mode, offset, len_bytes);
        }
        let end = offset.checked_add(len_bytes).ok_or(Error::TooLarge)?;
        if len_bytes == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let keep_size = match mode {
            // Space cannot be allocated before the stored form is known.
            FallocateMode::Allocate { .. } => return Err(Error::Unsupported("fallocate")),
            FallocateMode::PunchHole => true,
            FallocateMode::ZeroRange { keep_size } => keep_size,
        };
        let size = self.attr(&inode)?.size_bytes;
        let end = if keep_size { end.min(size) } else { end };
        self.mount.file(&inode).zero(offset, end)
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
        let target = self.inode(to)?;
        self.touched(&target);
        if !is_synthetic(from) && target.is_plain() {
            let source = self.inode(from)?;
            if source.is_plain() {
                let (from, to) = (source.below(), target.below());
                return self.mount.below.copy_range(
                    &self.caller_below(caller),
                    from,
                    from_offset,
                    to,
                    to_offset,
                    len_bytes,
                );
            }
        }
        copy_by_reading(self, caller, (from, from_offset), (to, to_offset), len_bytes)
    }

    fn trim(&self, range: &TrimRange) -> Result<u64> {
        self.mount.below.trim(range)
    }

    fn file_flags(&self, ino: Ino) -> Result<FileFlags> {
        self.mount.below.file_flags(self.flagged(ino)?)
    }

    fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()> {
        self.mount.below.set_file_flags(&self.caller_below(caller), self.flagged(ino)?, flags)
    }

    fn command(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        request: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        self.commanded(caller, ino, handle, request, data)
    }

    // The locks of a file that is rewritten would stay with its old inode below. So locks are kept
    // by the kernel, and are valid on this mount only.

    fn has_locks(&self) -> bool {
        false
    }

    fn lock(&self, _: Ino, _: Handle, _: &FileLock, _: Option<&Interrupt>) -> Result<()> {
        Err(Error::Unsupported("locks"))
    }

    fn unlock(&self, _: Ino, _: Handle, _: LockStyle, _: u64, _: u64, _: u64) {}

    fn find_lock(&self, _: Ino, _: &FileLock) -> Result<Option<FileLock>> {
        Err(Error::Unsupported("locks"))
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        *locked(&self.sink) = Some(sink.clone());
        let upward = Upward { inodes: self.mount.inodes.clone(), sink };
        self.mount.below.set_invalidate(Arc::new(upward));
    }

    fn time_unit_nanos(&self) -> u32 {
        self.mount.below.time_unit_nanos()
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        if !is_synthetic(ino) {
            let inode = self.inode(ino)?;
            if inode.is_plain() {
                return self.mount.below.seek(inode.below(), from);
            }
        }
        seek_without_holes(self.getattr(ino)?.size_bytes, from)
    }

    fn unmount(&self) -> Result<()> {
        let result = self.commit_all();
        locked(&self.handles).clear();
        *locked(&self.trees) = Trees::default();
        let inodes = self.mount.inodes().clear();
        for inode in inodes {
            locked(&inode.file).close();
        }
        if let Ok(root) = self.mount.below.getattr(self.mount.below.root()) {
            self.add_root(&root);
        }
        result.and(self.mount.below.unmount())
    }
}
