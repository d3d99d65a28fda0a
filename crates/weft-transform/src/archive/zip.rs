//! zip, by the `zip` crate: stored and deflated files.

use std::io::Read;

use time::{Date, Month};
use weft_vfs::FileKind;
use zip::ZipArchive;

use super::cursor::Cursor;
use super::listing::{Data, Item, Listing, Unknown};
use super::{PACKED_MAX_BYTES, corrupt, parsed};
use crate::{Error, Result};

/// The files of a zip archive, extracted one at a time.
pub(super) struct Packed {
    archive: ZipArchive<Cursor>,
    /// The file extracted last, with its number.
    last: Option<(usize, Vec<u8>)>,
}

pub(super) fn list(cursor: Cursor) -> Result<(Listing, Packed)> {
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
        item.mtime_secs = entry.last_modified().map_or(0, seconds);
        if kind != FileKind::Directory {
            item.len_bytes = entry.size();
            item.data = match entry.encrypted() {
                true => Data::Unknown(Unknown::Encrypted),
                false => Data::Packed(u32::try_from(nr).map_err(|e| parsed(&e))?),
            };
        }
        let name = entry.name_raw().to_vec();
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
    Ok((listing.finish(), Packed { archive, last: None }))
}

/// Returns the seconds since 1970, taking the time as UTC, because zip does not record the zone; 0
/// if the time is invalid.
fn seconds(time: zip::DateTime) -> i64 {
    let date = Month::try_from(time.month())
        .and_then(|month| Date::from_calendar_date(time.year().into(), month, time.day()))
        .and_then(|date| date.with_hms(time.hour(), time.minute(), time.second()));
    date.map_or(0, |date| date.assume_utc().unix_timestamp())
}

impl Packed {
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
