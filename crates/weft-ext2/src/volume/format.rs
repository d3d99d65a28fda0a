//! ext2 as a [`Format`]: each micro-operation handed to the module that does it.

use super::dir::{Place, Reserved};
use super::map::Cut;
use super::node::{Ext2Inode, split, storable};
use super::xattrs::split_name;
use super::{Node, Patches, Volume, number};
use crate::layout::{InodeFlags, LINK_MAX, ROOT_INO, file_type_code};
use std::ops::Range;
use weft_patch::{BlockNr, Op, PatchId, Policy};
use weft_unix::{
    Attribute, Error, FlagSupport, Format, Found, HeldExtents, Inode, Limits, Listing, Nodes,
    Result, Run, Space, TrimBounds, Unmapped,
};
use weft_vfs::{Error as FsError, FileFlags, FileKind, Ino, Time};

/// Groups that one operation changes.
const GROUPS_MAX: usize = 8;

/// A block number of the front's, which came from this volume.
fn block(nr: BlockNr) -> u32 {
    u32::try_from(nr.0).unwrap_or(u32::MAX)
}

impl Volume {
    fn type_code(&self, kind: FileKind) -> u8 {
        if self.has_filetype() { file_type_code(kind) } else { 0 }
    }
}

impl Format for Volume {
    type Node = Ext2Inode;
    type Place = Place;
    type Reserved = Reserved;
    type Cut = Cut;

    fn limits(&self) -> Limits {
        let block_bytes = self.geometry.block_bytes;
        Limits {
            root: Ino(u64::from(ROOT_INO)),
            block_bytes,
            // Revision 0 has no feature that would tell others of longer files.
            file_max_bytes: match self.sb.revision {
                0 => u64::from(i32::MAX.unsigned_abs()),
                _ => self.geometry.max_file_bytes(),
            },
            target_max_bytes: block_bytes.min(4096) as usize - 1,
            name_max_bytes: 255,
            links_max: u32::from(LINK_MAX),
            inodes_max: u64::from(self.geometry.inodes),
            time_unit_nanos: if self.new_extra_bytes() >= 16 { 1 } else { 1_000_000_000 },
            // Revision 0 has none.
            has_attributes: self.sb.revision > 0,
        }
    }

    fn space(&self) -> Space {
        let geometry = &self.geometry;
        // As the kernel counts: what metadata takes is not the volume's.
        let per_group = 2 + u64::from(geometry.inode_table_blocks());
        let overhead: u64 = u64::from(geometry.first_data_block)
            + (0..geometry.groups)
                .map(|group| geometry.group_overhead_blocks(group) + per_group)
                .sum::<u64>();
        Space {
            blocks: geometry.blocks.saturating_sub(overhead),
            blocks_free: self.free_blocks,
            blocks_reserved: u64::from(self.sb.reserved_blocks),
            inodes: u64::from(geometry.inodes),
            inodes_free: self.free_inodes,
        }
    }

    fn at_once(&self) -> (u64, u64) {
        (self.blocks_at_once(), self.inodes_at_once())
    }

    fn has_pending(&self) -> bool {
        !self.pending_blocks.is_empty() || !self.pending_inodes.is_empty()
    }

    fn settle(&mut self, op: &Op<'_>) {
        self.drain_all(op);
    }

    fn finish(&mut self, op: &mut Op<'_>) -> Result<()> {
        self.write_counts(op)
    }

    fn is_full(&self) -> bool {
        self.touched_groups() >= GROUPS_MAX
    }

    fn write_summary(&mut self, op: &mut Op<'_>) -> Result<()> {
        if self.refresh_counts() {
            self.write_sb(op, &[])?;
        }
        Ok(())
    }

    fn note_damage(&mut self, what: String) {
        self.add_damage(what);
    }

    fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    fn can_hold(&self, ino: Ino) -> bool {
        let ino = number(ino);
        ino == ROOT_INO || (self.geometry.first_inode..=self.geometry.inodes).contains(&ino)
    }

    fn read_inode(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(Inode, Ext2Inode)> {
        let inode = self.read_raw_inode(op, number(ino))?;
        if inode.links == 0 {
            return Err(FsError::Stale(ino.0).into());
        }
        let problem = if inode.kind().is_none() {
            format!("its mode {:#o} names no kind of file", inode.mode)
        } else if inode.size_bytes > self.geometry.max_file_bytes() {
            format!("its size is {} bytes", inode.size_bytes)
        } else {
            return Ok(split(&inode));
        };
        let place = self.inode_position(number(ino))?.0.0;
        Err(Error::corrupt(format!("inode {}", ino.0), place, problem))
    }

    fn write_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.write_node(op, node, befores)
    }

    fn alloc_inode(
        &mut self,
        op: &mut Op<'_>,
        parent: &Node,
        kind: FileKind,
        befores: &mut Patches,
    ) -> Result<Ino> {
        let flags = InodeFlags::from_bits_retain(parent.inode.flags.bits());
        let ino = self.take_inode(op, number(parent.ino), flags, kind, befores)?;
        Ok(Ino(u64::from(ino)))
    }

    fn new_node(&mut self, inode: &mut Inode, kind: FileKind, parent: &Node) -> Ext2Inode {
        self.new_inode(inode, kind, parent)
    }

    fn init_inode(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.init_node(op, node, befores)
    }

    fn abandon_inode(&mut self, op: &mut Op<'_>, node: &Node) -> Result<()> {
        self.give_up(op, node)
    }

    fn free_inode(&mut self, op: &mut Op<'_>, node: &Node, cleared: PatchId) -> Result<()> {
        self.free_inode_number(op, number(node.ino), Some(node.kind), cleared)
    }

    fn storable(&self, node: &Node, time: Time) -> Time {
        storable(node.own.extra_bytes, time)
    }

    fn is_settled(&self, op: &Op<'_>, node: &Node) -> bool {
        op.is_durable(node.own.unindexed)
            && op.is_durable(node.own.spanning)
            && node.own.dir.as_deref().is_none_or(|index| index.is_settled(op))
    }

    fn add_orphan(
        &mut self,
        op: &mut Op<'_>,
        nodes: &mut Nodes<Self>,
        ino: Ino,
        policy: Policy,
    ) -> Result<()> {
        self.chain_orphan(op, nodes, ino, policy)
    }

    fn remove_orphan(&mut self, op: &mut Op<'_>, nodes: &mut Nodes<Self>, ino: Ino) -> Result<()> {
        self.unchain_orphan(op, nodes, ino)
    }

    fn blocks_of(&self, node: &Node) -> u64 {
        // Others may share the block of attributes.
        let shared = u64::from(node.own.file_acl != 0);
        (node.inode.blocks_512 / self.sectors_per_block()).saturating_sub(shared)
    }

    fn flags(&self, kind: FileKind) -> Option<FlagSupport> {
        let flags = |flags: InodeFlags| FileFlags::from_bits_retain(flags.bits());
        Some(FlagSupport {
            visible: flags(InodeFlags::USER_VISIBLE),
            modifiable: flags(InodeFlags::USER_MODIFIABLE.of_kind(kind)),
            ever_modifiable: flags(InodeFlags::USER_MODIFIABLE),
        })
    }

    fn map(&self, op: &mut Op<'_>, node: &mut Node, fbn: u64, max: u64) -> Result<Run> {
        let (start, len) = self.map_run(op, node, fbn, max)?;
        Ok(Run { start: (start != 0).then_some(BlockNr(u64::from(start))), len })
    }

    fn allocate(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        max: u64,
        after: &mut Patches,
        befores: &mut Patches,
    ) -> Result<(BlockNr, u64)> {
        let (start, len) = self.take_hole(op, node, fbn, max, after, befores)?;
        Ok((BlockNr(u64::from(start)), u64::from(len)))
    }

    fn point(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        fbn: u64,
        (start, len): (BlockNr, u64),
        after: &[PatchId],
        befores: &mut Patches,
    ) -> Result<()> {
        let len = u32::try_from(len).unwrap_or(0);
        self.set_run(op, node, fbn, (block(start), len), after, befores)?;
        self.count_blocks(node, len)
    }

    fn unmap(&mut self, op: &mut Op<'_>, node: &mut Node, fbn: u64, max: u64) -> Result<Unmapped> {
        self.clear_run(op, node, fbn, max)
    }

    fn free(&mut self, op: &mut Op<'_>, start: BlockNr, len: u64, cleared: PatchId) -> Result<()> {
        self.free_blocks(op, block(start), u32::try_from(len).unwrap_or(0), cleared)
    }

    fn cut(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        keep: u64,
        whole: bool,
    ) -> Result<(Cut, u64)> {
        self.begin_cut(op, node, keep, whole)
    }

    fn finish_cut(&mut self, op: &mut Op<'_>, ino: Ino, cut: Cut, written: PatchId) -> Result<()> {
        self.end_cut(op, ino, &cut, written)
    }

    fn allow_size(
        &mut self,
        op: &mut Op<'_>,
        size_bytes: u64,
        befores: &mut Patches,
    ) -> Result<()> {
        self.need_large_file(op, size_bytes, befores)
    }

    fn keep_blocks(&mut self, op: &mut Op<'_>, node: &mut Node, want: u64) -> Result<()> {
        self.keep_behind_end(op, node, want)
    }

    fn drop_kept_blocks(&mut self, ino: Ino) {
        self.drop_window(number(ino));
    }

    fn set_target(&mut self, op: &mut Op<'_>, node: &mut Node, target: &[u8]) -> Result<()> {
        self.write_target(op, node, target)
    }

    fn target(&self, op: &mut Op<'_>, node: &Node) -> Result<Vec<u8>> {
        self.read_target(op, node)
    }

    fn load_dir(&mut self, op: &mut Op<'_>, node: &mut Node) -> Result<()> {
        self.index_dir(op, node)
    }

    fn is_empty(&self, _: &mut Op<'_>, node: &mut Node) -> Result<bool> {
        Ok(node.own.dir.as_deref().is_some_and(super::DirIndex::is_empty))
    }

    fn find(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
    ) -> Result<Option<Found<Place>>> {
        self.find_entry(op, node, name)
    }

    fn list(&self, op: &mut Op<'_>, node: &mut Node, cursor: u64, max: usize) -> Result<Listing> {
        self.list_entries(op, node, cursor, max)
    }

    fn init_dir(&mut self, op: &mut Op<'_>, node: &mut Node, parent: Ino) -> Result<()> {
        self.make_first_block(op, node, parent)
    }

    fn reserve(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        name: &[u8],
        kind: FileKind,
    ) -> Result<Reserved> {
        let file_type = self.type_code(kind);
        self.reserve_entry(op, node, name, file_type)
    }

    fn place(&self, reserved: &Reserved) -> Place {
        reserved.place
    }

    fn fill(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        reserved: Reserved,
        ino: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.fill_entry(op, node, reserved, number(ino), befores)
    }

    fn overwrite(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        (ino, kind): (Ino, FileKind),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let file_type = self.type_code(kind);
        self.overwrite_entry(op, node, place, number(ino), file_type, befores)
    }

    fn clear(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        place: Place,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.clear_entry(op, node, place, befores)
    }

    fn set_parent(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        parent: Ino,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.set_dotdot(op, node, parent, befores)
    }

    fn attributes(&mut self, op: &mut Op<'_>, node: &Node) -> Result<Vec<Attribute>> {
        self.all_attributes(op, node)
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
        self.change_attribute(op, node, name, value)
    }

    fn place_attributes(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node,
        attributes: &[Attribute],
    ) -> Result<()> {
        self.lay_out_attributes(op, node, attributes)
    }

    fn trim_bounds(&self) -> Option<TrimBounds> {
        Some(TrimBounds {
            blocks: (u64::from(self.geometry.first_data_block), self.geometry.blocks),
            longest_blocks: u64::from(self.geometry.blocks_per_group),
        })
    }

    fn hold_free(
        &mut self,
        op: &mut Op<'_>,
        blocks: Range<u64>,
        min_blocks: u64,
    ) -> Result<HeldExtents> {
        self.hold_free_extents(op, blocks, u32::try_from(min_blocks).unwrap_or(u32::MAX))
    }

    fn release_free(&mut self, extents: &[(BlockNr, u64)]) {
        self.release_free_extents(extents);
    }

    fn is_held_up(&self) -> bool {
        self.is_held_up_by_trim()
    }
}
