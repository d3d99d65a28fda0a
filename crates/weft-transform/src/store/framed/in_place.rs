//! In-place commit of a file of frames, which writes only the changed frames.
//!
//! The invariant: between two commits no part of the stored file that a reader could reach after a
//! crash is modified. Writing frames in place preserves it only where the file below makes all data
//! written since its last commit durable at once, or none of it ([`Store::atomic`]), as sealed
//! files do by their log. Then the changed frames, the index of all frames and the new length are
//! one such commit: a crash leaves the old file or the new one. Three consequences:
//!
//! - No more is written than the file below can commit at once; otherwise the file is rewritten.
//! - Nothing is written before the commit: frames that leave memory earlier go to the spill, and
//!   with a spill the file is rewritten.
//! - If a commit fails, the file below holds a part of it, not durable: the next commit rewrites
//!   the file, and reads find the affected frames in memory, where they still are.
//!
//! The slot of a frame extends from its first byte to the next frame; the rest of the slot is
//! padding that decoders skip ([`FrameCodec::pad`]), listed in the index as a frame that decodes to
//! nothing. So other programs can still read the file. A frame that outgrows its slot causes a
//! rewrite, which gives all frames some room. Frames behind the last unchanged one are written one
//! behind the other, whatever their length.
//!
//! [`Store::atomic`]: crate::store::Store::atomic
//! [`FrameCodec::pad`]: crate::FrameCodec::pad

use std::collections::BTreeMap;

use super::{FramedFile, Place, codec_of, listed};
use crate::Result;

/// The parameters of a rewrite.
#[derive(Debug, Default)]
pub(super) struct Anew {
    /// The changed frames that are encoded already.
    pub(super) encoded: BTreeMap<usize, Vec<u8>>,
    /// Frames get room to grow.
    pub(super) roomy: bool,
}

/// The changed frames, encoded, and their offsets.
struct Plan {
    writes: Vec<(usize, u64, Vec<u8>)>,
    /// The offset of the index.
    end: u64,
}

/// Returns the room to leave behind a frame, in bytes: a 32nd of its plain and an eighth of its
/// stored length, but no more than the frame would need if it did not compress at all.
pub(super) fn room(plain_bytes: u64, stored_bytes: u64) -> u64 {
    let longest = plain_bytes + plain_bytes / 128 + 64;
    (stored_bytes / 8 + plain_bytes / 32).min(longest.saturating_sub(stored_bytes)).max(16)
}

impl FramedFile {
    /// Commits in place, or returns the parameters of a rewrite.
    pub(super) fn commit_in_place(&mut self) -> Result<Option<Anew>> {
        let plan = match self.plan()? {
            Ok(plan) => plan,
            Err(anew) => return Ok(Some(anew)),
        };
        let mut pieces = self.pieces.clone();
        for (at, start, encoded) in &plan.writes {
            pieces[*at].stored_start = *start;
            pieces[*at].stored_bytes = encoded.len() as u64;
        }
        let mut index = Vec::new();
        codec_of(&self.stage)?.finish(&listed(&pieces), &mut index);
        let end = plan.end + index.len() as u64;
        let Some(atomic) = self.home.current().atomic() else { return Ok(Some(Anew::default())) };
        let lens = plan.writes.iter().map(|(at, _, encoded)| {
            // Including the rest of the frame that was there before, and the head of the padding.
            (encoded.len() as u64).max(self.pieces[*at].stored_bytes) + 8
        });
        let cost = lens.chain([index.len() as u64]).map(|len| atomic.cost(len)).sum::<u64>();
        if cost + atomic.cost(0) > atomic.max_bytes {
            let writes = plan.writes.into_iter();
            let encoded = writes.map(|(at, _, encoded)| (at, encoded)).collect();
            return Ok(Some(Anew { encoded, roomy: false }));
        }

        self.torn = true;
        for (at, start, mut encoded) in plan.writes {
            let place_end = pieces.get(at + 1).map(|next| next.stored_start);
            let left = place_end.map_or(0, |end| end - start - encoded.len() as u64);
            if let Some(head) = codec_of(&self.stage)?.pad(left) {
                encoded.extend(head);
                // The rest of the old frame is zeroed, so that a holder of the key cannot recover
                // it.
                let old = self.pieces[at].stored_bytes.min(left + pieces[at].stored_bytes) as usize;
                encoded.resize(encoded.len().max(old), 0);
            }
            self.home.current().write_at(start, &encoded)?;
        }
        let current = self.home.current();
        current.write_at(plan.end, &index)?;
        current.set_len(end)?;
        current.commit()?;
        self.torn = false;
        self.pieces = pieces;
        Ok(None)
    }

    /// Encodes the changed frames, and plans an in-place commit if all of them fit their slots.
    fn plan(&mut self) -> Result<Result<Plan, Anew>> {
        let codec = codec_of(&self.stage)?;
        let can_pad = codec.pad(8).is_some();
        let can = can_pad && self.spill.is_none() && !self.torn;
        let last_kept = (0..self.pieces.len()).rev().find(|at| !self.dirty.contains(*at));
        let Some(last_kept) = last_kept.filter(|_| can) else { return Ok(Err(Anew::default())) };
        if self.home.current().atomic().is_none() {
            return Ok(Err(Anew::default()));
        }
        let codec = codec_of(&self.stage)?;
        let kept = &self.pieces[last_kept];
        let mut end = kept.stored_start + kept.stored_bytes;
        // A new frame has no slot yet.
        if let Some(next) = self.pieces.get(last_kept + 1).filter(|next| next.stored_bytes > 0) {
            end = next.stored_start;
        }
        let mut writes = Vec::with_capacity(self.dirty.len());
        let mut fits = true;
        for at in self.dirty.places() {
            let Some(plain) = self.dirty.get(at) else { continue };
            let mut encoded = Vec::new();
            codec.encode(plain, &mut encoded)?;
            let len = encoded.len() as u64;
            let piece = self.pieces[at];
            debug_assert!(piece.place == Place::Current, "nothing is in the spill");
            let start = if at < last_kept {
                let room = self.pieces[at + 1].stored_start - piece.stored_start;
                fits = room
                    .checked_sub(len)
                    .is_some_and(|left| left == 0 || codec.pad(left).is_some());
                piece.stored_start
            } else {
                end += len;
                end - len
            };
            writes.push((at, start, encoded));
            if !fits {
                let encoded = writes.into_iter().map(|(at, _, encoded)| (at, encoded)).collect();
                return Ok(Err(Anew { encoded, roomy: true }));
            }
        }
        Ok(Ok(Plan { writes, end }))
    }
}
