//! A file or directory of the host as a source.

use super::mac_names::{double_elsewhere, is_elsewhere};
use super::{Content, Item, ItemKind, NoContent, Sink, acls, basilisk, end, join};
use crate::{Error, Result};
use rustix::fs::{Dev, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use weft_vfs::{FileKind, Time};

/// Walks a file or directory of the host, names in order, symbolic links not followed.
#[derive(Debug)]
pub struct HostSource {
    top: PathBuf,
    with_xattrs: bool,
    latest: Option<Time>,
    spared: Option<(Dev, u64)>,
    joins_doubles: bool,
    named: HashMap<(Dev, u64), Vec<u8>>,
}

struct Level {
    dir: PathBuf,
    path: Vec<u8>,
    rest: std::vec::IntoIter<OsString>,
}

impl HostSource {
    /// Walks from `top` down.
    #[must_use]
    pub fn new(top: impl Into<PathBuf>) -> Self {
        let top = top.into();
        Self {
            top,
            with_xattrs: true,
            latest: None,
            spared: None,
            joins_doubles: false,
            named: HashMap::new(),
        }
    }

    /// Sets whether AppleDoubles in the places where other programs put them (`NAME.rsrc`,
    /// `__MACOSX/._NAME`) are sent as `._NAME`: for a volume that joins these with their files.
    #[must_use]
    pub fn joining_doubles(mut self, yes: bool) -> Self {
        self.joins_doubles = yes;
        self
    }

    /// Returns the AppleDouble of a file of the host that is in one of these places.
    #[must_use]
    pub fn double_elsewhere(host: &Path) -> Option<PathBuf> {
        double_elsewhere(host, host.parent()?)
    }

    /// Returns the first directory from `top` down that has the companions of Basilisk II, which
    /// are sent as plain files here.
    #[must_use]
    pub fn find_basilisk(top: &Path) -> Option<PathBuf> {
        if basilisk::is_layout(top) {
            return Some(top.to_owned());
        }
        for entry in std::fs::read_dir(top).ok()?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Some(found) = Self::find_basilisk(&entry.path())
            {
                return Some(found);
            }
        }
        None
    }

    /// Sets whether extended attributes are transferred (by default they are).
    #[must_use]
    pub fn with_xattrs(mut self, yes: bool) -> Self {
        self.with_xattrs = yes;
        self
    }

    /// Clamps times of change to at most `latest`, as for reproducible builds.
    #[must_use]
    pub fn no_later_than(mut self, latest: Option<Time>) -> Self {
        self.latest = latest;
        self
    }

    /// Excludes the file `volume` that the items are written to: a volume has no room for itself,
    /// and a copy of it would change while it is made.
    ///
    /// # Errors
    /// [`Error::Usage`] if that file is the top: there is nothing else to send.
    pub fn sparing(mut self, volume: Option<&Path>) -> Result<Self> {
        let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        self.spared = volume.and_then(id);
        if self.spared.is_some() && self.spared == id(&self.top) {
            return Err(Error::Usage(format!(
                "{} is the volume itself; it cannot be copied into itself",
                self.top.display()
            )));
        }
        Ok(self)
    }

    /// Sends all items to `sink`, and finishes it. Errors of the host are given to
    /// [`Sink::unreadable`], which may go on without the item.
    ///
    /// # Errors
    /// Those of the host and of the sink.
    pub fn send(mut self, sink: &mut dyn Sink) -> Result<()> {
        let sent = self.send_all(sink);
        end(sent, sink)
    }

    fn send_all(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let top = self.top.clone();
        let mut levels = Vec::new();
        if self.send_or_pass(&top, &[], sink)? {
            levels.extend(self.open_or_pass(top, Vec::new(), sink)?);
        }
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.rest.next() else {
                levels.pop();
                continue;
            };
            let host = level.dir.join(&name);
            if self.joins_doubles && is_elsewhere(&host, &self.top) {
                continue;
            }
            let path = join(&level.path, name.as_bytes());
            let double = join(&level.path, &[b"._", name.as_bytes()].concat());
            let is_dir = self.send_or_pass(&host, &path, sink)?;
            if self.joins_doubles
                && let Some(found) = double_elsewhere(&host, &self.top)
            {
                self.send_or_pass(&found, &double, sink)?;
            }
            if is_dir {
                levels.extend(self.open_or_pass(host, path, sink)?);
            }
        }
        Ok(())
    }

    /// Sends one file; returns true if it is a directory that is to be walked.
    fn send_or_pass(&mut self, host: &Path, path: &[u8], sink: &mut dyn Sink) -> Result<bool> {
        self.send_one(host, path, sink).or_else(|e| self.pass(path, e, sink).map(|()| false))
    }

    fn open_or_pass(
        &self,
        dir: PathBuf,
        path: Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<Option<Level>> {
        let at = path.clone();
        open(dir, path).map(Some).or_else(|e| self.pass(&at, e, sink).map(|()| None))
    }

    /// Gives an error about one item here to the sink, and returns any other.
    fn pass(&self, path: &[u8], e: Error, sink: &mut dyn Sink) -> Result<()> {
        match &e {
            Error::Host { path: host, .. } if host.starts_with(&self.top) => {
                sink.unreadable(path, e)
            }
            _ => Err(e),
        }
    }

    /// Sends one file; returns true if it is a directory.
    fn send_one(&mut self, host: &Path, path: &[u8], sink: &mut dyn Sink) -> Result<bool> {
        let meta = std::fs::symlink_metadata(host).map_err(|e| Error::host("stat", host, e))?;
        let Some(kind) = FileKind::from_mode(meta.mode()) else {
            return Err(Error::host("stat", host, std::io::Error::other("an unknown file type")));
        };
        if self.spared == Some((meta.dev(), meta.ino())) {
            tracing::warn!("{} is left out: it is the volume that is written to", host.display());
            return Ok(false);
        }
        let mut earlier = None;
        if meta.nlink() > 1 && kind != FileKind::Directory {
            let id = (meta.dev(), meta.ino());
            earlier = self.named.get(&id).cloned();
            if earlier.is_none() {
                self.named.insert(id, path.to_vec());
            }
        }
        let target;
        let item_kind = match (&earlier, kind) {
            (Some(first), _) => ItemKind::HardLink(first),
            (None, FileKind::Regular) => ItemKind::File { len_bytes: meta.len() },
            (None, FileKind::Directory) => ItemKind::Directory,
            (None, FileKind::Symlink) => {
                let link = std::fs::read_link(host).map_err(|e| Error::host("read", host, e))?;
                target = link.into_os_string().into_vec();
                ItemKind::Symlink(&target)
            }
            (None, kind) => ItemKind::Special { kind, rdev: pack_device(meta.rdev()) },
        };
        let mut xattrs = if earlier.is_none() { xattrs(host)? } else { Vec::new() };
        let mut perm = (meta.mode() & 0o7777) as u16;
        if !self.with_xattrs {
            perm = acls::drop_lists(perm, &mut xattrs);
            xattrs.clear();
        }
        let mtime = time(meta.mtime(), meta.mtime_nsec());
        let item = Item {
            path,
            kind: item_kind,
            perm,
            uid: meta.uid(),
            gid: meta.gid(),
            atime: Some(time(meta.atime(), meta.atime_nsec())),
            mtime: self.latest.map_or(mtime, |latest| mtime.min(latest)),
            xattrs: &xattrs,
        };
        if matches!(item.kind, ItemKind::File { .. }) {
            let mut content = HostContent::open(host, &meta)?;
            sink.put(&item, &mut content)?;
        } else {
            sink.put(&item, &mut NoContent)?;
        }
        Ok(kind == FileKind::Directory)
    }
}

fn open(dir: PathBuf, path: Vec<u8>) -> Result<Level> {
    let failed = |e| Error::host("list", dir.clone(), e);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name());
    }
    // An AppleDouble (`._name`) follows the file it belongs to, which may have such a name itself.
    names.sort_by_cached_key(|name| {
        let mut base = name.as_bytes();
        let mut doubled = 0_u32;
        while let Some(rest) = base.strip_prefix(b"._") {
            (base, doubled) = (rest, doubled + 1);
        }
        (base.to_vec(), doubled)
    });
    Ok(Level { dir, path, rest: names.into_iter() })
}

fn time(secs: i64, nanos: i64) -> Time {
    Time { secs, nanos: u32::try_from(nanos).unwrap_or(0) }
}

/// A device number of the host as the 32 bits that Linux file systems keep.
pub(super) fn pack_device(dev: u64) -> u32 {
    make_device(rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Packs a device number as `makedev(3)` does, in 32 bits.
pub(super) fn make_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

fn xattrs(host: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; 1024];
    let len = loop {
        match rustix::fs::llistxattr(host, &mut names[..]) {
            Ok(len) => break len,
            Err(Errno::RANGE) if names.len() < 1 << 20 => names.resize(names.len() * 4, 0),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::ACCESS) => return Ok(Vec::new()),
            Err(e) => return Err(Error::host("list the attributes of", host, e)),
        }
    };
    let mut all = Vec::new();
    for name in names.get(..len).unwrap_or(&[]).split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 1 << 16];
        match rustix::fs::lgetxattr(host, OsStr::from_bytes(name), &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                all.push((name.to_vec(), value));
            }
            // The attribute was removed after the list was read, or is not readable for this
            // process.
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(Error::host("read an attribute of", host, e)),
        }
    }
    Ok(all)
}

struct HostContent<'a> {
    file: File,
    host: &'a Path,
    /// The length that was given with the item.
    len_bytes: u64,
    at: u64,
    /// Whether the file has fewer blocks than bytes, and so holes.
    sparse: bool,
    /// The known end of the run of data at `at`.
    data_end: u64,
}

impl<'a> HostContent<'a> {
    fn open(host: &'a Path, meta: &Metadata) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(host, flags, Mode::empty())
            .map_err(|e| Error::host("open", host, e))?;
        let sparse = meta.blocks().saturating_mul(512) < meta.len();
        let data_end = if sparse { 0 } else { u64::MAX };
        Ok(Self { file: fd.into(), host, len_bytes: meta.len(), at: 0, sparse, data_end })
    }

    /// Checks at the end of the file that it is where it was: what is missing is no hole.
    fn check_end(&self) -> Result<()> {
        let failed = |e: std::io::Error| Error::host("read", self.host, e);
        if self.file.metadata().map_err(failed)?.len() < self.len_bytes {
            let why = "it became shorter while it was copied";
            return Err(failed(std::io::Error::other(why)));
        }
        Ok(())
    }
}

impl Content for HostContent<'_> {
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>> {
        let failed = |e: std::io::Error| Error::host("read", self.host, e);
        if self.sparse && self.at >= self.data_end {
            self.at = match rustix::fs::seek(&self.file, SeekFrom::Data(self.at)) {
                Ok(at) => at,
                Err(Errno::NXIO) => return self.check_end().map(|()| None),
                Err(e) => return Err(failed(e.into())),
            };
            self.data_end = rustix::fs::seek(&self.file, SeekFrom::Hole(self.at))
                .map_err(|e| failed(e.into()))?;
        }
        let want = usize::try_from(self.data_end - self.at).unwrap_or(usize::MAX).min(buf.len());
        let got = loop {
            match self.file.read_at(&mut buf[..want], self.at) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other.map_err(failed)?,
            }
        };
        if got == 0 {
            return self.check_end().map(|()| None);
        }
        let start = self.at;
        self.at += got as u64;
        Ok(Some((start, got)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_becomes_shorter_is_not_filled_up_with_zeroes() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("file");
        for is_sparse in [false, true] {
            let file = File::create(&host).unwrap();
            file.write_all_at(&[7; 8192], 0).unwrap();
            if is_sparse {
                file.set_len(1 << 20).unwrap();
            }
            let meta = file.metadata().unwrap();
            let mut content = HostContent::open(&host, &meta).unwrap();
            let mut buf = [0; 4096];
            assert_eq!(content.next_run(&mut buf).unwrap(), Some((0, 4096)));
            file.set_len(4096).unwrap();
            let error = content.next_run(&mut buf).unwrap_err().to_string();
            assert!(error.contains("became shorter"), "{error}");
        }
    }
}
