//! A frame codec as a stream.

use std::sync::Arc;

use crate::{Frame, Result, STEP_BYTES, Shape, Stream, Transform};

/// Splits a stream into frames and encodes each.
pub(crate) struct FrameEncoder {
    stage: Arc<dyn Transform>,
    pending: Vec<u8>,
    frames: Vec<Frame>,
}

impl FrameEncoder {
    /// Returns an encoder by `stage`, which must have the shape `Framed`.
    pub(crate) fn new(stage: Arc<dyn Transform>) -> Self {
        Self { stage, pending: Vec::new(), frames: Vec::new() }
    }

    fn emit(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Shape::Framed(codec) = self.stage.shape() else { return Ok(()) };
        let before = out.len();
        codec.encode(&self.pending, out)?;
        self.frames.push(Frame {
            stored_bytes: (out.len() - before) as u64,
            plain_bytes: self.pending.len() as u64,
        });
        self.pending.clear();
        Ok(())
    }
}

impl Stream for FrameEncoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let Shape::Framed(codec) = self.stage.shape() else { return Ok(input.len()) };
        let frame_bytes = codec.frame_bytes();
        let mut taken = 0;
        while taken < input.len() && out.len() < STEP_BYTES {
            let step = (frame_bytes - self.pending.len()).min(input.len() - taken);
            self.pending.extend_from_slice(&input[taken..taken + step]);
            taken += step;
            if self.pending.len() == frame_bytes {
                self.emit(out)?;
            }
        }
        Ok(taken)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if !self.pending.is_empty() {
            self.emit(out)?;
        }
        if let Shape::Framed(codec) = self.stage.shape() {
            codec.finish(&self.frames, out);
        }
        Ok(true)
    }
}
