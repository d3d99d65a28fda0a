//! A file read through a sequential stage: the length is known at the end, and reading backwards
//! starts again from the beginning.
//!
//! A decoder whose checksum stands at the end of a long frame would show bytes before it has seen
//! that. So such a file is *proven* before anything of it is shown: decoded once to its end, with a
//! hash kept of each piece of the output, and places where the stage can begin again, if it has any
//! ([`super::checked`]). A later pass begins at the place before what is read, and shows a piece when
//! it has that hash. Both are of one opening of the file: when what is stored changes, it is opened
//! anew, and what has changed without that being known has another hash.

#[cfg(test)]
mod tests;

use super::checked::{Checked, Checking, PIECE_BYTES, PLACE_BYTES, PLACES_MAX_BYTES, Pieces};
use super::{Limits, Store};
use crate::exec::BLOCK_BYTES;
use crate::model::no_inverse;
use crate::{Direction, Error, Layer, Result, Shape, Stream};

/// Output that is kept behind the furthest read, so that readers may go back a little (the kernel
/// asks for neighbouring pages out of order).
const WINDOW_BYTES: usize = 1 << 20;

/// From here on it counts how many times as long an output is as what it was made of.
const RATIO_FROM_BYTES: u64 = 64 << 20;

/// What is known of the output before it is shown.
enum Trust {
    /// The stage says at once what is wrong.
    Plain,
    /// To be proven.
    Unproven,
    /// All pieces.
    Proven(Checked),
    /// Cannot be proven: where the stage found out, and what.
    Damaged(u64, String),
}

/// A file through a sequential stage. It cannot be written.
pub struct StreamFile {
    below: Box<dyn Store>,
    layer: Layer,
    limits: Limits,
    pass: Option<Pass>,
    /// Once the end was reached.
    len: Option<u64>,
    trust: Trust,
    /// How far places to begin again at are apart at first, and what they may take, in bytes.
    places: (u64, usize),
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
    /// How far the output may be shown, where that takes proof.
    shown: Pieces,
    /// Of the pass that proves the file.
    checking: Option<Checking>,
    input_ended: bool,
    ended: bool,
    /// The stage failed behind the window.
    failed: bool,
}

impl Pass {
    /// From the beginning on.
    fn new(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            taken: 0,
            input: Vec::new(),
            start: 0,
            window: Vec::new(),
            shown: Pieces::default(),
            checking: None,
            input_ended: false,
            ended: false,
            failed: false,
        }
    }

    fn end(&self) -> u64 {
        self.start + self.window.len() as u64
    }

    /// Where the output ends that may be shown.
    fn shown_end(&self, trust: &Trust) -> u64 {
        match trust {
            Trust::Proven(_) => self.shown.whole_end(),
            _ => self.end(),
        }
    }

    /// Takes new output: no piece may differ from what was proven.
    fn append(&mut self, out: &mut Vec<u8>, trust: &Trust) -> Result<(), ()> {
        if let Trust::Proven(checked) = trust
            && !self.shown.are_those(checked, out, self.ended)
        {
            return Err(());
        }
        if let Some(checking) = &mut self.checking {
            checking.take(out);
        }
        self.window.append(out);
        Ok(())
    }

    /// What came before the failure can still be read, as far as it may be shown.
    fn fail(&mut self, upto: u64, trust: &Trust, e: Error) -> Result<()> {
        self.failed = true;
        if self.shown_end(trust) < upto { Err(e) } else { Ok(()) }
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
        let places = (PLACE_BYTES, PLACES_MAX_BYTES);
        Self { below, layer, limits, pass: None, len: None, trust: Trust::Plain, places }
    }

    /// The same through a stage whose output counts only once the stage has seen all of its input.
    #[must_use]
    pub fn proven(below: Box<dyn Store>, layer: Layer, limits: Limits) -> Self {
        Self { trust: Trust::Unproven, ..Self::new(below, layer, limits) }
    }

    fn start(&self) -> Result<Box<dyn Stream>> {
        let stage = &self.layer.stage;
        match (stage.shape(), self.layer.on_read) {
            (Shape::Stream(codec), direction) => codec.start(direction),
            (Shape::Framed(_), Direction::Forward) => {
                Ok(Box::new(crate::exec::FrameEncoder::new(stage.clone())))
            }
            (Shape::Framed(codec), Direction::Inverse) => codec.decoder(),
            (Shape::Bytes(_) | Shape::Sealed(_) | Shape::Merged(_), _) => {
                Err(no_inverse(stage.name()))
            }
        }
    }

    /// A pass that comes to byte `offset` soon.
    fn pass_to(&self, offset: u64) -> Result<Pass> {
        let place = match &self.trust {
            Trust::Proven(checked) => checked.place(offset),
            _ => None,
        };
        let Some(place) = place else { return Ok(Pass::new(self.start()?)) };
        let (taken, start, shown) = (place.taken, place.output, Pieces::from(place));
        Ok(Pass { taken, start, shown, ..Pass::new(place.point.resume()?) })
    }

    /// Whether a pass serves reads of `[offset, upto)` with less effort than a new one.
    fn is_near(&self, pass: &Pass, offset: u64, upto: u64) -> bool {
        let place = match &self.trust {
            Trust::Proven(checked) => checked.place(offset).map_or(0, |place| place.output),
            _ => 0,
        };
        pass.start <= offset
            && place <= pass.end()
            && !(pass.failed && pass.shown_end(&self.trust) < upto)
    }

    /// Reads everything once, before anything is shown.
    fn prove(&mut self) -> Result<()> {
        let stage = self.layer.stage.name();
        match &self.trust {
            Trust::Plain | Trust::Proven(_) => return Ok(()),
            Trust::Damaged(offset, what) => {
                return Err(Error::Corrupt { stage, offset: *offset, what: what.clone() });
            }
            Trust::Unproven => {}
        }
        let mut pass = Pass::new(self.start()?);
        let (place_bytes, max_bytes) = self.places;
        pass.checking = Some(Checking::new(&mut *pass.stream, place_bytes, max_bytes));
        let mut upto = 0;
        while !pass.ended {
            upto += PIECE_BYTES;
            if let Err(e) = self.advance(&mut pass, upto, upto) {
                // What the file below has to say may be otherwise the next time.
                if let Error::Corrupt { stage: found, offset, what } = &e
                    && *found == stage
                {
                    self.trust = Trust::Damaged(*offset, what.clone());
                }
                return Err(e);
            }
            if pass.end() / pass.taken.max(1) > self.limits.ratio {
                let (offset, max) = (pass.end(), self.limits.ratio);
                let what = format!("more than {max} times as long as what is stored");
                return Err(Error::Limit { stage, offset, what });
            }
            pass.start = pass.end();
            pass.window.clear();
        }
        if let Some(checking) = pass.checking {
            self.trust = Trust::Proven(checking.finish());
        }
        Ok(())
    }

    /// Makes the window reach from `offset` past `upto`, or to the end.
    fn advance(&mut self, pass: &mut Pass, offset: u64, upto: u64) -> Result<()> {
        while !pass.ended && pass.shown_end(&self.trust) < upto {
            if pass.input.is_empty() && !pass.input_ended {
                // Who reads at random wants the output up to the next place, and mostly no more.
                let wanted = match &self.trust {
                    Trust::Proven(checked) => checked.to_next_place(pass.taken),
                    _ => None,
                };
                let wanted = wanted.and_then(|len| usize::try_from(len).ok());
                let wanted = wanted.unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
                pass.input.resize(wanted, 0);
                let got = self.below.read_at(pass.taken, &mut pass.input)?;
                pass.input.truncate(got);
                pass.taken += got as u64;
                pass.input_ended = got < wanted;
            }
            let mut out = Vec::new();
            let step = if pass.input.is_empty() {
                pass.stream.finish(&mut out).map(|ended| pass.ended = ended)
            } else {
                let taken = pass.stream.push(&pass.input, &mut out);
                taken.map(|taken| drop(pass.input.drain(..taken)))
            };
            if pass.append(&mut out, &self.trust).is_err() {
                let (stage, offset) = (self.layer.stage.name(), pass.shown_end(&self.trust));
                let what = "the stored file has changed since it was checked".to_owned();
                return Err(Error::Corrupt { stage, offset, what });
            }
            match step {
                Ok(()) => {
                    if let Some(checking) = &mut pass.checking {
                        checking.look(&mut *pass.stream, pass.taken - pass.input.len() as u64);
                    }
                }
                Err(e) if matches!(self.trust, Trust::Unproven) => return Err(e),
                Err(e) => return pass.fail(upto, &self.trust, e),
            }
            if pass.end() > self.limits.file_bytes {
                let stage = self.layer.stage.name();
                let what = format!("longer than {} bytes", self.limits.file_bytes);
                return Err(Error::Limit { stage, offset: self.limits.file_bytes, what });
            }
            if pass.end() > RATIO_FROM_BYTES && pass.end() / pass.taken.max(1) > self.limits.ratio {
                let (stage, max) = (self.layer.stage.name(), self.limits.ratio);
                let what = format!("more than {max} times as long as what it was made of");
                return Err(Error::Limit { stage, offset: pass.end(), what });
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
        self.prove()?;
        if self.len.is_some_and(|len| offset >= len) {
            return Ok(0);
        }
        let mut pass = match self.pass.take() {
            Some(pass) if self.is_near(&pass, offset, upto) => pass,
            _ => self.pass_to(offset)?,
        };
        // A pass that failed is dropped: the next read starts again, and fails in the same place.
        self.advance(&mut pass, offset, upto)?;
        let shown = pass.shown_end(&self.trust).saturating_sub(pass.start);
        let shown = usize::try_from(shown).unwrap_or(usize::MAX).min(pass.window.len());
        let from = usize::try_from(offset - pass.start).unwrap_or(usize::MAX).min(shown);
        let len = buf.len().min(shown - from);
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
