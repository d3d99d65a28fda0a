//! Free extents that are out of use while the device is told that nothing is in them.

use super::Volume;
use crate::Result;
use weft_patch::Op;

/// Blocks held at a time, about.
const HELD_BLOCKS: u64 = 64 << 10;
/// Blocks that stay there to be taken meanwhile, where there are so many.
const LEFT_BLOCKS: u64 = 4096;

/// Free extents that nobody takes until they are [released](Volume::release_free).
#[derive(Debug, Default)]
pub(crate) struct HeldExtents {
    /// First block and length of each, within one group.
    pub extents: Vec<(u32, u32)>,
    /// The block to go on from.
    pub next: u64,
}

impl Volume {
    /// Takes free extents of `min_blocks` or more between the blocks `from` and `end` out of use, as
    /// many as go at a time. What was freed by a change that is not durable is not among them.
    pub fn hold_free(
        &mut self,
        op: &mut Op<'_>,
        from: u64,
        end: u64,
        min_blocks: u32,
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
                // What is held already is dealt with first; the next call fails at once.
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
                if len < min_blocks {
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
                held.extents.push((u32::try_from(block).unwrap_or(u32::MAX), len));
            }
            held.next = group_end;
        }
        self.held_blocks += count;
        Ok(held)
    }

    /// Gives held extents back to use.
    pub fn release_free(&mut self, extents: &[(u32, u32)]) {
        for &(start, len) in extents {
            self.held_blocks -= u64::from(len);
            self.set_range_busy(start, len, false);
        }
    }

    /// Whether so much is held that a change might find no room for that alone.
    pub fn is_held_up(&self) -> bool {
        self.held_blocks > 0 && self.blocks_at_once() < LEFT_BLOCKS
    }
}
