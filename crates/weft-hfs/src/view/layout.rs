//! The bytes of an AppleDouble around its resource fork.
//!
//! Each program writes a header of its own. That of an AppleDouble which was written here is
//! remembered while the volume is open, so that the file reads back as it was written as long as
//! the volume says the same. Otherwise the header is weft's: the short one that unar writes too if
//! that says all there is, and else one with dates and lock.

use crate::interchange::Meta;
use crate::interchange::apple::{self, Kind, Version};
use std::collections::{HashMap, VecDeque};
use std::io::Cursor;
use weft_vfs::{Error, Ino, Result};

/// The longest layout that is remembered, and the most bytes of all.
const LAYOUT_MAX_BYTES: usize = 64 << 10;
const ALL_MAX_BYTES: usize = 8 << 20;

/// The ids of entries.
const DATA: u32 = 1;
const RESOURCE: u32 = 2;
const FILE_INFO: u32 = 7;
const FINDER_INFO: u32 = 9;
const MAC_INFO: u32 = 10;

/// The content of a whole AppleDouble: what its entries say, and the place of its resource fork.
#[derive(Debug, Clone)]
pub(super) struct Entries {
    meta: Meta,
    has_finder_info: bool,
    has_lock: bool,
    /// The offset of the resource fork, and its length.
    pub fork: (usize, usize),
}

impl Entries {
    /// Returns the entries of a whole AppleDouble; `None` for other bytes, for an AppleSingle (it has
    /// a data fork, which would be lost), and if the resource fork is there twice or overlaps other
    /// parts.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header = apple::open(&mut Cursor::new(bytes)).ok()?;
        let count = usize::from(u16::from_be_bytes([*bytes.get(24)?, *bytes.get(25)?]));
        let table = bytes.get(26..26 + 12 * count)?;
        let has = |id: u32| table.chunks_exact(12).any(|entry| entry[..4] == id.to_be_bytes());
        if header.kind != Kind::Double || has(DATA) {
            return None;
        }
        let fork = (header.resource_at as usize, header.meta.resource_bytes as usize);
        let is_apart = |at: usize, len: usize| at + len <= fork.0 || fork.0 + fork.1 <= at;
        let mut forks = 0;
        for entry in table.chunks_exact(12) {
            let field =
                |at: usize| entry[at..at + 4].iter().fold(0, |n, b| n << 8 | usize::from(*b));
            if field(0) == RESOURCE as usize {
                forks += 1;
            } else if fork.1 > 0 && !is_apart(field(4), field(8)) {
                return None;
            }
        }
        if forks > 1 || fork.1 > 0 && !is_apart(0, 26 + 12 * count) {
            return None;
        }
        Some(Self {
            has_finder_info: has(FINDER_INFO),
            has_lock: has(MAC_INFO) || header.version == Version::V1 && has(FILE_INFO),
            fork,
            meta: header.meta,
        })
    }

    /// Returns true if the date of the last change is said.
    pub fn has_modified(&self) -> bool {
        self.meta.modified != 0
    }

    /// The dates: those of the volume, and those that are said (0: not said).
    fn dates<'m>(&self, meta: &'m mut Meta) -> [(&'m mut u32, u32); 3] {
        [
            (&mut meta.created, self.meta.created),
            (&mut meta.modified, self.meta.modified),
            (&mut meta.backed_up, self.meta.backed_up),
        ]
    }

    /// Changes `meta` to what the entries say.
    pub fn set(&self, meta: &mut Meta) {
        if self.has_finder_info {
            meta.finder_info = self.meta.finder_info;
        }
        if self.has_lock {
            meta.locked = self.meta.locked;
        }
        for (date, said) in self.dates(meta) {
            if said != 0 {
                *date = said;
            }
        }
    }
}

/// The bytes before and after the resource fork.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    entries: Option<Entries>,
}

impl Layout {
    /// Returns weft's own layout. It leaves names out: they follow the file's.
    pub fn of(meta: &Meta) -> Result<Self> {
        let meta = Meta { name: Vec::new(), comment: Vec::new(), ..meta.clone() };
        // A file that was never changed or backed up, as far as the volume knows: the dates are
        // those of the data fork's file.
        let is_short = meta.created == meta.modified && meta.backed_up == 0 && !meta.locked;
        let before = if is_short {
            apple::short_header(&meta)
        } else {
            apple::header(&meta, Kind::Double, Version::V2)
        };
        let before = before.map_err(|_| Error::TooLarge)?;
        Ok(Self { before, after: Vec::new(), entries: None })
    }

    /// Returns the layout of a whole AppleDouble with its resource fork at `at`.
    pub fn parse(bytes: &[u8], at: usize, len: usize) -> Option<Self> {
        let entries = Entries::parse(bytes)?;
        // A fork of no bytes may be anywhere.
        let (before, after) = (bytes.get(..at)?, bytes.get(at + len..)?);
        Some(Self { before: before.to_vec(), after: after.to_vec(), entries: Some(entries) })
    }

    /// Returns whether the layout says what the volume says.
    pub fn says(&self, meta: &Meta) -> bool {
        let Some(entries) = &self.entries else { return true };
        let mut said = meta.clone();
        entries.set(&mut said);
        said == *meta && meta.resource_bytes == entries.fork.1 as u64
    }

    /// Returns true if the date of the last change is said.
    pub fn has_modified(&self) -> bool {
        self.entries.as_ref().is_some_and(Entries::has_modified)
    }

    pub fn len_bytes(&self, resource_bytes: u64) -> u64 {
        (self.before.len() + self.after.len()) as u64 + resource_bytes
    }
}

/// The layouts of AppleDoubles that were written, by the inode number of their file. The oldest are
/// dropped.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    all: HashMap<Ino, Layout>,
    order: VecDeque<Ino>,
    bytes: usize,
}

impl Layouts {
    pub fn get(&self, base: Ino) -> Option<&Layout> {
        self.all.get(&base)
    }

    pub fn forget(&mut self, base: Ino) {
        if let Some(layout) = self.all.remove(&base) {
            self.bytes -= layout.len_bytes(0) as usize;
            self.order.retain(|ino| *ino != base);
        }
    }

    pub fn remember(&mut self, base: Ino, layout: Layout) {
        self.forget(base);
        let len = layout.len_bytes(0) as usize;
        if len > LAYOUT_MAX_BYTES {
            return;
        }
        while self.bytes + len > ALL_MAX_BYTES {
            let Some(oldest) = self.order.front().copied() else { return };
            self.forget(oldest);
        }
        self.bytes += len;
        self.order.push_back(base);
        self.all.insert(base, layout);
    }
}
