//! Free extents that are held out of use while the device discards them.

use super::state::Volume;
use std::ops::Range;
use weft_patch::{BlockNr, Op};
use weft_unix::{Discard, HeldExtents, Result, TrimBounds};

/// Blocks held at a time, about.
const HELD_BLOCKS: u64 = 64 << 10;
/// Blocks left for allocation meanwhile, if so many are free.
const LEFT_BLOCKS: u64 = 4096;

impl Discard for Volume {
    fn trim_bounds(&self) -> Option<TrimBounds> {
        Some(TrimBounds {
            blocks: (u64::from(self.geometry.first_data_block), self.geometry.blocks),
            longest_blocks: u64::from(self.geometry.blocks_per_group),
        })
    }

    fn hold_free(
        &mut self,
        op: &mut Op<'_>,
        Range { start: from, end }: Range<u64>,
        min_blocks: u64,
    ) -> Result<HeldExtents> {
        let room = self.blocks_at_once().saturating_sub(LEFT_BLOCKS).min(HELD_BLOCKS);
        let mut held = HeldExtents { extents: Vec::new(), next: from };
        let mut count = 0;
        while held.next < end
            && let Some((group, mut bit)) = self.geometry.block_group(held.next)
        {
            let first = self.geometry.group_first_block(group);
            let bits = match self.block_bits(op, group) {
                Ok(bits) => bits,
                // Blocks that are held already are released first; the next call fails at once.
                Err(_) if count > 0 => break,
                Err(e) => return Err(e),
            };
            let group_end = first + u64::from(bits.len());
            let last = u32::try_from(end.min(group_end) - first).unwrap_or(bits.len());
            while let Some(start) = bits.find_free(bit)
                && start < last
            {
                let len = bits.free_run(start, last - start);
                bit = start + len;
                if u64::from(len) < min_blocks {
                    continue;
                }
                let block = first + u64::from(start);
                if count > 0 && count + u64::from(len) > room {
                    held.next = block;
                    self.held_blocks += count;
                    return Ok(held);
                }
                bits.set_busy(start, len, true);
                count += u64::from(len);
                held.extents.push((BlockNr(block), u64::from(len)));
            }
            held.next = group_end;
        }
        self.held_blocks += count;
        Ok(held)
    }

    fn release_free(&mut self, extents: &[(BlockNr, u64)]) {
        for &(start, len) in extents {
            self.held_blocks -= len;
            self.set_range_busy(start.0, len, false);
        }
    }

    fn is_held_up(&self) -> bool {
        self.held_blocks > 0 && self.blocks_at_once() < LEFT_BLOCKS
    }
}
