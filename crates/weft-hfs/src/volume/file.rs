//! A file in memory: its record, and the extents of its forks.

use super::map::{ForkMap, load_map};
use super::state::Volume;
use crate::btree::Path;
use crate::layout::{
    CatalogKey, CatalogRecord, ExtentKey, ExtentRecord, FILE_BYTES, FileRecord, Fork, Name, changed,
};
use crate::store::Store;
use crate::{Error, Result};
use alloc::vec::Vec;

/// The position of a record in the catalog, valid while the catalog's records do not move.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    pub version: u64,
    pub path: Path,
    pub offset: usize,
}

/// Content of a fork that was read ahead. Every change of the fork discards it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead {
    bytes: Vec<u8>,
    fork: Fork,
    start: u64,
    /// The offset at which a sequential read would continue.
    next: Option<u64>,
}

impl Ahead {
    /// Bytes that are read at once.
    pub const BYTES: usize = 64 << 10;

    /// Fills `buf` if all of its bytes are here; returns their number.
    pub fn read(&mut self, fork: Fork, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = at.checked_add(buf.len())?;
        if fork != self.fork || buf.is_empty() {
            return None;
        }
        buf.copy_from_slice(self.bytes.get(at..end)?);
        self.next = Some(offset + buf.len() as u64);
        Some(buf.len())
    }

    /// Records a read of `len` bytes. If reads are sequential and short, returns a buffer to be
    /// filled from `offset` on and [kept](Self::keep).
    pub fn plan(&mut self, fork: Fork, offset: u64, len: usize, left: u64) -> Option<Vec<u8>> {
        let in_a_row = self.fork == fork && self.next == Some(offset);
        self.fork = fork;
        self.next = Some(offset + len as u64);
        self.bytes.clear();
        if !in_a_row || len > Self::BYTES / 4 {
            return None;
        }
        let fill = usize::try_from(left).unwrap_or(usize::MAX).min(Self::BYTES);
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.resize(fill.max(len), 0);
        Some(bytes)
    }

    /// Keeps the content of a fork from `offset` on, of which `used` bytes have been read. The fork
    /// must not have changed since.
    pub fn keep(&mut self, fork: Fork, offset: u64, used: usize, bytes: Vec<u8>) {
        *self = Self { bytes, fork, start: offset, next: Some(offset + used as u64) };
    }

    /// Discards the buffer, as the fork changes.
    pub fn forget(&mut self) {
        self.bytes.clear();
        self.next = None;
    }
}

/// An open file.
#[derive(Debug, Clone)]
pub struct File {
    /// The folder that holds the file.
    pub parent: u32,
    /// The file's name.
    pub name: Name,
    /// The record of the file, as the catalog has it or shall have it.
    pub record: FileRecord,
    pub(crate) maps: [Option<ForkMap>; 2],
    pub(crate) spot: Option<Spot>,
    /// The record as the catalog has it.
    pub(crate) stored: [u8; FILE_BYTES],
    /// The file has lost its name: nothing of it is on the disk any more.
    pub(crate) deleted: bool,
    pub(crate) ahead: Ahead,
    /// The number of changes of content or length: a read of the device without the lock compares
    /// it.
    pub(crate) changes: u64,
}

impl File {
    pub(crate) fn new(parent: u32, name: Name, record: FileRecord) -> Self {
        Self {
            parent,
            name,
            record,
            maps: [None, None],
            spot: None,
            stored: CatalogRecord::File(record).encode().0,
            deleted: false,
            ahead: Ahead { next: Some(0), ..Ahead::default() },
            changes: 0,
        }
    }

    /// Records that the content or the length of a fork changes.
    pub(crate) fn content_changes(&mut self) {
        self.ahead.forget();
        self.changes += 1;
    }

    /// Sets the new folder and name of a file that was moved.
    pub fn move_to(&mut self, parent: u32, name: Name) {
        self.parent = parent;
        self.name = name;
        self.spot = None;
    }

    /// Marks the file as deleted, as another item took its name.
    pub fn set_deleted(&mut self) {
        self.deleted = true;
    }

    /// Returns the id of the file.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.record.id
    }

    /// Returns the length of a fork in bytes.
    #[must_use]
    pub fn len_bytes(&self, fork: Fork) -> u32 {
        self.record.fork(fork).len_bytes
    }

    /// Returns how many of `want` bytes a read from `offset` on gets.
    pub(crate) fn readable(&self, fork: Fork, offset: u64, want: usize) -> usize {
        let left = u64::from(self.len_bytes(fork)).saturating_sub(offset);
        usize::try_from(left).unwrap_or(usize::MAX).min(want)
    }

    /// Returns true if the last name of the file is gone.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    pub(crate) fn map_ref(&self, fork: Fork) -> Option<&ForkMap> {
        self.maps.get(fork.index()).and_then(Option::as_ref)
    }

    pub(crate) fn map_mut(&mut self, fork: Fork) -> &mut ForkMap {
        let [data, resource] = &mut self.maps;
        let map = match fork {
            Fork::Data => data,
            Fork::Resource => resource,
        };
        map.get_or_insert_default()
    }
}

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Returns the map of a fork, and reads it if it is not known.
    pub(crate) fn map<'f, S: Store<Patch = P>>(
        &self,
        s: &mut S,
        file: &'f mut File,
        fork: Fork,
    ) -> Result<&'f mut ForkMap> {
        if file.map_ref(fork).is_none() {
            let sizes = *file.record.fork(fork);
            if sizes.space_bytes == 0 && sizes.extents == ExtentRecord::default() {
                return Ok(file.map_mut(fork));
            }
            let of = (file.id(), fork);
            let map = load_map(s, &self.extents, &self.mdb, of, &sizes.extents, sizes.space_bytes)?;
            *file.map_mut(fork) = map;
        }
        Ok(file.map_mut(fork))
    }

    /// Finds a file and reads its record.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    pub fn open_file<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        parent: u32,
        name: &Name,
    ) -> Result<File> {
        match self.lookup(s, parent, name)? {
            (key, CatalogRecord::File(record)) => Ok(File::new(parent, key.name, record)),
            (_, CatalogRecord::Directory(_)) => Err(Error::IsADirectory),
            (_, CatalogRecord::Thread(_)) => Err(Error::NotFound),
        }
    }

    /// Writes the changed part of a file's record; the write follows `befores`.
    pub(crate) fn write_record<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        befores: &[P],
    ) -> Result<P> {
        if file.deleted {
            return Ok(S::DURABLE);
        }
        let (raw, _) = CatalogRecord::File(file.record).encode();
        let Some(range) = changed(&file.stored, &raw) else { return Ok(S::DURABLE) };
        let first = range.start;
        let bytes = raw.get(range).unwrap_or(&[]);
        if file.spot.as_ref().is_none_or(|spot| spot.version != self.catalog.version) {
            let (key, len) = CatalogKey::new(file.parent, file.name).encode();
            let path = self.catalog.find(s, key.get(..len).unwrap_or(&key))?;
            let offset = self.catalog.value_place(s, &path, FILE_BYTES)?;
            file.spot = Some(Spot { version: self.catalog.version, path, offset });
        }
        let Some(spot) = &file.spot else { return Err(Error::NotFound) };
        let patch = match self.moved_by(s, file.record.id) {
            Some(moved) => {
                let waits: crate::btree::Befores<P> =
                    befores.iter().copied().chain([moved]).collect();
                self.catalog.update_at(s, &spot.path, spot.offset + first, bytes, &waits)?
            }
            None => self.catalog.update_at(s, &spot.path, spot.offset + first, bytes, befores)?,
        };
        file.stored = raw;
        Ok(patch)
    }

    /// Returns the key in the extents file of the record that begins at block `at` of a fork.
    pub(crate) fn overflow_key(id: u32, fork: Fork, at: u32) -> Result<[u8; ExtentKey::BYTES]> {
        let block = u16::try_from(at).map_err(|_| Error::TooLarge)?;
        Ok(ExtentKey { file_id: id, fork, block }.encode())
    }
}
