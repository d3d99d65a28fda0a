//! The plain format's inodes.

use super::format::{BLOCKS, INODES, Plain};
use super::layout::{Pointers, decode, encode, inode_place, inodes};
use weft_patch::{Op, PatchId};
use weft_unix::{Inode, Inodes, Node, Patches, Result};
use weft_vfs::{FileKind, Ino, Time};

#[derive(Debug, Default)]
pub struct PlainNode {
    pub pointers: Pointers,
    /// The first record that may be free.
    pub free_from: usize,
    /// The cleared names whose clearing is not durable, with its patch.
    pub cleared: Vec<(Vec<u8>, PatchId)>,
}

pub type PlainInode = Node<Plain>;

impl Inodes for Plain {
    type Node = PlainNode;

    fn can_hold(&self, ino: Ino) -> bool {
        (1..=inodes(self.block_bytes)).contains(&ino.0)
    }

    fn read_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(Inode, PlainNode)> {
        let (nr, at) = inode_place(self.block_bytes, ino.0);
        let (inode, pointers) = decode(&op.peek(nr)?[at..]);
        Ok((inode, PlainNode { pointers, ..PlainNode::default() }))
    }

    fn write_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (nr, at) = inode_place(self.block_bytes, node.ino.0);
        Ok(op.write(nr, at, &encode(&node.inode, &node.own.pointers), befores)?)
    }

    fn alloc_inode(
        &mut self,
        op: &mut Op<'_>,
        _: &PlainInode,
        _: FileKind,
        befores: &mut Patches,
    ) -> Result<Ino> {
        Ok(Ino(self.take(op, INODES, befores)? + 1))
    }

    fn new_node(&mut self, inode: &mut Inode, _: FileKind, _: &PlainInode) -> PlainNode {
        inode.btime = None;
        PlainNode::default()
    }

    fn init_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut PlainInode,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.write_inode(op, node, befores)
    }

    fn abandon_inode(&mut self, op: &mut Op<'_>, node: &PlainInode) -> Result<()> {
        let Pointers { direct, indirect, attributes } = &node.own.pointers;
        for nr in direct.iter().chain([indirect, attributes]).filter(|nr| **nr != 0) {
            self.give(op, BLOCKS, u64::from(*nr), PatchId::DURABLE)?;
        }
        self.give(op, INODES, node.ino.0 - 1, PatchId::DURABLE)
    }

    fn free_inode(&mut self, op: &mut Op<'_>, node: &PlainInode, cleared: PatchId) -> Result<()> {
        self.give(op, INODES, node.ino.0 - 1, cleared)
    }

    fn storable(&self, _: &PlainInode, time: Time) -> Time {
        time
    }

    fn is_settled(&self, op: &Op<'_>, node: &PlainInode) -> bool {
        node.own.cleared.iter().all(|(_, patch)| op.is_durable(*patch))
    }
}
