//! What is known of an output that was decoded once to its end: a hash of each piece, and places
//! where decoding can begin again.
//!
//! A piece ends where a place is, or after [`PIECE_BYTES`]; so one that is read at random is decoded
//! from the place before it, and shown once it has its hash. The places of a file, with what has to
//! be kept for them, take [`PLACES_MAX_BYTES`] at most: when they would take more, every other one is
//! let go, and further ones are twice as far apart. (A hash for each piece stays: 40 bytes for a MiB.)

use crate::{Point, Stream};

/// The longest piece of the output that has a hash of its own, in bytes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// How far places are apart at first, in bytes of output or of input, whatever is more. Where no block
/// ends for as long again, there is one within a block.
pub(super) const PLACE_BYTES: u64 = 512 << 10;
/// What all places of a file may take, in bytes: as much as a frame that is held in memory.
pub(super) const PLACES_MAX_BYTES: usize = 64 << 20;
/// Both.
pub(super) const PLACES: (u64, usize) = (PLACE_BYTES, PLACES_MAX_BYTES);

/// See the module.
#[derive(Default)]
pub(super) struct Checked {
    /// Where each piece ends, and its hash.
    pieces: Vec<(u64, blake3::Hash)>,
    pub(super) places: Vec<Place>,
    /// What the places take.
    pub(super) held_bytes: usize,
}

/// The beginning of a piece, where decoding can begin again.
pub(super) struct Place {
    /// The number of the piece.
    nr: usize,
    /// Where it begins in the output.
    pub(super) output: u64,
    /// How much of the input comes before.
    pub(super) taken: u64,
    pub(super) point: Box<dyn Point>,
}

impl Checked {
    /// How long the output is.
    pub(super) fn len_bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |(end, _)| *end)
    }

    /// The last place that comes before the piece of byte `offset`, or is its beginning.
    pub(super) fn place(&self, offset: u64) -> Option<&Place> {
        let upto = self.places.partition_point(|place| place.output <= offset);
        self.places[..upto].last()
    }

    /// How much of the input is needed to come from `taken` to the next place; `None` if there is
    /// no further one.
    pub(super) fn to_next_place(&self, taken: u64) -> Option<u64> {
        let behind = self.places.partition_point(|place| place.taken <= taken);
        self.places.get(behind).map(|place| place.taken - taken)
    }
}

/// Output that is cut into pieces, from the beginning of one on.
#[derive(Default)]
pub(super) struct Pieces {
    hasher: blake3::Hasher,
    nr: usize,
    /// Where the piece begins.
    start: u64,
    /// Where the next output goes.
    at: u64,
}

impl Pieces {
    /// From a place on.
    pub(super) fn from(place: &Place) -> Self {
        Self { nr: place.nr, start: place.output, at: place.output, ..Self::default() }
    }

    /// Where the last piece ends that is whole.
    pub(super) fn whole_end(&self) -> u64 {
        self.start
    }

    /// Takes what still belongs to the piece, which ends at `end`; the rest.
    fn take<'a>(&mut self, out: &'a [u8], end: u64) -> &'a [u8] {
        let room = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        let (now, later) = out.split_at(out.len().min(room));
        self.hasher.update(now);
        self.at += now.len() as u64;
        later
    }

    /// The piece ends here: its hash.
    fn cut(&mut self) -> blake3::Hash {
        let hash = self.hasher.finalize();
        self.hasher.reset();
        self.nr += 1;
        self.start = self.at;
        hash
    }

    /// Takes more output, the last if it has `ended`; whether it is what was checked, as far as can
    /// be told.
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

/// Output that is being checked.
pub(super) struct Checking {
    pieces: Pieces,
    checked: Checked,
    place_bytes: u64,
    max_bytes: usize,
}

impl Checking {
    /// Of all that `stream` will make: places that are so far apart at first, and take so many bytes
    /// at most.
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

    /// All output of `stream` was taken, which has come to byte `taken` of its input: notes it down
    /// if that is a place.
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

    /// The output has ended.
    pub(super) fn finish(mut self) -> Checked {
        self.cut();
        self.checked
    }
}
