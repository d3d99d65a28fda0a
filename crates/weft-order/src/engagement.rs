//! An engagement in a group, with the meaning of fsync to those who have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use weft_patch::{Engagement, Entered, PatchGroup, PatchGroupError};

use crate::abort::Abortable;
use crate::background::Background;
use crate::commands::Fsync;

/// An engagement in a group of those whose fsyncs have a certain meaning.
#[derive(Debug)]
pub(crate) struct OrderedEngagement {
    pub fsync: Fsync,
    patchgroup: PatchGroup,
    engagement: Engagement,
    promise: Arc<Promise>,
    /// Set if the group can be aborted.
    pub abortable: Option<Arc<Abortable>>,
}

/// The promise that a group is durable within a time.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    /// Set from an fsync until the sync that it was promised.
    is_made: AtomicBool,
    /// Set if that sync failed: the next fsync does not trust in a later one.
    is_broken: AtomicBool,
}

impl Promise {
    /// Syncs the group for which the promise was made.
    pub fn keep(&self, patchgroup: &PatchGroup) {
        // From here on an fsync is one for the next sync.
        self.is_made.store(false, Ordering::Release);
        if let Err(e) = patchgroup.sync() {
            tracing::warn!("the sync failed that fsyncs were promised: {e}");
            self.is_broken.store(true, Ordering::Release);
        }
    }
}

impl OrderedEngagement {
    /// Engages a group.
    ///
    /// # Errors
    /// As [`PatchGroup::engage`].
    pub fn new(patchgroup: PatchGroup, fsync: Fsync) -> Result<Self, PatchGroupError> {
        let engagement = patchgroup.engage()?;
        Ok(Self { fsync, patchgroup, engagement, promise: Arc::default(), abortable: None })
    }

    /// Adds the changes of this thread to the group, until the result is dropped.
    pub fn enter(&self) -> Entered<'_> {
        self.engagement.enter()
    }

    /// Returns true if an fsync of these only orders. In an atomic group nothing is durable before its
    /// end.
    pub fn orders(&self) -> bool {
        let barrier = self.fsync.is_barrier() || self.patchgroup.atomic_blocks_left().is_some();
        barrier && !self.promise.is_broken.load(Ordering::Acquire)
    }

    /// Notes that an fsync has waited.
    pub fn has_waited(&self) {
        self.promise.is_broken.store(false, Ordering::Release);
    }

    /// Orders what is changed from now on after what was changed until now, and has that made durable
    /// in time.
    pub fn order(&self, background: &Background) {
        self.patchgroup.barrier();
        let Some(within) = self.fsync.within() else { return };
        if !self.promise.is_made.swap(true, Ordering::AcqRel) {
            let due = Instant::now() + within;
            background.sync_at(due, self.patchgroup.clone(), Arc::clone(&self.promise));
        }
    }
}
