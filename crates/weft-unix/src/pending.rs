//! What was freed by changes that may not be durable: on the disk something may still point at it, so
//! it is not taken again before they are.

use std::collections::VecDeque;
use weft_patch::{Op, PatchId};

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

    /// How many numbers wait.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes the oldest run out if what freed it is durable: cheap, before each allocation.
    pub fn pop_durable(&mut self, op: &Op<'_>) -> Option<(u64, u64)> {
        let &(cleared, ..) = self.runs.front()?;
        if !op.is_durable(cleared) {
            return None;
        }
        let (_, start, len) = self.runs.pop_front()?;
        self.count -= len;
        Some((start, len))
    }

    /// Takes out every run whose freeing is durable.
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
        durable
    }
}
