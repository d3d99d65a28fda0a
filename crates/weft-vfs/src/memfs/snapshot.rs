//! A tree of inodes, which shares everything with the trees that it was made from.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::file::Content;
use super::page::{Page, hash128};
use super::snapshot_node::{SnapshotAttr, SnapshotNode};
use super::state::ROOT;
use crate::{Error, FileKind, Result, check_name};
use std::hash::Hash;

/// A tree of inodes by number, as [`MemFs::snapshot`](super::MemFs::snapshot) takes it and
/// [`MemFs::restore`](super::MemFs::restore) mounts it; the root has the number 1.
///
/// A clone costs nothing, and a change copies what it changes: the map of inodes once for each
/// clone, then one inode, one page. So any number of trees that differ a little can be kept.
///
/// Changes follow no rules of a file system: a directory entry may name no inode, an inode may have
/// no name or a directory two, and data may lie past the end of a file, to which a change of the
/// size adds it later. A tree that is restored is made consistent as a checker of volumes does it:
/// what cannot be reached from the root is left out, and so are entries that name no inode, and all
/// names of a directory but the first that a breadth-first walk in order of names meets; data past
/// the end is cut off; numbers of links are counted.
///
/// ```
/// use weft_vfs::memfs::{MemFs, Snapshot, SnapshotAttr, SnapshotNode};
/// use weft_vfs::{FileKind, Walker};
/// let mut tree = Snapshot::new();
/// let attr = SnapshotAttr { perm: 0o644, ..SnapshotAttr::default() };
/// tree.insert(7, SnapshotNode::new(FileKind::Regular, &attr))?;
/// tree.set_entry(Snapshot::ROOT, b"file", 7)?;
/// tree.write(7, 0, b"content")?; // nothing to see yet
/// tree.set_size(7, 7)?;
/// let fs = MemFs::new();
/// fs.restore(&tree);
/// assert_eq!(Walker::new(&fs).read_file(b"/file")?, b"content");
/// # Ok::<(), weft_vfs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Snapshot {
    nodes: Arc<BTreeMap<u64, Arc<SnapshotNode>>>,
}

/// What [`MemFs::restore`](super::MemFs::restore) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// The number of inodes, with the root.
    pub inodes: usize,
    /// The number of inodes that were left out, as they have no name.
    pub unnamed: usize,
    /// The number of names that were left out, as they name no inode, or a directory that has
    /// another name.
    pub dropped_names: usize,
}

/// The inodes that are reached from the root.
struct Reached {
    /// The numbers, each once, in the order of the walk.
    order: Vec<u64>,
    /// The place of each number in `order`, the number of its links, and of its parent.
    found: HashMap<u64, Found>,
    /// Directories and their entries that are to be left out.
    dropped: Vec<(u64, Vec<u8>)>,
}

struct Found {
    place: usize,
    links: u32,
    parent: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// The number of the root.
    pub const ROOT: u64 = ROOT;

    /// The highest number of an inode.
    pub const NUMBER_MAX: u64 = u32::MAX as u64;

    /// Makes a tree of only a root, which belongs to user 0 and has the mode 0755.
    #[must_use]
    pub fn new() -> Self {
        let attr = SnapshotAttr { perm: 0o755, ..SnapshotAttr::default() };
        let root = Arc::new(SnapshotNode::new(FileKind::Directory, &attr));
        Self::from_nodes(BTreeMap::from([(ROOT, root)]))
    }

    pub(super) fn from_nodes(nodes: BTreeMap<u64, Arc<SnapshotNode>>) -> Self {
        Self { nodes: Arc::new(nodes) }
    }

    /// Returns the inode with this number.
    #[must_use]
    pub fn node(&self, number: u64) -> Option<&Arc<SnapshotNode>> {
        self.nodes.get(&number)
    }

    /// Returns all inodes with their numbers, in order of the numbers, also those that have no name.
    pub fn nodes(&self) -> impl Iterator<Item = (u64, &Arc<SnapshotNode>)> {
        self.nodes.iter().map(|(&number, node)| (number, node))
    }

    /// Inserts an inode, or replaces the one with this number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number is 0 or above [`NUMBER_MAX`](Self::NUMBER_MAX), or the root
    /// would be no directory.
    pub fn insert(&mut self, number: u64, node: impl Into<Arc<SnapshotNode>>) -> Result<()> {
        let node = node.into();
        if number == 0 || number > Self::NUMBER_MAX {
            return Err(Error::Invalid("the number of an inode is out of range"));
        }
        if number == ROOT && !node.is_dir() {
            return Err(Error::Invalid("the root must be a directory"));
        }
        Arc::make_mut(&mut self.nodes).insert(number, node);
        Ok(())
    }

    /// Removes an inode, but not its names.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode; [`Error::Invalid`] for the root.
    pub fn remove(&mut self, number: u64) -> Result<Arc<SnapshotNode>> {
        if number == ROOT {
            return Err(Error::Invalid("the root cannot be removed"));
        }
        Arc::make_mut(&mut self.nodes).remove(&number).ok_or(Error::Stale(number))
    }

    /// Makes `name` in a directory name the inode with the number `to`, whether it exists or not.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such directory; [`Error::NotADirectory`]; those of
    /// [`check_name`], and [`Error::Invalid`] for `.` and `..`.
    pub fn set_entry(&mut self, directory: u64, name: &[u8], to: u64) -> Result<()> {
        check_name(name)?;
        if name == b"." || name == b".." {
            return Err(Error::Invalid("every directory has . and .."));
        }
        self.edit(directory)?.names_mut()?.set(name, to);
        Ok(())
    }

    /// Removes `name` from a directory. Does nothing if it is not there.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such directory; [`Error::NotADirectory`].
    pub fn remove_entry(&mut self, directory: u64, name: &[u8]) -> Result<()> {
        let node = self.nodes.get(&directory).ok_or(Error::Stale(directory))?;
        if node.names()?.get(name).is_some() {
            self.edit(directory)?.names_mut()?.remove(name);
        }
        Ok(())
    }

    /// Sets the length of a file. Making it shorter drops what lies past the new end; making it
    /// longer adds what was written there, and a hole.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode; [`Error::IsADirectory`] or [`Error::Invalid`] if
    /// it is no file; [`Error::TooLarge`].
    pub fn set_size(&mut self, number: u64, size_bytes: u64) -> Result<()> {
        check_end(size_bytes, 0)?;
        self.edit_content(number)?.truncate(size_bytes);
        Ok(())
    }

    /// Writes bytes of a file, but does not change its length.
    ///
    /// # Errors
    /// Those of [`set_size`](Self::set_size).
    pub fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        check_end(offset, data.len() as u64)?;
        self.edit_content(number)?.write_keeping_size(offset, data);
        Ok(())
    }

    /// Makes a range of a file read as zeroes: whole pages in it become holes. Does not change its
    /// length.
    ///
    /// # Errors
    /// Those of [`set_size`](Self::set_size).
    pub fn zero(&mut self, number: u64, offset: u64, len_bytes: u64) -> Result<()> {
        check_end(offset, len_bytes)?;
        self.edit_content(number)?.zero(offset, len_bytes);
        Ok(())
    }

    /// Replaces a page of a file, also past its end; `None` makes a hole. Does not change its length.
    ///
    /// # Errors
    /// Those of [`set_size`](Self::set_size).
    pub fn set_page(&mut self, number: u64, nr: u64, page: Option<Arc<Page>>) -> Result<()> {
        check_end(nr.saturating_mul(super::file::PAGE_BYTES), super::file::PAGE_BYTES)?;
        self.edit_content(number)?.set_page(nr, page);
        Ok(())
    }

    /// Sets the attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode.
    pub fn set_attr(&mut self, number: u64, attr: &SnapshotAttr) -> Result<()> {
        let node = self.edit(number)?;
        let &SnapshotAttr { perm, uid, gid, rdev, atime, mtime, ctime, btime } = attr;
        (node.perm, node.uid, node.gid, node.rdev) = (perm, uid, gid, rdev);
        (node.atime, node.mtime, node.ctime, node.btime) = (atime, mtime, ctime, btime);
        Ok(())
    }

    /// Sets an extended attribute. An ACL is one as well: its mode bits must be set apart.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode.
    pub fn set_xattr(&mut self, number: u64, name: &[u8], value: &[u8]) -> Result<()> {
        self.edit(number)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    /// Removes an extended attribute. Does nothing if it is not there.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode.
    pub fn remove_xattr(&mut self, number: u64, name: &[u8]) -> Result<()> {
        self.edit(number)?.xattrs.remove(name);
        Ok(())
    }

    /// Returns the tree that is restored of this one: without what cannot be reached from the root,
    /// and without names of nothing.
    #[must_use]
    pub fn mended(&self) -> Self {
        Self::from_nodes(self.consistent().0.into_iter().collect())
    }

    /// Returns a hash of what a program can observe of the tree once it is restored: all paths, which
    /// of them are names of one inode, and the [hash of each inode](SnapshotNode::hash). It does not
    /// depend on numbers and on times.
    #[must_use]
    pub fn hash(&self) -> u128 {
        let reached = self.reach();
        let dropped = |directory, name: &[u8]| {
            reached.dropped.iter().any(|(of, n)| *of == directory && n == name)
        };
        hash128(|hasher| {
            for &number in &reached.order {
                let Some(node) = self.nodes.get(&number) else { continue };
                node.hash().hash(hasher);
                for (name, to) in node.entries() {
                    if let Some(found) = reached.found.get(&to)
                        && !dropped(number, name)
                    {
                        (name, found.place).hash(hasher);
                    }
                }
                // No name is longer than this: the end of the directory.
                u64::MAX.hash(hasher);
            }
        })
    }

    /// Returns the inodes that are restored, with their numbers in order.
    pub(super) fn consistent(&self) -> (Vec<(u64, Arc<SnapshotNode>)>, Restored) {
        let reached = self.reach();
        let restored = Restored {
            inodes: reached.order.len(),
            unnamed: self.nodes.len() - reached.order.len(),
            dropped_names: reached.dropped.len(),
        };
        let mut nodes = Vec::with_capacity(reached.order.len());
        for (&number, node) in &*self.nodes {
            let Some(found) = reached.found.get(&number) else { continue };
            let mut node = Arc::clone(node);
            // Comparing first, as nearly every node is as it should be, and stays shared.
            if node.nlink != found.links {
                SnapshotNode::edit(&mut node).nlink = found.links;
            }
            if node.names().is_ok_and(|names| names.parent != found.parent)
                && let Ok(names) = SnapshotNode::edit(&mut node).names_mut()
            {
                names.parent = found.parent;
            }
            if node.content().is_ok_and(Content::passes_end)
                && let Ok(content) = SnapshotNode::edit(&mut node).content_mut()
            {
                content.trim();
            }
            for (_, name) in reached.dropped.iter().filter(|(of, _)| *of == number) {
                if let Ok(names) = SnapshotNode::edit(&mut node).names_mut() {
                    names.remove(name);
                }
            }
            nodes.push((number, node));
        }
        (nodes, restored)
    }

    /// Walks from the root, breadth first, in order of names.
    fn reach(&self) -> Reached {
        let root = Found { place: 0, links: 2, parent: ROOT };
        let mut found = HashMap::with_capacity(self.nodes.len());
        found.insert(ROOT, root);
        let mut reached = Reached { order: vec![ROOT], found, dropped: Vec::new() };
        let mut directories = VecDeque::from([ROOT]);
        while let Some(directory) = directories.pop_front() {
            let Some(node) = self.nodes.get(&directory) else { continue };
            let mut subdirectories = 0;
            for (name, number) in node.entries() {
                let is_dir = self.nodes.get(&number).map(|node| node.is_dir());
                match (is_dir, reached.found.get_mut(&number)) {
                    (None, _) | (Some(true), Some(_)) => {
                        reached.dropped.push((directory, name.to_vec()));
                    }
                    (Some(false), Some(found)) => found.links += 1,
                    (Some(is_dir), None) => {
                        let (place, links) = (reached.order.len(), if is_dir { 2 } else { 1 });
                        reached.order.push(number);
                        reached.found.insert(number, Found { place, links, parent: directory });
                        if is_dir {
                            subdirectories += 1;
                            directories.push_back(number);
                        }
                    }
                }
            }
            if let Some(found) = reached.found.get_mut(&directory) {
                found.links += subdirectories;
            }
        }
        reached
    }

    fn edit(&mut self, number: u64) -> Result<&mut SnapshotNode> {
        let nodes = Arc::make_mut(&mut self.nodes);
        nodes.get_mut(&number).map(SnapshotNode::edit).ok_or(Error::Stale(number))
    }

    fn edit_content(&mut self, number: u64) -> Result<&mut Content> {
        self.edit(number)?.content_mut()
    }
}

/// Checks that a range ends at an offset that a file can have.
fn check_end(offset: u64, len_bytes: u64) -> Result<()> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= i64::MAX.cast_unsigned() => Ok(()),
        _ => Err(Error::TooLarge),
    }
}
