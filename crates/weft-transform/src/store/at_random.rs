//! Random reads of a file that was verified once ([`super::proof`]).
//!
//! A read begins at the last restart point before it and ends with the piece that contains its last
//! byte. A few passes keep their positions, each for a sequential reader. A read thus takes from
//! the file below the bytes between two restart points, or three where it crosses one; a sequential
//! reader takes each byte once, even beside other readers. Two restart points are [`PLACE_BYTES`]
//! apart, of output or of input, whichever is more, and as much again where a block of the format
//! does not end earlier; for files whose restart points would take more than [`PLACES_MAX_BYTES`],
//! twice as far, and so on.
//!
//! [`PLACE_BYTES`]: super::checked::PLACE_BYTES
//! [`PLACES_MAX_BYTES`]: super::checked::PLACES_MAX_BYTES

use std::sync::Arc;

use super::checked::Checked;
use super::pass::{Course, Pass, start};
use super::{Limits, Store};
use crate::{Direction, Result, Transform};

/// Maximum number of readers at different positions of one file that do not disturb each other. A
/// pass holds some 2 MiB.
const PASSES_MAX: usize = 4;

/// A verified file, read at random; see the module page.
pub(super) struct AtRandom {
    stage: Arc<dyn Transform>,
    on_read: Direction,
    limits: Limits,
    checked: Checked,
    /// The passes, the most recently used one last.
    passes: Vec<Pass>,
}

impl AtRandom {
    pub(super) fn new(
        stage: Arc<dyn Transform>,
        on_read: Direction,
        limits: Limits,
        checked: Checked,
    ) -> Self {
        Self { stage, on_read, limits, checked, passes: Vec::new() }
    }

    /// Ends all passes.
    pub(super) fn release_buffers(&mut self) {
        self.passes.clear();
    }

    #[cfg(test)]
    pub(super) fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Reads from byte `offset` of the decoded form of `below` on; returns fewer bytes than `buf`
    /// holds only at its end.
    pub(super) fn read_at(
        &mut self,
        below: &mut dyn Store,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let (stage, limits, checked) = (self.stage.name(), &self.limits, Some(&self.checked));
        let course = Course { stage, limits, checked };
        let upto = offset.saturating_add(buf.len() as u64);
        let near = self.passes.iter().rposition(|pass| pass.is_near(&course, offset, upto));
        let mut pass = match (near, self.checked.place(offset)) {
            (Some(nr), _) => self.passes.remove(nr),
            (None, Some(place)) => Pass::from(place)?,
            (None, None) => Pass::new(start(&self.stage, self.on_read)?),
        };
        // A failed pass is dropped: the next read begins again, and fails at the same position.
        let got = match pass.read(&course, below, offset, buf) {
            Err(e) if !e.is_interrupted() => return Err(e),
            got => got,
        };
        if self.passes.len() >= PASSES_MAX {
            self.passes.remove(0);
        }
        self.passes.push(pass);
        got
    }
}
