//! Free space: the bitmap, and windows reserved for files that grow.

use crate::layout::{BLOCK_BYTES, Extent, Fork};
use crate::store::Store;
use crate::{Error, Result};
use alloc::vec;
use alloc::vec::Vec;
use hashbrown::HashMap;

/// The allocation blocks of a volume.
///
/// Two bitmaps: one as it is on the disk, and one of the blocks that cannot be allocated now. The
/// second also has the blocks whose freeing is not durable yet (the [`Store`] lists them), those of deleted files that are
/// still open, the windows, and always the volume's last block: by an off-by-one that every Mac
/// shares, Apple's checker reports a file that has this block as damaged.
#[derive(Debug)]
pub(crate) struct Space {
    count: u32,
    disk: Vec<u8>,
    /// The number of clear bits in `disk`.
    disk_free: u32,
    busy: Vec<u64>,
    free: u32,
    /// Blocks reserved after a growing fork, so that it stays contiguous.
    windows: HashMap<(u32, Fork), Extent>,
    /// Blocks of the bitmap that must be written.
    dirty: Vec<bool>,
    any_dirty: bool,
    /// The block at which the last search ended.
    pub hint: u32,
}

impl Space {
    /// Makes the map from the bytes of a bitmap of `count` allocation blocks.
    pub fn new(count: u16, mut bytes: Vec<u8>) -> Self {
        let count = u32::from(count);
        bytes.resize(count.div_ceil(8) as usize, 0);
        let blocks = bytes.len().div_ceil(BLOCK_BYTES);
        let mut space = Self {
            count,
            disk: bytes,
            disk_free: 0,
            busy: vec![0; count.div_ceil(64) as usize],
            free: count,
            windows: HashMap::new(),
            dirty: vec![false; blocks],
            any_dirty: false,
            hint: 0,
        };
        for nr in 0..count {
            if space.on_disk(nr) {
                space.set_busy(nr, true);
            } else {
                space.disk_free += 1;
            }
        }
        if let Some(last) = count.checked_sub(1) {
            space.set_busy(last, true);
        }
        // The bits after the last block are marked as busy.
        for nr in count..count.next_multiple_of(64) {
            if let Some(word) = space.busy.get_mut(nr as usize / 64) {
                *word |= 1 << (nr % 64);
            }
        }
        space
    }

    pub fn on_disk(&self, nr: u32) -> bool {
        self.disk.get(nr as usize / 8).is_none_or(|b| b & (0x80 >> (nr % 8)) != 0)
    }

    fn set_disk(&mut self, nr: u32, used: bool) {
        if nr >= self.count || self.on_disk(nr) == used {
            return;
        }
        let byte = nr as usize / 8;
        if let Some(b) = self.disk.get_mut(byte) {
            *b ^= 0x80 >> (nr % 8);
            self.disk_free = if used { self.disk_free - 1 } else { self.disk_free + 1 };
        }
        if let Some(dirty) = self.dirty.get_mut(byte / BLOCK_BYTES) {
            *dirty = true;
            self.any_dirty = true;
        }
    }

    fn is_busy(&self, nr: u32) -> bool {
        self.busy.get(nr as usize / 64).is_none_or(|w| w & (1 << (nr % 64)) != 0)
    }

    fn set_busy(&mut self, nr: u32, busy: bool) {
        if self.is_busy(nr) == busy || (!busy && nr + 1 == self.count) {
            return;
        }
        if let Some(word) = self.busy.get_mut(nr as usize / 64) {
            *word ^= 1 << (nr % 64);
            self.free = if busy { self.free - 1 } else { self.free + 1 };
        }
    }

    fn set_all_busy(&mut self, extent: Extent, busy: bool) {
        for nr in u32::from(extent.start)..extent.end() {
            self.set_busy(nr, busy);
        }
    }

    /// Returns the first block from `from` on that is busy, or that is not.
    fn next(&self, from: u32, busy: bool) -> u32 {
        let mut at = from;
        while at < self.count {
            let word = self.busy.get(at as usize / 64).copied().unwrap_or(u64::MAX);
            let wanted = (if busy { word } else { !word }) >> (at % 64);
            if wanted != 0 {
                return (at + wanted.trailing_zeros()).min(self.count);
            }
            at = (at / 64 + 1) * 64;
        }
        self.count
    }

    /// Returns the number of free blocks as the count on the disk has it.
    pub fn free_on_disk(&self) -> u32 {
        self.disk_free
    }

    /// Returns the number of blocks that can be allocated now, windows included.
    pub fn free_now(&self) -> u32 {
        self.free + self.windows.values().map(|w| u32::from(w.count)).sum::<u32>()
    }

    /// Makes durably freed blocks available.
    pub fn settle<S: Store>(&mut self, s: &mut S) {
        while let Some((start, count)) = s.pop_freed() {
            for nr in start..start.saturating_add(count) {
                self.set_busy(nr, false);
            }
        }
    }

    /// Allocates `want` blocks for a fork that ends before block `goal`, in few pieces: marks them
    /// as busy in memory. Reserves up to `keep` blocks after them for the owner's next allocation.
    /// The volume must have `want` free blocks: see [`free_now`](Self::free_now).
    pub fn take(
        &mut self,
        owner: (u32, Fork),
        goal: Option<u32>,
        want: u32,
        keep: u32,
    ) -> Result<Vec<Extent>> {
        if self.free_now() < want {
            return Err(Error::NoSpace);
        }
        let mut taken: Vec<Extent> = Vec::new();
        let mut left = want;
        let mut goal = goal;
        self.drop_window(owner);
        while left > 0 {
            let extent = match self.find(goal, left, keep) {
                Some(extent) => extent,
                // The remaining blocks are reserved in windows.
                None if !self.windows.is_empty() => {
                    self.drop_windows();
                    continue;
                }
                None => {
                    self.put_back(&taken);
                    return Err(Error::NoSpace);
                }
            };
            self.set_all_busy(extent, true);
            left -= u32::from(extent.count);
            goal = Some(extent.end());
            match taken.last_mut() {
                Some(last) if last.end() == u32::from(extent.start) => last.count += extent.count,
                _ => taken.push(extent),
            }
        }
        if let Some(end) = taken.last().map(Extent::end)
            && keep > 0
            && !self.is_busy(end)
        {
            let stop = self.next(end, true).min(end + keep);
            if let Some(window) = extent(end, stop - end) {
                self.set_all_busy(window, true);
                self.windows.insert(owner, window);
            }
        }
        self.hint = goal.unwrap_or(self.hint);
        Ok(taken)
    }

    /// Returns the next piece: at the goal if that is free, else the first that is large enough,
    /// else the largest.
    fn find(&self, goal: Option<u32>, want: u32, keep: u32) -> Option<Extent> {
        if let Some(goal) = goal.filter(|&g| g < self.count && !self.is_busy(g)) {
            return extent(goal, (self.next(goal, true) - goal).min(want));
        }
        let hint = if self.hint < self.count { self.hint } else { 0 };
        let mut best: Option<(u32, u32)> = None;
        for (from, to) in [(hint, self.count), (0, hint)] {
            let mut at = self.next(from, false);
            while at < to {
                let end = self.next(at, true);
                if end - at >= want.saturating_add(keep) {
                    return extent(at, want);
                }
                if best.is_none_or(|(_, len)| len < end - at) {
                    best = Some((at, end - at));
                }
                at = self.next(end, false);
            }
        }
        best.and_then(|(at, len)| extent(at, len.min(want)))
    }

    /// Reverts an allocation that is not on the disk yet.
    pub fn put_back(&mut self, extents: &[Extent]) {
        for &extent in extents {
            self.set_all_busy(extent, false);
        }
    }

    /// Marks allocated blocks as used on the disk.
    pub fn use_up(&mut self, extents: &[Extent]) {
        for extent in extents {
            for nr in u32::from(extent.start)..extent.end() {
                self.set_disk(nr, true);
            }
        }
    }

    /// Marks blocks as free on the disk, but keeps them from being allocated.
    pub fn let_go(&mut self, extents: &[Extent]) {
        for extent in extents {
            for nr in u32::from(extent.start)..extent.end().min(self.count) {
                self.set_disk(nr, false);
            }
        }
    }

    /// Makes blocks available once `cleared`, which freed them, is durable.
    pub fn release<S: Store>(&mut self, s: &mut S, extents: &[Extent], cleared: S::Patch) {
        for &extent in extents.iter().filter(|e| e.count > 0) {
            if s.is_durable(cleared) {
                self.set_all_busy(extent, false);
            } else {
                s.keep_freed(extent.start.into(), extent.count.into(), cleared);
            }
        }
    }

    /// Gives up the window of a fork.
    pub fn drop_window(&mut self, owner: (u32, Fork)) {
        if let Some(window) = self.windows.remove(&owner) {
            self.set_all_busy(window, false);
        }
    }

    /// Gives up all windows.
    pub fn drop_windows(&mut self) {
        for (_, window) in core::mem::take(&mut self.windows) {
            self.set_all_busy(window, false);
        }
    }

    /// Replaces the bitmap on the disk.
    pub fn set_bitmap(&mut self, used: &[bool]) {
        for nr in 0..self.count {
            let is_used = used.get(nr as usize).copied().unwrap_or(false);
            if self.on_disk(nr) != is_used {
                self.set_disk(nr, is_used);
                self.set_busy(nr, is_used);
            }
        }
    }

    /// Writes the changed parts of the bitmap, which begins in volume block `first`. Without order:
    /// after a cut the bitmap is rebuilt from the trees.
    pub fn write<S: Store>(&mut self, s: &mut S, first: u64) -> Result<()> {
        if !self.any_dirty {
            return Ok(());
        }
        self.any_dirty = false;
        for (i, dirty) in self.dirty.iter_mut().enumerate() {
            if core::mem::take(dirty) {
                let end = self.disk.len().min((i + 1) * BLOCK_BYTES);
                let bytes = self.disk.get(i * BLOCK_BYTES..end).unwrap_or(&[]);
                s.write(first + i as u64, 0, bytes, &[])?;
            }
        }
        Ok(())
    }
}

fn extent(start: u32, count: u32) -> Option<Extent> {
    let (start, count) = (u16::try_from(start).ok()?, u16::try_from(count).ok()?);
    (count > 0).then_some(Extent { start, count })
}
