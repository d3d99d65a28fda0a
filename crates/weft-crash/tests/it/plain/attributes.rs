//! The plain format's attributes: a block of each inode's own.

use super::format::{BLOCKS, Plain};
use super::inodes::PlainInode;
use super::layout::{decode_attributes, encode_attributes};
use weft_patch::{BlockNr, Op, PatchId};
use weft_unix::{Attribute, Attributes, Inodes as _, Patches, Result};
use weft_vfs::Error as FsError;

impl Attributes for Plain {
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
