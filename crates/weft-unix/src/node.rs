//! Inodes in memory.

use crate::counts::Lowerings;
use crate::format::Inodes;
use crate::moved::MovedOut;
use crate::name_changes::NameChanges;
use smallvec::SmallVec;
use weft_patch::{Op, PatchId};
use weft_vfs::{Attr, Entry, FileFlags, FileKind, Ino, Time};

/// A few patches: befores to pass on.
pub type Patches = SmallVec<[PatchId; 16]>;

/// Adds a patch to befores, unless it is the last one already.
pub fn push_patch(patches: &mut Patches, patch: PatchId) {
    if patches.last() != Some(&patch) && patch != PatchId::DURABLE {
        patches.push(patch);
    }
}

/// The fields of an inode of any format of the Unix shape. Times have their full range here, sizes
/// and owners their full width.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inode {
    /// `S_IFMT` bits and permissions.
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of names, and of the entries `.` and `..` that name it, as it is written: it may count
    /// some that are gone (see [`Node::links`]).
    pub links: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Space taken, in units of 512 bytes, all that belongs to the inode included.
    pub blocks_512: u64,
    /// The time of the last read.
    pub atime: Time,
    /// The time of the last change of the content.
    pub mtime: Time,
    /// The time of the last change of the inode.
    pub ctime: Time,
    /// The time of creation, if the inode holds it.
    pub btime: Option<Time>,
    /// Flags, in Linux's numbers (`FS_*_FL`). Those that users do not see belong to the format.
    pub flags: FileFlags,
    /// The generation of its number.
    pub generation: u32,
    /// The device of a device node, as `stat` shows it.
    pub rdev: u32,
}

impl Inode {
    /// Returns the kind of file, if the mode names one.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(u32::from(self.mode))
    }

    /// Returns the permission bits with setuid, setgid and sticky.
    #[must_use]
    pub fn perm(&self) -> u16 {
        self.mode & 0o7777
    }
}

/// An extended attribute: the name with its prefix (`user.mime_type`); an ACL as `setxattr(2)` has
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// An inode in memory.
#[derive(Debug)]
pub struct Node<F: Inodes> {
    /// Its number.
    pub ino: Ino,
    /// The kind of file that the mode names.
    pub kind: FileKind,
    /// The fields that every inode has.
    pub inode: Inode,
    /// The part that only the format has.
    pub own: F::Node,
    /// References of the front.
    pub(crate) refs: u64,
    /// Open handles.
    pub(crate) opens: u32,
    /// A counter of the changes of content or map.
    pub epoch: u64,
    /// The number of the load that brought it into memory.
    pub(crate) load: u64,
    /// The directory that `..` names; for another file, the directory where it was seen last.
    pub parent: Ino,
    /// All changes that gave a directory the blocks it grew by, pointers included.
    pub grown: PatchId,
    /// The last change of the inode.
    pub patch: PatchId,
    /// Changes of names of this inode that may not be durable.
    pub(crate) names: NameChanges,
    /// The part of the count of links as it is written that counts nothing any more.
    pub(crate) surplus: u32,
    /// The lowerings of that count that wait.
    pub(crate) lowerings: Lowerings,
    /// The patches that the first write of a new inode must follow.
    pub born_after: Vec<PatchId>,
    /// The first change of an inode that was made here, if no other one could be written without it.
    pub(crate) born: PatchId,
    /// The change that removed the last name.
    pub(crate) unlinked: PatchId,
    /// The changes that moved inodes out of the directory.
    pub(crate) moved_out: MovedOut,
    /// Set if lowerings of counts wait for changes in this directory.
    pub(crate) holds_lowerings: bool,
    /// Set if removals of names wait until this directory can be reached.
    pub(crate) relied_on: bool,
    /// Set if it was made without a name, and may still get one.
    pub(crate) unnamed: bool,
    /// Set if a field changed that is not worth a write by itself (the access time).
    pub(crate) lazy: bool,
    /// Set if it was used since the hand of the clock passed it.
    pub(crate) recent: bool,
}

impl<F: Inodes> Node<F> {
    /// Makes an inode without references.
    #[must_use]
    pub fn new(ino: Ino, kind: FileKind, inode: Inode, own: F::Node) -> Self {
        Self {
            ino,
            kind,
            inode,
            own,
            refs: 0,
            opens: 0,
            epoch: 0,
            load: 0,
            parent: Ino(0),
            grown: PatchId::DURABLE,
            patch: PatchId::DURABLE,
            names: NameChanges::default(),
            surplus: 0,
            lowerings: Lowerings::default(),
            born_after: Vec::new(),
            born: PatchId::DURABLE,
            unlinked: PatchId::DURABLE,
            moved_out: MovedOut::default(),
            holds_lowerings: false,
            relied_on: false,
            unnamed: false,
            lazy: false,
            recent: false,
        }
    }

    /// Reports whether the front has a reference on the inode, or a handle is open.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.refs > 0 || self.opens > 0
    }

    pub(crate) fn attr(&self, block_bytes: u32) -> Attr {
        Attr {
            ino: self.ino,
            kind: self.kind,
            perm: self.inode.perm(),
            nlink: self.links(),
            uid: self.inode.uid,
            gid: self.inode.gid,
            rdev: self.inode.rdev,
            size_bytes: self.inode.size_bytes,
            blocks_512: self.inode.blocks_512,
            io_bytes: block_bytes,
            atime: self.inode.atime,
            mtime: self.inode.mtime,
            ctime: self.inode.ctime,
            btime: self.inode.btime,
        }
    }

    pub(crate) fn entry(&self, block_bytes: u32) -> Entry {
        Entry { attr: self.attr(block_bytes), generation: u64::from(self.inode.generation) }
    }

    /// Sets mtime and ctime.
    pub(crate) fn modified(&mut self, format: &F) {
        let now = format.storable(self, Time::now());
        self.inode.mtime = now;
        self.inode.ctime = now;
    }

    /// Sets ctime.
    pub(crate) fn changed(&mut self, format: &F) {
        self.inode.ctime = format.storable(self, Time::now());
    }

    /// Reports whether an empty directory counts more than its name and its `.`: a crash during a
    /// rename has left it with two names (or just with a count too high). Removing one of them must
    /// not delete the inode: the other one would name a free inode.
    pub(crate) fn has_other_name(&self) -> bool {
        self.kind == FileKind::Directory && self.links() > 2
    }

    /// Returns a value that is another one after a change of content or map, which a read without
    /// the lock checks.
    pub(crate) fn version(&self) -> (u64, u64) {
        (self.load, self.epoch)
    }

    /// Reports whether the volume has all of the inode, so that it may be dropped from memory and
    /// read again: nothing of it waits to be written or to be durable, and it can be found by its
    /// number. What a sync would have to wait for is durable then, too.
    pub(crate) fn is_settled(&self, op: &Op<'_>, format: &F) -> bool {
        self.inode.links > 0
            && !self.lazy
            && self.born_after.is_empty()
            && op.is_durable(self.patch)
            && op.is_durable(self.grown)
            && format.is_settled(op, self)
            && self.moved_out.is_settled(op)
            && self.lowerings.is_empty()
            && self.names.are_durable(op)
    }
}
