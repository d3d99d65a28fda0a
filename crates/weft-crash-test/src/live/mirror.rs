//! A directory that is kept equal to a tree in memory.
//!
//! The directory is read once. From then on [`Mirror::follow`] makes it equal to another tree by the
//! difference alone: inodes keep their identity, pages that are shared are not written.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use weft_vfs::memfs::{Page, Snapshot, SnapshotNode};
use weft_vfs::{
    Caller, Error, FallocateMode, FileKind, FileSystem, Handle, Ino, RenameFlags, Result, SetAttr,
    SetTime, Time, XattrSet,
};

use crate::effects::PAGE_BYTES;
use crate::load::load_tree;

/// Names that are to be removed go here first: they may be names of what stays elsewhere.
const STAGING: &[u8] = b".weft-crash-staging";

/// A file system below a directory, and the tree that it holds.
pub(crate) struct Mirror {
    fs: Arc<dyn FileSystem>,
    /// The tree that the directory holds, also after a failure: the next attempt goes on from there.
    tree: Snapshot,
    /// The inodes below, each with one reference.
    inos: HashMap<u64, Ino>,
    /// The staging directory, and the names in it by the inode that they name.
    staging: Option<Ino>,
    staged: BTreeMap<u64, Vec<Vec<u8>>>,
    next_name: u64,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("inodes", &self.inos.len()).finish_non_exhaustive()
    }
}

impl Mirror {
    /// Reads all that is in a file system. More than `size_bytes` of content is refused.
    ///
    /// # Errors
    /// Those of the file system; [`Error::Busy`] if an earlier mirror was interrupted while it changed
    /// the directory.
    pub(crate) fn load(fs: Arc<dyn FileSystem>, size_bytes: u64) -> Result<Self> {
        let mut inos = HashMap::new();
        let mut next = Snapshot::ROOT;
        let tree = load_tree(&*fs, size_bytes, &Snapshot::new(), &mut |ino, _| {
            inos.insert(next, ino);
            next += 1;
            next - 1
        })?;
        if tree.node(Snapshot::ROOT).and_then(|root| root.entry(STAGING)).is_some() {
            return Err(Error::Busy);
        }
        let (staging, staged) = (None, BTreeMap::new());
        Ok(Self { fs, tree, inos, staging, staged, next_name: 0 })
    }

    /// The tree that the directory holds.
    pub(crate) fn tree(&self) -> &Snapshot {
        &self.tree
    }

    /// The file system below.
    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.fs
    }

    /// Makes the directory equal to a tree.
    ///
    /// # Errors
    /// Those of the file system below; another attempt goes on where this one failed.
    pub(crate) fn follow(&mut self, wanted: &Snapshot) -> Result<()> {
        let wanted = wanted.mended();
        let changed = self.changed(&wanted);
        if changed.is_empty() && self.staged.is_empty() {
            return Ok(());
        }
        for number in &changed {
            self.stage_names(*number, &wanted)?;
        }
        // A directory before what is in it.
        let mut directories = VecDeque::from([Snapshot::ROOT]);
        while let Some(dir) = directories.pop_front() {
            let Some(node) = wanted.node(dir) else { continue };
            for (name, number) in node.entries() {
                let Some(child) = wanted.node(number) else { continue };
                if self.entry(dir, name) != Some(number) {
                    self.add_name(dir, name, number, child)?;
                }
                if child.kind() == FileKind::Directory {
                    directories.push_back(number);
                }
            }
        }
        self.empty_staging()?;
        // Names change the times of directories, so that these come last.
        for (number, node) in wanted.nodes() {
            if self.tree.node(number).is_none_or(|old| !Arc::ptr_eq(old, node)) {
                self.set_content(number, node)?;
                self.set_xattrs(number, node)?;
                self.set_attr(number, node)?;
                self.tree.insert(number, Arc::clone(node))?;
            }
        }
        self.forget_gone(&wanted);
        self.tree = wanted;
        Ok(())
    }

    /// The inodes of the directory that differ in the wanted tree, or are not in it.
    fn changed(&self, wanted: &Snapshot) -> Vec<u64> {
        let differs = |number: u64, old: &Arc<SnapshotNode>| {
            wanted.node(number).is_none_or(|new| !Arc::ptr_eq(old, new))
        };
        self.tree.nodes().filter(|(number, old)| differs(*number, old)).map(|(nr, _)| nr).collect()
    }

    fn entry(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.tree.node(dir)?.entry(name)
    }

    fn ino(&self, number: u64) -> Result<Ino> {
        self.inos.get(&number).copied().ok_or(Error::Stale(number))
    }

    /// Moves the names of a directory that are not wanted there into the staging directory.
    fn stage_names(&mut self, dir: u64, wanted: &Snapshot) -> Result<()> {
        let Some(old) = self.tree.node(dir).cloned() else { return Ok(()) };
        let new = wanted.node(dir);
        let stays = |name: &[u8], number: u64| {
            new.and_then(|new| new.entry(name)).is_some_and(|to| to == number)
        };
        for (name, number) in old.entries().filter(|(name, number)| !stays(name, *number)) {
            let staging = self.staging()?;
            let staged = self.next_name.to_string().into_bytes();
            self.next_name += 1;
            let parent = self.ino(dir)?;
            self.fs.rename(&Caller::ROOT, parent, name, staging, &staged, RenameFlags::empty())?;
            self.tree.remove_entry(dir, name)?;
            self.staged.entry(number).or_default().push(staged);
        }
        Ok(())
    }

    fn staging(&mut self) -> Result<Ino> {
        if let Some(staging) = self.staging {
            return Ok(staging);
        }
        let made = self.fs.mkdir(&Caller::ROOT, self.fs.root(), STAGING, 0o700)?;
        self.staging = Some(made.attr.ino);
        Ok(made.attr.ino)
    }

    fn add_name(&mut self, dir: u64, name: &[u8], number: u64, node: &SnapshotNode) -> Result<()> {
        let parent = self.ino(dir)?;
        let caller = Caller::ROOT;
        let staged = self.staged.get_mut(&number).and_then(Vec::pop);
        if let Some(staged) = staged {
            let staging = self.staging()?;
            let how = RenameFlags::empty();
            if let Err(e) = self.fs.rename(&caller, staging, &staged, parent, name, how) {
                self.staged.entry(number).or_default().push(staged);
                return Err(e);
            }
        } else if let Some(ino) = self.inos.get(&number) {
            let entry = self.fs.link(&caller, *ino, parent, name)?;
            self.fs.forget(entry.attr.ino, 1);
        } else {
            let attr = node.attr();
            let perm = attr.perm & 0o777;
            let entry = match node.kind() {
                FileKind::Directory => self.fs.mkdir(&caller, parent, name, perm | 0o700)?,
                FileKind::Symlink => {
                    let target = node.target().unwrap_or_default();
                    self.fs.symlink(&caller, parent, name, target)?
                }
                kind => self.fs.mknod(&caller, parent, name, kind, perm, attr.rdev)?,
            };
            self.inos.insert(number, entry.attr.ino);
            let empty = match node.kind() {
                FileKind::Symlink => {
                    SnapshotNode::symlink(node.target().unwrap_or_default(), &attr)
                }
                kind => SnapshotNode::new(kind, &attr),
            };
            self.tree.insert(number, empty)?;
        }
        self.tree.set_entry(dir, name, number)
    }

    fn empty_staging(&mut self) -> Result<()> {
        let Some(staging) = self.staging else { return Ok(()) };
        while let Some(entry) = self.staged.first_entry() {
            let number = *entry.key();
            let Some(name) = entry.get().last().cloned() else {
                entry.remove();
                continue;
            };
            // A directory here is empty: its names were staged too.
            match self.fs.unlink(&Caller::ROOT, staging, &name) {
                Err(Error::IsADirectory) => self.fs.rmdir(&Caller::ROOT, staging, &name)?,
                other => other?,
            }
            if let Some(names) = self.staged.get_mut(&number) {
                names.pop();
            }
        }
        self.fs.rmdir(&Caller::ROOT, self.fs.root(), STAGING)?;
        self.fs.forget(staging, 1);
        self.staging = None;
        Ok(())
    }

    fn set_content(&mut self, number: u64, node: &SnapshotNode) -> Result<()> {
        if node.kind() != FileKind::Regular {
            return Ok(());
        }
        let ino = self.ino(number)?;
        let old = self.tree.node(number).cloned();
        let size = node.size_bytes();
        let old_size = old.as_ref().map_or(0, |old| old.size_bytes());
        if old_size != size {
            let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            self.fs.setattr(&Caller::ROOT, ino, &set)?;
        }
        let page_of = |nr: u64| old.as_ref().and_then(|old| old.page(nr));
        let is_same = |nr: u64, page: &Arc<Page>| {
            page_of(nr).is_some_and(|old| Arc::ptr_eq(old, page))
                && (nr + 1) * PAGE_BYTES <= old_size
        };
        for (nr, page) in node.pages().filter(|(nr, page)| !is_same(*nr, page)) {
            let at = nr * PAGE_BYTES;
            let len = size.saturating_sub(at).min(PAGE_BYTES) as usize;
            self.write(ino, at, &page.bytes()[..len])?;
        }
        let Some(old) = &old else { return Ok(()) };
        let gone = |nr: &u64| node.page(*nr).is_none() && nr * PAGE_BYTES < size;
        for nr in old.pages().map(|(nr, _)| nr).filter(gone) {
            let at = nr * PAGE_BYTES;
            let punched =
                self.fs.fallocate(&Caller::ROOT, ino, FallocateMode::PunchHole, at, PAGE_BYTES);
            if punched.is_err() {
                let len = (size - at).min(PAGE_BYTES) as usize;
                self.write(ino, at, &[0; PAGE_BYTES as usize][..len])?;
            }
        }
        Ok(())
    }

    fn write(&self, ino: Ino, mut at: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            match self.fs.write(&Caller::ROOT, ino, Handle::NONE, at, data)? {
                0 => return Err(Error::NoSpace),
                len => {
                    at += len as u64;
                    data = &data[len..];
                }
            }
        }
        Ok(())
    }

    fn set_xattrs(&self, number: u64, node: &SnapshotNode) -> Result<()> {
        let ino = self.ino(number)?;
        let old = self.tree.node(number);
        for (name, value) in node.xattrs() {
            if old.and_then(|old| old.xattr(name)) != Some(value) {
                self.fs.setxattr(&Caller::ROOT, ino, name, value, XattrSet::Any)?;
            }
        }
        for (name, _) in old.iter().flat_map(|old| old.xattrs()) {
            if node.xattr(name).is_none() {
                self.fs.removexattr(&Caller::ROOT, ino, name)?;
            }
        }
        Ok(())
    }

    /// Sets owner, mode and times. Only root can give files away; others keep what they have.
    fn set_attr(&self, number: u64, node: &SnapshotNode) -> Result<()> {
        let ino = self.ino(number)?;
        let wanted = node.attr();
        let now = self.fs.getattr(ino)?;
        let set = |set: SetAttr| match self.fs.setattr(&Caller::ROOT, ino, &set) {
            Err(Error::NotPermitted | Error::Unsupported(_)) => Ok(()),
            other => other.map(|_| ()),
        };
        if (now.uid, now.gid) != (wanted.uid, wanted.gid) {
            let (uid, gid) = (Some(wanted.uid), Some(wanted.gid));
            set(SetAttr { uid, gid, ..SetAttr::default() })?;
        }
        if now.perm != wanted.perm && node.kind() != FileKind::Symlink {
            set(SetAttr { perm: Some(wanted.perm), ..SetAttr::default() })?;
        }
        let at = |time: Time| Some(SetTime::At(time));
        set(SetAttr { atime: at(wanted.atime), mtime: at(wanted.mtime), ..SetAttr::default() })
    }

    /// Releases the inodes that have no name any more.
    fn forget_gone(&mut self, wanted: &Snapshot) {
        let there: HashSet<u64> = wanted.nodes().map(|(number, _)| number).collect();
        let fs = &self.fs;
        self.inos.retain(|number, ino| {
            let stays = there.contains(number);
            if !stays {
                fs.forget(*ino, 1);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::workload::change;
    use weft_block::Rng;
    use weft_vfs::{MemFs, Walker};

    #[test]
    fn a_directory_follows_any_changes() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (source, target) = (MemFs::new(), Arc::new(MemFs::new()));
            change(&*target, &mut rng);
            let mut mirror = Mirror::load(Arc::clone(&target) as _, 1 << 30).unwrap();
            assert_eq!(mirror.tree().hash(), target.snapshot().hash(), "loaded, seed {seed}");
            source.restore(mirror.tree());
            for _ in 0..5 {
                change(&source, &mut rng);
                let wanted = source.snapshot();
                mirror.follow(&wanted).unwrap();
                assert_eq!(target.snapshot().hash(), wanted.hash(), "seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_not_changed_is_not_written() {
        let target = Arc::new(MemFs::new());
        let walker = Walker::new(&*target);
        walker.write_file(b"/kept", &[7; 8192], 0o644).unwrap();
        let mut mirror = Mirror::load(Arc::clone(&target) as _, 1 << 30).unwrap();
        let source = MemFs::new();
        source.restore(mirror.tree());
        let before = walker.resolve(b"/kept").unwrap().stat().unwrap();
        Walker::new(&source).rename(b"/kept", b"/moved", RenameFlags::empty()).unwrap();
        mirror.follow(&source.snapshot()).unwrap();
        let after = walker.resolve(b"/moved").unwrap().stat().unwrap();
        assert_eq!((after.ino, after.mtime), (before.ino, before.mtime));
    }

    #[test]
    fn too_much_content_is_refused() {
        let fs = Arc::new(MemFs::new());
        Walker::new(&*fs).write_file(b"/large", &[1; 10_000], 0o644).unwrap();
        assert!(matches!(Mirror::load(fs, 8192), Err(Error::NoSpace)));
    }
}
