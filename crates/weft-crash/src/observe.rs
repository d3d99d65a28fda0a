//! Reads back the content of a mounted volume, in the terms of the [`model`](crate::model).

use crate::model::{Body, Name, NodeId, OWNER_BASE, PERM};
use crate::target::Tree;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_vfs::{Attr, DirCursor, FileKind, FileSystem, Handle, Ino};

/// Limits of a walk, so that it ends on a damaged volume. Workloads stay far below.
const NODES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 64;
const FILE_MAX_BYTES: u64 = 64 << 20;

/// A node as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its kind and content. [`Body::Opaque`] for kinds that a workload cannot create.
    pub body: Body,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
    /// Permission bits.
    pub perm: u16,
    /// Its link count.
    pub nlink: u32,
}

/// The way in which nodes are identified, independent of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identities {
    /// By the owner that a workload gave them.
    Owners,
    /// By their inode numbers, which are kept here. Modes and extended attributes are then the file
    /// system's own, and are not compared.
    Numbers(BTreeMap<u64, NodeId>),
}

impl Identities {
    /// Returns the way for such trees, before there are any nodes but the root.
    #[must_use]
    pub fn of(tree: Tree) -> Self {
        match tree {
            Tree::Unix => Self::Owners,
            Tree::Macintosh => Self::Numbers(BTreeMap::new()),
        }
    }

    /// Notes the identity of a node that was created.
    pub(crate) fn note(&mut self, ino: Ino, id: NodeId) {
        if let Self::Numbers(ids) = self {
            ids.insert(ino.0, id);
        }
    }

    fn of_node(&self, attr: &Attr) -> NodeId {
        let known = match self {
            Self::Owners => attr
                .uid
                .checked_sub(OWNER_BASE)
                .filter(|number| *number < NodeId::FOREIGN)
                .map(NodeId),
            Self::Numbers(ids) => ids.get(&attr.ino.0).copied(),
        };
        known.unwrap_or(NodeId(NodeId::FOREIGN + (attr.ino.0 as u32 & (NodeId::FOREIGN - 1))))
    }
}

/// The tree that can be reached from the root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// The nodes that were found, by identity.
    pub nodes: BTreeMap<NodeId, Seen>,
    /// The objects that could not be read, one line each.
    pub unreadable: Vec<String>,
}

impl Observed {
    /// Returns the names of a directory that was found.
    #[must_use]
    pub fn names(&self, dir: NodeId) -> Option<&BTreeMap<Name, NodeId>> {
        match &self.nodes.get(&dir)?.body {
            Body::Dir(names) => Some(names),
            _ => None,
        }
    }
}

/// Reads the whole tree: names, attributes, content, link targets, extended attributes.
///
/// # Errors
/// If the root cannot be read. Other read errors are listed in the result.
pub fn observe(fs: &dyn FileSystem, ids: &Identities) -> Result<Observed> {
    let mut walk = Walk { fs, ids, seen: Observed::default() };
    let root = fs.getattr(fs.root()).map_err(Error::fs("reading the root"))?;
    walk.node(NodeId::ROOT, &root, "", 0);
    Ok(walk.seen)
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
    ids: &'a Identities,
    seen: Observed,
}

impl Walk<'_> {
    fn trouble(&mut self, path: &str, what: impl std::fmt::Display) {
        self.seen.unreadable.push(format!("/{path}: {what}"));
    }

    fn node(&mut self, id: NodeId, attr: &Attr, path: &str, depth: usize) {
        if self.seen.nodes.contains_key(&id) {
            return;
        }
        if self.seen.nodes.len() >= NODES_MAX || depth > DEPTH_MAX {
            return self.trouble(path, "too many or too deep for what was made");
        }
        // Entered before its children: a cycle of directories ends here.
        let perm = if *self.ids == Identities::Owners { attr.perm } else { PERM };
        let seen = Seen { body: Body::Opaque, xattrs: BTreeMap::new(), perm, nlink: attr.nlink };
        self.seen.nodes.insert(id, seen);
        let body = match attr.kind {
            FileKind::Regular => self.file(attr, path),
            FileKind::Directory => self.dir(attr.ino, path, depth),
            FileKind::Symlink => match self.fs.readlink(attr.ino) {
                Ok(target) => Body::Symlink(target),
                Err(e) => {
                    self.trouble(path, e);
                    Body::Opaque
                }
            },
            FileKind::Fifo => Body::Fifo,
            _ => Body::Opaque,
        };
        let xattrs = self.xattrs(attr.ino, path);
        if let Some(seen) = self.seen.nodes.get_mut(&id) {
            seen.body = body;
            seen.xattrs = xattrs;
        }
    }

    fn file(&mut self, attr: &Attr, path: &str) -> Body {
        if attr.size_bytes > FILE_MAX_BYTES {
            self.trouble(path, format!("a size of {} bytes", attr.size_bytes));
            return Body::Opaque;
        }
        let mut content = vec![0; attr.size_bytes as usize];
        let mut done = 0;
        while done < content.len() {
            match self.fs.read(attr.ino, Handle::NONE, done as u64, &mut content[done..]) {
                Ok(0) => {
                    self.trouble(path, format!("reading ends at {done} of {}", content.len()));
                    content.truncate(done);
                }
                Ok(n) => done += n,
                Err(e) => {
                    self.trouble(path, format!("reading at {done}: {e}"));
                    content.truncate(done);
                }
            }
        }
        Body::File(Arc::new(content))
    }

    fn dir(&mut self, ino: Ino, path: &str, depth: usize) -> Body {
        let mut found: Vec<(Name, Attr)> = Vec::new();
        let mut references = Vec::new();
        let mut cursor = DirCursor::START;
        loop {
            let before = cursor;
            let listed = self.fs.readdir_plus(ino, cursor, &mut |dirent, entry| {
                cursor = dirent.next;
                if dirent.name != b"." && dirent.name != b".." {
                    found.push((dirent.name.to_vec(), entry.attr));
                    references.push(entry.attr.ino);
                }
                found.len() < NODES_MAX
            });
            if let Err(e) = listed {
                self.trouble(path, format!("reading the directory: {e}"));
                break;
            }
            if cursor == before || found.len() >= NODES_MAX {
                break;
            }
        }
        let mut names = BTreeMap::new();
        for (name, attr) in found {
            let id = self.ids.of_node(&attr);
            let text = String::from_utf8_lossy(&name);
            let child = if path.is_empty() { text.into_owned() } else { format!("{path}/{text}") };
            if names.insert(name, id).is_some() {
                self.trouble(&child, "the name is there twice");
            }
            self.node(id, &attr, &child, depth + 1);
        }
        for ino in references {
            self.fs.forget(ino, 1);
        }
        Body::Dir(names)
    }

    fn xattrs(&mut self, ino: Ino, path: &str) -> BTreeMap<Name, Vec<u8>> {
        if *self.ids != Identities::Owners {
            return BTreeMap::new();
        }
        let names = match self.fs.listxattr(ino) {
            Ok(names) => names,
            Err(weft_vfs::Error::Unsupported(_)) => Vec::new(),
            Err(e) => {
                self.trouble(path, format!("listing attributes: {e}"));
                Vec::new()
            }
        };
        let mut values = BTreeMap::new();
        for name in names {
            match self.fs.getxattr(ino, &name) {
                Ok(value) => {
                    values.insert(name, value);
                }
                Err(e) => self.trouble(path, format!("an attribute: {e}")),
            }
        }
        values
    }
}
