//! Archives as directory trees: their members, and the content of each file.
//!
//! An archive is listed once, when it is opened. No name can escape the tree: names are split at
//! slashes, and members with `..` in their names are skipped. A compressed file is extracted as a
//! whole, and served only if it matches the checksum in the archive.

mod cursor;
mod listing;
mod sparse;
mod tar;
#[cfg(test)]
mod tests;
mod zip;

use self::cursor::Cursor;
use self::listing::{Data, Listing};
pub(crate) use self::listing::{Item, OF_ARCHIVE};
use weft_vfs::check_interrupt;

use crate::store::{Store, measured_len};
use crate::{Error, Result};

/// Maximum size of a file that is extracted as a whole, in bytes: it is held in memory.
const PACKED_MAX_BYTES: u64 = 64 << 20;

fn corrupt(offset: u64, what: impl Into<String>) -> Error {
    Error::Corrupt { stage: "tree", offset, what: what.into() }
}

/// A listed archive.
pub(crate) struct Archive {
    listing: Listing,
    content: Content,
    damage: Option<String>,
}

enum Content {
    Tar(Box<dyn Store>, Vec<sparse::Sparse>),
    Zip(Box<zip::Packed>),
}

impl Archive {
    /// Lists the archive in `store`; returns `None` if it is not an archive.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Limit`], and those of the file below.
    pub(crate) fn open(mut store: Box<dyn Store>) -> Result<Option<Self>> {
        let mut head = [0; 512];
        let got = store.read_at(0, &mut head)?;
        let head = &head[..got];
        let is_tar = tar::begins_with(head) || tar::is_empty(&mut *store)?;
        // A zip may have anything in front of it, such as a program that extracts it.
        let is_zip = !is_tar
            && (head.starts_with(b"PK\x03\x04")
                || head.starts_with(b"PK\x05\x06")
                || zip::has_end(&mut *store)?);
        if !is_zip && !is_tar {
            return Ok(None);
        }
        let len = measured_len(&mut *store, "tree", i64::MAX.cast_unsigned())?;
        Ok(Some(if is_zip {
            let (listing, packed) = zip::list(Cursor::new(store, len))?;
            Self { listing, content: Content::Zip(Box::new(packed)), damage: None }
        } else {
            let listed = tar::list(Cursor::new(store, len))?;
            let (listing, damage) = (listed.listing, listed.damage);
            Self { listing, content: Content::Tar(listed.store, listed.sparse), damage }
        }))
    }

    /// Returns an error if damaged members were left out of the listing.
    pub(crate) fn check_whole(&self) -> Result<()> {
        match &self.damage {
            Some(damage) => Err(corrupt(0, format!("not all is listed: {damage}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn item(&self, nr: usize) -> Option<&Item> {
        self.listing.item(nr)
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn target(&self, nr: usize) -> &[u8] {
        self.listing.target(nr)
    }

    /// Returns the number of the item `name` in the directory `nr`.
    pub(crate) fn child(&self, nr: usize, name: &[u8]) -> Option<usize> {
        self.listing.child(nr, name)
    }

    /// Returns the items of the directory `nr` with their names, in name order, without the first
    /// `skip`.
    pub(crate) fn children(&self, nr: usize, skip: usize) -> impl Iterator<Item = (usize, &[u8])> {
        self.listing.children(nr, skip)
    }

    /// Reads from a file; returns fewer bytes than `buf` holds only at its end.
    pub(crate) fn read(&mut self, nr: usize, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(item) = self.listing.item(nr) else { return Ok(0) };
        let left = item.len_bytes.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..len];
        match (item.data, &mut self.content) {
            _ if len == 0 => {}
            (Data::Plain(start), Content::Tar(store, _)) => {
                crate::store::read_exact(&mut **store, "tree", start + offset, buf)?;
            }
            (Data::Sparse(nr), Content::Tar(store, sparse)) => match sparse.get_mut(nr as usize) {
                Some(sparse) => sparse.read(&mut **store, offset, buf)?,
                None => return Err(corrupt(offset, "no content")),
            },
            (Data::Packed(entry), Content::Zip(packed))
                if packed.is_read_in_place(entry as usize) =>
            {
                packed.read(entry as usize, offset, buf)?;
            }
            (Data::Packed(entry), Content::Zip(packed)) => {
                let whole = packed.file(entry as usize, item.len_bytes)?;
                // Its length is the item's.
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = whole.get(from..from.saturating_add(len));
                buf.copy_from_slice(bytes.ok_or_else(|| corrupt(offset, "a file cut short"))?);
            }
            (Data::Unknown(why), _) => return Err(corrupt(offset, why.text())),
            _ => return Err(corrupt(offset, "no content")),
        }
        Ok(len)
    }
}

/// Converts an error of an archive parser.
fn parsed(e: &dyn std::fmt::Display) -> Error {
    check_interrupt().map_or_else(Error::from, |()| corrupt(0, e.to_string()))
}
