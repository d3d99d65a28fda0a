//! gzip (RFC 1952) as many members, each at most 64 KiB long and with its length in its header:
//! the BGZF form of section 4.1 of the SAM specification, which `gzip -d` reads like any other, and
//! `bgzip` and its kin read at any offset.
//!
//! Any gzip file can be read. Members that carry their length are found by stepping from one to the
//! next. Any other file is decoded once, which finds the ends of members and records restart points
//! ([`decoder`]), between members and within them. So a random read decodes about a MiB of output
//! or of input, however the file is divided into members: one member of a BGZF file, or the data
//! between two restart points ([`crate::store`]'s `at_random` has the bound).

mod decoder;

use std::sync::Arc;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use self::decoder::{Decoder, TAIL_BYTES, head_len};
use crate::parameters::StageInfo;
use crate::store::Store;
use crate::{Error, Frame, FrameCodec, Result, Shape, Stream, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "gzip",
    summary: "compresses with gzip, in members of 64 KiB that can be read each by itself",
    parameters: &[("level", "effort, 0 to 9 (6)")],
    make: |p, _| Ok(Arc::new(Gzip { level: p.number("level", 0..=9, 6)? })),
}];

/// Plain bytes of a member, as in bgzip: stored uncompressed it still fits in 64 KiB.
const MEMBER_BYTES: usize = 0xFF00;
const HEAD_BYTES: usize = 18;

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
        if plain.len() <= MEMBER_BYTES && HEAD_BYTES + deflated.len() + TAIL_BYTES > 1 << 16 {
            deflated = miniz_oxide::deflate::compress_to_vec(plain, 0);
        }
        match u16::try_from(HEAD_BYTES + deflated.len() + TAIL_BYTES - 1) {
            // A member written by weft has at most 65280 plain bytes, plus 5 for each 65535 if
            // stored.
            Ok(last) => {
                out.extend_from_slice(&END[..16]);
                out.extend(last.to_le_bytes());
            }
            // A longer member, written by another program and changed here: its length does not fit
            // the field.
            Err(_) => out.extend([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF]),
        }
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

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        match file.len_bytes()? {
            Some(len) => by_lengths(file, len),
            None => Ok(None),
        }
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Decoder::new()))
    }
}

/// Returns the members of a file in which all carry their length. A wrong plain length would shift
/// all following data, so all members but the last must have the same length, as every BGZF writer
/// produces them.
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
    // The last member is the empty end mark, and the one before it may be shorter.
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
