//! The plain format's micro-operations.

use super::layout::{
    BLOCK_BITS, DIRECT, FIRST_DATA, INODE_BITS, MAGIC, Pointers, RECORD_BYTES, decode,
    decode_attributes, encode, encode_attributes, entry, get32, inode_place, inodes, name_bytes,
    record,
};
use std::collections::HashSet;
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{
    Attribute, Error, Format, Found, Inode, Limits, Listed, Listing, Node, Patches, Pending,
    Result, Run, Space, Unmapped, push_patch,
};
use weft_vfs::{Error as FsError, FileKind, Ino, Time};

#[derive(Debug)]
pub struct Plain {
    block_bytes: usize,
    blocks: u64,
    blocks_free: u64,
    inodes_free: u64,
    freed_blocks: Pending,
    freed_inodes: Pending,
    /// The numbers that are on these lists.
    busy: [HashSet<u64>; 2],
    damage: Option<String>,
}

#[derive(Debug, Default)]
pub struct PlainNode {
    pub pointers: Pointers,
    /// The first record that may be free.
    free_from: usize,
    /// Names that were cleared, as long as that is not durable.
    cleared: Vec<(Vec<u8>, PatchId)>,
}

/// Blocks freed by a cut, and the range of pointers to clear in the block of further ones.
#[derive(Debug, Default)]
pub struct PlainCut {
    freed: Vec<u32>,
    clear: Option<(u32, usize)>,
}

#[derive(Debug)]
pub struct Reserved {
    at: u64,
    name: Vec<u8>,
    structure: PatchId,
}

type PlainInode = Node<Plain>;
const BLOCKS: usize = 0;
const INODES: usize = 1;

impl Plain {
    pub fn load(op: &mut Op<'_>, block_bytes: usize, blocks: u64) -> Result<Self> {
        if !op.peek(BlockNr(0))?.starts_with(MAGIC) {
            return Err(Error::corrupt("superblock", 0, "no plain volume"));
        }
        let ones = |op: &mut Op<'_>, nr| -> Result<u64> {
            Ok(op.peek(nr)?.iter().map(|byte| u64::from(byte.count_ones())).sum())
        };
        let used = [ones(op, BLOCK_BITS)?, ones(op, INODE_BITS)?];
        Ok(Self {
            block_bytes,
            blocks,
            blocks_free: blocks - used[BLOCKS],
            inodes_free: inodes(block_bytes) - used[INODES],
            freed_blocks: Pending::default(),
            freed_inodes: Pending::default(),
            busy: [HashSet::new(), HashSet::new()],
            damage: None,
        })
    }

    fn sectors(&self) -> u64 {
        self.block_bytes as u64 / 512
    }

    /// Takes the first free bit of a bitmap.
    fn take(&mut self, op: &mut Op<'_>, which: usize, befores: &mut Patches) -> Result<u64> {
        self.settle(op);
        let (nr, end) = if which == BLOCKS {
            (BLOCK_BITS, self.blocks)
        } else {
            (INODE_BITS, inodes(self.block_bytes))
        };
        let bits = op.peek(nr)?;
        let free = |n: &u64| bits[*n as usize / 8] >> (n % 8) & 1 == 0;
        let found = (0..end).filter(|n| !self.busy[which].contains(n)).find(free);
        let n = found.ok_or(FsError::NoSpace)?;
        push_patch(befores, op.flip(nr, n as usize / 32 * 4, 1 << (n % 32), &[])?);
        if which == BLOCKS {
            self.blocks_free -= 1;
        } else {
            self.inodes_free -= 1;
        }
        Ok(n)
    }

    fn give(&mut self, op: &mut Op<'_>, which: usize, n: u64, cleared: PatchId) -> Result<()> {
        let nr = if which == BLOCKS { BLOCK_BITS } else { INODE_BITS };
        op.flip(nr, n as usize / 32 * 4, 1 << (n % 32), &[cleared])?;
        self.busy[which].insert(n);
        if which == BLOCKS {
            op.free(BlockNr(n), cleared);
            self.blocks_free += 1;
            self.freed_blocks.add(n, 1, cleared);
        } else {
            self.inodes_free += 1;
            self.freed_inodes.add(n, 1, cleared);
        }
        Ok(())
    }

    /// A new block with content. What a pointer at it must follow is added to `after`.
    fn new_block(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        content: &[u8],
        after: &mut Patches,
    ) -> Result<u32> {
        let nr = self.take(op, BLOCKS, after)?;
        push_patch(after, op.init(BlockNr(nr), content, &[])?);
        op.own(BlockNr(nr), Owner(node.ino.0));
        node.inode.blocks_512 += self.sectors();
        Ok(nr as u32)
    }

    fn pointer(&self, op: &mut Op<'_>, node: &PlainInode, fbn: u64) -> Result<u32> {
        let (fbn, indirect) = (fbn as usize, node.own.pointers.indirect);
        if let Some(nr) = node.own.pointers.direct.get(fbn) {
            return Ok(*nr);
        }
        if fbn - DIRECT >= self.block_bytes / 4 {
            return Err(FsError::TooLarge.into());
        }
        if indirect == 0 {
            return Ok(0);
        }
        Ok(get32(op.peek(BlockNr(u64::from(indirect)))?, 4 * (fbn - DIRECT)))
    }

    /// The block and the offset of a record of a directory.
    fn record_place(
        &self,
        op: &mut Op<'_>,
        node: &PlainInode,
        at: u64,
    ) -> Result<(BlockNr, usize)> {
        let bs = self.block_bytes as u64;
        let nr = self.pointer(op, node, at / bs)?;
        if nr == 0 {
            let directory = format!("directory {}", node.ino.0);
            return Err(Error::corrupt(directory, 0, "a hole"));
        }
        Ok((BlockNr(u64::from(nr)), (at % bs) as usize))
    }

    fn read_record(&self, op: &mut Op<'_>, node: &PlainInode, at: u64) -> Result<(u32, Vec<u8>)> {
        let (nr, offset) = self.record_place(op, node, at)?;
        let (ino, name) = entry(&op.peek(nr)?[offset..offset + RECORD_BYTES]);
        Ok((ino, name.to_vec()))
    }

    fn write_record(
        &self,
        op: &mut Op<'_>,
        node: &PlainInode,
        at: u64,
        ino: u32,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, offset) = self.record_place(op, node, at)?;
        let own = offset..offset + 4;
        let patch = op.write_relying(nr, offset, &ino.to_le_bytes(), &[own], befores)?;
        op.own(nr, Owner(node.ino.0));
        Ok(patch)
    }

    /// Appends a block to a directory. Returns what the inode must follow.
    fn grow(&mut self, op: &mut Op<'_>, node: &mut PlainInode, content: &[u8]) -> Result<Patches> {
        let (mut after, mut befores) = (Patches::new(), Patches::new());
        let fbn = node.inode.size_bytes / self.block_bytes as u64;
        self.pointer(op, node, fbn)?;
        let nr = self.new_block(op, node, content, &mut after)?;
        node.inode.blocks_512 -= self.sectors();
        self.point(op, node, fbn, (BlockNr(u64::from(nr)), 1), &after, &mut befores)?;
        node.inode.size_bytes += self.block_bytes as u64;
        Ok(befores)
    }
}

impl Format for Plain {
    type Node = PlainNode;
    type Place = u64;
    type Reserved = Reserved;
    type Cut = PlainCut;

    fn limits(&self) -> Limits {
        Limits {
            root: Ino(1),
            block_bytes: self.block_bytes as u32,
            file_max_bytes: ((DIRECT + self.block_bytes / 4) * self.block_bytes) as u64,
            target_max_bytes: self.block_bytes - 1,
            name_max_bytes: 255,
            links_max: u32::from(u16::MAX),
            inodes_max: inodes(self.block_bytes),
            time_unit_nanos: 1,
            has_attributes: true,
        }
    }

    fn space(&self) -> Space {
        Space {
            blocks: self.blocks - FIRST_DATA,
            blocks_free: self.blocks_free,
            blocks_reserved: 0,
            inodes: inodes(self.block_bytes),
            inodes_free: self.inodes_free,
        }
    }

    fn at_once(&self) -> (u64, u64) {
        (
            self.blocks_free.saturating_sub(self.freed_blocks.count()),
            self.inodes_free.saturating_sub(self.freed_inodes.count()),
        )
    }

    fn has_pending(&self) -> bool {
        !self.freed_blocks.is_empty() || !self.freed_inodes.is_empty()
    }

    fn settle(&mut self, op: &Op<'_>) {
        for (which, freed) in
            [&mut self.freed_blocks, &mut self.freed_inodes].into_iter().enumerate()
        {
            for (n, _) in freed.take_durable(op) {
                self.busy[which].remove(&n);
            }
        }
    }

    fn note_damage(&mut self, what: String) {
        self.damage.get_or_insert(what);
    }

    fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    fn can_hold(&self, ino: Ino) -> bool {
        (1..=inodes(self.block_bytes)).contains(&ino.0)
    }

    fn read_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(Inode, PlainNode)> {
        let (nr, at) = inode_place(self.block_bytes, ino.0);
        let (inode, pointers) = decode(&op.peek(nr)?[at..]);
        Ok((inode, PlainNode { pointers, ..PlainNode::default() }))
    }

    fn write_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, at) = inode_place(self.block_bytes, node.ino.0);
        Ok(op.write(nr, at, &encode(&node.inode, &node.own.pointers), befores)?)
    }

    fn alloc_inode(
        &mut self,
        op: &mut Op<'_>,
        _: &PlainInode,
        _: FileKind,
        befores: &mut Patches,
    ) -> Result<Ino> {
        Ok(Ino(self.take(op, INODES, befores)? + 1))
    }

    fn new_node(&mut self, inode: &mut Inode, _: FileKind, _: &PlainInode) -> PlainNode {
        inode.btime = None;
        PlainNode::default()
    }

    fn init_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.write_inode(op, node, befores)
    }

    fn abandon_inode(&mut self, op: &mut Op<'_>, node: &PlainInode) -> Result<()> {
        let Pointers { direct, indirect, attributes } = &node.own.pointers;
        for nr in direct.iter().chain([indirect, attributes]).filter(|nr| **nr != 0) {
            self.give(op, BLOCKS, u64::from(*nr), PatchId::DURABLE)?;
        }
        self.give(op, INODES, node.ino.0 - 1, PatchId::DURABLE)
    }

    fn free_inode(&mut self, op: &mut Op<'_>, node: &PlainInode, cleared: PatchId) -> Result<()> {
        self.give(op, INODES, node.ino.0 - 1, cleared)
    }

    fn storable(&self, _: &PlainInode, time: Time) -> Time {
        time
    }

    fn is_settled(&self, op: &Op<'_>, node: &PlainInode) -> bool {
        node.own.cleared.iter().all(|(_, patch)| op.is_durable(*patch))
    }

    fn map(&self, op: &mut Op<'_>, node: &mut PlainInode, fbn: u64, max: u64) -> Result<Run> {
        let nr = self.pointer(op, node, fbn)?;
        let mut len = 1;
        let next = |len: u64| if nr == 0 { 0 } else { nr + len as u32 };
        let end = (DIRECT + self.block_bytes / 4) as u64 - fbn;
        while len < max.min(end) && self.pointer(op, node, fbn + len)? == next(len) {
            len += 1;
        }
        Ok(Run { start: (nr != 0).then_some(BlockNr(u64::from(nr))), len })
    }

    fn allocate(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        fbn: u64,
        _: u64,
        after: &mut Patches,
        befores: &mut Patches,
    ) -> Result<(BlockNr, u64)> {
        if fbn as usize >= DIRECT && node.own.pointers.indirect == 0 {
            let zeroes = vec![0; self.block_bytes];
            node.own.pointers.indirect = self.new_block(op, node, &zeroes, befores)?;
        }
        Ok((BlockNr(self.take(op, BLOCKS, after)?), 1))
    }

    fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        fbn: u64,
        (start, _): (BlockNr, u64),
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()> {
        node.inode.blocks_512 += self.sectors();
        if let Some(nr) = node.own.pointers.direct.get_mut(fbn as usize) {
            *nr = start.0 as u32;
            befores.extend_from_slice(after);
            return Ok(());
        }
        if node.own.pointers.indirect == 0 {
            let zeroes = vec![0; self.block_bytes];
            node.own.pointers.indirect = self.new_block(op, node, &zeroes, befores)?;
        }
        let nr = BlockNr(u64::from(node.own.pointers.indirect));
        let at = 4 * (fbn as usize - DIRECT);
        push_patch(befores, op.write(nr, at, &(start.0 as u32).to_le_bytes(), after)?);
        op.own(nr, Owner(node.ino.0));
        Ok(())
    }

    fn unmap(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        fbn: u64,
        max: u64,
    ) -> Result<Unmapped> {
        let run = self.map(op, node, fbn, max)?;
        let Some(start) = run.start else {
            return Ok(Unmapped { len: run.len, freed: None, cleared: None });
        };
        node.inode.blocks_512 -= self.sectors();
        let cleared = match node.own.pointers.direct.get_mut(fbn as usize) {
            Some(nr) => {
                *nr = 0;
                None
            }
            None => {
                let nr = BlockNr(u64::from(node.own.pointers.indirect));
                op.own(nr, Owner(node.ino.0));
                Some(op.write(nr, 4 * (fbn as usize - DIRECT), &[0; 4], &[])?)
            }
        };
        Ok(Unmapped { len: 1, freed: Some(start), cleared })
    }

    fn free(&mut self, op: &mut Op<'_>, start: BlockNr, len: u64, cleared: PatchId) -> Result<()> {
        (start.0..start.0 + len).try_for_each(|nr| self.give(op, BLOCKS, nr, cleared))
    }

    fn cut(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        keep: u64,
        whole: bool,
    ) -> Result<(PlainCut, u64)> {
        let mut cut = PlainCut::default();
        let all = DIRECT + self.block_bytes / 4;
        let keep_all = usize::try_from(keep).unwrap_or(all).min(all);
        for fbn in keep_all..all {
            let nr = self.pointer(op, node, fbn as u64)?;
            cut.freed.extend((nr != 0).then_some(nr));
        }
        let pointers = &mut node.own.pointers;
        pointers.direct[keep_all.min(DIRECT)..].fill(0);
        if pointers.indirect != 0 {
            if keep_all <= DIRECT {
                cut.freed.push(std::mem::take(&mut pointers.indirect));
            } else {
                cut.clear = Some((pointers.indirect, keep_all - DIRECT));
            }
        }
        if whole && pointers.attributes != 0 {
            cut.freed.push(std::mem::take(&mut pointers.attributes));
        }
        node.inode.blocks_512 -= cut.freed.len() as u64 * self.sectors();
        Ok((cut, keep))
    }

    fn finish_cut(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        cut: PlainCut,
        written: PatchId,
    ) -> Result<()> {
        let mut cleared = written;
        if let Some((nr, from)) = cut.clear {
            let zeroes = vec![0; self.block_bytes - 4 * from];
            if !zeroes.is_empty() {
                cleared = op.write(BlockNr(u64::from(nr)), 4 * from, &zeroes, &[written])?;
                op.own(BlockNr(u64::from(nr)), Owner(ino.0));
            }
        }
        cut.freed.iter().rev().try_for_each(|nr| self.give(op, BLOCKS, u64::from(*nr), cleared))
    }

    fn set_target(&mut self, op: &mut Op<'_>, node: &mut PlainInode, target: &[u8]) -> Result<()> {
        let mut block = target.to_vec();
        block.resize(self.block_bytes, 0);
        let mut after = Patches::new();
        node.own.pointers.direct[0] = self.new_block(op, node, &block, &mut after)?;
        node.born_after.extend(after);
        Ok(())
    }

    fn target(&self, op: &mut Op<'_>, node: &PlainInode) -> Result<Vec<u8>> {
        let nr = BlockNr(u64::from(node.own.pointers.direct[0]));
        Ok(op.peek(nr)?[..node.inode.size_bytes as usize].to_vec())
    }

    fn load_dir(&mut self, op: &mut Op<'_>, node: &mut PlainInode) -> Result<()> {
        node.parent = Ino(u64::from(self.read_record(op, node, RECORD_BYTES as u64)?.0));
        Ok(())
    }

    fn is_empty(&self, op: &mut Op<'_>, node: &mut PlainInode) -> Result<bool> {
        let listing = self.list(op, node, 2 * RECORD_BYTES as u64, 1)?;
        Ok(listing.entries.is_empty())
    }

    fn find(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        name: &[u8],
    ) -> Result<Option<Found<u64>>> {
        for at in (0..node.inode.size_bytes).step_by(RECORD_BYTES).skip(2) {
            let (nr, offset) = self.record_place(op, node, at)?;
            let (ino, found) = entry(&op.peek(nr)?[offset..offset + RECORD_BYTES]);
            if ino != 0 && found == name {
                return Ok(Some(Found { ino: Ino(u64::from(ino)), place: at }));
            }
        }
        Ok(None)
    }

    fn list(
        &self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        cursor: u64,
        max: usize,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        for at in (0..node.inode.size_bytes).step_by(RECORD_BYTES).filter(|at| *at >= cursor) {
            let (ino, name) = self.read_record(op, node, at)?;
            if ino == 0 {
                continue;
            }
            if listing.entries.len() == max {
                listing.next = Some(at);
                break;
            }
            let from = listing.names.len();
            listing.names.extend(name);
            let name = from..listing.names.len();
            let next = at + RECORD_BYTES as u64;
            listing.entries.push(Listed { ino: Ino(u64::from(ino)), kind: None, name, next });
        }
        Ok(listing)
    }

    fn init_dir(&mut self, op: &mut Op<'_>, node: &mut PlainInode, parent: Ino) -> Result<()> {
        let mut block = record(node.ino.0 as u32, b".").to_vec();
        block.extend(record(parent.0 as u32, b".."));
        block.resize(self.block_bytes, 0);
        let befores = self.grow(op, node, &block)?;
        node.born_after.extend(befores);
        Ok(())
    }

    fn reserve(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        name: &[u8],
        _: FileKind,
    ) -> Result<Reserved> {
        let mut at = node.own.free_from as u64;
        while at < node.inode.size_bytes && self.read_record(op, node, at)?.0 != 0 {
            at += RECORD_BYTES as u64;
        }
        if at == node.inode.size_bytes {
            let zeroes = vec![0; self.block_bytes];
            let mut befores = self.grow(op, node, &zeroes)?;
            node.patch = self.write_inode(op, node, &befores)?;
            befores.extend([node.patch, node.grown]);
            node.grown = op.join(&befores)?;
        }
        node.own.free_from = at as usize;
        let (nr, offset) = self.record_place(op, node, at)?;
        // That the record is free decides that its name may be written over.
        let free = offset..offset + 4;
        let structure = op.write_relying(nr, offset + 4, &name_bytes(name), &[free], &[])?;
        op.own(nr, Owner(node.ino.0));
        Ok(Reserved { at, name: name.to_vec(), structure })
    }

    fn place(&self, reserved: &Reserved) -> u64 {
        reserved.at
    }

    fn fill(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        reserved: Reserved,
        ino: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let mut befores = Patches::from_slice(befores);
        push_patch(&mut befores, reserved.structure);
        // A crash must not leave the name twice.
        let again = node.own.cleared.iter().filter(|(name, _)| *name == reserved.name);
        again.for_each(|(_, patch)| push_patch(&mut befores, *patch));
        self.write_record(op, node, reserved.at, ino.0 as u32, &befores)
    }

    fn overwrite(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        place: u64,
        (ino, _): (Ino, FileKind),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.write_record(op, node, place, ino.0 as u32, befores)
    }

    fn clear(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        place: u64,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (_, name) = self.read_record(op, node, place)?;
        let patch = self.write_record(op, node, place, 0, befores)?;
        node.own.free_from = node.own.free_from.min(place as usize);
        node.own.cleared.retain(|(_, patch)| !op.is_durable(*patch));
        node.own.cleared.push((name, patch));
        Ok(patch)
    }

    fn set_parent(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        parent: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        node.parent = parent;
        self.write_record(op, node, RECORD_BYTES as u64, parent.0 as u32, befores)
    }

    fn attributes(&mut self, op: &mut Op<'_>, node: &PlainInode) -> Result<Vec<Attribute>> {
        match node.own.pointers.attributes {
            0 => Ok(Vec::new()),
            nr => Ok(decode_attributes(op.peek(BlockNr(u64::from(nr)))?)),
        }
    }

    fn check_attribute_name(&self, name: &[u8]) -> Result<()> {
        let known = ["user.", "trusted.", "security.", "system.posix_acl_"];
        if known.iter().any(|prefix| name.starts_with(prefix.as_bytes())) {
            return Ok(());
        }
        Err(FsError::Unsupported("attributes of this name").into())
    }

    fn set_attribute(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<PatchId> {
        let mut all = self.attributes(op, node)?;
        all.retain(|a| a.name != name);
        let new = value.map(|value| Attribute { name: name.to_vec(), value: value.to_vec() });
        all.extend(new);
        let old = node.own.pointers.attributes;
        let mut befores = Patches::new();
        let block = encode_attributes(self.block_bytes, &all).ok_or(FsError::NoSpace)?;
        node.own.pointers.attributes = match all.is_empty() {
            true => 0,
            false => self.new_block(op, node, &block, &mut befores)?,
        };
        if old != 0 {
            node.inode.blocks_512 -= self.sectors();
        }
        let patch = self.write_inode(op, node, &befores)?;
        if old != 0 {
            self.give(op, BLOCKS, u64::from(old), patch)?;
        }
        Ok(patch)
    }

    fn place_attributes(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        attributes: &[Attribute],
    ) -> Result<()> {
        if !attributes.is_empty() {
            let block = encode_attributes(self.block_bytes, attributes).ok_or(FsError::NoSpace)?;
            let mut after = Patches::new();
            node.own.pointers.attributes = self.new_block(op, node, &block, &mut after)?;
            node.born_after.extend(after);
        }
        Ok(())
    }
}
