//! A tar stream as a source: uncompressed ustar, GNU and pax archives.
//!
//! Names are made relative, as `tar` does (a leading `/` is dropped); one with `..` in it is
//! refused. Extended attributes and access control lists are read in each form that tar writers use
//! (`tar_attributes`). Holes of sparse files, in each form that GNU tar writes, stay holes.

use super::host_source::make_device;
use super::tar_attributes::Attributes;
use super::tar_members::{Broken, Member, Members, number};
use super::{Content, Item, ItemKind, NoContent, Sink, end};
use crate::{Error, Result, shown};
use std::io::Read;
use std::ops::Range;
use tar::EntryType;
use weft_vfs::{FileKind, Time};

/// Reads a tar stream.
pub struct TarSource<'a, R> {
    stream: R,
    with_xattrs: bool,
    note: Box<dyn FnMut(String) + 'a>,
}

impl<R> std::fmt::Debug for TarSource<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TarSource").finish_non_exhaustive()
    }
}

impl<'a, R: Read> TarSource<'a, R> {
    /// Reads `stream`, which should be buffered: headers are read 512 bytes at a time.
    pub fn new(stream: R) -> Self {
        Self { stream, with_xattrs: true, note: Box::new(drop) }
    }

    /// Passes a line to `note`, at the end, for each kind of attribute that the stream has and a
    /// volume has no place for, with the number of members that have it.
    #[must_use]
    pub fn noting(mut self, note: impl FnMut(String) + 'a) -> Self {
        self.note = Box::new(note);
        self
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
    pub fn send(mut self, sink: &mut dyn Sink) -> Result<()> {
        let mut members = Members::new(self.stream);
        let mut attributes = Attributes::new(self.with_xattrs);
        let mut send_all = || -> Result<()> {
            while let Some(member) = members.next().map_err(|e| Error::Tar(e.to_string()))? {
                send_member(&mut members, &member, &mut attributes, sink)?;
            }
            Ok(())
        };
        let sent = send_all();
        attributes.left_out().for_each(|line| (self.note)(line));
        end(sent, sink)
    }
}

fn send_member<R: Read>(
    members: &mut Members<R>,
    member: &Member,
    attributes: &mut Attributes,
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
    let mtime = member
        .records
        .time(b"mtime")
        .unwrap_or_else(|| Time { secs: number(&old.mtime).unwrap_or(0), nanos: 0 });
    let device = || -> Result<u32> {
        let part = |key: &[u8], n: std::io::Result<Option<u32>>| match member.records.number(key) {
            Some(number) => Ok(number),
            None => n.map(|n| n.unwrap_or(0)).map_err(|_| bad("its device number is no number")),
        };
        let major = part(b"SCHILY.devmajor", header.device_major())?;
        Ok(make_device(major, part(b"SCHILY.devminor", header.device_minor())?))
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
    let (perm, xattrs) =
        attributes.of(&member.records, (mode & 0o7777) as u16, kind == ItemKind::Directory);
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
