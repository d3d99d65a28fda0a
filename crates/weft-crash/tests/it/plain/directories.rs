//! The plain format's directories: rows of records.

use super::format::Plain;
use super::inodes::PlainInode;
use super::layout::{RECORD_BYTES, entry, name_bytes, record};
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{
    Directories, Error, FileBlocks as _, Found, Inodes as _, Listed, Listing, Patches, Result,
    push_patch,
};
use weft_vfs::{FileKind, Ino};

#[derive(Debug)]
pub struct Reserved {
    at: u64,
    name: Vec<u8>,
    structure: PatchId,
}

impl Directories for Plain {
    type Place = u64;
    type Reserved = Reserved;

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
}

impl Plain {
    /// Returns the block and the offset of the record at byte `at` of a directory.
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

    /// Appends a block to a directory. Returns the patches that the inode must follow.
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
