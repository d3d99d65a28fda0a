//! One pass through a sequential stage, with a window of its output.
//!
//! A pass of a verified file begins at a restart point between its pieces ([`super::checked`]),
//! returns a piece once it matches its recorded hash, and takes no more of the file below than
//! leads to the next restart point.

use std::sync::Arc;

use weft_vfs::check_interrupt;

use super::checked::{Checked, Pieces, Place};
use super::{Limits, Store};
use crate::exec::BLOCK_BYTES;
use crate::model::no_inverse;
use crate::{Direction, Error, Result, Shape, Stream, Transform};

/// Bytes of output that are kept behind the furthest read, so that readers may go back a little
/// (the kernel requests neighbouring pages out of order).
const WINDOW_BYTES: usize = 1 << 20;

/// The output length from which on the limit on the expansion ratio applies, in bytes.
pub(super) const RATIO_FROM_BYTES: u64 = 64 << 20;

/// Starts a stage at the beginning.
pub(super) fn start(stage: &Arc<dyn Transform>, on_read: Direction) -> Result<Box<dyn Stream>> {
    match (stage.shape(), on_read) {
        (Shape::Stream(codec), direction) => codec.start(direction),
        (Shape::Framed(_), Direction::Forward) => {
            Ok(Box::new(crate::exec::FrameEncoder::new(stage.clone())))
        }
        (Shape::Framed(codec), Direction::Inverse) => codec.decoder(),
        (Shape::Bytes(_) | Shape::Sealed(_) | Shape::Merged(_), _) => Err(no_inverse(stage.name())),
    }
}

/// The parameters common to all passes of a file.
#[derive(Clone, Copy)]
pub(super) struct Course<'a> {
    pub(super) stage: &'static str,
    pub(super) limits: &'a Limits,
    /// The index of a verified file.
    pub(super) checked: Option<&'a Checked>,
}

/// A stage that has ended.
struct Ended;

impl Stream for Ended {
    fn push(&mut self, input: &[u8], _: &mut Vec<u8>) -> Result<usize> {
        Ok(input.len())
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<bool> {
        Ok(true)
    }
}

/// The state of a pass.
pub(super) struct Pass {
    stream: Box<dyn Stream>,
    /// Bytes taken from the file below.
    taken: u64,
    /// The part of a block that the stage has not taken yet.
    input: Vec<u8>,
    /// The offset of `window` in the output.
    start: u64,
    window: Vec<u8>,
    /// The verified pieces of the output, of a verified file.
    shown: Pieces,
    input_ended: bool,
    ended: bool,
    /// The stage failed after the window.
    failed: bool,
}

impl Pass {
    /// Starts a pass at the beginning.
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            taken: 0,
            input: Vec::new(),
            start: 0,
            window: Vec::new(),
            shown: Pieces::default(),
            input_ended: false,
            ended: false,
            failed: false,
        }
    }

    /// Starts a pass at a restart point.
    pub(super) fn from(place: &Place) -> Result<Self> {
        let (taken, start, shown) = (place.taken, place.output, Pieces::from(place));
        Ok(Self { taken, start, shown, ..Self::new(place.point.resume()?) })
    }

    fn end(&self) -> u64 {
        self.start + self.window.len() as u64
    }

    /// Returns the length of the output, once the pass has reached its end.
    pub(super) fn len_bytes(&self) -> Option<u64> {
        self.ended.then(|| self.end())
    }

    /// Returns the end of the output that may be returned to readers.
    fn shown_end(&self, course: &Course<'_>) -> u64 {
        if course.checked.is_some() { self.shown.whole_end() } else { self.end() }
    }

    /// Returns true if this pass serves reads of `[offset, upto)` with less effort than a new pass.
    pub(super) fn is_near(&self, course: &Course<'_>, offset: u64, upto: u64) -> bool {
        let place = course.checked.and_then(|checked| checked.place(offset));
        self.start <= offset
            && place.map_or(0, |place| place.output) <= self.end()
            && !(self.failed && self.shown_end(course) < upto)
    }

    /// Reads from byte `offset` on, which must not lie before the window.
    pub(super) fn read(
        &mut self,
        course: &Course<'_>,
        below: &mut dyn Store,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.advance(course, below, offset, offset.saturating_add(buf.len() as u64))?;
        let shown = self.shown_end(course).saturating_sub(self.start);
        let shown = usize::try_from(shown).unwrap_or(usize::MAX).min(self.window.len());
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX).min(shown);
        let len = buf.len().min(shown - from);
        buf[..len].copy_from_slice(&self.window[from..from + len]);
        Ok(len)
    }

    /// Advances the window so that it reaches from `offset` past `upto`, or to the end.
    fn advance(
        &mut self,
        course: &Course<'_>,
        below: &mut dyn Store,
        offset: u64,
        upto: u64,
    ) -> Result<()> {
        while !self.ended && self.shown_end(course) < upto {
            check_interrupt()?;
            if self.input.is_empty() && !self.input_ended {
                self.fetch(course, below)?;
            }
            let mut out = Vec::new();
            let step = if self.input.is_empty() {
                self.stream.finish(&mut out).map(|ended| {
                    if ended {
                        // It may hold much memory, or a process.
                        self.stream = Box::new(Ended);
                        self.ended = true;
                    }
                })
            } else {
                let taken = self.stream.push(&self.input, &mut out);
                taken.map(|taken| drop(self.input.drain(..taken)))
            };
            if let Some(checked) = course.checked
                && !self.shown.are_those(checked, &out, self.ended)
            {
                let (stage, offset) = (course.stage, self.shown_end(course));
                let what = "the stored file has changed since it was checked".to_owned();
                return Err(Error::Corrupt { stage, offset, what });
            }
            self.window.append(&mut out);
            if let Err(e) = &step
                && e.is_interrupted()
            {
                step?;
            } else if let Err(e) = step {
                // Output before the failure can still be read, as far as it is verified.
                self.failed = true;
                return if self.shown_end(course) < upto { Err(e) } else { Ok(()) };
            }
            self.check_limits(course)?;
            // Output far behind the reader is dropped.
            let behind = offset.saturating_sub(WINDOW_BYTES as u64);
            let drop = behind.saturating_sub(self.start);
            let drop = usize::try_from(drop).unwrap_or(usize::MAX).min(self.window.len());
            if drop >= WINDOW_BYTES {
                self.window.drain(..drop);
                self.start += drop as u64;
            }
        }
        Ok(())
    }

    /// Takes more of the file below: a random reader needs the output up to the next restart point,
    /// and mostly no more.
    fn fetch(&mut self, course: &Course<'_>, below: &mut dyn Store) -> Result<()> {
        let wanted = course.checked.and_then(|checked| checked.to_next_place(self.taken));
        let wanted = wanted.and_then(|len| usize::try_from(len).ok());
        let wanted = wanted.unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        self.input.resize(wanted, 0);
        let got = below.read_at(self.taken, &mut self.input);
        self.input.truncate(*got.as_ref().unwrap_or(&0));
        let got = got?;
        self.taken += got as u64;
        self.input_ended = got < wanted;
        Ok(())
    }

    fn check_limits(&self, course: &Course<'_>) -> Result<()> {
        check_limits(course.stage, course.limits, self.taken, self.end())
    }
}

/// Checks that `end` bytes of output, decoded from `taken` bytes, are within the limits.
pub(super) fn check_limits(
    stage: &'static str,
    limits: &Limits,
    taken: u64,
    end: u64,
) -> Result<()> {
    if end > limits.file_bytes {
        let what = format!("longer than {} bytes", limits.file_bytes);
        return Err(Error::Limit { stage, offset: limits.file_bytes, what });
    }
    if end > RATIO_FROM_BYTES && end / taken.max(1) > limits.ratio {
        let max = limits.ratio;
        let what = format!("more than {max} times as long as what it was made of");
        return Err(Error::Limit { stage, offset: end, what });
    }
    Ok(())
}
