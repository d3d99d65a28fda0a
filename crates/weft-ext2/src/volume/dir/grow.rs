//! The blocks of a directory: its first one, and those it grows by.

use super::super::node::{Node, number};
use super::super::state::Volume;
use super::record::SECTOR;
use crate::layout::put_dirent;
use weft_patch::{BlockNr, Op, Owner};
use weft_unix::{FileBlocks as _, Inodes as _, Patches, Result, push_patch};
use weft_vfs::Error as FsError;

impl Volume {
    /// Puts one free record in each sector of `block` from byte `from` on.
    pub(super) fn free_records(block: &mut [u8], from: usize) {
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

    pub(super) fn add_dir_block(
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
        self.point(op, node, fbn, (BlockNr(u64::from(nr)), 1), &patches, &mut befores)?;
        node.inode.size_bytes = (fbn + 1) * self.block_bytes() as u64;
        if fbn > 0 {
            node.patch = self.write_inode(op, node, &befores)?;
            // Where no order is kept, the inode's patch does not bring the pointers along.
            befores.extend([node.patch, node.grown]);
            node.grown = op.join(&befores)?;
        } else {
            node.born_after.extend(befores);
        }
        Ok(nr)
    }
}
