//! A file read through a sequential stage: the length is known at the end, and reading backwards
//! starts again from the beginning.

use super::{Limits, Store};
use crate::exec::BLOCK_BYTES;
use crate::model::no_inverse;
use crate::{Direction, Error, Layer, Result, Shape, Stream};

/// Output that is kept behind the furthest read, so that readers may go back a little (the kernel
/// asks for neighbouring pages out of order).
const WINDOW_BYTES: usize = 1 << 20;

/// A file through a sequential stage. It cannot be written.
pub struct StreamFile {
    below: Box<dyn Store>,
    layer: Layer,
    limits: Limits,
    pass: Option<Pass>,
    /// Once the end was reached.
    len: Option<u64>,
}

/// How far a pass has come.
struct Pass {
    stream: Box<dyn Stream>,
    /// Bytes of the file below that were taken.
    taken: u64,
    /// The part of a block that the stage did not take yet.
    input: Vec<u8>,
    /// Where `window` begins in the output.
    start: u64,
    window: Vec<u8>,
    input_ended: bool,
    ended: bool,
    /// The stage failed behind the window.
    failed: bool,
}

impl Pass {
    fn end(&self) -> u64 {
        self.start + self.window.len() as u64
    }

    /// What came before the failure can still be read.
    fn fail(&mut self, upto: u64, e: Error) -> Result<()> {
        self.failed = true;
        if self.end() < upto { Err(e) } else { Ok(()) }
    }
}

impl std::fmt::Debug for StreamFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamFile").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl StreamFile {
    /// `below` through the stage of `layer`.
    #[must_use]
    pub fn new(below: Box<dyn Store>, layer: Layer, limits: Limits) -> Self {
        Self { below, layer, limits, pass: None, len: None }
    }

    fn start(&self) -> Result<Box<dyn Stream>> {
        let stage = &self.layer.stage;
        match (stage.shape(), self.layer.on_read) {
            (Shape::Stream(codec), direction) => codec.start(direction),
            (Shape::Framed(_), Direction::Forward) => {
                Ok(Box::new(crate::exec::FrameEncoder::new(stage.clone())))
            }
            (Shape::Framed(codec), Direction::Inverse) => codec.decoder(),
            (Shape::Bytes(_) | Shape::Sealed(_), _) => Err(no_inverse(stage.name())),
        }
    }

    /// Makes the window reach from `offset` past `upto`, or to the end.
    fn advance(&mut self, pass: &mut Pass, offset: u64, upto: u64) -> Result<()> {
        while !pass.ended && pass.end() < upto {
            if pass.input.is_empty() && !pass.input_ended {
                pass.input.resize(BLOCK_BYTES, 0);
                let got = self.below.read_at(pass.taken, &mut pass.input)?;
                pass.input.truncate(got);
                pass.taken += got as u64;
                pass.input_ended = got < BLOCK_BYTES;
            }
            let mut out = Vec::new();
            let step = if pass.input.is_empty() {
                pass.stream.finish(&mut out).map(|ended| pass.ended = ended)
            } else {
                let taken = pass.stream.push(&pass.input, &mut out);
                taken.map(|taken| drop(pass.input.drain(..taken)))
            };
            pass.window.append(&mut out);
            if let Err(e) = step {
                return pass.fail(upto, e);
            }
            if pass.end() > self.limits.file_bytes {
                let stage = self.layer.stage.name();
                let what = format!("longer than {} bytes", self.limits.file_bytes);
                return Err(Error::Limit { stage, offset: self.limits.file_bytes, what });
            }
            // What lies far behind the reader is let go.
            let behind = offset.saturating_sub(WINDOW_BYTES as u64);
            let drop = behind.saturating_sub(pass.start);
            let drop = usize::try_from(drop).unwrap_or(usize::MAX).min(pass.window.len());
            if drop >= WINDOW_BYTES {
                pass.window.drain(..drop);
                pass.start += drop as u64;
            }
        }
        if pass.ended {
            self.len = Some(pass.end());
        }
        Ok(())
    }
}

impl Store for StreamFile {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(self.len)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.len.is_some_and(|len| offset >= len) || buf.is_empty() {
            return Ok(0);
        }
        let upto = offset.saturating_add(buf.len() as u64);
        let mut pass = match self.pass.take() {
            Some(pass) if pass.start <= offset && !(pass.failed && pass.end() < upto) => pass,
            _ => Pass {
                stream: self.start()?,
                taken: 0,
                input: Vec::new(),
                start: 0,
                window: Vec::new(),
                input_ended: false,
                ended: false,
                failed: false,
            },
        };
        // A pass that failed is dropped: the next read starts again, and fails in the same place.
        self.advance(&mut pass, offset, upto)?;
        let from =
            usize::try_from(offset - pass.start).unwrap_or(usize::MAX).min(pass.window.len());
        let len = buf.len().min(pass.window.len() - from);
        buf[..len].copy_from_slice(&pass.window[from..from + len]);
        self.pass = Some(pass);
        Ok(len)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(weft_vfs::Error::Unsupported("writing through a sequential stage").into())
    }

    fn set_len(&mut self, _: u64) -> Result<()> {
        Err(weft_vfs::Error::Unsupported("writing through a sequential stage").into())
    }

    fn commit(&mut self) -> Result<()> {
        self.below.commit()
    }

    fn is_dirty(&self) -> bool {
        self.below.is_dirty()
    }
}
