//! Directories: finding, inserting, overwriting and clearing entries.
//!
//! A new entry is two changes: its *structure* (name, record lengths, inode number 0), which needs
//! nothing, and its inode number, 4 bytes that are written atomically and follow the inode. So a
//! rolled-back entry costs 4 bytes of undo data, and the structure can always be written.
//!
//! The lengths of the records before a record decide its position, the end of its gap, and whether
//! a neighbour is free. Changes of these lengths may be pending, and be rolled back when the block
//! is written. So every change of a record names the bytes that it relies on (`Lengths`), and a
//! name that is added again follows the clearing of the entry that had it: the new entry relies on
//! its absence.
//!
//! A write may be torn at sectors of 512 bytes. Blocks made here are rows of records that do not
//! cross sectors (a fresh block is one free record a sector), and inserting and clearing split and
//! join records only within a sector. A gap of a foreign block that spans sectors is first cut at
//! them, in an order that leaves the block readable at every moment.
//!
//! Entries never move, so the byte offset behind an entry is a cursor that stays valid.

mod grow;
pub(super) mod index;
mod insert;
mod record;

use super::node::{Node, number};
use super::state::Volume;
use crate::layout::{
    DIRENT_HEADER_BYTES, Dirents, Incompat, InodeFlags, bytes, dirent_len, file_type_code,
    file_type_kind, put_dirent,
};
use index::{DirIndex, Slot};
use record::{Lengths, MIN_RECORD, Place, Reserved, SECTOR, sector};
use std::hash::BuildHasher;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{
    Directories, Error, FileBlocks as _, Found, Inodes as _, Listed, Listing, Patches, Result,
    push_patch,
};
use weft_vfs::{Error as FsError, FileFlags, FileKind, Ino};

/// Bytes of a directory that a listing reads at once, if they are adjacent.
const LIST_AHEAD_BYTES: u64 = 128 << 10;

impl Directories for Volume {
    type Place = Place;
    type Reserved = Reserved;

    /// Reads the directory once and makes its index.
    fn load_dir(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<()> {
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
        op.want(blocks.iter().map(|&nr| BlockNr(u64::from(nr))))?;
        let mut index = DirIndex { room: vec![0; blocks.len()], blocks, ..DirIndex::new() };
        let filetype = self.has_filetype();
        for i in 0..index.blocks.len() {
            let nr = BlockNr(u64::from(index.blocks[i]));
            let content = op.peek(nr)?;
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
                        index.dotdot = Place { nr, at: entry.offset, offset };
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
            let nr = BlockNr(index.blocks.first().copied().map_or(0, u64::from));
            return Err(Self::dir_error(node.ino, nr, (0, "`.` or `..` is missing")));
        }
        node.own.dir = Some(Box::new(index));
        Ok(())
    }

    fn is_empty(&self, _: &mut Op<'_>, node: &mut Node) -> Result<bool> {
        Ok(node.own.dir.as_deref().is_some_and(|index| index.names.is_empty()))
    }

    fn find(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
    ) -> Result<Option<Found<Place>>> {
        self.load_dir(op, node)?;
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

    /// Lists the entries of one block. The cursor is the byte offset of the next entry: entries
    /// never move, so it stays valid while names come and go.
    fn list(&self, op: &mut Op<'_>, node: &mut Node, cursor: u64, max: usize) -> Result<Listing> {
        let mut at = cursor;
        let mut listing = Listing::default();
        let bs = self.block_bytes() as u64;
        let filetype = self.has_filetype();
        while at < node.inode.size_bytes {
            let fbn = at / bs;
            let run = self.map(op, node, fbn, node.inode.size_bytes.div_ceil(bs) - fbn)?;
            let Some(nr) = run.start else {
                at = (fbn + run.len) * bs;
                continue;
            };
            if op.cached(nr).is_none() {
                op.read_ahead(nr..BlockNr(nr.0 + run.len.min(LIST_AHEAD_BYTES / bs)));
            }
            let mut full = false;
            for entry in Dirents::new(op.peek(nr)?, filetype) {
                let entry = entry.map_err(|e| Self::dir_error(node.ino, nr, e))?;
                let offset = fbn * bs + entry.offset as u64;
                if offset < at || entry.ino == 0 {
                    continue;
                }
                if listing.entries.len() == max {
                    full = true;
                    listing.next = Some(offset);
                    break;
                }
                let from = listing.names.len();
                listing.names.extend_from_slice(entry.name);
                listing.entries.push(Listed {
                    ino: Ino(u64::from(entry.ino)),
                    kind: file_type_kind(entry.file_type),
                    name: from..listing.names.len(),
                    next: offset + entry.rec_len as u64,
                });
            }
            at = (fbn + 1) * bs;
            if full {
                break;
            }
            if !listing.entries.is_empty() {
                listing.next = Some(at);
                break;
            }
        }
        Ok(listing)
    }

    fn init_dir(&mut self, op: &mut Op<'_>, node: &mut Node, parent: Ino) -> Result<()> {
        let file_type = self.type_code(FileKind::Directory);
        let mut block = self.zeroes.clone();
        put_dirent(&mut block, 0, MIN_RECORD, number(node.ino), file_type, b".");
        put_dirent(&mut block, MIN_RECORD, SECTOR - MIN_RECORD, number(parent), file_type, b"..");
        Self::free_records(&mut block, SECTOR);
        let nr = self.add_dir_block(op, node, 0, &block)?;
        let mut index = DirIndex {
            blocks: vec![nr],
            room: vec![0],
            dotdot: Place {
                nr: BlockNr(u64::from(nr)),
                at: MIN_RECORD,
                offset: u32::try_from(MIN_RECORD).unwrap_or(0),
            },
            ..DirIndex::new()
        };
        index.set_room(0, SECTOR);
        node.own.dir = Some(Box::new(index));
        Ok(())
    }

    fn reserve(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
        kind: FileKind,
    ) -> Result<Reserved> {
        self.load_dir(op, node)?;
        let file_type = self.type_code(kind);
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
            let nr = BlockNr(u64::from(index.blocks[block]));
            let place = (block, nr);
            if let Some(reserved) =
                self.reserve_in(op, node, place, name, file_type, need, after)?
            {
                return Ok(reserved);
            }
        }
    }

    fn want_room(&mut self, op: &mut Op<'_>, node: &mut Node, name: &[u8]) -> Result<()> {
        self.load_dir(op, node)?;
        let Some(index) = node.own.dir.as_deref_mut() else { return Ok(()) };
        let block = index.block_with(dirent_len(name.len()));
        Ok(op.want(block.map(|block| BlockNr(u64::from(index.blocks[block]))))?)
    }

    fn place(&self, reserved: &Reserved) -> Place {
        reserved.place
    }

    fn position(&self, place: Place) -> Option<u64> {
        Some(place.offset.into())
    }

    fn take_back(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        named: PatchId,
    ) -> Result<bool> {
        let is_simple = node.own.dir.is_some() && op.is_durable(node.own.spanning);
        if !is_simple || sector(place.at) != sector(place.at + 3) {
            return Ok(false);
        }
        let number = |op: &mut Op<'_>| {
            Ok(op.take_back(place.nr, place.at, &[0; 4], named)?.then_some(named))
        };
        Ok(self.remove_record(op, node, place, number)?.is_some())
    }

    fn fill(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        reserved: Reserved,
        ino: Ino,
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
        let ino = number(ino);
        let patch = op.write_relying(place.nr, place.at, &ino.to_le_bytes(), &[own], &befores)?;
        if let Some(index) = node.own.dir.as_deref_mut() {
            let slot = Slot { hash: reserved.hash, offset: place.offset, ino };
            index.names.insert_unique(reserved.hash, slot, |s| s.hash);
        }
        Ok(patch)
    }

    fn overwrite(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        (ino, kind): (Ino, FileKind),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (ino, file_type) = (number(ino), self.type_code(kind));
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

    fn clear(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let after = self.before_change(op, node)?;
        let mut befores = Patches::from_slice(befores);
        push_patch(&mut befores, after);
        let own = place.at..place.at + 4;
        let number = |op: &mut Op<'_>| {
            Ok(Some(op.write_relying(place.nr, place.at, &[0; 4], &[own], &befores)?))
        };
        let (cleared, hash) = self.remove_record(op, node, place, number)?.unwrap_or_default();
        if let Some(index) = node.own.dir.as_deref_mut() {
            index.cleared.note(op, hash, cleared);
        }
        Ok(cleared)
    }

    fn set_parent(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        parent: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.load_dir(op, node)?;
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

impl Volume {
    fn has_filetype(&self) -> bool {
        self.geometry.features.incompat.contains(Incompat::FILETYPE)
    }

    /// Returns the code of a kind of file in entries; 0 if entries of this volume have none.
    fn type_code(&self, kind: FileKind) -> u8 {
        if self.has_filetype() { file_type_code(kind) } else { 0 }
    }

    /// Makes the error of a directory with a problem at a byte of block `nr`.
    fn dir_error(ino: Ino, nr: BlockNr, (at, problem): (usize, &'static str)) -> Error {
        Error::corrupt(format!("directory {}", ino.0), nr.0, format!("{problem} at {at}"))
    }

    fn place_of(&self, index: &DirIndex, offset: u32) -> Option<Place> {
        let block_bytes = self.block_bytes();
        let nr = *index.blocks.get(offset as usize / block_bytes)?;
        Some(Place { nr: BlockNr(u64::from(nr)), at: offset as usize % block_bytes, offset })
    }

    /// Prepares the first change of a directory with a hash tree: takes the tree's flag off the
    /// inode, before any leaf changes. Returns the patch that every change of a leaf must follow.
    fn before_change(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<PatchId> {
        let index = FileFlags::from_bits_retain(InodeFlags::INDEX.bits());
        if node.inode.flags.contains(index) {
            node.inode.flags -= index;
            node.own.unindexed = self.write_inode(op, node, &[])?;
            node.patch = node.own.unindexed;
        }
        if op.is_durable(node.own.spanning) {
            return Ok(node.own.unindexed);
        }
        Ok(op.join(&[node.own.unindexed, node.own.spanning])?)
    }

    /// Removes an entry: its inode number, which `number` clears, then the record. Returns the change of
    /// the number and the hash of the name; `None`, with nothing changed, if `number` does.
    fn remove_record(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        number: impl FnOnce(&mut Op<'_>) -> Result<Option<PatchId>>,
    ) -> Result<Option<(PatchId, u64)>> {
        let content = op.read(place.nr)?;
        // The neighbours within the sector.
        let mut relied = Lengths::default();
        let mut previous = None;
        let mut this = None;
        let mut next = None;
        let filetype = self.has_filetype();
        let mut hash = 0;
        for entry in Dirents::new(content, filetype) {
            let e = entry.map_err(|e| Self::dir_error(node.ino, place.nr, e))?;
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
            return Err(Self::dir_error(node.ino, place.nr, (place.at, "an entry has vanished")));
        };
        let Some(cleared) = number(op)? else { return Ok(None) };
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
            let block = place.offset as usize / block_bytes;
            let room = index.room.get(block).copied().map_or(0, usize::from);
            index.set_room(block, room.max(gap));
        }
        Ok(Some((cleared, hash)))
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
}
