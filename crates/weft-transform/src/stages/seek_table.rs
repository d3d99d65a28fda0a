//! The frames of a zstd or LZ4 file, and the table that lists them.
//!
//! Behind the last frame stands the *seek table* of zstd's seekable format
//! (`contrib/seekable_format/zstd_seekable_compression_format.md` of the zstd sources): a skippable
//! frame, which every decoder of either format skips, with the two lengths of each frame. A flipped
//! bit in it would shift all data after the affected frame. So the table is preceded by one more
//! skippable frame, with a BLAKE3 hash of the table:
//!
//! ```text
//! 0x184D2A5D u32, 36 u32, "WFTS", hash of the whole seek table (32)     listed in the table itself
//! 0x184D2A5E u32, length u32, count times (stored u32, plain u32), count u32, 0, 0x8F92EAB1 u32
//! ```
//!
//! A table without its hash is not trusted, and a file without table is read all the same: its
//! frames are found by walking from header to header. (So a file that was truncated exactly between
//! two frames is a shorter file, as it is to every other decoder. `zstd | guard` detects that too.)

use crate::store::{Store, known_len};
use crate::{Error, Frame, Result, Stream};

const SKIPPABLE: u32 = 0x184D_2A50;
const TABLE_MAGIC: u32 = 0x184D_2A5E;
const GUARD_MAGIC: u32 = 0x184D_2A5D;
const FOOT_MAGIC: u32 = 0x8F92_EAB1;
const FOOT_BYTES: usize = 9;
const ENTRY_BYTES: usize = 8;
const GUARD_BYTES: usize = 44;
const GUARD_WORD: &[u8; 4] = b"WFTS";

/// Maximum length of a frame, encoded or not, that is loaded into memory to be measured or split
/// off.
pub(super) const FRAME_MAX_BYTES: usize = 64 << 20;

/// A function that reads into a buffer from an offset on; it returns fewer bytes than requested
/// only at the end.
pub(super) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<usize> + 'a;

/// A frame as its headers describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) stored_bytes: u64,
    /// The plain length, if the header has it.
    pub(super) plain_bytes: Option<u64>,
}

/// The operations that differ between the formats.
pub(super) trait FrameFormat {
    fn stage(&self) -> &'static str;
    /// Parses the frame at `at`, which must not be a skippable one; returns `None` if the input
    /// ends within it.
    fn frame(&self, at: u64, read: &mut ReadAt<'_>) -> Result<Option<Found>, String>;
    /// Decodes a frame of unknown plain length; returns `None` if that exceeds [`FRAME_MAX_BYTES`].
    fn decode_whole(&self, stored: &[u8]) -> Result<Option<Vec<u8>>, String>;
}

/// Appends the hash frame and the seek table of these frames.
pub(super) fn append(frames: &[Frame], out: &mut Vec<u8>) {
    let count = frames.len() + 1;
    let mut table = Vec::with_capacity(8 + count * ENTRY_BYTES + FOOT_BYTES);
    table.extend(TABLE_MAGIC.to_le_bytes());
    table.extend(to_u32(count * ENTRY_BYTES + FOOT_BYTES).to_le_bytes());
    for frame in frames {
        // Frames written by weft are shorter than 16 MiB, plain and stored.
        table.extend((frame.stored_bytes as u32).to_le_bytes());
        table.extend((frame.plain_bytes as u32).to_le_bytes());
    }
    table.extend(to_u32(GUARD_BYTES).to_le_bytes());
    table.extend(0_u32.to_le_bytes());
    table.extend(to_u32(count).to_le_bytes());
    table.push(0);
    table.extend(FOOT_MAGIC.to_le_bytes());

    out.extend(GUARD_MAGIC.to_le_bytes());
    out.extend(36_u32.to_le_bytes());
    out.extend(GUARD_WORD);
    out.extend(blake3::hash(&table).as_bytes());
    out.extend(table);
}

/// Returns the header of a skippable frame of `stored_bytes` bytes in total.
pub(super) fn pad(stored_bytes: u64) -> Option<Vec<u8>> {
    let content = u32::try_from(stored_bytes.checked_sub(8)?).ok()?;
    Some([SKIPPABLE.to_le_bytes(), content.to_le_bytes()].concat())
}

/// Converts a number or length of the table: files that can exist have far fewer than 2^29 frames.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Returns the frames of a file.
pub(super) fn index(format: &dyn FrameFormat, file: &mut dyn Store) -> Result<Vec<Frame>> {
    let len = known_len(file, format.stage())?;
    if let Some(frames) = guarded_table(file, len)? {
        return Ok(frames);
    }
    walk(format, file, len)
}

/// Returns the frames that the table lists, if there is one and its hash is correct.
fn guarded_table(file: &mut dyn Store, len: u64) -> Result<Option<Vec<Frame>>> {
    let foot_at = len.checked_sub(FOOT_BYTES as u64);
    let mut foot = [0; FOOT_BYTES];
    let Some(foot_at) = foot_at else { return Ok(None) };
    if file.read_at(foot_at, &mut foot)? < FOOT_BYTES || u32_at(&foot, 5) != FOOT_MAGIC {
        return Ok(None);
    }
    let count = u64::from(u32_at(&foot, 0));
    let table_bytes = 8 + count * ENTRY_BYTES as u64 + FOOT_BYTES as u64;
    let Some(start) = len.checked_sub(table_bytes + GUARD_BYTES as u64) else { return Ok(None) };
    let Ok(room) = usize::try_from(table_bytes + GUARD_BYTES as u64) else { return Ok(None) };
    let mut bytes = vec![0; room];
    if file.read_at(start, &mut bytes)? < room {
        return Ok(None);
    }
    let (guard, table) = bytes.split_at(GUARD_BYTES);
    let hash_is_right = u32_at(guard, 0) == GUARD_MAGIC
        && u32_at(guard, 4) == 36
        && guard[8..12] == GUARD_WORD[..]
        && guard[12..] == blake3::hash(table).as_bytes()[..];
    if !hash_is_right {
        return Ok(None);
    }
    let entries = table[8..table.len() - FOOT_BYTES].chunks_exact(ENTRY_BYTES);
    let mut frames: Vec<Frame> = entries
        .map(|entry| Frame {
            stored_bytes: u64::from(u32_at(entry, 0)),
            plain_bytes: u64::from(u32_at(entry, 4)),
        })
        .collect();
    frames.pop();
    let stored: u64 = frames.iter().map(|frame| frame.stored_bytes).sum();
    // A table that was moved behind other frames does not describe these.
    Ok((stored == start).then_some(frames))
}

/// Finds the frames by their headers.
fn walk(format: &dyn FrameFormat, file: &mut dyn Store, len: u64) -> Result<Vec<Frame>> {
    let stage = format.stage();
    let mut frames = Vec::new();
    let (mut at, mut plain) = (0, 0_u64);
    while at < len {
        let corrupt = |what: String| Error::Corrupt { stage, offset: plain, what };
        let mut read = |offset, buf: &mut [u8]| file.read_at(offset, buf);
        let found = next(format, at, &mut read).map_err(corrupt)?;
        let found = found.filter(|f| f.stored_bytes <= len - at).ok_or_else(|| {
            corrupt(format!("the stored file ends within the frame at its byte {at}"))
        })?;
        let plain_bytes = match found.plain_bytes {
            Some(plain_bytes) => plain_bytes,
            None => {
                let long = || {
                    let max_bytes = FRAME_MAX_BYTES as u64;
                    Error::LongFrame { stage, offset: plain, max_bytes }
                };
                if found.stored_bytes > FRAME_MAX_BYTES as u64 {
                    return Err(long());
                }
                let mut stored = vec![0; found.stored_bytes as usize];
                crate::store::read_exact(file, stage, at, &mut stored)?;
                format.decode_whole(&stored).map_err(corrupt)?.ok_or_else(long)?.len() as u64
            }
        };
        frames.push(Frame { stored_bytes: found.stored_bytes, plain_bytes });
        at += found.stored_bytes;
        plain = plain.saturating_add(plain_bytes);
    }
    Ok(frames)
}

/// Parses the frame at `at`, skippable or not.
fn next(format: &dyn FrameFormat, at: u64, read: &mut ReadAt<'_>) -> Result<Option<Found>, String> {
    let mut head = [0; 8];
    let got = read(at, &mut head).map_err(|e| e.to_string())?;
    if got >= 4 && u32_at(&head, 0) & 0xFFFF_FFF0 == SKIPPABLE {
        let stored_bytes = 8 + u64::from(u32_at(&head, 4));
        return Ok((got == 8).then_some(Found { stored_bytes, plain_bytes: Some(0) }));
    }
    format.frame(at, read)
}

/// Decodes a stream frame by frame.
pub(super) struct Splitter<F> {
    format: F,
    pending: Vec<u8>,
    /// The decoded frame, and the position of the next bytes to return.
    decoded: (Vec<u8>, usize),
    plain: u64,
}

impl<F: FrameFormat> Splitter<F> {
    pub(super) fn new(format: F) -> Self {
        Self { format, pending: Vec::new(), decoded: (Vec::new(), 0), plain: 0 }
    }

    fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::Corrupt { stage: self.format.stage(), offset: self.plain, what: what.into() }
    }

    /// Appends decoded bytes to `out`; returns true if no more are left.
    fn drain(&mut self, out: &mut Vec<u8>) -> bool {
        let (decoded, at) = &mut self.decoded;
        let room = crate::STEP_BYTES.saturating_sub(out.len());
        let step = room.min(decoded.len() - *at);
        out.extend_from_slice(&decoded[*at..*at + step]);
        *at += step;
        *at == decoded.len()
    }

    /// Decodes the first pending frame if it is complete; returns false if it is not.
    fn decode_next(&mut self) -> Result<bool> {
        let pending = &self.pending;
        let mut read = |at: u64, buf: &mut [u8]| {
            let from = usize::try_from(at).unwrap_or(usize::MAX).min(pending.len());
            let len = buf.len().min(pending.len() - from);
            buf[..len].copy_from_slice(&pending[from..from + len]);
            Ok(len)
        };
        let found = next(&self.format, 0, &mut read).map_err(|what| self.corrupt(what))?;
        let len = found.and_then(|f| usize::try_from(f.stored_bytes).ok());
        let Some(len) = len.filter(|len| *len <= self.pending.len()) else {
            if self.pending.len() > FRAME_MAX_BYTES {
                let what = format!("a frame of more than {FRAME_MAX_BYTES} stored bytes");
                return Err(Error::Limit { stage: self.format.stage(), offset: self.plain, what });
            }
            return Ok(false);
        };
        let skippable = found.is_some_and(|f| f.plain_bytes == Some(0));
        let decoded = if skippable {
            Vec::new()
        } else {
            let decoded = self.format.decode_whole(&self.pending[..len]);
            decoded.map_err(|what| self.corrupt(what))?.ok_or(Error::LongFrame {
                stage: self.format.stage(),
                offset: self.plain,
                max_bytes: FRAME_MAX_BYTES as u64,
            })?
        };
        self.plain += decoded.len() as u64;
        self.decoded = (decoded, 0);
        self.pending.drain(..len);
        Ok(true)
    }
}

impl<F: FrameFormat + Send> Stream for Splitter<F> {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        while self.drain(out) {
            if !self.decode_next()? {
                self.pending.extend_from_slice(input);
                return Ok(input.len());
            }
        }
        Ok(0)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        while self.drain(out) {
            if self.pending.is_empty() {
                return Ok(true);
            }
            if !self.decode_next()? {
                return Err(self.corrupt("the input ends within a frame"));
            }
        }
        Ok(false)
    }
}
