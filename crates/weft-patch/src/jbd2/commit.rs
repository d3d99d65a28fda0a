//! Commit blocks: the one write that makes a transaction valid.

use super::superblock::Features;
use super::{BlockType, Header, be, checksum};

const CHECKSUM_TYPE: usize = 0x0c;
const CHECKSUM_SIZE: usize = 0x0d;
const CHECKSUM: usize = 0x10;
const SECONDS: usize = 0x30;
const NANOSECONDS: usize = 0x38;
const TYPE_CRC32: u8 = 1;

/// Time of a transaction's commit, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitTime {
    /// Seconds.
    pub seconds: u64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// Returns the time in a commit block.
#[must_use]
pub fn time(block: &[u8]) -> Option<CommitTime> {
    Some(CommitTime {
        seconds: be::get64(block, SECONDS)?,
        nanoseconds: be::get32(block, NANOSECONDS)?,
    })
}

/// Builds the commit block of a transaction whose descriptor blocks and data copies have the
/// big-endian CRC32 `crc`.
#[must_use]
pub fn encode(
    features: Features,
    uuid: &[u8; 16],
    sequence: u32,
    crc: u32,
    time: CommitTime,
    block_bytes: usize,
) -> Vec<u8> {
    let mut block = vec![0; block_bytes];
    Header { block_type: BlockType::Commit, sequence }.encode(&mut block);
    be::put(&mut block, SECONDS, &time.seconds.to_be_bytes());
    be::put32(&mut block, NANOSECONDS, time.nanoseconds);
    if features.csum() {
        let sum = checksum::block_csum(checksum::seed(uuid), &block, CHECKSUM);
        be::put32(&mut block, CHECKSUM, sum);
    } else if features.transaction_crc() {
        be::put(&mut block, CHECKSUM_TYPE, &[TYPE_CRC32]);
        be::put(&mut block, CHECKSUM_SIZE, &[4]);
        be::put32(&mut block, CHECKSUM, crc);
    }
    block
}

/// Returns true if a commit block is intact and, with the old transaction checksum, its checksum is
/// `crc`. A block that carries no old checksum though the feature is set was written before the
/// feature was, and is accepted.
#[must_use]
pub fn fits(block: &[u8], features: Features, uuid: &[u8; 16], crc: u32) -> bool {
    if features.csum() {
        let sum = checksum::block_csum(checksum::seed(uuid), block, CHECKSUM);
        return be::get32(block, CHECKSUM) == Some(sum);
    }
    if features.transaction_crc() {
        let kind = (block.get(CHECKSUM_TYPE).copied(), block.get(CHECKSUM_SIZE).copied());
        let stored = be::get32(block, CHECKSUM);
        return (kind == (Some(TYPE_CRC32), Some(4)) && stored == Some(crc))
            || (kind == (Some(0), Some(0)) && stored == Some(0));
    }
    true
}
