//! Directories: finding, inserting, overwriting and clearing entries.
//!
//! A new entry is two changes: its *structure* (name, record lengths, inode number 0), which needs
//! nothing, and its inode number, 4 bytes that are written atomically and follow the inode. So a
//! rolled-back entry costs 4 bytes of undo data, and the structure can always be written.
//!
//! Where a record may be put, how far a gap reaches, and whether a neighbour is free is decided by
//! records before it: their lengths lead here. Those changes may be pending, and be rolled back
//! when the block is written. So every change of a record names what decided it (`Lengths`), and
//! a name that is given again follows the clearing of the entry that had it: that it is absent is
//! a thing the new entry relies on as well.
//!
//! A write may be torn at sectors of 512 bytes. Blocks made here are rows of records that do not
//! cross sectors (a fresh block is one free record a sector), and inserting and clearing split and
//! join records only within a sector. A gap of a foreign block that spans sectors is first cut at
//! them, in an order that leaves the block readable at every moment.
//!
//! Entries never move, so the byte offset behind an entry is a cursor that stays valid.

mod grow;
mod list;

use super::{Node, Patches, Volume, number, push_patch};
use crate::layout::{
    DIRENT_HEADER_BYTES, Dirents, Incompat, InodeFlags, RawDirent, bytes, dirent_len, put_dirent,
};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::ops::Range;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{Error, Found, Result};
use weft_vfs::{Error as FsError, FileFlags, Ino};

const SECTOR: usize = 512;
/// The smallest record that can hold a name.
const MIN_RECORD: usize = 12;
/// Sizes of gaps are told apart in units of 4 bytes up to the longest entry.
const CLASSES: usize = dirent_len(255) / 4 + 1;

/// An entry's place: its block, and byte offset in the directory and in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub nr: BlockNr,
    pub at: usize,
    pub offset: u32,
}

/// An entry whose structure is there; its inode number is not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserved {
    pub place: Place,
    hash: u64,
    structure: PatchId,
}

/// Of the records of a block up to some place, the bytes that lead there: the lengths of those in
/// its sector. Those of sectors before do not matter, as every sector begins with a record.
#[derive(Debug, Default)]
struct Lengths(SmallVec<[Range<usize>; 32]>);

impl Lengths {
    /// The walk has come to a record.
    fn pass(&mut self, record: &RawDirent<'_>) {
        if record.offset.is_multiple_of(SECTOR) {
            self.0.clear();
        }
        self.0.push(record.offset + 4..record.offset + 6);
    }

    /// The record's inode number decides, too, and how much of it the name takes.
    fn whole(&mut self, record: &RawDirent<'_>) {
        self.0.push(record.offset..record.offset + DIRENT_HEADER_BYTES);
    }
}

/// Names that were cleared, by their hashes, as long as that is not durable.
#[derive(Debug, Default)]
struct Cleared {
    by_hash: HashMap<u64, PatchId>,
    /// When it has grown to this, what is durable is forgotten.
    forget_at: usize,
}

impl Cleared {
    fn note(&mut self, op: &Op<'_>, hash: u64, cleared: PatchId) {
        self.by_hash.insert(hash, cleared);
        if self.by_hash.len() >= self.forget_at {
            self.by_hash.retain(|_, patch| !op.is_durable(*patch));
            self.forget_at = (2 * self.by_hash.len()).max(16);
        }
    }

    fn all_durable(&self, op: &Op<'_>) -> bool {
        self.by_hash.values().all(|patch| op.is_durable(*patch))
    }
}

#[derive(Debug)]
struct Slot {
    hash: u64,
    offset: u32,
    ino: u32,
}

/// What is known of a directory's blocks: where each name is, and where there is room.
#[derive(Debug)]
pub(crate) struct DirIndex {
    names: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    blocks: Vec<u32>,
    /// The largest gap of each block, in bytes.
    room: Vec<u16>,
    /// For each size of a gap, the first block that may have one.
    first_with: [u32; CLASSES],
    dotdot: Place,
    cleared: Cleared,
}

impl DirIndex {
    /// Of an empty directory without blocks.
    fn new() -> Self {
        Self {
            names: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            blocks: Vec::new(),
            room: Vec::new(),
            first_with: [u32::MAX; CLASSES],
            dotdot: Place { nr: BlockNr(0), at: 0, offset: 0 },
            cleared: Cleared::default(),
        }
    }

    /// Whether it knows nothing that the blocks on the disk do not say.
    pub fn is_settled(&self, op: &Op<'_>) -> bool {
        self.cleared.all_durable(op)
    }

    /// Whether there is no name but `.` and `..`.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn set_room(&mut self, block: usize, room: usize) {
        if let Some(r) = self.room.get_mut(block) {
            *r = u16::try_from(room).unwrap_or(u16::MAX);
        }
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        for first in &mut self.first_with[..=(room / 4).min(CLASSES - 1)] {
            *first = (*first).min(block);
        }
    }

    /// The first block with a gap of `need` bytes.
    fn block_with(&mut self, need: usize) -> Option<usize> {
        let first = &mut self.first_with[(need / 4).min(CLASSES - 1)];
        let found = self.room.iter().skip(*first as usize).position(|r| usize::from(*r) >= need);
        let at = found.map_or(self.room.len(), |i| *first as usize + i);
        *first = u32::try_from(at).unwrap_or(u32::MAX);
        found.map(|_| at)
    }
}

fn sector(at: usize) -> usize {
    at / SECTOR
}

impl Volume {
    pub fn has_filetype(&self) -> bool {
        self.geometry.features.incompat.contains(Incompat::FILETYPE)
    }

    /// What is wrong with a directory, as an error.
    pub fn dir_error(ino: Ino, nr: u32, (at, problem): (usize, &'static str)) -> Error {
        Error::corrupt(format!("directory {}", ino.0), u64::from(nr), format!("{problem} at {at}"))
    }

    /// Reads a directory once and makes its index, unless it is there.
    pub fn index_dir(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<()> {
        if node.own.dir.is_some() {
            return Ok(());
        }
        let block_bytes = self.block_bytes() as u64;
        let size = node.inode.size_bytes;
        if size == 0 || !size.is_multiple_of(block_bytes) || size > u64::from(u32::MAX) {
            return Err(Error::corrupt(
                format!("directory {}", node.ino.0),
                0,
                format!("its size is {size} bytes"),
            ));
        }
        let blocks = self.all_blocks(op, node, size / block_bytes)?;
        let mut index = DirIndex { room: vec![0; blocks.len()], blocks, ..DirIndex::new() };
        let filetype = self.has_filetype();
        for i in 0..index.blocks.len() {
            let nr = index.blocks[i];
            let content = op.peek(BlockNr(u64::from(nr)))?;
            let mut room = 0;
            for (n, entry) in Dirents::new(content, filetype).enumerate() {
                let entry = entry.map_err(|e| Self::dir_error(node.ino, nr, e))?;
                room = room.max(entry.rec_len - entry.used_bytes());
                let offset = u32::try_from(i as u64 * block_bytes + entry.offset as u64)
                    .map_err(|_| FsError::Overflow("directory offset"))?;
                if i == 0 && n < 2 {
                    let expected: &[u8] = if n == 0 { b"." } else { b".." };
                    if entry.ino == 0 || entry.name != expected {
                        let e = (entry.offset, "`.` or `..` is missing");
                        return Err(Self::dir_error(node.ino, nr, e));
                    }
                    if n == 0 && entry.ino != number(node.ino) {
                        let e = (entry.offset, "`.` names another inode");
                        return Err(Self::dir_error(node.ino, nr, e));
                    }
                    if n == 1 {
                        index.dotdot =
                            Place { nr: BlockNr(u64::from(nr)), at: entry.offset, offset };
                        node.parent = Ino(u64::from(entry.ino));
                    }
                    continue;
                }
                if entry.ino != 0 {
                    let hash = index.hasher.hash_one(entry.name);
                    let slot = Slot { hash, offset, ino: entry.ino };
                    index.names.insert_unique(hash, slot, |s| s.hash);
                }
            }
            index.set_room(i, room);
        }
        if index.dotdot.at == 0 {
            let nr = index.blocks.first().copied().unwrap_or(0);
            return Err(Self::dir_error(node.ino, nr, (0, "`.` or `..` is missing")));
        }
        node.own.dir = Some(Box::new(index));
        Ok(())
    }

    fn place_of(&self, index: &DirIndex, offset: u32) -> Option<Place> {
        let block_bytes = self.block_bytes();
        let nr = *index.blocks.get(offset as usize / block_bytes)?;
        Some(Place { nr: BlockNr(u64::from(nr)), at: offset as usize % block_bytes, offset })
    }

    /// Finds a name (not `.` or `..`).
    pub fn find_entry(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
    ) -> Result<Option<Found<Place>>> {
        self.index_dir(op, node)?;
        let Some(index) = node.own.dir.as_deref() else { return Ok(None) };
        let hash = index.hasher.hash_one(name);
        let mut failed = None;
        let slot = index.names.find(hash, |slot| {
            if slot.hash != hash {
                return false;
            }
            let Some(place) = self.place_of(index, slot.offset) else { return false };
            match op.peek(place.nr) {
                Ok(content) => {
                    let from = place.at + DIRENT_HEADER_BYTES;
                    usize::from(bytes::get8(content, place.at + 6)) == name.len()
                        && content.get(from..from + name.len()) == Some(name)
                }
                Err(e) => {
                    failed = Some(e);
                    false
                }
            }
        });
        if let Some(e) = failed {
            return Err(e.into());
        }
        Ok(slot.and_then(|s| {
            Some(Found { ino: Ino(u64::from(s.ino)), place: self.place_of(index, s.offset)? })
        }))
    }

    /// Prepares the first change of a directory with a hash tree: the inode says it has none,
    /// before any leaf changes. Returns what every change of a leaf must follow.
    fn before_change(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<PatchId> {
        let index = FileFlags::from_bits_retain(InodeFlags::INDEX.bits());
        if node.inode.flags.contains(index) {
            node.inode.flags -= index;
            node.own.unindexed = self.write_node(op, node, &[])?;
            node.patch = node.own.unindexed;
        }
        if op.is_durable(node.own.spanning) {
            return Ok(node.own.unindexed);
        }
        Ok(op.join(&[node.own.unindexed, node.own.spanning])?)
    }

    /// Puts the structure of an entry where there is room, growing the directory if needed.
    pub fn reserve_entry(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
        file_type: u8,
    ) -> Result<Reserved> {
        self.index_dir(op, node)?;
        let after = self.before_change(op, node)?;
        let need = dirent_len(name.len());
        loop {
            let Some(index) = node.own.dir.as_deref_mut() else {
                return Err(Error::Invalid("a directory lost its index".into()));
            };
            let Some(block) = index.block_with(need) else {
                self.grow_dir(op, node)?;
                continue;
            };
            let nr = index.blocks[block];
            if let Some(reserved) =
                self.reserve_in(op, node, block, nr, name, file_type, need, after)?
            {
                return Ok(reserved);
            }
        }
    }

    /// Reserves in one block; `None` if it had less room than thought, or its gap had to be cut.
    #[expect(clippy::too_many_arguments, reason = "one step of reserve_entry")]
    fn reserve_in(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        block: usize,
        nr: u32,
        name: &[u8],
        file_type: u8,
        need: usize,
        after: PatchId,
    ) -> Result<Option<Reserved>> {
        let filetype = self.has_filetype();
        let block_nr = BlockNr(u64::from(nr));
        // One pass: the first gap that serves, and the largest and the next largest of all.
        let mut chosen = None;
        let mut relied = Lengths::default();
        let (mut largest, mut rest_largest) = (0, 0);
        for entry in Dirents::new(op.read(block_nr)?, filetype) {
            let e = entry.map_err(|e| Self::dir_error(node.ino, nr, e))?;
            let gap = e.rec_len - e.used_bytes();
            largest = largest.max(gap);
            if chosen.is_none() {
                relied.pass(&e);
            }
            if chosen.is_none() && gap >= need {
                chosen = Some((e.offset, e.rec_len, e.used_bytes()));
            } else {
                rest_largest = rest_largest.max(gap);
            }
        }
        let Some(index) = node.own.dir.as_deref_mut() else { return Ok(None) };
        let Some((at, rec_len, used)) = chosen else {
            index.set_room(block, largest);
            return Ok(None);
        };
        let own = Owner(node.ino.0);
        if sector(at) != sector(at + rec_len - 1)
            && let Some(cut) = self.cut_gap(op, nr, at, rec_len, used, &relied, after)?
        {
            node.own.spanning = op.join(&[node.own.spanning, cut])?;
            op.own(block_nr, own);
            let mut room = rest_largest;
            for entry in Dirents::new(op.peek(block_nr)?, filetype).flatten() {
                room = room.max(entry.rec_len - entry.used_bytes());
            }
            index.set_room(block, room);
            return Ok(None);
        }
        let new_at = at + used;
        let new_len = rec_len - used;
        let mut record = [0_u8; dirent_len(255)];
        put_dirent(&mut record, 0, new_len, 0, file_type, name);
        let record = &record[..DIRENT_HEADER_BYTES + name.len()];
        // All of it, although a free record keeps its length and has no inode: what is written
        // over the number that was cleared follows its clearing, which may wait for another block.
        let mut structure = op.write_relying(block_nr, new_at, record, &relied.0, &[after])?;
        if used > 0 {
            let len = u16::try_from(used).unwrap_or(u16::MAX);
            let befores = [structure, after];
            structure =
                op.write_relying(block_nr, at + 4, &len.to_le_bytes(), &relied.0, &befores)?;
        }
        op.own(block_nr, own);
        index.set_room(block, rest_largest.max(new_len - need));
        let offset = u32::try_from(block * self.block_bytes() + new_at)
            .map_err(|_| FsError::Overflow("directory offset"))?;
        Ok(Some(Reserved {
            place: Place { nr: block_nr, at: new_at, offset },
            hash: index.hasher.hash_one(name),
            structure,
        }))
    }

    /// Cuts the gap of a record that spans sectors into free records that do not: first they are
    /// written, where nobody looks, then the record's length. `None` if there is nothing to cut.
    #[expect(clippy::too_many_arguments, reason = "one step of reserve_in")]
    fn cut_gap(
        &mut self,
        op: &mut Op<'_>,
        nr: u32,
        at: usize,
        rec_len: usize,
        used: usize,
        relied: &Lengths,
        after: PatchId,
    ) -> Result<Option<PatchId>> {
        let block_nr = BlockNr(u64::from(nr));
        let end = at + rec_len;
        let first = (at + used.max(MIN_RECORD)).next_multiple_of(SECTOR);
        let mut patches = Patches::new();
        let mut cut = first;
        while cut + MIN_RECORD <= end {
            let mut next = cut + SECTOR;
            if next + MIN_RECORD > end {
                next = end;
            }
            let mut header = [0_u8; DIRENT_HEADER_BYTES];
            put_dirent(&mut header, 0, next - cut, 0, 0, b"");
            let patch = op.write_relying(block_nr, cut, &header, &relied.0, &[after])?;
            push_patch(&mut patches, patch);
            cut = next;
        }
        if patches.is_empty() {
            return Ok(None);
        }
        let joined = op.join(&patches)?;
        let len = u16::try_from(first - at).unwrap_or(u16::MAX);
        let befores = [joined, after];
        let cut = op.write_relying(block_nr, at + 4, &len.to_le_bytes(), &relied.0, &befores)?;
        Ok(Some(cut))
    }

    /// Gives a reserved entry its inode, which `befores` made.
    pub fn fill_entry(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        reserved: Reserved,
        ino: u32,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let mut befores = Patches::from_slice(befores);
        push_patch(&mut befores, reserved.structure);
        if let Some(index) = node.own.dir.as_deref()
            && let Some(&cleared) = index.cleared.by_hash.get(&reserved.hash)
        {
            push_patch(&mut befores, cleared);
        }
        let place = reserved.place;
        let own = place.at..place.at + 4;
        let patch = op.write_relying(place.nr, place.at, &ino.to_le_bytes(), &[own], &befores)?;
        if let Some(index) = node.own.dir.as_deref_mut() {
            let slot = Slot { hash: reserved.hash, offset: place.offset, ino };
            index.names.insert_unique(reserved.hash, slot, |s| s.hash);
        }
        Ok(patch)
    }

    /// Makes an existing entry name another inode, atomically.
    pub fn overwrite_entry(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        ino: u32,
        file_type: u8,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let after = self.before_change(op, node)?;
        let mut befores = Patches::from_slice(befores);
        push_patch(&mut befores, after);
        let mut header: [u8; 8] = bytes::get_array(op.read(place.nr)?, place.at);
        let old_type = header[7];
        let type_at = place.at + 7..place.at + 8;
        let relied = [type_at];
        header[..4].copy_from_slice(&ino.to_le_bytes());
        header[7] = file_type;
        let mut patch;
        if sector(place.at) == sector(place.at + 7) {
            let len = if old_type == file_type { 4 } else { 8 };
            patch = op.write_relying(place.nr, place.at, &header[..len], &relied, &befores)?;
        } else {
            patch = op.write_relying(place.nr, place.at, &header[..4], &relied, &befores)?;
            if old_type != file_type {
                patch = op.write(place.nr, place.at + 7, &header[7..], &[patch])?;
            }
        }
        op.own(place.nr, Owner(node.ino.0));
        if let Some(index) = node.own.dir.as_deref_mut() {
            let offset = place.offset;
            if offset != index.dotdot.offset
                && let Some(slot) = self.slot_at(op, index, place)?
            {
                slot.ino = ino;
            }
        }
        Ok(patch)
    }

    fn slot_at<'i>(
        &self,
        op: &mut Op<'_>,
        index: &'i mut DirIndex,
        place: Place,
    ) -> Result<Option<&'i mut Slot>> {
        let content = op.peek(place.nr)?;
        let from = place.at + DIRENT_HEADER_BYTES;
        let len = usize::from(bytes::get8(content, place.at + 6));
        let name = content.get(from..from + len).unwrap_or_default();
        let hash = index.hasher.hash_one(name);
        Ok(index.names.find_mut(hash, |s| s.offset == place.offset))
    }

    /// Clears an entry. What follows the returned patch may count on the name being gone.
    pub fn clear_entry(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let after = self.before_change(op, node)?;
        let mut befores = Patches::from_slice(befores);
        push_patch(&mut befores, after);
        let content = op.read(place.nr)?;
        // The neighbours within the sector.
        let mut relied = Lengths::default();
        let mut previous = None;
        let mut this = None;
        let mut next = None;
        let nr = u32::try_from(place.nr.0).unwrap_or(0);
        let filetype = self.geometry.features.incompat.contains(Incompat::FILETYPE);
        let mut hash = 0;
        for entry in Dirents::new(content, filetype) {
            let e = entry.map_err(|e| Self::dir_error(node.ino, nr, e))?;
            let is_dotdot = e.ino != 0 && (e.name == b"." || e.name == b"..");
            if e.offset <= place.at {
                relied.pass(&e);
            }
            if e.offset < place.at {
                let joinable = sector(e.offset) == sector(place.at);
                // Joining to `.` would put `..` in the wrong place; nothing is ever behind it.
                previous = joinable.then_some((e.offset, e.rec_len, e.used_bytes(), is_dotdot));
            } else if e.offset == place.at {
                this = Some((e.rec_len, e.used_bytes()));
                if let Some(index) = node.own.dir.as_deref() {
                    hash = index.hasher.hash_one(e.name);
                }
            } else {
                let joinable = e.ino == 0 && sector(e.offset) == sector(place.at);
                next = joinable.then_some(e.rec_len);
                if joinable {
                    relied.whole(&e);
                }
                break;
            }
        }
        let Some((rec_len, _)) = this else {
            return Err(Self::dir_error(node.ino, nr, (place.at, "an entry has vanished")));
        };
        let own = place.at..place.at + 4;
        let cleared = op.write_relying(place.nr, place.at, &[0; 4], &[own], &befores)?;
        let mut gap = rec_len;
        if let Some(next_len) = next {
            gap += next_len;
        }
        let mut last = cleared;
        let end = place.at + gap;
        if let Some((at, prev_len, used, _)) = previous {
            let len = u16::try_from(prev_len + gap).unwrap_or(u16::MAX);
            let len = len.to_le_bytes();
            last = op.write_relying(place.nr, at + 4, &len, &relied.0, &[cleared])?;
            gap += prev_len - used;
        } else if next.is_some() {
            let len = u16::try_from(gap).unwrap_or(u16::MAX);
            let len = len.to_le_bytes();
            last = op.write_relying(place.nr, place.at + 4, &len, &relied.0, &[cleared])?;
        }
        if sector(place.at) != sector(end - 1) {
            node.own.spanning = op.join(&[node.own.spanning, last])?;
        }
        op.own(place.nr, Owner(node.ino.0));
        let block_bytes = self.block_bytes();
        if let Some(index) = node.own.dir.as_deref_mut() {
            if let Ok(slot) = index.names.find_entry(hash, |s| s.offset == place.offset) {
                slot.remove();
            }
            index.cleared.note(op, hash, cleared);
            let block = place.offset as usize / block_bytes;
            let room = index.room.get(block).copied().map_or(0, usize::from);
            index.set_room(block, room.max(gap));
        }
        Ok(cleared)
    }

    /// Makes `..` name another directory.
    pub fn set_dotdot(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        parent: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.index_dir(op, node)?;
        let Some(place) = node.own.dir.as_deref().map(|index| index.dotdot) else {
            return Err(Error::Invalid("a directory lost its index".into()));
        };
        let after = self.before_change(op, node)?;
        let mut befores = Patches::from_slice(befores);
        push_patch(&mut befores, after);
        let own = place.at..place.at + 4;
        let patch =
            op.write_relying(place.nr, place.at, &number(parent).to_le_bytes(), &[own], &befores)?;
        op.own(place.nr, Owner(node.ino.0));
        node.parent = parent;
        Ok(patch)
    }
}
