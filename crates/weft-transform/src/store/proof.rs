//! The verification pass, which decodes all of a file once, before any of its output is returned.
//!
//! It records a hash of each piece of the output, restart points ([`super::checked`]), and the
//! frames that it passes. It keeps its position: after an error of the file below, or a frame that
//! is longer than its caller accepts, it can be continued.

use weft_vfs::check_interrupt;

use super::checked::{Checked, Checking};
use super::pass::check_limits;
use super::{Limits, Store};
use crate::exec::BLOCK_BYTES;
use crate::{Error, Frame, Result, Stream};

/// A verification pass; see the module page.
pub(super) struct Proof {
    stage: &'static str,
    stream: Box<dyn Stream>,
    /// Bytes taken from the file below.
    taken: u64,
    /// The part of a block that the stage has not taken yet.
    input: Vec<u8>,
    input_ended: bool,
    checking: Checking,
    /// The length of the output so far, in bytes.
    output: u64,
    frames: Vec<Frame>,
    /// The end of the last frame in the output.
    frames_end: u64,
    ended: bool,
}

impl Proof {
    /// Starts a pass over all output of `stream`, with restart points at an initial distance of
    /// `place_bytes` that take `max_bytes` of memory at most.
    pub(super) fn new(
        stage: &'static str,
        mut stream: Box<dyn Stream>,
        (place_bytes, max_bytes): (u64, usize),
    ) -> Self {
        let checking = Checking::new(&mut *stream, place_bytes, max_bytes);
        Self {
            stage,
            stream,
            taken: 0,
            input: Vec::new(),
            input_ended: false,
            checking,
            output: 0,
            frames: Vec::new(),
            frames_end: 0,
            ended: false,
        }
    }

    /// Decodes to the end.
    ///
    /// # Errors
    /// [`Error::LongFrame`] once a frame exceeds `frame_bytes`, [`Error::Limit`], if the call is
    /// interrupted, and those of the file below: the pass can be continued then. [`Error::Corrupt`] for damage that the stage
    /// finds.
    pub(super) fn run(
        &mut self,
        below: &mut dyn Store,
        limits: &Limits,
        frame_bytes: u64,
    ) -> Result<()> {
        let stage = self.stage;
        let mut out = Vec::new();
        loop {
            check_interrupt()?;
            check_limits(stage, limits, self.taken, self.output)?;
            if self.output - self.frames_end > frame_bytes {
                let offset = self.frames_end;
                return Err(Error::LongFrame { stage, offset, max_bytes: frame_bytes });
            }
            if self.ended {
                break;
            }
            if self.input.is_empty() && !self.input_ended {
                let mut input = std::mem::take(&mut self.input);
                input.resize(BLOCK_BYTES, 0);
                let got = below.read_at(self.taken, &mut input)?;
                input.truncate(got);
                self.input = input;
                self.taken += got as u64;
                self.input_ended = got < BLOCK_BYTES;
            }
            out.clear();
            if self.input.is_empty() {
                self.ended = self.stream.finish(&mut out)?;
            } else {
                let taken = self.stream.push(&self.input, &mut out)?;
                self.input.drain(..taken);
            }
            self.output += out.len() as u64;
            self.checking.take(&out);
            self.checking.look(&mut *self.stream, self.taken - self.input.len() as u64);
            for frame in self.stream.take_frames() {
                self.frames_end += frame.plain_bytes;
                self.frames.push(frame);
            }
        }
        if self.output / self.taken.max(1) > limits.ratio {
            let (offset, max) = (self.output, limits.ratio);
            let what = format!("more than {max} times as long as what is stored");
            return Err(Error::Limit { stage, offset, what });
        }
        Ok(())
    }

    /// Returns the index of the fully decoded file, and its frames.
    pub(super) fn finish(self) -> (Checked, Vec<Frame>) {
        (self.checking.finish(), self.frames)
    }
}
