//! base64 (RFC 4648, with padding) and hex, without line breaks.
//!
//! A file is a sequence of frames of whole groups, without anything between them, so that any other
//! decoder can read it.

use std::sync::Arc;

use data_encoding::{BASE64, Encoding, HEXLOWER, HEXLOWER_PERMISSIVE};

use crate::parameters::StageInfo;
use crate::store::{Store, known_len};
use crate::{Error, Frame, FrameCodec, Result, STEP_BYTES, Shape, SizeRule, Stream, Transform};

pub(super) const STAGES: &[StageInfo] = &[
    StageInfo {
        name: "base64",
        summary: "encodes as base64: four characters for three bytes",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Base::Base64)),
    },
    StageInfo {
        name: "hex",
        summary: "encodes as hex digits: two characters for a byte",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Base::Hex)),
    },
];

#[derive(Debug, Clone, Copy)]
enum Base {
    Base64,
    Hex,
}

impl Base {
    fn encoder(self) -> Encoding {
        match self {
            Self::Base64 => BASE64,
            Self::Hex => HEXLOWER,
        }
    }

    fn decoding(self) -> Encoding {
        match self {
            Self::Base64 => BASE64,
            Self::Hex => HEXLOWER_PERMISSIVE,
        }
    }

    /// The plain bytes of a group, and its characters.
    fn group(self) -> (usize, usize) {
        match self {
            Self::Base64 => (3, 4),
            Self::Hex => (1, 2),
        }
    }
}

impl Transform for Base {
    fn name(&self) -> &'static str {
        match self {
            Self::Base64 => "base64",
            Self::Hex => "hex",
        }
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Framed(self)
    }
}

/// Characters of a frame.
const FRAME_CHARACTERS: usize = 64 << 10;

impl FrameCodec for Base {
    fn stage(&self) -> &'static str {
        self.name()
    }

    fn frame_bytes(&self) -> usize {
        let (bytes, characters) = self.group();
        FRAME_CHARACTERS / characters * bytes
    }

    fn size_rule(&self) -> SizeRule {
        match self {
            Self::Base64 => SizeRule::Ratio { input: 4, output: 3 },
            Self::Hex => SizeRule::Ratio { input: 2, output: 1 },
        }
    }

    fn guards(&self) -> bool {
        false
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        out.resize(before + self.encoder().encode_len(plain.len()), 0);
        self.encoder().encode_mut(plain, &mut out[before..]);
        Ok(())
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        let decoded = self.decoding().decode(stored).map_err(|e| e.to_string())?;
        if decoded.len() != out.len() {
            return Err(format!("decodes to {} bytes, not to {}", decoded.len(), out.len()));
        }
        out.copy_from_slice(&decoded);
        Ok(())
    }

    fn finish(&self, _: &[Frame], _: &mut Vec<u8>) {}

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        let corrupt =
            |what: &str| Error::Corrupt { stage: self.name(), offset: 0, what: what.to_owned() };
        let mut len = known_len(file, self.name())?;
        let mut last = [0; 4];
        let tail = len.min(4);
        let got = file.read_at(len - tail, &mut last[..tail as usize])?;
        let mut tail = &last[..got];
        // Editors and `base64` leave a newline at the end.
        if let Some(rest) = tail.strip_suffix(b"\n") {
            tail = rest;
            len -= 1;
        }
        let (bytes, characters) = self.group();
        if !len.is_multiple_of(characters as u64) {
            return Err(corrupt("the last group of characters is not whole"));
        }
        let padding = match self {
            Self::Base64 => tail.iter().rev().take_while(|&&c| c == b'=').count().min(2) as u64,
            Self::Hex => 0,
        };
        let mut frames = Vec::new();
        let mut left = len;
        while left > 0 {
            let stored_bytes = left.min(FRAME_CHARACTERS as u64);
            left -= stored_bytes;
            let groups = stored_bytes / characters as u64;
            let padding = if left == 0 { padding } else { 0 };
            frames.push(Frame { stored_bytes, plain_bytes: groups * bytes as u64 - padding });
        }
        Ok(Some(frames))
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Decoder { base: *self, pending: Vec::new(), output: 0, ended: false }))
    }
}

/// Decodes whole groups; white space between characters is ignored.
struct Decoder {
    base: Base,
    pending: Vec<u8>,
    output: u64,
    /// Padding was seen, which only the last group has.
    ended: bool,
}

impl Decoder {
    fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::Corrupt { stage: self.base.name(), offset: self.output, what: what.into() }
    }
}

impl Stream for Decoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let taken = input.len().min(STEP_BYTES);
        self.pending.extend(input[..taken].iter().filter(|c| !c.is_ascii_whitespace()));
        if self.ended && !self.pending.is_empty() {
            return Err(self.corrupt("characters behind the padding"));
        }
        let (_, characters) = self.base.group();
        let whole = self.pending.len() / characters * characters;
        let encoding = self.base.decoding();
        let before = out.len();
        let room = encoding.decode_len(whole).map_err(|e| self.corrupt(e.to_string()))?;
        out.resize(before + room, 0);
        match encoding.decode_mut(&self.pending[..whole], &mut out[before..]) {
            Ok(len) => {
                out.truncate(before + len);
                self.output += len as u64;
                self.ended = whole > 0 && self.pending[whole - 1] == b'=';
                self.pending.drain(..whole);
                Ok(taken)
            }
            Err(partial) => {
                out.truncate(before + partial.written);
                self.output += partial.written as u64;
                Err(self.corrupt(partial.error.to_string()))
            }
        }
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<bool> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        Err(self.corrupt("the last group of characters is not whole"))
    }
}
