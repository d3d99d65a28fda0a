//! A tar stream as a destination: POSIX pax. Values that a ustar header cannot hold are in a record
//! before it: long names, times with fractions or before 1970, extended attributes. A file with
//! holes is stored in GNU tar's sparse form 1.0.
//!
//! Access control lists and SELinux's labels are written twice: as the attributes that they are, and
//! in the records that `tar --acls`, `tar --selinux` and bsdtar restore them from. The mode of a file
//! with a list is the one that it has without, so that a reader that restores no lists does not give
//! the list's mask to the owning group; one that does sets the mode by the list.

use super::pax::{Records, format_time};
use super::sparse::{BLOCK_BYTES, SparseMap};
use super::{Content, Item, ItemKind, RUN_BYTES, Sink, acls, tar_attributes};
use crate::{Error, Result, shown};
use std::io::{self, Read, Write};
use std::ops::Range;
use tar::{EntryType, Header};
use weft_vfs::FileKind;

/// The largest numbers in the octal fields for owners, for sizes and for times.
const ID_MAX: u32 = 0o777_7777;
const SIZE_MAX_BYTES: u64 = 0o777_7777_7777;
const TIME_MAX_SECS: u64 = SIZE_MAX_BYTES;

/// A file is stored as sparse if that saves more bytes than this: the map and its records take some
/// blocks, and a reader without support for the form gets nothing of use.
const SPARSE_MIN_BYTES: u64 = 4096;

/// Writes a tar stream.
pub struct TarSink<W: Write> {
    builder: tar::Builder<W>,
    name: Vec<u8>,
    left_out: Vec<String>,
}

impl<W: Write> std::fmt::Debug for TarSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TarSink").finish_non_exhaustive()
    }
}

impl<W: Write> TarSink<W> {
    /// Writes to `stream`, which should be buffered.
    pub fn new(stream: W) -> Self {
        Self { builder: tar::Builder::new(stream), name: b".".to_vec(), left_out: Vec::new() }
    }

    /// The items that a tar stream cannot hold.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Sets the name of the top item in the stream, instead of `.`; the items in it keep their
    /// relative paths.
    #[must_use]
    pub fn named(mut self, name: &[u8]) -> Self {
        if !name.is_empty() {
            self.name = name.to_vec();
        }
        self
    }

    /// Writes the records that do not fit into the header, then the header and the data.
    fn append(
        &mut self,
        header: &mut Header,
        records: &Records,
        data: impl Read,
    ) -> io::Result<()> {
        if !records.is_empty() {
            let content = records.to_bytes();
            let mut extended = Header::new_ustar();
            set_bytes(&mut extended.as_old_mut().name, b"PaxHeader");
            extended.set_mode(0o644);
            extended.set_entry_type(EntryType::XHeader);
            extended.set_size(content.len() as u64);
            extended.set_cksum();
            self.builder.append(&extended, &content[..])?;
        }
        header.set_cksum();
        self.builder.append(header, data)
    }
}

impl<W: Write> Sink for TarSink<W> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        let failed = |e: io::Error| Error::Tar(format!("{}: {e}", shown(item.path)));
        let mut header = Header::new_ustar();
        let mut records = Records::default();
        let list = acls::access(item);
        let perm = list.map_or(item.perm, |list| acls::without(item.perm, list));
        header.set_mode(u32::from(perm));
        for (key, id) in [("uid", item.uid), ("gid", item.gid)] {
            let fits = id <= ID_MAX;
            if !fits {
                records.push(key, id.to_string());
            }
            let id = u64::from(if fits { id } else { 0 });
            if key == "uid" { header.set_uid(id) } else { header.set_gid(id) }
        }
        let secs = u64::try_from(item.mtime.secs).ok().filter(|secs| *secs <= TIME_MAX_SECS);
        header.set_mtime(secs.unwrap_or(0));
        if secs.is_none() || item.mtime.nanos != 0 {
            records.push("mtime", format_time(item.mtime));
        }
        header.set_size(0);
        tar_attributes::write(item, &mut records);
        let mut name = if item.path.is_empty() { self.name.clone() } else { item.path.to_vec() };
        if item.kind == ItemKind::Directory {
            name.push(b'/');
        }
        match item.kind {
            ItemKind::File { len_bytes } => {
                header.set_entry_type(EntryType::Regular);
                return self.put_file((header, records), (&name, len_bytes), content, &failed);
            }
            ItemKind::Directory => header.set_entry_type(EntryType::Directory),
            ItemKind::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                set_link(&mut header, &mut records, target);
            }
            ItemKind::HardLink(first) => {
                header.set_entry_type(EntryType::Link);
                set_link(&mut header, &mut records, first);
            }
            ItemKind::Special { kind, rdev } => {
                header.set_entry_type(match kind {
                    FileKind::BlockDevice => EntryType::Block,
                    FileKind::CharDevice => EntryType::Char,
                    FileKind::Fifo => EntryType::Fifo,
                    // They mean nothing without the listening process.
                    _ => {
                        self.left_out.push(format!("{}: tar has no sockets", shown(item.path)));
                        return Ok(());
                    }
                });
                let major = (rdev >> 8) & 0xfff;
                let minor = (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00);
                header.set_device_major(major).map_err(failed)?;
                header.set_device_minor(minor).map_err(failed)?;
            }
        }
        set_name(&mut header, &mut records, &name);
        self.append(&mut header, &records, io::empty()).map_err(failed)
    }

    fn finish(&mut self) -> Result<()> {
        let result = self.builder.finish().and_then(|()| self.builder.get_mut().flush());
        result.map_err(|e| Error::Tar(e.to_string()))
    }
}

impl<W: Write> TarSink<W> {
    fn put_file(
        &mut self,
        (mut header, mut records): (Header, Records),
        (name, len_bytes): (&[u8], u64),
        content: &mut dyn Content,
        failed: &dyn Fn(io::Error) -> Error,
    ) -> Result<()> {
        let sparse = content.extents()?.map(|extents| map_of(&extents, len_bytes));
        let sparse = sparse.filter(|map| map.stored_bytes() + SPARSE_MIN_BYTES < len_bytes);
        let mut front = Vec::new();
        let map = if let Some(map) = sparse {
            front = map.to_bytes();
            for (key, value) in [("major", "1".into()), ("minor", "0".into())]
                .into_iter()
                .chain([("realsize", len_bytes.to_string())])
            {
                records.push(format!("GNU.sparse.{key}"), value);
            }
            records.push("GNU.sparse.name", name);
            // The name under which a reader without support for the form extracts the map and data.
            let (above, own) = super::split_last(name);
            let other = super::join(&super::join(above, b"GNUSparseFile.0"), own);
            set_name(&mut header, &mut records, &other);
            map
        } else {
            set_name(&mut header, &mut records, name);
            SparseMap::dense(len_bytes)
        };
        let size = front.len() as u64 + map.stored_bytes();
        if size > SIZE_MAX_BYTES {
            records.push("size", size.to_string());
        }
        header.set_size(size.min(SIZE_MAX_BYTES));
        let mut packed = Packed::new(content, &map);
        let written = self.append(&mut header, &records, (&front[..]).chain(&mut packed));
        if let Some(e) = packed.error {
            return Err(e);
        }
        written.map_err(failed)
    }
}

/// Returns the map of a file whose data is in `extents`, extended to whole blocks of the stream.
fn map_of(extents: &[Range<u64>], len_bytes: u64) -> SparseMap {
    let block = BLOCK_BYTES as u64;
    let mut whole: Vec<Range<u64>> = Vec::new();
    for extent in extents {
        let start = extent.start / block * block;
        let end = extent.end.checked_next_multiple_of(block).unwrap_or(u64::MAX).min(len_bytes);
        match whole.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ if start < end => whole.push(start..end),
            _ => {}
        }
    }
    SparseMap { extents: whole, len_bytes }
}

/// Copies `bytes` into a field of a header, as far as they fit.
fn set_bytes(field: &mut [u8], bytes: &[u8]) {
    let fits = bytes.len().min(field.len());
    field.fill(0);
    field[..fits].copy_from_slice(&bytes[..fits]);
}

/// Sets a member's name: in the header, split if necessary, or in a record.
fn set_name(header: &mut Header, records: &mut Records, name: &[u8]) {
    let Some(ustar) = header.as_ustar_mut() else { return };
    let (room, above) = (ustar.name.len(), ustar.prefix.len());
    if name.len() <= room {
        return set_bytes(&mut ustar.name, name);
    }
    // The first slash behind which the rest fits, and before which there is at least one byte.
    let from = name.len() - room - 1;
    let slash = (from.max(1)..name.len() - 1).find(|at| name[*at] == b'/');
    match slash.filter(|at| *at <= above) {
        Some(at) => {
            set_bytes(&mut ustar.prefix, &name[..at]);
            set_bytes(&mut ustar.name, &name[at + 1..]);
        }
        None => {
            set_bytes(&mut ustar.name, name);
            push_name(records, "path", name);
        }
    }
}

fn set_link(header: &mut Header, records: &mut Records, target: &[u8]) {
    let field = &mut header.as_old_mut().linkname;
    set_bytes(field, target);
    if target.len() > field.len() {
        push_name(records, "linkpath", target);
    }
}

/// Adds a record with a name. Names in records are UTF-8 unless another record declares them as
/// bytes.
fn push_name(records: &mut Records, key: &str, name: &[u8]) {
    if std::str::from_utf8(name).is_err() && records.get(b"hdrcharset").is_none() {
        records.push("hdrcharset", "BINARY");
    }
    records.push(key, name);
}

/// The bytes of a content that lie in the extents of a map, one after another; parts that the
/// content leaves out within them read as zeroes.
struct Packed<'a> {
    content: &'a mut dyn Content,
    extents: std::slice::Iter<'a, Range<u64>>,
    extent: Range<u64>,
    buffer: Vec<u8>,
    /// The part of `buffer` that is still to be read, and its offset in the file.
    pending: Range<usize>,
    pending_at: u64,
    ended: bool,
    error: Option<Error>,
}

impl<'a> Packed<'a> {
    fn new(content: &'a mut dyn Content, map: &'a SparseMap) -> Self {
        let room = usize::try_from(map.stored_bytes()).unwrap_or(RUN_BYTES).clamp(1, RUN_BYTES);
        Self {
            content,
            extents: map.extents.iter(),
            extent: 0..0,
            buffer: vec![0; room],
            pending: 0..0,
            pending_at: 0,
            ended: false,
            error: None,
        }
    }

    fn fail(&mut self, e: Error) -> io::Error {
        let told = io::Error::other(e.to_string());
        self.error = Some(e);
        told
    }
}

impl Read for Packed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.extent.is_empty() {
            match self.extents.next() {
                Some(extent) => self.extent = extent.clone(),
                None => return Ok(0),
            }
        }
        if self.pending.is_empty() && !self.ended {
            match self.content.next_run(&mut self.buffer) {
                Ok(Some((at, len))) => (self.pending, self.pending_at) = (0..len, at),
                Ok(None) => self.ended = true,
                Err(e) => return Err(self.fail(e)),
            }
        }
        let at = self.extent.start;
        if !self.pending.is_empty() && self.pending_at < at {
            let changed = "it changed while it was read: there is data where a hole was";
            return Err(self.fail(Error::Tar(changed.into())));
        }
        let data_at = if self.pending.is_empty() { u64::MAX } else { self.pending_at };
        let until = if data_at > at { data_at.min(self.extent.end) } else { self.extent.end };
        let room = usize::try_from(until - at).unwrap_or(usize::MAX).min(buf.len());
        let n = if data_at > at {
            buf[..room].fill(0);
            room
        } else {
            let n = self.pending.len().min(room);
            buf[..n].copy_from_slice(&self.buffer[self.pending.start..self.pending.start + n]);
            self.pending.start += n;
            self.pending_at += n as u64;
            n
        };
        self.extent.start += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8]) -> (Vec<u8>, bool) {
        let mut header = Header::new_ustar();
        let mut records = Records::default();
        set_name(&mut header, &mut records, name);
        (header.path_bytes().into_owned(), records.get(b"path") == Some(name))
    }

    #[test]
    fn names_go_into_the_header_where_they_fit() {
        let part = |n: usize| vec![b'p'; n];
        let path = |lens: &[usize]| lens.iter().map(|n| part(*n)).collect::<Vec<_>>().join(&b'/');
        for lens in [&[100][..], &[50, 50], &[155, 100], &[1, 100], &[100, 1], &[77, 77, 77]] {
            let name = path(lens);
            assert_eq!(named(&name), (name, false), "{lens:?}");
        }
        for lens in [&[101][..], &[156, 100], &[1, 101], &[100, 100, 100], &[155, 101]] {
            assert!(named(&path(lens)).1, "{lens:?}");
        }
    }
}
