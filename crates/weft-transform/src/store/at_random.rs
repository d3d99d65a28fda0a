//! Reads in any order of a file that was checked once ([`super::proof`]).
//!
//! A read begins at the last place in front of it and ends with the piece that its last byte is in,
//! and a few passes stay where they are, each for a reader that goes on there. So a read takes of the
//! file below what lies between two places, or three where it crosses one; a reader that goes on takes
//! each byte once, also beside others. Two places are [`PLACE_BYTES`] apart, of output or of input,
//! whatever is more, and as much again where a block of the format does not end earlier; for files
//! whose places would take more than [`PLACES_MAX_BYTES`], twice as far, and so on.
//!
//! [`PLACE_BYTES`]: super::checked::PLACE_BYTES
//! [`PLACES_MAX_BYTES`]: super::checked::PLACES_MAX_BYTES

use std::sync::Arc;

use super::checked::Checked;
use super::pass::{Course, Pass, start};
use super::{Limits, Store};
use crate::{Direction, Result, Transform};

/// Readers in different places of one file that do not disturb each other. A pass holds some 2 MiB.
const PASSES_MAX: usize = 4;

/// See the module.
pub(super) struct AtRandom {
    stage: Arc<dyn Transform>,
    on_read: Direction,
    limits: Limits,
    checked: Checked,
    /// The one that was used last is the last.
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

    #[cfg(test)]
    pub(super) fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Reads from byte `offset` on of what `below` decodes to; fewer bytes only at its end.
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
        // One that failed is let go: the next read begins again, and fails in the same place.
        let got = pass.read(&course, below, offset, buf)?;
        if self.passes.len() >= PASSES_MAX {
            self.passes.remove(0);
        }
        self.passes.push(pass);
        Ok(got)
    }
}
