//! In-place byte stages: identity, increment and decrement, xor, case, rot13.
//!
//! The loops are plain so that the compiler vectorises them. Case and rot13 know ASCII only, and
//! leave every byte above 127 alone, so that UTF-8 stays UTF-8.

use std::sync::Arc;

use crate::parameters::{Parameters, StageInfo};
use crate::{ByteMap, Direction, Result, Shape, Transform};

pub(super) const STAGES: &[StageInfo] = &[
    StageInfo {
        name: "identity",
        summary: "leaves everything as it is",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Simple::Identity)),
    },
    StageInfo {
        name: "increment",
        summary: "adds to every byte, modulo 256",
        parameters: &[("by", "how much, 0 to 255 (1)")],
        make: |p, _| Ok(Arc::new(Simple::Increment(p.number("by", 0..=255, 1)?))),
    },
    StageInfo {
        name: "decrement",
        summary: "subtracts from every byte, modulo 256",
        parameters: &[("by", "how much, 0 to 255 (1)")],
        make: |p, _| Ok(Arc::new(Simple::Decrement(p.number("by", 0..=255, 1)?))),
    },
    StageInfo {
        name: "rot13",
        summary: "turns ASCII letters by 13 places",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Simple::Rot13)),
    },
    StageInfo {
        name: "upper",
        summary: "ASCII letters to upper case",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Simple::Upper)),
    },
    StageInfo {
        name: "lower",
        summary: "ASCII letters to lower case",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Simple::Lower)),
    },
    StageInfo {
        name: "xor",
        summary: "XORs with a repeated pattern (no protection)",
        parameters: &[("hex", "the pattern in hex digits, 1 to 256 bytes")],
        make: Xor::make,
    },
];

/// Stages without a table.
#[derive(Debug, Clone, Copy)]
enum Simple {
    Identity,
    Increment(u8),
    Decrement(u8),
    Rot13,
    Upper,
    Lower,
}

impl Transform for Simple {
    fn name(&self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Increment(_) => "increment",
            Self::Decrement(_) => "decrement",
            Self::Rot13 => "rot13",
            Self::Upper => "upper",
            Self::Lower => "lower",
        }
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }

    fn invertible(&self) -> bool {
        !matches!(self, Self::Upper | Self::Lower)
    }
}

impl ByteMap for Simple {
    fn apply(&self, direction: Direction, _offset: u64, block: &mut [u8]) -> Result<()> {
        match (*self, direction) {
            (Self::Identity, _) => {}
            (Self::Increment(by), Direction::Forward)
            | (Self::Decrement(by), Direction::Inverse) => add(block, by),
            (Self::Decrement(by), Direction::Forward)
            | (Self::Increment(by), Direction::Inverse) => add(block, by.wrapping_neg()),
            (Self::Rot13, _) => rot13(block),
            (Self::Upper, Direction::Forward) => block.make_ascii_uppercase(),
            (Self::Lower, Direction::Forward) => block.make_ascii_lowercase(),
            (Self::Upper | Self::Lower, Direction::Inverse) => {
                return Err(crate::model::no_inverse(self.name()));
            }
        }
        Ok(())
    }
}

fn add(block: &mut [u8], by: u8) {
    for byte in block {
        *byte = byte.wrapping_add(by);
    }
}

fn rot13(block: &mut [u8]) {
    for byte in block {
        // Branch-free: the position in the alphabet, the same for both cases.
        let place = (*byte | 0x20).wrapping_sub(b'a');
        let turn = if place < 13 { 13 } else { 13_u8.wrapping_neg() };
        *byte = byte.wrapping_add(if place < 26 { turn } else { 0 });
    }
}

#[derive(Debug)]
struct Xor {
    pattern: Vec<u8>,
}

impl Xor {
    fn make(p: &mut Parameters<'_>, _: &crate::Context) -> Result<Arc<dyn Transform>> {
        let hex = p.required("hex")?;
        let pattern = data_encoding::HEXLOWER_PERMISSIVE.decode(hex.as_bytes());
        match pattern {
            Ok(pattern) if (1..=256).contains(&pattern.len()) => Ok(Arc::new(Self { pattern })),
            _ => Err(p.error(format!("hex={hex} is not 1 to 256 bytes in hex digits"))),
        }
    }
}

impl Transform for Xor {
    fn name(&self) -> &'static str {
        "xor"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }
}

impl ByteMap for Xor {
    fn apply(&self, _: Direction, offset: u64, block: &mut [u8]) -> Result<()> {
        let len = self.pattern.len();
        // The remainder is below the pattern's length.
        let start = (offset % len as u64) as usize;
        let mut turned = self.pattern.clone();
        turned.rotate_left(start);
        for chunk in block.chunks_mut(len) {
            for (byte, key) in chunk.iter_mut().zip(&turned) {
                *byte ^= key;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rot13_knows_letters_only() {
        let all: Vec<u8> = (0..=255).collect();
        let mut turned = all.clone();
        rot13(&mut turned);
        for (&was, &is) in all.iter().zip(&turned) {
            let want = match was {
                b'a'..=b'z' => (was - b'a' + 13) % 26 + b'a',
                b'A'..=b'Z' => (was - b'A' + 13) % 26 + b'A',
                other => other,
            };
            assert_eq!(is, want, "{was}");
        }
    }
}
