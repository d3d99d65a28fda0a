//! The directory lost+found: found, or made, and filled with names for what has none.

use super::repairer::Repairer;
use crate::Result;
use crate::fsck::found::{DirBlock, DirState, InodeState, KIND_DIRECTORY};
use crate::fsck::problem::Place;
use crate::fsck::{entries, start};
use crate::layout::bytes::{get32, put32};
use crate::layout::{Dirents, Inode, MapPath, ROOT_INO};
use hashbrown::HashSet;

const NAME: &[u8] = b"lost+found";

/// The directory, as far as a repair knows it.
#[derive(Debug)]
pub(super) struct LostFound {
    pub ino: u32,
    /// The names in it that begin as those that a repair gives.
    names: HashSet<Vec<u8>>,
    /// Its blocks that may have room, the one that is filled last.
    blocks: Vec<u32>,
}

impl Repairer<'_> {
    /// Gives an inode a name in lost+found.
    pub(super) fn reattach(&mut self, ino: u32) -> Result<()> {
        let Some(mut home) = self.take_lost_found()? else { return Ok(()) };
        if home.ino == ino {
            self.lost_found = Some(home);
            return Ok(());
        }
        let kind = self.pass.found.inode(ino).kind;
        let filetype = self.filetype();
        let name = home.free_name(ino);
        let mut content = Vec::new();
        let mut placed = false;
        while let Some(&block) = home.blocks.last() {
            self.volume().read(u64::from(block), &mut content)?;
            if entries::insert(&mut content, ino, kind, &name, filetype) {
                self.volume().write(u64::from(block), &content)?;
                placed = true;
                break;
            }
            home.blocks.pop();
        }
        if !placed {
            let mut content = entries::empty(self.volume().block_len());
            entries::insert(&mut content, ino, kind, &name, filetype);
            home.blocks.extend(self.append_block(home.ino, &content)?);
        }
        home.names.insert(name);
        self.lost_found = Some(home);
        Ok(())
    }

    /// Returns lost+found, which is made if there is none.
    fn take_lost_found(&mut self) -> Result<Option<LostFound>> {
        if let Some(known) = self.lost_found.take() {
            return Ok(Some(known));
        }
        let ino = match self.find_lost_found()? {
            Some(ino) => ino,
            None => match self.make_lost_found()? {
                Some(ino) => ino,
                None => return Ok(None),
            },
        };
        let mut home = LostFound { ino, names: HashSet::new(), blocks: Vec::new() };
        let mut content = Vec::new();
        for at in self.pass.found.dir_blocks.iter().filter(|at| at.ino == ino) {
            self.volume().read(u64::from(at.block), &mut content)?;
            let records =
                Dirents::new(&content, self.filetype()).map_while(std::result::Result::ok);
            for record in records.filter(|r| r.ino != 0 && r.name.starts_with(b"#")) {
                home.names.insert(record.name.to_vec());
            }
            home.blocks.push(at.block);
        }
        // The first one is filled first.
        home.blocks.reverse();
        Ok(Some(home))
    }

    /// Looks into the root directory. What has the name there and is no directory loses it.
    fn find_lost_found(&self) -> Result<Option<u32>> {
        let mut content = Vec::new();
        for at in self.pass.found.dir_blocks.iter().filter(|at| at.ino == ROOT_INO) {
            self.volume().read(u64::from(at.block), &mut content)?;
            let entry = Dirents::new(&content, self.filetype())
                .map_while(std::result::Result::ok)
                .find(|r| r.ino != 0 && r.name == NAME)
                .map(|r| (r.ino, r.offset));
            let Some((ino, offset)) = entry else { continue };
            if self.pass.found.inode(ino).kind == KIND_DIRECTORY {
                return Ok(Some(ino));
            }
            // The next check finds the inode without a name.
            self.volume().update(u64::from(at.block), |content| entries::clear(content, offset))?;
        }
        Ok(None)
    }

    /// Gives the root directory a lost+found: the one that mke2fs made, if that only lost its name, or a
    /// new one.
    fn make_lost_found(&mut self) -> Result<Option<u32>> {
        let first = self.volume().geometry.first_inode;
        let old = self.pass.found.dirs.get(&first).copied();
        let ino = match old {
            Some(dir) if dir.parent == 0 && dir.dotdot == ROOT_INO => first,
            _ => match self.new_lost_found()? {
                Some(ino) => ino,
                None => return Ok(None),
            },
        };
        let filetype = self.filetype();
        let mut content = Vec::new();
        let blocks: Vec<u32> = self
            .pass
            .found
            .dir_blocks
            .iter()
            .filter(|at| at.ino == ROOT_INO)
            .map(|at| at.block)
            .collect();
        for block in blocks {
            self.volume().read(u64::from(block), &mut content)?;
            if entries::insert(&mut content, ino, KIND_DIRECTORY, NAME, filetype) {
                self.volume().write(u64::from(block), &content)?;
                return Ok(Some(ino));
            }
        }
        let mut content = entries::empty(self.volume().block_len());
        entries::insert(&mut content, ino, KIND_DIRECTORY, NAME, filetype);
        Ok(self.append_block(ROOT_INO, &content)?.map(|_| ino))
    }

    /// Makes a directory that has no name yet.
    fn new_lost_found(&mut self) -> Result<Option<u32>> {
        let geometry = &self.volume().geometry;
        let found = &self.pass.found;
        let free = (geometry.first_inode..=geometry.inodes).find(|&ino| {
            let group = geometry.inode_group(ino).map_or(usize::MAX, |(group, _)| group as usize);
            !found.inode(ino).used && found.tables.get(group).copied().flatten().is_some()
        });
        let (Some(ino), Some(block)) = (free, self.allocate()) else { return Ok(None) };
        let mut content = entries::empty(self.volume().block_len());
        entries::rebuild_first(&mut content, ino, ROOT_INO, self.filetype());
        self.volume().write(u64::from(block), &content)?;
        let inode = self.directory_inode(0o700, block);
        self.slot(ino, |slot| {
            slot.fill(0);
            inode.encode_into(slot);
        })?;
        let found = &mut self.pass.found;
        if let Some(state) = found.inode_mut(ino) {
            *state =
                InodeState { used: true, kind: KIND_DIRECTORY, links: 2, ..InodeState::default() };
        }
        found.dirs.insert(ino, DirState { dotdot: ROOT_INO, ..DirState::default() });
        found.dir_blocks.push(DirBlock { ino, logical: 0, block });
        Ok(Some(ino))
    }

    /// Adds a block to the end of a directory. Returns it, if there was space. (The next check corrects
    /// the count of the directory's blocks.)
    fn append_block(&mut self, ino: u32, content: &[u8]) -> Result<Option<u32>> {
        let Some(slot) = start::inode_slot(self.volume(), &self.pass.found, ino)? else {
            return Ok(None);
        };
        let Ok(inode) = Inode::parse(&slot) else { return Ok(None) };
        let used = self.pass.found.dir_blocks.iter().filter(|at| at.ino == ino);
        let logical = used.map(|at| at.logical.saturating_add(1)).max().unwrap_or(0);
        let pointers = u64::from(self.volume().geometry.pointers_per_block());
        let Some(path) = MapPath::new(u64::from(logical), pointers) else { return Ok(None) };
        let mut place = Place::Slot(path.slot);
        let mut next = inode.block.get(path.slot).copied().unwrap_or(0);
        let mut table = Vec::new();
        for &index in path.indexes() {
            if next == 0 {
                let Some(block) = self.allocate() else { return Ok(None) };
                let zeroes = vec![0; self.volume().block_len()];
                self.volume().write(u64::from(block), &zeroes)?;
                self.set_pointer(ino, place, block)?;
                next = block;
            }
            if !self.volume().geometry.contains_block(u64::from(next)) {
                return Ok(None);
            }
            self.volume().read(u64::from(next), &mut table)?;
            place = Place::Entry { block: u64::from(next), index };
            next = get32(&table, 4 * index);
        }
        if next != 0 {
            return Ok(None);
        }
        let Some(block) = self.allocate() else { return Ok(None) };
        self.volume().write(u64::from(block), content)?;
        self.set_pointer(ino, place, block)?;
        let len_bytes = (logical + 1).saturating_mul(self.volume().geometry.block_bytes);
        self.slot(ino, |slot| put32(slot, 0x04, len_bytes))?;
        self.pass.found.dir_blocks.push(DirBlock { ino, logical, block });
        Ok(Some(block))
    }
}

impl LostFound {
    /// `#12` for inode 12, or `#12-1` and so on if there is such a name already.
    fn free_name(&self, ino: u32) -> Vec<u8> {
        let mut name = format!("#{ino}").into_bytes();
        let mut n = 0;
        while self.names.contains(&name) {
            n += 1;
            name = format!("#{ino}-{n}").into_bytes();
        }
        name
    }
}
