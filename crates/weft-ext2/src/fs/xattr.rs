//! Extended attributes: first in the inode, then in a block.

use super::{Ext2, Node, State, plain};
use crate::layout::{
    Compat, Xattr, XattrIndex, acl_from_disk, acl_to_disk, encode_xattr_inode, parse_xattr_inode,
};
use crate::volume::{Patches, Volume, push_patch};
use crate::{Error, Result};
use weft_patch::{Op, PatchId};
use weft_vfs::acl::Acl;
use weft_vfs::{Error as FsError, FileKind, Ino, XattrSet};

/// Blocks that setting one attribute changes, at most.
pub(super) const XATTR_BLOCKS: u32 = 12;
/// The longest value Linux passes on.
const VALUE_MAX_BYTES: usize = 65_536;

/// All attributes of an inode, by where they lie.
struct Attrs {
    inode: Vec<Xattr>,
    block: Vec<Xattr>,
    /// Bytes there are in the inode.
    room: usize,
}

/// Those that go into an inode with `room` bytes, and those that have to go into a block.
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

fn acl_xattr(index: XattrIndex, acl: &Acl) -> Result<Xattr> {
    let value = acl_to_disk(&acl.to_xattr()).ok_or(FsError::Invalid("not an ACL"))?;
    Ok(Xattr { index, name: Vec::new(), value })
}

fn read_acl(ino: u32, value: &[u8]) -> Result<Option<Acl>> {
    let acl = acl_from_disk(value).and_then(|xattr| Acl::parse(&xattr).ok());
    acl.ok_or_else(|| {
        Error::corrupt(format!("attributes of inode {ino}"), 0, "an ACL makes no sense")
    })
}

/// The attributes that a new inode begins with.
#[derive(Default)]
pub(super) struct Inherited {
    attrs: Vec<Xattr>,
    /// Those that lie in the inode, as its slot has them behind the fields.
    tail: Vec<u8>,
}

impl Inherited {
    /// Lays the attributes out; those without room in the inode go to a block, which the inode's
    /// first write must follow.
    pub(super) fn place(
        &mut self,
        vol: &mut Volume,
        op: &mut Op<'_>,
        node: &mut Node,
    ) -> Result<()> {
        if self.attrs.is_empty() {
            return Ok(());
        }
        let room = vol.inode_tail_room_bytes(&node.inode);
        let (inode, block) = divide(room, self.attrs.drain(..));
        if !inode.is_empty() {
            self.tail = encode_xattr_inode(room, &inode).unwrap_or_default();
        }
        if !block.is_empty() {
            mark_attributes(vol, op, &mut node.born_after)?;
            let Some((nr, patches)) = vol.new_xattr_block(op, node, &block)? else {
                return Err(FsError::NoSpace.into());
            };
            node.inode.file_acl = nr;
            node.born_after.extend(patches);
            vol.count_blocks(node, 1)?;
        }
        Ok(())
    }

    /// Writes a new inode with them, after what it was born after.
    pub(super) fn init_inode(
        &self,
        vol: &mut Volume,
        op: &mut Op<'_>,
        node: &Node,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (ino, inode) = (node.ino, &node.inode);
        let fields = vol.init_inode(op, ino, inode, befores)?;
        if self.tail.is_empty() {
            return Ok(fields);
        }
        vol.write_inode_with_tail(op, ino, inode, &self.tail, &[fields])
    }
}

/// Says in the superblock that there are attribute blocks.
fn mark_attributes(vol: &mut Volume, op: &mut Op<'_>, befores: &mut Patches) -> Result<()> {
    if vol.sb.revision == 0 {
        // Where there are no features, nobody would know of the block.
        return Err(FsError::Unsupported("attributes on a revision 0 volume").into());
    }
    if !vol.sb.features.compat.contains(Compat::EXT_ATTR) {
        vol.sb.features.compat |= Compat::EXT_ATTR;
        push_patch(befores, vol.write_sb(op, &[])?);
    }
    Ok(())
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
        let room = vol.inode_tail_room_bytes(&node.inode);
        Ok(Attrs { inode, block, room })
    }

    /// Sets an attribute, or removes it if there is no value; with it the mode, if one is given, in
    /// the same write of the inode.
    fn set_attr(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        (index, name): (XattrIndex, &[u8]),
        value: Option<&[u8]>,
        how: XattrSet,
        mode: Option<u16>,
    ) -> Result<()> {
        let old = self.attrs(op, ino)?;
        let is_it = |a: &Xattr| a.index == index && a.name == name;
        let exists = old.inode.iter().chain(&old.block).any(is_it);
        match how {
            XattrSet::Create if exists => return Err(FsError::Exists.into()),
            XattrSet::Replace if !exists => return Err(FsError::NoAttribute.into()),
            _ => {}
        }
        let kept = |a: &&Xattr| !is_it(a);
        let new = value.map(|value| Xattr { index, name: name.to_vec(), value: value.to_vec() });
        let first = old.inode.iter().filter(kept).cloned().chain(new);
        let (inode, others) = divide(old.room, first);
        let block: Vec<_> = old.block.iter().filter(kept).cloned().chain(others).collect();
        if !self.vol.fits_xattr_block(&block) {
            return Err(FsError::NoSpace.into());
        }
        self.store_attrs(op, ino, &old, (&inode, &block), mode)
    }

    fn store_attrs(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        old: &Attrs,
        (inode, block): (&[Xattr], &[Xattr]),
        mode: Option<u16>,
    ) -> Result<()> {
        let units = self.vol.geometry.block_bytes / 512;
        let mut befores = Patches::new();
        let mut freed = 0;
        if block != old.block {
            mark_attributes(&mut self.vol, op, &mut befores)?;
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
        }
        let Self { vol, nodes, lazy, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        node.inode.mode = mode.unwrap_or(node.inode.mode);
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

impl State {
    /// The ACL of this kind that an inode has.
    fn acl(&mut self, op: &mut Op<'_>, ino: u32, index: XattrIndex) -> Result<Option<Acl>> {
        let attrs = self.attrs(op, ino)?;
        let found = attrs.inode.iter().chain(&attrs.block).find(|a| a.index == index);
        found.map_or(Ok(None), |found| read_acl(ino, &found.value))
    }

    /// Sets or removes an ACL. One that says who may use the inode changes its mode too, and is not
    /// kept if the mode says all of it.
    fn set_acl(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        index: XattrIndex,
        acl: Option<Acl>,
        how: XattrSet,
    ) -> Result<()> {
        let node = self.load(op, ino)?;
        let (kind, mode) = (node.kind, node.inode.mode);
        if kind == FileKind::Symlink {
            return Err(FsError::Unsupported("ACLs of symbolic links").into());
        }
        if self.vol.sb.revision == 0 {
            return Err(FsError::Unsupported("attributes on a revision 0 volume").into());
        }
        if index == XattrIndex::ACL_DEFAULT && kind != FileKind::Directory && acl.is_some() {
            return Err(FsError::Access.into());
        }
        let access = index == XattrIndex::ACL_ACCESS;
        let mode = acl.as_ref().filter(|_| access).map(|acl| mode & !0o777 | acl.perm());
        let kept = acl.filter(|acl| !access || !acl.is_mode());
        let value = kept.map(|acl| acl_xattr(index, &acl)).transpose()?.map(|xattr| xattr.value);
        self.set_attr(op, ino, (index, b""), value.as_deref(), how, mode)
    }

    /// Sets the permission bits in the ACL of an inode that has one, and those of its mode with them.
    pub(super) fn chmod_acl(&mut self, op: &mut Op<'_>, ino: u32, perm: u16) -> Result<()> {
        let Some(acl) = self.acl(op, ino, XattrIndex::ACL_ACCESS)? else { return Ok(()) };
        let value = acl_xattr(XattrIndex::ACL_ACCESS, &acl.with_perm(perm))?.value;
        let mode = self.node(ino)?.inode.mode & !0o7777 | (perm & 0o7777);
        let name = (XattrIndex::ACL_ACCESS, &b""[..]);
        self.set_attr(op, ino, name, Some(&value), XattrSet::Any, Some(mode))
    }

    /// What an inode begins with that is made in directory `parent`: its permission bits, and the
    /// ACLs that it inherits.
    pub(super) fn inherit(
        &mut self,
        op: &mut Op<'_>,
        parent: u32,
        kind: FileKind,
        perm: u16,
        umask: u16,
    ) -> Result<(u16, Inherited)> {
        if kind == FileKind::Symlink {
            return Ok((perm, Inherited::default()));
        }
        let Some(default) = self.acl(op, parent, XattrIndex::ACL_DEFAULT)? else {
            return Ok((perm & !umask, Inherited::default()));
        };
        let (perm, own) = default.inherited(perm);
        let mut attrs = Vec::new();
        if let Some(own) = own {
            attrs.push(acl_xattr(XattrIndex::ACL_ACCESS, &own)?);
        }
        if kind == FileKind::Directory {
            attrs.push(acl_xattr(XattrIndex::ACL_DEFAULT, &default)?);
        }
        Ok((perm, Inherited { attrs, tail: Vec::new() }))
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
        if is_acl(index)
            && let Some(value) = value
        {
            let acl = Acl::parse(value)?;
            return self.change(XATTR_BLOCKS, |st, op| {
                st.load(op, ino)?;
                st.check_mutable(ino, false)?;
                st.set_acl(op, ino, index, acl, how)
            });
        }
        self.change(XATTR_BLOCKS, |st, op| {
            st.load(op, ino)?;
            st.check_mutable(ino, false)?;
            st.set_attr(op, ino, (index, rest), value, how, None)
        })
    }
}
