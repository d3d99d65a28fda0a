//! The origins: what is counted of each, which are attached, and which are being forgotten.
//!
//! Invariants:
//! - an origin's counts are those of the slots with its blocks;
//! - the records of an origin that is being forgotten are not trusted.

use crate::format::superblock::Superblock;
use crate::origin::{Link, Origin};
use crate::{ORIGINS_MAX, OriginId};
use std::sync::{Arc, Weak};

/// State of an origin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OriginState {
    pub(crate) region_shift: u32,
    pub(crate) used_slots: u32,
    pub(crate) dirty_subs: u64,
    /// Maximum number of slots, 0 for all.
    pub(crate) quota_slots: u64,
    /// True if recovery trusts the records of this origin.
    pub(crate) known: bool,
}

pub(crate) struct Origins {
    states: [OriginState; ORIGINS_MAX],
    /// The attached origins, by number.
    attached: [Option<Arc<Origin>>; ORIGINS_MAX],
    /// Origins whose devices were detached, and `CachedDevice::held` of each device.
    without_cache: Vec<(OriginId, Weak<()>)>,
    /// Origins whose blocks are being forgotten, each with the next slot to examine.
    forgetting: Vec<(u16, u32)>,
}

impl Origins {
    pub(crate) fn new(sb: &Superblock) -> Self {
        let mut states = [OriginState::default(); ORIGINS_MAX];
        for (state, entry) in states.iter_mut().zip(&sb.origins) {
            if let Some(entry) = entry {
                state.region_shift = entry.region_shift;
                state.quota_slots = entry.quota_slots;
                state.known = !entry.forgetting;
            }
        }
        let forgotten = sb.origins.iter().enumerate();
        let forgotten = forgotten.filter(|(_, e)| e.as_ref().is_some_and(|e| e.forgetting));
        Self {
            states,
            attached: [const { None }; ORIGINS_MAX],
            without_cache: Vec::new(),
            forgetting: forgotten.map(|(nr, _)| (nr as u16, 0)).collect(),
        }
    }

    /// Returns the state of the origin with this number.
    pub(crate) fn of(&self, nr: u16) -> &OriginState {
        &self.states[usize::from(nr & 15)]
    }

    pub(crate) fn of_mut(&mut self, nr: u16) -> &mut OriginState {
        &mut self.states[usize::from(nr & 15)]
    }

    /// Returns the attached origin with this number.
    pub(crate) fn attached(&self, nr: u16) -> Option<Arc<Origin>> {
        self.attached.get(usize::from(nr)).cloned().flatten()
    }

    pub(crate) fn all_attached(&self) -> impl Iterator<Item = &Arc<Origin>> {
        self.attached.iter().flatten()
    }

    /// Attaches an origin under its number.
    pub(crate) fn attach(&mut self, origin: Arc<Origin>) {
        let nr = usize::from(origin.nr);
        self.attached[nr] = Some(origin);
    }

    /// Removes an origin that no device uses.
    pub(crate) fn withdraw(&mut self, nr: u16) {
        self.attached[usize::from(nr)] = None;
    }

    /// Detaches an origin; `held` is of the device that goes on without the cache.
    pub(crate) fn detach(&mut self, origin: &Origin, held: Weak<()>) {
        self.attached[usize::from(origin.nr)] = None;
        self.without_cache.retain(|(_, held)| held.strong_count() > 0);
        self.without_cache.push((origin.id.clone(), held));
        self.set_link(origin, Link::Gone);
    }

    /// Changes whether an origin's requests go through the cache. That this needs the origins keeps
    /// it under the state's lock.
    pub(crate) fn set_link(&mut self, origin: &Origin, link: Link) {
        origin.set_link(link);
    }

    /// Returns true if a device that was detached from this origin is still in use.
    pub(crate) fn is_used_without_cache(&self, id: &OriginId) -> bool {
        let mut without = self.without_cache.iter();
        without.any(|(used, held)| held.strong_count() > 0 && used.is_same_origin(id))
    }

    /// Returns the first origin that is being forgotten, and the next slot to examine.
    pub(crate) fn forgetting(&self) -> Option<(u16, u32)> {
        self.forgetting.first().copied()
    }

    /// Begins to forget an origin: its records are not trusted any more.
    pub(crate) fn begin_forgetting(&mut self, nr: u16) {
        self.of_mut(nr).known = false;
        self.forgetting.push((nr, 0));
    }

    /// Notes the next slot to examine for the first origin that is being forgotten; `None`: all
    /// were.
    pub(crate) fn go_on_forgetting(&mut self, next: Option<u32>) {
        match next {
            Some(next) => self.forgetting[0].1 = next,
            None => drop(self.forgetting.remove(0)),
        }
    }
}
