//! The index of an output that was decoded once to its end: a hash of each piece, and the restart
//! points of decoding.
//!
//! A piece ends at a restart point, or after [`PIECE_BYTES`]; a piece that is read at random is
//! decoded from the restart point before it, and returned once its hash is verified. The restart
//! points of a file, with the decoder states they hold, take [`PLACES_MAX_BYTES`] at most: when
//! they would take more, every other one is dropped, and later ones are twice as far apart. (The
//! hash of each piece stays: 40 bytes for a MiB.)

use crate::{Point, Stream};

/// Maximum length of a hashed piece of the output, in bytes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Initial distance of restart points, in bytes of output or of input, whichever is more. Where no
/// block ends within twice that distance, a restart point lies within a block.
pub(super) const PLACE_BYTES: u64 = 512 << 10;
/// Maximum memory of all restart points of a file, in bytes: as much as a frame that is held in
/// memory.
pub(super) const PLACES_MAX_BYTES: usize = 64 << 20;
/// The initial distance and the maximum memory of restart points.
pub(super) const PLACES: (u64, usize) = (PLACE_BYTES, PLACES_MAX_BYTES);

/// The index of a verified output; see the module page.
#[derive(Default)]
pub(super) struct Checked {
    /// The end of each piece in the output, and its hash.
    pieces: Vec<(u64, blake3::Hash)>,
    pub(super) places: Vec<Place>,
    /// The memory that the restart points take, in bytes.
    pub(super) held_bytes: usize,
}

/// A restart point, at the beginning of a piece.
pub(super) struct Place {
    /// The number of the piece.
    nr: usize,
    /// Its offset in the output.
    pub(super) output: u64,
    /// Its offset in the input.
    pub(super) taken: u64,
    pub(super) point: Box<dyn Point>,
}

impl Checked {
    /// The length of the output, in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |(end, _)| *end)
    }

    /// Returns the last restart point at or before byte `offset` of the output.
    pub(super) fn place(&self, offset: u64) -> Option<&Place> {
        let upto = self.places.partition_point(|place| place.output <= offset);
        self.places[..upto].last()
    }

    /// Returns the number of input bytes from `taken` to the next restart point; `None` if there is
    /// no further one.
    pub(super) fn to_next_place(&self, taken: u64) -> Option<u64> {
        let behind = self.places.partition_point(|place| place.taken <= taken);
        self.places.get(behind).map(|place| place.taken - taken)
    }
}

/// Splits output into pieces, from the beginning of one on.
#[derive(Default)]
pub(super) struct Pieces {
    hasher: blake3::Hasher,
    nr: usize,
    /// The beginning of the current piece.
    start: u64,
    /// The offset of the next output.
    at: u64,
}

impl Pieces {
    /// Starts at a restart point.
    pub(super) fn from(place: &Place) -> Self {
        Self { nr: place.nr, start: place.output, at: place.output, ..Self::default() }
    }

    /// Returns the end of the last complete piece.
    pub(super) fn whole_end(&self) -> u64 {
        self.start
    }

    /// Takes the part of `out` that belongs to the current piece, which ends at `end`; returns the
    /// rest.
    fn take<'a>(&mut self, out: &'a [u8], end: u64) -> &'a [u8] {
        let room = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        let (now, later) = out.split_at(out.len().min(room));
        self.hasher.update(now);
        self.at += now.len() as u64;
        later
    }

    /// Ends the current piece, and returns its hash.
    fn cut(&mut self) -> blake3::Hash {
        let hash = self.hasher.finalize();
        self.hasher.reset();
        self.nr += 1;
        self.start = self.at;
        hash
    }

    /// Takes more output, the last if the output has `ended`. Returns false if it differs from the
    /// verified output, as far as its complete pieces show.
    pub(super) fn are_those(&mut self, checked: &Checked, mut out: &[u8], ended: bool) -> bool {
        while let Some(&(end, hash)) = checked.pieces.get(self.nr) {
            out = self.take(out, end);
            if self.at < end {
                return !ended;
            }
            if self.cut() != hash {
                return false;
            }
        }
        out.is_empty()
    }
}

/// Builds the index of an output.
pub(super) struct Checking {
    pieces: Pieces,
    checked: Checked,
    place_bytes: u64,
    max_bytes: usize,
}

impl Checking {
    /// Starts the index of the output of `stream`, with restart points at an initial distance of
    /// `place_bytes` that take `max_bytes` of memory at most.
    pub(super) fn new(stream: &mut dyn Stream, place_bytes: u64, max_bytes: usize) -> Self {
        stream.offer_points(place_bytes);
        let (pieces, checked) = (Pieces::default(), Checked::default());
        Self { pieces, checked, place_bytes, max_bytes }
    }

    pub(super) fn take(&mut self, mut out: &[u8]) {
        while !out.is_empty() {
            let end = self.pieces.start + PIECE_BYTES;
            out = self.pieces.take(out, end);
            if self.pieces.at == end {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.pieces.at > self.pieces.start {
            let hash = self.pieces.cut();
            self.checked.pieces.push((self.pieces.at, hash));
        }
    }

    /// Records a restart point, if `stream` offers one. The caller has taken all output of
    /// `stream`, which is at byte `taken` of its input.
    pub(super) fn look(&mut self, stream: &mut dyn Stream, taken: u64) {
        let Some(point) = stream.point() else { return };
        self.cut();
        let checked = &mut self.checked;
        checked.held_bytes += size_of::<Place>() + point.held_bytes();
        checked.places.push(Place { nr: self.pieces.nr, output: self.pieces.at, taken, point });
        if checked.held_bytes > self.max_bytes {
            let mut keep = false;
            checked.places.retain(|_| {
                keep = !keep;
                !keep
            });
            let held = checked.places.iter().map(|p| size_of::<Place>() + p.point.held_bytes());
            checked.held_bytes = held.sum();
            self.place_bytes *= 2;
            stream.offer_points(self.place_bytes);
        }
    }

    /// Ends the output, and returns its index.
    pub(super) fn finish(mut self) -> Checked {
        self.cut();
        self.checked
    }
}
