//! zip, by the `zip` crate: files that are stored, deflated, or packed with bzip2, LZMA or xz.

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};

use time::{Date, Month};
use weft_vfs::{FileKind, check_interrupt};
use zip::{CompressionMethod, ZipArchive};

use super::cursor::Cursor;
use super::listing::{Data, Item, Listing, Unknown};
use super::{PACKED_MAX_BYTES, corrupt, parsed};
use crate::store::{Store, read_exact};
use crate::{Error, Result};

/// The end of an archive without its comment, and the longest comment, in bytes.
const END_BYTES: usize = 22;
const COMMENT_MAX_BYTES: usize = 0xFFFF;
/// The record of a file in the central directory: its length, and where it has those of the name and of
/// the extra fields.
const RECORD_BYTES: usize = 46;
const NAME_LEN_AT: usize = 28;
const EXTRA_LEN_AT: usize = 30;
/// Extra fields: the times in UTC, and the owner.
const TIMES: u16 = 0x5455;
const OWNER: u16 = 0x7875;

/// The files of a zip archive, extracted one at a time.
pub(super) struct Packed {
    archive: ZipArchive<Cursor>,
    /// The file extracted last, with its number.
    last: Option<(usize, Vec<u8>)>,
    /// Long files that are read in place: the checksum of each was found right.
    checked: HashSet<usize>,
}

/// Returns true if a file ends as a zip archive does.
pub(super) fn has_end(store: &mut dyn Store) -> Result<bool> {
    let Some(len) = store.len_bytes()? else { return Ok(false) };
    let tail_bytes = usize::try_from(len).unwrap_or(usize::MAX).min(END_BYTES + COMMENT_MAX_BYTES);
    let mut tail = vec![0; tail_bytes];
    read_exact(store, "tree", len - tail_bytes as u64, &mut tail)?;
    let is_end = |at: &usize| {
        let comment = u16::from_le_bytes([tail[at + 20], tail[at + 21]]);
        tail[*at..].starts_with(b"PK\x05\x06")
            && at + END_BYTES + usize::from(comment) == tail.len()
    };
    Ok((0..(tail.len() + 1).saturating_sub(END_BYTES)).rev().any(|at| is_end(&at)))
}

/// What the extra fields of a file say.
#[derive(Default)]
struct Extra {
    mtime_secs: Option<i64>,
    owner: Option<(u32, u32)>,
}

impl Extra {
    fn parse(mut fields: &[u8]) -> Self {
        let mut this = Self::default();
        while let Some((head, rest)) = fields.split_at_checked(4) {
            let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let Some((data, after)) = rest.split_at_checked(len) else { break };
            match u16::from_le_bytes([head[0], head[1]]) {
                // Only the time of modification is here; the others are in the local header.
                TIMES if data.first().is_some_and(|flags| flags & 1 != 0) => {
                    let secs = data.get(1..5).and_then(|secs| secs.first_chunk());
                    this.mtime_secs = secs.map(|secs| i32::from_le_bytes(*secs).into());
                }
                OWNER => this.owner = owner(data),
                _ => {}
            }
            fields = after;
        }
        this
    }
}

/// Parses owner and group, each a length and so many bytes, in version 1 of the field.
fn owner(data: &[u8]) -> Option<(u32, u32)> {
    let id = |data: &mut &[u8]| -> Option<u32> {
        let (len, rest) = data.split_first()?;
        let (bytes, after) = rest.split_at_checked((*len).into())?;
        *data = after;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        u32::try_from(u64::from_le_bytes(word)).ok()
    };
    let (&1, mut rest) = data.split_first()? else { return None };
    Some((id(&mut rest)?, id(&mut rest)?))
}

/// Reads the extra fields of the record in the central directory that begins at `at`.
fn extra(cursor: &mut Cursor, at: u64) -> std::io::Result<Extra> {
    cursor.seek(SeekFrom::Start(at))?;
    let mut record = [0; RECORD_BYTES];
    cursor.read_exact(&mut record)?;
    let len = |at: usize| usize::from(u16::from_le_bytes([record[at], record[at + 1]]));
    let mut rest = vec![0; len(NAME_LEN_AT) + len(EXTRA_LEN_AT)];
    cursor.read_exact(&mut rest)?;
    Ok(Extra::parse(&rest[len(NAME_LEN_AT)..]))
}

/// Returns the bytes of a name. Names that are no UTF-8 are in the characters of DOS; `..` is left out,
/// as unzip does.
fn name(raw: &[u8], decoded: Option<&str>) -> Vec<u8> {
    let name =
        if std::str::from_utf8(raw).is_ok() { raw } else { decoded.map_or(raw, str::as_bytes) };
    let parts = name.split(|byte| *byte == b'/').filter(|part| *part != b"..");
    parts.collect::<Vec<_>>().join(&b'/')
}

pub(super) fn list(cursor: Cursor) -> Result<(Listing, Packed)> {
    let archive = ZipArchive::new(cursor).map_err(|e| parsed(&e))?;
    let mut records = Vec::with_capacity(archive.len());
    for nr in 0..archive.len() {
        records.push(archive.by_index_data(nr).map_err(|e| parsed(&e))?.central_header_start());
    }
    let mut cursor = archive.into_inner();
    let extras: Vec<Extra> =
        records.iter().map(|at| extra(&mut cursor, *at).unwrap_or_default()).collect();
    check_interrupt()?;
    let mut archive = ZipArchive::new(cursor).map_err(|e| parsed(&e))?;
    let mut listing = Listing::new();
    for nr in 0..archive.len() {
        let entry = archive.by_index_data(nr).map_err(|e| parsed(&e))?;
        let mode = entry.unix_mode();
        let is_link = mode.is_some_and(|mode| mode & 0o170_000 == 0o120_000);
        let (kind, usual) = match (entry.is_dir(), is_link) {
            (true, _) => (FileKind::Directory, 0o755),
            (_, true) => (FileKind::Symlink, 0o777),
            _ => (FileKind::Regular, 0o644),
        };
        let perm = mode.map_or(usual, |mode| (mode & 0o7777) as u16);
        let mut item = Item::new(kind, perm);
        let extra = extras.get(nr).unwrap_or(&Extra { mtime_secs: None, owner: None });
        let local = || entry.last_modified().map_or(0, seconds);
        item.mtime_secs = extra.mtime_secs.unwrap_or_else(local);
        if let Some(owner) = extra.owner {
            (item.uid, item.gid) = owner;
        }
        if kind != FileKind::Directory {
            item.len_bytes = entry.size();
            item.data = match entry.encrypted() {
                true => Data::Unknown(Unknown::Encrypted),
                false => Data::Packed(u32::try_from(nr).map_err(|e| parsed(&e))?),
            };
        }
        let name = name(entry.name_raw(), entry.name().ok().as_deref());
        drop(entry);
        if is_link {
            let mut target = Vec::new();
            let mut entry = archive.by_index(nr).map_err(|e| parsed(&e))?.take(4096);
            entry.read_to_end(&mut target).map_err(|e| parsed(&e))?;
            item.len_bytes = target.len() as u64;
            item.data = listing.add_target(&target)?;
        }
        listing.add(&name, item)?;
    }
    Ok((listing.finish(), Packed { archive, last: None, checked: HashSet::new() }))
}

/// Returns the seconds since 1970, taking the time as UTC, because the zone is not recorded with it; 0
/// if the time is invalid.
fn seconds(time: zip::DateTime) -> i64 {
    let date = Month::try_from(time.month())
        .and_then(|month| Date::from_calendar_date(time.year().into(), month, time.day()))
        .and_then(|date| date.with_hms(time.hour(), time.minute(), time.second()));
    date.map_or(0, |date| date.assume_utc().unix_timestamp())
}

impl Packed {
    /// Returns true for a stored file that is too long to be held.
    pub(super) fn is_read_in_place(&self, nr: usize) -> bool {
        self.archive.by_index_data(nr).is_ok_and(|entry| {
            entry.compression() == CompressionMethod::Stored && entry.size() > PACKED_MAX_BYTES
        })
    }

    /// Reads from such a file. The first time all of it is read, for its checksum.
    pub(super) fn read(&mut self, nr: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        if !self.checked.contains(&nr) {
            let mut entry = self.archive.by_index(nr).map_err(|e| parsed(&e))?;
            std::io::copy(&mut entry, &mut std::io::sink()).map_err(|e| parsed(&e))?;
            self.checked.insert(nr);
        }
        let mut entry = self.archive.by_index_seek(nr).map_err(|e| parsed(&e))?;
        let read = entry.seek(SeekFrom::Start(offset)).and_then(|_| entry.read_exact(buf));
        read.map_err(|e| parsed(&e))
    }

    /// Extracts a file of `len_bytes` bytes, verifying its checksum.
    pub(super) fn file(&mut self, nr: usize, len_bytes: u64) -> Result<&[u8]> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != nr) {
            if len_bytes > PACKED_MAX_BYTES {
                let what = format!("a packed file of more than {PACKED_MAX_BYTES} bytes");
                return Err(Error::Limit { stage: "tree", offset: 0, what });
            }
            self.last = None;
            let entry = self.archive.by_index(nr).map_err(|e| parsed(&e))?;
            let mut whole = Vec::new();
            // Reading to the end verifies the checksum; no more is read than the declared length.
            entry.take(len_bytes + 1).read_to_end(&mut whole).map_err(|e| parsed(&e))?;
            if whole.len() as u64 != len_bytes {
                return Err(corrupt(0, "a file of another length than the archive says"));
            }
            self.last = Some((nr, whole));
        }
        Ok(self.last.as_ref().map(|(_, whole)| &whole[..]).unwrap_or_default())
    }
}
