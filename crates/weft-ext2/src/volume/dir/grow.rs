//! The blocks of a directory: its first one, and those it grows by.

use super::super::{Node, Patches, Volume, number, push_patch};
use super::{DirIndex, MIN_RECORD, Place, SECTOR};
use crate::layout::put_dirent;
use weft_patch::{BlockNr, Op, Owner};
use weft_unix::Result;
use weft_vfs::{Error as FsError, Ino};

impl Volume {
    /// One free record in each sector from `from` on.
    fn free_records(block: &mut [u8], from: usize) {
        for at in (from..block.len()).step_by(SECTOR) {
            put_dirent(block, at, SECTOR, 0, 0, b"");
        }
    }

    /// Adds an empty block to a directory, and writes its inode.
    pub(super) fn grow_dir(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<()> {
        let fbn = node.inode.size_bytes / self.block_bytes() as u64;
        if node.inode.size_bytes + self.block_bytes() as u64 > u64::from(i32::MAX.unsigned_abs()) {
            return Err(FsError::NoSpace.into());
        }
        let mut block = self.zeroes.clone();
        Self::free_records(&mut block, 0);
        let nr = self.add_dir_block(op, node, fbn, &block)?;
        if let Some(index) = node.own.dir.as_deref_mut() {
            index.blocks.push(nr);
            index.room.push(0);
            let last = index.blocks.len() - 1;
            index.set_room(last, SECTOR);
        }
        Ok(())
    }

    fn add_dir_block(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        content: &[u8],
    ) -> Result<u32> {
        let mut befores = Patches::new();
        self.ensure_leaf(op, node, fbn, &mut befores)?;
        let mut patches = Patches::new();
        let nr = if fbn == 0 {
            self.alloc_first_dir_block(op, number(node.ino), &mut patches)?
        } else {
            let goal = self.goal(node);
            // A directory that has grown will grow more.
            let (nr, _) = self.alloc_blocks(op, number(node.ino), goal, 1, 7, &mut patches)?;
            node.own.goal = u64::from(nr) + 1;
            nr
        };
        let init = op.init(BlockNr(u64::from(nr)), content, &[])?;
        op.own(BlockNr(u64::from(nr)), Owner(node.ino.0));
        push_patch(&mut patches, init);
        self.set_run(op, node, fbn, (nr, 1), &patches, &mut befores)?;
        self.count_blocks(node, 1)?;
        node.inode.size_bytes = (fbn + 1) * self.block_bytes() as u64;
        if fbn > 0 {
            node.patch = self.write_node(op, node, &befores)?;
            // Where no order is kept, the inode's patch does not bring the pointers along.
            befores.extend([node.patch, node.grown]);
            node.grown = op.join(&befores)?;
        } else {
            node.born_after.extend(befores);
        }
        Ok(nr)
    }

    /// Gives a new directory its first block. What the inode must follow is left in the node.
    pub(in crate::volume) fn make_first_block(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        parent: Ino,
    ) -> Result<()> {
        let file_type = if self.has_filetype() { 2 } else { 0 };
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
}
