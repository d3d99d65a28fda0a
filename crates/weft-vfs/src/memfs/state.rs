//! The state under the lock of a [`MemFs`](super::MemFs): inodes, names, open handles, and space.
//!
//! Invariants: an inode exists as long as it has a name, a reference or an open handle; a
//! directory's link count is two plus its subdirectories; `pages` is the sum over all files.
//!
//! Inodes have two numbers. Snapshots, and names in directories, have the *number in the snapshot*,
//! so that restoring one changes no directory. What the caller sees is that plus `base`, which each
//! restoring raises past all that were in use; only the root is always 1. In this file `ino` is what
//! the caller sees, and `number` the other.

use std::collections::HashMap;
use std::sync::Arc;

use super::file::{Content, PAGE_BYTES};
use super::names::Names;
use super::node::Node;
use super::snapshot::{Restored, Snapshot};
use super::snapshot_node::{Data, SnapshotAttr, SnapshotNode};
use crate::acl::{self, Acl};
use crate::{
    Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, Handle, HandleTable, Ino,
    OpenFlags, Opened, RenameFlags, Result, Time, check_name,
};

pub(super) const ROOT: u64 = 1;

/// The limits of a [`MemFs`](super::MemFs).
#[derive(Debug, Clone, Copy)]
pub struct MemLimits {
    /// Bytes of file content, in whole pages of 4 KiB.
    pub capacity_bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Names of one file; subdirectories of one directory plus two.
    pub links: u32,
    /// Longest file.
    pub file_bytes: u64,
}

impl Default for MemLimits {
    /// 1 GiB, a million inodes, 65,000 links (as ext4), files to 2^63 - 1 bytes.
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 30,
            inodes: 1 << 20,
            links: 65_000,
            file_bytes: i64::MAX.cast_unsigned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    limits: MemLimits,
    /// By number in the snapshot.
    nodes: HashMap<u64, Node>,
    handles: HandleTable<(u64, OpenFlags)>,
    /// The next number in the snapshot.
    next: u64,
    base: u64,
    pages: u64,
}

impl State {
    pub(super) fn new(limits: MemLimits) -> Self {
        let mut state = Self {
            limits,
            nodes: HashMap::new(),
            handles: HandleTable::default(),
            next: ROOT + 1,
            base: 0,
            pages: 0,
        };
        let names = Data::Directory(Names::new(ROOT));
        let mut root = new_node(&Caller::ROOT, FileKind::Directory, 0o755, names);
        root.nlink = 2;
        state.nodes.insert(ROOT, Node::new(Arc::new(root)));
        state
    }

    /// Returns the number in the snapshot, if `ino` was not used before the last restoring.
    pub(super) fn number(&self, ino: u64) -> Result<u64> {
        match ino.checked_sub(self.base) {
            _ if ino == ROOT => Ok(ROOT),
            Some(number) if number > ROOT => Ok(number),
            _ => Err(Error::Stale(ino)),
        }
    }

    pub(super) fn ino(&self, number: u64) -> u64 {
        if number == ROOT { ROOT } else { self.base + number }
    }

    pub(super) fn node(&self, ino: u64) -> Result<&Node> {
        self.nodes.get(&self.number(ino)?).ok_or(Error::Stale(ino))
    }

    pub(super) fn node_mut(&mut self, ino: u64) -> Result<&mut Node> {
        let number = self.number(ino)?;
        self.nodes.get_mut(&number).ok_or(Error::Stale(ino))
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let nodes = self.nodes.iter().map(|(&number, node)| (number, node.share())).collect();
        Snapshot::from_nodes(nodes)
    }

    /// Replaces everything. All numbers but the root's and all handles are stale then.
    pub(super) fn restore(&mut self, snapshot: &Snapshot) -> Restored {
        let (nodes, restored) = snapshot.consistent();
        self.base += self.next;
        self.next = nodes.last().map_or(ROOT, |&(number, _)| number) + 1;
        self.handles.clear();
        let pages = |node: &SnapshotNode| node.content().map_or(0, Content::pages);
        self.pages = nodes.iter().map(|(_, node)| pages(node)).sum();
        // The root stays referenced by callers, who forget it late or never.
        let root_references = self.nodes.get(&ROOT).map_or(0, |root| root.references);
        self.nodes = nodes.into_iter().map(|(number, node)| (number, Node::new(node))).collect();
        if let Some(root) = self.nodes.get_mut(&ROOT) {
            root.references = root_references;
        }
        restored
    }

    /// Returns the names in the root.
    pub(super) fn root_names(&self) -> Vec<Vec<u8>> {
        let names = self.nodes.get(&ROOT).and_then(|root| root.names().ok());
        names.into_iter().flat_map(Names::sorted).map(|(name, _)| name.to_vec()).collect()
    }

    pub(super) fn free_pages(&self) -> u64 {
        (self.limits.capacity_bytes / PAGE_BYTES).saturating_sub(self.pages)
    }

    pub(super) fn free_inodes(&self) -> u64 {
        self.limits.inodes.saturating_sub(self.nodes.len() as u64)
    }

    /// Takes a reference.
    pub(super) fn entry(&mut self, ino: u64) -> Result<Entry> {
        let node = self.node_mut(ino)?;
        node.references += 1;
        Ok(Entry { attr: node.attr(ino), generation: 0 })
    }

    /// Frees an inode without names, references and open handles.
    pub(super) fn reap(&mut self, ino: u64) {
        let gone = self.node(ino).is_ok_and(|n| n.nlink == 0 && n.references == 0 && n.opens == 0);
        if gone
            && ino != ROOT
            && let Ok(number) = self.number(ino)
            && let Some(node) = self.nodes.remove(&number)
            && let Data::File(content) = &node.data
        {
            self.pages -= content.pages();
        }
    }

    pub(super) fn find(&self, parent: u64, name: &[u8]) -> Result<u64> {
        let names = self.node(parent)?.names()?;
        check_name(name)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(self.ino(names.parent)),
            _ => names.get(name).map(|number| self.ino(number)).ok_or(Error::NotFound),
        }
    }

    /// Returns the directory for a new name: it must not be removed, and the name must be free.
    fn place(&self, parent: u64, name: &[u8]) -> Result<()> {
        match self.find(parent, name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) if self.node(parent)?.nlink > 0 => Ok(()),
            Err(e) => Err(e),
        }
    }

    pub(super) fn add(
        &mut self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        data: Data,
    ) -> Result<u64> {
        self.place(parent, name)?;
        let node = self.made_in(caller, parent, kind, perm, data)?;
        let is_dir = node.is_dir();
        if is_dir {
            self.node_mut(parent)?.nlink += 1;
        }
        let number = self.insert(node);
        let dir = self.node_mut(parent)?;
        dir.names_mut()?.set(name, number);
        dir.modified();
        Ok(self.ino(number))
    }

    /// Makes a file without a name, which may get one.
    pub(super) fn add_unnamed(&mut self, caller: &Caller, parent: u64, perm: u16) -> Result<u64> {
        self.node(parent)?.names()?;
        if self.node(parent)?.nlink == 0 {
            return Err(Error::NotFound);
        }
        let data = Data::File(super::file::Content::default());
        let mut node = self.made_in(caller, parent, FileKind::Regular, perm, data)?;
        node.nlink = 0;
        let number = self.insert(node);
        let ino = self.ino(number);
        self.node_mut(ino)?.linkable = true;
        Ok(ino)
    }

    fn insert(&mut self, node: SnapshotNode) -> u64 {
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, Node::new(Arc::new(node)));
        number
    }

    /// A new inode with what it inherits from a directory.
    fn made_in(
        &self,
        caller: &Caller,
        parent: u64,
        kind: FileKind,
        perm: u16,
        data: Data,
    ) -> Result<SnapshotNode> {
        if self.free_inodes() == 0 {
            return Err(Error::NoSpace);
        }
        let dir = self.node(parent)?;
        let default = dir.xattrs.get(acl::DEFAULT).filter(|_| kind != FileKind::Symlink);
        let (perm, own) = match default.map(|value| Acl::parse(value)).transpose()?.flatten() {
            Some(default) => default.inherited(perm & 0o7777),
            None if kind == FileKind::Symlink => (perm & 0o7777, None),
            None => (perm & 0o7777 & !caller.umask, None),
        };
        let mut node = new_node(caller, kind, perm, data);
        if let Some(own) = own {
            node.xattrs.insert(acl::ACCESS.to_vec(), own.to_xattr());
        }
        if let Some(default) = default.filter(|_| kind == FileKind::Directory) {
            node.xattrs.insert(acl::DEFAULT.to_vec(), default.clone());
        }
        if dir.perm & 0o2000 != 0 {
            node.gid = dir.gid;
            if kind == FileKind::Directory {
                node.perm |= 0o2000;
            }
        }
        if kind == FileKind::Directory {
            if dir.nlink >= self.limits.links {
                return Err(Error::TooManyLinks);
            }
            node.nlink = 2;
        }
        if let Data::Directory(names) = &mut node.data {
            names.parent = self.number(parent)?;
        }
        Ok(node)
    }

    pub(super) fn link(&mut self, ino: u64, parent: u64, name: &[u8]) -> Result<()> {
        if self.node(ino)?.is_dir() {
            return Err(Error::NotPermitted);
        }
        self.place(parent, name)?;
        let links = self.limits.links;
        let node = self.node_mut(ino)?;
        if node.nlink == 0 && !node.linkable {
            return Err(Error::NotFound);
        }
        if node.nlink >= links {
            return Err(Error::TooManyLinks);
        }
        node.nlink += 1;
        node.linkable = false;
        node.changed();
        let number = self.number(ino)?;
        let dir = self.node_mut(parent)?;
        dir.names_mut()?.set(name, number);
        dir.modified();
        Ok(())
    }

    pub(super) fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        let ino = self.find(parent, name)?;
        if self.node(ino)?.is_dir() {
            return Err(Error::IsADirectory);
        }
        let dir = self.node_mut(parent)?;
        dir.names_mut()?.remove(name);
        dir.modified();
        self.lose_name(ino)
    }

    pub(super) fn rmdir(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::Invalid("rmdir of .")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        let ino = self.find(parent, name)?;
        if !self.node(ino)?.names()?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let dir = self.node_mut(parent)?;
        dir.names_mut()?.remove(name);
        dir.nlink -= 1;
        dir.modified();
        self.lose_name(ino)
    }

    /// Removes one name of `ino`; a directory has only one.
    fn lose_name(&mut self, ino: u64) -> Result<()> {
        let node = self.node_mut(ino)?;
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
        node.changed();
        self.reap(ino);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.contains(RenameFlags::EXCHANGE | RenameFlags::NO_REPLACE) {
            return Err(Error::Invalid("exchange excludes no-replace"));
        }
        for n in [name, new_name] {
            if n == b"." || n == b".." {
                return Err(Error::Busy);
            }
        }
        self.node(new_parent)?.names()?;
        let from = self.find(parent, name)?;
        check_name(new_name)?;
        let to = self.node(new_parent)?.names()?.get(new_name).map(|number| self.ino(number));
        if to.is_some() && flags.contains(RenameFlags::NO_REPLACE) {
            return Err(Error::Exists);
        }
        if self.node(new_parent)?.nlink == 0 {
            return Err(Error::NotFound);
        }
        let from_dir = self.node(from)?.is_dir();
        if from_dir && self.within(new_parent, from)? {
            return Err(Error::Invalid("a directory cannot move into itself"));
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let to = to.ok_or(Error::NotFound)?;
            if self.node(to)?.is_dir() && self.within(parent, to)? {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            return self.exchange((parent, name, from), (new_parent, new_name, to));
        }
        if let Some(to) = to {
            if to == from {
                return Ok(());
            }
            let target = self.node(to)?;
            match (from_dir, target.is_dir()) {
                (true, false) => return Err(Error::NotADirectory),
                (false, true) => return Err(Error::IsADirectory),
                // An ancestor of the source is never empty.
                (true, true) if !target.names()?.is_empty() => return Err(Error::NotEmpty),
                _ => {}
            }
        }
        let replaces_dir = from_dir && to.is_some();
        if from_dir
            && parent != new_parent
            && !replaces_dir
            && self.node(new_parent)?.nlink >= self.limits.links
        {
            return Err(Error::TooManyLinks);
        }
        let (from_number, new_parent_number) = (self.number(from)?, self.number(new_parent)?);
        self.node_mut(parent)?.names_mut()?.remove(name);
        self.node_mut(new_parent)?.names_mut()?.set(new_name, from_number);
        if from_dir {
            self.node_mut(parent)?.nlink -= 1;
            if !replaces_dir {
                self.node_mut(new_parent)?.nlink += 1;
            }
            self.node_mut(from)?.names_mut()?.parent = new_parent_number;
        }
        self.node_mut(parent)?.modified();
        self.node_mut(new_parent)?.modified();
        self.node_mut(from)?.changed();
        to.map_or(Ok(()), |to| self.lose_name(to))
    }

    fn exchange(&mut self, a: (u64, &[u8], u64), b: (u64, &[u8], u64)) -> Result<()> {
        let (a_dir, b_dir) = (self.node(a.2)?.is_dir(), self.node(b.2)?.is_dir());
        if a.0 != b.0 && a_dir != b_dir {
            let gains = if a_dir { b.0 } else { a.0 };
            if self.node(gains)?.nlink >= self.limits.links {
                return Err(Error::TooManyLinks);
            }
        }
        for (at, moved, moved_is_dir, lost_is_dir) in
            [((a.0, a.1), b.2, b_dir, a_dir), ((b.0, b.1), a.2, a_dir, b_dir)]
        {
            let (parent_number, moved_number) = (self.number(at.0)?, self.number(moved)?);
            let dir = self.node_mut(at.0)?;
            dir.names_mut()?.set(at.1, moved_number);
            dir.nlink += u32::from(moved_is_dir);
            dir.nlink -= u32::from(lost_is_dir);
            dir.modified();
            let node = self.node_mut(moved)?;
            if moved_is_dir {
                node.names_mut()?.parent = parent_number;
            }
            node.changed();
        }
        Ok(())
    }

    /// Returns true if `ino` is `ancestor` or below it.
    fn within(&self, mut ino: u64, ancestor: u64) -> Result<bool> {
        loop {
            if ino == ancestor {
                return Ok(true);
            }
            if ino == ROOT {
                return Ok(false);
            }
            ino = self.ino(self.node(ino)?.names()?.parent);
        }
    }

    pub(super) fn open(&mut self, ino: u64, flags: OpenFlags) -> Result<Opened> {
        let node = self.node_mut(ino)?;
        node.content()?;
        node.opens += 1;
        if flags.contains(OpenFlags::TRUNCATE) {
            self.resize(ino, 0)?;
            self.node_mut(ino)?.modified();
        }
        let handle = self.handles.open((ino, flags));
        Ok(Opened { handle, keep_cache: true, direct_io: false })
    }

    pub(super) fn release(&mut self, ino: u64, handle: Handle) -> Result<()> {
        self.node(ino)?;
        self.handles.close_if(handle, |(of, _)| *of == ino)?;
        self.node_mut(ino)?.opens -= 1;
        self.reap(ino);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        ino: u64,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let append = self.handles.get(handle).is_some_and(|(_, f)| f.contains(OpenFlags::APPEND));
        let longest = self.limits.file_bytes;
        if data.is_empty() {
            return self.node(ino)?.content().map(|_| 0);
        }
        self.with_content(ino, |content, budget| {
            let offset = if append { content.size_bytes } else { offset };
            let room = longest.saturating_sub(offset);
            if room == 0 {
                return Err(Error::TooLarge);
            }
            let len = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
            match content.write(offset, &data[..len], budget) {
                0 => Err(Error::NoSpace),
                written => Ok(written),
            }
        })
        .inspect(|_| {
            if let Ok(node) = self.node_mut(ino) {
                node.modified();
            }
        })
    }

    pub(super) fn resize(&mut self, ino: u64, size_bytes: u64) -> Result<()> {
        self.with_content(ino, |content, _| {
            content.truncate(size_bytes);
            Ok(())
        })
    }

    pub(super) fn fallocate(
        &mut self,
        ino: u64,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        if len_bytes == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset.checked_add(len_bytes).ok_or(Error::TooLarge)?;
        if end > self.limits.file_bytes {
            return Err(Error::TooLarge);
        }
        self.with_content(ino, |content, budget| {
            let keep_size = match mode {
                FallocateMode::PunchHole => {
                    content.zero(offset, len_bytes);
                    true
                }
                FallocateMode::Allocate { keep_size } => {
                    content.allocate(offset, len_bytes, budget)?;
                    keep_size
                }
                FallocateMode::ZeroRange { keep_size } => {
                    content.zero(offset, len_bytes);
                    keep_size
                }
            };
            if !keep_size && end > content.size_bytes {
                content.size_bytes = end;
            }
            Ok(())
        })?;
        self.node_mut(ino)?.modified();
        Ok(())
    }

    /// Runs `change` with the number of free pages, and updates the count of used pages.
    fn with_content<T>(
        &mut self,
        ino: u64,
        change: impl FnOnce(&mut Content, &mut u64) -> Result<T>,
    ) -> Result<T> {
        let mut budget = self.free_pages();
        let content = self.node_mut(ino)?.content_mut()?;
        let before = content.pages();
        let result = change(content, &mut budget);
        let after = content.pages();
        self.pages = self.pages - before + after;
        result
    }

    /// Lists from `cursor` on; returns true if `each` stopped it.
    pub(super) fn list(
        &self,
        ino: u64,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let names = self.node(ino)?.names()?;
        for (cookie, name, to) in [(1, &b"."[..], ino), (2, b"..", self.ino(names.parent))] {
            let (ino, next) = (Ino(to), DirCursor(cookie));
            let dirent = DirEntry { ino, kind: FileKind::Directory, name, next };
            if cursor.0 < cookie && !each(dirent) {
                return Ok(true);
            }
        }
        for (cookie, name, number) in names.after(cursor.0.max(2)) {
            let to = self.ino(number);
            let kind = self.node(to)?.kind;
            if !each(DirEntry { ino: Ino(to), kind, name, next: DirCursor(cookie) }) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn new_node(caller: &Caller, kind: FileKind, perm: u16, data: Data) -> SnapshotNode {
    let now = Time::now();
    let attr = SnapshotAttr {
        perm,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    };
    SnapshotNode::with_data(kind, &attr, data)
}
