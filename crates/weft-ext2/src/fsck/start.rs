//! Before pass 1: the descriptors, the metadata's own blocks, the resize inode.

use super::found::Found;
use super::problem::{InodeProblem, Problem};
use super::volume::Volume;
use crate::Result;
use crate::layout::bytes::get32;
use crate::layout::{Compat, Inode, RESIZE_INO, SLOT_DOUBLE, mappable_bytes};

/// Claims the metadata's own blocks, group by group.
pub(super) fn groups(volume: &Volume<'_>, found: &mut Found) -> Result<()> {
    let geometry = &volume.geometry;
    // Blocks in front of the first group have no bits in a bitmap.
    found.blocks.set_run(0, u64::from(geometry.first_data_block));
    found.descs = volume.descriptors()?;
    let descs = found.descs.clone();
    for group in 0..geometry.groups {
        let first = geometry.group_first_block(group);
        found.blocks.set_run(first, geometry.group_overhead_blocks(group));
    }
    for (group, desc) in (0_u32..).zip(&descs) {
        match desc.check(group, geometry) {
            Ok(()) => {
                found.blocks.set(u64::from(desc.block_bitmap));
                found.blocks.set(u64::from(desc.inode_bitmap));
                let table = u64::from(desc.inode_table);
                found.blocks.set_run(table, u64::from(geometry.inode_table_blocks()));
                found.tables.push(Some(desc.inode_table));
            }
            Err(error) => {
                let problem = match error {
                    weft_unix::Error::Corrupt { problem, .. } => problem.into_owned(),
                    other => other.to_string(),
                };
                found.report(Problem::GroupDescriptor { group, problem });
                found.tables.push(None);
            }
        }
    }
    Ok(())
}

/// Reads an inode's slot.
pub(super) fn inode_slot(volume: &Volume<'_>, found: &Found, ino: u32) -> Result<Option<Vec<u8>>> {
    let Some((group, index)) = volume.geometry.inode_group(ino) else { return Ok(None) };
    let Some(table) = found.tables.get(group as usize).copied().flatten() else { return Ok(None) };
    let (block, offset) = volume.geometry.inode_position(table, index);
    let mut buf = Vec::new();
    volume.read(block, &mut buf)?;
    Ok(buf.get(offset..offset + volume.geometry.inode_bytes as usize).map(<[u8]>::to_vec))
}

/// Compares the resize inode with the reserved descriptor blocks, and claims its double
/// indirect block.
pub(super) fn resize_inode(volume: &Volume<'_>, found: &mut Found) -> Result<()> {
    let geometry = &volume.geometry;
    if !geometry.features.compat.contains(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let Some(slot) = inode_slot(volume, found, RESIZE_INO)? else { return Ok(()) };
    let bad = |found: &mut Found, problem| {
        found.report(Problem::ResizeInode { problem });
        Ok(())
    };
    let Ok(inode) = Inode::parse(&slot) else { return bad(found, "cannot be read") };
    if inode.mode & 0o170_000 != 0o100_000 || inode.links == 0 {
        return bad(found, "is not a regular file");
    }
    if (0..15).any(|i| (i != SLOT_DOUBLE) && inode.block.get(i).is_none_or(|&b| b != 0)) {
        return bad(found, "has block pointers besides the double indirect one");
    }
    if geometry.contains_block(u64::from(inode.file_acl)) {
        return bad(found, "has extended attributes");
    }
    if inode.size_bytes > mappable_bytes(geometry) {
        return bad(found, "has an invalid size");
    }
    let double = inode.block.get(SLOT_DOUBLE).copied().unwrap_or(0);
    if !geometry.contains_block(u64::from(double)) {
        return bad(found, "has no double indirect block");
    }
    if !found.blocks.set(u64::from(double)) {
        return bad(found, "has a double indirect block that is multiply claimed");
    }
    let backups: Vec<u32> = (1..geometry.groups).filter(|&g| geometry.has_super(g)).collect();
    let pointers = u64::from(geometry.pointers_per_block());
    let mut table = Vec::new();
    volume.read(u64::from(double), &mut table)?;
    let first = u64::from(geometry.first_data_block) + 1 + u64::from(geometry.desc_blocks());
    let reserved = u64::from(geometry.reserved_gdt_blocks);
    let mut indirect = Vec::new();
    let used = |table: &[u8]| (0..table.len() / 4).filter(|&i| get32(table, 4 * i) != 0).count();
    if used(&table) as u64 != reserved {
        return bad(found, "lists a wrong number of reserved descriptor blocks");
    }
    for i in 0..reserved {
        let slot = (u64::from(geometry.desc_blocks()) + i) % pointers;
        let primary = first + i;
        let at = usize::try_from(slot * 4).unwrap_or(usize::MAX);
        if u64::from(get32(&table, at)) != primary {
            return bad(found, "does not list all reserved descriptor blocks");
        }
        volume.read(primary, &mut indirect)?;
        if used(&indirect) != backups.len() {
            return bad(found, "lists a wrong number of backups of a reserved descriptor block");
        }
        for (slot, &group) in backups.iter().enumerate() {
            let copy = primary + u64::from(group) * u64::from(geometry.blocks_per_group);
            if u64::from(get32(&indirect, 4 * slot)) != copy {
                return bad(found, "does not list all backups of a reserved descriptor block");
            }
        }
    }
    let expected =
        (1 + reserved * (1 + backups.len() as u64)) * u64::from(geometry.block_bytes) / 512;
    if u64::from(inode.blocks_512) != expected {
        let problem = InodeProblem::BlockCount { found: inode.blocks_512, expected };
        found.report(Problem::Inode { ino: RESIZE_INO, problem });
    }
    Ok(())
}
