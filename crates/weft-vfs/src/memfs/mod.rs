//! A complete small file system in memory: the model that other file systems are compared with,
//! the conformance suite's test of itself, and a scratch volume (`weft mount mem:`).
//!
//! One lock over all state, taken once per call, makes each call atomic. Nothing is durable, so
//! `fsync` does nothing.

mod file;
mod names;
mod node;
mod page;
mod snapshot;
mod snapshot_node;
mod state;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard};

use crate::acl::{self, Acl};
use crate::mutex::locked;
use crate::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileSystem, Handle,
    Ino, Invalidate, OpenFlags, Opened, RenameFlags, Result, SeekFrom, SetAttr, SetTime, StatFs,
    Time, XattrSet,
};
use file::PAGE_BYTES;
use names::Names;
use snapshot_node::Data;
use state::{ROOT, State};

pub use page::{Page, hash128};
pub use snapshot::{Restored, Snapshot};
pub use snapshot_node::{SnapshotAttr, SnapshotNode};
pub use state::MemLimits;

/// A file system in memory.
///
/// ```
/// use weft_vfs::{memfs::MemFs, path::Walker};
/// let fs = MemFs::new();
/// let walker = Walker::new(&fs);
/// walker.write_file(b"/hello", b"world", 0o644)?;
/// assert_eq!(walker.read_file(b"hello")?, b"world");
/// # Ok::<(), weft_vfs::Error>(())
/// ```
pub struct MemFs {
    state: Mutex<State>,
    limits: MemLimits,
    invalidate: Mutex<Option<Arc<dyn Invalidate>>>,
}

impl std::fmt::Debug for MemFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemFs").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Default for MemFs {
    fn default() -> Self {
        Self::new()
    }
}

impl MemFs {
    /// Creates an empty file system with the default limits; the root belongs to user 0, mode 0755.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limits(MemLimits::default())
    }

    /// Creates an empty file system with these limits.
    #[must_use]
    pub fn with_limits(limits: MemLimits) -> Self {
        Self { state: Mutex::new(State::new(limits)), limits, invalidate: Mutex::default() }
    }

    /// The receiver of changes that the front did not make.
    #[must_use]
    pub fn invalidate(&self) -> Option<Arc<dyn Invalidate>> {
        locked(&self.invalidate).clone()
    }

    /// Returns the whole tree as it is now, in time proportional to the number of inodes: content is
    /// shared until it is changed here or there. Files that were removed and are still open are in it,
    /// without a name; so are some that the kernel has not forgotten yet.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot()
    }

    /// Replaces everything by the tree of a snapshot, in time proportional to the number of inodes
    /// and names. What is restored of a tree that no file system could have is written at
    /// [`Snapshot`].
    ///
    /// Every inode but the root has a number that no inode had before; all older numbers, also with
    /// open handles, fail with [`Error::Stale`], and may be forgotten late. Names in the root and its
    /// attributes, which the kernel may have cached, are announced to the front of a mount. As that
    /// is waited for, no thread that serves this mount may call this.
    pub fn restore(&self, snapshot: &Snapshot) -> Restored {
        let mut names = Vec::new();
        let mut state = self.lock();
        names.append(&mut state.root_names());
        let restored = state.restore(snapshot);
        names.append(&mut state.root_names());
        drop(state);
        if let Some(sink) = self.invalidate() {
            names.sort_unstable();
            names.dedup();
            for name in &names {
                sink.entry(Ino(ROOT), name);
            }
            // The list of names is content.
            sink.inode(Ino(ROOT), true);
            sink.settle();
        }
        restored
    }

    /// Returns the number of an inode in a [`snapshot`](Self::snapshot) that is taken now. It stays
    /// the same as long as the inode exists, also in a tree restored from that snapshot; while
    /// nothing was ever restored, it is the inode number itself.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn number(&self, ino: Ino) -> Result<u64> {
        let state = self.lock();
        state.node(ino.0)?;
        state.number(ino.0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a caller's closure leaves the tree consistent: each change is made at once.
        locked(&self.state)
    }
}

impl FileSystem for MemFs {
    /// No call waits for anything but the processor.
    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        call();
        true
    }

    fn root(&self) -> Ino {
        Ino(ROOT)
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let mut state = self.lock();
        let ino = state.find(parent.0, name)?;
        state.entry(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.lock();
        if let Ok(node) = state.node_mut(ino.0) {
            node.references = node.references.saturating_sub(count);
        }
        state.reap(ino.0);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.lock().node(ino.0)?.attr(ino.0))
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut state = self.lock();
        if let Some(size) = set.size_bytes {
            if size > self.limits.file_bytes {
                return Err(Error::TooLarge);
            }
            state.resize(ino.0, size)?;
        }
        let node = state.node_mut(ino.0)?;
        let now = Time::now();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        if set.size_bytes.is_some() {
            node.mtime = now;
        }
        if set.kill_privileges && !node.is_dir() {
            let group_runs = node.perm & 0o010 != 0;
            node.perm &= if group_runs { !0o6000 } else { !0o4000 };
        }
        if let Some(perm) = set.perm {
            node.chmod(perm & 0o7777)?;
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        node.atime = set.atime.map_or(node.atime, time);
        node.mtime = set.mtime.map_or(node.mtime, time);
        if *set != SetAttr::default() {
            node.ctime = set.ctime.unwrap_or(now);
        }
        Ok(node.attr(ino.0))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.lock().node(ino.0)?.data {
            Data::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::Invalid("not a symbolic link")),
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
        let data = match kind {
            FileKind::Regular => Data::File(file::Content::default()),
            FileKind::Directory | FileKind::Symlink => {
                return Err(Error::Invalid("mknod makes no directory and no symbolic link"));
            }
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                Data::Special
            }
        };
        let rdev = match kind {
            FileKind::BlockDevice | FileKind::CharDevice => rdev,
            _ => 0,
        };
        let mut state = self.lock();
        let ino = state.add(caller, parent.0, name, kind, perm, data)?;
        state.node_mut(ino)?.rdev = rdev;
        state.entry(ino)
    }

    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        let mut state = self.lock();
        let ino = state.add_unnamed(caller, parent.0, perm)?;
        state.entry(ino)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let mut state = self.lock();
        let data = Data::Directory(Names::new(ROOT));
        let ino = state.add(caller, parent.0, name, FileKind::Directory, perm, data)?;
        state.entry(ino)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > 4095 {
            return Err(Error::NameTooLong);
        }
        let mut state = self.lock();
        let data = Data::Symlink(target.to_vec());
        let ino = state.add(caller, parent.0, name, FileKind::Symlink, 0o777, data)?;
        state.entry(ino)
    }

    fn link(&self, _: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let mut state = self.lock();
        state.link(ino.0, new_parent.0, new_name)?;
        state.entry(ino.0)
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.lock().unlink(parent.0, name)
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.lock().rmdir(parent.0, name)
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
        self.lock().rename(parent.0, name, new_parent.0, new_name, flags)
    }

    fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.lock().open(ino.0, flags)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let mut state = self.lock();
        let ino = match state.find(parent.0, name) {
            Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Error::Exists),
            Ok(ino) => ino,
            Err(Error::NotFound) => {
                let data = Data::File(file::Content::default());
                state.add(caller, parent.0, name, FileKind::Regular, perm, data)?
            }
            Err(e) => return Err(e),
        };
        let opened = state.open(ino, flags)?;
        Ok((state.entry(ino)?, opened))
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.lock().release(ino.0, handle)
    }

    fn read(&self, ino: Ino, _handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.lock().node(ino.0)?.content()?.read(offset, buf))
    }

    fn write(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.lock().write(ino.0, handle, offset, data)
    }

    fn fsync(&self, _: &Caller, ino: Ino, _data_only: bool) -> Result<()> {
        self.lock().node(ino.0).map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let state = self.lock();
        let _ = state.list(ino.0, cursor, each)?;
        Ok(())
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let mut state = self.lock();
        let mut taken = Vec::new();
        let _ = state.list(ino.0, cursor, &mut |dirent| {
            let Ok(node) = state.node(dirent.ino.0) else { return true };
            let entry = Entry { attr: node.attr(dirent.ino.0), generation: 0 };
            let more = each(dirent, entry);
            if more && dirent.name != b"." && dirent.name != b".." {
                taken.push(dirent.ino.0);
            }
            more
        })?;
        for ino in taken {
            state.node_mut(ino)?.references += 1;
        }
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        let state = self.lock();
        let free = state.free_pages();
        Ok(StatFs {
            block_bytes: PAGE_BYTES as u32,
            blocks: self.limits.capacity_bytes / PAGE_BYTES,
            blocks_free: free,
            blocks_available: free,
            inodes: self.limits.inodes,
            inodes_free: state.free_inodes(),
            name_max_bytes: crate::NAME_MAX_BYTES as u32,
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.lock().node(ino.0)?.xattrs.get(name).cloned().ok_or(Error::NoAttribute)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.lock().node(ino.0)?.xattrs.keys().cloned().collect())
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        const SPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
        if !SPACES.iter().any(|space| name.starts_with(space)) {
            return Err(Error::Unsupported("attribute name space"));
        }
        if name.len() > 255 || SPACES.contains(&name) {
            return Err(Error::Range);
        }
        if value.len() > 64 << 10 {
            return Err(Error::NoSpace);
        }
        let mut state = self.lock();
        let node = state.node_mut(ino.0)?;
        match (how, node.xattrs.contains_key(name)) {
            (XattrSet::Create, true) => return Err(Error::Exists),
            (XattrSet::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return node.set_acl(name, Acl::parse(value)?);
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.changed();
        Ok(())
    }

    fn has_acls(&self) -> bool {
        true
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let node = state.node_mut(ino.0)?;
        node.xattrs.remove(name).ok_or(Error::NoAttribute)?;
        node.changed();
        Ok(())
    }

    fn fallocate(
        &self,
        _: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.lock().fallocate(ino.0, mode, offset, len_bytes)
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        *locked(&self.invalidate) = Some(sink);
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.lock().node(ino.0)?.content()?.seek(from)
    }
}
