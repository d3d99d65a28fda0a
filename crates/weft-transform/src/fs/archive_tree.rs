//! The tree of an archive, whose items are inodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, Error, FileKind, Ino, Result};

use super::access::{as_directory, list_as_directory};
use super::inode::Inode;
use super::inodes::SYNTHETIC_FIRST;
use super::locks::locked;
use super::mount::Mount;
use super::version::FileVersion;
use crate::Network;
use crate::archive::{Archive, Item, OF_ARCHIVE};
use crate::store::Store;

/// The bits of an inode number that identify the item in its tree.
const ITEM_BITS: u32 = 32;
/// Maximum nesting of trees within trees.
pub(super) const DEPTH_MAX: u32 = 8;
/// Maximum number of unreferenced trees whose numbers are remembered.
const PAST_MAX: usize = 4096;

/// All referenced trees.
#[derive(Default)]
pub(super) struct Trees {
    trees: HashMap<u64, (Arc<Tree>, u64)>,
    /// The numbers of trees.
    known: HashMap<TreeKey, u64>,
    /// The numbers of trees that are no longer referenced, and the state of their archives: while
    /// that is unchanged, they get the same inode numbers again.
    past: HashMap<TreeKey, (u64, FileVersion)>,
    next: u64,
}

impl Trees {
    /// Returns the tree of a key, with one more use.
    pub(super) fn known(&mut self, key: &TreeKey) -> Option<Arc<Tree>> {
        let (tree, uses) = self.trees.get_mut(self.known.get(key)?)?;
        *uses += 1;
        Some(tree.clone())
    }

    /// Returns the number of a new tree: the one it had before, if its archive is unchanged.
    pub(super) fn number(&mut self, key: &TreeKey, base: &ArchiveBase) -> u64 {
        let before = self.past.remove(key).filter(|(_, was)| base.look() == Some(*was));
        if let Some((nr, _)) = before {
            return nr;
        }
        self.next += 1;
        self.next
    }

    /// Adds a tree, with one use.
    pub(super) fn insert(&mut self, tree: Tree) {
        self.known.insert(tree.key.clone(), tree.nr);
        self.trees.insert(tree.nr, (Arc::new(tree), 1));
    }

    /// Returns the tree and the item of an inode.
    pub(super) fn get(&self, ino: Ino) -> Result<(Arc<Tree>, usize)> {
        let number = ino.0.checked_sub(SYNTHETIC_FIRST).ok_or(Error::Stale(ino.0))?;
        let (tree, _) = self.trees.get(&(number >> ITEM_BITS)).ok_or(Error::Stale(ino.0))?;
        let item = number & ((1 << ITEM_BITS) - 1);
        Ok((tree.clone(), usize::try_from(item).unwrap_or(usize::MAX)))
    }

    pub(super) fn add_use(&mut self, nr: u64) {
        if let Some((_, uses)) = self.trees.get_mut(&nr) {
            *uses += 1;
        }
    }

    /// Releases `count` uses of a tree; with the last one the tree is removed and returned.
    pub(super) fn drop_uses(&mut self, nr: u64, count: u64) -> Option<Arc<Tree>> {
        let (_, uses) = self.trees.get_mut(&nr)?;
        *uses = uses.saturating_sub(count);
        if *uses > 0 {
            return None;
        }
        let (tree, _) = self.trees.remove(&nr)?;
        if self.known.get(&tree.key) == Some(&nr) {
            self.known.remove(&tree.key);
            if self.past.len() >= PAST_MAX {
                self.past.clear();
            }
            if let Some(look) = tree.base.look() {
                self.past.insert(tree.key.clone(), (nr, look));
            }
        }
        Some(tree)
    }
}

/// The inode of an archive, and the stages that it is read through.
pub(super) type TreeKey = (Ino, Vec<u8>);

/// The tree of an archive.
pub(super) struct Tree {
    pub(super) nr: u64,
    pub(super) key: TreeKey,
    pub(super) base: ArchiveBase,
    /// The directory of the archive.
    pub(super) parent: Ino,
    /// The stages in its name; without any, they follow from the archive's magic number.
    pub(super) network: Option<Network>,
    /// The archive, once it was opened.
    pub(super) archive: Mutex<Option<Archive>>,
    pub(super) depth: u32,
}

/// The archive of a tree.
pub(super) enum ArchiveBase {
    /// A file, with one use, and its state.
    File(Arc<Mount>, Arc<Inode>, FileVersion),
    /// A file in a tree.
    Within(Arc<Tree>, usize),
}

impl ArchiveBase {
    pub(super) fn look(&self) -> Option<FileVersion> {
        match self {
            Self::File(_, _, look) => Some(*look),
            Self::Within(..) => None,
        }
    }
}

/// Returns the version of an archive, by which changes are detected.
pub(super) fn look(mount: &Arc<Mount>, inode: &Inode) -> Result<FileVersion> {
    let version = inode.version();
    // The reported length of a view depends on its permissions, so that of the base is used.
    let attr = match inode.view() {
        Some(view) => mount.base_attr(&view)?.0,
        None => mount.attr(inode)?.0,
    };
    Ok(FileVersion::of(&attr, version))
}

impl Tree {
    /// Fails with [`Error::Stale`] once the archive has changed.
    pub(super) fn check(&self) -> Result<()> {
        match &self.base {
            ArchiveBase::File(mount, inode, was) if look(mount, inode)? == *was => Ok(()),
            ArchiveBase::File(_, inode, _) => Err(Error::Stale(inode.ino.0)),
            ArchiveBase::Within(tree, _) => tree.check(),
        }
    }

    pub(super) fn ino(&self, item: usize) -> Ino {
        Ino(SYNTHETIC_FIRST + (self.nr << ITEM_BITS) + item as u64)
    }

    /// Runs `look` with the archive, which must have been opened.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Archive) -> Result<T>) -> Result<T> {
        let mut archive = locked(&self.archive);
        look(archive.as_mut().ok_or(Error::NotADirectory)?)
    }

    /// Returns true if all users who can reach the tree may read the archive.
    pub(super) fn all_may_read(&self) -> Result<bool> {
        match &self.base {
            ArchiveBase::File(mount, inode, _) => mount.all_may_read_inode(inode),
            ArchiveBase::Within(tree, nr) => {
                let attr = tree.attr(*nr)?;
                Ok(tree.mount().all_may_read(&attr, || false))
            }
        }
    }

    fn mount(&self) -> &Mount {
        match &self.base {
            ArchiveBase::File(mount, ..) => mount,
            ArchiveBase::Within(tree, _) => tree.mount(),
        }
    }

    /// Returns the item of a name in a directory.
    pub(super) fn child(&self, nr: usize, name: &[u8]) -> Result<Option<usize>> {
        self.with(|archive| {
            let item = archive.item(nr).ok_or(Error::NotFound)?;
            Ok(match name {
                _ if item.kind != FileKind::Directory => return Err(Error::NotADirectory),
                b"." => Some(nr),
                b".." => Some(item.parent()),
                name => archive.child(nr, name),
            })
        })
    }

    /// Returns up to `count` names of a directory with their attributes, after the first `skip`.
    pub(super) fn names(&self, nr: usize, skip: usize, count: usize) -> Vec<(Vec<u8>, Attr)> {
        let archive = locked(&self.archive);
        let Some(archive) = &*archive else { return Vec::new() };
        let children = archive.children(nr, skip).take(count);
        let base = self.base_attr().ok();
        let attr = |nr| archive.item(nr).map(|item| self.attr_of(nr, item, base.as_ref()));
        children.filter_map(|(nr, name)| Some((name.to_vec(), attr(nr)?))).collect()
    }

    /// Returns the access list of the root, which is that of the archive.
    pub(super) fn access_list(&self) -> Option<Vec<u8>> {
        let ArchiveBase::File(mount, inode, _) = &self.base else { return None };
        mount.list_of(inode).map(list_as_directory)
    }

    /// Returns the attributes of an item. Only users who may read the archive may enter the root;
    /// below it the archive determines the permissions.
    pub(super) fn attr(&self, nr: usize) -> Result<Attr> {
        if nr == 0 {
            let base = self.base_attr()?;
            return Ok(Attr {
                ino: self.ino(0),
                kind: FileKind::Directory,
                perm: as_directory(base.perm),
                nlink: 2,
                rdev: 0,
                size_bytes: 0,
                blocks_512: 0,
                io_bytes: 4096,
                atime: base.mtime,
                btime: None,
                ..base
            });
        }
        let base = self.base_attr().ok();
        self.with(|archive| {
            Ok(self.attr_of(nr, archive.item(nr).ok_or(Error::NotFound)?, base.as_ref()))
        })
    }

    /// Returns the attributes of the archive.
    fn base_attr(&self) -> Result<Attr> {
        match &self.base {
            ArchiveBase::File(mount, inode, _) => Ok(mount.attr(inode)?.0),
            ArchiveBase::Within(tree, nr) => tree.attr(*nr),
        }
    }

    /// Returns the attributes of an item. Owner, group and time are those of the archive, `base`, if it
    /// names none.
    fn attr_of(&self, nr: usize, item: &Item, base: Option<&Attr>) -> Attr {
        let own = |id: u32, of_archive| if id == OF_ARCHIVE { of_archive } else { id };
        let owner = base.map_or((OF_ARCHIVE, OF_ARCHIVE), |base| (base.uid, base.gid));
        let mtime = item.mtime().or(base.map(|base| base.mtime)).unwrap_or_default();
        Attr {
            ino: self.ino(nr),
            kind: item.kind,
            // Trees are read-only.
            perm: item.perm & !0o6222,
            nlink: if item.kind == FileKind::Directory { 2 } else { 1 },
            uid: own(item.uid, owner.0),
            gid: own(item.gid, owner.1),
            rdev: 0,
            size_bytes: item.len_bytes,
            blocks_512: item.len_bytes.div_ceil(512),
            io_bytes: 4096,
            atime: mtime,
            mtime,
            ctime: mtime,
            btime: None,
        }
    }
}

/// A file in a tree, as the archive of another tree.
pub(super) struct Within(pub(super) Arc<Tree>, pub(super) usize);

impl Store for Within {
    fn len_bytes(&mut self) -> crate::Result<Option<u64>> {
        Ok(Some(self.0.attr(self.1)?.size_bytes))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> crate::Result<usize> {
        match &mut *locked(&self.0.archive) {
            Some(archive) => archive.read(self.1, offset, buf),
            None => Err(Error::NotADirectory.into()),
        }
    }
}
