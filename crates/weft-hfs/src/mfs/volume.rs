//! A volume's complete metadata in memory: it is a few kilobytes.
//!
//! [`Volume::read`] reads and checks everything: inconsistencies that a power cut can leave are
//! corrected in memory (a caller that may write writes the result to the volume); all other
//! problems are *damage*, and the parts without damage can be read.
//!
//! By the order in which [`super::fs`] writes, a power cut can leave: blocks that no file has,
//! chains that continue after a file's last block, a file under its old name and its new one (the
//! new one has the higher number, and both have the same blocks), and wrong counts.

use super::layout::{
    BLOCK_BYTES, DIRECTORY, Entry, FREE, ForkEntry, LAST, MAP_OFFSET, MDB_OFFSET, Map, Mdb,
    parse_block,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_block::BlockDevice;

/// A file and its blocks.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub entry: Entry,
    /// Allocation blocks of the data fork and the resource fork, in order.
    pub chains: [Vec<u16>; 2],
    /// The index of the directory block that holds its entry.
    pub place: usize,
}

/// All metadata of a volume.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub mdb: Mdb,
    pub map: Map,
    /// In the order of the directory.
    pub files: Vec<Known>,
    /// The blocks of the directory as read from the volume.
    pub raw: Vec<[u8; BLOCK_BYTES]>,
    /// Blocks of the directory that have data after their last entry.
    pub tails: Vec<u64>,
    /// Inconsistencies that a power cut can leave, and that have been corrected here.
    pub loose: Vec<String>,
    /// Damage, which a power cut cannot leave.
    pub damage: Vec<String>,
}

fn io(error: &weft_block::Error) -> weft_vfs::Error {
    weft_vfs::Error::Io { errno: error.errno(), message: error.to_string() }
}

/// Returns the offset of the copy of the master directory block, in bytes: the last two blocks.
pub(super) fn copy_offset(len_bytes: u64) -> u64 {
    (len_bytes / BLOCK_BYTES as u64).saturating_sub(2) * BLOCK_BYTES as u64
}

impl Volume {
    /// Reads a volume.
    ///
    /// # Errors
    /// [`weft_vfs::Error::Corrupt`] if there is none, or neither its master directory block nor the
    /// copy is valid; [`weft_vfs::Error::Io`].
    pub fn read(device: &dyn BlockDevice) -> weft_vfs::Result<Self> {
        let len_bytes = device.geometry().len_bytes;
        let len_blocks = len_bytes / BLOCK_BYTES as u64;
        let mut head = [0; MAP_OFFSET];
        let mut parse = |offset: u64| -> weft_vfs::Result<Result<Mdb, String>> {
            if offset + head.len() as u64 > len_bytes {
                return Ok(Err("the device ends before it".into()));
            }
            device.read_at(&mut head, offset).map_err(|e| io(&e))?;
            Ok(Mdb::parse(&head, len_blocks))
        };
        let (mdb, at) = match parse(MDB_OFFSET)? {
            Ok(mdb) => (mdb, MDB_OFFSET),
            Err(problem) => match parse(copy_offset(len_bytes))? {
                // A map that takes more than two blocks has no copy.
                Ok(mdb) if mdb.map_blocks() <= 2 => (mdb, copy_offset(len_bytes)),
                _ => {
                    let text = format!("MFS master directory block in block 2: {problem}");
                    return Err(weft_vfs::Error::Corrupt(text.into()));
                }
            },
        };
        let mut map = vec![0; Map::bytes_for(mdb.alloc_blocks)];
        device.read_at(&mut map, at + MAP_OFFSET as u64).map_err(|e| io(&e))?;
        let mut volume = Self {
            map: Map::new(map, mdb.alloc_blocks),
            mdb,
            files: Vec::new(),
            raw: Vec::new(),
            tails: Vec::new(),
            loose: Vec::new(),
            damage: Vec::new(),
        };
        if at != MDB_OFFSET {
            volume.damage.push(
                "master directory block in block 2: invalid; its copy at the end of the \
                 volume is used"
                    .into(),
            );
        }
        for place in 0..usize::from(volume.mdb.directory_blocks) {
            let block = u64::from(volume.mdb.directory_start) + place as u64;
            let mut raw = [0; BLOCK_BYTES];
            device.read_at(&mut raw, block * BLOCK_BYTES as u64).map_err(|e| io(&e))?;
            let (entries, problem) = parse_block(&raw);
            let end: usize = entries.iter().map(Entry::len_bytes).sum();
            if raw.get(end..).is_some_and(|tail| tail.iter().any(|&b| b != 0)) {
                volume.tails.push(block);
            }
            volume.raw.push(raw);
            volume.files.extend(entries.into_iter().map(|entry| Known {
                entry,
                chains: Default::default(),
                place,
            }));
            if let Some(problem) = problem {
                volume.damage.push(format!("directory in block {block}: {problem}"));
            }
        }
        volume.judge();
        Ok(volume)
    }

    /// Follows all chains, and checks the metadata for consistency.
    fn judge(&mut self) {
        self.drop_old_names();
        let mut owners: BTreeMap<u16, String> = BTreeMap::new();
        let mut files = std::mem::take(&mut self.files);
        for file in &mut files {
            for which in 0..2 {
                self.follow(file, which, &mut owners);
            }
        }
        let mut names = BTreeSet::new();
        let mut numbers = BTreeSet::new();
        for file in &files {
            let name = file.entry.name.escape_ascii();
            let folded: Vec<u8> =
                file.entry.name.iter().map(|&b| crate::relstring::weight(b)).collect();
            if file.entry.name.contains(&0) {
                self.damage.push(format!("file \"{name}\": its name contains a NUL"));
            }
            if !names.insert((folded, file.entry.version)) {
                self.damage.push(format!("file \"{name}\": duplicate name"));
            }
            if !numbers.insert(file.entry.number) {
                let number = file.entry.number;
                self.damage.push(format!("file \"{name}\": duplicate file number {number}"));
            }
        }
        self.files = files;
        // Blocks of the directory may lie among those of files, and are marked as such.
        let lost: Vec<u16> = self
            .map
            .numbers()
            .filter(|n| !matches!(self.map.get(*n), FREE | DIRECTORY) && !owners.contains_key(n))
            .collect();
        if !lost.is_empty() {
            self.loose.push(format!("block map: {} blocks marked in use, but free", lost.len()));
            lost.iter().for_each(|&n| {
                self.map.set(n, FREE);
            });
        }
        self.count();
    }

    /// Removes the older of two names of one file: same blocks, same second of creation.
    fn drop_old_names(&mut self) {
        let key = |f: &Known| (f.entry.data.start, f.entry.resource.start, f.entry.created);
        let mut newest: BTreeMap<(u16, u16, u32), u32> = BTreeMap::new();
        for file in self.files.iter().filter(|f| f.entry.data.start | f.entry.resource.start != 0) {
            let number = newest.entry(key(file)).or_default();
            *number = (*number).max(file.entry.number);
        }
        let loose = &mut self.loose;
        self.files.retain(|file| {
            let keep = newest.get(&key(file)).is_none_or(|&n| n <= file.entry.number);
            if !keep {
                let name = file.entry.name.escape_ascii();
                loose.push(format!("file \"{name}\": old name of a file that was renamed"));
            }
            keep
        });
    }

    /// Follows the chain of a fork up to the fork's length.
    fn follow(&mut self, file: &mut Known, which: usize, owners: &mut BTreeMap<u16, String>) {
        let name = format!("\"{}\"", file.entry.name.escape_ascii());
        let label = ["data", "resource"][which];
        let fork = if which == 0 { &mut file.entry.data } else { &mut file.entry.resource };
        let chain = &mut file.chains[which];
        let unit = self.mdb.alloc_block_bytes;
        let blocks = fork.allocated_bytes / unit;
        let mut problem = None;
        if !fork.allocated_bytes.is_multiple_of(unit) || fork.len_bytes > fork.allocated_bytes {
            problem = Some(format!(
                "length {} and allocated length {} do not fit together",
                fork.len_bytes, fork.allocated_bytes
            ));
        }
        let mut next = fork.start;
        while problem.is_none() && chain.len() < blocks as usize {
            if !self.map.has(next) || matches!(self.map.get(next), FREE | DIRECTORY) {
                problem = Some(format!(
                    "block {} of its chain is {next}, which is free or does not exist",
                    chain.len()
                ));
            } else if let Some(owner) = owners.get(&next) {
                problem = Some(format!(
                    "block {} of its chain is {next}, which belongs to file {owner}",
                    chain.len()
                ));
            } else {
                owners.insert(next, name.clone());
                chain.push(next);
                next = self.map.get(next);
            }
        }
        if problem.is_none() && blocks == 0 && fork.start != 0 {
            problem =
                Some(format!("its chain begins at block {}, but its length is 0", fork.start));
        }
        if let Some(problem) = problem {
            self.damage.push(format!("file {name}, {label} fork: {problem}"));
            // The blocks found so far can be read.
            fork.allocated_bytes = chain.len() as u32 * unit;
            fork.len_bytes = fork.len_bytes.min(fork.allocated_bytes);
            if chain.is_empty() {
                fork.start = 0;
            }
        }
        if let Some(&last) = chain.last()
            && self.map.get(last) != LAST
        {
            self.loose.push(format!("file {name}, {label} fork: its chain continues past its end"));
            self.map.set(last, LAST);
        }
    }

    /// Compares the stored counts with the actual ones.
    fn count(&mut self) {
        // Data after the last entry is of deleted files, unless files are missing.
        if self.files.len() < usize::from(self.mdb.files) {
            for block in &self.tails {
                self.damage.push(format!(
                    "directory in block {block}: data after the last entry, and entries of files \
                     are missing"
                ));
            }
        }
        let next = self.files.iter().map(|f| f.entry.number).max().unwrap_or(0).saturating_add(1);
        let counts = [
            ("files", &mut self.mdb.files, self.files.len() as u16),
            ("free blocks", &mut self.mdb.free_blocks, self.map.free()),
        ];
        for (what, stored, found) in counts {
            if *stored != found {
                self.loose.push(format!(
                    "master directory block: number of {what} is {stored}, should be {found}"
                ));
                *stored = found;
            }
        }
        if self.mdb.next_number < next {
            let stored = self.mdb.next_number;
            self.loose.push(format!(
                "master directory block: next file number is {stored}, should be {next}"
            ));
            self.mdb.next_number = next;
        }
    }

    /// Returns the content of a directory block.
    pub fn directory_block(&self, place: usize) -> [u8; BLOCK_BYTES] {
        encode_block(self.files.iter().filter(|f| f.place == place).map(|f| &f.entry))
    }

    /// Writes all metadata.
    pub fn write(&self, device: &dyn BlockDevice) -> weft_vfs::Result<()> {
        let write = |bytes: &[u8], at: u64| device.write_at(bytes, at).map_err(|e| io(&e));
        let head = [&self.mdb.encode()[..], self.map.bytes()].concat();
        for place in 0..usize::from(self.mdb.directory_blocks) {
            let block = u64::from(self.mdb.directory_start) + place as u64;
            write(&self.directory_block(place), block * BLOCK_BYTES as u64)?;
        }
        write(&head, MDB_OFFSET)?;
        let len_blocks = device.geometry().len_bytes / BLOCK_BYTES as u64;
        if let Some(block) = self.mdb.copy_block(len_blocks) {
            write(&head, block * BLOCK_BYTES as u64)?;
        }
        device.flush().map_err(|e| io(&e))
    }
}

/// Returns a block with these entries, which must fit.
pub(super) fn encode_block<'a>(entries: impl Iterator<Item = &'a Entry>) -> [u8; BLOCK_BYTES] {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    entries.for_each(|entry| entry.encode(&mut bytes));
    bytes.resize(BLOCK_BYTES, 0);
    let mut block = [0; BLOCK_BYTES];
    block.copy_from_slice(&bytes[..BLOCK_BYTES]);
    block
}

/// Returns the fork of a file with index `which`.
pub(super) fn fork_mut(entry: &mut Entry, which: usize) -> &mut ForkEntry {
    if which == 0 { &mut entry.data } else { &mut entry.resource }
}
