//! Reads all of a file system into a tree in memory.

use std::collections::{HashMap, VecDeque};

use weft_vfs::memfs::{Snapshot, SnapshotAttr, SnapshotNode};
use weft_vfs::{
    Attr, DirCursor, Entry, Error, FileKind, FileSystem, Handle, Ino, Result, SeekFrom,
};

use crate::effects::PAGE_BYTES;

/// Reads a tree. `number` is told each inode once, the root first, and returns its number in the tree;
/// it gets a reference to all but the root. More than `size_bytes` of content is
/// [`Error::NoSpace`].
///
/// # Errors
/// Those of the file system.
pub(crate) fn load_tree(
    fs: &dyn FileSystem,
    size_bytes: u64,
    number: &mut dyn FnMut(Ino, bool) -> u64,
) -> Result<Snapshot> {
    let root = fs.root();
    let mut loader = Loader { fs, tree: Snapshot::new(), left: size_bytes };
    number(root, true);
    loader.tree.set_attr(Snapshot::ROOT, &attr_of(&fs.getattr(root)?))?;
    loader.xattrs(Snapshot::ROOT, root)?;
    let mut known = HashMap::from([(root, Snapshot::ROOT)]);
    let mut directories = VecDeque::from([(Snapshot::ROOT, root)]);
    while let Some((dir, dir_ino)) = directories.pop_front() {
        for (name, entry) in list(fs, dir_ino)? {
            let ino = entry.attr.ino;
            if let Some(number) = known.get(&ino) {
                loader.tree.set_entry(dir, &name, *number)?;
                fs.forget(ino, 1);
                continue;
            }
            let number = number(ino, false);
            known.insert(ino, number);
            loader.node(number, &entry.attr)?;
            loader.tree.set_entry(dir, &name, number)?;
            if entry.attr.kind == FileKind::Directory {
                directories.push_back((number, ino));
            }
        }
    }
    Ok(loader.tree.mended())
}

struct Loader<'a> {
    fs: &'a dyn FileSystem,
    tree: Snapshot,
    /// The bytes of content that may still be read.
    left: u64,
}

impl Loader<'_> {
    fn node(&mut self, number: u64, attr: &Attr) -> Result<()> {
        let node = match attr.kind {
            FileKind::Symlink => {
                SnapshotNode::symlink(&self.fs.readlink(attr.ino)?, &attr_of(attr))
            }
            kind => SnapshotNode::new(kind, &attr_of(attr)),
        };
        self.tree.insert(number, node)?;
        self.xattrs(number, attr.ino)?;
        if attr.kind == FileKind::Regular { self.content(number, attr) } else { Ok(()) }
    }

    fn content(&mut self, number: u64, attr: &Attr) -> Result<()> {
        const AT_ONCE: u64 = 256 * PAGE_BYTES;
        let mut buf = vec![0; attr.size_bytes.min(AT_ONCE) as usize];
        let mut at = 0;
        while at < attr.size_bytes {
            at = match self.fs.seek(attr.ino, SeekFrom::Data(at)) {
                Ok(at) => at / PAGE_BYTES * PAGE_BYTES,
                Err(Error::NoAddress) => break,
                Err(_) => at,
            };
            let len = self.fs.read(attr.ino, Handle::NONE, at, &mut buf)?;
            if len == 0 {
                break;
            }
            for (nr, page) in (at / PAGE_BYTES..).zip(buf[..len].chunks(PAGE_BYTES as usize)) {
                if page.iter().any(|byte| *byte != 0) {
                    self.left = self.left.checked_sub(PAGE_BYTES).ok_or(Error::NoSpace)?;
                    self.tree.write(number, nr * PAGE_BYTES, page)?;
                }
            }
            at += len as u64;
        }
        self.tree.set_size(number, attr.size_bytes)
    }

    fn xattrs(&mut self, number: u64, ino: Ino) -> Result<()> {
        let names = match self.fs.listxattr(ino) {
            Ok(names) => names,
            Err(Error::Unsupported(_)) => return Ok(()),
            Err(e) => return Err(e),
        };
        for name in names {
            // Those that this user may not read are not this user's to lose either.
            if let Ok(value) = self.fs.getxattr(ino, &name) {
                self.tree.set_xattr(number, &name, &value)?;
            }
        }
        Ok(())
    }
}

fn attr_of(attr: &Attr) -> SnapshotAttr {
    let &Attr { perm, uid, gid, rdev, atime, mtime, ctime, btime, .. } = attr;
    SnapshotAttr { perm, uid, gid, rdev, atime, mtime, ctime, btime: btime.unwrap_or(ctime) }
}

/// The names of a directory, each with a reference to its inode.
fn list(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<(Vec<u8>, Entry)>> {
    let mut names = Vec::new();
    let mut cursor = DirCursor::START;
    loop {
        let before = names.len();
        fs.readdir(dir, cursor, &mut |entry| {
            cursor = entry.next;
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        if names.len() == before {
            break;
        }
    }
    names.into_iter().map(|name| Ok((name.clone(), fs.lookup(dir, &name)?))).collect()
}
