//! The damage that reads have passed over.

use alloc::string::String;
use alloc::vec::Vec;
use hashbrown::HashSet;

/// The most entries that are kept: a hostile volume may have any number.
const LISTED_MAX: usize = 1000;

/// The damage that reads have passed over, each problem once.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    known: HashSet<String>,
    pub listed: Vec<String>,
}

impl PassedOver {
    /// Records damage.
    pub fn note(&mut self, problem: String) {
        if self.listed.len() < LISTED_MAX && self.known.insert(problem.clone()) {
            self.listed.push(problem);
        }
    }
}
