//! Logs for the engines of these tests.

use std::ops::Range;
use std::sync::Arc;
use weft_block::BlockDevice;
use weft_patch::jbd2::{Features, FormatOptions, LogMap, format_journal_superblock};

/// Returns the log in these blocks of the device.
pub fn log_in(device: Arc<dyn BlockDevice>, block_bytes: usize, blocks: Range<usize>) -> LogMap {
    let blocks: Vec<u64> = blocks.map(|nr| nr as u64).collect();
    LogMap::from_blocks(device, block_bytes as u32, &blocks).unwrap()
}

/// Makes an empty log in these blocks of the device.
pub fn make_log(
    device: Arc<dyn BlockDevice>,
    block_bytes: usize,
    blocks: Range<usize>,
    features: Features,
) -> LogMap {
    let superblock = format_journal_superblock(&FormatOptions {
        block_bytes: block_bytes as u32,
        len_blocks: blocks.len() as u32,
        superblock_at: 0,
        uuid: [7; 16],
        features,
        users: vec![],
    })
    .unwrap();
    device.write_at(&superblock, (blocks.start * block_bytes) as u64).unwrap();
    device.flush().unwrap();
    log_in(device, block_bytes, blocks)
}
