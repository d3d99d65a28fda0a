//! The 12 bytes at the start of every block of the log, except data copies.

use super::be;

/// First four bytes of every such block.
pub const MAGIC: u32 = 0xc03b_3998;
/// Length of a [`Header`] on disk.
pub const HEADER_BYTES: usize = 12;

/// The type of a log block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// Lists the blocks whose copies follow.
    Descriptor,
    /// Ends a transaction and makes it valid.
    Commit,
    /// Superblock without features (the first version).
    SuperblockV1,
    /// Superblock with features.
    SuperblockV2,
    /// Lists blocks whose older copies must not be replayed.
    Revoke,
}

impl BlockType {
    fn from_disk(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }

    fn to_disk(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

/// Magic, block type and sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The type of the block.
    pub block_type: BlockType,
    /// The transaction it belongs to; zero in a superblock.
    pub sequence: u32,
}

impl Header {
    /// Reads the header, or `None` where the magic or the type do not fit.
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<Self> {
        if be::get32(block, 0)? != MAGIC {
            return None;
        }
        let block_type = BlockType::from_disk(be::get32(block, 4)?)?;
        Some(Self { block_type, sequence: be::get32(block, 8)? })
    }

    /// Writes the header into the first 12 bytes of `block`.
    pub fn encode(self, block: &mut [u8]) {
        be::put32(block, 0, MAGIC);
        be::put32(block, 4, self.block_type.to_disk());
        be::put32(block, 8, self.sequence);
    }
}
