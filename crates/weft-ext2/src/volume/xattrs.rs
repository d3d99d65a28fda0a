//! Attribute blocks: never changed in place. A new one is written, the inode is switched to it,
//! the old one is given back (inodes of foreign volumes may share one).

use super::{Patches, Volume, push_patch};
use crate::fs::Node;
use crate::layout::{Xattr, encode_xattr_block, parse_xattr_block, xattr_block_refcount};
use crate::{Error, Result};
use weft_patch::{BlockNr, Op, Owner, PatchId};

impl Volume {
    /// The attributes in an inode's attribute block.
    pub fn read_xattr_block(&self, op: &mut Op<'_>, node: &Node) -> Result<Vec<Xattr>> {
        let nr = node.inode.file_acl;
        if nr == 0 {
            return Ok(Vec::new());
        }
        self.check_block(node.ino, nr)?;
        let block = op.peek(BlockNr(u64::from(nr)))?;
        parse_xattr_block(block).map_err(|problem| {
            Error::corrupt(format!("attributes of inode {}", node.ino), u64::from(nr), problem)
        })
    }

    /// Whether attributes fit in one block.
    pub fn fits_xattr_block(&self, all: &[Xattr]) -> bool {
        encode_xattr_block(self.block_bytes(), all).is_some()
    }

    /// Writes attributes to a new block. Returns it with the patches the inode must follow, or
    /// `None` if they do not fit.
    pub fn new_xattr_block(
        &mut self,
        op: &mut Op<'_>,
        node: &Node,
        all: &[Xattr],
    ) -> Result<Option<(u32, Patches)>> {
        let Some(content) = encode_xattr_block(self.block_bytes(), all) else { return Ok(None) };
        let mut patches = Patches::new();
        let goal = self.first_goal(node.ino);
        let (nr, _) = self.alloc_blocks(op, 0, goal, 1, 0, &mut patches)?;
        let init = op.init(BlockNr(u64::from(nr)), &content, &[])?;
        op.own(BlockNr(u64::from(nr)), Owner(u64::from(node.ino)));
        push_patch(&mut patches, init);
        Ok(Some((nr, patches)))
    }

    /// Gives back an attribute block that an inode no longer has since `cleared`.
    pub fn release_xattr_block(
        &mut self,
        op: &mut Op<'_>,
        nr: u32,
        cleared: PatchId,
    ) -> Result<()> {
        let refcount = xattr_block_refcount(op.peek(BlockNr(u64::from(nr)))?);
        self.unshared.retain(|(_, counted)| !op.is_durable(*counted));
        if refcount > 1 {
            let count = (refcount - 1).to_le_bytes();
            let counted = op.write(BlockNr(u64::from(nr)), 4, &count, &[cleared])?;
            self.unshared.push((nr, counted));
            return Ok(());
        }
        // That nobody else has the block is known by the counts that went down before.
        let others = self.unshared.iter().filter(|(block, _)| *block == nr);
        let mut befores: Patches = others.map(|(_, counted)| *counted).collect();
        push_patch(&mut befores, cleared);
        let alone = op.join(&befores)?;
        self.free_blocks(op, nr, 1, alone)
    }
}
