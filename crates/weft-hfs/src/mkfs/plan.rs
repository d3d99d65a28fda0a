//! The layout of a volume of a given size.

use super::options::MkfsOptions;
use crate::layout::{CLUMP_MAX_BYTES, Mdb, Name, VOLUME_NAME_MAX_BYTES};
use crate::{Error, Result};
use alloc::format;

/// The least number of blocks of a volume: 400 KB.
pub const MIN_BLOCKS: u64 = 800;
/// The greatest number of blocks of a volume: 2 TB.
pub const MAX_BLOCKS: u64 = 1 << 32;

/// The most bytes by which a tree grows at once, unless an allocation block is longer.
const TREE_CLUMP_MAX_BYTES: u32 = 4 << 20;

/// The layout of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Blocks of the volume.
    pub blocks: u64,
    /// Bytes of an allocation block.
    pub alloc_block_bytes: u32,
    /// Allocation blocks.
    pub alloc_blocks: u16,
    /// The first block of the allocation blocks.
    pub first_block: u16,
    /// Allocation blocks of the extents file, which lies first.
    pub extents_blocks: u16,
    /// Allocation blocks of the catalog, which follows it.
    pub catalog_blocks: u16,
}

impl Plan {
    /// Plans a volume of `blocks` 512-byte blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for parameters that no volume can have.
    pub fn new(blocks: u64, options: &MkfsOptions) -> Result<Self> {
        let bad = |why| Err(Error::Invalid(why));
        Name::new(options.name.as_bytes())?;
        if options.name.len() > VOLUME_NAME_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        if !(MIN_BLOCKS..=MAX_BLOCKS).contains(&blocks) {
            return bad(format!(
                "an HFS volume has 400 KB to 2 TB, not {blocks} blocks of 512 bytes"
            ));
        }
        let least = blocks / 65_536 + 1;
        let per = match options.alloc_block_bytes {
            None => least,
            Some(bytes) if bytes % 512 == 0 && u64::from(bytes / 512) >= least => {
                u64::from(bytes / 512)
            }
            Some(bytes) => {
                return bad(format!(
                    "allocation blocks of {bytes} bytes: a multiple of 512, at least {}",
                    least * 512
                ));
            }
        };
        // Boot blocks and MDB before the bitmap; the copy of the MDB and an unused block at the
        // end.
        let outside = 3 + 2;
        let bitmap = Mdb::bitmap_blocks_of(blocks, per);
        let count = (blocks - outside - bitmap) / per;
        let (Ok(alloc_blocks), Ok(first_block), Ok(alloc_block_bytes)) =
            (u16::try_from(count), u16::try_from(3 + bitmap), u32::try_from(per * 512))
        else {
            return bad(format!("allocation blocks of {} bytes do not fit", per * 512));
        };
        if let Some(clump) = options.clump_bytes
            && (clump == 0 || clump % alloc_block_bytes != 0)
        {
            return bad(format!(
                "a clump of {clump} bytes is no multiple of an allocation block of \
                 {alloc_block_bytes}"
            ));
        }
        let quarter = u32::from(alloc_blocks / 4).saturating_mul(alloc_block_bytes);
        let longest = CLUMP_MAX_BYTES.min(quarter).max(alloc_block_bytes);
        if let Some(clump) = options.clump_bytes.filter(|&clump| clump > longest) {
            return bad(format!(
                "a clump of {clump} bytes: on this volume Apple's checker takes {longest} at most"
            ));
        }
        let tree = |wanted: Option<u32>| -> Result<u16> {
            // At least four nodes.
            let by_size = (u32::from(alloc_blocks) / 128)
                .min(TREE_CLUMP_MAX_BYTES / alloc_block_bytes)
                .max(4_u32.div_ceil(alloc_block_bytes / 512));
            let count = wanted.map_or(by_size, |bytes| bytes.div_ceil(alloc_block_bytes)).max(1);
            let most = u32::from(alloc_blocks) / 3;
            // A tree has a header and a root.
            if count > most || count.saturating_mul(alloc_block_bytes / 512) < 2 {
                return Err(Error::Invalid(format!("a tree of {count} allocation blocks")));
            }
            u16::try_from(count).map_err(|_| Error::Invalid(format!("a tree of {count} blocks")))
        };
        Ok(Self {
            blocks,
            alloc_block_bytes,
            alloc_blocks,
            first_block,
            extents_blocks: tree(options.extents_bytes)?,
            catalog_blocks: tree(options.catalog_bytes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(blocks: u64) -> Plan {
        Plan::new(blocks, &MkfsOptions::new(Name::new(b"Test").unwrap(), 0)).unwrap()
    }

    #[test]
    fn a_gibibyte_needs_blocks_of_16896_bytes() {
        assert_eq!(plan(1 << 21).alloc_block_bytes, 16_896);
        assert_eq!(plan((1 << 21) - 1).alloc_block_bytes, 16_384);
    }

    #[test]
    fn every_size_keeps_the_rules() {
        let mut sizes: Vec<u64> = (0..=32)
            .flat_map(|power| (-3..=3).map(move |d| (1_i64 << power) + d))
            .filter_map(|n| u64::try_from(n).ok())
            .filter(|n| (MIN_BLOCKS..=MAX_BLOCKS).contains(n))
            .collect();
        sizes.extend((0..4000).map(|i| MIN_BLOCKS + i * 1_073_741));
        sizes.extend(MIN_BLOCKS..MIN_BLOCKS + 5000);
        for blocks in sizes {
            let plan = plan(blocks);
            let per = u64::from(plan.alloc_block_bytes) / 512;
            assert!(blocks / per <= 65_535, "{blocks} blocks");
            assert!(per == 1 || blocks / (per - 1) > 65_535, "{blocks} blocks: not the smallest");
            let bitmap = u64::from(plan.alloc_blocks).div_ceil(4096);
            assert!(u64::from(plan.first_block) >= 3 + bitmap, "{blocks} blocks");
            let end = u64::from(plan.first_block) + u64::from(plan.alloc_blocks) * per;
            assert!(end <= blocks - 2, "{blocks} blocks: the copy of the MDB is outside");
            assert!(end + per + 1 > blocks - 2, "{blocks} blocks: room for one more");
        }
    }
}
