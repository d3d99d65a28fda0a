//! A tree in a volume as a source.

use super::{Content, Item, ItemKind, NoContent, Sink, below};
use crate::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use weft_vfs::path::{Node, Tree};
use weft_vfs::{Attr, FileKind, FileSystem, Handle, Ino, SeekFrom};

/// Walks a file or directory of a volume.
pub struct VolumeSource<'a> {
    fs: &'a dyn FileSystem,
    shown: Vec<u8>,
    with_xattrs: bool,
    named: HashMap<Ino, Vec<u8>>,
    damaged: Damaged<'a>,
}

/// Receives each error for an unreadable item; the walk continues if it returns `Ok`.
type Damaged<'a> = Box<dyn FnMut(Error) -> Result<()> + 'a>;

impl std::fmt::Debug for VolumeSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeSource").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl<'a> VolumeSource<'a> {
    /// Walks a tree of `fs`; `shown` is the path of its top, for messages.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, shown: &[u8]) -> Self {
        Self {
            fs,
            shown: shown.to_vec(),
            with_xattrs: true,
            named: HashMap::new(),
            damaged: Box::new(Err),
        }
    }

    /// Passes each error for an unreadable item to `damaged`, and continues the walk if that
    /// returns `Ok`: directories are left out, and the unreadable parts of files are holes. Without
    /// it the first error ends the walk.
    #[must_use]
    pub fn past_damage(mut self, damaged: impl FnMut(Error) -> Result<()> + 'a) -> Self {
        self.damaged = Box::new(damaged);
        self
    }

    /// Sets whether extended attributes are transferred (by default they are).
    #[must_use]
    pub fn with_xattrs(mut self, yes: bool) -> Self {
        self.with_xattrs = yes;
        self
    }

    /// Sends all items from `top` down to `sink`, and finishes it.
    ///
    /// # Errors
    /// Those of the volume and of the sink.
    pub fn send(mut self, top: Node<'a>, sink: &mut dyn Sink) -> Result<()> {
        let mut last = Vec::new();
        for found in Tree::new(top) {
            let found = match found {
                Ok(found) => found,
                Err(e) => {
                    let e = self.error("walk past", &last, e);
                    (self.damaged)(e)?;
                    continue;
                }
            };
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
            match self.xattrs(path, attr.ino) {
                Ok(xattrs) => xattrs,
                Err(e) => {
                    (self.damaged)(e)?;
                    Vec::new()
                }
            }
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
            let mut content = VolumeContent {
                fs,
                ino: attr.ino,
                shown,
                at: 0,
                len_bytes,
                damaged: &mut self.damaged,
                skip_bytes: 0,
            };
            sink.put(&item, &mut content)
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

/// The first size in bytes of the pieces in which unreadable data is skipped.
const SKIP_BYTES: u64 = 512;
/// The largest size of these pieces, which grow while the damage continues.
const SKIP_MAX_BYTES: u64 = 1 << 20;

struct VolumeContent<'a, 'd> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    shown: Vec<u8>,
    at: u64,
    len_bytes: u64,
    damaged: &'a mut Damaged<'d>,
    /// The bytes skipped last; 0 if the last piece could be read.
    skip_bytes: u64,
}

impl VolumeContent<'_, '_> {
    /// Returns the next extent of data at or behind `at`.
    fn data_from(&self, at: u64) -> Result<Option<Range<u64>>> {
        let failed = |e| Error::file("read", &self.shown, e);
        if at >= self.len_bytes {
            return Ok(None);
        }
        let start = match self.fs.seek(self.ino, SeekFrom::Data(at)) {
            Ok(start) => start.max(at),
            Err(weft_vfs::Error::NoAddress) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let hole = self.fs.seek(self.ino, SeekFrom::Hole(start)).map_err(failed)?;
        let end = hole.min(self.len_bytes);
        Ok((start < end).then_some(start..end))
    }

    /// Reads from `start` on: less if the data behind it is unreadable, `None` if none can be read
    /// and the piece is to be skipped.
    fn read(&mut self, start: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        let mut want = buf.len();
        loop {
            let piece = buf.get_mut(..want).unwrap_or_default();
            match self.fs.read(self.ino, Handle::NONE, start, piece) {
                Ok(got) => {
                    self.skip_bytes = 0;
                    return Ok(Some(got));
                }
                // The length is halved down to one byte: the read ends right in front of the
                // damage.
                Err(_) if want > 1 && self.skip_bytes == 0 => want /= 2,
                Err(e) => {
                    if self.skip_bytes == 0 {
                        (self.damaged)(Error::file("read", &self.shown, e))?;
                    }
                    self.skip_bytes = (self.skip_bytes * 2).clamp(SKIP_BYTES, SKIP_MAX_BYTES);
                    return Ok(None);
                }
            }
        }
    }
}

impl Content for VolumeContent<'_, '_> {
    fn extents(&mut self) -> Result<Option<Vec<Range<u64>>>> {
        let mut extents = Vec::new();
        let mut at = self.at;
        while let Some(extent) = self.data_from(at)? {
            at = extent.end;
            extents.push(extent);
        }
        Ok(Some(extents))
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>> {
        while let Some(Range { start, end }) = self.data_from(self.at)? {
            let want = usize::try_from(end - start).unwrap_or(usize::MAX).min(buf.len());
            match self.read(start, buf.get_mut(..want).unwrap_or_default())? {
                Some(0) => return Ok(None),
                Some(got) => {
                    self.at = start + got as u64;
                    return Ok(Some((start, got)));
                }
                None => self.at = start + self.skip_bytes.min(end - start),
            }
        }
        Ok(None)
    }
}
