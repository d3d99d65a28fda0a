//! The pass that decodes all of a file once, before anything of it is shown.
//!
//! It notes down a hash of each piece of the output, places to begin again at ([`super::checked`]),
//! and the frames that it comes past. It keeps what it has come to: after an error of the file below,
//! or a frame that is longer than its caller can do with, it goes on where it was.

use super::checked::{Checked, Checking};
use super::pass::check_limits;
use super::{Limits, Store};
use crate::exec::BLOCK_BYTES;
use crate::{Error, Frame, Result, Stream};

/// See the module.
pub(super) struct Proof {
    stage: &'static str,
    stream: Box<dyn Stream>,
    /// Bytes of the file below that were taken.
    taken: u64,
    /// The part of a block that the stage did not take yet.
    input: Vec<u8>,
    input_ended: bool,
    checking: Checking,
    /// How long the output is so far.
    output: u64,
    frames: Vec<Frame>,
    /// Where the last of these ends in the output.
    frames_end: u64,
    ended: bool,
}

impl Proof {
    /// Of all that `stream` will make, with places that are so far apart at first, and take so many
    /// bytes at most.
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
    /// [`Error::LongFrame`] when it comes past `frame_bytes` of one frame, [`Error::Limit`], and those
    /// of the file below: it can go on then. What the stage finds wrong ([`Error::Corrupt`]).
    pub(super) fn run(
        &mut self,
        below: &mut dyn Store,
        limits: &Limits,
        frame_bytes: u64,
    ) -> Result<()> {
        let stage = self.stage;
        let mut out = Vec::new();
        loop {
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

    /// What is known of the file now that all of it was decoded, and its frames.
    pub(super) fn finish(self) -> (Checked, Vec<Frame>) {
        (self.checking.finish(), self.frames)
    }
}
