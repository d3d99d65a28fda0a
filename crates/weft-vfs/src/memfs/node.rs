//! An inode of the file system in memory: what a snapshot has of it, and who uses it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::file::PAGE_BYTES;
use super::snapshot_node::{Data, SnapshotNode};
use crate::acl::{self, Acl};
use crate::{Attr, Error, FileKind, Ino, Result, Time};

/// An inode. What a snapshot has of it is shared with snapshots, and copied by the first change
/// after one was taken.
#[derive(Debug)]
pub(super) struct Node {
    shared: Arc<SnapshotNode>,
    /// References taken and not yet released.
    pub(super) references: u64,
    /// Open handles.
    pub(super) opens: u64,
    /// It has no name yet, and may get one: a file that has lost its last name may not.
    pub(super) linkable: bool,
}

impl Deref for Node {
    type Target = SnapshotNode;

    fn deref(&self) -> &SnapshotNode {
        &self.shared
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut SnapshotNode {
        SnapshotNode::edit(&mut self.shared)
    }
}

impl Node {
    /// Makes an inode that nobody uses yet.
    pub(super) fn new(shared: Arc<SnapshotNode>) -> Self {
        Self { shared, references: 0, opens: 0, linkable: false }
    }

    /// Returns what a snapshot has of this inode.
    pub(super) fn share(&self) -> Arc<SnapshotNode> {
        Arc::clone(&self.shared)
    }

    pub(super) fn attr(&self, ino: u64) -> Attr {
        let (size_bytes, pages) = match &self.data {
            Data::File(content) => (content.size_bytes, content.pages()),
            Data::Directory(names) => (PAGE_BYTES, 1 + names.len() / 64),
            Data::Symlink(target) => (target.len() as u64, 0),
            Data::Special => (0, 0),
        };
        Attr {
            ino: Ino(ino),
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size_bytes,
            blocks_512: pages * (PAGE_BYTES / 512),
            io_bytes: PAGE_BYTES as u32,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
        }
    }

    /// Sets the permission bits, and with them those of the ACL.
    pub(super) fn chmod(&mut self, perm: u16) -> Result<()> {
        if let Some(value) = self.xattrs.get_mut(acl::ACCESS)
            && let Some(list) = Acl::parse(value)?
        {
            *value = list.with_perm(perm).to_xattr();
        }
        self.perm = perm;
        Ok(())
    }

    /// Sets or removes an ACL; an access ACL changes the mode too.
    pub(super) fn set_acl(&mut self, name: &[u8], list: Option<Acl>) -> Result<()> {
        if self.kind == FileKind::Symlink {
            return Err(Error::Unsupported("ACLs of symbolic links"));
        }
        if name == acl::DEFAULT && !self.is_dir() {
            return Err(Error::Access);
        }
        let mut kept = list;
        let node = &mut **self;
        if name == acl::ACCESS
            && let Some(list) = kept.take()
        {
            node.perm = node.perm & !0o777 | list.perm();
            kept = (!list.is_mode()).then_some(list);
        }
        match kept {
            Some(list) => node.xattrs.insert(name.to_vec(), list.to_xattr()),
            None => node.xattrs.remove(name),
        };
        self.changed();
        Ok(())
    }

    /// Records a change of the content now.
    pub(super) fn modified(&mut self) {
        let now = Time::now();
        self.mtime = now;
        self.ctime = now;
    }

    /// Records a change of only the inode now.
    pub(super) fn changed(&mut self) {
        self.ctime = Time::now();
    }
}
