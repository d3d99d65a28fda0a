//! Regions of origins: they track where an origin may differ from the durable metadata, and where
//! dirty blocks are.
//!
//! An *intent* records that the origin is being, or has been, changed in a region since cache and
//! origin were last known to agree there. After a crash, clean blocks in a region with an intent
//! are not trusted. So an intent must be durable before the origin is changed under a block that a
//! durable record marks as clean; and it is cleared only when the origin was flushed and the
//! records of the changed blocks are in the log, before the clearing or in the same batch.
//!
//! The regions with dirty blocks are ordered by origin and position; write-back follows this order.

use crate::format::log::RegionRun;
use std::collections::BTreeMap;

/// A region: origin in the upper half, number in the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RegionKey(pub(crate) u64);

impl RegionKey {
    pub(crate) fn new(origin: u16, region: u32) -> Self {
        Self(u64::from(origin) << 32 | u64::from(region))
    }

    pub(crate) fn origin(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(crate) fn region(self) -> u32 {
        self.0 as u32
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Intent {
    /// Cache and origin agree.
    #[default]
    None,
    /// To be set by the next commit.
    Pending,
    /// Being written by the commit in progress.
    Committing,
    /// Durable on the cache device.
    Durable,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Region {
    pub(crate) intent: Intent,
    /// Number of writes to the origin in progress.
    pub(crate) writers: u32,
    /// Number of the last write that ended here: up to it the origin must be flushed.
    pub(crate) written: u64,
    /// Time of that write, in milliseconds.
    pub(crate) written_ms: u64,
    /// Number of dirty sub-blocks.
    pub(crate) dirty: u32,
    /// Time since which there are dirty sub-blocks, in milliseconds.
    pub(crate) dirty_since_ms: u64,
    /// A flush of the origin failed to make writes here durable: the intent stays.
    pub(crate) doubtful: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Regions {
    map: BTreeMap<RegionKey, Region>,
    /// Regions whose intent is pending.
    pub(crate) pending: Vec<RegionKey>,
    pub(crate) durable: u64,
}

impl Regions {
    pub(crate) fn intent(&self, key: RegionKey) -> Intent {
        self.map.get(&key).map_or(Intent::None, |region| region.intent)
    }

    /// Changes a region, and removes it if it has no intent, writer or dirty block.
    pub(crate) fn update(&mut self, key: RegionKey, change: impl FnOnce(&mut Region)) {
        let region = self.map.entry(key).or_default();
        change(region);
        if region.intent == Intent::None && region.writers == 0 && region.dirty == 0 {
            self.map.remove(&key);
        }
    }

    /// Requests an intent, if there is none.
    pub(crate) fn want(&mut self, key: RegionKey) {
        let region = self.map.entry(key).or_default();
        if region.intent == Intent::None {
            region.intent = Intent::Pending;
            self.pending.push(key);
        }
    }

    /// Advances intents from one state to the next, with the progress of a commit.
    pub(crate) fn advance(&mut self, keys: &[RegionKey], from: Intent, to: Intent) {
        for key in keys {
            if let Some(region) = self.map.get_mut(key).filter(|region| region.intent == from) {
                region.intent = to;
                self.durable += u64::from(to == Intent::Durable);
            }
        }
    }

    /// Returns the regions of an origin that were written since its `flushed`th write, in order.
    /// Their intents stay from now on.
    pub(crate) fn doubt(&mut self, origin: u16, flushed: u64) -> Vec<u32> {
        let range = RegionKey::new(origin, 0)..=RegionKey::new(origin, u32::MAX);
        let mut doubted = Vec::new();
        for (key, region) in self.map.range_mut(range) {
            if region.writers > 0 || region.written > flushed {
                region.doubtful = true;
                doubted.push(key.region());
            }
        }
        doubted
    }

    /// Applies intents of the metadata on the device.
    pub(crate) fn recover(&mut self, run: &RegionRun, set: bool) {
        for number in run.first..run.first + run.count {
            let key = RegionKey::new(u16::from(run.origin), number);
            let before = self.intent(key);
            let now = if set { Intent::Durable } else { Intent::None };
            if before != now {
                self.durable = if set { self.durable + 1 } else { self.durable - 1 };
                self.update(key, |region| region.intent = now);
            }
        }
    }

    /// Removes the intents of these regions: the batch that clears them is being committed.
    pub(crate) fn clear(&mut self, keys: &[RegionKey]) {
        for key in keys {
            debug_assert_eq!(self.intent(*key), Intent::Durable);
            self.durable -= 1;
            self.update(*key, |region| region.intent = Intent::None);
        }
    }

    /// Returns the regions with a durable intent for which `idle` returns true.
    pub(crate) fn durable_if(
        &self,
        mut idle: impl FnMut(RegionKey, &Region) -> bool,
    ) -> Vec<RegionKey> {
        let durable = self.map.iter().filter(|(_, region)| region.intent == Intent::Durable);
        durable.filter(|(key, region)| idle(**key, region)).map(|(key, _)| *key).collect()
    }

    /// Returns the regions with an intent for which `wanted` returns true, in order.
    pub(crate) fn with_intent(&self, wanted: impl Fn(Intent) -> bool) -> Vec<RegionKey> {
        let found = self.map.iter().filter(|(_, region)| wanted(region.intent));
        found.map(|(key, _)| *key).collect()
    }

    /// Returns the regions with dirty blocks, from `from` on and then from the beginning.
    pub(crate) fn dirty_from(&self, from: RegionKey) -> impl Iterator<Item = (RegionKey, &Region)> {
        let ahead = self.map.range(from..).chain(self.map.range(..from));
        ahead.filter(|(_, region)| region.dirty > 0).map(|(key, region)| (*key, region))
    }

    /// Returns the regions of one origin, each with its state.
    pub(crate) fn of(&self, origin: u16) -> impl Iterator<Item = (RegionKey, &Region)> {
        let range = RegionKey::new(origin, 0)..=RegionKey::new(origin, u32::MAX);
        self.map.range(range).map(|(key, region)| (*key, region))
    }

    /// Forgets all regions of an origin.
    pub(crate) fn forget(&mut self, origin: u16) {
        let keys: Vec<RegionKey> = self.of(origin).map(|(key, _)| key).collect();
        for key in keys {
            if let Some(region) = self.map.remove(&key) {
                self.durable -= u64::from(region.intent == Intent::Durable);
            }
        }
        self.pending.retain(|key| key.origin() != origin);
    }
}

/// Combines regions, which are in order, into runs.
pub(crate) fn runs(keys: &[RegionKey]) -> Vec<RegionRun> {
    let mut runs: Vec<RegionRun> = Vec::new();
    for key in keys {
        match runs.last_mut() {
            Some(run)
                if u16::from(run.origin) == key.origin()
                    && run.first + run.count == key.region() =>
            {
                run.count += 1;
            }
            _ => runs.push(RegionRun { origin: key.origin() as u8, first: key.region(), count: 1 }),
        }
    }
    runs
}

/// Returns at most `max` runs that cover all of `runs` (in order): the smallest gaps are closed.
pub(crate) fn cover(mut runs: Vec<RegionRun>, max: usize) -> Vec<RegionRun> {
    while runs.len() > max.max(crate::ORIGINS_MAX) {
        let mut gaps: Vec<u64> = runs
            .windows(2)
            .filter(|w| w[0].origin == w[1].origin)
            .map(|w| u64::from(w[1].first) - u64::from(w[0].first) - u64::from(w[0].count))
            .collect();
        gaps.sort_unstable();
        let excess = runs.len() - max;
        let widest = gaps[(excess - 1).min(gaps.len() - 1)];
        let mut merged: Vec<RegionRun> = Vec::with_capacity(runs.len());
        for run in runs {
            match merged.last_mut() {
                Some(last)
                    if last.origin == run.origin
                        && u64::from(run.first)
                            <= u64::from(last.first) + u64::from(last.count) + widest =>
                {
                    last.count = run.first + run.count - last.first;
                }
                _ => merged.push(run),
            }
        }
        runs = merged;
    }
    runs
}
