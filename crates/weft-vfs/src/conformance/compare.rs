//! Comparison of two file systems after the same operations.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::limits::Limits;
use crate::{Attr, FileKind, FileSystem, Ino, Result, Walker};

/// The visible state of a file system, without times, space, inode numbers and features that not
/// every format has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Picture(BTreeMap<String, Seen>);

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    perm: u16,
    nlink: u32,
    owner: (u32, u32),
    size_bytes: u64,
    target: Option<Vec<u8>>,
    /// Hash of the content, if it was read.
    content: Option<u64>,
    xattrs: BTreeMap<Vec<u8>, u64>,
    /// The first path found for this inode: the same for all its names.
    same_as: String,
}

/// Reads the whole tree, and the content of all files if `content`.
pub(super) fn picture(fs: &dyn FileSystem, content: bool, limits: &Limits) -> Result<Picture> {
    let mut first_path: BTreeMap<Ino, String> = BTreeMap::new();
    let mut paths = BTreeMap::new();
    for found in Walker::new(fs).tree(b"/")? {
        let found = found?;
        // Made by mkfs, not by the test.
        if found.path.starts_with(b"lost+found") {
            continue;
        }
        paths.insert(found.path.escape_ascii().to_string(), found.node);
    }
    let mut all = BTreeMap::new();
    for (path, node) in &paths {
        let attr = node.stat()?;
        let root = path.is_empty();
        let same_as = first_path.entry(attr.ino).or_insert_with(|| path.clone()).clone();
        let mut seen = see(fs, &attr, content)?;
        seen.same_as = same_as;
        if root {
            // Its owner and mode are mkfs's choice; `lost+found` may count as a child.
            (seen.nlink, seen.perm, seen.owner) = (0, 0, (0, 0));
        }
        seen.perm = limits.shown(seen.kind, seen.perm);
        if !limits.owners_and_modes {
            (seen.perm, seen.owner) = (0, (0, 0));
        }
        if !limits.counts_subdirectories && seen.kind == FileKind::Directory {
            seen.nlink = 0;
        }
        all.insert(path.clone(), seen);
    }
    Ok(Picture(all))
}

fn see(fs: &dyn FileSystem, attr: &Attr, content: bool) -> Result<Seen> {
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(attr.ino).or_else(|e| match e {
        crate::Error::Unsupported(_) => Ok(Vec::new()),
        other => Err(other),
    })? {
        let value = fs.getxattr(attr.ino, &name)?;
        xattrs.insert(name, hash(&value));
    }
    let regular = attr.kind == FileKind::Regular;
    let symlink = attr.kind == FileKind::Symlink;
    Ok(Seen {
        kind: attr.kind,
        perm: attr.perm,
        nlink: attr.nlink,
        owner: (attr.uid, attr.gid),
        size_bytes: if regular || symlink { attr.size_bytes } else { 0 },
        target: if symlink { Some(fs.readlink(attr.ino)?) } else { None },
        content: if regular && content { Some(content_hash(fs, attr)?) } else { None },
        xattrs,
        same_as: String::new(),
    })
}

fn content_hash(fs: &dyn FileSystem, attr: &Attr) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        let got = fs.read(attr.ino, crate::Handle::NONE, at, &mut buf)?;
        buf[..got].hash(&mut hasher);
        at += got as u64;
        if got < buf.len() {
            at.hash(&mut hasher);
            return Ok(hasher.finish());
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Picture {
    /// Describes the first difference.
    pub(super) fn difference(&self, model: &Self) -> Option<String> {
        for (path, seen) in &self.0 {
            match model.0.get(path) {
                None => return Some(format!("/{path} should not exist")),
                Some(want) if want != seen => {
                    return Some(format!("/{path} is {seen:?}, the model has {want:?}"));
                }
                Some(_) => {}
            }
        }
        let missing = model.0.keys().find(|path| !self.0.contains_key(*path))?;
        Some(format!("/{missing} is missing"))
    }
}
