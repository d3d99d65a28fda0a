//! Numbers freed by changes that may not be durable: on the disk a pointer or an entry may still
//! name them, so they are not allocated again before these changes are durable. A change that finds
//! no space waits for them.

use crate::{Op, PatchId};
use std::collections::VecDeque;

/// Numbers (of blocks, of inodes) in runs, each with the patch that freed it.
#[derive(Debug, Default)]
pub struct Pending {
    runs: VecDeque<(PatchId, u64, u64)>,
    count: u64,
}

impl Pending {
    /// Adds the `len` numbers from `start` on, which `cleared` freed.
    pub fn add(&mut self, start: u64, len: u64, cleared: PatchId) {
        self.count += len;
        self.runs.push_back((cleared, start, len));
    }

    /// Returns the number of freed numbers that wait.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Reports whether no number waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Removes and returns the oldest run, first number and length, if the patch that freed it is
    /// durable. Cheap enough to call before each allocation.
    pub fn pop_durable(&mut self, op: &Op<'_>) -> Option<(u64, u64)> {
        let &(cleared, ..) = self.runs.front()?;
        if !op.is_durable(cleared) {
            return None;
        }
        let (_, start, len) = self.runs.pop_front()?;
        self.count -= len;
        Some((start, len))
    }

    /// Removes and returns every run, first number and length, whose freeing is durable.
    pub fn take_durable(&mut self, op: &Op<'_>) -> Vec<(u64, u64)> {
        let mut durable = Vec::new();
        self.runs.retain(|&(cleared, start, len)| {
            let waits = !op.is_durable(cleared);
            if !waits {
                durable.push((start, len));
                self.count -= len;
            }
            waits
        });
        self.runs.shrink_to(2 * self.runs.len());
        durable
    }
}

/// The attempts of a change, at most, while other threads take the space that is made.
pub const ROOM_ATTEMPTS: usize = 32;

/// The state of free space at the end of a change that found too little.
#[derive(Debug, Default, Clone, Copy)]
pub struct Shortage {
    /// Whether freed numbers, or files without a name, were still to become free space.
    pub waits: bool,
    /// The number of changes made since the volume was opened.
    pub changes: u64,
}

impl Shortage {
    /// Reports whether another attempt can find space. `last` is the number of changes at the last
    /// attempt, behind which this thread made room; `None`: this was the first. If others have made
    /// changes since, they may have taken that space, and what they freed may come.
    #[must_use]
    pub fn can_end(&self, last: Option<u64>) -> bool {
        last.map_or(self.waits, |changes| changes != self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNr, Engine, Options};
    use std::sync::Arc;
    use weft_block::MemoryDevice;

    fn engine() -> Arc<Engine> {
        let options = Options { background: false, ..Options::default() };
        Engine::new(Arc::new(MemoryDevice::new(1 << 20)), 4096, options).unwrap()
    }

    /// Changes block `nr`; the patch is durable after the next sync.
    fn change(engine: &Engine, nr: u64) -> PatchId {
        engine.begin(1).unwrap().write(BlockNr(nr), 0, &[1], &[]).unwrap()
    }

    #[test]
    fn a_run_is_available_once_its_patch_is_durable() {
        let engine = engine();
        let mut pending = Pending::default();
        pending.add(10, 5, change(&engine, 1));
        let op = engine.begin(0).unwrap();
        assert_eq!(pending.pop_durable(&op), None);
        assert_eq!(pending.take_durable(&op), []);
        assert_eq!(pending.count(), 5);
        drop(op);
        engine.sync().unwrap();
        let op = engine.begin(0).unwrap();
        assert_eq!(pending.pop_durable(&op), Some((10, 5)));
        assert_eq!(pending.pop_durable(&op), None);
        assert!(pending.is_empty() && pending.count() == 0);
    }

    #[test]
    fn a_run_that_waits_holds_back_the_later_ones_of_pop_alone() {
        let engine = engine();
        let durable = change(&engine, 1);
        engine.sync().unwrap();
        let waiting = change(&engine, 2);
        let mut pending = Pending::default();
        pending.add(10, 5, waiting);
        pending.add(20, 1, durable);
        pending.add(30, 2, PatchId::DURABLE);
        let op = engine.begin(0).unwrap();
        assert_eq!(pending.pop_durable(&op), None);
        assert_eq!(pending.take_durable(&op), [(20, 1), (30, 2)]);
        assert_eq!(pending.count(), 5);
        assert!(!pending.is_empty());
    }

    #[test]
    fn runs_come_out_in_the_order_they_were_freed() {
        let engine = engine();
        let mut pending = Pending::default();
        for (start, nr) in [(30, 3), (10, 1), (20, 2)] {
            pending.add(start, 1, change(&engine, nr));
        }
        engine.sync().unwrap();
        let op = engine.begin(0).unwrap();
        assert_eq!(pending.pop_durable(&op), Some((30, 1)));
        assert_eq!(pending.take_durable(&op), [(10, 1), (20, 1)]);
        assert!(pending.is_empty());
    }
}
