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

use super::base::locked;
use super::decide::is_rules_file;
use super::nodes::{Node, Nodes};
use super::reach::ACCESS_LIST;
use super::shown::is_shown;
use super::trees::Trees;
use super::{Open, TransformFs, join};

/// Forwards invalidations from below, with the inode numbers of this file system.
struct Upward {
    nodes: Arc<std::sync::Mutex<Nodes>>,
    sink: Arc<dyn Invalidate>,
}

impl Invalidate for Upward {
    fn inode(&self, ino: Ino, data: bool) {
        let ino = locked(&self.nodes).number(ino);
        self.sink.inode(ino, data);
    }

    fn entry(&self, parent: Ino, name: &[u8]) {
        let parent = locked(&self.nodes).number(parent);
        self.sink.entry(parent, name);
    }

    fn settle(&self) {
        self.sink.settle();
    }
}

impl TransformFs {
    /// Announces a change of a file to its views, and to the cached rules if it is a rules file.
    pub(super) fn touched(&self, node: &Node) {
        self.changed(node);
        self.rules_may_differ(node);
    }

    /// Forgets cached rules if `node` is a rules file: its content or its permissions have changed.
    pub(super) fn rules_may_differ(&self, node: &Node) {
        if is_rules_file(&locked(&node.path)) {
            self.forget_rules();
        }
    }

    /// Returns the inode below that has the flags of `ino`; synthetic inodes and views have none.
    fn flagged(&self, ino: Ino) -> Result<Ino> {
        if is_shown(ino) {
            return Err(Error::UnknownCommand);
        }
        let node = self.node(ino)?;
        if node.view.is_some() || locked(&node.file).is_view() {
            return Err(Error::UnknownCommand);
        }
        Ok(node.below())
    }

    /// Returns the inode below of `ino`; `None` for synthetic inodes.
    pub(super) fn inode_below(&self, ino: Ino) -> Option<Ino> {
        if is_shown(ino) {
            return None;
        }
        self.node(ino).ok().map(|node| node.below())
    }

    /// Writes to a file; `cached` is true for [`FileSystem::write_cached`].
    fn write_file(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        cached: bool,
    ) -> Result<usize> {
        let node = self.node(ino)?;
        self.touched(&node);
        let open = self.open_flags(handle);
        if Self::is_plain(&node) {
            let (below, fs) = (self.below_handle(handle), &self.ground.below);
            return if cached {
                fs.write_cached(node.below(), below, offset, data)
            } else {
                fs.write(node.below(), below, offset, data)
            };
        }
        if data.is_empty() {
            return Ok(0);
        }
        let append = open.is_some_and(|open| open.flags.contains(OpenFlags::APPEND));
        let offset = (!append).then_some(offset);
        let taken = self.with(&node, |file, around| file.write(around, offset, data))?;
        self.after_write(&node, open)?;
        Ok(taken)
    }

    /// Makes a write durable if the handle was opened for synchronous writes.
    fn after_write(&self, node: &Node, open: Option<Open>) -> Result<()> {
        let durable = OpenFlags::SYNC | OpenFlags::DSYNC;
        match open {
            Some(open) if open.flags.intersects(durable) => self.fsync(node.ino, false),
            _ => Ok(()),
        }
    }
}

/// Maximum number of lookups of a name whose inode keeps changing.
const LOOKUPS: usize = 100;

// Not a layer: a file that is rewritten gets another inode below, so no call may be passed down
// with the inode number of this file system.
#[deny(clippy::missing_trait_methods, reason = "a default would not reach below")]
impl FileSystem for TransformFs {
    fn root(&self) -> Ino {
        self.ground.below.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if is_shown(parent) {
            return self.shown_lookup(parent, name);
        }
        let parent = self.node(parent)?;
        if Self::check_visible(name).is_err() {
            return Err(Error::NotFound);
        }
        for _ in 0..LOOKUPS {
            let below = match self.ground.below.lookup(parent.below(), name) {
                Err(Error::NotFound) => {
                    let own = self.own_lookup(parent.ino, name);
                    return own.or_else(|_| self.view(&parent, name));
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
        if is_shown(ino) {
            self.shown_forget(ino, count);
        } else if ino != self.root() {
            self.give_back(ino, count);
        }
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        for &(ino, count) in references {
            self.forget(ino, count);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if is_shown(ino) {
            return self.shown_attr(ino);
        }
        self.attr(&*self.node(ino)?)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if is_shown(ino) {
            return self.shown_attr(ino).and(Err(Error::ReadOnly));
        }
        let node = self.node(ino)?;
        if locked(&node.file).is_view() {
            return Err(Error::ReadOnly);
        }
        // A change of only mode or owner does not change the content: readers of a tree can go on.
        if set.size_bytes.is_some() || set.mtime.is_some() {
            self.touched(&node);
        } else {
            Self::permissions_change(&node);
        }
        let mut attr = if Self::is_plain(&node) {
            self.ground.below.setattr(node.below(), set)?
        } else {
            self.with(&node, |file, around| file.setattr(around, set))?.0
        };
        self.rules_may_differ(&node);
        attr.ino = node.ino;
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if is_shown(ino) {
            return self.tree_link(ino);
        }
        self.ground.below.readlink(self.node(ino)?.below())
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
        let parent = self.node(parent)?;
        Self::check_visible(name)?;
        if kind == FileKind::Regular {
            self.check_new(&join(&locked(&parent.path), name))?;
        }
        let made = {
            let _names = locked(&self.ground.names);
            self.ground.below.mknod(caller, parent.below(), name, kind, perm, rdev)?
        };
        self.named(name);
        self.found(&parent, name, made, true)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let parent = self.node(parent)?;
        Self::check_visible(name)?;
        let made = self.ground.below.mkdir(caller, parent.below(), name, perm)?;
        self.found(&parent, name, made, true)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let parent = self.node(parent)?;
        Self::check_visible(name)?;
        let made = self.ground.below.symlink(caller, parent.below(), name, target)?;
        self.found(&parent, name, made, true)
    }

    fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        self.add_name(ino, new_parent, new_name)
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove_name(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove_directory(parent, name)
    }

    fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.change_name(parent, name, new_parent, new_name, flags)
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.open_file(ino, flags)
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

    fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>> {
        self.file_below(ino, handle)
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn has_acls(&self) -> bool {
        self.ground.below.has_acls()
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
        if is_shown(ino) {
            return self.shown_read(ino, handle, offset, buf);
        }
        let node = self.node(ino)?;
        if Self::is_plain(&node) {
            return self.ground.below.read(node.below(), self.below_handle(handle), offset, buf);
        }
        if let Some(entry) = self.snapshot_entry(&node) {
            return Ok(entry.read_at(offset, buf).map_err(crate::Error::from)?);
        }
        let through = |buf: &mut [u8]| match self.ground.read_in_place(&node, offset, buf) {
            Some(read) => read,
            None => self.with(&node, |file, around| file.read(around, offset, buf)),
        };
        let read = self.read_output(&node, offset, buf, through);
        read.inspect_err(|e| tracing::error!(ino = ino.0, offset, "{e}"))
    }

    fn write(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_file(ino, handle, offset, data, false)
    }

    fn write_cached(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_file(ino, handle, offset, data, true)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if is_shown(ino) {
            return self.shown_attr(ino).map(drop);
        }
        let node = self.node(ino)?;
        if node.view.is_some() {
            return Ok(());
        }
        self.commit(&node)?;
        self.ground.below.fsync(node.below(), data_only)
    }

    fn fsync_dir(&self, ino: Ino) -> Result<()> {
        if is_shown(ino) {
            return self.shown_attr(ino).map(drop);
        }
        self.ground.below.fsync_dir(self.node(ino)?.below())
    }

    fn sync(&self) -> Result<()> {
        self.commit_all().and(self.ground.below.sync())
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
        self.ground.below.statfs()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if is_shown(ino) {
            return self.shown_attribute(ino, name);
        }
        self.attribute(&*self.node(ino)?, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if is_shown(ino) {
            let list = self.shown_attribute(ino, ACCESS_LIST).map(|_| ACCESS_LIST.to_vec());
            return self.shown_attr(ino).map(|_| list.into_iter().collect());
        }
        self.attributes(&*self.node(ino)?)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        self.set_attribute(&*self.node(ino)?, name, value, how)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.remove_attribute(&*self.node(ino)?, name)
    }

    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        let own = [super::NETWORK_ATTRIBUTE, super::CONVERT_ATTRIBUTE, super::EXPLAIN_ATTRIBUTE];
        if own.contains(&name) {
            return false;
        }
        let below = |ino| self.ground.below.is_for_owner(user, ino, name, value);
        self.inode_below(ino).is_some_and(below)
    }

    // All readers see the file through its network, and a log stage in it records their reads.
    fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool {
        let below = |ino| self.ground.below.is_owners_to_set(ino, name);
        matches!(name, super::NETWORK_ATTRIBUTE | super::CONVERT_ATTRIBUTE)
            || self.inode_below(ino).is_some_and(below)
    }

    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        let node = self.node(ino)?;
        self.touched(&node);
        if Self::is_plain(&node) {
            return self.ground.below.fallocate(node.below(), mode, offset, len_bytes);
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
        let size = self.attr(&node)?.size_bytes;
        let end = if keep_size { end.min(size) } else { end };
        self.with(&node, |file, around| file.zero(around, offset, end))
    }

    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let target = self.node(to)?;
        self.touched(&target);
        if !is_shown(from) && Self::is_plain(&target) {
            let source = self.node(from)?;
            if Self::is_plain(&source) {
                let (from, to) = (source.below(), target.below());
                return self.ground.below.copy_range(from, from_offset, to, to_offset, len_bytes);
            }
        }
        copy_by_reading(self, (from, from_offset), (to, to_offset), len_bytes)
    }

    fn trim(&self, range: &TrimRange) -> Result<u64> {
        self.ground.below.trim(range)
    }

    fn file_flags(&self, ino: Ino) -> Result<FileFlags> {
        self.ground.below.file_flags(self.flagged(ino)?)
    }

    fn set_file_flags(&self, ino: Ino, flags: FileFlags) -> Result<()> {
        self.ground.below.set_file_flags(self.flagged(ino)?, flags)
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
        self.ground
            .below
            .set_invalidate(Arc::new(Upward { nodes: self.ground.nodes.clone(), sink }));
    }

    fn time_unit_nanos(&self) -> u32 {
        self.ground.below.time_unit_nanos()
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        if !is_shown(ino) {
            let node = self.node(ino)?;
            if Self::is_plain(&node) {
                return self.ground.below.seek(node.below(), from);
            }
        }
        seek_without_holes(self.getattr(ino)?.size_bytes, from)
    }

    fn unmount(&self) -> Result<()> {
        let result = self.commit_all();
        locked(&self.handles).clear();
        *locked(&self.trees) = Trees::default();
        let nodes = locked(&self.ground.nodes).clear();
        for node in nodes {
            locked(&node.file).close();
        }
        if let Ok(root) = self.ground.below.getattr(self.ground.below.root()) {
            self.add_root(&root);
        }
        result.and(self.ground.below.unmount())
    }
}
