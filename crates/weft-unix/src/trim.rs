//! Discarding free space on the device.
//!
//! A block is discarded only if nothing on the disk or in memory refers to it, and nothing comes to
//! do so meanwhile: the free extents are taken out of use first; then everything is made durable,
//! the changes that freed them included, whatever the commit policy; then they are discarded; then
//! they may be used again. A cut at any moment finds in the discarded blocks nothing that it needs.

use crate::Result;
use crate::format::Format;
use crate::front::UnixFs;
use std::sync::PoisonError;
use weft_patch::BlockNr;
use weft_vfs::{Error as FsError, TrimRange};

impl<F: Format> UnixFs<F> {
    /// Discards the free extents of a range. Returns the number of bytes discarded.
    pub(crate) fn do_trim(&self, range: &TrimRange) -> Result<u64> {
        let bounds = self.lock().format.trim_bounds().ok_or(FsError::UnknownCommand)?;
        if self.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        let block_bytes = u64::from(self.block_bytes);
        let (first, blocks) = bounds.blocks;
        let start = range.start / block_bytes;
        let min_blocks = range.min_len_bytes / block_bytes;
        if start >= blocks || range.len_bytes < block_bytes || min_blocks > bounds.longest_blocks {
            return Err(FsError::Invalid("no free extent can be in this range").into());
        }
        let end = start.saturating_add(range.len_bytes / block_bytes).min(blocks);
        // What was freed just now counts, too.
        self.settle_pending()?;
        let mut next = start.max(first);
        let mut trimmed = 0;
        while next < end {
            let _one_at_a_time = self.trimming.lock().unwrap_or_else(PoisonError::into_inner);
            let held = {
                // Not by a look: tried again, it would hold extents twice.
                let mut op = self.engine.begin(0)?;
                self.lock().format.hold_free(&mut op, next..end, min_blocks.max(1))?
            };
            let discarded = self.discard_held(&held.extents);
            self.lock().format.release_free(&held.extents);
            trimmed += discarded?;
            next = held.next;
        }
        Ok(trimmed * block_bytes)
    }

    fn discard_held(&self, extents: &[(BlockNr, u64)]) -> Result<u64> {
        if extents.is_empty() {
            return Ok(0);
        }
        self.engine.sync()?;
        let block_bytes = u64::from(self.block_bytes);
        let mut blocks = 0;
        for &(start, len) in extents {
            self.device.discard(start.0 * block_bytes, len * block_bytes)?;
            blocks += len;
        }
        Ok(blocks)
    }

    /// Waits until no free space is held.
    pub(crate) fn wait_for_trim(&self) {
        drop(self.trimming.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
