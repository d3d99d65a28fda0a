//! Writes a planned volume.

use super::options::MkfsOptions;
use super::plan::Plan;
use super::report::Report;
use super::resize;
use super::space::{Space, set};
use super::writer::Writer;
use crate::layout::bytes::put32;
use crate::layout::{
    Compat, DIRECT_SLOTS, Geometry, GroupDesc, Incompat, Inode, JOURNAL_INO, MapPath, RESIZE_INO,
    ROOT_INO, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, put_dirent,
};
use crate::{Error, Result};
use std::collections::BTreeMap;
use weft_block::BlockDevice;
use weft_patch::jbd2;

/// The unit directory entries keep within, so that a torn write leaves whole entries.
const CHUNK: usize = 512;

pub(super) fn build(
    device: &dyn BlockDevice,
    plan: &Plan,
    options: &MkfsOptions,
) -> Result<Report> {
    let mut superblock = plan.superblock.clone();
    let geometry = superblock.geometry();
    let mut space = Space::new(&geometry);
    let writer = Writer::new(device, &geometry, plan.time);
    let first_bytes = SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64;
    device.write_zeroes(0, first_bytes)?;
    device.flush()?;
    if options.discard {
        device.discard(0, superblock.len_bytes())?;
    }

    let mut inodes = BTreeMap::new();
    directories(&writer, &geometry, &mut space, options, &mut inodes)?;
    if geometry.features.compat.contains(Compat::RESIZE_INODE) {
        let double = space.take(0)?;
        inodes.insert(RESIZE_INO, resize::write(&writer, &geometry, double)?);
    }
    if plan.journal_blocks > 0 {
        let inode = journal(&writer, &geometry, &mut space, plan, options)?;
        superblock.journal_backup_type = 1;
        for (backup, slot) in superblock.journal_backup.iter_mut().zip(inode.block) {
            *backup = slot;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        {
            superblock.journal_backup[15] = (inode.size_bytes >> 32) as u32;
            superblock.journal_backup[16] = inode.size_bytes as u32;
        }
        inodes.insert(JOURNAL_INO, inode);
    }
    let descs = groups(&writer, &geometry, &space)?;
    write_inodes(&writer, &geometry, &space.desc(0), &inodes)?;
    superblock.free_blocks = descs.iter().map(|d| u32::from(d.free_blocks)).sum();
    superblock.free_inodes = descs.iter().map(|d| u32::from(d.free_inodes)).sum();
    let table = space.desc_table(&descs);
    for group in (0..geometry.groups).filter(|&g| geometry.has_super(g)) {
        head(&writer, &geometry, &superblock, group, &table)?;
    }
    device.flush()?;
    device.write_at(&superblock.encode(), SUPERBLOCK_OFFSET)?;
    device.flush()?;
    Ok(Report {
        block_bytes: geometry.block_bytes,
        blocks: superblock.blocks,
        free_blocks: superblock.free_blocks,
        reserved_blocks: superblock.reserved_blocks,
        inodes: superblock.inodes,
        free_inodes: superblock.free_inodes,
        inode_bytes: geometry.inode_bytes,
        groups: geometry.groups,
        journal_blocks: plan.journal_blocks,
        uuid: superblock.uuid,
        features: superblock.features.names(),
    })
}

/// Root and lost+found.
fn directories(
    writer: &Writer<'_>,
    geometry: &Geometry,
    space: &mut Space<'_>,
    options: &MkfsOptions,
    inodes: &mut BTreeMap<u32, Inode>,
) -> Result<()> {
    let len = geometry.block_bytes as usize;
    let kind = u8::from(geometry.features.incompat.contains(Incompat::FILETYPE)) * 2;
    let lost_found_ino = geometry.first_inode;
    // As mke2fs: 16 KiB where direct blocks can map them; a tiny volume gets one block.
    let lost_found_blocks =
        if geometry.blocks < 1024 { 1 } else { (16_384 / len).min(DIRECT_SLOTS) };

    let root_block = space.take(0)?;
    let mut block = empty_dir_block(len);
    put_dirent(&mut block, 0, 12, ROOT_INO, kind, b".");
    put_dirent(&mut block, 12, 12, ROOT_INO, kind, b"..");
    put_dirent(&mut block, 24, CHUNK - 24, lost_found_ino, kind, b"lost+found");
    writer.blocks(root_block, &block)?;
    let mut root = writer.new_inode(0o040_755);
    root.uid = options.root_uid;
    root.gid = options.root_gid;
    root.links = 3;
    set_blocks(&mut root, geometry, &[root_block]);
    inodes.insert(ROOT_INO, root);

    let mut blocks = Vec::new();
    for i in 0..lost_found_blocks {
        let mut block = empty_dir_block(len);
        if i == 0 {
            put_dirent(&mut block, 0, 12, lost_found_ino, kind, b".");
            put_dirent(&mut block, 12, CHUNK - 12, ROOT_INO, kind, b"..");
        }
        let at = space.take(0)?;
        writer.blocks(at, &block)?;
        blocks.push(at);
    }
    let mut lost_found = writer.new_inode(0o040_700);
    lost_found.links = 2;
    set_blocks(&mut lost_found, geometry, &blocks);
    inodes.insert(lost_found_ino, lost_found);
    Ok(())
}

/// A directory block of free records, none of which crosses a sector.
fn empty_dir_block(len: usize) -> Vec<u8> {
    let mut block = vec![0; len];
    for at in (0..len).step_by(CHUNK) {
        put_dirent(&mut block, at, CHUNK, 0, 0, b"");
    }
    block
}

/// Makes a directory's inode map at most twelve blocks.
fn set_blocks(inode: &mut Inode, geometry: &Geometry, blocks: &[u64]) {
    for (slot, block) in inode.block.iter_mut().zip(blocks) {
        *slot = u32::try_from(*block).unwrap_or(0);
    }
    inode.size_bytes = blocks.len() as u64 * u64::from(geometry.block_bytes);
    inode.blocks_512 = u32::try_from(inode.size_bytes / 512).unwrap_or(0);
}

/// Writes an empty journal and returns its inode. Data and indirect blocks lie in the order a
/// reader meets them.
fn journal(
    writer: &Writer<'_>,
    geometry: &Geometry,
    space: &mut Space<'_>,
    plan: &Plan,
    options: &MkfsOptions,
) -> Result<Inode> {
    let pointers = u64::from(geometry.pointers_per_block());
    let len = u64::from(plan.journal_blocks);
    let goal = space.middle(len + len / pointers + 4);
    let mut tables: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut inode = writer.new_inode(0o100_600);
    let mut data = Vec::new();
    let mut tables_taken = 0;
    // Finds or takes the table a slot points to.
    let mut table = |slot: &mut u32, space: &mut Space<'_>| -> Result<u64> {
        if *slot == 0 {
            *slot = u32::try_from(space.take(goal)?).unwrap_or(0);
            tables_taken += 1;
        }
        Ok(u64::from(*slot))
    };
    for i in 0..len {
        let path = MapPath::new(i, pointers)
            .ok_or_else(|| Error::Invalid("the journal is too long for a file".into()))?;
        let first = path.slot;
        let mut slot_value = inode.block.get(first).copied().unwrap_or(0);
        let mut above: Option<(u64, usize)> = None;
        for &next in path.indexes() {
            let at = table(&mut slot_value, space)?;
            store(&mut inode, &mut tables, above, first, slot_value, geometry);
            above = Some((at, next));
            slot_value = tables.get(&at).map_or(0, |t| crate::layout::bytes::get32(t, 4 * next));
        }
        let block = space.take(goal)?;
        let value = u32::try_from(block).unwrap_or(0);
        store(&mut inode, &mut tables, above, first, value, geometry);
        data.push(block);
    }
    for (at, content) in &tables {
        writer.blocks(*at, content)?;
    }
    let mut run: Option<(u64, u64)> = None;
    for &block in data.iter().skip(1) {
        match &mut run {
            Some((first, len)) if *first + *len == block => *len += 1,
            _ => {
                if let Some((first, len)) = run {
                    writer.zeroes(first, len)?;
                }
                run = Some((block, 1));
            }
        }
    }
    if let Some((first, len)) = run {
        writer.zeroes(first, len)?;
    }
    let features = if options.journal_checksums {
        jbd2::Features::revoke_and_checksums()
    } else {
        jbd2::Features::revoke()
    };
    let superblock = jbd2::format_journal_superblock(&jbd2::FormatOptions {
        block_bytes: geometry.block_bytes,
        len_blocks: plan.journal_blocks,
        superblock_at: 0,
        uuid: plan.superblock.uuid,
        features,
        users: Vec::new(),
    })
    .map_err(|e| Error::Invalid(e.to_string()))?;
    if let Some(&first) = data.first() {
        writer.blocks(first, &superblock)?;
    }
    inode.links = 1;
    inode.size_bytes = len * u64::from(geometry.block_bytes);
    let units = u64::from(geometry.block_bytes) / 512;
    inode.blocks_512 = u32::try_from((len + tables_taken) * units).unwrap_or(0);
    Ok(inode)
}

/// Stores a block number in the inode's slot `first`, or in a table.
fn store(
    inode: &mut Inode,
    tables: &mut BTreeMap<u64, Vec<u8>>,
    above: Option<(u64, usize)>,
    first: usize,
    value: u32,
    geometry: &Geometry,
) {
    match above {
        None => {
            if let Some(slot) = inode.block.get_mut(first) {
                *slot = value;
            }
        }
        Some((at, slot)) => {
            let table = tables.entry(at).or_insert_with(|| vec![0; geometry.block_bytes as usize]);
            put32(table, 4 * slot, value);
        }
    }
}

/// Writes bitmaps and empty inode tables; returns the descriptors.
fn groups(writer: &Writer<'_>, geometry: &Geometry, space: &Space<'_>) -> Result<Vec<GroupDesc>> {
    let mut descs = Vec::new();
    for group in 0..geometry.groups {
        let mut desc = space.desc(group);
        let (map, free) = space.bitmap(group);
        desc.free_blocks = u16::try_from(free).unwrap_or(u16::MAX);
        let mut inode_map = vec![0; geometry.block_bytes as usize];
        let per_group = u64::from(geometry.inodes_per_group);
        let mut used = 0;
        if group == 0 {
            // The reserved ones, and lost+found.
            used = u64::from(geometry.first_inode);
            set(&mut inode_map, 0, used);
            desc.used_dirs = 2;
        }
        desc.free_inodes = u16::try_from(per_group.saturating_sub(used)).unwrap_or(u16::MAX);
        let bits = u64::from(geometry.block_bytes) * 8;
        set(&mut inode_map, per_group, bits.saturating_sub(per_group));
        let mut maps = map;
        maps.extend_from_slice(&inode_map);
        writer.blocks(u64::from(desc.block_bitmap), &maps)?;
        let table_blocks = u64::from(geometry.inode_table_blocks());
        writer.zeroes(u64::from(desc.inode_table), table_blocks)?;
        descs.push(desc);
    }
    Ok(descs)
}

/// Writes the blocks of the first group's inode table that hold inodes.
fn write_inodes(
    writer: &Writer<'_>,
    geometry: &Geometry,
    desc: &GroupDesc,
    inodes: &BTreeMap<u32, Inode>,
) -> Result<()> {
    let last = inodes.last_key_value().map_or(1, |(&ino, _)| ino);
    let inode_bytes = geometry.inode_bytes as usize;
    let len = (last as usize * inode_bytes).next_multiple_of(geometry.block_bytes as usize);
    let mut content = vec![0; len];
    for (&ino, inode) in inodes {
        let slot = content.chunks_exact_mut(inode_bytes).nth(ino as usize - 1);
        if let Some(slot) = slot {
            inode.encode_into(slot);
        }
    }
    writer.blocks(u64::from(desc.inode_table), &content)
}

/// Writes a group's copy of superblock and descriptors, and clears the blocks set aside behind
/// them. The primary superblock itself is left out: it is written last.
fn head(
    writer: &Writer<'_>,
    geometry: &Geometry,
    superblock: &Superblock,
    group: u32,
    table: &[u8],
) -> Result<()> {
    let first = geometry.group_first_block(group);
    if group > 0 {
        let mut copy = superblock.clone();
        if copy.revision > 0 {
            copy.block_group = u16::try_from(group).unwrap_or(0);
        }
        let mut content = vec![0; geometry.block_bytes as usize];
        copy.encode_into(&mut content);
        writer.blocks(first, &content)?;
        let reserved = first + 1 + u64::from(geometry.desc_blocks());
        writer.zeroes(reserved, u64::from(geometry.reserved_gdt_blocks))?;
    }
    writer.blocks(first + 1, table)
}
