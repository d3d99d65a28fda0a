//! A decoder of consecutive members, with restart points within members.
//!
//! A deflate block begins at any bit, and refers to up to 32 KiB of output before it. So a restart
//! point is the end of a block, with the bits of the last byte that belong to the next block and
//! the output that it may refer to; or it is the end of a member, and needs neither. In a block
//! that is too long to wait for its end, it is the complete state of the decoder (11 KB). The state
//! of the member's CRC is part of it, so that the end of the member is verified as usual.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

use crate::{Error, Frame, Point, Result, STEP_BYTES, Stream};

/// Bytes of a member's trailer: checksum and length.
pub(super) const TAIL_BYTES: usize = 8;
/// Maximum distance of a deflate reference, in bytes.
const WINDOW_BYTES: usize = 32 << 10;
/// Bytes of the ring buffer of decoded output: a power of two that holds a window.
const RING_BYTES: usize = 64 << 10;
/// Maximum length of a member's header, in bytes: extra field, name and comment have no other
/// bound.
const HEAD_MAX_BYTES: usize = 128 << 10;

/// The part of a member that the decoder is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    /// Zeroes behind the last member, up to the length of a block of a tape.
    Padding,
    Body,
    Tail,
}

pub(super) struct Decoder {
    part: Part,
    /// The header or trailer, as far as it was read.
    pending: Vec<u8>,
    inflate: Box<DecompressorOxide>,
    ring: Vec<u8>,
    /// The position of the next output in the ring.
    ring_at: usize,
    crc: crc32fast::Hasher,
    member_bytes: u64,
    input: u64,
    output: u64,
    members: u64,
    /// The minimum distance of restart points, if any are to be offered.
    every: Option<u64>,
    /// The input and output offsets of the last restart point.
    last_point: (u64, u64),
    /// The decoder is at a restart point, which is offered.
    at_point: bool,
    /// The decoder is at the end of a block.
    at_block_end: bool,
    /// The members that have ended, if restart points are offered.
    frames: Vec<Frame>,
    /// The offset of the current member in the input.
    member_start: u64,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            part: Part::Head,
            pending: Vec::new(),
            inflate: Box::default(),
            ring: vec![0; RING_BYTES],
            ring_at: 0,
            crc: crc32fast::Hasher::new(),
            member_bytes: 0,
            input: 0,
            output: 0,
            members: 0,
            every: None,
            last_point: (0, 0),
            at_point: false,
            at_block_end: false,
            frames: Vec::new(),
            member_start: 0,
        }
    }

    fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::Corrupt { stage: "gzip", offset: self.output, what: what.into() }
    }

    /// Consumes input up to an offered restart point; returns the number of bytes consumed.
    fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        while used < input.len() && out.len() < STEP_BYTES && !self.at_point {
            match self.part {
                Part::Head if self.pending.is_empty() && self.members > 0 && input[used] == 0 => {
                    self.part = Part::Padding;
                }
                Part::Padding => {
                    let zeroes = input[used..].iter().take_while(|byte| **byte == 0).count();
                    if zeroes == 0 {
                        return Err(self.corrupt("no gzip member begins behind the padding"));
                    }
                    self.input += zeroes as u64;
                    used += zeroes;
                }
                Part::Head => {
                    self.pending.push(input[used]);
                    self.input += 1;
                    used += 1;
                    if head_len(&self.pending).map_err(|what| self.corrupt(what))?.is_some() {
                        self.pending.clear();
                        *self.inflate = DecompressorOxide::new();
                        self.crc = crc32fast::Hasher::new();
                        (self.part, self.member_bytes) = (Part::Body, 0);
                    }
                }
                Part::Body => used += self.body(&input[used..], out)?,
                Part::Tail => {
                    self.pending.push(input[used]);
                    self.input += 1;
                    used += 1;
                    if self.pending.len() == TAIL_BYTES {
                        self.tail()?;
                    }
                }
            }
        }
        Ok(used)
    }

    fn body(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut flags = TINFL_FLAG_HAS_MORE_INPUT;
        if self.is_point_due(1) {
            flags |= TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
        }
        self.at_block_end = false;
        let from = self.ring_at;
        let (status, taken, written) =
            decompress(&mut self.inflate, input, &mut self.ring, from, flags);
        let fresh = &self.ring[from..from + written];
        out.extend_from_slice(fresh);
        self.crc.update(fresh);
        self.ring_at = (from + written) % RING_BYTES;
        self.member_bytes += written as u64;
        self.output += written as u64;
        self.input += taken as u64;
        match status {
            TINFLStatus::Done => self.part = Part::Tail,
            TINFLStatus::BlockBoundary => {
                self.at_block_end = true;
                self.offer();
            }
            TINFLStatus::NeedsMoreInput | TINFLStatus::HasMoreOutput => {
                if taken == 0 && written == 0 {
                    return Err(self.corrupt("deflate makes no progress"));
                }
                if self.is_point_due(2) {
                    self.offer();
                }
            }
            status => return Err(self.corrupt(format!("deflate: {status:?}"))),
        }
        Ok(taken)
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
        if self.every.is_some() {
            let stored_bytes = self.input - self.member_start;
            self.frames.push(Frame { stored_bytes, plain_bytes: self.member_bytes });
            self.member_start = self.input;
        }
        if self.is_point_due(1) {
            self.offer();
        }
        Ok(())
    }

    /// Returns true if the last restart point is at least `times` times the minimum distance away.
    fn is_point_due(&self, times: u64) -> bool {
        let (input, output) = self.last_point;
        let passed = (self.input - input).max(self.output - output);
        self.every.is_some_and(|every| passed >= every.saturating_mul(times))
    }

    fn offer(&mut self) {
        self.last_point = (self.input, self.output);
        self.at_point = true;
    }

    /// Returns the output that the following data may refer to.
    fn window(&self) -> Vec<u8> {
        let len = usize::try_from(self.member_bytes).unwrap_or(usize::MAX).min(WINDOW_BYTES);
        let (behind, before) = self.ring.split_at(self.ring_at);
        let from_before = len.saturating_sub(behind.len());
        let before = &before[before.len() - from_before..];
        let behind = &behind[behind.len() - (len - from_before)..];
        [before, behind].concat()
    }
}

/// Returns the length of the member header that begins with `bytes`; `None` if it extends past
/// them, an error if they do not begin a header.
pub(super) fn head_len(bytes: &[u8]) -> Result<Option<usize>, String> {
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
        self.at_point = false;
        self.take(input, out)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        self.at_point = false;
        if self.part == Part::Body {
            // Inflate may hold back output, which needs no more input.
            let before = out.len();
            let waiting = self.body(&[], out);
            if waiting.is_ok() && out.len() > before {
                return Ok(false);
            }
        }
        let is_between = matches!(self.part, Part::Head | Part::Padding);
        if is_between && self.pending.is_empty() && self.members > 0 {
            return Ok(true);
        }
        Err(self.corrupt("the input ends within a member"))
    }

    fn offer_points(&mut self, every: u64) {
        self.every = Some(every);
    }

    fn point(&self) -> Option<Box<dyn Point>> {
        if !self.at_point {
            return None;
        }
        let block = match self.part {
            Part::Head | Part::Padding => None,
            Part::Body => Some(Block {
                state: if self.at_block_end {
                    State::BlockEnd(self.inflate.block_boundary_state()?)
                } else {
                    State::InBlock(self.inflate.clone())
                },
                window: lz4_flex::block::compress_prepend_size(&self.window()).into(),
                crc: self.crc.clone(),
                member_bytes: self.member_bytes,
            }),
            Part::Tail => return None,
        };
        Some(Box::new(Place { output: self.output, members: self.members, block }))
    }

    fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }
}

/// A restart point, between two members or in one.
struct Place {
    output: u64,
    members: u64,
    block: Option<Block>,
}

/// The state of the inflate decoder within a member.
enum State {
    BlockEnd(BlockBoundaryState),
    InBlock(Box<DecompressorOxide>),
}

/// The state that decoding the rest of a member needs.
struct Block {
    state: State,
    /// The window, compressed with LZ4.
    window: Box<[u8]>,
    crc: crc32fast::Hasher,
    member_bytes: u64,
}

impl Point for Place {
    fn held_bytes(&self) -> usize {
        let of_block = |block: &Block| match block.state {
            State::BlockEnd(_) => block.window.len(),
            State::InBlock(_) => block.window.len() + size_of::<DecompressorOxide>(),
        };
        size_of::<Self>() + self.block.as_ref().map_or(0, of_block)
    }

    fn resume(&self) -> Result<Box<dyn Stream>> {
        let (output, members) = (self.output, self.members);
        let mut decoder = Decoder { output, members, ..Decoder::new() };
        if let Some(block) = &self.block {
            let window = lz4_flex::block::decompress_size_prepended(&block.window);
            let window = window.map_err(|e| decoder.corrupt(e.to_string()))?;
            // The next output goes to the beginning of the ring, and refers back to the ring's end.
            decoder.ring[RING_BYTES - window.len()..].copy_from_slice(&window);
            match &block.state {
                State::BlockEnd(bits) => {
                    *decoder.inflate = DecompressorOxide::from_block_boundary_state(bits);
                }
                State::InBlock(inflate) => decoder.inflate = inflate.clone(),
            }
            decoder.crc = block.crc.clone();
            (decoder.part, decoder.member_bytes) = (Part::Body, block.member_bytes);
        }
        Ok(Box::new(decoder))
    }
}
