//! The blocks of a file, and their sizes.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::types::BlockHash;
use crate::wire::{Reader, Wire, WireError, wire_struct};

/// The most blocks of one file: a block map fits a frame. With blocks of 4 MiB a file has up to 256
/// GiB; longer files need a map of maps, which does not exist yet.
pub const BLOCKS_MAX: u32 = 1 << 16;
/// The smallest block, in bytes.
pub const BLOCK_MIN_BYTES: u32 = 64 << 10;
/// The largest block, in bytes.
pub const BLOCK_MAX_BYTES: u32 = 4 << 20;
/// The difference in length between an encrypted block and its plaintext, in bytes.
pub const ENCRYPTED_OVERHEAD_BYTES: u32 = 76;
/// The longest block as it is stored and sent, in bytes.
pub const STORED_MAX_BYTES: u32 = BLOCK_MAX_BYTES + ENCRYPTED_OVERHEAD_BYTES;

/// One block of a file: the first `len_bytes` bytes stored under `hash`, and zeroes after them. So
/// a file is truncated without its bytes at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// The hash of all the bytes stored; of an encrypted file, of the encrypted bytes.
    pub hash: BlockHash,
    /// The number of bytes that count, at most the file's block size.
    pub len_bytes: u32,
}
wire_struct!(Block { hash, len_bytes });

/// The blocks of a file by position. A file goes through many states that differ little, and most
/// are only read: so a copy costs nothing until one of the two is changed, and the total length,
/// which every `stat` needs, is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockMap {
    blocks: Arc<BTreeMap<u32, Block>>,
    stored_bytes: u64,
}

impl BlockMap {
    /// Returns the total length of all blocks, in bytes.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Sets the block at position `at`; `None` makes a hole.
    pub fn set(&mut self, at: u32, block: Option<Block>) {
        let blocks = Arc::make_mut(&mut self.blocks);
        let old = match block {
            Some(block) => blocks.insert(at, block),
            None => blocks.remove(&at),
        };
        self.stored_bytes -= old.map_or(0, |b| u64::from(b.len_bytes));
        self.stored_bytes += block.map_or(0, |b| u64::from(b.len_bytes));
    }

    /// Truncates the blocks, of `block_bytes` each, to `end_bytes` bytes.
    pub fn cut(&mut self, block_bytes: u32, end_bytes: u64) {
        let block_bytes = u64::from(block_bytes.max(1));
        let last = u32::try_from(end_bytes / block_bytes).unwrap_or(u32::MAX);
        let within = u32::try_from(end_bytes % block_bytes).unwrap_or(0);
        let behind: Vec<u32> = self.blocks.range(last..).map(|(at, _)| *at).collect();
        for at in behind {
            let left = self.blocks.get(&at).copied().filter(|_| at == last && within > 0);
            self.set(at, left.map(|b| Block { len_bytes: b.len_bytes.min(within), ..b }));
        }
    }
}

impl Deref for BlockMap {
    type Target = BTreeMap<u32, Block>;

    fn deref(&self) -> &Self::Target {
        &self.blocks
    }
}

impl FromIterator<(u32, Block)> for BlockMap {
    fn from_iter<I: IntoIterator<Item = (u32, Block)>>(blocks: I) -> Self {
        let blocks: BTreeMap<u32, Block> = blocks.into_iter().collect();
        let stored_bytes = blocks.values().map(|b| u64::from(b.len_bytes)).sum();
        Self { blocks: Arc::new(blocks), stored_bytes }
    }
}

impl Wire for BlockMap {
    fn put(&self, out: &mut Vec<u8>) {
        self.blocks.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let blocks = <BTreeMap<u32, Block> as Wire>::get(from)?;
        Ok(blocks.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(len_bytes: u32) -> Block {
        Block { hash: BlockHash([7; 32]), len_bytes }
    }

    proptest! {
        #[test]
        fn block_map_agrees_with_a_model(
            steps in prop::collection::vec((0_u32..8, 0_u32..5, 0_u64..40), 1..40)
        ) {
            let (mut map, mut model) = (BlockMap::default(), BTreeMap::<u32, Block>::new());
            for (at, len, end) in steps {
                let old = map.clone();
                let before: BTreeMap<u32, Block> = old.iter().map(|(at, b)| (*at, *b)).collect();
                match len {
                    0 => {
                        map.cut(4, end);
                        model.retain(|at, b| {
                            let left = end.saturating_sub(u64::from(*at) * 4);
                            b.len_bytes = b.len_bytes.min(u32::try_from(left).unwrap_or(u32::MAX));
                            b.len_bytes > 0
                        });
                    }
                    1 => {
                        map.set(at, None);
                        model.remove(&at);
                    }
                    len => {
                        map.set(at, Some(block(len)));
                        model.insert(at, block(len));
                    }
                }
                prop_assert_eq!(&*map, &model);
                let sum: u64 = model.values().map(|b| u64::from(b.len_bytes)).sum();
                prop_assert_eq!(map.stored_bytes(), sum);
                // Copies stay unchanged.
                prop_assert_eq!(&*old, &before);
            }
        }
    }
}
