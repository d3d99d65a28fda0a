//! Passes 2 to 4: directory entries, the connectivity of directories, and link counts.

use super::found::{DirBlock, ExtraName, Found, KIND_DIRECTORY};
use super::htree::Htree;
use super::problem::{EntryProblem, InodeProblem, Problem};
use super::volume::Volume;
use crate::Result;
use crate::layout::bytes::get8;
use crate::layout::{DIRENT_HEADER_BYTES, Dirents, Incompat, ROOT_INO, RawDirent, Superblock};
use hashbrown::{DefaultHashBuilder, HashSet};
use std::hash::BuildHasher;

/// Blocks that a hash tree of two levels can have, with blocks of 4 KiB.
const MAX_TREE_BLOCKS: u32 = 1 << 20;

/// Pass 2.
pub(super) struct Tree<'a, 'v> {
    pub volume: &'a Volume<'v>,
    superblock: &'a Superblock,
    pub found: &'a mut Found,
    /// Two hashes of each name of the directory being read: names are not kept.
    names: HashSet<(u64, u64)>,
    hashers: (DefaultHashBuilder, DefaultHashBuilder),
}

impl<'a, 'v> Tree<'a, 'v> {
    pub(super) fn new(
        volume: &'a Volume<'v>,
        superblock: &'a Superblock,
        found: &'a mut Found,
    ) -> Self {
        Self {
            volume,
            superblock,
            found,
            names: HashSet::new(),
            hashers: (DefaultHashBuilder::default(), DefaultHashBuilder::default()),
        }
    }

    /// Reads every block of every directory. `tick` is told how many are done.
    pub(super) fn run(&mut self, mut tick: impl FnMut(u64, u64)) -> Result<()> {
        // In the order of inodes, which is that of pass 1: one directory after the other.
        let blocks = std::mem::take(&mut self.found.dir_blocks);
        let total = blocks.len() as u64;
        let mut buf = Vec::new();
        let mut current = 0;
        let mut htree: Option<Htree> = None;
        let mut len = 0;
        for (done, block) in (0_u64..).zip(&blocks) {
            if block.ino != current {
                self.hash_tree(current, htree.take(), len);
                current = block.ino;
                self.names.clear();
                if self.found.dirs.get(&current).is_some_and(|dir| dir.indexed) {
                    htree = Some(Htree::new(self.superblock));
                }
                if block.logical != 0 {
                    self.entry(*block, 0, EntryProblem::Dot);
                }
            }
            self.volume.read(u64::from(block.block), &mut buf)?;
            self.block(*block, &buf);
            len = block.logical.saturating_add(1);
            if let Some(htree) = &mut htree {
                let filetype = self.volume.geometry.features.incompat.contains(Incompat::FILETYPE);
                htree.add(block.logical, &buf, filetype);
            }
            if done % 1024 == 0 {
                tick(done, total);
            }
        }
        self.hash_tree(current, htree, len);
        self.found.dir_blocks = blocks;
        Ok(())
    }

    fn hash_tree(&mut self, ino: u32, htree: Option<Htree>, blocks: u32) {
        // A hostile map can have its last block anywhere: no tree has that many.
        let blocks = blocks.min(MAX_TREE_BLOCKS);
        if let Some(what) = htree.and_then(|htree| htree.finish(blocks)) {
            let problem = InodeProblem::HashTree(what);
            self.found.report(Problem::Inode { ino, problem });
        }
    }

    fn entry(&mut self, at: DirBlock, offset: usize, problem: EntryProblem) {
        let offset = u16::try_from(offset).unwrap_or(u16::MAX);
        self.found.report(Problem::Entry { ino: at.ino, block: at.block, offset, problem });
    }

    fn block(&mut self, at: DirBlock, block: &[u8]) {
        let filetype = self.volume.geometry.features.incompat.contains(Incompat::FILETYPE);
        let mut dots = if at.logical == 0 { 0 } else { 2 };
        for record in Dirents::new(block, filetype) {
            let record = match record {
                Ok(record) => record,
                Err((offset, what)) => {
                    self.entry(at, offset, EntryProblem::Record(what));
                    break;
                }
            };
            let name_len = usize::from(get8(block, record.offset + 6));
            if record.ino == 0 && DIRENT_HEADER_BYTES + name_len > record.rec_len {
                self.entry(at, record.offset, EntryProblem::Record("name longer than its record"));
                break;
            }
            match dots {
                0 => self.dot(at, block, &record),
                1 => self.dotdot(at, block, &record),
                _ if record.ino != 0 => self.name(at, block, &record),
                _ => {}
            }
            dots = (dots + 1).min(2);
        }
        if dots < 2 {
            let problem = if dots == 0 { EntryProblem::Dot } else { EntryProblem::DotDot };
            self.entry(at, 0, problem);
        }
    }

    fn dot(&mut self, at: DirBlock, block: &[u8], record: &RawDirent<'_>) {
        let padded = get8(block, record.offset + DIRENT_HEADER_BYTES + 1) == 0;
        if record.ino != at.ino || record.name != b"." || record.rec_len != 12 || !padded {
            self.entry(at, record.offset, EntryProblem::Dot);
            return;
        }
        self.kind(at, block, record);
        self.count(at.ino);
    }

    fn dotdot(&mut self, at: DirBlock, block: &[u8], record: &RawDirent<'_>) {
        let padded = get8(block, record.offset + DIRENT_HEADER_BYTES + 2) == 0;
        if record.ino == 0 || record.name != b".." || !padded {
            self.entry(at, record.offset, EntryProblem::DotDot);
            return;
        }
        let offset = u16::try_from(record.offset).unwrap_or(u16::MAX);
        if let Some(dir) = self.found.dirs.get_mut(&at.ino) {
            dir.dotdot = record.ino;
            dir.dotdot_at = Some((at.block, offset));
        }
        if !self.target(at, record) {
            return;
        }
        self.kind(at, block, record);
        self.count(record.ino);
    }

    fn name(&mut self, at: DirBlock, block: &[u8], record: &RawDirent<'_>) {
        if record.name == b"." || record.name == b".." {
            self.entry(at, record.offset, EntryProblem::Name);
            return;
        }
        if record.ino == ROOT_INO {
            self.entry(at, record.offset, EntryProblem::SecondName(ROOT_INO));
            return;
        }
        if !self.target(at, record) {
            return;
        }
        let hashes = (self.hashers.0.hash_one(record.name), self.hashers.1.hash_one(record.name));
        if !self.names.insert(hashes) {
            self.entry(at, record.offset, EntryProblem::Duplicate);
        }
        if let Some(dir) = self.found.dirs.get_mut(&at.ino) {
            dir.entries = dir.entries.saturating_add(1);
        }
        self.kind(at, block, record);
        if let Some(child) = self.found.dirs.get_mut(&record.ino) {
            let name_at = (at.block, u16::try_from(record.offset).unwrap_or(u16::MAX));
            if child.parent == 0 {
                child.parent = at.ino;
                child.name_at = name_at;
            } else {
                let extra = ExtraName { ino: record.ino, parent: at.ino, at: name_at };
                self.found.extra_names.push(extra);
            }
        }
        self.count(record.ino);
    }

    /// Checks that a record names an inode it may name. Returns whether it does.
    fn target(&mut self, at: DirBlock, record: &RawDirent<'_>) -> bool {
        let geometry = &self.volume.geometry;
        let ino = record.ino;
        if ino > geometry.inodes || (ino < geometry.first_inode && ino != ROOT_INO) {
            self.entry(at, record.offset, EntryProblem::NoSuchInode(ino));
            return false;
        }
        if !self.found.inode(ino).used {
            self.entry(at, record.offset, EntryProblem::FreeInode(ino));
            return false;
        }
        true
    }

    fn kind(&mut self, at: DirBlock, block: &[u8], record: &RawDirent<'_>) {
        let state = self.found.inode(record.ino);
        let filetype = self.volume.geometry.features.incompat.contains(Incompat::FILETYPE);
        let expected = if filetype { state.kind } else { 0 };
        let found = get8(block, record.offset + 7);
        // 0 is "unknown": a reader looks into the inode.
        if found != expected && found != 0 && !state.bad {
            self.entry(at, record.offset, EntryProblem::Kind { found, expected });
        }
    }

    fn count(&mut self, ino: u32) {
        if let Some(state) = self.found.inode_mut(ino) {
            state.names = state.names.saturating_add(1);
        }
    }
}

/// Pass 3: follows each directory up to the root, and compares `..` with the way.
pub(super) fn connect(found: &mut Found) {
    let root = found.inode(ROOT_INO);
    if !root.used || root.kind != KIND_DIRECTORY {
        found.report(Problem::NoRoot);
        return;
    }
    // Of several names of a directory the one that its `..` returns is the right one.
    for mut extra in std::mem::take(&mut found.extra_names) {
        if let Some(dir) = found.dirs.get_mut(&extra.ino)
            && dir.dotdot == extra.parent
            && dir.dotdot != dir.parent
        {
            std::mem::swap(&mut dir.parent, &mut extra.parent);
            std::mem::swap(&mut dir.name_at, &mut extra.at);
        }
        let (block, offset) = extra.at;
        let problem = EntryProblem::SecondName(extra.ino);
        found.report(Problem::Entry { ino: extra.parent, block, offset, problem });
    }
    let mut all: Vec<u32> = found.dirs.keys().copied().collect();
    all.sort_unstable();
    if let Some(dir) = found.dirs.get_mut(&ROOT_INO) {
        dir.parent = ROOT_INO;
        dir.connected = true;
    }
    let mut path = Vec::new();
    let mut seen = HashSet::new();
    for &start in &all {
        path.clear();
        seen.clear();
        let mut ino = start;
        // Up to the root, to a directory that is known, or to where the way ends: a directory
        // without a name, or one met before (a loop). Only the end is reported: the others hang
        // below it.
        let (reached, adopted) = loop {
            let Some(dir) = found.dirs.get(&ino).copied() else { break (false, false) };
            if dir.connected || dir.lost {
                break (dir.connected, dir.adopted);
            }
            let looped = seen.contains(&ino);
            if looped || dir.parent == 0 {
                path.push(ino);
                let empty = dir.entries == 0;
                found.report(Problem::Unconnected { ino, empty, looped });
                // Its `..` is not counted: when it was removed, the link count of the directory
                // above may have been lowered already.
                if let Some(state) = found.inode_mut(dir.dotdot).filter(|s| s.used) {
                    state.names = state.names.saturating_sub(1);
                }
                let adopted = !looped && !empty;
                if adopted && let Some(state) = found.inode_mut(ino) {
                    // The name that it is to get. (The count of an empty one does not matter.)
                    state.names = state.names.saturating_add(1);
                }
                break (false, adopted);
            }
            seen.insert(ino);
            path.push(ino);
            ino = dir.parent;
        };
        for ino in &path {
            if let Some(dir) = found.dirs.get_mut(ino) {
                dir.connected = reached;
                dir.lost = !reached;
                dir.adopted = adopted;
            }
        }
    }
    for ino in all {
        let Some(dir) = found.dirs.get(&ino).copied() else { continue };
        let is_placed = dir.connected || dir.adopted && dir.parent != 0;
        if !is_placed {
            continue;
        }
        if let Some((block, offset)) = dir.dotdot_at
            && dir.dotdot != dir.parent
        {
            let problem = EntryProblem::Parent { found: dir.dotdot, expected: dir.parent };
            found.report(Problem::Entry { ino, block, offset, problem });
            // The name counts for the true parent.
            if let Some(state) = found.inode_mut(dir.dotdot).filter(|s| s.used) {
                state.names = state.names.saturating_sub(1);
            }
            if let Some(state) = found.inode_mut(dir.parent).filter(|s| s.used) {
                state.names = state.names.saturating_add(1);
            }
        }
    }
}

/// Pass 4: link counts, and inodes without a name.
pub(super) fn links(found: &mut Found, first_inode: u32) {
    let mut problems = Vec::new();
    for (ino, state) in found.used_inodes() {
        if ino < first_inode && ino != ROOT_INO {
            continue;
        }
        if let Some(dir) = found.dirs.get(&ino)
            && !dir.connected
            && !dir.adopted
        {
            continue;
        }
        if state.names == 0 {
            problems.push(Problem::Unattached { ino, empty: state.empty });
        } else if u32::from(state.links) != state.names {
            let (found, expected) = (state.links, state.names);
            problems.push(Problem::LinkCount { ino, found, expected });
        }
    }
    for problem in problems {
        found.report(problem);
    }
}

/// The attribute blocks' reference counts.
pub(super) fn attribute_refs(found: &mut Found) {
    let mut wrong: Vec<_> = found
        .attrs
        .iter()
        .filter(|(_, attr)| attr.refs_found != attr.refs)
        .map(|(&block, attr)| Problem::AttributeRefs {
            block,
            found: attr.refs_found,
            expected: attr.refs,
        })
        .collect();
    wrong.sort_by_key(|problem| match problem {
        Problem::AttributeRefs { block, .. } => *block,
        _ => 0,
    });
    for problem in wrong {
        found.report(problem);
    }
}
