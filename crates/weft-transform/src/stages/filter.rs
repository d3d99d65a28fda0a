//! A line filter: keeps some lines of a text, and drops the others.

use std::sync::Arc;

use crate::parameters::StageInfo;
use crate::{Direction, Error, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "lines",
    summary: "keeps the lines that contain (or lack) a text",
    parameters: &[
        ("contains", "a text that kept lines have"),
        ("lacks", "a text that kept lines do not have"),
        ("max", "the longest line, up to 64M (1M)"),
    ],
    make: |p, _| {
        let (contains, lacks) = (p.text("contains"), p.text("lacks"));
        if contains.is_none() && lacks.is_none() {
            return Err(p.error("needs contains=... or lacks=..."));
        }
        let needle = |text: Option<String>| text.map(String::into_bytes);
        let line_max = p.bytes("max", 1..=64 << 20, 1 << 20)? as usize;
        let (contains, lacks) = (needle(contains), needle(lacks));
        Ok(Arc::new(Lines { wanted: Arc::new(Wanted { contains, lacks }), line_max }))
    },
}];

#[derive(Debug)]
struct Lines {
    wanted: Arc<Wanted>,
    line_max: usize,
}

#[derive(Debug)]
struct Wanted {
    contains: Option<Vec<u8>>,
    lacks: Option<Vec<u8>>,
}

impl Wanted {
    fn keeps(&self, line: &[u8]) -> bool {
        self.contains.as_ref().is_none_or(|needle| find(line, needle))
            && !self.lacks.as_ref().is_some_and(|needle| find(line, needle))
    }
}

/// Returns true if `line` contains `needle`: searches for its first byte, then compares the rest.
fn find(line: &[u8], needle: &[u8]) -> bool {
    let Some((&first, rest)) = needle.split_first() else { return true };
    let mut at = 0;
    while let Some(step) = line[at..].iter().position(|&byte| byte == first) {
        at += step + 1;
        if line[at..].starts_with(rest) {
            return true;
        }
    }
    false
}

impl Transform for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Stream(self)
    }

    fn invertible(&self) -> bool {
        false
    }
}

impl StreamCodec for Lines {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        if direction == Direction::Inverse {
            return Err(crate::model::no_inverse("lines"));
        }
        let wanted = self.wanted.clone();
        Ok(Box::new(Pass { wanted, line_max: self.line_max, line: Vec::new(), input: 0 }))
    }
}

struct Pass {
    wanted: Arc<Wanted>,
    line_max: usize,
    /// The beginning of a line whose end has not been seen yet.
    line: Vec<u8>,
    input: u64,
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut taken = 0;
        while taken < input.len() && out.len() < STEP_BYTES {
            let rest = &input[taken..];
            let end = rest.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
            let piece = &rest[..end.unwrap_or(rest.len())];
            if self.line.len() + piece.len() > self.line_max {
                let what = format!("a line of more than {} bytes", self.line_max);
                return Err(Error::Input { stage: "lines", offset: self.input, what });
            }
            taken += piece.len();
            self.input += piece.len() as u64;
            if end.is_none() {
                self.line.extend_from_slice(piece);
            } else if self.line.is_empty() {
                if self.wanted.keeps(piece) {
                    out.extend_from_slice(piece);
                }
            } else {
                self.line.extend_from_slice(piece);
                if self.wanted.keeps(&self.line) {
                    out.extend_from_slice(&self.line);
                }
                self.line.clear();
            }
        }
        Ok(taken)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if !self.line.is_empty() && self.wanted.keeps(&self.line) {
            out.extend_from_slice(&self.line);
        }
        self.line.clear();
        Ok(true)
    }
}
