//! Keys and records of the catalog.

use super::extent::{parse_extents, put_extents};
use super::{
    DInfo, DXInfo, ExtentRecord, FInfo, FXInfo, Fork, Name, get, get8, get16, get32, put, put16,
    put32,
};
use crate::{Error, Result};
use alloc::format;
use bitflags::bitflags;
use core::cmp::Ordering;

/// Bytes of a directory record.
pub const DIRECTORY_BYTES: usize = 70;
/// Bytes of a file record.
pub const FILE_BYTES: usize = 102;
/// Bytes of a thread record.
pub const THREAD_BYTES: usize = 46;

/// The value that weft puts into the last reserved word of a record while its item is being moved,
/// without a journal: of two records of one item, the marked one is the old one. See
/// [`volume`](crate::volume).
pub const MOVE_MARK: u32 = 0x7765_6674;

/// A key of the catalog (`CatKeyRec`): sorted by parent, then name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CatalogKey {
    /// `ckrParID`
    pub parent: u32,
    /// `ckrCName`
    pub name: Name,
}

impl CatalogKey {
    /// Bytes of the longest encoded key, its length byte included; every index key has this length.
    pub const MAX_BYTES: usize = 38;

    /// The key of an item.
    #[must_use]
    pub fn new(parent: u32, name: Name) -> Self {
        Self { parent, name }
    }

    /// The key of the thread of an item.
    #[must_use]
    pub fn thread(id: u32) -> Self {
        Self { parent: id, name: Name::EMPTY }
    }

    /// Reads an encoded key.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the problem.
    pub fn parse(raw: &[u8]) -> Result<Self> {
        let len = usize::from(get8(raw, 0));
        let name = Name::parse(raw, 6, Name::MAX_BYTES);
        match name {
            Some(name) if 6 + name.len() <= len => Ok(Self { parent: get32(raw, 2), name }),
            _ => Err(Error::Invalid(format!(
                "a key of {len} bytes cannot hold a name of {} bytes",
                get8(raw, 6)
            ))),
        }
    }

    /// Returns the encoded key, and the number of its valid bytes.
    #[must_use]
    pub fn encode(&self) -> ([u8; Self::MAX_BYTES], usize) {
        let mut raw = [0; Self::MAX_BYTES];
        let len = self.name.len();
        // A name has at most 31 bytes.
        #[expect(clippy::cast_possible_truncation)]
        put(&mut raw, 0, &[6 + len as u8]);
        put32(&mut raw, 2, self.parent);
        #[expect(clippy::cast_possible_truncation)]
        put(&mut raw, 6, &[len as u8]);
        put(&mut raw, 7, self.name.as_bytes());
        (raw, 7 + len)
    }

    /// Compares encoded keys. A name that is longer than its key is cut at the key's end.
    #[must_use]
    pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
        let name = |raw: &'_ [u8]| {
            let end = (7 + usize::from(get8(raw, 6))).min(raw.len());
            7.min(end)..end
        };
        get32(a, 2).cmp(&get32(b, 2)).then_with(|| {
            let (a, b) = (a.get(name(a)).unwrap_or(&[]), b.get(name(b)).unwrap_or(&[]));
            crate::relstring::compare(a, b)
        })
    }
}

/// A folder (`cdrDirRec`). Dates are seconds since 1904, in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryRecord {
    /// `dirFlags`: none are defined on disk.
    pub flags: u16,
    /// `dirVal`: number of items in the folder.
    pub valence: u16,
    /// `dirDirID`
    pub id: u32,
    /// `dirCrDat`
    pub created: u32,
    /// `dirMdDat`
    pub modified: u32,
    /// `dirBkDat`
    pub backed_up: u32,
    /// `dirUsrInfo`
    pub info: DInfo,
    /// `dirFndrInfo`
    pub xinfo: DXInfo,
    /// `dirResrv`: zeroes.
    pub reserved: [u32; 4],
}

bitflags! {
    /// `filFlags`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FileFlags: u8 {
        /// The file must not be changed.
        const LOCKED = 1;
        /// The file has a thread record.
        const THREAD = 1 << 1;
        /// The record is in use.
        const USED = 1 << 7;
        /// Bits set by other systems are kept.
        const _ = !0;
    }
}

/// The lengths and first extents of one fork, as the file record stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForkSizes {
    /// `filStBlk` or `filRStBlk`: must be 0.
    pub start_block: u16,
    /// `filLgLen` or `filRLgLen`: length in bytes.
    pub len_bytes: u32,
    /// `filPyLen` or `filRPyLen`: allocated space in bytes.
    pub space_bytes: u32,
    /// `filExtRec` or `filRExtRec`: first three extents.
    pub extents: ExtentRecord,
}

/// A file (`cdrFilRec`). Dates are seconds since 1904, in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileRecord {
    /// `filFlags`
    pub flags: FileFlags,
    /// `filTyp`: must be 0.
    pub version: u8,
    /// `filUsrWds`
    pub info: FInfo,
    /// `filFlNum`
    pub id: u32,
    /// The data and the resource fork.
    pub forks: [ForkSizes; 2],
    /// `filCrDat`
    pub created: u32,
    /// `filMdDat`
    pub modified: u32,
    /// `filBkDat`
    pub backed_up: u32,
    /// `filFndrInfo`
    pub xinfo: FXInfo,
    /// `filClpSize`: clump size in bytes, 0 for the volume's.
    pub clump_bytes: u16,
    /// `filResrv`: 0.
    pub reserved: u32,
}

impl FileRecord {
    /// Returns the fields of a fork.
    #[must_use]
    pub fn fork(&self, fork: Fork) -> &ForkSizes {
        let [data, resource] = &self.forks;
        match fork {
            Fork::Data => data,
            Fork::Resource => resource,
        }
    }

    /// Returns the fields of a fork, mutable.
    pub fn fork_mut(&mut self, fork: Fork) -> &mut ForkSizes {
        let [data, resource] = &mut self.forks;
        match fork {
            Fork::Data => data,
            Fork::Resource => resource,
        }
    }
}

/// The folder and the name of the item with a given id (`cdrThdRec`, `cdrFThdRec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadRecord {
    /// The item is a file.
    pub of_file: bool,
    /// `thdParID`
    pub parent: u32,
    /// `thdCName`
    pub name: Name,
}

/// A leaf record of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // lives on the stack, one at a time
pub enum CatalogRecord {
    /// A folder.
    Directory(DirectoryRecord),
    /// A file.
    File(FileRecord),
    /// A thread.
    Thread(ThreadRecord),
}

impl CatalogRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the problem.
    pub fn parse(raw: &[u8]) -> Result<Self> {
        let (kind, need) = match get8(raw, 0) {
            kind @ 1 => (kind, DIRECTORY_BYTES),
            kind @ 2 => (kind, FILE_BYTES),
            kind @ (3 | 4) => (kind, THREAD_BYTES),
            kind => return Err(Error::Invalid(format!("unknown record type {kind}"))),
        };
        if raw.len() < need {
            return Err(Error::Invalid(format!(
                "record length is {}, should be {need}",
                raw.len()
            )));
        }
        Ok(match kind {
            1 => Self::Directory(DirectoryRecord {
                flags: get16(raw, 2),
                valence: get16(raw, 4),
                id: get32(raw, 6),
                created: get32(raw, 10),
                modified: get32(raw, 14),
                backed_up: get32(raw, 18),
                info: DInfo::parse(&get(raw, 22)),
                xinfo: DXInfo::parse(&get(raw, 38)),
                reserved: [54, 58, 62, 66].map(|at| get32(raw, at)),
            }),
            2 => Self::File(FileRecord {
                flags: FileFlags::from_bits_retain(get8(raw, 2)),
                version: get8(raw, 3),
                info: FInfo::parse(&get(raw, 4)),
                id: get32(raw, 20),
                forks: [(24, 74), (34, 86)].map(|(at, extents)| ForkSizes {
                    start_block: get16(raw, at),
                    len_bytes: get32(raw, at + 2),
                    space_bytes: get32(raw, at + 6),
                    extents: parse_extents(raw, extents),
                }),
                created: get32(raw, 44),
                modified: get32(raw, 48),
                backed_up: get32(raw, 52),
                xinfo: FXInfo::parse(&get(raw, 56)),
                clump_bytes: get16(raw, 72),
                reserved: get32(raw, 98),
            }),
            _ => Self::Thread(ThreadRecord {
                of_file: kind == 4,
                parent: get32(raw, 10),
                name: Name::parse(raw, 14, Name::MAX_BYTES).ok_or_else(|| {
                    Error::Invalid("the name in a thread record is too long".into())
                })?,
            }),
        })
    }

    /// Returns the encoded record, and the number of its valid bytes.
    #[must_use]
    pub fn encode(&self) -> ([u8; FILE_BYTES], usize) {
        let mut raw = [0; FILE_BYTES];
        let len = match self {
            Self::Directory(dir) => {
                put(&mut raw, 0, &[1]);
                put16(&mut raw, 2, dir.flags);
                put16(&mut raw, 4, dir.valence);
                put32(&mut raw, 6, dir.id);
                put32(&mut raw, 10, dir.created);
                put32(&mut raw, 14, dir.modified);
                put32(&mut raw, 18, dir.backed_up);
                put(&mut raw, 22, &dir.info.encode());
                put(&mut raw, 38, &dir.xinfo.encode());
                for (i, word) in dir.reserved.iter().enumerate() {
                    put32(&mut raw, 54 + 4 * i, *word);
                }
                DIRECTORY_BYTES
            }
            Self::File(file) => {
                put(&mut raw, 0, &[2, 0, file.flags.bits(), file.version]);
                put(&mut raw, 4, &file.info.encode());
                put32(&mut raw, 20, file.id);
                for ((at, extents), fork) in [(24, 74), (34, 86)].into_iter().zip(&file.forks) {
                    put16(&mut raw, at, fork.start_block);
                    put32(&mut raw, at + 2, fork.len_bytes);
                    put32(&mut raw, at + 6, fork.space_bytes);
                    put_extents(&mut raw, extents, &fork.extents);
                }
                put32(&mut raw, 44, file.created);
                put32(&mut raw, 48, file.modified);
                put32(&mut raw, 52, file.backed_up);
                put(&mut raw, 56, &file.xinfo.encode());
                put16(&mut raw, 72, file.clump_bytes);
                put32(&mut raw, 98, file.reserved);
                FILE_BYTES
            }
            Self::Thread(thread) => {
                put(&mut raw, 0, &[if thread.of_file { 4 } else { 3 }]);
                put32(&mut raw, 10, thread.parent);
                put(&mut raw, 14, &[u8::try_from(thread.name.len()).unwrap_or(0)]);
                put(&mut raw, 15, thread.name.as_bytes());
                THREAD_BYTES
            }
        };
        (raw, len)
    }

    /// Returns the names of the parts of an encoded record that differ from what
    /// [`encode`](Self::encode) writes and that no field here holds.
    pub(crate) fn wrong_bytes(&self, raw: &[u8]) -> impl Iterator<Item = &'static str> + use<> {
        let len = match self {
            Self::Directory(_) => DIRECTORY_BYTES,
            Self::File(_) => FILE_BYTES,
            Self::Thread(_) => THREAD_BYTES,
        };
        let checks = [(get8(raw, 1) != 0, "cdrResrv2"), (raw.len() != len, "record length")];
        checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, field)| field)
    }

    /// Returns the id of the item; `None` for a thread.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        match self {
            Self::Directory(dir) => Some(dir.id),
            Self::File(file) => Some(file.id),
            Self::Thread(_) => None,
        }
    }

    /// Returns true if this is the old record of a moved item and must be removed, see
    /// [`MOVE_MARK`].
    #[must_use]
    pub fn is_marked(&self) -> bool {
        match self {
            Self::Directory(dir) => dir.reserved[3] == MOVE_MARK,
            Self::File(file) => file.reserved == MOVE_MARK,
            Self::Thread(_) => false,
        }
    }

    /// Sets or clears the mark of an item that is being moved.
    pub fn set_mark(&mut self, marked: bool) {
        let mark = if marked { MOVE_MARK } else { 0 };
        match self {
            Self::Directory(dir) => dir.reserved[3] = mark,
            Self::File(file) => file.reserved = mark,
            Self::Thread(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back(raw in proptest::collection::vec(any::<u8>(), FILE_BYTES)) {
            for kind in 1..=4 {
                let mut raw = raw.clone();
                raw[0] = kind;
                // The name of a thread, and bytes that are not kept.
                if kind > 2 {
                    raw[14] %= 32;
                }
                let Ok(record) = CatalogRecord::parse(&raw) else { panic!("kind {kind}") };
                let (encoded, len) = record.encode();
                prop_assert_eq!(CatalogRecord::parse(&encoded[..len]), Ok(record));
                if kind == 2 {
                    raw[1] = 0;
                    prop_assert_eq!(&encoded[..len], &raw[..]);
                }
            }
        }

        #[test]
        fn keys_come_back(parent: u32, name in proptest::collection::vec(any::<u8>(), 0..32)) {
            let key = CatalogKey::new(parent, Name::any(&name).unwrap());
            let (raw, len) = key.encode();
            prop_assert_eq!(CatalogKey::parse(&raw[..len]), Ok(key));
            prop_assert_eq!(CatalogKey::compare(&raw[..len], &raw), Ordering::Equal);
        }
    }
}
