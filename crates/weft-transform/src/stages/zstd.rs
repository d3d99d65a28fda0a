//! zstd compression in the seekable format: frames of a fixed plain length, each with a checksum,
//! and a seek table that other decoders skip, so that `zstd -d` reads the stored file.
//!
//! The frame format is RFC 8878.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer};

use super::seek_table::{self, FRAME_MAX_BYTES, Found, FrameFormat, ReadAt};
use crate::parameters::StageInfo;
use crate::store::Store;
use crate::{Error, Frame, FrameCodec, Result, STEP_BYTES, Shape, Stream, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "zstd",
    summary: "compresses with zstd, in the seekable format",
    parameters: &[
        ("level", "effort, -7 to 22 (3)"),
        ("frame", "bytes compressed together, 4K to 8M (128K)"),
    ],
    make: |p, _| {
        let level = p.number("level", -7..=22, 3)?;
        let frame_bytes = p.bytes("frame", 4 << 10..=8 << 20, 128 << 10)? as usize;
        Ok(Arc::new(Zstd { level, frame_bytes, idle: Mutex::default() }))
    },
}];

/// Maximum window of a frame: the default limit of `zstd -d` (2^27 bytes).
const WINDOW_LOG_MAX: u32 = 27;

struct Zstd {
    level: i32,
    frame_bytes: usize,
    /// Idle contexts, kept for reuse: creating one costs more than compressing a small frame.
    idle: Mutex<Vec<CCtx<'static>>>,
}

impl fmt::Debug for Zstd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zstd").field("level", &self.level).finish_non_exhaustive()
    }
}

impl Transform for Zstd {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Framed(self)
    }
}

fn failed(code: usize) -> String {
    zstd_safe::get_error_name(code).to_owned()
}

fn no_memory() -> Error {
    Error::Io(std::io::ErrorKind::OutOfMemory.into())
}

fn decoder() -> Result<DCtx<'static>, String> {
    let mut context = DCtx::try_create().ok_or("out of memory")?;
    context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(failed)?;
    Ok(context)
}

impl FrameCodec for Zstd {
    fn stage(&self) -> &'static str {
        "zstd"
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn guards(&self) -> bool {
        true
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let lock = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = lock().pop();
        let mut context = match idle {
            Some(context) => context,
            None => {
                let mut context = CCtx::try_create().ok_or_else(no_memory)?;
                for parameter in [
                    CParameter::CompressionLevel(self.level),
                    CParameter::ChecksumFlag(true),
                    CParameter::ContentSizeFlag(true),
                ] {
                    context.set_parameter(parameter).map_err(|code| self.input(failed(code)))?;
                }
                context
            }
        };
        let before = out.len();
        out.resize(before + zstd_safe::compress_bound(plain.len()), 0);
        let result = context.compress2(&mut out[before..], plain);
        lock().push(context);
        match result {
            Ok(len) => {
                out.truncate(before + len);
                Ok(())
            }
            Err(code) => {
                out.truncate(before);
                Err(self.input(failed(code)))
            }
        }
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        match decoder()?.decompress(out, stored) {
            Ok(len) if len == out.len() => Ok(()),
            Ok(len) => Err(format!("decodes to {len} bytes, not to {}", out.len())),
            Err(code) => Err(failed(code)),
        }
    }

    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>) {
        seek_table::append(frames, out);
    }

    fn pad(&self, stored_bytes: u64) -> Option<Vec<u8>> {
        seek_table::pad(stored_bytes)
    }

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        seek_table::index(&Format, file).map(Some)
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        let context = decoder().map_err(|what| self.input(what))?;
        Ok(Box::new(Decoder { context, within_frame: false, output: 0 }))
    }
}

impl Zstd {
    fn input(&self, what: String) -> Error {
        Error::Input { stage: "zstd", offset: 0, what }
    }
}

/// The frames of RFC 8878.
struct Format;

impl FrameFormat for Format {
    fn stage(&self) -> &'static str {
        "zstd"
    }

    fn frame(&self, at: u64, read: &mut ReadAt<'_>) -> Result<Option<Found>, String> {
        // Magic number, descriptor, window, dictionary id, content size: 18 bytes at most.
        let mut head = [0; 18];
        let got = read(at, &mut head).map_err(|e| e.to_string())?;
        if got >= 4 && head[..4] != [0x28, 0xB5, 0x2F, 0xFD] {
            return Err(format!("no zstd frame begins at stored byte {at}"));
        }
        let descriptor = head[4];
        let single_segment = descriptor & 0x20 != 0;
        let window = usize::from(!single_segment);
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = match descriptor >> 6 {
            0 => usize::from(single_segment),
            1 => 2,
            2 => 4,
            _ => 8,
        };
        let head_len = 5 + window + dictionary + size;
        if got < head_len {
            return Ok(None);
        }
        let mut content = [0; 8];
        content[..size].copy_from_slice(&head[head_len - size..head_len]);
        let content = u64::from_le_bytes(content);
        let plain_bytes = match size {
            0 => None,
            2 => Some(content + 256),
            _ => Some(content),
        };
        let mut stored_bytes = head_len as u64;
        loop {
            let mut block = [0; 3];
            if read(at + stored_bytes, &mut block).map_err(|e| e.to_string())? < 3 {
                return Ok(None);
            }
            let block = u32::from_le_bytes([block[0], block[1], block[2], 0]);
            let content = match (block >> 1) & 3 {
                0 | 2 => u64::from(block >> 3),
                1 => 1,
                _ => {
                    return Err(format!(
                        "a block of reserved type in the frame at stored byte {at}"
                    ));
                }
            };
            stored_bytes += 3 + content;
            if block & 1 != 0 {
                break;
            }
        }
        if descriptor & 4 != 0 {
            stored_bytes += 4;
        }
        Ok(Some(Found { stored_bytes, plain_bytes }))
    }

    fn decode_whole(&self, stored: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut stream = Decoder { context: decoder()?, within_frame: false, output: 0 };
        let (mut out, mut at) = (Vec::new(), 0);
        while at < stored.len() {
            let mut step = Vec::new();
            at += stream.push(&stored[at..], &mut step).map_err(|e| e.to_string())?;
            out.extend(step);
            if out.len() > FRAME_MAX_BYTES {
                return Ok(None);
            }
        }
        loop {
            let mut step = Vec::new();
            let done = stream.finish(&mut step).map_err(|e| e.to_string())?;
            out.extend(step);
            if done {
                return Ok(Some(out));
            }
        }
    }
}

struct Decoder {
    context: DCtx<'static>,
    within_frame: bool,
    output: u64,
}

impl Decoder {
    /// Runs one step of the decoder; returns true if it filled the output.
    fn step(&mut self, input: &mut InBuffer<'_>, out: &mut Vec<u8>) -> Result<bool> {
        let before = out.len();
        let room = STEP_BYTES.saturating_sub(before).max(4096);
        out.resize(before + room, 0);
        let mut output = OutBuffer::around(&mut out[before..]);
        let result = self.context.decompress_stream(&mut output, input);
        let made = output.pos();
        out.truncate(before + made);
        self.output += made as u64;
        match result {
            Ok(hint) => {
                self.within_frame = hint != 0;
                Ok(made == room)
            }
            Err(code) => {
                Err(Error::Corrupt { stage: "zstd", offset: self.output, what: failed(code) })
            }
        }
    }
}

impl Stream for Decoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let len = input.len();
        let mut input = InBuffer::around(input);
        while input.pos() < len && out.len() < STEP_BYTES {
            self.step(&mut input, out)?;
        }
        Ok(input.pos())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if !self.within_frame {
            return Ok(true);
        }
        // The decoder returns held-back output without input; if it needs more, the input is
        // truncated.
        let mut nothing = InBuffer::around(&[]);
        if self.step(&mut nothing, out)? {
            return Ok(false);
        }
        if self.within_frame {
            let what = "the input ends within a frame".to_owned();
            return Err(Error::Corrupt { stage: "zstd", offset: self.output, what });
        }
        Ok(true)
    }
}
