//! The superblock under check: the primary one, its backups, and its state after a replay of the
//! journal.

use super::found::Found;
use super::problem::Problem;
use super::volume::Volume;
use crate::layout::bytes::{get16, get32};
use crate::layout::{Compat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State, Superblock};
use crate::{Error, Result};
use weft_block::BlockDevice;

/// Reads the superblock, and refuses a volume that cannot be checked.
pub(super) fn read(device: &dyn BlockDevice) -> Result<Superblock> {
    let superblock = crate::superblock::read(device)?;
    let len_bytes = device.geometry().len_bytes;
    let unknown = superblock.features.unknown_ro_compat();
    if !unknown.is_empty() {
        return Err(Error::Incompatible { features: unknown.join(", ") });
    }
    if superblock.len_bytes() > len_bytes {
        return Err(Error::corrupt(
            "superblock",
            0,
            format!(
                "the volume has {} bytes, but the device only {len_bytes}",
                superblock.len_bytes()
            ),
        ));
    }
    Ok(superblock)
}

/// The superblock's bytes, as they are after the journal's replay.
fn bytes(volume: &Volume<'_>) -> Result<Vec<u8>> {
    let block_bytes = u64::from(volume.geometry.block_bytes);
    let mut buf = Vec::new();
    volume.read(SUPERBLOCK_OFFSET / block_bytes, &mut buf)?;
    let at = usize::try_from(SUPERBLOCK_OFFSET % block_bytes).unwrap_or(0);
    Ok(buf.get(at..at + SUPERBLOCK_BYTES).unwrap_or_default().to_vec())
}

/// Fields of the superblock that parsing lets pass.
pub(super) fn check_fields(
    volume: &Volume<'_>,
    superblock: &Superblock,
    found: &mut Found,
) -> Result<()> {
    let raw = bytes(volume)?;
    let mut report = |field, problem: String| {
        found.report(Problem::Superblock { field, problem });
    };
    if superblock.reserved_blocks > superblock.blocks / 2 {
        report(
            "reserved blocks",
            format!("are {}, more than half of all", superblock.reserved_blocks),
        );
    }
    if superblock.revision == 0 && (0..3).any(|i| get32(&raw, 0x5C + 4 * i) != 0) {
        report("features", "are set in revision 0".into());
    }
    let resizable = superblock.features.compat.contains(Compat::RESIZE_INODE);
    let reserve = u32::from(get16(&raw, 0xCE));
    if superblock.revision > 0 && !resizable && reserve != 0 {
        report(
            "reserved descriptor blocks",
            format!("are {reserve}, but the volume lacks resize_inode"),
        );
    }
    if resizable && reserve > superblock.block_bytes() / 4 {
        report("reserved descriptor blocks", format!("are {reserve}, too many"));
    }
    if superblock.last_orphan != 0 {
        found.report(Problem::OrphanChain { first: superblock.last_orphan });
    }
    Ok(())
}

/// The superblock as it is after the journal's replay.
pub(super) fn replayed(volume: &Volume<'_>, before: &Superblock) -> Result<Superblock> {
    let raw = bytes(volume)?;
    let superblock = Superblock::parse(&raw)?;
    superblock.check_features()?;
    if superblock.len_bytes() > volume.device.geometry().len_bytes
        || superblock.block_bytes() != before.block_bytes()
    {
        return Err(Error::corrupt("journal", 0, "its replay would change the size of the volume"));
    }
    Ok(superblock)
}

/// The first backup superblock that can be used, where mke2fs puts it for each block size.
pub(super) fn first_backup(device: &dyn BlockDevice) -> Result<Option<(u64, Superblock)>> {
    let len = device.geometry().len_bytes;
    for (block, block_bytes) in [(8193_u64, 1024_u64), (16_384, 2048), (32_768, 4096)] {
        let offset = block * block_bytes;
        if offset + SUPERBLOCK_BYTES as u64 > len {
            continue;
        }
        let mut raw = [0; SUPERBLOCK_BYTES];
        device.read_at(&mut raw, offset)?;
        if let Ok(superblock) = Superblock::parse(&raw)
            && u64::from(superblock.block_bytes()) == block_bytes
            && superblock.len_bytes() <= len
        {
            return Ok(Some((block, superblock)));
        }
    }
    Ok(None)
}

/// Writes a backup as the primary superblock, and marks the volume as not checked.
pub(super) fn restore(device: &dyn BlockDevice, backup: &Superblock) -> Result<()> {
    let mut primary = backup.clone();
    primary.block_group = 0;
    primary.state = State::ERROR;
    device.write_at(&primary.encode(), SUPERBLOCK_OFFSET)?;
    Ok(device.flush()?)
}
