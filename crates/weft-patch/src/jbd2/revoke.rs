//! Revoke blocks: volume blocks whose older copies in the log must not be replayed, because the
//! block was freed and may now hold data that is not journaled.

use super::descriptor::seal;
use super::superblock::Features;
use super::{BlockType, HEADER_BYTES, Header, be};

/// Offset of the count of used bytes; the records follow it.
const COUNT: usize = HEADER_BYTES;
const RECORDS: usize = COUNT + 4;

/// Returns the size of one record, in bytes.
#[must_use]
pub fn record_bytes(features: Features) -> usize {
    if features.has(Features::BITS64) { 8 } else { 4 }
}

/// Returns the maximum number of records in a revoke block of `block_bytes`.
#[must_use]
pub fn records_per_block(features: Features, block_bytes: usize) -> usize {
    block_bytes.saturating_sub(RECORDS + features.tail_bytes()) / record_bytes(features)
}

/// Returns the block numbers in a revoke block, or `None` if its count is invalid. The header is
/// not checked.
#[must_use]
pub fn records(block: &[u8], features: Features) -> Option<impl Iterator<Item = u64>> {
    let used = usize::try_from(be::get32(block, COUNT)?).ok()?;
    if used < RECORDS || used > block.len().checked_sub(features.tail_bytes())? {
        return None;
    }
    let width = record_bytes(features);
    let raw = block.get(RECORDS..used)?;
    Some(raw.chunks_exact(width).filter_map(move |record| {
        if width == 8 { be::get64(record, 0) } else { be::get32(record, 0).map(u64::from) }
    }))
}

/// Builds a revoke block of `block_bytes` from at most [`records_per_block`] numbers.
#[must_use]
pub fn encode(
    features: Features,
    uuid: &[u8; 16],
    sequence: u32,
    revoked: &[u64],
    block_bytes: usize,
) -> Vec<u8> {
    debug_assert!(revoked.len() <= records_per_block(features, block_bytes));
    let mut block = vec![0; block_bytes];
    Header { block_type: BlockType::Revoke, sequence }.encode(&mut block);
    let width = record_bytes(features);
    let used = RECORDS + width * revoked.len();
    be::put32(&mut block, COUNT, u32::try_from(used).unwrap_or(0));
    for (i, nr) in revoked.iter().enumerate() {
        let bytes = nr.to_be_bytes();
        be::put(&mut block, RECORDS + width * i, &bytes[8 - width..]);
    }
    seal(&mut block, features, uuid);
    block
}
