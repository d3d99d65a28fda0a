//! Leases that are kept while others are waited for.

use std::collections::BTreeSet;

use super::cache::Need;
use crate::types::RnodeId;

/// The leases that one call, or one change that is made again, keeps while it waits for others.
///
/// Invariants:
/// - While a call waits for a lease, those with smaller numbers are pinned and no others. So there
///   can be no cycle of clients, each waiting for a lease that the next one keeps.
/// - A lease that one attempt needed stays needed by the later ones, also if they end before they
///   look at it. So each wait gains a lease that only a wait for a smaller one can lose, and the
///   call ends. (An attempt looks at leases in an order of its own: a link looks at the file, then
///   at the directory. Were a directory with the smaller number released while the call waits for
///   the file, two clients could take both leases from each other, one after the other, for ever.)
#[derive(Debug, Default)]
pub(super) struct Pins {
    needed: BTreeSet<RnodeId>,
    pinned: BTreeSet<RnodeId>,
}

impl Pins {
    /// Notes that an attempt has `seen` these leases, and stopped for `need`. The server's replies
    /// to questions about names wait for no client: everything is pinned meanwhile.
    pub(super) fn wait_for(&mut self, need: &Need, seen: BTreeSet<RnodeId>) {
        self.needed.extend(seen);
        self.pinned = match need {
            Need::Names(..) => self.needed.clone(),
            Need::Lease(id, ..) => {
                self.needed.insert(*id);
                self.needed.range(..*id).copied().collect()
            }
        };
        debug_assert!(self.is_ordered(need), "{need:?} is waited for with {:?}", self.pinned);
    }

    /// Returns true if no pinned lease should come after `need`.
    fn is_ordered(&self, need: &Need) -> bool {
        match need {
            Need::Names(..) => true,
            Need::Lease(id, ..) => self.pinned.iter().all(|pinned| pinned < id),
        }
    }

    /// Releases all pins.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the pinned leases.
    pub(super) fn pinned(&self) -> &BTreeSet<RnodeId> {
        &self.pinned
    }
}
