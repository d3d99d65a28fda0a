//! The damage that reads have passed over.

use alloc::string::String;
use alloc::vec::Vec;
use hashbrown::HashSet;

/// The most entries that are kept: a hostile volume may have any number.
const TOLD_MAX: usize = 1000;

/// The damage that reads have passed over, in words, each item once.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    known: HashSet<String>,
    pub told: Vec<String>,
}

impl PassedOver {
    /// Records damage.
    pub fn note(&mut self, what: String) {
        if self.told.len() < TOLD_MAX && self.known.insert(what.clone()) {
            self.told.push(what);
        }
    }
}
