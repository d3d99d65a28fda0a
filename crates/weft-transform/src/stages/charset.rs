//! Character set conversion, by the WHATWG Encoding Standard, which browsers implement.

use std::fmt;
use std::sync::Arc;

use encoding_rs::{Decoder, DecoderResult, Encoder, EncoderResult, Encoding, UTF_8};

use crate::parameters::{Parameters, StageInfo};
use crate::{Direction, Error, OnError, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "charset",
    summary: "converts between character sets",
    parameters: &[
        ("from", "the character set of the input (utf-8)"),
        ("to", "that of the output (utf-8)"),
        ("on-error", "fail, or replace what does not convert (fail)"),
    ],
    make: |p, _| {
        let (from, to) = (set(p, "from")?, set(p, "to")?);
        let choices = [("fail", OnError::Fail), ("replace", OnError::Replace)];
        let on_error = p.choice("on-error", &choices, OnError::Fail)?;
        if !can_encode(to) {
            return Err(p.error(format!("cannot write {}", to.name())));
        }
        Ok(Arc::new(Charset { from, to, on_error }))
    },
}];

fn set(p: &mut Parameters<'_>, name: &str) -> Result<&'static Encoding> {
    let Some(label) = p.text(name) else { return Ok(UTF_8) };
    Encoding::for_label(label.as_bytes()).ok_or_else(|| {
        p.error(format!("{name}={label} is no character set of the Encoding Standard"))
    })
}

/// Returns true if the standard has an encoder for `set`; UTF-16 has none, and is only read.
fn can_encode(set: &'static Encoding) -> bool {
    set.output_encoding() == set
}

struct Charset {
    from: &'static Encoding,
    to: &'static Encoding,
    on_error: OnError,
}

impl fmt::Debug for Charset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charset")
            .field("from", &self.from.name())
            .field("to", &self.to.name())
            .finish()
    }
}

impl Transform for Charset {
    fn name(&self) -> &'static str {
        "charset"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Stream(self)
    }

    fn invertible(&self) -> bool {
        self.on_error == OnError::Fail && can_encode(self.from)
    }

    fn on_error(&self) -> OnError {
        self.on_error
    }
}

impl StreamCodec for Charset {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        let (from, to) = match direction {
            Direction::Forward => (self.from, self.to),
            Direction::Inverse if self.invertible() => (self.to, self.from),
            Direction::Inverse => return Err(crate::model::no_inverse("charset")),
        };
        Ok(Box::new(Pass {
            decoder: from.new_decoder_without_bom_handling(),
            encoder: to.new_encoder(),
            replaces: self.on_error == OnError::Replace,
            names: (from.name(), to.name()),
            input: 0,
        }))
    }
}

struct Pass {
    decoder: Decoder,
    encoder: Encoder,
    replaces: bool,
    names: (&'static str, &'static str),
    input: u64,
}

/// Bytes of input that are converted at a time.
const PIECE_BYTES: usize = 32 << 10;

impl Pass {
    fn fail(&self, what: String) -> Error {
        Error::Input { stage: "charset", offset: self.input, what }
    }

    /// Decodes all of `piece` and encodes the result.
    fn convert(&mut self, mut piece: &[u8], last: bool, out: &mut Vec<u8>) -> Result<()> {
        let mut text = String::with_capacity(3 * piece.len() + 16);
        loop {
            let (result, read) =
                self.decoder.decode_to_string_without_replacement(piece, &mut text, last);
            piece = &piece[read..];
            let malformed = matches!(result, DecoderResult::Malformed(..));
            if malformed && self.replaces {
                text.push('\u{FFFD}');
            }
            self.encode(&text, last && result == DecoderResult::InputEmpty, out)?;
            text.clear();
            self.input += read as u64;
            match result {
                DecoderResult::InputEmpty => return Ok(()),
                DecoderResult::OutputFull => text.reserve(64),
                DecoderResult::Malformed(..) if self.replaces => {}
                DecoderResult::Malformed(..) => {
                    return Err(self.fail(format!("not {} just before here", self.names.0)));
                }
            }
        }
    }

    fn encode(&mut self, mut text: &str, last: bool, out: &mut Vec<u8>) -> Result<()> {
        loop {
            let before = out.len();
            out.resize(before + 4 * text.len() + 64, 0);
            let (result, read, written) =
                self.encoder.encode_from_utf8_without_replacement(text, &mut out[before..], last);
            out.truncate(before + written);
            text = &text[read..];
            match result {
                EncoderResult::InputEmpty => return Ok(()),
                EncoderResult::OutputFull => {}
                EncoderResult::Unmappable(_) if self.replaces => out.push(b'?'),
                EncoderResult::Unmappable(c) => {
                    return Err(self.fail(format!("{c:?} is not in {}", self.names.1)));
                }
            }
        }
    }
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut taken = 0;
        while taken < input.len() && out.len() < STEP_BYTES {
            let piece = &input[taken..input.len().min(taken + PIECE_BYTES)];
            self.convert(piece, false, out)?;
            taken += piece.len();
        }
        Ok(taken)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        self.convert(&[], true, out)?;
        Ok(true)
    }
}
