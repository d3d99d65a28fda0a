//! Inodes that moved out of a directory by changes that may not be durable: until these are, the
//! directory on the disk may hold the only names of the inodes, and must not be removed.

use weft_patch::{Op, PatchId};

/// The changes that gave new names to the inodes that moved out of a directory.
#[derive(Debug, Default)]
pub(crate) struct MovedOut {
    patches: Vec<PatchId>,
    /// The number of changes at which those that are durable are forgotten.
    forget_at: usize,
}

impl MovedOut {
    /// Notes that an inode moved out: its new name is on the disk when `arrived` is durable.
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

    /// Returns the changes that may not be durable.
    pub fn pending(&self, op: &Op<'_>) -> Vec<PatchId> {
        self.patches.iter().copied().filter(|patch| !op.is_durable(*patch)).collect()
    }

    /// Reports whether all of the changes are durable.
    pub fn is_settled(&self, op: &Op<'_>) -> bool {
        self.patches.iter().all(|patch| op.is_durable(*patch))
    }
}
