//! A tar stream as a source: uncompressed ustar, GNU and pax archives.
//!
//! Names are made relative, as `tar` does (a leading `/` is dropped); one with `..` in it is
//! refused. Extended attributes are read from `SCHILY.xattr.*` records. Holes of sparse files, in
//! each form that GNU tar writes, stay holes.

use super::host_source::make_device;
use super::tar_members::{Broken, Member, Members, number};
use super::{Content, Item, ItemKind, NoContent, Sink};
use crate::{Error, Result, shown};
use std::io::Read;
use std::ops::Range;
use tar::EntryType;
use weft_vfs::{FileKind, Time};

/// Reads a tar stream.
pub struct TarSource<R> {
    stream: R,
    with_xattrs: bool,
}

impl<R> std::fmt::Debug for TarSource<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TarSource").finish_non_exhaustive()
    }
}

impl<R: Read> TarSource<R> {
    /// Reads `stream`, which should be buffered: headers are read 512 bytes at a time.
    pub fn new(stream: R) -> Self {
        Self { stream, with_xattrs: true }
    }

    /// Sets whether extended attributes are transferred (by default they are).
    #[must_use]
    pub fn with_xattrs(mut self, yes: bool) -> Self {
        self.with_xattrs = yes;
        self
    }

    /// Sends all items to `sink`, and finishes it.
    ///
    /// # Errors
    /// [`Error::Tar`] for a damaged stream, or one that is no tar archive; those of the sink.
    pub fn send(self, sink: &mut dyn Sink) -> Result<()> {
        let mut members = Members::new(self.stream);
        while let Some(member) = members.next().map_err(|e| Error::Tar(e.to_string()))? {
            send_member(&mut members, &member, self.with_xattrs, sink)?;
        }
        sink.finish()
    }
}

fn send_member<R: Read>(
    members: &mut Members<R>,
    member: &Member,
    with_xattrs: bool,
    sink: &mut dyn Sink,
) -> Result<()> {
    let header = &member.header;
    let old = header.as_old();
    let entry_type = header.entry_type();
    // The label of a volume (tar -V) is not a file.
    if entry_type.as_byte() == b'V' {
        return Ok(());
    }
    let path = relative(&member.name)?;
    let bad = |what: &str| Error::Tar(format!("{}: {what}", shown(&path)));
    let id = |key: &[u8], field: &[u8], what: &str| {
        let id = member.records.number(key).or_else(|| number(field));
        id.and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| bad(&format!("its {what} is no number that Linux has")))
    };
    let uid = id(b"uid", &old.uid, "owner")?;
    let gid = id(b"gid", &old.gid, "group")?;
    let mode = number(&old.mode).ok_or_else(|| bad("its mode is no number"))?;
    let perm = (mode & 0o7777) as u16;
    let mtime = member
        .records
        .time(b"mtime")
        .unwrap_or_else(|| Time { secs: number(&old.mtime).unwrap_or(0), nanos: 0 });
    let device = || -> Result<u32> {
        let part = |n: std::io::Result<Option<u32>>| {
            n.map(|n| n.unwrap_or(0)).map_err(|_| bad("its device number is no number"))
        };
        Ok(make_device(part(header.device_major())?, part(header.device_minor())?))
    };
    let link = || match &member.link[..] {
        [] => Err(bad("a link without a target")),
        link => Ok(link),
    };

    let target;
    let kind = match entry_type {
        EntryType::Directory => ItemKind::Directory,
        EntryType::Symlink => ItemKind::Symlink(link()?),
        EntryType::Link => {
            target = relative(link()?)?;
            ItemKind::HardLink(&target)
        }
        EntryType::Char => ItemKind::Special { kind: FileKind::CharDevice, rdev: device()? },
        EntryType::Block => ItemKind::Special { kind: FileKind::BlockDevice, rdev: device()? },
        EntryType::Fifo => ItemKind::Special { kind: FileKind::Fifo, rdev: 0 },
        // Before POSIX a directory was a file whose name ends in a slash.
        EntryType::Regular if member.name.last() == Some(&b'/') => ItemKind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            ItemKind::File { len_bytes: member.map.len_bytes }
        }
        other => {
            let letter = (other.as_byte() as char).escape_default();
            return Err(bad(&format!("members of type '{letter}' are not known")));
        }
    };
    let mut xattrs = Vec::new();
    for (key, value) in member.records.iter().filter(|_| with_xattrs) {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            xattrs.push((name.to_vec(), value.to_vec()));
        }
    }
    let item = Item {
        path: &path,
        kind,
        perm,
        uid,
        gid,
        atime: member.records.time(b"atime"),
        mtime,
        xattrs: &xattrs,
    };
    if matches!(kind, ItemKind::File { .. }) {
        let mut content =
            TarContent { members, path: &path, extents: &member.map.extents, into: 0 };
        sink.put(&item, &mut content)
    } else {
        sink.put(&item, &mut NoContent)
    }
}

/// Returns a name of the stream without a leading slash, `.` and doubled slashes.
fn relative(name: &[u8]) -> Result<Vec<u8>> {
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                return Err(Error::Tar(format!("{}: leads out of the tree", shown(name))));
            }
            _ => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    Ok(path)
}

/// The content of a member, extent by extent.
struct TarContent<'a, R> {
    members: &'a mut Members<R>,
    path: &'a [u8],
    /// The remaining extents, and the bytes already read of the first.
    extents: &'a [Range<u64>],
    into: u64,
}

impl<R: Read> Content for TarContent<'_, R> {
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>> {
        let Some((extent, rest)) = self.extents.split_first() else { return Ok(None) };
        let start = extent.start + self.into;
        let want = usize::try_from(extent.end - start).unwrap_or(usize::MAX).min(buf.len());
        let got = self
            .members
            .read(&mut buf[..want])
            .map_err(|e: Broken| Error::Tar(format!("{}: {e}", shown(self.path))))?;
        self.into += got as u64;
        if start + got as u64 == extent.end {
            (self.extents, self.into) = (rest, 0);
        }
        Ok(Some((start, got)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_relative() {
        let ok = |n: &[u8]| relative(n).unwrap();
        assert_eq!(ok(b"./a/b/"), b"a/b");
        assert_eq!(ok(b"/etc//passwd"), b"etc/passwd");
        assert_eq!(ok(b"./"), b"");
        assert!(relative(b"a/../../b").is_err());
    }
}
