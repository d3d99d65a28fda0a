//! Descriptor blocks: their tags give the volume block of each following copy in the log.
//!
//! A tag has one of four layouts, depending on the features:
//!
//! ```text
//! plain     blocknr:32 checksum:16 flags:16                                     8 bytes
//! 64bit     blocknr:32 checksum:16 flags:16 high:32                            12
//! csum v2   as plain or 64bit, and 2 bytes more                           10 or 14
//! csum v3   blocknr:32 flags:32 high:32 checksum:32                            16
//! ```
//!
//! Without `SAME_UUID` the tag is followed by 16 bytes of uuid.

use super::superblock::Features;
use super::{BlockType, HEADER_BYTES, Header, be, checksum};

/// The copy's first four bytes were the magic and are zeroed in the log.
pub const ESCAPE: u32 = 1;
/// No uuid follows: it is that of the previous tag.
pub const SAME_UUID: u32 = 2;
/// The block was deleted by this transaction (never written by any known implementation).
pub const DELETED: u32 = 4;
/// No tag follows.
pub const LAST_TAG: u32 = 8;
/// Bytes of uuid after a tag without [`SAME_UUID`].
pub const UUID_BYTES: usize = 16;

/// One entry of a descriptor block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The volume's block.
    pub block: u64,
    /// [`ESCAPE`], [`SAME_UUID`], [`DELETED`], [`LAST_TAG`].
    pub flags: u32,
    /// Checksum of the copy: 32 bits with csum v3, 16 with csum v2, else unused.
    pub checksum: u32,
}

/// Returns the size of one tag in bytes, without a uuid.
#[must_use]
pub fn tag_bytes(features: Features) -> usize {
    if features.has(Features::CSUM_V3) {
        return 16;
    }
    let wide = if features.has(Features::BITS64) { 12 } else { 8 };
    if features.has(Features::CSUM_V2) { wide + 2 } else { wide }
}

/// Returns the maximum number of tags in a descriptor block of `block_bytes`, of which the first is
/// followed by a uuid.
#[must_use]
pub fn tags_per_block(features: Features, block_bytes: usize) -> usize {
    let room = block_bytes.saturating_sub(HEADER_BYTES + features.tail_bytes() + UUID_BYTES);
    room / tag_bytes(features)
}

impl Tag {
    fn parse(raw: &[u8], features: Features) -> Option<Self> {
        let low = u64::from(be::get32(raw, 0)?);
        let high = |at| be::get32(raw, at).map(|v| u64::from(v) << 32);
        Some(if features.has(Features::CSUM_V3) {
            // The high half is valid only with 64-bit block numbers.
            let top = if features.has(Features::BITS64) { high(8)? } else { 0 };
            Self { block: low | top, flags: be::get32(raw, 4)?, checksum: be::get32(raw, 12)? }
        } else {
            let top = if features.has(Features::BITS64) { high(8)? } else { 0 };
            Self {
                block: low | top,
                flags: u32::from(be::get16(raw, 6)?),
                checksum: u32::from(be::get16(raw, 4)?),
            }
        })
    }

    #[expect(clippy::cast_possible_truncation, reason = "the fields' halves")]
    fn encode(self, raw: &mut [u8], features: Features) {
        be::put32(raw, 0, self.block as u32);
        let high = (self.block >> 32) as u32;
        if features.has(Features::CSUM_V3) {
            be::put32(raw, 4, self.flags);
            be::put32(raw, 8, high);
            be::put32(raw, 12, self.checksum);
        } else {
            be::put(raw, 4, &(self.checksum as u16).to_be_bytes());
            be::put(raw, 6, &(self.flags as u16).to_be_bytes());
            if features.has(Features::BITS64) {
                be::put32(raw, 8, high);
            }
        }
    }

    /// Returns true if the tag's checksum is that of `sum`, the full checksum of the copy.
    pub(super) fn checksum_fits(&self, features: Features, sum: u32) -> bool {
        self.checksum == tag_checksum(features, sum)
    }
}

/// Returns the part of a full checksum that a tag stores.
pub(super) fn tag_checksum(features: Features, sum: u32) -> u32 {
    if features.has(Features::CSUM_V3) {
        sum
    } else if features.has(Features::CSUM_V2) {
        sum & 0xffff
    } else {
        0
    }
}

/// The tags of a descriptor block, in order. Stops after the one marked last or where no further
/// tag fits.
#[derive(Debug, Clone)]
pub struct Tags<'a> {
    block: &'a [u8],
    at: usize,
    features: Features,
}

/// Reads the tags of a descriptor block. The header is not checked.
#[must_use]
pub fn tags(block: &[u8], features: Features) -> Tags<'_> {
    let end = block.len().saturating_sub(features.tail_bytes());
    Tags { block: block.get(..end).unwrap_or_default(), at: HEADER_BYTES, features }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let len = tag_bytes(self.features);
        let raw = self.block.get(self.at..self.at.checked_add(len)?)?;
        let tag = Tag::parse(raw, self.features)?;
        self.at += len;
        if tag.flags & SAME_UUID == 0 {
            self.at += UUID_BYTES;
        }
        if tag.flags & LAST_TAG != 0 {
            self.at = self.block.len();
        }
        Some(tag)
    }
}

/// Builds a descriptor block of `block_bytes` from tags, of which there are at least one and at
/// most [`tags_per_block`]. Only `block`, [`ESCAPE`] and `checksum` of each are used; the other
/// flags are set as the format requires.
#[must_use]
pub fn encode(
    features: Features,
    uuid: &[u8; 16],
    sequence: u32,
    tags: &[Tag],
    block_bytes: usize,
) -> Vec<u8> {
    debug_assert!(!tags.is_empty() && tags.len() <= tags_per_block(features, block_bytes));
    let mut block = vec![0; block_bytes];
    Header { block_type: BlockType::Descriptor, sequence }.encode(&mut block);
    let mut at = HEADER_BYTES;
    for (i, tag) in tags.iter().enumerate() {
        let mut flags = tag.flags & ESCAPE;
        if i > 0 {
            flags |= SAME_UUID;
        }
        if i + 1 == tags.len() {
            flags |= LAST_TAG;
        }
        if let Some(raw) = block.get_mut(at..at + tag_bytes(features)) {
            Tag { flags, ..*tag }.encode(raw, features);
        }
        at += tag_bytes(features);
        if i == 0 {
            be::put(&mut block, at, uuid);
            at += UUID_BYTES;
        }
    }
    seal(&mut block, features, uuid);
    block
}

/// Stores the checksum in the last four bytes of a descriptor or revoke block.
pub(super) fn seal(block: &mut [u8], features: Features, uuid: &[u8; 16]) {
    if features.csum() {
        let at = block.len().saturating_sub(4);
        let sum = checksum::block_csum(checksum::seed(uuid), block, at);
        be::put32(block, at, sum);
    }
}

/// Returns true if the checksum in the last four bytes of a descriptor or revoke block matches
/// (always, if the features have none).
#[must_use]
pub fn tail_fits(block: &[u8], features: Features, uuid: &[u8; 16]) -> bool {
    if !features.csum() {
        return true;
    }
    let at = block.len().saturating_sub(4);
    be::get32(block, at) == Some(checksum::block_csum(checksum::seed(uuid), block, at))
}
