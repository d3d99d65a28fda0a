//! Finding the frames of a stored file on open: from its index, or by decoding it once.

use std::sync::Arc;

use super::super::checked::{Checked, PLACES};
use super::super::known_len;
use super::super::proof::Proof;
use super::{Home, Piece, Place, codec_of};
use crate::{Error, Frame, FrameCodec, Result, Transform};

/// Plain length, in bytes, above which a frame with restart points is not decoded as a whole for a
/// read.
pub(super) const LONG_BYTES: u64 = 256 << 10;

/// A file that could not be opened.
pub(in super::super) struct Refused {
    pub(in super::super) home: Home,
    pub(in super::super) error: Error,
    /// The verification pass, with its position.
    pub(in super::super) proof: Option<Box<Proof>>,
}

/// Returns the frames of the file in `home`, and the index of restart points if it was decoded.
/// `proof` is set to the verification pass if that fails.
fn frames_of(
    codec: &dyn FrameCodec,
    home: &mut Home,
    proof: &mut Option<Box<Proof>>,
) -> Result<(Vec<Frame>, Option<Checked>)> {
    if known_len(home.current(), codec.stage())? == 0 {
        return Ok((Vec::new(), None));
    }
    if let Some(frames) = codec.index(home.current())? {
        return Ok((frames, None));
    }
    let mut all = Box::new(Proof::new(codec.stage(), codec.decoder()?, PLACES));
    let limits = *home.limits();
    if let Err(e) = all.run(home.current(), &limits, limits.frame_bytes) {
        *proof = Some(all);
        return Err(e);
    }
    let (checked, frames) = all.finish();
    let is_long = |frame: &Frame| frame.plain_bytes > LONG_BYTES;
    let checked = frames.iter().any(is_long).then_some(checked);
    Ok((frames, checked))
}

/// Returns the frames of the file in `home`, checked against its limits.
pub(super) fn pieces_of(
    stage: &Arc<dyn Transform>,
    home: &mut Home,
    proof: &mut Option<Box<Proof>>,
) -> Result<(Vec<Piece>, Option<Checked>)> {
    let (frames, checked) = frames_of(codec_of(stage)?, home, proof)?;
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
        // Each term is below the limit or the length of a file.
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
    Ok((pieces, checked))
}
