//! Telling that a patchgroup is durable, to those who do not wait for it.

use crate::PatchId;
use crate::engine::Shared;
use crate::patchgroup::PatchGroup;
use crate::state::State;
use smallvec::SmallVec;
use std::sync::MutexGuard;

/// One that is to be told when these patches are durable.
pub(crate) struct Watcher {
    ends: SmallVec<[PatchId; 2]>,
    told: Box<dyn FnOnce() + Send>,
}

impl PatchGroup {
    /// Calls `told` once all changes made in this group so far are durable, and all that it depends on: at
    /// once if they are, else in a thread that writes, which it must not hold up. Nothing is written for
    /// it: with a background thread that happens by age, or by a sync. It is dropped without a call if
    /// the engine ends before.
    pub fn when_durable(&self, told: impl FnOnce() + Send + 'static) {
        let mut state = self.shared().lock();
        let mut ends = self.ends();
        ends.retain(|id| !state.is_durable(*id));
        if ends.is_empty() {
            drop(state);
            told();
        } else {
            state.watchers.push(Watcher { ends, told: Box::new(told) });
        }
    }
}

impl Shared {
    /// Wakes those who wait for room, and tells those who watch what has become durable.
    pub fn note_progress(&self, mut state: MutexGuard<'_, State>) {
        self.room.notify_all();
        if state.watchers.is_empty() {
            return;
        }
        let watchers = std::mem::take(&mut state.watchers);
        let is_durable = |w: &Watcher| w.ends.iter().all(|&id| state.is_durable(id));
        let (durable, others): (Vec<_>, Vec<_>) = watchers.into_iter().partition(is_durable);
        state.watchers = others;
        drop(state);
        durable.into_iter().for_each(|watcher| (watcher.told)());
    }
}
