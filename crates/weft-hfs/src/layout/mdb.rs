//! The master directory block (MDB): the volume's header.

use super::extent::{parse_extents, put_extents};
use super::{
    BLOCK_BYTES, Extent, ExtentRecord, Name, VOLUME_NAME_MAX_BYTES, get16, get32, put, put16, put32,
};
use crate::{Error, Result};
use alloc::format;
use bitflags::bitflags;

/// The block of the MDB. The copy is in the last block but one of the volume.
pub const MDB_BLOCK: u64 = 2;
/// Bytes of the MDB; the rest of its block is zero.
pub const MDB_BYTES: usize = 162;
/// `BD`
pub const SIGNATURE_HFS: u16 = 0x4244;
/// `H+`, the signature of an HFS+ volume embedded in a wrapper.
pub const SIGNATURE_HFS_PLUS: u16 = 0x482b;

/// The longest clump of files in bytes, unless an allocation block is longer. Apple's checker
/// enforces the limit.
pub const CLUMP_MAX_BYTES: u32 = 1 << 20;
/// The greatest distance of `drNxtCNID` from the highest id in use that Apple's checker accepts.
pub const NEXT_ID_AHEAD: u32 = 4096;

bitflags! {
    /// `drAtrb`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Attributes: u16 {
        /// Bits that are not defined on the disk.
        const RESERVED = 0x7f;
        /// Locked by hardware.
        const HARDWARE_LOCK = 1 << 7;
        /// Unmounted properly: the bitmap and `drNxtCNID` can be relied on.
        const UNMOUNTED = 1 << 8;
        /// Bad blocks have been spared.
        const BAD_BLOCKS_SPARED = 1 << 9;
        /// Inconsistent: must be checked.
        const INCONSISTENT = 1 << 11;
        /// Locked by software.
        const SOFTWARE_LOCK = 1 << 15;
        /// Bits set by other systems are kept.
        const _ = !0;
    }
}

/// The master directory block. Dates are seconds since 1904, in local time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mdb {
    /// `drCrDate`
    pub created: u32,
    /// `drLsMod`
    pub modified: u32,
    /// `drAtrb`
    pub attributes: Attributes,
    /// `drNmFls`: files in the root folder.
    pub root_files: u16,
    /// `drVBMSt`: first block of the bitmap.
    pub bitmap_block: u16,
    /// `drAllocPtr`: start of the search for free space.
    pub alloc_hint: u16,
    /// `drNmAlBlks`: allocation blocks of the volume.
    pub alloc_blocks: u16,
    /// `drAlBlkSiz`: bytes of an allocation block.
    pub alloc_block_bytes: u32,
    /// `drClpSiz`: default clump size in bytes.
    pub clump_bytes: u32,
    /// `drAlBlSt`: first block of the allocation blocks.
    pub first_block: u16,
    /// `drNxtCNID`: the next unused id.
    pub next_id: u32,
    /// `drFreeBks`
    pub free_blocks: u16,
    /// `drVN`
    pub name: Name,
    /// `drVolBkUp`: date of the last backup.
    pub backed_up: u32,
    /// `drVSeqNum`: sequence number in a set of backups.
    pub sequence: u16,
    /// `drWrCnt`: number of changes.
    pub write_count: u32,
    /// `drXTClpSiz`: clump size of the extents file, in bytes.
    pub extents_clump_bytes: u32,
    /// `drCTClpSiz`: clump size of the catalog, in bytes.
    pub catalog_clump_bytes: u32,
    /// `drNmRtDirs`: folders in the root folder.
    pub root_dirs: u16,
    /// `drFilCnt`
    pub files: u32,
    /// `drDirCnt`: folders, without the root.
    pub dirs: u32,
    /// `drFndrInfo`: word 0 is the id of the blessed system folder.
    pub finder_info: [u32; 8],
    /// `drVCSize`; in an HFS+ wrapper `drEmbedSigWord`.
    pub embed_signature: u16,
    /// `drVBMCSize` and `drCtlCSize`; in an HFS+ wrapper `drEmbedExtent`.
    pub embed_extent: Extent,
    /// `drXTFlSize`: bytes of the extents file.
    pub extents_file_bytes: u32,
    /// `drXTExtRec`
    pub extents_file: ExtentRecord,
    /// `drCTFlSize`: bytes of the catalog.
    pub catalog_file_bytes: u32,
    /// `drCTExtRec`
    pub catalog_file: ExtentRecord,
}

impl Mdb {
    /// Reads an MDB. Refuses only an MDB that cannot be read at all; see [`check`](Self::check).
    ///
    /// # Errors
    /// [`Error::NotHfs`], [`Error::Corrupt`] for a name that is too long.
    pub fn parse(raw: &[u8]) -> Result<Self> {
        if raw.len() < MDB_BYTES {
            return Err(Error::NotHfs { found: 0 });
        }
        let signature = get16(raw, 0);
        if signature != SIGNATURE_HFS {
            return Err(Error::NotHfs { found: signature });
        }
        let name = Name::parse(raw, 36, VOLUME_NAME_MAX_BYTES).ok_or_else(|| {
            Error::corrupt("MDB", MDB_BLOCK, "the volume's name is longer than 27 bytes")
        })?;
        let mut finder_info = [0; 8];
        for (i, word) in finder_info.iter_mut().enumerate() {
            *word = get32(raw, 92 + 4 * i);
        }
        Ok(Self {
            created: get32(raw, 2),
            modified: get32(raw, 6),
            attributes: Attributes::from_bits_retain(get16(raw, 10)),
            root_files: get16(raw, 12),
            bitmap_block: get16(raw, 14),
            alloc_hint: get16(raw, 16),
            alloc_blocks: get16(raw, 18),
            alloc_block_bytes: get32(raw, 20),
            clump_bytes: get32(raw, 24),
            first_block: get16(raw, 28),
            next_id: get32(raw, 30),
            free_blocks: get16(raw, 34),
            name,
            backed_up: get32(raw, 64),
            sequence: get16(raw, 68),
            write_count: get32(raw, 70),
            extents_clump_bytes: get32(raw, 74),
            catalog_clump_bytes: get32(raw, 78),
            root_dirs: get16(raw, 82),
            files: get32(raw, 84),
            dirs: get32(raw, 88),
            finder_info,
            embed_signature: get16(raw, 124),
            embed_extent: Extent { start: get16(raw, 126), count: get16(raw, 128) },
            extents_file_bytes: get32(raw, 130),
            extents_file: parse_extents(raw, 134),
            catalog_file_bytes: get32(raw, 146),
            catalog_file: parse_extents(raw, 150),
        })
    }

    /// Returns the encoded MDB.
    #[must_use]
    pub fn encode(&self) -> [u8; MDB_BYTES] {
        let mut raw = [0; MDB_BYTES];
        put16(&mut raw, 0, SIGNATURE_HFS);
        put32(&mut raw, 2, self.created);
        put32(&mut raw, 6, self.modified);
        put16(&mut raw, 10, self.attributes.bits());
        put16(&mut raw, 12, self.root_files);
        put16(&mut raw, 14, self.bitmap_block);
        put16(&mut raw, 16, self.alloc_hint);
        put16(&mut raw, 18, self.alloc_blocks);
        put32(&mut raw, 20, self.alloc_block_bytes);
        put32(&mut raw, 24, self.clump_bytes);
        put16(&mut raw, 28, self.first_block);
        put32(&mut raw, 30, self.next_id);
        put16(&mut raw, 34, self.free_blocks);
        put(&mut raw, 36, &[u8::try_from(self.name.len()).unwrap_or(0)]);
        put(&mut raw, 37, self.name.as_bytes());
        put32(&mut raw, 64, self.backed_up);
        put16(&mut raw, 68, self.sequence);
        put32(&mut raw, 70, self.write_count);
        put32(&mut raw, 74, self.extents_clump_bytes);
        put32(&mut raw, 78, self.catalog_clump_bytes);
        put16(&mut raw, 82, self.root_dirs);
        put32(&mut raw, 84, self.files);
        put32(&mut raw, 88, self.dirs);
        for (i, word) in self.finder_info.iter().enumerate() {
            put32(&mut raw, 92 + 4 * i, *word);
        }
        put16(&mut raw, 124, self.embed_signature);
        put16(&mut raw, 126, self.embed_extent.start);
        put16(&mut raw, 128, self.embed_extent.count);
        put32(&mut raw, 130, self.extents_file_bytes);
        put_extents(&mut raw, 134, &self.extents_file);
        put32(&mut raw, 146, self.catalog_file_bytes);
        put_extents(&mut raw, 150, &self.catalog_file);
        raw
    }

    /// Returns true if this is the wrapper around an HFS+ volume.
    #[must_use]
    pub fn is_wrapper(&self) -> bool {
        self.embed_signature == SIGNATURE_HFS_PLUS
    }

    /// Returns the number of blocks of the bitmap.
    #[must_use]
    pub fn bitmap_blocks(&self) -> u64 {
        u64::from(self.alloc_blocks).div_ceil(8 * BLOCK_BYTES as u64)
    }

    /// Returns the number of blocks of an allocation block.
    #[must_use]
    pub fn blocks_per_alloc(&self) -> u64 {
        u64::from(self.alloc_block_bytes) / BLOCK_BYTES as u64
    }

    /// Returns the block after the last allocation block.
    #[must_use]
    pub fn end_block(&self) -> u64 {
        u64::from(self.first_block) + u64::from(self.alloc_blocks) * self.blocks_per_alloc()
    }

    /// Returns the number of bitmap blocks as Apple's checker counts them: for as many allocation
    /// blocks as the whole volume would have.
    #[must_use]
    pub fn bitmap_blocks_of(volume_blocks: u64, blocks_per_alloc: u64) -> u64 {
        (volume_blocks / blocks_per_alloc.max(1)).div_ceil(8 * BLOCK_BYTES as u64)
    }

    /// Returns the default clump size of files: four allocation blocks, or one if four are longer
    /// than [`CLUMP_MAX_BYTES`].
    #[must_use]
    pub fn default_clump(alloc_block_bytes: u32) -> u32 {
        let four = alloc_block_bytes.saturating_mul(4);
        if four <= CLUMP_MAX_BYTES { four } else { alloc_block_bytes }
    }

    /// Returns the longest clump in bytes, a quarter of the volume.
    #[must_use]
    pub fn clump_limit(&self) -> u64 {
        u64::from(self.alloc_blocks / 4) * u64::from(self.alloc_block_bytes)
    }

    /// Returns true if Apple's checker accepts a clump size of files.
    #[must_use]
    pub fn takes_file_clump(&self, bytes: u32) -> bool {
        let size = self.alloc_block_bytes;
        bytes > 0
            && bytes.is_multiple_of(size)
            && (bytes == size || bytes <= CLUMP_MAX_BYTES && u64::from(bytes) <= self.clump_limit())
    }

    /// Returns true if Apple's checker accepts a clump size of a tree's file.
    #[must_use]
    pub fn takes_tree_clump(&self, bytes: u32) -> bool {
        bytes.is_multiple_of(self.alloc_block_bytes) && u64::from(bytes) <= self.clump_limit()
    }

    /// Returns the block of the MDB's copy, the last but one of the volume. `None` if allocation
    /// blocks lie there, as in a truncated image: the copy must not be written then.
    #[must_use]
    pub fn copy_block(&self, device_blocks: u64) -> Option<u64> {
        device_blocks.checked_sub(2).filter(|&copy| copy >= self.end_block())
    }

    /// Returns the least number of blocks of the volume, by the MDB: the allocation blocks, the
    /// copy of the MDB and a block after it. A device with fewer holds a truncated image.
    #[must_use]
    pub fn least_blocks(&self) -> u64 {
        self.end_block().saturating_add(2)
    }

    /// Refuses a geometry that is invalid on a device of `device_blocks`.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, device_blocks: u64) -> Result<()> {
        let bad = |problem| Err(Error::corrupt("MDB", MDB_BLOCK, problem));
        let size = self.alloc_block_bytes;
        if size == 0 || !size.is_multiple_of(512) {
            return bad(format!("invalid allocation block size {size}"));
        }
        if self.alloc_blocks == 0 {
            return bad("the number of allocation blocks is 0".into());
        }
        let bitmap = u64::from(self.bitmap_block);
        if bitmap <= MDB_BLOCK {
            return bad(format!("the bitmap begins in block {bitmap}, before block 3"));
        }
        if bitmap + self.bitmap_blocks() > device_blocks {
            return bad(format!("the bitmap in block {bitmap} is past the end of the volume"));
        }
        if self.end_block() > device_blocks {
            return bad(format!(
                "the image is truncated: the volume's allocation blocks end at block {}, the \
                 image at \
                 {device_blocks}",
                self.end_block()
            ));
        }
        for (what, bytes, extents) in [
            ("extents file", self.extents_file_bytes, &self.extents_file),
            ("catalog", self.catalog_file_bytes, &self.catalog_file),
        ] {
            if bytes == 0 || !bytes.is_multiple_of(512) {
                return bad(format!("invalid length of the {what}: {bytes} bytes"));
            }
            if extents.iter().any(|e| e.end() > u32::from(self.alloc_blocks)) {
                return bad(format!("the {what} reaches past the end of the volume"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let mut raw: [u8; MDB_BYTES] = core::array::from_fn(|i| (i as u8).wrapping_mul(7));
        put16(&mut raw, 0, SIGNATURE_HFS);
        raw[36] = 27;
        let mdb = Mdb::parse(&raw).unwrap();
        assert_eq!(mdb.encode(), raw);
        assert_eq!(mdb.name.as_bytes(), &raw[37..64]);
    }

    #[test]
    fn blocks_that_are_no_mdb_are_refused() {
        assert_eq!(Mdb::parse(&[0; 100]), Err(Error::NotHfs { found: 0 }));
        assert_eq!(Mdb::parse(&[0xd2; 162]), Err(Error::NotHfs { found: 0xd2d2 }));
    }
}
