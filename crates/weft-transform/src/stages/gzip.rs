//! gzip (RFC 1952) as many members, each at most 64 KiB long and with its length in its header:
//! the BGZF form of section 4.1 of the SAM specification, which `gzip -d` reads like any other, and
//! `bgzip` and its kin read at any offset.
//!
//! Reading takes any gzip file. Members that carry their length are found by stepping from one to
//! the next; others are decoded once, when the file is opened, to find where they end. A file with
//! a member that is too long to be held in memory is read from its beginning on.

use std::sync::Arc;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use miniz_oxide::inflate::stream::InflateState;
use miniz_oxide::{DataFormat, MZFlush, MZStatus};

use super::seek_table::FRAME_MAX_BYTES;
use crate::registry::StageInfo;
use crate::store::Store;
use crate::{Error, Frame, FrameCodec, Result, STEP_BYTES, Shape, Stream, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "gzip",
    summary: "compresses with gzip, in members of 64 KiB that can be read each by itself",
    parameters: &[("level", "effort, 0 to 9 (6)")],
    make: |p, _| Ok(Arc::new(Gzip { level: p.number("level", 0..=9, 6)? })),
}];

/// Plain bytes of a member, as bgzip has them: stored uncompressed it still fits in 64 KiB.
const MEMBER_BYTES: usize = 0xFF00;
const HEAD_BYTES: usize = 18;
const TAIL_BYTES: usize = 8;

/// The member that marks the end of a BGZF file: empty.
const END: [u8; 28] = [
    0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 0, 0xFF, 6, 0, b'B', b'C', 2, 0, 0x1B, 0, 3, 0, 0, 0, 0, 0, 0, 0,
    0, 0,
];

#[derive(Debug)]
struct Gzip {
    level: u8,
}

impl Transform for Gzip {
    fn name(&self) -> &'static str {
        "gzip"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Framed(self)
    }
}

impl FrameCodec for Gzip {
    fn stage(&self) -> &'static str {
        "gzip"
    }

    fn frame_bytes(&self) -> usize {
        MEMBER_BYTES
    }

    fn guards(&self) -> bool {
        true
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut deflated = miniz_oxide::deflate::compress_to_vec(plain, self.level);
        if HEAD_BYTES + deflated.len() + TAIL_BYTES > 1 << 16 {
            deflated = miniz_oxide::deflate::compress_to_vec(plain, 0);
        }
        // At most 2^16 - 1: a member is at most 65280 bytes plain, and 5 more for each 65535
        // when stored.
        let last = (HEAD_BYTES + deflated.len() + TAIL_BYTES - 1) as u16;
        out.extend_from_slice(&END[..16]);
        out.extend(last.to_le_bytes());
        out.extend(deflated);
        out.extend(crc32fast::hash(plain).to_le_bytes());
        out.extend((plain.len() as u32).to_le_bytes());
        Ok(())
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        let head = head_len(stored)?.ok_or("the head of a member is cut short")?;
        let body = stored.get(head..).unwrap_or_default();
        let mut state = Box::new(DecompressorOxide::new());
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, read, written) = decompress(&mut state, body, out, 0, flags);
        if status != TINFLStatus::Done || written != out.len() {
            return Err(format!("deflate: {status:?} after {written} of {} bytes", out.len()));
        }
        let mut tail = crc32fast::hash(out).to_le_bytes().to_vec();
        // Modulo 2^32, as the format has it.
        tail.extend((out.len() as u32).to_le_bytes());
        if body[read..] == tail { Ok(()) } else { Err("CRC or length of a member is wrong".into()) }
    }

    fn finish(&self, _: &[Frame], out: &mut Vec<u8>) {
        out.extend(END);
    }

    fn index(&self, file: &mut dyn Store) -> Result<Vec<Frame>> {
        let len = file.len_bytes()?.unwrap_or(0);
        if let Some(frames) = by_lengths(file, len)? {
            return Ok(frames);
        }
        by_decoding(file, len)
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Decoder::new()))
    }
}

/// The members of a file that all carry their length. A wrong plain length would shift all that
/// follows: so all members but the last must have the same, as every BGZF writer makes them.
fn by_lengths(file: &mut dyn Store, len: u64) -> Result<Option<Vec<Frame>>> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut at = 0;
    while at < len {
        let mut head = [0; HEAD_BYTES];
        if file.read_at(at, &mut head)? < HEAD_BYTES
            || head[..4] != END[..4]
            || head[10..16] != END[10..16]
        {
            return Ok(None);
        }
        let stored_bytes = u64::from(u16::from_le_bytes([head[16], head[17]])) + 1;
        let mut plain = [0; 4];
        if stored_bytes < (HEAD_BYTES + TAIL_BYTES) as u64
            || stored_bytes > len - at
            || file.read_at(at + stored_bytes - 4, &mut plain)? < 4
        {
            return Ok(None);
        }
        let plain_bytes = u64::from(u32::from_le_bytes(plain));
        if plain_bytes > 1 << 16 {
            return Ok(None);
        }
        frames.push(Frame { stored_bytes, plain_bytes });
        at += stored_bytes;
    }
    // The last is the empty end mark, and before it may be a shorter one.
    let filled = frames.iter().rposition(|frame| frame.plain_bytes > 0).unwrap_or(0);
    let uniform = frames[..filled].windows(2).all(|two| two[0].plain_bytes == two[1].plain_bytes);
    let last_fits = filled == 0 || frames[filled].plain_bytes <= frames[0].plain_bytes;
    if frames.last().is_some_and(|frame| frame.plain_bytes > 0) {
        let offset = frames.iter().map(|frame| frame.plain_bytes).sum();
        let what = "the end mark of a BGZF file is missing: it was cut here".to_owned();
        return Err(Error::Corrupt { stage: "gzip", offset, what });
    }
    Ok((uniform && last_fits).then_some(frames))
}

/// The members found by decoding everything once.
fn by_decoding(file: &mut dyn Store, len: u64) -> Result<Vec<Frame>> {
    let mut frames = Vec::new();
    let mut decoder = Decoder::new();
    let (mut at, mut plain, mut start, mut plain_start) = (0, 0_u64, 0, 0_u64);
    let mut block = vec![0; crate::exec::BLOCK_BYTES];
    let mut out = Vec::new();
    while at < len {
        let got = file.read_at(at, &mut block)?;
        if got == 0 {
            break;
        }
        let mut used = 0;
        while used < got {
            out.clear();
            let (taken, ended) = decoder.member(&block[used..got], &mut out)?;
            used += taken;
            plain += out.len() as u64;
            if plain - plain_start > FRAME_MAX_BYTES as u64 {
                let max_bytes = FRAME_MAX_BYTES as u64;
                return Err(Error::LongFrame { stage: "gzip", offset: plain_start, max_bytes });
            }
            if ended {
                let end = at + used as u64;
                frames.push(Frame { stored_bytes: end - start, plain_bytes: plain - plain_start });
                (start, plain_start) = (end, plain);
            }
        }
        at += got as u64;
    }
    out.clear();
    decoder.finish(&mut out)?;
    Ok(frames)
}

/// Where a decoder is within a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Body,
    Tail,
}

/// Decodes members one behind the other.
struct Decoder {
    part: Part,
    /// Head or tail as far as it has come.
    pending: Vec<u8>,
    inflate: Box<InflateState>,
    crc: crc32fast::Hasher,
    member_bytes: u64,
    output: u64,
    members: u64,
}

/// The longest head that is read: extra field, name and comment have no other bound.
const HEAD_MAX_BYTES: usize = 128 << 10;

impl Decoder {
    fn new() -> Self {
        Self {
            part: Part::Head,
            pending: Vec::new(),
            inflate: InflateState::new_boxed(DataFormat::Raw),
            crc: crc32fast::Hasher::new(),
            member_bytes: 0,
            output: 0,
            members: 0,
        }
    }

    fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::Corrupt { stage: "gzip", offset: self.output, what: what.into() }
    }

    /// Takes some input of one member; how much, and whether the member ended with it.
    fn member(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, bool)> {
        let mut used = 0;
        while used < input.len() && out.len() < STEP_BYTES {
            match self.part {
                Part::Head => {
                    self.pending.push(input[used]);
                    used += 1;
                    if head_len(&self.pending).map_err(|what| self.corrupt(what))?.is_some() {
                        self.pending.clear();
                        self.inflate.reset(DataFormat::Raw);
                        self.crc = crc32fast::Hasher::new();
                        (self.part, self.member_bytes) = (Part::Body, 0);
                    }
                }
                Part::Body => used += self.body(&input[used..], out)?,
                Part::Tail => {
                    self.pending.push(input[used]);
                    used += 1;
                    if self.pending.len() == TAIL_BYTES {
                        self.tail()?;
                        return Ok((used, true));
                    }
                }
            }
        }
        Ok((used, false))
    }

    fn body(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let before = out.len();
        out.resize(STEP_BYTES.max(before + 4096), 0);
        let result = miniz_oxide::inflate::stream::inflate(
            &mut self.inflate,
            input,
            &mut out[before..],
            MZFlush::None,
        );
        out.truncate(before + result.bytes_written);
        self.crc.update(&out[before..]);
        self.member_bytes += result.bytes_written as u64;
        self.output += result.bytes_written as u64;
        match result.status {
            Ok(MZStatus::StreamEnd) => self.part = Part::Tail,
            Ok(_) => {}
            // No progress without more input or room: both come with the next call.
            Err(miniz_oxide::MZError::Buf) if result.bytes_consumed == input.len() => {}
            Err(e) => return Err(self.corrupt(format!("deflate: {e:?}"))),
        }
        if result.bytes_consumed == 0 && result.bytes_written == 0 && self.part == Part::Body {
            return Err(self.corrupt("deflate makes no progress"));
        }
        Ok(result.bytes_consumed)
    }

    fn tail(&mut self) -> Result<()> {
        let word = |at: usize| {
            let bytes = &self.pending[at..at + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let (crc, len) = (word(0), word(4));
        if crc != self.crc.clone().finalize() {
            return Err(self.corrupt("the CRC of a member is wrong"));
        }
        // Modulo 2^32, as the format has it.
        if len != self.member_bytes as u32 {
            return Err(self.corrupt("the length of a member is wrong"));
        }
        self.pending.clear();
        self.part = Part::Head;
        self.members += 1;
        Ok(())
    }
}

/// The length of the head that begins with these bytes; `None` if it goes on behind them, an error
/// if they begin none.
fn head_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let head = &bytes[..bytes.len().min(HEAD_MAX_BYTES)];
    if !head.iter().zip([0x1F, 0x8B, 8]).all(|(is, want)| *is == want) {
        return Err("no gzip member begins here".into());
    }
    let unfinished = || {
        let ends = bytes.len() < HEAD_MAX_BYTES;
        if ends { Ok(None) } else { Err("the head of a member does not end".to_owned()) }
    };
    let Some(&flags) = head.get(3) else { return unfinished() };
    if flags & 0xE0 != 0 {
        return Err("reserved flags in the head of a member".into());
    }
    let mut at = 10;
    if flags & 4 != 0 {
        let Some(len) = head.get(at..at + 2) else { return unfinished() };
        at += 2 + usize::from(u16::from_le_bytes([len[0], len[1]]));
    }
    for text in [8, 16] {
        if flags & text != 0 {
            let Some(rest) = head.get(at..) else { return unfinished() };
            let Some(end) = rest.iter().position(|&b| b == 0) else { return unfinished() };
            at += end + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
        if let Some(given) = head.get(at - 2..at) {
            let crc = crc32fast::hash(&head[..at - 2]) as u16;
            if given != crc.to_le_bytes() {
                return Err("the CRC of a member's head is wrong".into());
            }
        }
    }
    if head.len() >= at { Ok(Some(at)) } else { unfinished() }
}

impl Stream for Decoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        while used < input.len() && out.len() < STEP_BYTES {
            used += self.member(&input[used..], out)?.0;
        }
        Ok(used)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if self.part == Part::Body {
            // What inflate holds back needs no input.
            let before = out.len();
            let waiting = self.body(&[], out);
            if waiting.is_ok() && out.len() > before {
                return Ok(false);
            }
        }
        if self.part == Part::Head && self.pending.is_empty() && self.members > 0 {
            return Ok(true);
        }
        Err(self.corrupt("the input ends within a member"))
    }
}
