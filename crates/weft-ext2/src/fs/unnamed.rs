//! Files made without a name (`O_TMPFILE`).
//!
//! On the disk such an inode is as one that has lost its last name and is still in use: without links,
//! on the chain of orphans under a journal. It gets its first name as any inode gets another one.

use super::names::{NAME_BLOCKS, new_inode};
use super::xattr::XATTR_BLOCKS;
use super::{Ext2, Node, State, plain};
use crate::Result;
use crate::volume::Patches;
use weft_patch::{Op, PatchId};
use weft_vfs::{Caller, Entry, Error as FsError, FileKind, Ino};

impl State {
    fn create_unnamed(
        &mut self,
        op: &mut Op<'_>,
        caller: &Caller,
        parent: u32,
        perm: u16,
    ) -> Result<u32> {
        let kind = FileKind::Regular;
        self.load_dir(op, parent)?;
        self.check_gains_name(parent)?;
        let generation = self.next_generation();
        let (perm, mut inherited) = self.inherit(op, parent, kind, perm, caller.umask)?;
        let Self { vol, nodes, .. } = self;
        let dir = nodes.get_mut(&parent).ok_or(FsError::Stale(u64::from(parent)))?;
        let mut befores = Patches::new();
        let ino = vol.alloc_inode(op, parent, dir.inode.flags, kind, &mut befores)?;
        let inode = new_inode(vol.new_extra_bytes(), caller, &dir.inode, kind, perm, generation);
        let mut node = Node::new(ino, kind, inode);
        node.inode.links = 0;
        node.unnamed = true;
        if let Err(e) = inherited.place(vol, op, &mut node) {
            if node.inode.file_acl != 0 {
                vol.release_xattr_block(op, node.inode.file_acl, PatchId::DURABLE)?;
            }
            vol.free_inode(op, ino, Some(kind), PatchId::DURABLE)?;
            return Err(e);
        }
        befores.extend(std::mem::take(&mut node.born_after));
        self.nodes.insert(ino, node);
        self.mark_nameless(op, ino)?;
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        node.patch = inherited.init_inode(vol, op, node, &befores)?;
        Ok(ino)
    }

    /// An unnamed file is about to get a name: it is no orphan any more. The caller writes the inode.
    pub(super) fn end_unnamed(&mut self, op: &mut Op<'_>, ino: u32) -> Result<()> {
        self.unchain(op, ino)?;
        let node = self.node(ino)?;
        node.unnamed = false;
        node.inode.dtime = 0;
        Ok(())
    }
}

impl Ext2 {
    pub(super) fn do_create_unnamed(
        &self,
        caller: &Caller,
        parent: Ino,
        perm: u16,
    ) -> Result<Entry> {
        let parent = plain(parent)?;
        self.change(NAME_BLOCKS + XATTR_BLOCKS, |st, op| {
            let ino = st.create_unnamed(op, caller, parent, perm)?;
            let node = st.node(ino)?;
            node.refs += 1;
            Ok(node.entry(self.block_bytes))
        })
    }
}
