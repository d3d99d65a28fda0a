//! A tree in a volume as a source.

use super::{Content, Item, ItemKind, NoContent, Sink, below};
use crate::{Error, Result};
use std::collections::HashMap;
use weft_vfs::path::{Node, Tree};
use weft_vfs::{Attr, FileKind, FileSystem, Handle, Ino, SeekFrom};

/// Walks a file or directory of a volume.
pub struct VolumeSource<'a> {
    fs: &'a dyn FileSystem,
    shown: Vec<u8>,
    with_xattrs: bool,
    named: HashMap<Ino, Vec<u8>>,
}

impl std::fmt::Debug for VolumeSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeSource").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl<'a> VolumeSource<'a> {
    /// Walks a tree of `fs`; `shown` is the path of its top, for messages.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, shown: &[u8]) -> Self {
        Self { fs, shown: shown.to_vec(), with_xattrs: true, named: HashMap::new() }
    }

    /// Whether extended attributes are carried (they are, unless this says no).
    #[must_use]
    pub fn with_xattrs(mut self, yes: bool) -> Self {
        self.with_xattrs = yes;
        self
    }

    /// Hands everything from `top` down to `sink`, and finishes it.
    ///
    /// # Errors
    /// Those of the volume and of the sink.
    pub fn send(mut self, top: Node<'a>, sink: &mut dyn Sink) -> Result<()> {
        let mut last = Vec::new();
        for found in Tree::new(top) {
            let found = found.map_err(|e| self.error("walk past", &last, e))?;
            self.send_one(&found.path, found.node.attr(), sink)?;
            last = found.path;
        }
        sink.finish()
    }

    fn error(&self, action: &'static str, path: &[u8], e: weft_vfs::Error) -> Error {
        Error::file(action, &self.shown_path(path), e)
    }

    fn shown_path(&self, path: &[u8]) -> Vec<u8> {
        below(&self.shown, path)
    }

    fn send_one(&mut self, path: &[u8], attr: &Attr, sink: &mut dyn Sink) -> Result<()> {
        let fs = self.fs;
        let earlier = match attr.kind {
            FileKind::Directory => None,
            _ if attr.nlink > 1 => self.named.get(&attr.ino).cloned(),
            _ => None,
        };
        if earlier.is_none() && attr.nlink > 1 && attr.kind != FileKind::Directory {
            self.named.insert(attr.ino, path.to_vec());
        }
        let target;
        let kind = match (&earlier, attr.kind) {
            (Some(first), _) => ItemKind::HardLink(first),
            (None, FileKind::Regular) => ItemKind::File { len_bytes: attr.size_bytes },
            (None, FileKind::Directory) => ItemKind::Directory,
            (None, FileKind::Symlink) => {
                target = fs.readlink(attr.ino).map_err(|e| self.error("read", path, e))?;
                ItemKind::Symlink(&target)
            }
            (None, kind) => ItemKind::Special { kind, rdev: attr.rdev },
        };
        let xattrs = if self.with_xattrs && earlier.is_none() {
            self.xattrs(path, attr.ino)?
        } else {
            Vec::new()
        };
        let item = Item {
            path,
            kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            atime: Some(attr.atime),
            mtime: attr.mtime,
            xattrs: &xattrs,
        };
        if let ItemKind::File { len_bytes } = item.kind {
            let shown = self.shown_path(path);
            sink.put(&item, &mut VolumeContent { fs, ino: attr.ino, shown, at: 0, len_bytes })
        } else {
            sink.put(&item, &mut NoContent)
        }
    }

    fn xattrs(&self, path: &[u8], ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = match self.fs.listxattr(ino) {
            Ok(names) => names,
            Err(weft_vfs::Error::Unsupported(_)) => return Ok(Vec::new()),
            Err(e) => return Err(self.error("list the attributes of", path, e)),
        };
        names
            .into_iter()
            .map(|name| match self.fs.getxattr(ino, &name) {
                Ok(value) => Ok((name, value)),
                Err(e) => Err(self.error("read an attribute of", path, e)),
            })
            .collect()
    }
}

struct VolumeContent<'a> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    shown: Vec<u8>,
    at: u64,
    len_bytes: u64,
}

impl Content for VolumeContent<'_> {
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>> {
        let failed = |e| Error::file("read", &self.shown, e);
        if self.at >= self.len_bytes {
            return Ok(None);
        }
        let start = match self.fs.seek(self.ino, SeekFrom::Data(self.at)) {
            Ok(start) => start.max(self.at),
            Err(weft_vfs::Error::NoAddress) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let hole = self.fs.seek(self.ino, SeekFrom::Hole(start)).map_err(failed)?;
        let end = hole.min(self.len_bytes);
        if end <= start {
            return Ok(None);
        }
        let want = usize::try_from(end - start).unwrap_or(usize::MAX).min(buf.len());
        let got = self.fs.read(self.ino, Handle::NONE, start, &mut buf[..want]).map_err(failed)?;
        self.at = start + got as u64;
        Ok(if got == 0 { None } else { Some((start, got)) })
    }
}
