//! Line end conversion: LF to CR LF, or back.
//!
//! The conversion can be inverted exactly only if all lines end the same way. So with `strict=yes`
//! text with mixed line ends is refused, and without it there is no inverse.

use std::sync::Arc;

use crate::parameters::StageInfo;
use crate::{Direction, Error, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "line-ends",
    summary: "converts line ends",
    parameters: &[
        ("to", "lf or crlf"),
        ("strict", "yes to refuse text with mixed line ends, which makes it invertible (no)"),
    ],
    make: |p, _| {
        let Some(to) = p.choice("to", &[("lf", Some(To::Lf)), ("crlf", Some(To::CrLf))], None)?
        else {
            return Err(p.error("needs to=lf or to=crlf"));
        };
        let strict = p.choice("strict", &[("yes", true), ("no", false)], false)?;
        Ok(Arc::new(LineEnds { to, strict }))
    },
}];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Lf,
    CrLf,
}

#[derive(Debug)]
struct LineEnds {
    to: To,
    strict: bool,
}

impl Transform for LineEnds {
    fn name(&self) -> &'static str {
        "line-ends"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Stream(self)
    }

    fn invertible(&self) -> bool {
        self.strict
    }
}

impl StreamCodec for LineEnds {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        let to = match (self.to, direction) {
            (to, Direction::Forward) => to,
            (_, Direction::Inverse) if !self.strict => {
                return Err(crate::model::no_inverse("line-ends"));
            }
            (To::Lf, Direction::Inverse) => To::CrLf,
            (To::CrLf, Direction::Inverse) => To::Lf,
        };
        Ok(Box::new(Pass { to, strict: self.strict, after_cr: false, input: 0 }))
    }
}

struct Pass {
    to: To,
    strict: bool,
    /// The last byte was a CR; if converting to LF, it is not written yet.
    after_cr: bool,
    input: u64,
}

impl Pass {
    fn mixed(&self, what: &str) -> Error {
        Error::Input { stage: "line-ends", offset: self.input, what: what.to_owned() }
    }
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut taken = 0;
        for &byte in input {
            if out.len() >= STEP_BYTES {
                break;
            }
            match (self.to, byte, self.after_cr) {
                (To::CrLf, b'\n', true) if self.strict => {
                    return Err(self.mixed("a line ends with CR LF already"));
                }
                (To::CrLf, b'\n', false) => out.extend(b"\r\n"),
                (To::Lf, b'\n', false) if self.strict => {
                    return Err(self.mixed("a line ends without CR"));
                }
                // The CR before it was not written.
                (To::Lf, b'\n', true) => out.push(b'\n'),
                (To::Lf, byte, held) => {
                    if held {
                        out.push(b'\r');
                    }
                    if byte != b'\r' {
                        out.push(byte);
                    }
                }
                (To::CrLf, byte, _) => out.push(byte),
            }
            self.after_cr = byte == b'\r';
            self.input += 1;
            taken += 1;
        }
        Ok(taken)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if self.to == To::Lf && std::mem::take(&mut self.after_cr) {
            out.push(b'\r');
        }
        Ok(true)
    }
}
