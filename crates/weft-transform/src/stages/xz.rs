//! xz compression in many consecutive streams, each with its own index: `xz -d` reads them like any
//! other file.
//!
//! Any xz file can be read. Streams are found from the end of the file backwards by their indexes
//! (section 2.1.2 and chapter 4 of the .xz file format, version 1.2.1), and each is decoded as a
//! whole: one too long to be held in memory is read sequentially. The codec is the reference
//! library.

use std::sync::Arc;

use liblzma::stream::{Action, CONCATENATED, Check, Status, Stream as Lzma};

use crate::parameters::StageInfo;
use crate::store::{Store, known_len, read_exact};
use crate::{Error, Frame, FrameCodec, Result, STEP_BYTES, Shape, Stream, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "xz",
    summary: "compresses with xz, in streams that can be read each by itself",
    parameters: &[
        ("level", "effort, 0 to 9 (6)"),
        ("frame", "bytes compressed together, 4K to 16M (1M)"),
    ],
    make: |p, _| {
        let level = p.number("level", 0..=9, 6)?;
        let frame_bytes = p.bytes("frame", 4 << 10..=16 << 20, 1 << 20)? as usize;
        Ok(Arc::new(Xz { level, frame_bytes }))
    },
}];

/// Maximum memory of a decoder, in bytes: twice the requirement of the highest level.
const MEMORY_MAX_BYTES: u64 = 130 << 20;
/// Maximum length of an index, in bytes.
const INDEX_MAX_BYTES: u64 = 16 << 20;
const HEAD_BYTES: u64 = 12;
const FOOT_BYTES: u64 = 12;
const HEAD_MAGIC: [u8; 6] = [0xFD, b'7', b'z', b'X', b'Z', 0];
const FOOT_MAGIC: [u8; 2] = *b"YZ";

#[derive(Debug)]
struct Xz {
    level: u32,
    frame_bytes: usize,
}

impl Transform for Xz {
    fn name(&self) -> &'static str {
        "xz"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Framed(self)
    }
}

fn input(e: &liblzma::stream::Error) -> Error {
    Error::Input { stage: "xz", offset: 0, what: e.to_string() }
}

impl FrameCodec for Xz {
    fn stage(&self) -> &'static str {
        "xz"
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn guards(&self) -> bool {
        true
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut stream = Lzma::new_easy_encoder(self.level, Check::Crc64).map_err(|e| input(&e))?;
        loop {
            out.reserve(plain.len() / 2 + 4096);
            let taken = stream.total_in() as usize;
            let rest = plain.get(taken..).unwrap_or_default();
            let status = stream.process_vec(rest, out, Action::Finish).map_err(|e| input(&e))?;
            if status == Status::StreamEnd {
                return Ok(());
            }
        }
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        // Stream padding: zeroes, in multiples of four bytes.
        let mut stored = stored;
        while let Some((stream, [0, 0, 0, 0])) = stored.split_last_chunk() {
            stored = stream;
        }
        let mut stream =
            Lzma::new_stream_decoder(MEMORY_MAX_BYTES, 0).map_err(|e| e.to_string())?;
        loop {
            let (taken, made) = (stream.total_in() as usize, stream.total_out() as usize);
            let rest = stored.get(taken..).unwrap_or_default();
            let room = out.get_mut(made..).unwrap_or_default();
            let status = stream.process(rest, room, Action::Finish).map_err(|e| e.to_string())?;
            let (now_taken, now_made) = (stream.total_in() as usize, stream.total_out() as usize);
            if status == Status::StreamEnd {
                let whole = now_taken == stored.len() && now_made == out.len();
                let what = format!("ends after {now_taken} bytes, with {now_made}");
                return if whole { Ok(()) } else { Err(what) };
            }
            if (now_taken, now_made) == (taken, made) {
                return Err(format!("does not end after {now_taken} bytes, with {now_made}"));
            }
        }
    }

    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>) {
        // A file without any stream is no xz file.
        if frames.is_empty() {
            // Fails only if out of memory: then the file stays empty, which can be read too.
            let _ = self.encode(&[], out);
        }
    }

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        let mut end = known_len(file, "xz")?;
        let mut frames = Vec::new();
        while end > 0 {
            let (start, plain_bytes) = last_stream(file, end)?;
            frames.push(Frame { stored_bytes: end - start, plain_bytes });
            end = start;
        }
        frames.reverse();
        Ok(Some(frames))
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        let stream = Lzma::new_stream_decoder(MEMORY_MAX_BYTES, CONCATENATED);
        Ok(Box::new(Decoder { stream: stream.map_err(|e| input(&e))?, ended: false }))
    }
}

/// Returns an error about an index, at offset 0: the affected plain byte is not known.
fn corrupt(what: impl Into<String>) -> Error {
    Error::Corrupt { stage: "xz", offset: 0, what: what.into() }
}

/// Returns the start of the stream that ends at `end`, including its padding, and its plain length.
fn last_stream(file: &mut dyn Store, end: u64) -> Result<(u64, u64)> {
    let mut foot_end = end;
    let mut foot = [0; FOOT_BYTES as usize];
    loop {
        let at = foot_end.checked_sub(FOOT_BYTES);
        let at = at.ok_or_else(|| corrupt(format!("no stream ends at stored byte {end}")))?;
        read_exact(file, "xz", at, &mut foot)?;
        if foot[8..] != [0, 0, 0, 0] {
            break;
        }
        foot_end -= 4;
    }
    let crc = crc32fast::hash(&foot[4..10]).to_le_bytes();
    if foot[10..] != FOOT_MAGIC || foot[..4] != crc {
        return Err(corrupt(format!("no stream ends at stored byte {foot_end}")));
    }
    let words = u32::from_le_bytes([foot[4], foot[5], foot[6], foot[7]]);
    let index_bytes = (u64::from(words) + 1) * 4;
    let index_at = (foot_end - FOOT_BYTES).checked_sub(index_bytes);
    let index_at = index_at.filter(|_| index_bytes <= INDEX_MAX_BYTES);
    let index_at = index_at.ok_or_else(|| corrupt("an index longer than its file"))?;
    // Bounded by `INDEX_MAX_BYTES`.
    let mut index = vec![0; index_bytes as usize];
    read_exact(file, "xz", index_at, &mut index)?;
    let (stored, plain) = sums(&index).ok_or_else(|| corrupt("a damaged index"))?;
    let start = index_at.checked_sub(stored).and_then(|at| at.checked_sub(HEAD_BYTES));
    let start = start.ok_or_else(|| corrupt("an index of more than there is"))?;
    let mut head = [0; HEAD_BYTES as usize];
    read_exact(file, "xz", start, &mut head)?;
    if head[..6] != HEAD_MAGIC || head[6..8] != foot[8..10] {
        return Err(corrupt(format!("no stream begins at stored byte {start}")));
    }
    Ok((start, plain))
}

/// Returns the total stored (each padded to four bytes) and plain lengths of the blocks that an
/// index lists.
fn sums(index: &[u8]) -> Option<(u64, u64)> {
    let (listed, crc) = index.split_last_chunk::<4>()?;
    if crc32fast::hash(listed).to_le_bytes() != *crc {
        return None;
    }
    let (&0, mut rest) = listed.split_first()? else { return None };
    let count = number(&mut rest)?;
    let (mut stored, mut plain) = (0_u64, 0_u64);
    for _ in 0..count {
        let unpadded = number(&mut rest)?;
        stored = stored.checked_add(unpadded.checked_next_multiple_of(4)?)?;
        plain = plain.checked_add(number(&mut rest)?)?;
    }
    (rest.len() < 4 && rest.iter().all(|&b| b == 0)).then_some((stored, plain))
}

/// Parses a number of seven bits a byte, the lowest first (section 1.2).
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for nr in 0..9 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << (7 * nr);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

struct Decoder {
    stream: Lzma,
    ended: bool,
}

impl Decoder {
    /// Runs one step of the decoder; returns the number of bytes consumed.
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>, action: Action) -> Result<usize> {
        out.reserve(STEP_BYTES.saturating_sub(out.len()).max(4096));
        let before = self.stream.total_in();
        match self.stream.process_vec(input, out, action) {
            Ok(Status::StreamEnd) => self.ended = true,
            Ok(_) => {}
            Err(e) => {
                let offset = self.stream.total_out();
                return Err(Error::Corrupt { stage: "xz", offset, what: e.to_string() });
            }
        }
        // At most the length of the input.
        Ok((self.stream.total_in() - before) as usize)
    }
}

impl Stream for Decoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        while used < input.len() && out.len() < STEP_BYTES {
            used += self.step(&input[used..], out, Action::Run)?;
        }
        Ok(used)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        while !self.ended && out.len() < STEP_BYTES {
            let before = out.len();
            self.step(&[], out, Action::Finish)?;
            if !self.ended && out.len() == before {
                let offset = self.stream.total_out();
                let what = "the input ends within a stream".to_owned();
                return Err(Error::Corrupt { stage: "xz", offset, what });
            }
        }
        Ok(self.ended)
    }
}
