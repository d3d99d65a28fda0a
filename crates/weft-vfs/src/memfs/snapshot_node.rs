//! An inode of a snapshot.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};

use super::file::Content;
use super::names::Names;
use super::page::{Page, hash128};
use crate::{Error, FileKind, Result, Time};

#[derive(Debug, Clone)]
pub(super) enum Data {
    File(Content),
    Directory(Names),
    Symlink(Vec<u8>),
    Special,
}

/// An inode of a [`Snapshot`](super::Snapshot): attributes, extended attributes, and content, names
/// or the target of a symbolic link.
///
/// Clones share pages. It is changed through the snapshot, or before it is inserted into one.
#[derive(Debug, Clone)]
pub struct SnapshotNode {
    pub(super) kind: FileKind,
    pub(super) perm: u16,
    /// Number of names; computed when a snapshot is restored.
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) btime: Time,
    pub(super) data: Data,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    hash: OnceLock<u128>,
}

/// The attributes of an inode in a [`Snapshot`](super::Snapshot), other than its kind and those
/// that follow from the tree (its number of names, its length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotAttr {
    /// Permission bits with setuid, setgid and sticky: the low 12 bits of a mode.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev(3)` packs it.
    pub rdev: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth time.
    pub btime: Time,
}

impl SnapshotNode {
    /// Makes an inode without content, names and extended attributes. It is a file of length 0, a
    /// directory without names or a special file; of a symbolic link the target is missing, see
    /// [`symlink`](Self::symlink).
    #[must_use]
    pub fn new(kind: FileKind, attr: &SnapshotAttr) -> Self {
        let data = match kind {
            FileKind::Regular => Data::File(Content::default()),
            // The parent is found when the snapshot is restored.
            FileKind::Directory => Data::Directory(Names::new(super::state::ROOT)),
            FileKind::Symlink => Data::Symlink(Vec::new()),
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                Data::Special
            }
        };
        Self::with_data(kind, attr, data)
    }

    /// Makes a symbolic link to `target`.
    #[must_use]
    pub fn symlink(target: &[u8], attr: &SnapshotAttr) -> Self {
        Self::with_data(FileKind::Symlink, attr, Data::Symlink(target.to_vec()))
    }

    pub(super) fn with_data(kind: FileKind, attr: &SnapshotAttr, data: Data) -> Self {
        let &SnapshotAttr { perm, uid, gid, rdev, atime, mtime, ctime, btime } = attr;
        Self {
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev,
            atime,
            mtime,
            ctime,
            btime,
            data,
            xattrs: BTreeMap::new(),
            hash: OnceLock::new(),
        }
    }

    /// Returns a node to change it: a copy if it is shared.
    pub(super) fn edit(shared: &mut Arc<Self>) -> &mut Self {
        let node = Arc::make_mut(shared);
        node.hash.take();
        node
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns the attributes.
    #[must_use]
    pub fn attr(&self) -> SnapshotAttr {
        let &Self { perm, uid, gid, rdev, atime, mtime, ctime, btime, .. } = self;
        SnapshotAttr { perm, uid, gid, rdev, atime, mtime, ctime, btime }
    }

    /// Returns the length of a file in bytes; 0 for other kinds.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.content().map_or(0, |content| content.size_bytes)
    }

    /// Reads the content of a file from `offset` on; returns the number of bytes read, fewer than
    /// `buf` holds only at the end. Other kinds have no content.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.content().map_or(0, |content| content.read(offset, buf))
    }

    /// Returns the page with this number (its offset divided by its length); `None` in a hole and
    /// for other kinds than files.
    #[must_use]
    pub fn page(&self, nr: u64) -> Option<&Arc<Page>> {
        self.content().ok()?.shared_page(nr)
    }

    /// Returns the pages of a file that are not holes, with their numbers, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.content().ok().into_iter().flat_map(Content::shared_pages)
    }

    /// Returns the number of the inode that a directory's `name` names.
    #[must_use]
    pub fn entry(&self, name: &[u8]) -> Option<u64> {
        self.names().ok()?.get(name)
    }

    /// Returns the names of a directory with the numbers of their inodes, in order of the names. Other
    /// kinds have none.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.names().ok().into_iter().flat_map(Names::sorted)
    }

    /// Returns the target of a symbolic link.
    #[must_use]
    pub fn target(&self) -> Option<&[u8]> {
        match &self.data {
            Data::Symlink(target) => Some(target),
            _ => None,
        }
    }

    /// Returns the value of an extended attribute. ACLs are `system.posix_acl_access` and
    /// `system.posix_acl_default`.
    #[must_use]
    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.get(name).map(Vec::as_slice)
    }

    /// Returns the extended attributes, in order of their names.
    pub fn xattrs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// Returns a hash of what a program can observe of this inode alone: kind, mode, owner, length,
    /// content, target, extended attributes. Not of times (each run has its own), of names, and of
    /// whether zeroes take up space. It is computed once, from hashes of pages that are too.
    #[must_use]
    pub fn hash(&self) -> u128 {
        *self.hash.get_or_init(|| {
            // Bytes past the end are not observed.
            let trimmed = match &self.data {
                Data::File(content) if content.passes_end() => {
                    let mut content = content.clone();
                    content.trim();
                    Some(content)
                }
                _ => None,
            };
            hash128(|hasher| {
                (self.kind, self.perm, self.uid, self.gid, self.rdev).hash(hasher);
                self.xattrs.hash(hasher);
                match &self.data {
                    Data::File(content) => {
                        content.size_bytes.hash(hasher);
                        let content = trimmed.as_ref().unwrap_or(content);
                        for (nr, page) in content.shared_pages() {
                            if let Some(hash) = page.hash() {
                                (nr, hash).hash(hasher);
                            }
                        }
                    }
                    Data::Symlink(target) => target.hash(hasher),
                    Data::Directory(_) | Data::Special => {}
                }
            })
        })
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(super) fn names(&self) -> Result<&Names> {
        match &self.data {
            Data::Directory(names) => Ok(names),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(super) fn names_mut(&mut self) -> Result<&mut Names> {
        match &mut self.data {
            Data::Directory(names) => Ok(names),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(super) fn content(&self) -> Result<&Content> {
        match &self.data {
            Data::File(content) => Ok(content),
            Data::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    pub(super) fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.data {
            Data::File(content) => Ok(content),
            Data::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }
}
