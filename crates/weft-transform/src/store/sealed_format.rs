//! The on-disk format of a sealed file: encoding and decoding, without I/O.
//!
//! ```text
//! 0    header, 512 bytes: one sector, so that it is written whole or not at all
//!        0  "WEFTSEAL"      8  version (1)      9  algorithm    10  log2 of the block's bytes
//!       16  file id, 16    32  key id, 16      48  plain length, u64    56  sequence, u64
//!      496  tag of bytes 0 to 495
//! 512  block 0: sealed, `overhead` bytes longer than the plain block
//!      block 1 ...
//!      the last block is as short as the plain length says; there is none of length 0
//!      [a log: see below]
//! ```
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
//! A commit that only adds blocks needs no log: they lie behind the length that the header knows,
//! and writing the header is what commits.

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 512;
const TAG_AT: usize = HEADER_BYTES - 16;
const MAGIC: &[u8; 8] = b"WEFTSEAL";
const VERSION: u8 = 1;
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
        bytes[8] = VERSION;
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
        if bytes[8] != VERSION {
            return Err(format!("version {} of the format is not known here", bytes[8]));
        }
        let log2 = bytes[10];
        if !(12..=20).contains(&log2) {
            return Err(format!("blocks of 2^{log2} bytes"));
        }
        let header = Self {
            algorithm: bytes[9],
            block_bytes: 1 << log2,
            file_id: sixteen(bytes, 16),
            key_id: sixteen(bytes, 32),
            plain_bytes: u64_at(bytes, 48),
            sequence: u64_at(bytes, 56),
        };
        if header.plain_bytes > PLAIN_MAX_BYTES {
            return Err(format!("a plain length of {} bytes", header.plain_bytes));
        }
        Ok(header)
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
        };
        let bytes = header.encode(&tag);
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
