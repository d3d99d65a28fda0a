//! One file merged from several that are the same stored file accessed through the branches of a
//! graph.
//!
//! All branches read the file below, each at its own position: nothing is buffered for a branch
//! that is ahead, and if all branches can be read at any offset, so can the whole.

use std::sync::{Arc, Mutex, PoisonError};

use super::Store;
use crate::meter::StageMeter;
use crate::{Error, MergeBy, Result};

/// A file shared by several readers.
pub(super) struct Shared(Arc<Mutex<Box<dyn Store>>>);

impl Shared {
    /// Returns `times` readers of the same file.
    pub(super) fn times(store: Box<dyn Store>, times: usize) -> Vec<Self> {
        let store = Arc::new(Mutex::new(store));
        (0..times).map(|_| Self(store.clone())).collect()
    }
}

impl Store for Shared {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read_at(offset, buf)
    }

    fn release_buffers(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).release_buffers();
    }
}

/// The merged branches. The file is read-only.
pub(super) struct MergedFile {
    branches: Vec<Box<dyn Store>>,
    by: MergeBy,
    meter: Option<Arc<StageMeter>>,
}

impl MergedFile {
    pub(super) fn new(
        branches: Vec<Box<dyn Store>>,
        by: MergeBy,
        meter: Option<Arc<StageMeter>>,
    ) -> Self {
        Self { branches, by, meter }
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.by {
            MergeBy::Concatenation => self.concatenated(offset, buf),
            MergeBy::Turns { unit_bytes } => self.interleaved(unit_bytes, offset, buf),
        }
    }

    /// Returns the lengths of all branches; `None` if one is not known.
    fn lens(&mut self) -> Result<Option<Vec<u64>>> {
        self.branches.iter_mut().map(|branch| branch.len_bytes()).collect()
    }

    /// Reads from one branch after the other.
    fn concatenated(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (mut start, mut done) = (0_u64, 0);
        for branch in &mut self.branches {
            while done < buf.len() {
                let at = offset + done as u64 - start;
                if branch.len_bytes()?.is_some_and(|len| at >= len) {
                    break;
                }
                let got = branch.read_at(at, &mut buf[done..]).map_err(|e| e.moved(start))?;
                if got == 0 {
                    break;
                }
                done += got;
            }
            if done == buf.len() {
                break;
            }
            // A branch that was read to its end knows its length.
            let Some(len) = branch.len_bytes()? else {
                let what = "a branch has no end".to_owned();
                return Err(Error::Corrupt { stage: "merge", offset, what });
            };
            start = start.saturating_add(len);
        }
        Ok(done)
    }

    /// Reads from the branches in turn, `unit` bytes each; a branch that has ended is skipped.
    fn interleaved(&mut self, unit: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(lens) = self.lens()? else {
            let what = "the length of a branch is not known".to_owned();
            return Err(Error::Corrupt { stage: "merge", offset, what });
        };
        let turns = Turns { lens: &lens, unit };
        let (first, last) = turns.of(offset, buf.len());
        let mut pieces = Vec::new();
        for (branch, len) in self.branches.iter_mut().zip(&lens) {
            let from = first.saturating_mul(unit).min(*len);
            let upto = last.saturating_mul(unit).min(*len);
            let mut piece = vec![0; usize::try_from(upto - from).unwrap_or(usize::MAX)];
            super::read_exact(&mut **branch, "merge", from, &mut piece)
                .map_err(|e| e.moved(offset))?;
            pieces.push(piece);
        }
        let mut at = turns.start(first);
        let (unit, mut done) = (usize::try_from(unit).unwrap_or(usize::MAX), 0);
        let mut rest: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        while rest.iter().any(|piece| !piece.is_empty()) {
            for piece in &mut rest {
                let (now, later) = piece.split_at(piece.len().min(unit));
                *piece = later;
                // The first turn may begin before the requested range, and the last one end behind
                // it.
                let skip = usize::try_from(offset.saturating_sub(at)).unwrap_or(usize::MAX);
                let wanted = &now[skip.min(now.len())..];
                let len = wanted.len().min(buf.len() - done);
                buf[done..done + len].copy_from_slice(&wanted[..len]);
                done += len;
                at += now.len() as u64;
            }
        }
        Ok(done)
    }
}

/// The layout of the turns of interleaved branches.
struct Turns<'a> {
    lens: &'a [u64],
    unit: u64,
}

impl Turns<'_> {
    /// Returns the offset of turn `nr` in the whole.
    fn start(&self, nr: u64) -> u64 {
        let upto = nr.saturating_mul(self.unit);
        self.lens.iter().fold(0, |sum, len| sum.saturating_add(upto.min(*len)))
    }

    /// Returns the half-open range of turns that overlap the range of bytes.
    fn of(&self, offset: u64, len_bytes: usize) -> (u64, u64) {
        let longest = self.lens.iter().copied().max().unwrap_or(0);
        let all = longest.div_ceil(self.unit);
        let end = offset.saturating_add(len_bytes as u64);
        (self.count_before(all, offset, true), self.count_before(all, end, false))
    }

    /// Returns the number of turns that end at or before `place` if `whole`, or else that begin
    /// before it.
    fn count_before(&self, all: u64, place: u64, whole: bool) -> u64 {
        let (mut low, mut high) = (0, all);
        while low < high {
            let middle = low + (high - low) / 2;
            let before =
                if whole { self.start(middle + 1) <= place } else { self.start(middle) < place };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

impl Store for MergedFile {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        let lens = self.lens()?;
        Ok(lens.map(|lens| lens.iter().fold(0, |sum: u64, len| sum.saturating_add(*len))))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.meter.clone() {
            Some(meter) => meter.count_read(|| self.read(offset, buf)),
            None => self.read(offset, buf),
        }
    }

    fn release_buffers(&mut self) {
        self.branches.iter_mut().for_each(|branch| branch.release_buffers());
    }
}
