//! A tar stream as a source: ustar, GNU and pax archives as they come, not compressed.
//!
//! Names are made relative, as `tar` does (a leading `/` is dropped); one with `..` in it is
//! refused. Extended attributes are read from `SCHILY.xattr.*` records.

use super::host_source::make_device;
use super::{Content, Item, ItemKind, NoContent, Sink};
use crate::{Error, Result};
use std::io::Read;
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

    /// Whether extended attributes are carried (they are, unless this says no).
    #[must_use]
    pub fn with_xattrs(mut self, yes: bool) -> Self {
        self.with_xattrs = yes;
        self
    }

    /// Hands everything to `sink`, and finishes it.
    ///
    /// # Errors
    /// [`Error::Tar`] for a damaged stream; those of the sink.
    pub fn send(self, sink: &mut dyn Sink) -> Result<()> {
        let mut archive = tar::Archive::new(self.stream);
        let entries = archive.entries().map_err(|e| Error::Tar(e.to_string()))?;
        for entry in entries {
            let mut entry = entry.map_err(|e| Error::Tar(e.to_string()))?;
            send_entry(&mut entry, self.with_xattrs, sink)?;
        }
        sink.finish()
    }
}

/// What pax records add to a header.
#[derive(Default)]
struct Extended {
    mtime: Option<Time>,
    atime: Option<Time>,
    uid: Option<u32>,
    gid: Option<u32>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn send_entry<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    with_xattrs: bool,
    sink: &mut dyn Sink,
) -> Result<()> {
    let entry_type = entry.header().entry_type();
    if matches!(entry_type, EntryType::XGlobalHeader) {
        return Ok(());
    }
    let path = relative(&entry.path_bytes())?;
    let bad = |what: &str, e: &dyn std::fmt::Display| {
        Error::Tar(format!("{}: {what}: {e}", String::from_utf8_lossy(&path)))
    };
    let extended = extended(entry, with_xattrs).map_err(|e| bad("pax records", &e))?;
    let header = entry.header();
    // The header's checksum has been verified: a field that is no number was left blank.
    let id = |from_pax: Option<u32>, from_header: std::io::Result<u64>, what: &str| match from_pax {
        Some(id) => Ok(id),
        None => u32::try_from(from_header.unwrap_or(0)).map_err(|e| bad(what, &e)),
    };
    let uid = id(extended.uid, header.uid(), "owner")?;
    let gid = id(extended.gid, header.gid(), "group")?;
    let perm = (header.mode().map_err(|e| bad("mode", &e))? & 0o7777) as u16;
    let mtime = match extended.mtime {
        Some(time) => time,
        None => {
            let secs = header.mtime().unwrap_or(0);
            Time { secs: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 }
        }
    };
    let device = || -> Result<u32> {
        let number = |n: std::io::Result<Option<u32>>| n.map_err(|e| bad("device number", &e));
        let major = number(header.device_major())?.unwrap_or(0);
        Ok(make_device(major, number(header.device_minor())?.unwrap_or(0)))
    };
    let link = || {
        let name = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
        name.ok_or_else(|| bad("link", &"has no target"))
    };

    let target;
    let kind = match entry_type {
        EntryType::Directory => ItemKind::Directory,
        EntryType::Symlink => {
            target = link()?;
            ItemKind::Symlink(&target)
        }
        EntryType::Link => {
            target = relative(&link()?)?;
            ItemKind::HardLink(&target)
        }
        EntryType::Char => ItemKind::Special { kind: FileKind::CharDevice, rdev: device()? },
        EntryType::Block => ItemKind::Special { kind: FileKind::BlockDevice, rdev: device()? },
        EntryType::Fifo => ItemKind::Special { kind: FileKind::Fifo, rdev: 0 },
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            // Before POSIX a directory was a file whose name ends in a slash.
            if entry.path_bytes().last() == Some(&b'/') {
                ItemKind::Directory
            } else {
                ItemKind::File { len_bytes: entry.size() }
            }
        }
        other => return Err(bad("type", &format!("{:?} is not known", other.as_byte() as char))),
    };
    let item = Item {
        path: &path,
        kind,
        perm,
        uid,
        gid,
        atime: extended.atime,
        mtime,
        xattrs: &extended.xattrs,
    };
    if matches!(kind, ItemKind::File { .. }) {
        let sparse = entry_type == EntryType::GNUSparse;
        sink.put(&item, &mut TarContent { entry, path: &path, at: 0, sparse })
    } else {
        sink.put(&item, &mut NoContent)
    }
}

/// A name of the stream without what makes it absolute, `.` and doubled slashes.
fn relative(name: &[u8]) -> Result<Vec<u8>> {
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let name = String::from_utf8_lossy(name);
                return Err(Error::Tar(format!("{name}: leads out of the tree")));
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

fn extended<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    with_xattrs: bool,
) -> std::io::Result<Extended> {
    let mut found = Extended::default();
    let Some(records) = entry.pax_extensions()? else { return Ok(found) };
    for record in records {
        let record = record?;
        let value = record.value_bytes();
        let text = || std::str::from_utf8(value).ok();
        match record.key_bytes() {
            b"mtime" => found.mtime = text().and_then(pax_time),
            b"atime" => found.atime = text().and_then(pax_time),
            b"uid" => found.uid = text().and_then(|t| t.parse().ok()),
            b"gid" => found.gid = text().and_then(|t| t.parse().ok()),
            key => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.")
                    && with_xattrs
                {
                    found.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
    }
    Ok(found)
}

/// `[-]seconds[.fraction]`.
fn pax_time(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let secs: i64 = whole.parse().ok()?;
    let mut nanos = 0;
    let mut unit = 100_000_000;
    for digit in fraction.chars() {
        nanos += digit.to_digit(10)? * unit;
        unit /= 10;
    }
    if whole.starts_with('-') && nanos > 0 {
        Some(Time { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos })
    } else {
        Some(Time { secs, nanos })
    }
}

struct TarContent<'a, 'b, R: Read> {
    entry: &'a mut tar::Entry<'b, R>,
    path: &'a [u8],
    at: u64,
    /// The stream names holes, which the reader fills with zeroes: they become holes again.
    sparse: bool,
}

impl<R: Read> Content for TarContent<'_, '_, R> {
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>> {
        loop {
            let mut filled = 0;
            while filled < buf.len() {
                match self.entry.read(&mut buf[filled..]) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        let path = String::from_utf8_lossy(self.path);
                        return Err(Error::Tar(format!("{path}: {e}")));
                    }
                }
                // A short read that fills what the file has left needs no second one to learn it.
                if self.at + filled as u64 >= self.entry.size() {
                    break;
                }
            }
            if filled == 0 {
                return Ok(None);
            }
            let start = self.at;
            self.at += filled as u64;
            if !(self.sparse && buf[..filled].iter().all(|b| *b == 0)) {
                return Ok(Some((start, filled)));
            }
        }
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

    #[test]
    fn pax_times() {
        assert_eq!(pax_time("12"), Some(Time { secs: 12, nanos: 0 }));
        assert_eq!(pax_time("12.5"), Some(Time { secs: 12, nanos: 500_000_000 }));
        assert_eq!(pax_time("-1.25"), Some(Time { secs: -2, nanos: 750_000_000 }));
        assert_eq!(pax_time("1.1234567891"), Some(Time { secs: 1, nanos: 123_456_789 }));
        assert_eq!(pax_time("x"), None);
        assert_eq!(pax_time("1.x"), None);
    }
}
