//! What moved out of a directory, by changes that may not be durable: until they are, the directory
//! on the disk may hold the only names of it, and must not go.

use weft_patch::{Op, PatchId};

/// The changes that say where things went that moved out of a directory.
#[derive(Debug, Default)]
pub(crate) struct MovedOut {
    patches: Vec<PatchId>,
    /// When there are so many, those that are durable are forgotten.
    forget_at: usize,
}

impl MovedOut {
    /// Something moved out: where it went, it is when `arrived` is durable.
    pub fn note(&mut self, op: &Op<'_>, arrived: &[PatchId]) {
        for patch in arrived {
            // The names that arrive in one block are one patch, as a rule.
            let recent = self.patches.len().saturating_sub(8);
            if !op.is_durable(*patch) && !self.patches[recent..].contains(patch) {
                self.patches.push(*patch);
            }
        }
        if self.patches.len() >= self.forget_at {
            self.patches.retain(|patch| !op.is_durable(*patch));
            self.forget_at = (2 * self.patches.len()).max(16);
        }
    }

    /// Those that may not be durable.
    pub fn pending(&self, op: &Op<'_>) -> Vec<PatchId> {
        self.patches.iter().copied().filter(|patch| !op.is_durable(*patch)).collect()
    }

    /// Whether all of it is durable.
    pub fn is_settled(&self, op: &Op<'_>) -> bool {
        self.patches.iter().all(|patch| op.is_durable(*patch))
    }
}
