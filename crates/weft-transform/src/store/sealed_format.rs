//! The on-disk format of a sealed file: encoding and decoding, without I/O.
//!
//! ```text
//! 0    header, 512 bytes: one sector, so that it is written whole or not at all
//!        0  "WEFTSEAL"      8  version          9  algorithm    10  log2 of the block's bytes
//!       11  holes, 0 to 27
//!       16  file id, 16    32  key id, 16      48  plain length, u64    56  sequence, u64
//!       64  each hole: its first block, u64, and its blocks, u64; zeroes behind the last
//!      496  tag of bytes 0 to 495
//! 512  block 0: sealed, `overhead` bytes longer than the plain block
//!      block 1 ...
//!      the last block is as short as the plain length says; there is none of length 0
//!      [a log: see below]
//! ```
//!
//! A *hole* is a range of blocks that read as zeroes and are not stored: nothing of what lies at their
//! positions counts. Holes are in order and do not touch. They stand in the header, so that they are
//! authenticated as the length is, and become visible in the same moment: who changes the stored
//! file cannot turn blocks into a hole. A file without holes has version 1, which knows none; one
//! with holes version 2.
//!
//! Numbers are little-endian. A file has a header from its creation on, so that a file of length 0
//! is known to have been truncated.
//!
//! A commit that changes blocks in place first writes them, with the new header, into a *log*
//! behind the last block, and flushes; then it writes them to their positions, flushes, and
//! truncates the log. If a log with a valid tag exists when the file is opened, the second half is
//! repeated; an incomplete log is ignored. So the one write that commits is the end of the log:
//!
//! ```text
//! the log:   the new header, 512 bytes
//!            count times: index u64, length u64, the sealed block
//! its end:   "WEFTLOGE", start u64, count u64, sequence u64, BLAKE3 of the log (32), tag of all
//!            that (16): the last 80 bytes of the file
//! ```
//!
//! A commit that only adds blocks needs no log: they lie behind the length that the header knows, or
//! in one of its holes, and writing the header is what commits.

use std::ops::Range;

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 512;
const TAG_AT: usize = HEADER_BYTES - 16;
const MAGIC: &[u8; 8] = b"WEFTSEAL";
/// The versions without and with holes.
const VERSION: u8 = 1;
const VERSION_HOLES: u8 = 2;
const HOLES_AT: usize = 64;
const HOLE_BYTES: usize = 16;
/// Maximum number of holes in a header.
pub(super) const HOLES_MAX: usize = (TAG_AT - HOLES_AT) / HOLE_BYTES;
/// Bytes of the end of a log.
pub(super) const LOG_END_BYTES: usize = 80;
const LOG_MAGIC: &[u8; 8] = b"WEFTLOGE";
/// Bytes of the record header before each block in a log.
pub(super) const RECORD_BYTES: usize = 16;

/// The header of a sealed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) algorithm: u8,
    pub(super) block_bytes: u32,
    pub(super) file_id: [u8; 16],
    pub(super) key_id: [u8; 16],
    pub(super) plain_bytes: u64,
    pub(super) sequence: u64,
    pub(super) holes: Holes,
}

/// Ranges of blocks that are not stored, in order; no two touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holes(Vec<Range<u64>>);

impl Holes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the hole that a block is in.
    pub(super) fn of(&self, index: u64) -> Option<&Range<u64>> {
        let at = self.0.partition_point(|hole| hole.end <= index);
        self.0.get(at).filter(|hole| hole.contains(&index))
    }

    pub(super) fn contains(&self, index: u64) -> bool {
        self.of(index).is_some()
    }

    /// Adds blocks behind all holes.
    pub(super) fn push(&mut self, blocks: Range<u64>) {
        match self.0.last_mut() {
            _ if blocks.is_empty() => {}
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.0.push(blocks),
        }
    }

    /// Removes a block, which may split a hole.
    pub(super) fn remove(&mut self, index: u64) {
        let at = self.0.partition_point(|hole| hole.end <= index);
        let Some(hole) = self.0.get(at).filter(|hole| hole.contains(&index)).cloned() else {
            return;
        };
        let parts = [hole.start..index, index + 1..hole.end];
        self.0.splice(at..=at, parts.into_iter().filter(|part| !part.is_empty()));
    }

    /// Removes all blocks from `blocks` on.
    pub(super) fn truncate(&mut self, blocks: u64) {
        self.0.retain(|hole| hole.start < blocks);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(blocks);
        }
    }

    /// Returns the smallest hole.
    pub(super) fn smallest(&self) -> Option<Range<u64>> {
        self.0.iter().min_by_key(|hole| hole.end - hole.start).cloned()
    }

    fn encode(&self, to: &mut [u8]) {
        for (hole, at) in self.0.iter().zip(to.chunks_exact_mut(HOLE_BYTES)) {
            at[..8].copy_from_slice(&hole.start.to_le_bytes());
            at[8..].copy_from_slice(&(hole.end - hole.start).to_le_bytes());
        }
    }

    /// Decodes `count` holes of a file of `blocks` blocks.
    fn decode(bytes: &[u8], count: usize, blocks: u64) -> Result<Self, String> {
        let mut holes = Self::default();
        let mut before = None;
        for at in bytes.chunks_exact(HOLE_BYTES).take(count) {
            let (start, len) = (u64_at(at, 0), u64_at(at, 8));
            let end = start.checked_add(len).filter(|end| len > 0 && *end <= blocks);
            let end = end.filter(|_| before.is_none_or(|before| before < start));
            let Some(end) = end else {
                return Err(format!("a hole of {len} blocks at block {start}"));
            };
            holes.0.push(start..end);
            before = Some(end);
        }
        Ok(holes)
    }
}

/// A function that computes the authentication tag of some bytes.
pub(super) type Tag<'a> = &'a dyn Fn(&[u8]) -> [u8; 16];

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    id
}

impl Header {
    pub(super) fn encode(&self, tag: Tag<'_>) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = if self.holes.0.is_empty() { VERSION } else { VERSION_HOLES };
        assert!(self.holes.len() <= HOLES_MAX, "a header has room for its holes");
        bytes[11] = self.holes.len() as u8;
        self.holes.encode(&mut bytes[HOLES_AT..TAG_AT]);
        bytes[9] = self.algorithm;
        // The logarithm is at most 31.
        bytes[10] = self.block_bytes.trailing_zeros() as u8;
        bytes[16..32].copy_from_slice(&self.file_id);
        bytes[32..48].copy_from_slice(&self.key_id);
        bytes[48..56].copy_from_slice(&self.plain_bytes.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.sequence.to_le_bytes());
        let tag = tag(&bytes[..TAG_AT]);
        bytes[TAG_AT..].copy_from_slice(&tag);
        bytes
    }

    /// Decodes the fields; the tag is checked separately, because the sealer needs the ids.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        if &bytes[..8] != MAGIC {
            return Err("this is no sealed file: its header does not begin with WEFTSEAL".into());
        }
        let holes = usize::from(bytes[11]);
        let is_known = match bytes[8] {
            VERSION => true,
            VERSION_HOLES => (1..=HOLES_MAX).contains(&holes),
            _ => false,
        };
        if !is_known {
            return Err(format!("version {} of the format is not known here", bytes[8]));
        }
        let log2 = bytes[10];
        if !(12..=20).contains(&log2) {
            return Err(format!("blocks of 2^{log2} bytes"));
        }
        let (block_bytes, plain_bytes) = (1_u32 << log2, u64_at(bytes, 48));
        if plain_bytes > PLAIN_MAX_BYTES {
            return Err(format!("a plain length of {plain_bytes} bytes"));
        }
        let blocks = plain_bytes.div_ceil(block_bytes.into());
        let holes = if bytes[8] == VERSION { 0 } else { holes };
        Ok(Self {
            algorithm: bytes[9],
            block_bytes,
            file_id: sixteen(bytes, 16),
            key_id: sixteen(bytes, 32),
            plain_bytes,
            sequence: u64_at(bytes, 56),
            holes: Holes::decode(&bytes[HOLES_AT..TAG_AT], holes, blocks)?,
        })
    }

    pub(super) fn tag_is_right(bytes: &[u8; HEADER_BYTES], tag: Tag<'_>) -> bool {
        tag(&bytes[..TAG_AT]) == bytes[TAG_AT..]
    }
}

/// Maximum plain length, in bytes: far below the overflow of offsets.
pub(super) const PLAIN_MAX_BYTES: u64 = 1 << 60;

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogEnd {
    pub(super) start: u64,
    pub(super) count: u64,
    pub(super) sequence: u64,
    pub(super) hash: [u8; 32],
}

impl LogEnd {
    pub(super) fn encode(&self, tag: Tag<'_>) -> [u8; LOG_END_BYTES] {
        let mut bytes = [0; LOG_END_BYTES];
        bytes[..8].copy_from_slice(LOG_MAGIC);
        bytes[8..16].copy_from_slice(&self.start.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.hash);
        let tag = tag(&bytes[..64]);
        bytes[64..].copy_from_slice(&tag);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; LOG_END_BYTES], tag: Tag<'_>) -> Option<Self> {
        if &bytes[..8] != LOG_MAGIC || tag(&bytes[..64]) != bytes[64..] {
            return None;
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(&bytes[32..64]);
        let (start, count, sequence) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        Some(Self { start, count, sequence, hash })
    }
}

/// The layout of blocks in a sealed file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) block_bytes: u64,
    pub(super) overhead_bytes: u64,
}

impl Layout {
    /// Returns the number of blocks of a plain length.
    pub(super) fn blocks(&self, plain_bytes: u64) -> u64 {
        plain_bytes.div_ceil(self.block_bytes)
    }

    /// Returns the plain length of block `index` of a file.
    pub(super) fn plain_len(&self, index: u64, plain_bytes: u64) -> usize {
        let left = plain_bytes.saturating_sub(index.saturating_mul(self.block_bytes));
        // At most the length of a block.
        left.min(self.block_bytes) as usize
    }

    /// Returns the offset of block `index` in the stored file.
    pub(super) fn start(&self, index: u64) -> u64 {
        HEADER_BYTES as u64 + index * (self.block_bytes + self.overhead_bytes)
    }

    /// Returns the end of the last block in the stored file.
    pub(super) fn end(&self, plain_bytes: u64) -> u64 {
        let blocks = self.blocks(plain_bytes);
        HEADER_BYTES as u64 + plain_bytes + blocks * self.overhead_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(bytes: &[u8]) -> [u8; 16] {
        sixteen(blake3::hash(bytes).as_bytes(), 0)
    }

    #[test]
    fn headers_and_logs_come_back() {
        let header = Header {
            algorithm: 3,
            block_bytes: 4096,
            file_id: [1; 16],
            key_id: [2; 16],
            plain_bytes: 77_777,
            sequence: 5,
            holes: Holes::default(),
        };
        assert_eq!(header.encode(&tag)[8], 1, "what knows no holes can read it");
        let header = Header { holes: Holes(vec![0..1, 5..9, 18..19]), ..header };
        let bytes = header.encode(&tag);
        assert_eq!((bytes[8], bytes[11]), (2, 3));
        assert_eq!(Header::decode(&bytes), Ok(header));
        assert!(Header::tag_is_right(&bytes, &tag));
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(!Header::tag_is_right(&bad, &tag), "byte {at}");
        }
        let end = LogEnd { start: 1, count: 2, sequence: 3, hash: [4; 32] };
        let bytes = end.encode(&tag);
        assert_eq!(LogEnd::decode(&bytes, &tag), Some(end));
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(LogEnd::decode(&bad, &tag), None, "byte {at}");
        }
    }

    #[test]
    fn holes_that_are_none_are_refused() {
        let mut header = Header {
            algorithm: 3,
            block_bytes: 4096,
            file_id: [1; 16],
            key_id: [2; 16],
            plain_bytes: 10 * 4096,
            sequence: 5,
            holes: Holes::default(),
        };
        let several: [&[(u64, u64)]; 5] =
            [&[(0, 0)], &[(9, 11)], &[(3, 5), (5, 6)], &[(3, 5), (4, 6)], &[(5, 6), (1, 2)]];
        for bad in several {
            header.holes = Holes(bad.iter().map(|&(first, end)| first..end).collect());
            assert!(Header::decode(&header.encode(&tag)).is_err(), "{bad:?}");
        }
        header.holes = Holes((0..27).map(|nr| 2 * nr..2 * nr + 1).collect());
        header.plain_bytes = 100 * 4096;
        let bytes = header.encode(&tag);
        assert_eq!(Header::decode(&bytes), Ok(header));
        for count in [0, 28, 255] {
            let mut bad = bytes;
            bad[11] = count;
            assert!(Header::decode(&bad).is_err(), "{count} holes");
        }
    }

    #[test]
    fn holes_are_added_split_and_cut() {
        let mut holes = Holes::default();
        holes.push(5..5);
        holes.push(5..10);
        holes.push(10..12);
        holes.push(20..30);
        assert_eq!(holes, Holes(vec![5..12, 20..30]));
        for (index, rest) in [
            (5, vec![6..12, 20..30]),
            (11, vec![6..11, 20..30]),
            (8, vec![6..8, 9..11, 20..30]),
            (15, vec![6..8, 9..11, 20..30]),
            (20, vec![6..8, 9..11, 21..30]),
        ] {
            holes.remove(index);
            assert_eq!(holes, Holes(rest), "without {index}");
            assert!(!holes.contains(index));
        }
        assert!(holes.contains(6) && holes.contains(29) && !holes.contains(30));
        assert_eq!(holes.smallest(), Some(6..8));
        holes.remove(6);
        holes.remove(7);
        holes.truncate(25);
        assert_eq!(holes, Holes(vec![9..11, 21..25]));
        holes.truncate(21);
        assert_eq!(holes, Holes(std::iter::once(9..11).collect()));
        holes.remove(9);
        holes.remove(10);
        assert_eq!(holes, Holes::default());
    }

    #[test]
    fn blocks_lie_one_behind_the_other() {
        let layout = Layout { block_bytes: 4096, overhead_bytes: 40 };
        assert_eq!(layout.end(0), 512);
        for plain in [1, 4095, 4096, 4097, 8192, 100_000] {
            let last = layout.blocks(plain) - 1;
            let len = layout.plain_len(last, plain) as u64;
            assert_eq!(layout.start(last) + len + 40, layout.end(plain), "{plain}");
            assert_eq!(layout.plain_len(last + 1, plain), 0);
        }
    }
}
