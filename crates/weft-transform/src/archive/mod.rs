//! Archives as trees: what is in them, and the bytes of each file.
//!
//! An archive is listed once, when it is opened. Nothing in it leads out of it: names are taken
//! apart at their slashes, and what is `..` is left out. A file that is packed is taken out as a
//! whole, and counts only with the checksum that the archive has of it.

mod sparse;
mod tar;
mod zip;

use std::collections::BTreeMap;
use std::io::{Error as IoError, Read, Result as IoResult, Seek, SeekFrom};

use weft_vfs::{FileKind, Time};

use crate::store::Store;
use crate::{Error, Result};

/// Files and directories of an archive, at most.
const NODES_MAX: usize = 1_000_000;
/// Directories one in the other, at most.
const DEPTH_MAX: usize = 128;
/// The longest file that is taken out as a whole, in bytes: it is held in memory.
const PACKED_MAX_BYTES: u64 = 64 << 20;

/// Something in an archive.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) len_bytes: u64,
    /// Where a symbolic link leads.
    pub(crate) target: Vec<u8>,
    data: Data,
    pub(crate) parent: usize,
    pub(crate) children: BTreeMap<Vec<u8>, usize>,
}

/// Where the bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    None,
    /// As they are, from this byte of the archive on.
    Plain(u64),
    /// The entry of this number of a zip.
    Packed(usize),
    /// The sparse file of this number of a tar.
    Sparse(usize),
    /// In a form that is not read here.
    Unknown(&'static str),
}

impl Item {
    fn new(kind: FileKind, perm: u16) -> Self {
        Self {
            kind,
            perm,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            len_bytes: 0,
            target: Vec::new(),
            data: Data::None,
            parent: 0,
            children: BTreeMap::new(),
        }
    }

    fn directory() -> Self {
        Self::new(FileKind::Directory, 0o755)
    }
}

/// What is in an archive: the first is its root.
#[derive(Debug)]
struct Listing(Vec<Item>);

fn corrupt(offset: u64, what: impl Into<String>) -> Error {
    Error::Corrupt { stage: "tree", offset, what: what.into() }
}

impl Listing {
    fn new() -> Self {
        Self(vec![Item::directory()])
    }

    /// The parts of a name, or `None` if it leads out.
    fn parts(name: &[u8]) -> Option<Vec<&[u8]>> {
        let parts = name.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
        let parts: Vec<&[u8]> = parts.collect();
        let fits = |part: &&[u8]| *part != b".." && part.len() <= 255 && !part.contains(&0);
        (parts.len() <= DEPTH_MAX && parts.iter().all(fits)).then_some(parts)
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let parts = Self::parts(name)?;
        parts.into_iter().try_fold(0, |at, part| self.0.get(at)?.children.get(part).copied())
    }

    /// Adds an item under a name; directories on the way are made. A later one of the same name
    /// takes the place of an earlier one.
    fn add(&mut self, name: &[u8], mut item: Item) -> Result<()> {
        let Some(parts) = Self::parts(name) else { return Ok(()) };
        let Some((last, way)) = parts.split_last() else {
            // The root itself.
            let children = std::mem::take(&mut self.0[0].children);
            if item.kind == FileKind::Directory {
                self.0[0] = Item { children, parent: 0, ..item };
            } else {
                self.0[0].children = children;
            }
            return Ok(());
        };
        let mut at = 0;
        for part in way {
            at = match self.0[at].children.get(*part) {
                Some(&there) if self.0[there].kind == FileKind::Directory => there,
                _ => self.push(at, part, Item::directory())?,
            };
        }
        match self.0[at].children.get(*last).copied() {
            Some(there) if self.0[there].kind == item.kind => {
                item.parent = at;
                item.children = std::mem::take(&mut self.0[there].children);
                self.0[there] = item;
            }
            _ => drop(self.push(at, last, item)?),
        }
        Ok(())
    }

    fn push(&mut self, parent: usize, name: &[u8], mut item: Item) -> Result<usize> {
        let nr = self.0.len();
        if nr >= NODES_MAX {
            let what = format!("an archive of more than {NODES_MAX} files");
            return Err(Error::Limit { stage: "tree", offset: 0, what });
        }
        item.parent = parent;
        self.0.push(item);
        self.0[parent].children.insert(name.to_vec(), nr);
        Ok(nr)
    }
}

/// An archive that was listed.
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
    /// Lists the archive in `store`; `None` if it is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Limit`], and those of the file below.
    pub(crate) fn open(mut store: Box<dyn Store>) -> Result<Option<Self>> {
        let mut head = [0; 512];
        let got = store.read_at(0, &mut head)?;
        let head = &head[..got];
        let is_zip = head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06");
        let is_tar = head.get(257..262) == Some(b"ustar");
        if !is_zip && !is_tar {
            return Ok(None);
        }
        let Some(len) = store.len_bytes()? else {
            return Err(corrupt(0, "an archive whose length is not known"));
        };
        Ok(Some(if is_zip {
            let (listing, packed) = zip::list(Cursor { store, base: 0, at: 0, len })?;
            Self { listing, content: Content::Zip(Box::new(packed)), damage: None }
        } else {
            let listed = tar::list(Cursor { store, base: 0, at: 0, len })?;
            let (listing, damage) = (listed.listing, listed.damage);
            Self { listing, content: Content::Tar(listed.store, listed.sparse), damage }
        }))
    }

    /// An error if something was left out of the list, as it makes no sense.
    pub(crate) fn check_whole(&self) -> Result<()> {
        match &self.damage {
            Some(damage) => Err(corrupt(0, format!("not all is listed: {damage}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn item(&self, nr: usize) -> Option<&Item> {
        self.listing.0.get(nr)
    }

    /// Reads from a file; fewer bytes than asked only at its end.
    pub(crate) fn read(&mut self, nr: usize, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(item) = self.listing.0.get(nr) else { return Ok(0) };
        let left = item.len_bytes.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..len];
        match (item.data, &mut self.content) {
            _ if len == 0 => {}
            (Data::Plain(start), Content::Tar(store, _)) => {
                crate::store::read_exact(&mut **store, "tree", start + offset, buf)?;
            }
            (Data::Sparse(nr), Content::Tar(store, sparse)) => match sparse.get_mut(nr) {
                Some(sparse) => sparse.read(&mut **store, offset, buf)?,
                None => return Err(corrupt(offset, "no content")),
            },
            (Data::Packed(entry), Content::Zip(packed)) => {
                let whole = packed.file(entry, item.len_bytes)?;
                // Its length is that of the item.
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = whole.get(from..from.saturating_add(len));
                buf.copy_from_slice(bytes.ok_or_else(|| corrupt(offset, "a file cut short"))?);
            }
            (Data::Unknown(what), _) => return Err(corrupt(offset, what)),
            _ => return Err(corrupt(offset, "no content")),
        }
        Ok(len)
    }
}

/// A store as the parsers read it.
struct Cursor {
    store: Box<dyn Store>,
    /// Where the archive begins for its parser, to which positions are relative.
    base: u64,
    at: u64,
    /// From the base on.
    len: u64,
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> IoResult<usize> {
        let got =
            self.store.read_at(self.base.saturating_add(self.at), buf).map_err(IoError::other)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> IoResult<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// What an error of a parser is about.
fn parsed(e: &dyn std::fmt::Display) -> Error {
    corrupt(0, e.to_string())
}
