//! A file of frames (mostly compressed), which is committed in place where the file below allows
//! that, and otherwise rewritten.
//!
//! `pieces` are the frames of the plain file, in order, without gaps. Each lies in the current
//! stored file, in the *spill* (a temporary file for frames that no longer fit in memory), or in
//! `dirty`, which takes precedence. Three invariants:
//!
//! - The current file is as it was last committed until the next commit, which is atomic: it
//!   replaces the file by renaming, or is one commit of the file below ([`in_place`]).
//! - `dirty` holds [`Limits::dirty_bytes`](super::Limits::dirty_bytes) at most, and always the
//!   frame that was changed last. Beyond that, the least recently changed frames are encoded into
//!   the spill, and no more of them than necessary. So a frame is decoded once and encoded once for
//!   as long as it stays in memory, however many writes it takes.
//! - `cached` is never a frame that has changed since it was decoded.
//!
//! Long frames that were found by decoding the file ([`super::proof`]) are read from restart points
//! within them; the first commit ends that, because it invalidates the offsets of the restart
//! points.
//!
//! A rewrite puts all frames one behind the other into a fresh file: encoded frames are copied,
//! only changed ones are encoded. A file written from beginning to end has all of its frames in the
//! spill by then, in order, and the spill itself replaces the current file.

mod dirty;
mod found;
mod in_place;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::dirty::DirtyFrames;
pub(super) use self::found::Refused;
use self::found::{LONG_BYTES, pieces_of};
use self::in_place::{Anew, room};
use super::at_random::AtRandom;
use super::home::Fresh;
use super::{Home, Store, read_exact, within};
use crate::{Direction, Error, Frame, FrameCodec, Result, Shape, Transform};

/// Bytes of encoded frames that are copied at a time.
const COPY_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Current,
    Spill,
}

/// A frame, and its location.
#[derive(Debug, Clone, Copy)]
struct Piece {
    plain_start: u64,
    plain_bytes: u64,
    place: Place,
    stored_start: u64,
    stored_bytes: u64,
}

/// A file of frames.
pub struct FramedFile {
    stage: Arc<dyn Transform>,
    home: Home,
    pieces: Vec<Piece>,
    /// Changed frames, decoded, by their index in `pieces`.
    dirty: DirtyFrames,
    spill: Option<Spill>,
    changed: bool,
    /// The current file holds a part of a failed commit in place.
    torn: bool,
    /// The frame decoded last, or the one changed last before the last commit.
    cached: Option<(usize, Vec<u8>)>,
    /// The reader of the long frames of the current file.
    at_random: Option<AtRandom>,
}

struct Spill {
    fresh: Fresh,
    end: u64,
}

impl std::fmt::Debug for FramedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FramedFile")
            .field("stage", &self.stage)
            .field("frames", &self.pieces.len())
            .finish_non_exhaustive()
    }
}

fn codec_of(stage: &Arc<dyn Transform>) -> Result<&dyn FrameCodec> {
    match stage.shape() {
        Shape::Framed(codec) => Ok(codec),
        _ => Err(crate::model::no_inverse(stage.name())),
    }
}

/// Returns the frames as an index lists them: a gap between two is a frame that decodes to nothing.
fn listed(pieces: &[Piece]) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(pieces.len());
    let mut end = 0;
    for piece in pieces {
        if piece.stored_start > end {
            frames.push(Frame { stored_bytes: piece.stored_start - end, plain_bytes: 0 });
        }
        frames.push(Frame { stored_bytes: piece.stored_bytes, plain_bytes: piece.plain_bytes });
        end = piece.stored_start + piece.stored_bytes;
    }
    frames
}

impl FramedFile {
    /// Opens the file in `home`; an empty one is a file without frames.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not of the stage's format, [`Error::Limit`] if it would
    /// expand too far, [`Error::LongFrame`] if it has to be decoded as a stream.
    pub fn open(stage: Arc<dyn Transform>, home: Home) -> Result<Self> {
        Self::try_open(stage, home).map_err(|refused| refused.error)
    }

    /// As [`open`](Self::open); an error returns the home.
    pub(super) fn try_open(
        stage: Arc<dyn Transform>,
        mut home: Home,
    ) -> Result<Self, Box<Refused>> {
        let mut proof = None;
        match pieces_of(&stage, &mut home, &mut proof) {
            Ok((pieces, checked)) => Ok(Self {
                at_random: checked.map(|checked| {
                    let limits = *home.limits();
                    AtRandom::new(stage.clone(), Direction::Inverse, limits, checked)
                }),
                stage,
                home,
                pieces,
                dirty: DirtyFrames::default(),
                spill: None,
                changed: false,
                torn: false,
                cached: None,
            }),
            Err(error) => Err(Box::new(Refused { home, error, proof })),
        }
    }

    fn size(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.plain_start + last.plain_bytes)
    }

    /// Returns the frame that holds byte `offset`, which must be below the size.
    fn find(&self, offset: u64) -> usize {
        self.pieces.partition_point(|piece| piece.plain_start <= offset).saturating_sub(1)
    }

    /// Reads encoded bytes of a piece.
    fn read_stored(&mut self, place: Place, offset: u64, buf: &mut [u8]) -> Result<()> {
        let stage = self.stage.name();
        let store: &mut dyn Store = match (place, &mut self.spill) {
            (Place::Spill, Some(spill)) => &mut *spill.fresh.store,
            _ => self.home.current(),
        };
        read_exact(store, stage, offset, buf)
    }

    /// Returns true if a frame that is not in memory is read from restart points within it.
    fn is_read_at_random(&self, piece: &Piece) -> bool {
        piece.plain_bytes > LONG_BYTES && piece.place == Place::Current && self.at_random.is_some()
    }

    /// Reads from a frame, starting at a restart point within it.
    fn read_within(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let stage = self.stage.name();
        let Some(at_random) = &mut self.at_random else {
            return Err(crate::model::no_inverse(stage));
        };
        let got = at_random.read_at(self.home.current(), offset, out)?;
        if got == out.len() {
            return Ok(());
        }
        let what = "the stored file has become shorter".to_owned();
        Err(Error::Corrupt { stage, offset: offset + got as u64, what })
    }

    fn decode(&mut self, at: usize, out: &mut [u8]) -> Result<()> {
        let piece = self.pieces[at];
        // Bounded by the limits on frames and on their expansion, or written by this process.
        let mut stored = vec![0; usize::try_from(piece.stored_bytes).unwrap_or(usize::MAX)];
        self.read_stored(piece.place, piece.stored_start, &mut stored)
            .map_err(|e| e.moved(piece.plain_start))?;
        codec_of(&self.stage)?.decode(&stored, out).map_err(|what| {
            out.fill(0);
            Error::Corrupt {
                stage: self.stage.name(),
                offset: piece.plain_start,
                what: format!("frame {at}: {what}"),
            }
        })
    }

    /// Returns a frame for modification, truncated or extended to `len` bytes.
    fn frame_mut(&mut self, at: usize, len: usize) -> Result<&mut [u8]> {
        if !self.dirty.contains(at) {
            let plain = match self.cached.take_if(|(cached, _)| *cached == at) {
                Some((_, plain)) => plain,
                None => {
                    let mut plain = vec![0; self.pieces[at].plain_bytes as usize];
                    self.decode(at, &mut plain)?;
                    plain
                }
            };
            self.dirty.insert(at, plain);
        }
        self.changed = true;
        Ok(self.dirty.change(at, len))
    }

    /// Appends `len_bytes` bytes, which `fill` writes into the buffers that it is given.
    fn append(&mut self, len_bytes: u64, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let end = self.size().checked_add(len_bytes);
        if end.is_none_or(|end| end > self.home.limits().file_bytes) {
            return Err(weft_vfs::Error::TooLarge.into());
        }
        let frame_bytes = codec_of(&self.stage)?.frame_bytes() as u64;
        let mut left = len_bytes;
        while left > 0 {
            let full = self.pieces.last().is_none_or(|last| last.plain_bytes >= frame_bytes);
            if full {
                self.pieces.push(Piece {
                    plain_start: self.size(),
                    plain_bytes: 0,
                    place: Place::Current,
                    stored_start: 0,
                    stored_bytes: 0,
                });
                self.dirty.insert(self.pieces.len() - 1, Vec::new());
            }
            let at = self.pieces.len() - 1;
            let have = self.pieces[at].plain_bytes;
            let step = (frame_bytes - have).min(left);
            // The sum is below the length of a frame.
            let frame = self.frame_mut(at, (have + step) as usize)?;
            fill(&mut frame[have as usize..]);
            self.pieces[at].plain_bytes += step;
            left -= step;
            self.relieve()?;
        }
        self.changed = true;
        Ok(())
    }

    /// Bounds memory: encodes changed frames into the spill, except the one changed last, which
    /// probably receives the next write.
    fn relieve(&mut self) -> Result<()> {
        if self.dirty.bytes() <= self.home.limits().dirty_bytes || self.dirty.len() < 2 {
            return Ok(());
        }
        let mut spill = match self.spill.take() {
            Some(spill) => spill,
            None => Spill { fresh: self.home.fresh()?, end: 0 },
        };
        let result = self.spill_oldest(&mut spill);
        self.spill = Some(spill);
        result
    }

    fn spill_oldest(&mut self, spill: &mut Spill) -> Result<()> {
        let mut encoded = Vec::new();
        while self.dirty.bytes() > self.home.limits().dirty_bytes && self.dirty.len() > 1 {
            let Some(at) = self.dirty.oldest() else { break };
            let Some(plain) = self.dirty.get(at) else { break };
            encoded.clear();
            codec_of(&self.stage)?.encode(plain, &mut encoded)?;
            let len = encoded.len() as u64;
            let piece = &mut self.pieces[at];
            // An earlier spilled form is overwritten: the spill is not read after a crash.
            let again = piece.place == Place::Spill && len <= piece.stored_bytes;
            let start = if again { piece.stored_start } else { spill.end };
            spill.fresh.store.write_at(start, &encoded)?;
            piece.place = Place::Spill;
            (piece.stored_start, piece.stored_bytes) = (start, len);
            spill.end = spill.end.max(start + len);
            self.dirty.remove(at);
        }
        Ok(())
    }

    /// Returns the number of leading pieces that lie in the spill in order from its beginning, and
    /// their end there, if all other pieces are in memory: then the spill can become the file.
    fn spilled_prefix(&self) -> Option<(usize, u64)> {
        let spill = self.spill.as_ref()?;
        let mut end = 0;
        let mut count = 0;
        for (at, piece) in self.pieces.iter().enumerate() {
            let in_order = piece.place == Place::Spill && piece.stored_start == end;
            if self.dirty.contains(at) || !in_order {
                break;
            }
            end += piece.stored_bytes;
            count += 1;
        }
        let rest_is_dirty = (count..self.pieces.len()).all(|at| self.dirty.contains(at));
        (end == spill.end && rest_is_dirty).then_some((count, end))
    }

    /// Writes the pieces from index `from` on to `fresh`, from byte `end` on, and the trailer.
    /// Returns the pieces with their new locations.
    fn assemble(
        &mut self,
        fresh: &mut Fresh,
        from: usize,
        mut end: u64,
        mut anew: Anew,
    ) -> Result<Vec<Piece>> {
        let mut pieces = self.pieces.clone();
        let mut at = from;
        let mut encoded = Vec::new();
        while at < self.pieces.len() {
            encoded.clear();
            if let Some(plain) = self.dirty.get(at) {
                match anew.encoded.remove(&at) {
                    Some(done) => encoded = done,
                    None => codec_of(&self.stage)?.encode(plain, &mut encoded)?,
                }
                (pieces[at].stored_start, pieces[at].stored_bytes) = (end, encoded.len() as u64);
                at += 1;
            } else {
                // Adjacent frames are copied together.
                let first = self.pieces[at];
                let mut len = 0;
                while let Some(piece) = self.pieces.get(at) {
                    let goes_on = piece.place == first.place
                        && piece.stored_start == first.stored_start + len
                        && !self.dirty.contains(at)
                        && (len == 0 || !anew.roomy && len + piece.stored_bytes <= COPY_BYTES);
                    if !goes_on {
                        break;
                    }
                    pieces[at].stored_start = end + len;
                    len += piece.stored_bytes;
                    at += 1;
                }
                encoded.resize(usize::try_from(len).unwrap_or(0), 0);
                self.read_stored(first.place, first.stored_start, &mut encoded)
                    .map_err(|e| e.moved(first.plain_start))?;
            }
            let len = encoded.len() as u64;
            // The last frame needs no room to grow.
            if anew.roomy && at < self.pieces.len() {
                let room = room(pieces[at - 1].plain_bytes, len);
                // The skipped range reads as zeroes.
                if let Some(head) = codec_of(&self.stage)?.pad(room) {
                    encoded.extend(head);
                    fresh.store.write_at(end, &encoded)?;
                    end += len + room;
                    continue;
                }
            }
            fresh.store.write_at(end, &encoded)?;
            end += len;
        }
        pieces.iter_mut().for_each(|piece| piece.place = Place::Current);
        encoded.clear();
        codec_of(&self.stage)?.finish(&listed(&pieces), &mut encoded);
        fresh.store.write_at(end, &encoded)?;
        // The spill may be longer, from frames that were rewritten since.
        fresh.store.set_len(end + encoded.len() as u64)?;
        Ok(pieces)
    }

    fn write_anew(&mut self, anew: Anew) -> Result<()> {
        let reuse = self.spilled_prefix();
        let (mut fresh, from, end) = match (reuse, self.spill.take()) {
            (Some((from, end)), Some(spill)) => (spill.fresh, from, end),
            (_, spill) => {
                self.spill = spill;
                (self.home.fresh()?, 0, 0)
            }
        };
        let outcome = match self.assemble(&mut fresh, from, end, anew) {
            Ok(pieces) => self.home.replace(fresh).map(|()| pieces),
            Err(e) => Err((fresh, e)),
        };
        match outcome {
            Ok(pieces) => {
                self.pieces = pieces;
                self.torn = false;
                if let Some(old) = self.spill.take() {
                    self.home.discard(old.fresh);
                }
                Ok(())
            }
            Err((fresh, e)) => {
                // Frames that are only in the spill stay there.
                if reuse.is_some() {
                    self.spill = Some(Spill { fresh, end });
                } else {
                    self.home.discard(fresh);
                }
                Err(e)
            }
        }
    }
}

impl Drop for FramedFile {
    fn drop(&mut self) {
        if let Some(spill) = self.spill.take() {
            self.home.discard(spill.fresh);
        }
    }
}

impl Store for FramedFile {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.size()))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = within(offset, buf.len(), self.size());
        let mut done = 0;
        while done < len {
            let at_byte = offset + done as u64;
            let at = self.find(at_byte);
            let piece = self.pieces[at];
            // The difference is below the length of a frame.
            let skip = (at_byte - piece.plain_start) as usize;
            let frame_len = piece.plain_bytes as usize;
            let step = (frame_len - skip).min(len - done);
            let out = &mut buf[done..done + step];
            if let Some(plain) = self.dirty.get(at) {
                out.copy_from_slice(&plain[skip..skip + step]);
            } else if let Some((_, plain)) = self.cached.as_ref().filter(|(nr, _)| *nr == at) {
                out.copy_from_slice(&plain[skip..skip + step]);
            } else if self.is_read_at_random(&piece) {
                self.read_within(at_byte, out)?;
            } else if step == frame_len {
                self.decode(at, out)?;
            } else {
                let mut plain = vec![0; frame_len];
                self.decode(at, &mut plain)?;
                out.copy_from_slice(&plain[skip..skip + step]);
                self.cached = Some((at, plain));
            }
            done += step;
        }
        Ok(len)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let size = self.size();
        if offset > size {
            self.append(offset - size, &mut |_| {})?;
        }
        let mut done = 0;
        let over = within(offset, data.len(), self.size());
        while done < over {
            let at_byte = offset + done as u64;
            let at = self.find(at_byte);
            let piece = self.pieces[at];
            let skip = (at_byte - piece.plain_start) as usize;
            let frame_len = piece.plain_bytes as usize;
            let step = (frame_len - skip).min(over - done);
            if step == frame_len && !self.dirty.contains(at) {
                // The old frame is overwritten completely, so it need not be decoded.
                self.cached.take_if(|(cached, _)| *cached == at);
                self.dirty.insert(at, data[done..done + step].to_vec());
                self.changed = true;
            } else {
                let frame = self.frame_mut(at, frame_len)?;
                frame[skip..skip + step].copy_from_slice(&data[done..done + step]);
            }
            done += step;
            self.relieve()?;
        }
        let mut rest = &data[done..];
        self.append(rest.len() as u64, &mut |room| {
            let (now, later) = rest.split_at(room.len().min(rest.len()));
            room.copy_from_slice(now);
            rest = later;
        })
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        let size = self.size();
        if len_bytes == size {
            // A shell truncates a file that it has just made, and closes it twice.
            return Ok(());
        }
        self.cached = None;
        if len_bytes > size {
            return self.append(len_bytes - size, &mut |_| {});
        }
        let keep = self.pieces.partition_point(|piece| piece.plain_start < len_bytes);
        if let Some(last) = keep.checked_sub(1) {
            let piece = self.pieces[last];
            let len = len_bytes - piece.plain_start;
            if len < piece.plain_bytes {
                self.frame_mut(last, len as usize)?;
                self.pieces[last].plain_bytes = len;
            }
        }
        self.pieces.truncate(keep);
        self.dirty.truncate(keep);
        self.changed = true;
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.home.current().begin()
    }

    fn commit(&mut self) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        self.at_random = None;
        if let Some(anew) = self.commit_in_place()? {
            self.write_anew(anew)?;
        }
        // A client that commits often tends to write to the same frame again.
        self.cached = self.dirty.clear().or(self.cached.take());
        self.changed = false;
        Ok(())
    }

    fn is_dirty(&self) -> bool {
        self.changed
    }

    fn release_buffers(&mut self) {
        self.cached = None;
        self.at_random.iter_mut().for_each(AtRandom::release_buffers);
        self.home.current().release_buffers();
    }
}
