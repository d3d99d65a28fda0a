//! A directory of a volume as a destination.
//!
//! An existing item of the same name is replaced, as `tar` does, except for directories, which are
//! merged. Symbolic links on the way are never followed. The times of directories are set at the
//! end, when nothing changes them any more.

use super::{Content, Item, ItemKind, RUN_BYTES, Sink, below, join, split_last};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use weft_vfs::path::Node;
use weft_vfs::{
    Caller, Error as FsError, FileKind, FileSystem, Handle, Ino, SetAttr, SetTime, XattrSet,
};

/// The owners of the items that are put into the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ownership {
    /// The source's user and group ids.
    #[default]
    Keep,
    /// Fixed ids, for everything.
    Fixed {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

/// The reason to refuse an item that would replace another one of the same transfer.
const SAME_NAME: &str = "another name of the source is the same on this volume";

/// Puts items into a volume, in process.
pub struct VolumeSink<'a> {
    fs: &'a dyn FileSystem,
    /// The directory that paths start at; `shown` is its path, for messages.
    top: Node<'a>,
    shown: Vec<u8>,
    /// The name of the top item in `top`; `None` if it is `top` itself.
    name: Option<Vec<u8>>,
    ownership: Ownership,
    /// Every directory seen, with a reference, by its path from `top`.
    directories: HashMap<Vec<u8>, Node<'a>>,
    last_parent: (Vec<u8>, Ino),
    deferred: Vec<(Ino, SetAttr)>,
    /// For each item but directories that was made, the hash of its path: on a volume where case
    /// does not count, another path may lead to it, and would replace it silently.
    made: HashMap<Ino, u64>,
    /// The items from earlier sources, which no path may replace.
    earlier: HashSet<Ino>,
    buffer: Vec<u8>,
    xattrs_left_out: u64,
    left_out: Vec<String>,
}

impl std::fmt::Debug for VolumeSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeSink").field("top", &self.top.ino()).finish_non_exhaustive()
    }
}

impl<'a> VolumeSink<'a> {
    /// Puts items under `top`, or under `name` in it. `shown` is the path of `top`, for messages.
    #[must_use]
    pub fn new(
        fs: &'a dyn FileSystem,
        top: Node<'a>,
        name: Option<&[u8]>,
        shown: &[u8],
        ownership: Ownership,
    ) -> Self {
        let ino = top.ino();
        Self {
            fs,
            top,
            shown: shown.to_vec(),
            name: name.map(<[u8]>::to_vec),
            ownership,
            directories: HashMap::new(),
            last_parent: (Vec::new(), ino),
            deferred: Vec::new(),
            made: HashMap::new(),
            earlier: HashSet::new(),
            buffer: vec![0; RUN_BYTES],
            xattrs_left_out: 0,
            left_out: Vec::new(),
        }
    }

    /// Takes over the record of the items that another sink has put into the same directory: none
    /// of them is replaced.
    pub fn go_on_from(&mut self, other: &mut Self) {
        self.earlier = std::mem::take(&mut other.earlier);
        self.earlier.extend(other.made.keys());
    }

    /// The number of extended attributes that the volume cannot store.
    #[must_use]
    pub fn xattrs_left_out(&self) -> u64 {
        self.xattrs_left_out
    }

    /// The items that the volume cannot store: links and device nodes, by their paths.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn leave_out(&mut self, full: &[u8], what: &str) {
        let shown = below(&self.shown, full);
        let shown = String::from_utf8_lossy(shown.strip_prefix(b"/").unwrap_or(&shown));
        self.left_out.push(format!("/{shown}: the volume has no {what}"));
    }

    /// Sets attributes; owners only if the volume stores them.
    fn set_attr(&self, ino: Ino, set: &SetAttr) -> weft_vfs::Result<()> {
        match self.fs.setattr(&Caller::ROOT, ino, set) {
            Err(FsError::NotPermitted) if set.uid.is_some() || set.gid.is_some() => {
                let set = SetAttr { uid: None, gid: None, ..*set };
                self.fs.setattr(&Caller::ROOT, ino, &set).map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Makes a copy in place of another name, for a volume without hard links.
    fn copy(&mut self, full: &[u8], parent: Ino, name: &[u8], first: &Node<'_>) -> Result<()> {
        let fs = self.fs;
        let caller = Caller::ROOT;
        let node = self.make(full, parent, name, || {
            fs.mknod(&caller, parent, name, FileKind::Regular, first.attr().perm, 0)
        })?;
        let attr = first.stat().map_err(|e| self.error("copy", full, e))?;
        let (from, to) = (first.ino(), node.ino());
        let copied = fs.copy_range(&Caller::ROOT, from, 0, to, 0, attr.size_bytes);
        let whole =
            copied.and_then(
                |copied| {
                    if copied < attr.size_bytes { Err(FsError::NoSpace) } else { Ok(()) }
                },
            );
        if let Err(e) = whole {
            let _ = fs.unlink(&Caller::ROOT, parent, name);
            return Err(self.error("copy", full, e));
        }
        let set = SetAttr { mtime: Some(SetTime::At(attr.mtime)), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, to, &set).map_err(|e| self.error("set the times of", full, e))?;
        Ok(())
    }

    fn full(&self, path: &[u8]) -> Vec<u8> {
        match &self.name {
            None => path.to_vec(),
            Some(name) if path.is_empty() => name.clone(),
            Some(name) => join(name, path),
        }
    }

    fn error(&self, action: &'static str, full: &[u8], e: FsError) -> Error {
        Error::file(action, &below(&self.shown, full), e)
    }

    /// Returns the directory at `full`, which is made, with its parents, if the stream did not name
    /// it.
    fn directory(&mut self, full: &[u8]) -> Result<Ino> {
        if full == self.last_parent.0 {
            return Ok(self.last_parent.1);
        }
        let ino = if full.is_empty() {
            self.top.ino()
        } else if let Some(node) = self.directories.get(full) {
            node.ino()
        } else {
            let (uid, gid) = match self.ownership {
                Ownership::Keep => (0, 0),
                Ownership::Fixed { uid, gid } => (uid, gid),
            };
            let caller = Caller { uid, gid, ..Caller::ROOT };
            self.make_directory(full, &caller, 0o755)?
        };
        self.last_parent.0.clear();
        self.last_parent.0.extend_from_slice(full);
        self.last_parent.1 = ino;
        Ok(ino)
    }

    fn make_directory(&mut self, full: &[u8], caller: &Caller, perm: u16) -> Result<Ino> {
        // Parents first, from the top down: a stream may name a file ten levels deep.
        let mut missing = Vec::new();
        let mut at = split_last(full).0;
        while !at.is_empty() && !self.directories.contains_key(at) {
            missing.push(at);
            at = split_last(at).0;
        }
        for path in missing.into_iter().rev() {
            self.make_one_directory(path, caller, 0o755)?;
        }
        self.make_one_directory(full, caller, perm)
    }

    fn make_one_directory(&mut self, full: &[u8], caller: &Caller, perm: u16) -> Result<Ino> {
        let fs = self.fs;
        let (above, name) = split_last(full);
        let parent = match self.directories.get(above) {
            Some(node) => node.ino(),
            None => self.top.ino(),
        };
        let entry = match fs.mkdir(caller, parent, name, perm) {
            Err(FsError::Exists) => fs.lookup(parent, name),
            other => other,
        };
        let entry = entry.map_err(|e| self.error("make directory", full, e))?;
        let node = Node::from_entry(fs, entry);
        let ino = node.ino();
        if !node.is_dir() {
            return Err(self.error("make directory", full, FsError::NotADirectory));
        }
        self.directories.insert(full.to_vec(), node);
        Ok(ino)
    }

    /// Makes an item that is not a directory, after removing an existing one of its name.
    fn make(
        &mut self,
        full: &[u8],
        parent: Ino,
        name: &[u8],
        make: impl Fn() -> weft_vfs::Result<weft_vfs::Entry>,
    ) -> Result<Node<'a>> {
        let path = BuildHasherDefault::<DefaultHasher>::default().hash_one(full);
        let entry = match make() {
            Err(FsError::Exists) => {
                let there = self.fs.lookup(parent, name);
                let there = there.map_err(|e| self.error("replace", full, e))?;
                let there = Node::from_entry(self.fs, there);
                // A stream may have a path twice, and the second counts.
                let made = self.made.get(&there.ino()).is_some_and(|made| *made != path);
                if made || self.earlier.contains(&there.ino()) {
                    return Err(self.error("make", full, FsError::Invalid(SAME_NAME)));
                }
                self.fs
                    .unlink(&Caller::ROOT, parent, name)
                    .map_err(|e| self.error("replace", full, e))?;
                drop(there);
                make()
            }
            other => other,
        };
        let node = Node::from_entry(self.fs, entry.map_err(|e| self.error("make", full, e))?);
        if node.attr().nlink == 1 {
            self.made.insert(node.ino(), path);
        } else {
            // It legitimately has several paths.
            self.made.remove(&node.ino());
        }
        Ok(node)
    }

    fn fill(&mut self, full: &[u8], ino: Ino, content: &mut dyn Content) -> Result<u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut end = 0;
        let result = loop {
            match content.next_run(&mut buffer) {
                Ok(None) => break Ok(end),
                Ok(Some((at, len))) => {
                    let run = buffer.get(..len).unwrap_or(&[]);
                    match self.fs.write(&Caller::ROOT, ino, Handle::NONE, at, run) {
                        Ok(taken) if taken == run.len() => end = at + taken as u64,
                        Ok(_) => break Err(self.error("write", full, FsError::NoSpace)),
                        Err(e) => break Err(self.error("write", full, e)),
                    }
                }
                Err(e) => break Err(e),
            }
        };
        self.buffer = buffer;
        result
    }

    fn set_xattrs(&mut self, full: &[u8], ino: Ino, item: &Item<'_>) -> Result<()> {
        for (name, value) in item.xattrs {
            match self.fs.setxattr(&Caller::ROOT, ino, name, value, XattrSet::Any) {
                Ok(()) => {}
                Err(FsError::Unsupported(_)) => self.xattrs_left_out += 1,
                Err(e) => return Err(self.error("set an attribute of", full, e)),
            }
        }
        Ok(())
    }
}

impl Sink for VolumeSink<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        let fs = self.fs;
        let full = self.full(item.path);
        let (above, name) = split_last(&full);
        let (uid, gid) = match self.ownership {
            Ownership::Keep => (item.uid, item.gid),
            Ownership::Fixed { uid, gid } => (uid, gid),
        };
        let caller = Caller { uid, gid, ..Caller::ROOT };
        let mut set = SetAttr {
            atime: item.atime.map(SetTime::At),
            mtime: Some(SetTime::At(item.mtime)),
            ..SetAttr::default()
        };

        if item.kind == ItemKind::Directory {
            let ino = if full.is_empty() {
                self.top.ino()
            } else if let Some(node) = self.directories.get(&full) {
                node.ino()
            } else {
                self.make_directory(&full, &caller, item.perm)?
            };
            // The directory may have existed before, or been made for its content.
            set.perm = Some(item.perm);
            (set.uid, set.gid) = (Some(uid), Some(gid));
            self.set_xattrs(&full, ino, item)?;
            self.deferred.push((ino, set));
            return Ok(());
        }
        if full.is_empty() {
            return Err(self.error("replace", &full, FsError::IsADirectory));
        }

        let parent = self.directory(above)?;
        let node = match item.kind {
            ItemKind::File { .. } => self.make(&full, parent, name, || {
                fs.mknod(&caller, parent, name, FileKind::Regular, item.perm, 0)
            })?,
            ItemKind::Symlink(_) | ItemKind::Special { .. } => {
                let made = self.make(&full, parent, name, || match item.kind {
                    ItemKind::Symlink(target) => fs.symlink(&caller, parent, name, target),
                    ItemKind::Special { kind, rdev } => {
                        fs.mknod(&caller, parent, name, kind, item.perm, rdev)
                    }
                    _ => Err(FsError::Invalid("neither a link nor a device")),
                });
                match made {
                    Err(Error::File {
                        source: FsError::NotPermitted | FsError::Unsupported(_),
                        ..
                    }) => {
                        let link = matches!(item.kind, ItemKind::Symlink(_));
                        self.leave_out(&full, if link { "symbolic links" } else { "device nodes" });
                        return Ok(());
                    }
                    other => other?,
                }
            }
            ItemKind::HardLink(first) => {
                let first = self.full(first);
                let (first_above, first_name) = split_last(&first);
                let first_parent = self.directory(first_above)?;
                let entry = fs
                    .lookup(first_parent, first_name)
                    .map_err(|e| self.error("link to", &first, e))?;
                let first = Node::from_entry(fs, entry);
                match self
                    .make(&full, parent, name, || fs.link(&Caller::ROOT, first.ino(), parent, name))
                {
                    Err(Error::File { source: FsError::NotPermitted, .. }) => {
                        self.copy(&full, parent, name, &first)?;
                    }
                    other => other.map(drop)?,
                }
                return Ok(());
            }
            ItemKind::Directory => return Ok(()),
        };
        let attr = *node.attr();
        if let ItemKind::File { len_bytes } = item.kind {
            let filled = self.fill(&full, attr.ino, content).and_then(|end| {
                // Some file systems store content only when the file is closed.
                let closed = fs.flush(attr.ino, Handle::NONE);
                closed.map(|()| end).map_err(|e| self.error("write", &full, e))
            });
            let end = match filled {
                Ok(end) => end,
                Err(e) => {
                    // Remove the incomplete file; the first error is the one to report.
                    let _ = fs.unlink(&Caller::ROOT, parent, name);
                    return Err(e);
                }
            };
            if end < len_bytes {
                set.size_bytes = Some(len_bytes);
            }
        }
        self.set_xattrs(&full, attr.ino, item)?;
        // Files in a setgid directory inherit its group, and a write clears setuid and setgid.
        if attr.gid != gid {
            set.gid = Some(gid);
        }
        if item.perm & 0o6000 != 0 {
            set.perm = Some(item.perm);
        }
        self.set_attr(attr.ino, &set).map_err(|e| self.error("set the times of", &full, e))?;
        drop(node);
        // On a Macintosh volume it may have become another file when it was closed.
        if name.starts_with(b"._")
            && let Ok(entry) = fs.lookup(parent, name)
        {
            let path = BuildHasherDefault::<DefaultHasher>::default().hash_one(&full);
            self.made.insert(Node::from_entry(fs, entry).ino(), path);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        for (ino, set) in std::mem::take(&mut self.deferred).into_iter().rev() {
            self.set_attr(ino, &set).map_err(|e| self.error("set the times below", &[], e))?;
        }
        Ok(())
    }
}
