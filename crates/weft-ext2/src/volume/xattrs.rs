//! Attributes in an inode's slot and in its attribute block. The block is never changed in place: a
//! new one is written, the inode is switched to it, and the old one is freed (inodes of foreign
//! volumes may share one).

use super::node::{Node, number, raw};
use super::state::Volume;
use crate::layout::{
    Compat, Xattr, XattrIndex, acl_from_disk, acl_to_disk, encode_xattr_block, encode_xattr_inode,
    parse_xattr_block, parse_xattr_inode, xattr_block_refcount,
};
use weft_patch::{BlockNr, Op, Owner, PatchId};
use weft_unix::{Attribute, Attributes, Error, Inodes as _, Patches, Result, push_patch};
use weft_vfs::Error as FsError;

impl Attributes for Volume {
    fn attributes(&mut self, op: &mut Op<'_>, node: &Node) -> Result<Vec<Attribute>> {
        let attrs = self.attrs(op, node)?;
        let all = attrs.inode.into_iter().chain(attrs.block);
        Ok(all
            .filter_map(|xattr| {
                let name = xattr.full_name()?;
                // A value that is no ACL is returned as it is: a reader that needs one rejects it.
                let acl = is_acl(xattr.index).then(|| acl_from_disk(&xattr.value)).flatten();
                Some(Attribute { name, value: acl.unwrap_or(xattr.value) })
            })
            .collect())
    }

    fn check_attribute_name(&self, name: &[u8]) -> Result<()> {
        split_name(name).map(drop)
    }

    fn set_attribute(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<PatchId> {
        let (index, rest) = split_name(name)?;
        let new = value.map(|value| to_disk(index, rest, value)).transpose()?;
        let old = self.attrs(op, node)?;
        let kept = |a: &&Xattr| !(a.index == index && a.name == rest);
        let first = old.inode.iter().filter(kept).cloned().chain(new);
        let (inode, others) = divide(old.room, first);
        let block: Vec<_> = old.block.iter().filter(kept).cloned().chain(others).collect();
        if !self.fits_xattr_block(&block) {
            return Err(FsError::NoSpace.into());
        }
        self.store_attributes(op, node, &old, &inode, &block)
    }

    /// Places those without room in the inode's slot in a block.
    fn place_attributes(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        attributes: &[Attribute],
    ) -> Result<()> {
        if attributes.is_empty() {
            return Ok(());
        }
        let mut attrs = Vec::new();
        for Attribute { name, value } in attributes {
            let (index, rest) = split_name(name)?;
            attrs.push(to_disk(index, rest, value)?);
        }
        let room = self.inode_tail_room_bytes(&raw(node));
        let (inode, block) = divide(room, attrs);
        let mut befores = Patches::new();
        self.mark_attributes(op, &mut befores)?;
        node.born_after.extend(befores);
        if !inode.is_empty() {
            node.own.new_tail = encode_xattr_inode(room, &inode).unwrap_or_default();
        }
        if !block.is_empty() {
            let Some((nr, patches)) = self.new_xattr_block(op, node, &block)? else {
                return Err(FsError::NoSpace.into());
            };
            node.own.file_acl = nr;
            node.born_after.extend(patches);
            self.count_blocks(node, 1)?;
        }
        Ok(())
    }
}

impl Volume {
    /// Reads the attributes in an inode's attribute block.
    pub fn read_xattr_block(&self, op: &mut Op<'_>, node: &Node) -> Result<Vec<Xattr>> {
        let nr = node.own.file_acl;
        if nr == 0 {
            return Ok(Vec::new());
        }
        self.check_block(node.ino, nr)?;
        let block = op.peek(BlockNr(u64::from(nr)))?;
        parse_xattr_block(block).map_err(|problem| {
            Error::corrupt(format!("attributes of inode {}", node.ino.0), u64::from(nr), problem)
        })
    }

    /// Reports whether attributes fit in one block.
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
        let goal = self.first_goal(number(node.ino));
        let (nr, _) = self.alloc_blocks(op, 0, goal, 1, 0, &mut patches)?;
        let init = op.init(BlockNr(u64::from(nr)), &content, &[])?;
        op.own(BlockNr(u64::from(nr)), Owner(node.ino.0));
        push_patch(&mut patches, init);
        Ok(Some((nr, patches)))
    }

    /// Frees an attribute block that an inode no longer has since `cleared`, or lowers its count if
    /// other inodes share it.
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
        // The counts lowered before tell that no other inode has the block.
        let others = self.unshared.iter().filter(|(block, _)| *block == nr);
        let mut befores: Patches = others.map(|(_, counted)| *counted).collect();
        push_patch(&mut befores, cleared);
        let alone = op.join(&befores)?;
        self.free_blocks(op, nr, 1, alone)
    }

    /// Reads the attributes of an inode, those in its slot and those in its block.
    fn attrs(&self, op: &mut Op<'_>, node: &Node) -> Result<Attrs> {
        let ino = number(node.ino);
        let inode = raw(node);
        let tail = self.read_inode_tail(op, ino, &inode)?;
        let in_inode = parse_xattr_inode(&tail).map_err(|problem| {
            let block = self.inode_position(ino).map_or(0, |(nr, _)| nr.0);
            Error::corrupt(format!("attributes in inode {ino}"), block, problem)
        })?;
        let block = self.read_xattr_block(op, node)?;
        let room = self.inode_tail_room_bytes(&inode);
        Ok(Attrs { inode: in_inode, block, room })
    }

    fn store_attributes(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        old: &Attrs,
        inode: &[Xattr],
        block: &[Xattr],
    ) -> Result<PatchId> {
        let mut befores = Patches::new();
        let mut freed = 0;
        if !(inode.is_empty() && block.is_empty()) {
            self.mark_attributes(op, &mut befores)?;
        }
        if block != old.block {
            let new = if block.is_empty() {
                0
            } else {
                let Some((nr, patches)) = self.new_xattr_block(op, node, block)? else {
                    return Err(FsError::NoSpace.into());
                };
                befores.extend(patches);
                nr
            };
            freed = std::mem::replace(&mut node.own.file_acl, new);
            if freed == 0 && new != 0 {
                self.count_blocks(node, 1)?;
            } else if freed != 0 && new == 0 {
                self.uncount_blocks(node, 1);
            }
        }
        let patch = match encode_xattr_inode(old.room, inode) {
            Some(tail) if old.room > 0 => {
                self.write_raw_inode_with_tail(op, number(node.ino), &raw(node), &tail, &befores)?
            }
            _ => self.write_inode(op, node, &befores)?,
        };
        if freed != 0 {
            self.release_xattr_block(op, freed, patch)?;
        }
        Ok(patch)
    }

    /// Sets the feature of attributes in the superblock, without which others need not look for them.
    fn mark_attributes(&mut self, op: &mut Op<'_>, befores: &mut Patches) -> Result<()> {
        if self.sb.revision == 0 {
            // Without features no implementation would look for the block.
            return Err(FsError::Unsupported("attributes on a revision 0 volume").into());
        }
        if !self.sb.features.compat.contains(Compat::EXT_ATTR) {
            self.sb.features.compat |= Compat::EXT_ATTR;
            self.geometry.features = self.sb.features;
            push_patch(befores, self.write_sb(op, &[])?);
        }
        Ok(())
    }
}

/// All attributes of an inode, by their position.
struct Attrs {
    inode: Vec<Xattr>,
    block: Vec<Xattr>,
    /// Bytes for attributes in the inode.
    room: usize,
}

/// Divides attributes into those for an inode with `room` bytes, and those for a block.
fn divide(room: usize, attrs: impl IntoIterator<Item = Xattr>) -> (Vec<Xattr>, Vec<Xattr>) {
    let (mut inode, mut block) = (Vec::new(), Vec::new());
    for attr in attrs {
        inode.push(attr);
        if encode_xattr_inode(room, &inode).is_none() {
            block.extend(inode.pop());
        }
    }
    (inode, block)
}

/// Splits an attribute's name into the index of its prefix and the rest.
fn split_name(name: &[u8]) -> Result<(XattrIndex, &[u8])> {
    let (index, rest) =
        XattrIndex::split(name).ok_or(FsError::Unsupported("attributes of this name"))?;
    if rest.len() > 255 {
        return Err(FsError::Range.into());
    }
    Ok((index, rest))
}

fn is_acl(index: XattrIndex) -> bool {
    matches!(index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT)
}

fn to_disk(index: XattrIndex, name: &[u8], value: &[u8]) -> Result<Xattr> {
    let value = if is_acl(index) {
        acl_to_disk(value).ok_or(FsError::Invalid("not an ACL"))?
    } else {
        value.to_vec()
    };
    Ok(Xattr { index, name: name.to_vec(), value })
}
