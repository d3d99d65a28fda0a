//! Prefetch: leases that are likely to be needed next are requested early, as on a slow line each
//! request by itself is a round trip.
//!
//! - After a lookup, the rnode that the name names is likely to be needed: its lease is requested
//!   by the name, together with the lookup ([`RequestBody::AcquireNamed`]).
//! - A caller that has listed a directory and looks at its entries one after the other, as `ls -l`
//!   does, is likely to go on: leases on the entries that follow in the listing are requested in a
//!   window, which grows while that goes on.
//!
//! No call waits for a prefetch. It is a *hint*: if no reply comes it is forgotten, not sent again,
//! and a lease granted after that is released.
//!
//! Invariant: a grant by name is taken only if no lease was recalled or released since it was
//! requested, on any rnode: it may be about that one, and show the state before the client's own
//! changes.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::Client;
use crate::rnode::Name;
use crate::types::{Mode, Moment, RnodeId};
use crate::wire::{Entry, RequestBody};

/// The most listings followed at a time: as deep as a tree is usually walked.
const SCANS_MAX: usize = 8;
/// The longest listing that is followed, in entries.
const ENTRIES_MAX: usize = 1 << 16;
/// The first window and the largest, in entries.
const WINDOW: (usize, usize) = (16, 512);
/// The farthest that the next entry looked at may be ahead, in entries.
const NEAR: usize = 8;

/// A listing, and the progress through it.
#[derive(Debug)]
struct Scan {
    dir: RnodeId,
    order: Vec<RnodeId>,
    places: HashMap<RnodeId, usize>,
    window: usize,
    /// The position after the last prefetched entry.
    next: usize,
}

/// The listings that are followed, the last used first.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    scans: VecDeque<Scan>,
    /// The server grants this client no leases by name in this session.
    pub(super) by_number_alone: bool,
}

impl Prefetch {
    /// Notes that a directory was listed.
    pub(super) fn listed(&mut self, dir: RnodeId, entries: &[Entry]) {
        let known = self.scans.iter().position(|scan| scan.dir == dir);
        let known = known.and_then(|at| self.scans.remove(at));
        // A listing is read in parts, and each part lists the whole. It need not be quite the same.
        let scan = known.filter(|scan| scan.order.len() == entries.len()).unwrap_or_else(|| {
            let entries = if entries.len() > ENTRIES_MAX { &[] } else { entries };
            let order: Vec<RnodeId> = entries.iter().map(|e| e.dirent.id).collect();
            let places = order.iter().enumerate().map(|(at, id)| (*id, at)).collect();
            Scan { dir, order, places, window: 0, next: 0 }
        });
        self.scans.push_front(scan);
        self.scans.truncate(SCANS_MAX);
    }

    /// Notes that a lease on an rnode had to be requested. Returns the rnodes to prefetch.
    fn missed(&mut self, id: RnodeId) -> &[RnodeId] {
        let place = |scan: &Scan| scan.places.get(&id).copied();
        let found = self.scans.iter_mut().find_map(|scan| place(scan).map(|at| (scan, at)));
        let Some((scan, at)) = found else { return &[] };
        if (scan.next.saturating_sub(scan.window)..scan.next).contains(&at) {
            return &[]; // It is on its way.
        }
        let goes_on = (scan.next..scan.next + NEAR).contains(&at);
        let (first, most) = WINDOW;
        let window = if goes_on { (scan.window * 2).clamp(first, most) } else { 0 };
        let begin = at + 1;
        scan.next = scan.order.len().min(begin + window);
        scan.window = scan.next - begin;
        &scan.order[begin..scan.next]
    }
}

impl Client {
    /// Prefetches after a lease on an rnode had to be requested.
    pub(super) fn prefetch_after(&mut self, now: Moment, id: RnodeId) {
        let likely = self.prefetch.missed(id);
        if likely.is_empty() {
            return;
        }
        let asked: BTreeSet<RnodeId> = self
            .outstanding
            .values()
            .filter_map(|o| match o.body {
                RequestBody::Acquire { rnode, .. } => Some(rnode),
                _ => None,
            })
            .collect();
        let cache = &self.cache;
        let is_new = |id: &&RnodeId| {
            let is_known = cache.leases.contains_key(id) || cache.gone.contains(id);
            !is_known && !cache.denied.contains_key(id) && !asked.contains(id)
        };
        let wanted: Vec<RnodeId> = likely.iter().filter(is_new).copied().collect();
        for rnode in wanted {
            self.hint(now, RequestBody::Acquire { rnode, mode: Mode::Read });
        }
    }

    /// Prefetches the rnode that a name being looked up names.
    pub(super) fn ask_named(&mut self, now: Moment, dir: RnodeId, name: &Name) {
        let leases = &self.cache.leases;
        let is_recalled = |id| leases.get(id).is_some_and(|lease| lease.recall.is_some());
        if !self.prefetch.by_number_alone && !self.cache.recalled.iter().any(is_recalled) {
            self.hint(now, RequestBody::AcquireNamed { dir, name: name.clone() });
        }
    }

    /// Drops prefetches by name: a lease was recalled, or is released.
    pub(super) fn forget_named(&mut self) {
        self.outstanding.retain(|_, o| !matches!(o.body, RequestBody::AcquireNamed { .. }));
    }

    /// Drops all prefetches: the connection has ended.
    pub(super) fn forget_hints(&mut self) {
        self.outstanding.retain(|_, o| !o.hint);
        self.prefetch = Prefetch::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rnode::Dirent;
    use crate::types::Cookie;
    use weft_vfs::FileKind;

    fn id(n: usize) -> RnodeId {
        RnodeId::new(1, u32::try_from(n).expect("small") + 1)
    }

    fn listing(len: usize) -> Vec<Entry> {
        let entry = |n| {
            let dirent = Dirent { id: id(n), kind: FileKind::Regular, cookie: Cookie(n as u64) };
            Entry { name: Name::new(format!("f{n}").as_bytes()).expect("a name"), dirent }
        };
        (0..len).map(entry).collect()
    }

    #[test]
    fn traversed_listing_is_prefetched_in_growing_windows() {
        let (mut prefetch, entries) = (Prefetch::default(), listing(1000));
        prefetch.listed(RnodeId::ROOT, &entries);
        let (mut have, mut misses) = (BTreeSet::new(), 0);
        for n in 0..1000 {
            if have.insert(id(n)) {
                misses += 1;
                let new = prefetch.missed(id(n));
                assert!(new.len() <= WINDOW.1);
                have.extend(new);
            }
            prefetch.listed(RnodeId::ROOT, &entries);
        }
        assert_eq!((misses, have.len()), (6, 1000));
    }

    #[test]
    fn random_lookups_are_not_prefetched() {
        let mut prefetch = Prefetch::default();
        prefetch.listed(RnodeId::ROOT, &listing(1000));
        for n in [500, 20, 900, 40, 41 + NEAR] {
            assert_eq!(prefetch.missed(id(n)), &[], "{n}");
        }
        assert_eq!(prefetch.missed(id(5000)), &[], "not listed");
        assert_eq!(prefetch.missed(id(51)).len(), WINDOW.0);
        // With several callers at once, entries on their way are not requested twice, and the
        // window stays.
        assert_eq!(prefetch.missed(id(52)), &[]);
        assert_eq!(prefetch.missed(id(68)).first(), Some(&id(69)));
    }

    #[test]
    fn number_and_length_of_followed_listings_are_bounded() {
        let mut prefetch = Prefetch::default();
        prefetch.listed(RnodeId::ROOT, &listing(ENTRIES_MAX + 1));
        assert_eq!(prefetch.missed(id(0)), &[]);
        for n in 0..2 * SCANS_MAX {
            prefetch.listed(id(n), &listing(3));
        }
        assert_eq!(prefetch.scans.len(), SCANS_MAX);
    }
}
