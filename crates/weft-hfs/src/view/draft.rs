//! AppleDoubles that are being written.
//!
//! A program writes a header of its own layout, then the resource fork, in pieces. The bytes are
//! kept as written until the last reference on the file is released, so that they read back
//! unchanged; each time they are a complete AppleDouble, it is applied to the file on the volume.

use crate::interchange::apple::{self, Kind, Version};
use crate::interchange::{Fork, Format, Meta, Reader};
use crate::streams::{MacVolume, ResourceReader, ResourceWriter};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{Cursor, Read};
use weft_vfs::{Error, FileKind, Ino, Result};

/// The longest AppleDouble that can be written here, in bytes: the Resource Manager cannot address
/// more than 16 MiB of a fork.
const DRAFT_MAX_BYTES: u64 = 256 << 20;

/// Length of the header of an AppleDouble without name and comment.
pub(super) const HEADER_BYTES: u64 = 26 + 4 * 12 + 16 + 4 + 32;

/// Drafts by the inode number of the file.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    all: HashMap<Ino, Vec<u8>>,
}

/// Returns the bytes before the resource fork. Leaves names out: they follow the file's.
pub(super) fn header(meta: &Meta) -> Result<Vec<u8>> {
    let meta = Meta { name: Vec::new(), comment: Vec::new(), ..meta.clone() };
    apple::header(&meta, Kind::Double, Version::V2).map_err(|_| Error::TooLarge)
}

/// Copies the bytes from `offset` on to `buf`; returns their number.
pub(super) fn copy_from(bytes: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let n = buf.len().min(bytes.len() - from);
    buf[..n].copy_from_slice(&bytes[from..from + n]);
    n
}

/// Applies an AppleDouble to a file. Returns whether `bytes` are a complete one.
pub(super) fn take_over(volume: &dyn MacVolume, base: Ino, bytes: &[u8]) -> Result<bool> {
    let Ok(mut reader) = Reader::open(Format::AppleDouble, Cursor::new(bytes)) else {
        return Ok(false);
    };
    let said = reader.meta().clone();
    if volume.getattr(base)?.kind == FileKind::Regular {
        let mut writer = ResourceWriter::new(volume, base);
        let copied = reader.copy_fork(Fork::Resource, &mut writer);
        writer.finish()?;
        copied.map_err(|e| Error::Io { errno: 5, message: e.to_string() })?;
    } else if said.resource_bytes > 0 {
        return Err(Error::Unsupported("a folder has no resource fork"));
    }
    let mut meta = volume.meta(base)?;
    meta.finder_info = said.finder_info;
    meta.locked = said.locked;
    for (date, said) in [
        (&mut meta.created, said.created),
        (&mut meta.modified, said.modified),
        (&mut meta.backed_up, said.backed_up),
    ] {
        if said != 0 {
            *date = said;
        }
    }
    volume.set_meta(base, &meta)?;
    Ok(true)
}

impl Drafts {
    pub fn has(&self, base: Ino) -> bool {
        self.all.contains_key(&base)
    }

    pub fn len(&self, base: Ino) -> Option<u64> {
        self.all.get(&base).map(|draft| draft.len() as u64)
    }

    pub fn forget(&mut self, base: Ino) {
        self.all.remove(&base);
    }

    /// Begins an AppleDouble from nothing.
    pub fn begin(&mut self, base: Ino) {
        self.all.insert(base, Vec::new());
    }

    pub fn read(&self, base: Ino, offset: u64, buf: &mut [u8]) -> Option<usize> {
        self.all.get(&base).map(|draft| copy_from(draft, offset, buf))
    }

    /// Returns the draft of a file, begun with the resource fork and information on the volume.
    fn draft(&mut self, volume: &dyn MacVolume, base: Ino) -> Result<&mut Vec<u8>> {
        let vacant = match self.all.entry(base) {
            Entry::Occupied(begun) => return Ok(begun.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let meta = volume.meta(base)?;
        if meta.resource_bytes > DRAFT_MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let mut bytes = header(&meta)?;
        ResourceReader::new(volume, base)
            .take(meta.resource_bytes)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::Io { errno: 5, message: e.to_string() })?;
        Ok(vacant.insert(bytes))
    }

    pub fn write(
        &mut self,
        volume: &dyn MacVolume,
        base: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= DRAFT_MAX_BYTES);
        let (at, end) = (offset as usize, end.ok_or(Error::TooLarge)? as usize);
        let draft = self.draft(volume, base)?;
        if draft.len() < end {
            draft.resize(end, 0);
        }
        draft[at..end].copy_from_slice(data);
        take_over(volume, base, draft).map(|_| ())
    }

    pub fn set_len(&mut self, volume: &dyn MacVolume, base: Ino, len_bytes: u64) -> Result<()> {
        if len_bytes > DRAFT_MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let draft = self.draft(volume, base)?;
        let grown = len_bytes as usize > draft.len();
        draft.resize(len_bytes as usize, 0);
        // A program that cuts it is about to write it.
        if grown { take_over(volume, base, draft).map(|_| ()) } else { Ok(()) }
    }
}
