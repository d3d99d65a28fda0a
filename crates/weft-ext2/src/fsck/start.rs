//! Before pass 1: the superblock, the descriptors, the metadata's own blocks, the journal, the
//! resize inode.

use super::found::Found;
use super::problem::{InodeProblem, Problem};
use super::volume::Volume;
use crate::layout::bytes::{get16, get32};
use crate::layout::{
    Compat, Inode, JOURNAL_INO, RESIZE_INO, SLOT_DOUBLE, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET,
    Superblock,
};
use crate::{Error, Result};
use weft_block::BlockDevice;
use weft_patch::jbd2::{Log, LogMap};

/// Reads the superblock and refuses what cannot be checked at all.
pub(super) fn superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut raw = [0; SUPERBLOCK_BYTES];
    let len_bytes = device.geometry().len_bytes;
    if len_bytes < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Err(Error::NotExt2 { found: 0 });
    }
    device.read_at(&mut raw, SUPERBLOCK_OFFSET)?;
    let superblock = Superblock::parse(&raw)?;
    superblock.check_features()?;
    let unknown = superblock.features.unknown_ro_compat();
    if !unknown.is_empty() {
        return Err(Error::Incompatible { features: unknown.join(", ") });
    }
    if superblock.len_bytes() > len_bytes {
        return Err(Error::corrupt(
            "superblock",
            0,
            format!("the volume has {} bytes, the device {len_bytes}", superblock.len_bytes()),
        ));
    }
    Ok(superblock)
}

/// The superblock's bytes, as they are after the journal's replay.
pub(super) fn superblock_bytes(volume: &Volume<'_>) -> Result<Vec<u8>> {
    let block_bytes = u64::from(volume.geometry.block_bytes);
    let mut buf = Vec::new();
    volume.read(SUPERBLOCK_OFFSET / block_bytes, &mut buf)?;
    let at = usize::try_from(SUPERBLOCK_OFFSET % block_bytes).unwrap_or(0);
    Ok(buf.get(at..at + SUPERBLOCK_BYTES).unwrap_or_default().to_vec())
}

/// Fields of the superblock that parsing lets pass.
pub(super) fn superblock_fields(
    volume: &Volume<'_>,
    superblock: &Superblock,
    found: &mut Found,
) -> Result<()> {
    let raw = superblock_bytes(volume)?;
    let mut report = |field, problem: String| {
        found.report(Problem::Superblock { field, problem });
    };
    if superblock.reserved_blocks > superblock.blocks / 2 {
        report("reserved blocks", format!("are {}", superblock.reserved_blocks));
    }
    if superblock.revision == 0 && (0..3).any(|i| get32(&raw, 0x5C + 4 * i) != 0) {
        report("features", "are set in revision 0".into());
    }
    let resizable = superblock.features.compat.contains(Compat::RESIZE_INODE);
    let reserve = u32::from(get16(&raw, 0xCE));
    if superblock.revision > 0 && !resizable && reserve != 0 {
        report("reserved descriptor blocks", format!("are {reserve} without resize_inode"));
    }
    if resizable && reserve > superblock.block_bytes() / 4 {
        report("reserved descriptor blocks", format!("are {reserve}"));
    }
    if superblock.last_orphan != 0 {
        found.report(Problem::OrphanChain { first: superblock.last_orphan });
    }
    Ok(())
}

/// Claims the metadata's own blocks, group by group.
pub(super) fn groups(volume: &Volume<'_>, found: &mut Found) -> Result<()> {
    let geometry = &volume.geometry;
    // Blocks in front of the first group belong to nobody and have no bits.
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

/// Compares the resize inode with what the reserved blocks make it, and claims its double
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
        return bad(found, "is no file");
    }
    if (0..15).any(|i| (i != SLOT_DOUBLE) && inode.block.get(i).is_none_or(|&b| b != 0)) {
        return bad(found, "has blocks of its own");
    }
    if geometry.contains_block(u64::from(inode.file_acl)) {
        return bad(found, "has attributes");
    }
    if inode.size_bytes > super::scan::mappable_bytes(geometry) {
        return bad(found, "has an impossible size");
    }
    let double = inode.block.get(SLOT_DOUBLE).copied().unwrap_or(0);
    if !geometry.contains_block(u64::from(double)) {
        return bad(found, "has no double indirect block");
    }
    if !found.blocks.set(u64::from(double)) {
        return bad(found, "has a double indirect block that is taken");
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
        return bad(found, "does not list just the reserved blocks");
    }
    for i in 0..reserved {
        let slot = (u64::from(geometry.desc_blocks()) + i) % pointers;
        let primary = first + i;
        let at = usize::try_from(slot * 4).unwrap_or(usize::MAX);
        if u64::from(get32(&table, at)) != primary {
            return bad(found, "does not list all reserved blocks");
        }
        volume.read(primary, &mut indirect)?;
        if used(&indirect) != backups.len() {
            return bad(found, "does not list just the reserved blocks of the backups");
        }
        for (slot, &group) in backups.iter().enumerate() {
            let copy = primary + u64::from(group) * u64::from(geometry.blocks_per_group);
            if u64::from(get32(&indirect, 4 * slot)) != copy {
                return bad(found, "does not list all reserved blocks of the backups");
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

/// The blocks of the journal inode, in the order of the file.
///
/// # Errors
/// A sentence, if there is no journal there.
fn journal_blocks(
    volume: &Volume<'_>,
    found: &Found,
) -> Result<std::result::Result<Vec<u64>, &'static str>> {
    let Some(slot) = inode_slot(volume, found, JOURNAL_INO)? else {
        return Ok(Err("its inode cannot be read"));
    };
    let Ok(inode) = Inode::parse(&slot) else { return Ok(Err("its inode cannot be read")) };
    if inode.mode & 0o170_000 != 0o100_000 || inode.links == 0 {
        return Ok(Err("its inode is no file"));
    }
    let geometry = &volume.geometry;
    let len = inode.size_bytes / u64::from(geometry.block_bytes);
    if len > geometry.blocks {
        return Ok(Err("it is longer than the volume"));
    }
    let pointers = u64::from(geometry.pointers_per_block());
    let mut blocks = Vec::new();
    // Tables on the way to the block last looked up, by level.
    let mut tables: [(u64, Vec<u8>); 3] = Default::default();
    for i in 0..len {
        let Some((slot, path)) = crate::mkfs::map_path(i, pointers) else {
            return Ok(Err("it is longer than a file can be"));
        };
        let mut block = u64::from(inode.block.get(slot).copied().unwrap_or(0));
        for (index, (at, table)) in path.iter().zip(&mut tables) {
            if !geometry.contains_block(block) {
                return Ok(Err("it has a hole or points out of the volume"));
            }
            if *at != block {
                volume.read(block, table)?;
                *at = block;
            }
            block = u64::from(get32(table, 4 * index));
        }
        if !geometry.contains_block(block) {
            return Ok(Err("it has a hole or points out of the volume"));
        }
        blocks.push(block);
    }
    Ok(Ok(blocks))
}

/// Opens the journal inside the volume, or the one on `external`. `None`: there is none, or it is
/// broken (which is reported).
pub(super) fn journal<'d>(
    volume: &Volume<'d>,
    superblock: &Superblock,
    found: &mut Found,
    external: Option<&'d dyn BlockDevice>,
) -> Result<Option<Log<&'d dyn BlockDevice>>> {
    let broken = |found: &mut Found, problem: String| {
        found.report(Problem::Journal { problem });
        Ok(None)
    };
    let device = volume.device;
    let map = if superblock.journal_inode != 0 {
        if superblock.journal_inode != JOURNAL_INO {
            return broken(found, format!("its inode is {}", superblock.journal_inode));
        }
        match journal_blocks(volume, found)? {
            Ok(blocks) => LogMap::from_blocks_on(device, volume.geometry.block_bytes, &blocks),
            Err(problem) => return broken(found, problem.into()),
        }
    } else if let Some(external) = external {
        match LogMap::external_on(external) {
            Ok((map, uuid)) if uuid == superblock.journal_uuid => Ok(map),
            Ok(_) => return broken(found, "the device given holds another journal".into()),
            Err(error) => Err(error),
        }
    } else {
        return Ok(None);
    };
    match map.and_then(Log::open) {
        Ok(log) if log.map().block_bytes() != volume.geometry.block_bytes => {
            broken(found, format!("its blocks have {} bytes", log.map().block_bytes()))
        }
        Ok(log) => Ok(Some(log)),
        Err(weft_patch::jbd2::Error::Device(error)) => Err(error.into()),
        Err(error) => broken(found, error.to_string()),
    }
}
