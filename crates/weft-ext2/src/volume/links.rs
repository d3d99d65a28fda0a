//! Targets of symbolic links: short ones in the inode, others in a block.

use super::node::{Node, number, raw};
use super::state::Volume;
use crate::layout::{FAST_SYMLINK_MAX_BYTES, Inode as RawInode};
use weft_patch::{BlockNr, Op, Owner};
use weft_unix::{Error, Patches, Result, Symlinks, push_patch};

impl Symlinks for Volume {
    fn set_target(&mut self, op: &mut Op<'_>, node: &mut Node, target: &[u8]) -> Result<()> {
        if target.len() <= FAST_SYMLINK_MAX_BYTES {
            let mut inode = RawInode::default();
            inode.set_fast_symlink(target);
            node.own.block = inode.block;
            return Ok(());
        }
        let mut patches = Patches::new();
        let goal = self.goal(node);
        let (nr, _) = self.alloc_blocks(op, number(node.ino), goal, 1, 0, &mut patches)?;
        let mut block = vec![0; self.block_bytes()];
        if let Some(to) = block.get_mut(..target.len()) {
            to.copy_from_slice(target);
        }
        // Links are metadata: without their target they are damaged.
        let init = op.init(BlockNr(u64::from(nr)), &block, &[])?;
        op.own(BlockNr(u64::from(nr)), Owner(node.ino.0));
        push_patch(&mut patches, init);
        node.own.block[0] = nr;
        self.count_blocks(node, 1)?;
        node.born_after.extend(patches);
        Ok(())
    }

    fn target(&self, op: &mut Op<'_>, node: &Node) -> Result<Vec<u8>> {
        let ino = number(node.ino);
        let place = self.inode_position(ino)?.0.0;
        let inode = raw(node);
        let len = usize::try_from(inode.size_bytes).unwrap_or(usize::MAX);
        if len <= FAST_SYMLINK_MAX_BYTES && inode.is_fast_symlink(self.geometry.block_bytes) {
            return inode.fast_symlink(ino, place);
        }
        let nr = inode.block[0];
        self.check_block(node.ino, nr)?;
        let block = op.peek(BlockNr(u64::from(nr)))?;
        block.get(..len).filter(|target| !target.is_empty()).map(<[u8]>::to_vec).ok_or_else(|| {
            Error::corrupt(format!("inode {ino}"), place, "a link longer than a block")
        })
    }
}
