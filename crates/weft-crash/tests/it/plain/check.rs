//! The plain format's check: it compares the bitmaps with the blocks and inodes in use, and the
//! link counts with the names.

use super::layout::{
    BLOCK_BITS, DIRECT, FIRST_DATA, INODE_BITS, Pointers, RECORD_BYTES, decode, entry, get32,
    inode_place, inodes,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_block::BlockDevice;
use weft_crash::{Findings, Severity};
use weft_unix::Inode;
use weft_vfs::FileKind;

struct Check<'a> {
    device: &'a dyn BlockDevice,
    block_bytes: usize,
    damage: Vec<String>,
    owner: BTreeMap<u64, u64>,
    /// The directories that name each inode, once for each name.
    names: BTreeMap<u64, Vec<u64>>,
}

impl Check<'_> {
    fn block(&self, nr: u64) -> weft_block::Result<Vec<u8>> {
        let mut block = vec![0; self.block_bytes];
        self.device.read_at(&mut block, nr * self.block_bytes as u64)?;
        Ok(block)
    }

    fn inode(&self, ino: u64) -> weft_block::Result<(Inode, Pointers)> {
        let (nr, at) = inode_place(self.block_bytes, ino);
        Ok(decode(&self.block(nr.0)?[at..]))
    }

    /// Notes that an inode has the block `nr`. Returns false if the number is that of no data
    /// block.
    fn own(&mut self, ino: u64, nr: u32) -> bool {
        let nr = u64::from(nr);
        let end = self.device.geometry().len_bytes / self.block_bytes as u64;
        if !(FIRST_DATA..end).contains(&nr) {
            self.damage.push(format!("inode {ino} points at block {nr}"));
            return false;
        }
        if let Some(other) = self.owner.insert(nr, ino) {
            self.damage.push(format!("inodes {other} and {ino} both have block {nr}"));
        }
        true
    }

    /// The blocks of an inode's content.
    fn content(&mut self, ino: u64, pointers: &Pointers) -> weft_block::Result<Vec<u32>> {
        let mut all = pointers.direct.to_vec();
        if pointers.indirect != 0 && self.own(ino, pointers.indirect) {
            let further = self.block(u64::from(pointers.indirect))?;
            all.extend((0..self.block_bytes / 4).map(|i| get32(&further, 4 * i)));
        }
        if pointers.attributes != 0 {
            self.own(ino, pointers.attributes);
        }
        all.retain(|nr| *nr != 0);
        all.retain(|nr| self.own(ino, *nr));
        Ok(all)
    }

    fn directory(&mut self, ino: u64, blocks: &[u32]) -> weft_block::Result<Vec<u64>> {
        let mut seen = BTreeSet::new();
        let mut below = Vec::new();
        for (at, nr) in blocks.iter().enumerate() {
            let block = self.block(u64::from(*nr))?;
            for (i, record) in block.chunks_exact(RECORD_BYTES).enumerate() {
                let (named, name) = entry(record);
                let named = u64::from(named);
                if named == 0 {
                    continue;
                }
                if at == 0 && i < 2 {
                    if name != [&b"."[..], b".."][i] || (i == 0 && named != ino) {
                        self.damage.push(format!("directory {ino} has no `.` or `..`"));
                    }
                    continue;
                }
                if !seen.insert(name.to_vec()) {
                    self.damage.push(format!("directory {ino} has {name:?} twice"));
                }
                if named > inodes(self.block_bytes) {
                    self.damage.push(format!("directory {ino} names inode {named}"));
                    continue;
                }
                let names = self.names.entry(named).or_default();
                names.push(ino);
                if names.len() == 1 {
                    below.push(named);
                }
            }
        }
        Ok(below)
    }
}

/// Checks a volume, and returns the damage found.
pub fn check(
    device: &dyn BlockDevice,
    block_bytes: usize,
    renames_dirs: bool,
) -> weft_block::Result<Findings> {
    let mut check = Check {
        device,
        block_bytes,
        damage: Vec::new(),
        owner: BTreeMap::new(),
        names: BTreeMap::new(),
    };
    let mut todo = vec![1];
    let mut reached = BTreeMap::new();
    while let Some(ino) = todo.pop() {
        let (inode, pointers) = check.inode(ino)?;
        let Some(kind) = inode.kind().filter(|_| inode.links > 0) else {
            check.damage.push(format!("inode {ino} has a name and is free"));
            continue;
        };
        let blocks = check.content(ino, &pointers)?;
        if kind == FileKind::Directory {
            todo.extend(check.directory(ino, &blocks)?);
        }
        let max = ((DIRECT + block_bytes / 4) * block_bytes) as u64;
        if inode.size_bytes > max {
            check.damage.push(format!("inode {ino} has {} bytes", inode.size_bytes));
        }
        reached.insert(ino, (inode, kind));
    }
    let mut leaks = false;
    for (ino, (inode, kind)) in &reached {
        let names = check.names.get(ino).map_or(0, Vec::len);
        let subdirectories = check
            .names
            .iter()
            .flat_map(|(child, parents)| parents.iter().map(move |parent| (child, parent)))
            .filter(|(child, parent)| {
                let kind = reached.get(*child).map(|(_, kind)| *kind);
                *parent == ino && kind == Some(FileKind::Directory)
            })
            .count();
        let counted = match kind {
            FileKind::Directory => 2 + subdirectories,
            _ => names,
        };
        if *kind == FileKind::Directory && names > 1 && !renames_dirs {
            check.damage.push(format!("directory {ino} has {names} names"));
        }
        leaks |= inode.links as usize != counted || (*kind == FileKind::Directory && names > 1);
        // A moved directory counts in its old parent until its old name is gone.
        if (inode.links as usize) < counted && !(renames_dirs && *kind == FileKind::Directory) {
            check.damage.push(format!("inode {ino} counts {} of {counted}", inode.links));
        }
    }
    let block_bits = check.block(BLOCK_BITS.0)?;
    let inode_bits = check.block(INODE_BITS.0)?;
    let is_set = |bits: &[u8], n: u64| bits[n as usize / 8] >> (n % 8) & 1 == 1;
    let blocks = device.geometry().len_bytes / block_bytes as u64;
    for nr in FIRST_DATA..blocks {
        let used = check.owner.contains_key(&nr);
        leaks |= is_set(&block_bits, nr) && !used;
        if used && !is_set(&block_bits, nr) {
            check.damage.push(format!("block {nr} is used and free"));
        }
    }
    for ino in 1..=inodes(block_bytes) {
        let used = reached.contains_key(&ino);
        leaks |= is_set(&inode_bits, ino - 1) && !used;
        if used && !is_set(&inode_bits, ino - 1) {
            check.damage.push(format!("inode {ino} is used and free"));
        }
    }
    let severity = match (check.damage.is_empty(), leaks) {
        (true, false) => Severity::Clean,
        (true, true) => Severity::Leaks,
        (false, _) => Severity::Damage,
    };
    Ok(Findings { severity, damage: check.damage, leaks: Vec::new() })
}
