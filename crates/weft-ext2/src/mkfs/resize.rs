//! The resize inode: a file with nothing but a double indirect block, whose indirect blocks are
//! the blocks set aside behind the primary descriptor table, each listing its copies in the groups
//! with backups. So they are in use, and resize2fs finds them.

use super::writer::Writer;
use crate::Result;
use crate::layout::bytes::put32;
use crate::layout::{Geometry, Inode, SLOT_DOUBLE};
use weft_block::BlockDevice;

/// Writes the map's blocks and returns the inode; `double` is the block taken for its double
/// indirect block.
pub(super) fn write(writer: &Writer<'_>, geometry: &Geometry, double: u64) -> Result<Inode> {
    let block_bytes = geometry.block_bytes as usize;
    let pointers = u64::from(geometry.pointers_per_block());
    let reserved = u64::from(geometry.reserved_gdt_blocks);
    let first = u64::from(geometry.first_data_block) + 1 + u64::from(geometry.desc_blocks());
    let backups: Vec<u32> = (1..geometry.groups).filter(|&g| geometry.has_super(g)).collect();
    let mut table = vec![0; block_bytes];
    let low = |block: u64| u32::try_from(block).unwrap_or(0);
    for i in 0..reserved {
        let primary = first + i;
        // A reserved block's place in the map is its distance from the superblock, minus one.
        let slot = (u64::from(geometry.desc_blocks()) + i) % pointers;
        put32(&mut table, usize::try_from(slot * 4).unwrap_or(0), low(primary));
        let mut indirect = vec![0; block_bytes];
        for (slot, &group) in backups.iter().enumerate() {
            let copy = primary + u64::from(group) * u64::from(geometry.blocks_per_group);
            put32(&mut indirect, 4 * slot, low(copy));
        }
        writer.blocks(primary, &indirect)?;
    }
    writer.blocks(double, &table)?;
    let mut inode = writer.new_inode(0o100_600);
    inode.links = 1;
    inode.size_bytes = (12 + pointers + pointers * pointers) * block_bytes as u64;
    if let Some(slot) = inode.block.get_mut(SLOT_DOUBLE) {
        *slot = low(double);
    }
    let blocks = 1 + reserved * (1 + backups.len() as u64);
    inode.blocks_512 = low(blocks * (block_bytes as u64 / 512));
    Ok(inode)
}

/// Writes the resize inode's map anew, for a repair; returns the inode. `double` is a free block.
pub(crate) fn rewrite(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    double: u64,
    time: u32,
) -> Result<Inode> {
    write(&Writer::new(device, geometry, time), geometry, double)
}
