//! Lost leases that the front end must be told of, and its receiver of invalidations.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use weft_ringer::RnodeId;
use weft_vfs::Invalidate;

use super::mutex::locked;

/// Rnodes whose leases have gone, and that are not invalidated yet.
#[derive(Debug, Default)]
pub(super) struct LostLeases {
    ids: Mutex<BTreeSet<RnodeId>>,
    comes: Condvar,
}

impl LostLeases {
    pub(super) fn add(&self, id: RnodeId) {
        if locked(&self.ids).insert(id) {
            self.comes.notify_one();
        }
    }

    /// Waits for lost leases, for at most `limit`.
    pub(super) fn wait(&self, limit: Duration) -> BTreeSet<RnodeId> {
        let ids = locked(&self.ids);
        let waited = self.comes.wait_timeout_while(ids, limit, |ids| ids.is_empty());
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// The front end's receiver of invalidations.
#[derive(Default)]
pub(super) struct Sink(Mutex<Option<Arc<dyn Invalidate>>>);

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}

impl Sink {
    pub(super) fn set(&self, sink: Arc<dyn Invalidate>) {
        *locked(&self.0) = Some(sink);
    }

    pub(super) fn get(&self) -> Option<Arc<dyn Invalidate>> {
        locked(&self.0).clone()
    }
}
