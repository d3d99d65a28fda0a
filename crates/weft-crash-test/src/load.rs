//! Reads all of a file system into a tree in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use weft_vfs::memfs::{Page, Snapshot, SnapshotAttr, SnapshotNode};
use weft_vfs::{
    Attr, DirCursor, Entry, Error, FileKind, FileSystem, Handle, Ino, Result, SeekFrom,
};

use crate::effects::PAGE_BYTES;

/// The bytes of a file that are read at a time.
const AT_ONCE: usize = 256 * PAGE_BYTES as usize;

/// Reads a tree. `number` is told each inode once, the root first, and returns its number in the tree;
/// it gets a reference to all but the root. More than `size_bytes` of content is
/// [`Error::NoSpace`]. Files that are as in the tree `like`, and pages, are shared with it, with their
/// hashes: half of the time of a search on a volume went into hashing what each state has.
///
/// # Errors
/// Those of the file system.
pub(crate) fn load_tree(
    fs: &dyn FileSystem,
    size_bytes: u64,
    like: &Snapshot,
    number: &mut dyn FnMut(Ino, bool) -> u64,
) -> Result<Snapshot> {
    let root = fs.root();
    let mut loader =
        Loader { fs, tree: Snapshot::new(), like, left: size_bytes, buf: vec![0; AT_ONCE] };
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
    like: &'a Snapshot,
    /// The bytes of content that may still be read.
    left: u64,
    /// Room for what is read at a time.
    buf: Vec<u8>,
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
        if attr.kind == FileKind::Regular {
            self.content(number, attr)?;
            self.share(number)?;
        }
        Ok(())
    }

    /// Replaces a file by that of the tree like this one, if it is the same.
    fn share(&mut self, number: u64) -> Result<()> {
        if let (Some(node), Some(like)) = (self.tree.node(number), self.like.node(number))
            && node.kind() == like.kind()
            && node.attr() == like.attr()
            && node.size_bytes() == like.size_bytes()
            && node.xattrs().eq(like.xattrs())
            && node.pages().map(of_page).eq(like.pages().map(of_page))
        {
            let like = Arc::clone(like);
            self.tree.insert(number, like)?;
        }
        Ok(())
    }

    fn content(&mut self, number: u64, attr: &Attr) -> Result<()> {
        let like = self.like.node(number).cloned();
        let mut at = 0;
        while at < attr.size_bytes {
            at = match self.fs.seek(attr.ino, SeekFrom::Data(at)) {
                Ok(at) => at / PAGE_BYTES * PAGE_BYTES,
                Err(Error::NoAddress) => break,
                Err(_) => at,
            };
            let len = self.fs.read(attr.ino, Handle::NONE, at, &mut self.buf)?;
            if len == 0 {
                break;
            }
            for (nr, page) in (at / PAGE_BYTES..).zip(self.buf[..len].chunks(PAGE_BYTES as usize)) {
                let like = like.as_ref().and_then(|like| like.page(nr));
                let same = like.filter(|like| holds(like, page));
                if same.is_none() && page.iter().all(|byte| *byte == 0) {
                    continue;
                }
                self.left = self.left.checked_sub(PAGE_BYTES).ok_or(Error::NoSpace)?;
                match same {
                    Some(same) => self.tree.set_page(number, nr, Some(Arc::clone(same)))?,
                    None => self.tree.write(number, nr * PAGE_BYTES, page)?,
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

/// A page with its number, to compare by its place in memory.
fn of_page((nr, page): (u64, &Arc<Page>)) -> (u64, *const Page) {
    (nr, Arc::as_ptr(page))
}

/// Returns true if a page has these bytes, and zeroes behind them.
fn holds(page: &Page, bytes: &[u8]) -> bool {
    let (same, rest) = page.bytes().split_at(bytes.len());
    same == bytes && rest.iter().all(|byte| *byte == 0)
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
