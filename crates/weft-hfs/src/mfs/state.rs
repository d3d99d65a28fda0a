//! Changes of a volume, in an order that a power cut cannot break.
//!
//! The directory is authoritative: an entry is in one block of 512 bytes, which is written whole or
//! not at all, and has the lengths of its chains. So
//! - blocks are chained, and data is in them, before an entry refers to them;
//! - an entry drops blocks before the map frees them, and freed blocks are used again only when the
//!   entry's change is durable;
//! - a file that moves from one directory block to another is written to the new one first, under a
//!   higher number, and then removed from the old one.
//!
//! Counts are written at sync: all of them can be recomputed.

use super::layout::{BLOCK_BYTES, Entry, FREE, LAST, MAP_OFFSET, Map, Mdb};
use super::volume::{Known, Volume, encode_block, fork_mut};
use std::collections::BTreeMap;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_vfs::{Error, Result};

/// The offset of file numbers among inode numbers.
pub(super) const FIRST_INO: u64 = 16;

/// A file in memory.
#[derive(Debug)]
pub(super) struct File {
    pub entry: Entry,
    /// Allocation blocks of the data fork and the resource fork.
    pub chains: [Vec<u16>; 2],
    /// References of the front end, and open handles.
    pub refs: u64,
    pub opens: u64,
    /// The change that removed the file's name.
    pub gone: Option<PatchId>,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub mdb: Mdb,
    pub map: Map,
    /// By inode number.
    pub files: BTreeMap<u64, File>,
    /// The files of each directory block, in order, and the block as it was last written.
    directory: Vec<(Vec<u64>, [u8; BLOCK_BYTES])>,
    /// Freed blocks, with the change that removed them from their entry.
    pending: Vec<(u16, PatchId)>,
    /// The volume information as it was last written.
    written_mdb: [u8; MAP_OFFSET],
}

/// Converts the engine's error to the plug's.
pub(super) fn engine_error(error: weft_patch::Error) -> Error {
    match error {
        weft_patch::Error::ReadOnly => Error::ReadOnly,
        other => Error::Io { errno: other.errno(), message: other.to_string() },
    }
}

impl State {
    pub fn new(volume: Volume) -> Self {
        let mut directory: Vec<_> = volume.raw.iter().map(|raw| (Vec::new(), *raw)).collect();
        let mut files = BTreeMap::new();
        for Known { entry, chains, place } in volume.files {
            // Duplicate numbers are damage; both files are listed all the same.
            let mut ino = FIRST_INO + u64::from(entry.number);
            while files.contains_key(&ino) {
                ino += 1 << 32;
            }
            directory[place].0.push(ino);
            files.insert(ino, File { entry, chains, refs: 0, opens: 0, gone: None });
        }
        let written_mdb = volume.mdb.encode();
        Self {
            mdb: volume.mdb,
            map: volume.map,
            files,
            directory,
            pending: Vec::new(),
            written_mdb,
        }
    }

    pub fn file(&self, ino: u64) -> Result<&File> {
        self.files.get(&ino).ok_or(Error::Stale(ino))
    }

    pub fn file_mut(&mut self, ino: u64) -> Result<&mut File> {
        self.files.get_mut(&ino).ok_or(Error::Stale(ino))
    }

    /// Returns the files with a name, in the order of inode numbers.
    pub fn named(&self) -> impl Iterator<Item = (u64, &File)> {
        self.files.iter().filter(|(_, f)| f.gone.is_none()).map(|(ino, f)| (*ino, f))
    }

    /// Returns the file with a name.
    pub fn find(&self, name: &[u8]) -> Option<u64> {
        let same = |f: &File| crate::relstring::compare(&f.entry.name, name).is_eq();
        self.named().find(|(_, f)| same(f)).map(|(ino, _)| ino)
    }

    // ---- the directory ----

    /// Returns the directory block that holds a file's entry.
    fn place_of(&self, ino: u64) -> Option<usize> {
        self.directory.iter().position(|(files, _)| files.contains(&ino))
    }

    /// Returns a directory block with room for an entry, `near` if possible; entries of `without`
    /// do not count.
    fn place_for(&self, len_bytes: usize, near: Option<usize>, without: &[u64]) -> Option<usize> {
        let fits = |place: &usize| {
            let (files, _) = &self.directory[*place];
            let used: usize = files
                .iter()
                .filter(|ino| !without.contains(ino))
                .filter_map(|ino| self.files.get(ino))
                .map(|f| f.entry.len_bytes())
                .sum();
            used + len_bytes <= BLOCK_BYTES
        };
        near.into_iter().chain(0..self.directory.len()).find(fits)
    }

    /// Writes the changed part of a directory block to the volume.
    fn write_place(
        &mut self,
        op: &mut Op<'_>,
        place: usize,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let entries = self.directory[place].0.iter().filter_map(|ino| self.files.get(ino));
        let block = encode_block(entries.map(|f| &f.entry));
        let old = self.directory[place].1;
        let differs = |i: &usize| block[*i] != old[*i];
        let Some(first) = (0..BLOCK_BYTES).find(differs) else {
            return op.join(befores).map_err(engine_error);
        };
        let last = (0..BLOCK_BYTES).rfind(differs).unwrap_or(first);
        let nr = BlockNr(u64::from(self.mdb.directory_start) + place as u64);
        // Entries are packed: the offset of one depends on all before it.
        let whole = 0..BLOCK_BYTES;
        let patch = op
            .write_relying(nr, first, &block[first..=last], &[whole], befores)
            .map_err(engine_error)?;
        self.directory[place].1 = block;
        Ok(patch)
    }

    /// Writes a file's entry to the volume, if it has one.
    pub fn write_entry(
        &mut self,
        op: &mut Op<'_>,
        ino: u64,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        match self.place_of(ino) {
            Some(place) => self.write_place(op, place, befores),
            None => Ok(PatchId::DURABLE),
        }
    }

    fn next_number(&mut self) -> Result<u32> {
        let number = self.mdb.next_number;
        self.mdb.next_number = number.checked_add(1).ok_or(Error::NoSpace)?;
        Ok(number)
    }

    /// Makes an empty file.
    pub fn create(&mut self, op: &mut Op<'_>, name: Vec<u8>, now: u32) -> Result<u64> {
        let mut entry = Entry {
            locked: false,
            version: 0,
            finder_info: [0; 16],
            number: 0,
            data: Default::default(),
            resource: Default::default(),
            created: now,
            modified: now,
            name,
        };
        let place = self.place_for(entry.len_bytes(), None, &[]).ok_or(Error::NoSpace)?;
        entry.finder_info[..8].copy_from_slice(b"????????");
        entry.number = self.next_number()?;
        let ino = FIRST_INO + u64::from(entry.number);
        let file = File { entry, chains: Default::default(), refs: 0, opens: 0, gone: None };
        self.files.insert(ino, file);
        self.directory[place].0.push(ino);
        self.write_place(op, place, &[])?;
        Ok(ino)
    }

    /// Removes a file's name. Its blocks are freed when its last use ends.
    pub fn unlink(&mut self, op: &mut Op<'_>, ino: u64) -> Result<()> {
        let Some(place) = self.place_of(ino) else { return Err(Error::NotFound) };
        self.directory[place].0.retain(|&i| i != ino);
        let gone = self.write_place(op, place, &[])?;
        self.file_mut(ino)?.gone = Some(gone);
        self.release(op, ino)
    }

    /// Renames a file; a file that has the new name loses it.
    pub fn rename(&mut self, op: &mut Op<'_>, ino: u64, name: Vec<u8>) -> Result<()> {
        let target = self.find(&name).filter(|&t| t != ino);
        let Some(from) = self.place_of(ino) else { return Err(Error::NotFound) };
        let mut entry = self.file(ino)?.entry.clone();
        entry.name = name;
        let without: Vec<u64> = std::iter::once(ino).chain(target).collect();
        // A replaced file's block holds the new entry: at every moment the name belongs to one of
        // the two files.
        let near = target.and_then(|t| self.place_of(t)).unwrap_or(from);
        let place = match (self.place_for(entry.len_bytes(), Some(near), &without), target) {
            (Some(place), None) => place,
            (Some(place), Some(_)) if place == near => place,
            _ => return Err(Error::NoSpace),
        };
        if place != from {
            entry.number = self.next_number()?;
        }
        self.file_mut(ino)?.entry = entry;
        let slots = &mut self.directory[place].0;
        match target.and_then(|t| slots.iter().position(|&i| i == t)) {
            Some(slot) => slots[slot] = ino,
            None if place != from => slots.push(ino),
            None => {}
        }
        if place == from {
            // If the new entry replaces one in the same block, it is listed twice now.
            let mut seen = false;
            slots.retain(|&i| i != ino || !std::mem::replace(&mut seen, true));
        }
        let mut patch = self.write_place(op, place, &[])?;
        if place != from {
            self.directory[from].0.retain(|&i| i != ino);
            patch = self.write_place(op, from, &[patch])?;
        }
        if let Some(target) = target {
            self.file_mut(target)?.gone = Some(patch);
            self.release(op, target)?;
        }
        Ok(())
    }

    /// Drops an unused file without a name, and frees its blocks.
    pub fn release(&mut self, op: &mut Op<'_>, ino: u64) -> Result<()> {
        let Some(file) = self.files.get(&ino) else { return Ok(()) };
        let Some(gone) = file.gone.filter(|_| file.refs == 0 && file.opens == 0) else {
            return Ok(());
        };
        if let Some(file) = self.files.remove(&ino) {
            for chain in &file.chains {
                self.give_back(op, chain, gone)?;
            }
        }
        Ok(())
    }

    // ---- the block map ----

    fn set_map(
        &mut self,
        op: &mut Op<'_>,
        alloc: u16,
        value: u16,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let range = self.map.set(alloc, value);
        let bytes = [self.map.bytes()[range.start], self.map.bytes()[range.start + 1]];
        let at = MAP_OFFSET + range.start;
        let mut patch = PatchId::DURABLE;
        // A map entry may lie in two blocks; later changes wait for both.
        if at % BLOCK_BYTES == BLOCK_BYTES - 1 {
            for (i, byte) in bytes.iter().enumerate() {
                let nr = BlockNr(2 + ((at + i) / BLOCK_BYTES) as u64);
                let both = [
                    patch,
                    op.write(nr, (at + i) % BLOCK_BYTES, &[*byte], befores)
                        .map_err(engine_error)?,
                ];
                patch = op.join(&both).map_err(engine_error)?;
            }
            return Ok(patch);
        }
        let nr = BlockNr(2 + (at / BLOCK_BYTES) as u64);
        op.write(nr, at % BLOCK_BYTES, &bytes, befores).map_err(engine_error)
    }

    /// Returns the number of blocks that can be allocated now, and of those that can when all
    /// changes are durable.
    pub fn available(&self) -> (usize, usize) {
        let free = usize::from(self.map.free());
        (free - self.pending.len().min(free), self.pending.len())
    }

    /// Makes blocks available whose freeing is durable.
    pub fn settle(&mut self, op: &Op<'_>) {
        self.pending.retain(|(_, patch)| !op.is_durable(*patch));
    }

    /// Frees blocks that `cleared` removed from their entry.
    pub fn give_back(&mut self, op: &mut Op<'_>, blocks: &[u16], cleared: PatchId) -> Result<()> {
        for &alloc in blocks {
            self.set_map(op, alloc, FREE, &[cleared])?;
            self.pending.push((alloc, cleared));
        }
        Ok(())
    }

    /// Allocates `count` more blocks for a fork, chained after its present ones. Returns the
    /// changes that an entry must wait for before it refers to them. The caller has made sure that
    /// there are enough blocks.
    pub fn extend(
        &mut self,
        op: &mut Op<'_>,
        ino: u64,
        which: usize,
        count: usize,
    ) -> Result<Vec<PatchId>> {
        let last = self.file(ino)?.chains[which].last().copied();
        let numbers = self.map.numbers();
        // The search continues from the end of the fork, once around the volume.
        let from = last.map_or(numbers.start, |l| l + 1);
        let usable: Vec<u16> = (from..numbers.end)
            .chain(numbers.start..from.min(numbers.end))
            .filter(|&n| self.map.get(n) == FREE && !self.pending.iter().any(|(p, _)| *p == n))
            .take(count)
            .collect();
        if usable.len() < count {
            return Err(Error::NoSpace);
        }
        let mut befores = Vec::new();
        let mut next = LAST;
        for &alloc in usable.iter().rev() {
            befores.push(self.set_map(op, alloc, next, &[])?);
            next = alloc;
        }
        if let Some(last) = last
            && count > 0
        {
            befores.push(self.set_map(op, last, next, &[])?);
        }
        let unit = self.mdb.alloc_block_bytes;
        let file = self.file_mut(ino)?;
        file.chains[which].extend(&usable);
        let chain = &file.chains[which];
        let (start, blocks) = (chain.first().copied().unwrap_or(0), chain.len() as u32);
        let fork = fork_mut(&mut file.entry, which);
        fork.start = start;
        fork.allocated_bytes = blocks * unit;
        befores.dedup();
        Ok(befores)
    }

    /// Cuts a fork to `len_bytes`, which must not exceed its length, and frees the blocks after
    /// that.
    pub fn cut(&mut self, op: &mut Op<'_>, ino: u64, which: usize, len_bytes: u32) -> Result<()> {
        let unit = self.mdb.alloc_block_bytes;
        let keep = len_bytes.div_ceil(unit);
        let file = self.file_mut(ino)?;
        let chain = &mut file.chains[which];
        let freed = chain.split_off(chain.len().min(keep as usize));
        let last = chain.last().copied();
        let fork = fork_mut(&mut file.entry, which);
        fork.len_bytes = len_bytes;
        fork.allocated_bytes = keep * unit;
        if keep == 0 {
            fork.start = 0;
        }
        let cleared = self.write_entry(op, ino, &[])?;
        if let Some(last) = last
            && !freed.is_empty()
        {
            self.set_map(op, last, LAST, &[cleared])?;
        }
        self.give_back(op, &freed, cleared)
    }

    /// Writes into a fork, which has the blocks for it. Returns the changes that an entry must wait
    /// for.
    pub fn write_data(
        &mut self,
        op: &mut Op<'_>,
        ino: u64,
        which: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Vec<PatchId>> {
        let unit = u64::from(self.mdb.alloc_block_bytes);
        let file = self.file(ino)?;
        let len =
            u64::from(if which == 0 { file.entry.data } else { file.entry.resource }.len_bytes);
        let mut befores: Vec<PatchId> = Vec::new();
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = (at % BLOCK_BYTES as u64) as usize;
            let n = rest.len().min(BLOCK_BYTES - within);
            let (piece, tail) = rest.split_at(n);
            let alloc = file.chains[which].get((at / unit) as usize).ok_or(Error::NoSpace)?;
            let nr = BlockNr(self.mdb.block_of(*alloc) + at % unit / BLOCK_BYTES as u64);
            // Beyond the end of the fork the old content is not kept.
            let fresh = at - within as u64 >= len;
            let owner = Owner(ino);
            let patch =
                op.write_data(nr, owner, within, piece, fresh, &[]).map_err(engine_error)?;
            if befores.last() != Some(&patch) {
                befores.push(patch);
            }
            at += n as u64;
            rest = tail;
        }
        Ok(befores)
    }

    /// Writes the counts to the volume. Returns true if they had changed.
    pub fn write_counts(&mut self, op: &mut Op<'_>) -> Result<bool> {
        self.mdb.files = self.named().count() as u16;
        self.mdb.free_blocks = self.map.free();
        let now = self.mdb.encode();
        if now == self.written_mdb {
            return Ok(false);
        }
        op.write(BlockNr(2), 0, &now, &[]).map_err(engine_error)?;
        self.written_mdb = now;
        Ok(true)
    }
}
