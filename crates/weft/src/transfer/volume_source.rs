//! A tree in a volume as a source.

use super::{Content, Item, ItemKind, NoContent, Sink, acls, below, end};
use crate::{Error, Result};
use rustix::io::Errno;
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
        let sent = self.send_all(top, sink);
        end(sent, sink)
    }

    fn send_all(&mut self, top: Node<'a>, sink: &mut dyn Sink) -> Result<()> {
        let mut tree = Tree::new(top);
        while let Some(found) = tree.next() {
            match found {
                Ok(found) => self.send_one(&found.path, found.node.attr(), sink)?,
                Err(e) => {
                    let e = self.error("read", tree.failed_at(), e);
                    (self.damaged)(e)?;
                }
            }
        }
        Ok(())
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
        let (perm, xattrs) = match &earlier {
            Some(_) => (attr.perm, Vec::new()),
            None => self.attributes(path, attr)?,
        };
        let item = Item {
            path,
            kind,
            perm,
            uid: attr.uid,
            gid: attr.gid,
            atime: Some(attr.atime),
            mtime: attr.mtime,
            xattrs: &xattrs,
        };
        let ItemKind::File { len_bytes } = item.kind else {
            return sink.put(&item, &mut NoContent);
        };
        let shown = self.shown_path(path);
        let mut content = VolumeContent {
            fs,
            ino: attr.ino,
            shown,
            at: 0,
            len_bytes,
            damaged: &mut self.damaged,
            skip_bytes: 0,
            head: Vec::new(),
        };
        let sent = content.begin().and_then(|()| sink.put(&item, &mut content));
        match sent {
            // Nothing of it is left: the walk continues with the next item.
            Err(e) if is_about_content(&e) => {
                self.named.remove(&attr.ino);
                (self.damaged)(e)
            }
            other => other,
        }
    }

    /// Returns the mode and the attributes of an item, as they are sent.
    fn attributes(&mut self, path: &[u8], attr: &Attr) -> Result<(u16, super::Xattrs)> {
        match self.xattrs(path, attr.ino) {
            Ok(xattrs) if self.with_xattrs => Ok((attr.perm, xattrs)),
            Ok(mut xattrs) => Ok((acls::drop_lists(attr.perm, &mut xattrs), Vec::new())),
            Err(e) => {
                if self.with_xattrs {
                    (self.damaged)(e)?;
                }
                // The group bits may be the mask of a list that cannot be read.
                Ok((attr.perm & !0o070, Vec::new()))
            }
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

/// The most bytes that are read before the destination takes the item.
const HEAD_BYTES: usize = 128 << 10;
/// The places of a file that are tried before it is called unreadable, beside its first bytes.
const PROBES: u64 = 64;

/// Returns true if an error concerns the content of one file: its length is damaged, none of it can
/// be read, or it is too long for the destination.
fn is_about_content(e: &Error) -> bool {
    match e {
        Error::File { action, source, .. } => {
            *action == UNREADABLE || matches!(source, weft_vfs::Error::TooLarge)
        }
        Error::Host { source, .. } => source.raw_os_error() == Some(Errno::FBIG.raw_os_error()),
        _ => false,
    }
}

/// The action of the errors for files of which nothing can be read.
const UNREADABLE: &str = "read anything of";

struct VolumeContent<'a, 'd> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    shown: Vec<u8>,
    at: u64,
    len_bytes: u64,
    damaged: &'a mut Damaged<'d>,
    /// The bytes skipped last; 0 if the last piece could be read.
    skip_bytes: u64,
    /// The first bytes of data, read before the destination takes the item.
    head: Vec<u8>,
}

impl VolumeContent<'_, '_> {
    /// Reads the first data, and refuses a file of which nothing can be read: its length is more than
    /// the volume could hold, or each place that is tried fails. It would come out as zeroes, as many
    /// as its length says.
    fn begin(&mut self) -> Result<()> {
        let bad = |e| Error::file(UNREADABLE, &self.shown, e);
        let mut byte = [0];
        let mut read_at = |at: u64| self.fs.read(self.ino, Handle::NONE, at, &mut byte);
        let space = self.fs.statfs().map_err(bad)?;
        let volume_bytes = space.blocks.saturating_mul(space.block_bytes.into());
        if volume_bytes > 0 && self.len_bytes > volume_bytes {
            let (mut at, mut data_bytes) = (0, 0_u64);
            while let Some(extent) = self.next_data(at).map_err(bad)? {
                data_bytes = data_bytes.saturating_add(extent.end - extent.start);
                at = extent.end;
            }
            if data_bytes > volume_bytes {
                read_at(0).map_err(bad)?;
                let what = format!(
                    "its length, {} bytes, is more than the volume has, and it has no holes",
                    self.len_bytes
                );
                return Err(bad(weft_vfs::Error::Corrupt(what.into())));
            }
        }
        let Ok(Some(first)) = self.next_data(0) else { return Ok(()) };
        let len = usize::try_from(first.end - first.start).unwrap_or(usize::MAX);
        let mut head = vec![0; len.min(HEAD_BYTES)];
        if let Ok(got) = self.fs.read(self.ino, Handle::NONE, first.start, &mut head) {
            head.truncate(got);
            (self.head, self.at) = (head, first.start);
            return Ok(());
        }
        let Err(e) = read_at(first.start) else { return Ok(()) };
        // From the first bytes on in growing steps, and all over the file.
        let steps = (9..u64::BITS).map(|bit| first.start.saturating_add(1 << bit));
        let spread = (1..PROBES).map(|part| self.len_bytes / PROBES * part);
        for at in steps.take_while(|at| *at < self.len_bytes).chain(spread) {
            if let Ok(Some(extent)) = self.next_data(at)
                && read_at(extent.start).is_ok()
            {
                return Ok(());
            }
        }
        Err(bad(e))
    }

    /// Returns the next extent of data at or behind `at`.
    fn data_from(&self, at: u64) -> Result<Option<Range<u64>>> {
        self.next_data(at).map_err(|e| Error::file("read", &self.shown, e))
    }

    fn next_data(&self, at: u64) -> weft_vfs::Result<Option<Range<u64>>> {
        if at >= self.len_bytes {
            return Ok(None);
        }
        let start = match self.fs.seek(self.ino, SeekFrom::Data(at)) {
            Ok(start) => start.max(at),
            Err(weft_vfs::Error::NoAddress) => return Ok(None),
            Err(e) => return Err(e),
        };
        let hole = self.fs.seek(self.ino, SeekFrom::Hole(start))?;
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
        if !self.head.is_empty() {
            let (start, got) = (self.at, self.head.len().min(buf.len()));
            buf[..got].copy_from_slice(&self.head[..got]);
            self.head.drain(..got);
            self.at += got as u64;
            return Ok(Some((start, got)));
        }
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
