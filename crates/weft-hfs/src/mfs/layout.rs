//! The on-disk structures of an MFS volume: master directory block, block map, directory entries.
//!
//! Source: Inside Macintosh II, pages 119 to 124. Blocks are of 512 bytes, numbers big-endian.
//!
//! | blocks | content |
//! |---|---|
//! | 0-1 | boot blocks |
//! | 2-3 | volume information (64 bytes), then the block map, as far as it goes |
//! | from `directory_start` | the directory |
//! | from `alloc_start` | allocation blocks, numbered from 2 |
//! | last two | a copy of blocks 2 and 3 |

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The first word of block 2.
pub const SIGNATURE: u16 = 0xd2d7;
/// The offset of the volume information, in bytes.
pub const MDB_OFFSET: u64 = 1024;
/// The offset of the block map from the start of the volume information, in bytes.
pub const MAP_OFFSET: usize = 64;
/// The size of a block, the unit of everything but files, in bytes.
pub const BLOCK_BYTES: usize = 512;
/// The number of the first allocation block.
pub const FIRST: u16 = 2;
/// The most allocation blocks that numbers of 12 bits can name: 0, 1 and FFF have other meanings.
pub const ALLOC_MAX: u16 = 0xfff - FIRST;
/// The map entry of a free block.
pub const FREE: u16 = 0;
/// The map entry of the last block of a file.
pub const LAST: u16 = 1;
/// The map entry of a block that holds a part of the directory.
pub const DIRECTORY: u16 = 0xfff;
/// The longest name of a volume, in bytes.
pub const VOLUME_NAME_MAX_BYTES: usize = 27;
/// An entry without its name, in bytes.
const ENTRY_BYTES: usize = 51;

/// The volume information in the master directory block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mdb {
    /// The date of creation, in seconds since 1904, local time.
    pub created: u32,
    /// The date of the last backup.
    pub backed_up: u32,
    /// Bit 7: locked by hardware; bit 15: locked by software.
    pub attributes: u16,
    /// Files in the directory.
    pub files: u16,
    /// First block of the directory.
    pub directory_start: u16,
    /// Blocks of the directory.
    pub directory_blocks: u16,
    /// Allocation blocks.
    pub alloc_blocks: u16,
    /// Bytes of an allocation block: a multiple of 512.
    pub alloc_block_bytes: u32,
    /// The unit of allocation of files, in bytes.
    pub clump_bytes: u32,
    /// The block where allocation block 2 begins.
    pub alloc_start: u16,
    /// The number of the next file.
    pub next_number: u32,
    /// Free allocation blocks.
    pub free_blocks: u16,
    /// The volume's name, in MacRoman.
    pub name: Vec<u8>,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

impl Mdb {
    /// Reads the 64 bytes, and checks that all parts of the volume are on a device of `len_blocks`.
    ///
    /// # Errors
    /// The problem with them.
    pub fn parse(bytes: &[u8], len_blocks: u64) -> Result<Self, String> {
        if bytes.len() < MAP_OFFSET || be16(bytes, 0) != SIGNATURE {
            return Err("it has no MFS signature".into());
        }
        let name_bytes = usize::from(bytes[36]);
        if name_bytes > VOLUME_NAME_MAX_BYTES {
            return Err(format!("invalid length of the volume's name: {name_bytes} bytes"));
        }
        let mdb = Self {
            created: be32(bytes, 2),
            backed_up: be32(bytes, 6),
            attributes: be16(bytes, 10),
            files: be16(bytes, 12),
            directory_start: be16(bytes, 14),
            directory_blocks: be16(bytes, 16),
            alloc_blocks: be16(bytes, 18),
            alloc_block_bytes: be32(bytes, 20),
            clump_bytes: be32(bytes, 24),
            alloc_start: be16(bytes, 28),
            next_number: be32(bytes, 30),
            free_blocks: be16(bytes, 34),
            name: bytes[37..37 + name_bytes].to_vec(),
        };
        let unit = mdb.alloc_block_bytes;
        if unit == 0 || !unit.is_multiple_of(512) {
            return Err(format!("invalid allocation block size {unit}"));
        }
        if mdb.alloc_blocks == 0 || mdb.alloc_blocks > ALLOC_MAX {
            return Err(format!("invalid number of allocation blocks {}", mdb.alloc_blocks));
        }
        let end = u64::from(mdb.alloc_start) + u64::from(mdb.alloc_blocks) * mdb.alloc_sectors();
        let directory_end = u64::from(mdb.directory_start) + u64::from(mdb.directory_blocks);
        if mdb.directory_blocks == 0 || directory_end > len_blocks || end > len_blocks {
            return Err(format!(
                "its directory and allocation blocks end at block {}, the device at block \
                 {len_blocks}",
                end.max(directory_end)
            ));
        }
        let map_end = 2 + mdb.map_blocks();
        if u64::from(mdb.directory_start) < map_end || u64::from(mdb.alloc_start) < map_end {
            return Err(format!(
                "the block map ends at block {map_end}, behind the start of the directory or the \
                 allocation blocks"
            ));
        }
        Ok(mdb)
    }

    /// Returns the 64 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MAP_OFFSET] {
        let mut bytes = Vec::with_capacity(MAP_OFFSET);
        bytes.extend(SIGNATURE.to_be_bytes());
        bytes.extend(self.created.to_be_bytes());
        bytes.extend(self.backed_up.to_be_bytes());
        for word in [
            self.attributes,
            self.files,
            self.directory_start,
            self.directory_blocks,
            self.alloc_blocks,
        ] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(self.alloc_block_bytes.to_be_bytes());
        bytes.extend(self.clump_bytes.to_be_bytes());
        bytes.extend(self.alloc_start.to_be_bytes());
        bytes.extend(self.next_number.to_be_bytes());
        bytes.extend(self.free_blocks.to_be_bytes());
        let name = &self.name[..self.name.len().min(VOLUME_NAME_MAX_BYTES)];
        bytes.push(name.len() as u8);
        bytes.extend(name);
        let mut whole = [0; MAP_OFFSET];
        whole[..bytes.len()].copy_from_slice(&bytes);
        whole
    }

    /// Returns the number of 512-byte blocks in an allocation block.
    #[must_use]
    pub fn alloc_sectors(&self) -> u64 {
        u64::from(self.alloc_block_bytes) / BLOCK_BYTES as u64
    }

    /// Returns the number of blocks of the volume information and the map, from block 2 on.
    #[must_use]
    pub fn map_blocks(&self) -> u64 {
        (MAP_OFFSET + Map::bytes_for(self.alloc_blocks)).div_ceil(BLOCK_BYTES) as u64
    }

    /// Returns the 512-byte block at which an allocation block begins.
    #[must_use]
    pub fn block_of(&self, alloc: u16) -> u64 {
        u64::from(self.alloc_start) + u64::from(alloc.saturating_sub(FIRST)) * self.alloc_sectors()
    }

    /// Returns the first of the last two blocks, which hold a copy of the volume information and
    /// the map; `None` if the copy does not fit there, or other data is in the way.
    #[must_use]
    pub fn copy_block(&self, len_blocks: u64) -> Option<u64> {
        let files_end = self.block_of(FIRST + self.alloc_blocks);
        let directory_end = u64::from(self.directory_start) + u64::from(self.directory_blocks);
        let at = len_blocks.checked_sub(2)?;
        (files_end.max(directory_end) <= at && self.map_blocks() <= 2).then_some(at)
    }

    /// Returns true if the volume must not be written.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.attributes & 0x8080 != 0
    }
}

/// The block map: 12 bits for each allocation block, from number 2 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    bytes: Vec<u8>,
    blocks: u16,
}

impl Map {
    /// Returns the number of bytes of a map of `blocks` allocation blocks.
    #[must_use]
    pub fn bytes_for(blocks: u16) -> usize {
        (usize::from(blocks) * 3).div_ceil(2)
    }

    /// Makes a map from its bytes; missing entries are free.
    #[must_use]
    pub fn new(mut bytes: Vec<u8>, blocks: u16) -> Self {
        bytes.resize(Self::bytes_for(blocks), 0);
        Self { bytes, blocks }
    }

    /// Returns the bytes of the map.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the numbers of all allocation blocks.
    #[must_use]
    pub fn numbers(&self) -> core::ops::Range<u16> {
        FIRST..FIRST + self.blocks
    }

    /// Returns true if `alloc` is the number of an allocation block.
    #[must_use]
    pub fn has(&self, alloc: u16) -> bool {
        self.numbers().contains(&alloc)
    }

    /// Returns the map entry of a block; [`DIRECTORY`] for a block that does not exist.
    #[must_use]
    pub fn get(&self, alloc: u16) -> u16 {
        if !self.has(alloc) {
            return DIRECTORY;
        }
        let (at, low) = Self::place(alloc);
        let both = be16(&self.bytes, at);
        // An odd entry ends with its byte; the last entry, if it is even, has half a byte after it.
        if low { both & 0xfff } else { both >> 4 }
    }

    /// Sets the entry of a block. Returns the range of the two changed bytes, from the beginning of
    /// the map.
    pub fn set(&mut self, alloc: u16, value: u16) -> core::ops::Range<usize> {
        if !self.has(alloc) {
            return 0..0;
        }
        let (at, low) = Self::place(alloc);
        let both = be16(&self.bytes, at);
        let both = if low { both & 0xf000 | value & 0xfff } else { both & 0xf | value << 4 };
        self.bytes[at..at + 2].copy_from_slice(&both.to_be_bytes());
        at..at + 2
    }

    /// Returns the first byte of an entry, and true if the entry begins in that byte's low half.
    fn place(alloc: u16) -> (usize, bool) {
        let index = usize::from(alloc - FIRST);
        (index * 3 / 2, index % 2 == 1)
    }

    /// Returns the number of free blocks.
    #[must_use]
    pub fn free(&self) -> u16 {
        self.numbers().filter(|&n| self.get(n) == FREE).count() as u16
    }
}

/// One fork, as a directory entry has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForkEntry {
    /// The first allocation block; 0 for an empty fork.
    pub start: u16,
    /// The length in bytes.
    pub len_bytes: u32,
    /// The length of its allocation blocks in bytes.
    pub allocated_bytes: u32,
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The file is locked.
    pub locked: bool,
    /// The version; 0 on all but a few volumes.
    pub version: u8,
    /// The Finder information: type, creator, flags, location, folder.
    pub finder_info: [u8; 16],
    /// The file number, used once on a volume.
    pub number: u32,
    /// The data fork.
    pub data: ForkEntry,
    /// The resource fork.
    pub resource: ForkEntry,
    /// The date of creation.
    pub created: u32,
    /// The date of the last change.
    pub modified: u32,
    /// The name, 1 to 255 bytes of MacRoman.
    pub name: Vec<u8>,
}

impl Entry {
    /// Returns the length of the entry on the volume, in bytes: even, so that the next one is
    /// aligned.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.len()).next_multiple_of(2)
    }

    /// Reads the entry at the beginning of `bytes`; `None` if no used entry is there.
    ///
    /// # Errors
    /// The problem with it.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        if bytes.len() < ENTRY_BYTES || bytes[0] & 0x80 == 0 {
            return Ok(None);
        }
        let name_bytes = usize::from(bytes[50]);
        let Some(name) = bytes.get(51..51 + name_bytes) else {
            return Err(format!(
                "an entry with a name of {name_bytes} bytes reaches past the block"
            ));
        };
        if name.is_empty() {
            return Err("an entry without a name".into());
        }
        let mut finder_info = [0; 16];
        finder_info.copy_from_slice(&bytes[2..18]);
        let fork = |at| ForkEntry {
            start: be16(bytes, at),
            len_bytes: be32(bytes, at + 2),
            allocated_bytes: be32(bytes, at + 6),
        };
        Ok(Some(Self {
            locked: bytes[0] & 1 != 0,
            version: bytes[1],
            finder_info,
            number: be32(bytes, 18),
            data: fork(22),
            resource: fork(32),
            created: be32(bytes, 42),
            modified: be32(bytes, 46),
            name: name.to_vec(),
        }))
    }

    /// Appends the bytes of the entry.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let end = to.len() + self.len_bytes();
        to.push(0x80 | u8::from(self.locked));
        to.push(self.version);
        to.extend(self.finder_info);
        to.extend(self.number.to_be_bytes());
        for fork in [&self.data, &self.resource] {
            to.extend(fork.start.to_be_bytes());
            to.extend(fork.len_bytes.to_be_bytes());
            to.extend(fork.allocated_bytes.to_be_bytes());
        }
        to.extend(self.created.to_be_bytes());
        to.extend(self.modified.to_be_bytes());
        to.push(self.name.len() as u8);
        to.extend(&self.name);
        to.resize(end, 0);
    }
}

/// Reads the entries of a directory block, up to the first unused one. Also returns the problem of
/// an invalid entry that ended them.
#[must_use]
pub fn parse_block(block: &[u8]) -> (Vec<Entry>, Option<String>) {
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(rest) = block.get(at..) {
        match Entry::parse(rest) {
            Ok(Some(entry)) => {
                at += entry.len_bytes();
                entries.push(entry);
            }
            Ok(None) => break,
            Err(problem) => return (entries, Some(problem)),
        }
    }
    (entries, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    proptest! {
        #[test]
        fn a_map_keeps_each_number_apart(
            blocks in 1..700_u16,
            sets in proptest::collection::vec((any::<u16>(), 0..0x1000_u16), 0..300),
        ) {
            let mut map = Map::new(Vec::new(), blocks);
            let mut model = vec![0; usize::from(blocks)];
            for (at, value) in sets {
                let at = at % blocks;
                let before = map.bytes().to_vec();
                let changed = map.set(at + FIRST, value);
                model[usize::from(at)] = value;
                let outside = |i: &usize| !changed.contains(i);
                prop_assert!((0..before.len()).filter(outside).all(|i| before[i] == map.bytes()[i]));
            }
            let all: Vec<u16> = map.numbers().map(|n| map.get(n)).collect();
            prop_assert_eq!(all, model);
        }

        #[test]
        fn entries_come_back(
            head: [u8; 18], numbers: [u32; 6], starts: [u16; 2],
            name in proptest::collection::vec(any::<u8>(), 1..=255),
        ) {
            let fork = |i: usize| ForkEntry {
                start: starts[i],
                len_bytes: numbers[2 * i],
                allocated_bytes: numbers[2 * i + 1],
            };
            let mut finder_info = [0; 16];
            finder_info.copy_from_slice(&head[2..]);
            let entry = Entry {
                locked: head[0] & 1 != 0,
                version: head[1],
                finder_info,
                number: numbers[4],
                data: fork(0),
                resource: fork(1),
                created: numbers[5],
                modified: !numbers[5],
                name,
            };
            let mut block = Vec::new();
            entry.encode(&mut block);
            prop_assert_eq!(block.len(), entry.len_bytes());
            block.resize(BLOCK_BYTES, 0);
            prop_assert_eq!(parse_block(&block), (vec![entry], None));
        }
    }

    #[test]
    fn volume_information_comes_back_or_is_refused() {
        let mdb = Mdb {
            created: 1,
            backed_up: 2,
            attributes: 3,
            files: 4,
            directory_start: 4,
            directory_blocks: 12,
            alloc_blocks: 391,
            alloc_block_bytes: 1024,
            clump_bytes: 8192,
            alloc_start: 16,
            next_number: 5,
            free_blocks: 6,
            name: b"Disk".to_vec(),
        };
        assert_eq!(Mdb::parse(&mdb.encode(), 800).as_ref(), Ok(&mdb));
        assert!(Mdb::parse(&mdb.encode(), 797).is_err());
        let bad = [
            Mdb { alloc_block_bytes: 1000, ..mdb.clone() },
            Mdb { alloc_block_bytes: 0, ..mdb.clone() },
            Mdb { alloc_blocks: 0xffe, alloc_block_bytes: 512, ..mdb.clone() },
            Mdb { directory_start: 3, ..mdb.clone() },
            Mdb { directory_blocks: 0, ..mdb.clone() },
            Mdb { alloc_start: 3, ..mdb },
        ];
        for mdb in bad {
            assert!(Mdb::parse(&mdb.encode(), 100_000).is_err(), "{mdb:?}");
        }
    }
}
