//! Rnodes, and the directory entries that point to them.

use std::collections::BTreeMap;
use std::fmt;

use weft_vfs::{Attr, FileKind, Ino, NAME_MAX_BYTES, Time, check_name};

use crate::block_map::BlockMap;
use crate::cell_mount::CELL_MOUNT_XATTR;
use crate::error::Refusal;
use crate::types::{ClientId, Cookie, RnodeId, Version};
use crate::wire::{Reader, Wire, WireError, wire_enum, wire_struct};

/// The longest target of a symbolic link, in bytes.
pub const TARGET_MAX_BYTES: usize = 4095;
/// The longest value of an extended attribute, in bytes.
pub const XATTR_MAX_BYTES: usize = 64 << 10;
/// The total of all extended attributes of one rnode with their names, in bytes: an rnode fits a
/// frame.
pub const XATTRS_MAX_BYTES: usize = 256 << 10;
/// The most names of one rnode.
pub const LINKS_MAX: u32 = 1 << 30;

/// A checked name of one path component: 1 to 255 bytes, neither `/` nor NUL, and not `.` or `..`,
/// which no directory stores.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks a name and returns it, if a directory can store it.
    ///
    /// # Errors
    /// [`Refusal::NameTooLong`], [`Refusal::Invalid`].
    pub fn new(name: &[u8]) -> Result<Self, Refusal> {
        check_name(name).map_err(|e| match e {
            weft_vfs::Error::NameTooLong => Refusal::NameTooLong,
            _ => Refusal::Invalid,
        })?;
        if name == b"." || name == b".." {
            return Err(Refusal::Invalid);
        }
        Ok(Self(name.into()))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Wire for Name {
    fn put(&self, out: &mut Vec<u8>) {
        crate::wire::put_bytes(&self.0, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "a name";
        let bytes = from.bytes(NAME_MAX_BYTES, WHAT)?;
        Self::new(bytes).map_err(|_| WireError::Invalid { what: WHAT })
    }
}

/// Bytes of bounded length: a link target, an attribute's name or value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bytes(pub Vec<u8>);

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        crate::wire::put_bytes(&self.0, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        from.bytes(XATTR_MAX_BYTES, "a string of bytes").map(|b| Self(b.to_vec()))
    }
}

/// The part of an rnode that depends on its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file. A block that is not in the map is a hole.
    File {
        /// Length in bytes.
        size_bytes: u64,
        /// Size of a block in bytes, a power of two.
        block_bytes: u32,
        /// The blocks by position, in units of `block_bytes`.
        blocks: BlockMap,
        /// The version whose change made this content: the name of the content. Other changes leave
        /// it.
        content: Version,
        /// The content that was last kept in the file's history.
        kept: Version,
    },
    /// A directory. Its entries are records of their own.
    Directory {
        /// The directory it is in; the root's is the root.
        parent: RnodeId,
        /// The number of entries.
        entries: u64,
        /// The cookie of the entry made last.
        last: Cookie,
    },
    /// A symbolic link.
    Symlink {
        /// The path that it points to, 1 to 4095 bytes.
        target: Bytes,
    },
    /// A device node, FIFO or socket.
    Special {
        /// The kind of special file.
        kind: FileKind,
        /// Device number, as `makedev(3)` packs it.
        rdev: u32,
    },
}
wire_enum!(Body {
    1 => File { size_bytes, block_bytes, blocks, content, kept },
    2 => Directory { parent, entries, last },
    3 => Symlink { target },
    4 => Special { kind, rdev },
});

/// A file, directory or anything else that has attributes. It lists the blocks of its content, but
/// not the clients that hold them ([`Holders`]), since a reader that gains a copy changes no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rnode {
    /// Its number.
    pub id: RnodeId,
    /// The version of this state.
    pub version: Version,
    /// Permission bits: the low 12 bits of a mode.
    pub perm: u16,
    /// Number of names; 0 if the rnode is kept only while a client holds it open.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, as far as it is kept: it is updated only with other attributes.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
    /// The time of creation.
    pub btime: Time,
    /// Extended attributes, with their prefixes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// The part that depends on the kind.
    pub body: Body,
}
wire_struct!(Rnode {
    id,
    version,
    perm,
    nlink,
    uid,
    gid,
    atime,
    mtime,
    ctime,
    btime,
    xattrs,
    body,
});

/// The attribute that holds a file's tags, as a list with commas between them.
pub const TAGS_XATTR: &[u8] = b"user.xdg.tags";

impl Rnode {
    /// The root directory of a new cell, which belongs to root unless another is asked for.
    #[must_use]
    pub fn root(now: Time) -> Self {
        Self {
            id: RnodeId::ROOT,
            version: Version::FIRST,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: BTreeMap::new(),
            body: Body::Directory { parent: RnodeId::ROOT, entries: 0, last: Cookie(0) },
        }
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::File { .. } => FileKind::Regular,
            Body::Directory { .. } => FileKind::Directory,
            Body::Symlink { .. } => FileKind::Symlink,
            Body::Special { kind, .. } => kind,
        }
    }

    /// Returns true if it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// Returns true if it is a cell mount, the mount point of another cell; the attribute's value may
    /// be damaged.
    #[must_use]
    pub fn is_cell_mount(&self) -> bool {
        self.is_dir() && self.xattrs.keys().any(|name| name.0 == CELL_MOUNT_XATTR)
    }

    /// Returns the version of a regular file's content.
    #[must_use]
    pub fn content(&self) -> Option<Version> {
        match self.body {
            Body::File { content, .. } => Some(content),
            _ => None,
        }
    }

    /// Length in bytes, as `stat` shows it.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match &self.body {
            Body::File { size_bytes, .. } => *size_bytes,
            Body::Symlink { target } => target.0.len() as u64,
            Body::Directory { .. } | Body::Special { .. } => 0,
        }
    }

    /// Returns its tags in the order listed, without blanks around them.
    pub fn tags(&self) -> impl Iterator<Item = &[u8]> {
        let list = self.xattrs.get(&Bytes(TAGS_XATTR.to_vec())).map_or(&[][..], |b| &b.0);
        list.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|tag| !tag.is_empty())
    }

    /// Returns the attributes as [`weft_vfs`] has them.
    #[must_use]
    pub fn attr(&self) -> Attr {
        let (blocks_512, io_bytes, rdev) = match &self.body {
            Body::File { block_bytes, blocks, .. } => {
                (blocks.stored_bytes().div_ceil(512), *block_bytes, 0)
            }
            Body::Special { rdev, .. } => (0, 4096, *rdev),
            Body::Directory { .. } | Body::Symlink { .. } => (0, 4096, 0),
        };
        Attr {
            ino: Ino(self.id.0),
            kind: self.kind(),
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev,
            size_bytes: self.size_bytes(),
            blocks_512,
            io_bytes,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
        }
    }
}

/// A directory entry: the rnode that a name points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dirent {
    /// The rnode.
    pub id: RnodeId,
    /// Its kind, which never changes.
    pub kind: FileKind,
    /// Its position in the listing.
    pub cookie: Cookie,
}
wire_struct!(Dirent { id, kind, cookie });

/// The clients that hold blocks of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holders {
    /// Each client that wrote blocks or fetched them all, with the newest version it did so for:
    /// the clients to ask first.
    pub clients: BTreeMap<ClientId, Version>,
    /// Each client that has checked, durable *copies* of all blocks of this content, and has
    /// promised to keep them while the file has them, unless the server releases it.
    pub copies: BTreeMap<ClientId, Version>,
}
wire_struct!(Holders { clients, copies });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn tags_are_a_list_with_commas() {
        let mut rnode = Rnode::root(Time::default());
        assert_eq!(rnode.tags().count(), 0);
        let list = Bytes(b"un, project x,,draft ".to_vec());
        rnode.xattrs.insert(Bytes(TAGS_XATTR.to_vec()), list);
        let tags: Vec<&[u8]> = rnode.tags().collect();
        assert_eq!(tags, [&b"un"[..], b"project x", b"draft"]);
    }

    #[test]
    fn names_with_dots_or_slashes_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(Name::new(bad).is_err());
            let mut bytes = Vec::new();
            crate::wire::put_bytes(bad, &mut bytes);
            assert!(decode::<Name>(&bytes).is_err(), "{bad:?}");
        }
        let name = Name::new(b"...").expect("a name");
        assert_eq!(decode::<Name>(&encode(&name)), Ok(name));
    }
}
