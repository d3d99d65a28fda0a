//! Extended attributes: first in the inode, then in a block.

use super::{Ext2, State, plain};
use crate::layout::{
    Compat, Xattr, XattrIndex, acl_from_disk, acl_to_disk, encode_xattr_inode, parse_xattr_inode,
};
use crate::volume::{Patches, push_patch};
use crate::{Error, Result};
use weft_patch::Op;
use weft_vfs::{Error as FsError, Ino, XattrSet};

/// Blocks that setting one attribute changes, at most.
const XATTR_BLOCKS: u32 = 12;
/// The longest value Linux passes on.
const VALUE_MAX_BYTES: usize = 65_536;

/// All attributes of an inode, by where they lie.
struct Attrs {
    inode: Vec<Xattr>,
    block: Vec<Xattr>,
    /// Bytes there are in the inode.
    room: usize,
}

fn split(name: &[u8]) -> Result<(XattrIndex, &[u8])> {
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

impl State {
    fn attrs(&mut self, op: &mut Op<'_>, ino: u32) -> Result<Attrs> {
        self.load(op, ino)?;
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        let tail = vol.read_inode_tail(op, ino, &node.inode)?;
        let inode = parse_xattr_inode(&tail).map_err(|problem| {
            let block = vol.inode_position(ino).map_or(0, |(nr, _)| nr.0);
            Error::corrupt(format!("attributes in inode {ino}"), block, problem)
        })?;
        let block = vol.read_xattr_block(op, node)?;
        Ok(Attrs { inode, block, room: tail.len() })
    }

    /// Sets an attribute, or removes it if there is no value.
    fn set_attr(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        (index, name): (XattrIndex, &[u8]),
        value: Option<&[u8]>,
        how: XattrSet,
    ) -> Result<()> {
        let old = self.attrs(op, ino)?;
        let is_it = |a: &Xattr| a.index == index && a.name == name;
        let exists = old.inode.iter().chain(&old.block).any(is_it);
        match how {
            XattrSet::Create if exists => return Err(FsError::Exists.into()),
            XattrSet::Replace if !exists => return Err(FsError::NoAttribute.into()),
            _ => {}
        }
        let without =
            |all: &[Xattr]| -> Vec<Xattr> { all.iter().filter(|a| !is_it(a)).cloned().collect() };
        let mut inode = without(&old.inode);
        let mut block = without(&old.block);
        if let Some(value) = value {
            let new = Xattr { index, name: name.to_vec(), value: value.to_vec() };
            inode.push(new.clone());
            if encode_xattr_inode(old.room, &inode).is_none() {
                inode.pop();
                block.push(new);
                if !self.vol.fits_xattr_block(&block) {
                    return Err(FsError::NoSpace.into());
                }
            }
        }
        self.store_attrs(op, ino, &old, &inode, &block)
    }

    fn store_attrs(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        old: &Attrs,
        inode: &[Xattr],
        block: &[Xattr],
    ) -> Result<()> {
        let units = self.vol.geometry.block_bytes / 512;
        let mut befores = Patches::new();
        let mut freed = 0;
        if block != old.block {
            if self.vol.sb.revision == 0 {
                // Where there are no features, nobody would know of the block.
                return Err(FsError::Unsupported("attributes on a revision 0 volume").into());
            }
            let Self { vol, nodes, .. } = self;
            let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
            let had = node.inode.file_acl;
            let new = if block.is_empty() {
                0
            } else {
                let Some((nr, patches)) = vol.new_xattr_block(op, node, block)? else {
                    return Err(FsError::NoSpace.into());
                };
                befores.extend(patches);
                nr
            };
            node.inode.file_acl = new;
            if had == 0 && new != 0 {
                vol.count_blocks(node, 1)?;
            } else if had != 0 && new == 0 {
                node.inode.blocks_512 = node.inode.blocks_512.saturating_sub(units);
            }
            freed = had;
            if !vol.sb.features.compat.contains(Compat::EXT_ATTR) && vol.sb.revision > 0 {
                vol.sb.features.compat |= Compat::EXT_ATTR;
                push_patch(&mut befores, vol.write_sb(op, &[])?);
            }
        }
        let Self { vol, nodes, lazy, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        node.changed();
        node.patch = match encode_xattr_inode(old.room, inode) {
            Some(tail) if old.room > 0 => {
                vol.write_inode_with_tail(op, ino, &node.inode, &tail, &befores)?
            }
            _ => vol.write_inode(op, ino, &node.inode, &befores)?,
        };
        node.lazy = false;
        lazy.remove(&ino);
        let patch = node.patch;
        if freed != 0 {
            vol.release_xattr_block(op, freed, patch)?;
        }
        Ok(())
    }
}

impl Ext2 {
    pub(super) fn do_getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let ino = plain(ino)?;
        let (index, rest) = split(name)?;
        let attrs = self.look(|st, op| st.attrs(op, ino))?;
        let found = attrs
            .inode
            .into_iter()
            .chain(attrs.block)
            .find(|a| a.index == index && a.name == rest)
            .ok_or(FsError::NoAttribute)?;
        if is_acl(index) {
            return acl_from_disk(&found.value).ok_or_else(|| {
                Error::corrupt(format!("attributes of inode {ino}"), 0, "an ACL makes no sense")
            });
        }
        Ok(found.value)
    }

    pub(super) fn do_listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let ino = plain(ino)?;
        let attrs = self.look(|st, op| st.attrs(op, ino))?;
        Ok(attrs.inode.iter().chain(&attrs.block).filter_map(Xattr::full_name).collect())
    }

    pub(super) fn do_setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrSet,
    ) -> Result<()> {
        let ino = plain(ino)?;
        let (index, rest) = split(name)?;
        if value.is_some_and(|v| v.len() > VALUE_MAX_BYTES) {
            return Err(FsError::Range.into());
        }
        let mut acl = None;
        if let (true, Some(value)) = (is_acl(index), value) {
            acl = Some(acl_to_disk(value).ok_or(FsError::Invalid("not an ACL"))?);
        }
        let value = acl.as_deref().or(value);
        self.change(XATTR_BLOCKS, |st, op| st.set_attr(op, ino, (index, rest), value, how))
    }
}
