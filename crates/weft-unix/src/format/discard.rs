//! Free space that the device discards.

use crate::Result;
use std::ops::Range;
use weft_patch::{BlockNr, Op};

/// Free extents that no file can be given until they are released.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldExtents {
    /// First block and number of blocks of each.
    pub extents: Vec<(BlockNr, u64)>,
    /// The block to go on from.
    pub next: u64,
}

/// The bounds of free extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimBounds {
    /// Blocks of the volume that files can have: the first one, and the one behind the last.
    pub blocks: (u64, u64),
    /// The longest free extent there can be, in blocks.
    pub longest_blocks: u64,
}

/// Holding free extents out of use while the device discards them. By default a format does not
/// discard.
pub trait Discard {
    /// Returns the bounds of free extents; `None` if the format does not discard.
    fn trim_bounds(&self) -> Option<TrimBounds> {
        None
    }

    /// Takes free extents of `min_blocks` or more within `blocks` out of use, as many as may be
    /// held at a time. Leaves out the blocks that a change has freed which is not durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn hold_free(
        &mut self,
        op: &mut Op<'_>,
        blocks: Range<u64>,
        min_blocks: u64,
    ) -> Result<HeldExtents> {
        let _ = (op, min_blocks);
        Ok(HeldExtents { extents: Vec::new(), next: blocks.end })
    }

    /// Puts held extents back into use.
    fn release_free(&mut self, extents: &[(BlockNr, u64)]) {
        let _ = extents;
    }

    /// Reports whether so many blocks are held that a change might find no room for that alone.
    fn is_held_up(&self) -> bool {
        false
    }
}
