//! A file of frames (compressed, mostly), which is written anew when it is committed.
//!
//! `pieces` are the frames of the plain file, in order, without gaps. Each lies in the current
//! stored file, in the *spill* (a fresh file that takes what no longer fits in memory), or in
//! `dirty`, which goes before the others. A commit puts all of them one behind the other into a
//! fresh file: encoded frames are copied as they are, only changed ones are encoded. A file written
//! from beginning to end has all of its frames in the spill by then, in order, and the spill itself
//! takes the place of the current file.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::home::Fresh;
use super::{Home, Store, read_exact, within};
use crate::{Error, Frame, FrameCodec, Result, Shape, Transform};

/// Encoded frames that are copied at a time, in bytes.
const COPY_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Current,
    Spill,
}

/// A frame, and where it lies.
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
    /// Changed frames by their place in `pieces`, decoded.
    dirty: BTreeMap<usize, Vec<u8>>,
    dirty_bytes: u64,
    spill: Option<Spill>,
    changed: bool,
    /// The frame decoded last.
    cached: Option<(usize, Vec<u8>)>,
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

/// The frames of the file in `home`, within its limits.
fn pieces_of(stage: &Arc<dyn Transform>, home: &mut Home) -> Result<Vec<Piece>> {
    let codec = codec_of(stage)?;
    let frames = match home.current().len_bytes()? {
        Some(0) => Vec::new(),
        _ => codec.index(home.current())?,
    };
    let limits = *home.limits();
    let mut pieces = Vec::with_capacity(frames.len());
    let (mut plain_start, mut stored_start) = (0_u64, 0_u64);
    for Frame { stored_bytes, plain_bytes } in frames {
        let refuse = |what: String| Error::Limit { stage: stage.name(), offset: plain_start, what };
        if plain_bytes / stored_bytes.max(1) > limits.ratio {
            let max = limits.ratio;
            return Err(refuse(format!(
                "{plain_bytes} bytes in {stored_bytes}: more than {max} times as long"
            )));
        }
        if plain_bytes > limits.frame_bytes
            || plain_bytes > 0 && stored_bytes / 2 > limits.frame_bytes
        {
            let (stage, max_bytes) = (stage.name(), limits.frame_bytes);
            return Err(Error::LongFrame { stage, offset: plain_start, max_bytes });
        }
        if plain_bytes > 0 {
            let place = Place::Current;
            pieces.push(Piece { plain_start, plain_bytes, place, stored_start, stored_bytes });
        }
        // Each below the limit or the length of a file.
        plain_start = plain_start.saturating_add(plain_bytes);
        stored_start = stored_start.saturating_add(stored_bytes);
        if plain_start > limits.file_bytes {
            let max = limits.file_bytes;
            return Err(Error::Limit {
                stage: stage.name(),
                offset: max,
                what: format!("longer than {max} bytes"),
            });
        }
    }
    Ok(pieces)
}

impl FramedFile {
    /// Opens the file in `home`; an empty one is a file without frames.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not of the stage's format, [`Error::Limit`] if it would
    /// expand too far, [`Error::LongFrame`] if it has to be decoded as a stream.
    pub fn open(stage: Arc<dyn Transform>, home: Home) -> Result<Self> {
        Self::try_open(stage, home).map_err(|refused| refused.1)
    }

    /// As [`open`](Self::open); gives the home back with an error.
    pub(super) fn try_open(
        stage: Arc<dyn Transform>,
        mut home: Home,
    ) -> Result<Self, Box<(Home, Error)>> {
        match pieces_of(&stage, &mut home) {
            Ok(pieces) => Ok(Self {
                stage,
                home,
                pieces,
                dirty: BTreeMap::new(),
                dirty_bytes: 0,
                spill: None,
                changed: false,
                cached: None,
            }),
            Err(e) => Err(Box::new((home, e))),
        }
    }

    fn size(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.plain_start + last.plain_bytes)
    }

    /// The frame that holds byte `offset`, which is below the size.
    fn find(&self, offset: u64) -> usize {
        self.pieces.partition_point(|piece| piece.plain_start <= offset).saturating_sub(1)
    }

    /// Encoded bytes of a piece's place.
    fn read_stored(&mut self, place: Place, offset: u64, buf: &mut [u8]) -> Result<()> {
        let stage = self.stage.name();
        let store: &mut dyn Store = match (place, &mut self.spill) {
            (Place::Spill, Some(spill)) => &mut *spill.fresh.store,
            _ => self.home.current(),
        };
        read_exact(store, stage, offset, buf)
    }

    fn decode(&mut self, at: usize, out: &mut [u8]) -> Result<()> {
        let piece = self.pieces[at];
        // Bounded by the limits on frames and on what they may expand to, or written by us.
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

    /// The frame as it is to be changed.
    fn frame_mut(&mut self, at: usize) -> Result<&mut Vec<u8>> {
        if !self.dirty.contains_key(&at) {
            let plain = match self.cached.take() {
                Some((cached, plain)) if cached == at => plain,
                _ => {
                    let mut plain = vec![0; self.pieces[at].plain_bytes as usize];
                    self.decode(at, &mut plain)?;
                    plain
                }
            };
            self.dirty_bytes += plain.len() as u64;
            self.dirty.insert(at, plain);
        }
        self.changed = true;
        Ok(self.dirty.entry(at).or_default())
    }

    /// Adds to the end: what `fill` puts into the room that it is given.
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
            let frame = self.frame_mut(at)?;
            // Below the length of a frame.
            frame.resize((have + step) as usize, 0);
            fill(&mut frame[have as usize..]);
            self.pieces[at].plain_bytes += step;
            self.dirty_bytes += step;
            left -= step;
            self.relieve()?;
        }
        self.changed = true;
        Ok(())
    }

    /// Keeps memory bounded: encodes changed frames into the spill, but the last one, which is
    /// probably written on.
    fn relieve(&mut self) -> Result<()> {
        if self.dirty_bytes <= self.home.limits().dirty_bytes {
            return Ok(());
        }
        let last = self.pieces.len().saturating_sub(1);
        let mut spill = match self.spill.take() {
            Some(spill) => spill,
            None => Spill { fresh: self.home.fresh()?, end: 0 },
        };
        let result = self.spill_dirty(&mut spill, last);
        self.spill = Some(spill);
        result
    }

    fn spill_dirty(&mut self, spill: &mut Spill, but: usize) -> Result<()> {
        let indexes: Vec<usize> = self.dirty.keys().copied().filter(|at| *at != but).collect();
        let mut encoded = Vec::new();
        for at in indexes {
            let Some(plain) = self.dirty.get(&at) else { continue };
            encoded.clear();
            codec_of(&self.stage)?.encode(plain, &mut encoded)?;
            spill.fresh.store.write_at(spill.end, &encoded)?;
            self.dirty_bytes -= plain.len() as u64;
            self.dirty.remove(&at);
            let piece = &mut self.pieces[at];
            piece.place = Place::Spill;
            piece.stored_start = spill.end;
            piece.stored_bytes = encoded.len() as u64;
            spill.end += piece.stored_bytes;
        }
        Ok(())
    }

    /// How many leading pieces lie in the spill in order and from its beginning, and where they
    /// end there: if the rest is in memory, the spill can become the file.
    fn spilled_prefix(&self) -> Option<(usize, u64)> {
        let spill = self.spill.as_ref()?;
        let mut end = 0;
        let mut count = 0;
        for (at, piece) in self.pieces.iter().enumerate() {
            let in_order = piece.place == Place::Spill && piece.stored_start == end;
            if self.dirty.contains_key(&at) || !in_order {
                break;
            }
            end += piece.stored_bytes;
            count += 1;
        }
        let rest_is_dirty = (count..self.pieces.len()).all(|at| self.dirty.contains_key(&at));
        (end == spill.end && rest_is_dirty).then_some((count, end))
    }

    /// Writes the pieces from `from` on to `fresh`, from byte `end` on, and what stands behind them.
    /// Returns where each piece now lies.
    fn assemble(
        &mut self,
        fresh: &mut Fresh,
        from: usize,
        mut end: u64,
    ) -> Result<Vec<(u64, u64)>> {
        let kept = self.pieces[..from].iter();
        let mut places: Vec<(u64, u64)> = kept.map(|p| (p.stored_start, p.stored_bytes)).collect();
        let mut at = from;
        let mut encoded = Vec::new();
        while at < self.pieces.len() {
            encoded.clear();
            if let Some(plain) = self.dirty.get(&at) {
                codec_of(&self.stage)?.encode(plain, &mut encoded)?;
                places.push((end, encoded.len() as u64));
                at += 1;
            } else {
                // Frames that lie together are copied together.
                let first = self.pieces[at];
                let mut len = 0;
                while let Some(piece) = self.pieces.get(at) {
                    let goes_on = piece.place == first.place
                        && piece.stored_start == first.stored_start + len
                        && !self.dirty.contains_key(&at)
                        && (len == 0 || len + piece.stored_bytes <= COPY_BYTES);
                    if !goes_on {
                        break;
                    }
                    places.push((end + len, piece.stored_bytes));
                    len += piece.stored_bytes;
                    at += 1;
                }
                encoded.resize(usize::try_from(len).unwrap_or(0), 0);
                self.read_stored(first.place, first.stored_start, &mut encoded)
                    .map_err(|e| e.moved(first.plain_start))?;
            }
            fresh.store.write_at(end, &encoded)?;
            end += encoded.len() as u64;
        }
        let pieces = self.pieces.iter().zip(&places);
        let frames: Vec<Frame> = pieces
            .map(|(piece, (_, stored_bytes))| Frame {
                stored_bytes: *stored_bytes,
                plain_bytes: piece.plain_bytes,
            })
            .collect();
        encoded.clear();
        codec_of(&self.stage)?.finish(&frames, &mut encoded);
        fresh.store.write_at(end, &encoded)?;
        // The spill may be longer, from frames that were written again since.
        fresh.store.set_len(end + encoded.len() as u64)?;
        Ok(places)
    }

    fn write_anew(&mut self) -> Result<()> {
        let reuse = self.spilled_prefix();
        let (mut fresh, from, end) = match (reuse, self.spill.take()) {
            (Some((from, end)), Some(spill)) => (spill.fresh, from, end),
            (_, spill) => {
                self.spill = spill;
                (self.home.fresh()?, 0, 0)
            }
        };
        let outcome = match self.assemble(&mut fresh, from, end) {
            Ok(places) => self.home.replace(fresh).map(|()| places),
            Err(e) => Err((fresh, e)),
        };
        match outcome {
            Ok(places) => {
                for (piece, (stored_start, stored_bytes)) in self.pieces.iter_mut().zip(places) {
                    piece.place = Place::Current;
                    (piece.stored_start, piece.stored_bytes) = (stored_start, stored_bytes);
                }
                if let Some(old) = self.spill.take() {
                    self.home.discard(old.fresh);
                }
                Ok(())
            }
            Err((fresh, e)) => {
                // What was only in the spill stays there.
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
            // Within a frame.
            let skip = (at_byte - piece.plain_start) as usize;
            let frame_len = piece.plain_bytes as usize;
            let step = (frame_len - skip).min(len - done);
            let out = &mut buf[done..done + step];
            if let Some(plain) = self.dirty.get(&at) {
                out.copy_from_slice(&plain[skip..skip + step]);
            } else if let Some((_, plain)) = self.cached.as_ref().filter(|(nr, _)| *nr == at) {
                out.copy_from_slice(&plain[skip..skip + step]);
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
        self.cached = None;
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
            if step == frame_len && !self.dirty.contains_key(&at) {
                // Nothing of the old frame is left, so it need not be decoded.
                self.dirty_bytes += frame_len as u64;
                self.dirty.insert(at, data[done..done + step].to_vec());
                self.changed = true;
            } else {
                let frame = self.frame_mut(at)?;
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
        self.cached = None;
        if len_bytes >= size {
            return self.append(len_bytes - size, &mut |_| {});
        }
        let keep = self.pieces.partition_point(|piece| piece.plain_start < len_bytes);
        if let Some(last) = keep.checked_sub(1) {
            let piece = self.pieces[last];
            let len = len_bytes - piece.plain_start;
            if len < piece.plain_bytes {
                self.frame_mut(last)?.truncate(len as usize);
                self.dirty_bytes -= piece.plain_bytes - len;
                self.pieces[last].plain_bytes = len;
            }
        }
        self.pieces.truncate(keep);
        let gone = self.dirty.split_off(&keep);
        self.dirty_bytes -= gone.values().map(|plain| plain.len() as u64).sum::<u64>();
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
        self.write_anew()?;
        self.dirty.clear();
        self.dirty_bytes = 0;
        self.changed = false;
        Ok(())
    }

    fn is_dirty(&self) -> bool {
        self.changed
    }
}
