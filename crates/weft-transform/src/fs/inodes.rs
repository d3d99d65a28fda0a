//! The inodes of this file system. A file that is rewritten changes its inode below and keeps its
//! number here; all others have the same number on both sides, except where a number below is taken
//! by a file that kept it. A file gets the same number again after it was forgotten.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use weft_vfs::{Error, FileKind, Ino, Result};

use super::inode::{Attached, Inode, Location, View};
use super::locks::locked;

/// Inode numbers from here on are those of synthetic inodes.
pub(super) const SYNTHETIC_FIRST: u64 = 3 << 62;

/// Returns true for a synthetic inode, which does not exist in the file system below: one of an
/// archive's tree, or of the directory of counters.
pub(super) fn is_synthetic(ino: Ino) -> bool {
    ino.0 >= SYNTHETIC_FIRST
}

/// All referenced inodes.
#[derive(Default)]
pub(super) struct InodeTable {
    above: HashMap<Ino, Arc<Inode>>,
    /// Maps inode numbers below to numbers of this file system.
    below: HashMap<Ino, Ino>,
    /// Maps the inode number of a base to its views: the name of each, and its number.
    views: HashMap<Ino, Vec<(Vec<u8>, Ino)>>,
    /// Maps inode numbers below to numbers of this file system, where they differ: also those of
    /// unreferenced files, so that they get the same number when they are looked up again.
    kept: HashMap<Ino, Ino>,
    /// The numbers of this file system among those: no other file gets them.
    kept_above: HashSet<Ino>,
    /// The number of generated inode numbers.
    made_up: u64,
}

impl InodeTable {
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.above.get(&ino).cloned().ok_or(Error::Stale(ino.0))
    }

    /// Returns the inode number of an inode below, referenced or not.
    pub(super) fn number(&mut self, below: Ino) -> Ino {
        if let Some(ino) = self.below.get(&below).or_else(|| self.kept.get(&below)) {
            return *ino;
        }
        let taken = is_synthetic(below)
            || self.above.contains_key(&below)
            || self.kept_above.contains(&below);
        if !taken {
            return below;
        }
        let ino = self.make_up();
        self.keep_number(below, ino);
        ino
    }

    /// Assigns the number `above` to an inode below.
    fn keep_number(&mut self, below: Ino, above: Ino) {
        if below == above {
            self.kept.remove(&below);
            self.kept_above.remove(&above);
        } else {
            self.kept.insert(below, above);
            self.kept_above.insert(above);
        }
    }

    /// Records that a file has another inode below from now on.
    pub(super) fn moved_below(&mut self, old: Ino, new: Ino) {
        self.drop_alias(old);
        self.kept.remove(&old);
        if let Some(above) = self.below.get(&new).copied() {
            // The file keeps the number of its first inode for life, even if that is reused below.
            self.keep_number(new, above);
        }
    }

    /// Returns the inode of an inode below, with one more use.
    pub(super) fn acquire(&self, below: Ino) -> Option<Arc<Inode>> {
        let inode = self.below.get(&below).and_then(|ino| self.above.get(ino))?;
        self.add_use(inode);
        Some(inode.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<Inode>> {
        self.above.values().cloned().collect()
    }

    /// Creates an inode, or finds the existing one, and adds one use; returns true if it was created.
    pub(super) fn insert(
        &mut self,
        location: Location,
        kind: FileKind,
        path: Vec<u8>,
        attached: &Attached,
    ) -> (Arc<Inode>, bool) {
        if let Some(inode) = self.acquire(location.ino) {
            return (inode, false);
        }
        let below = location.ino;
        let ino = self.number(below);
        let location = Arc::new(Mutex::new(location));
        let inode = Arc::new(Inode::new(ino, kind, location, path, attached.clone(), None));
        self.above.insert(ino, inode.clone());
        self.below.insert(below, ino);
        (inode, true)
    }

    /// Generates an unused inode number.
    fn make_up(&mut self) -> Ino {
        loop {
            self.made_up += 1;
            let ino = Ino(u64::MAX / 2 + self.made_up);
            if !self.above.contains_key(&ino) && !self.kept_above.contains(&ino) {
                return ino;
            }
        }
    }

    /// Creates the inode of a view of `base`, or finds the existing one, and adds one use; returns
    /// true if it was created.
    pub(super) fn insert_view(
        &mut self,
        base: &Arc<Inode>,
        name: &[u8],
        path: Vec<u8>,
        view: View,
    ) -> (Arc<Inode>, bool) {
        if let Some(inode) = self.view_named(base.ino, name) {
            self.add_use(&inode);
            return (inode, false);
        }
        let ino = self.make_up();
        let (kind, location) = (FileKind::Regular, base.location.clone());
        let attached = Attached::View(Arc::new(view));
        let inode = Arc::new(Inode::new(ino, kind, location, path, attached, Some((base, name))));
        self.above.insert(ino, inode.clone());
        self.views.entry(base.ino).or_default().push((name.to_vec(), ino));
        (inode, true)
    }

    /// Returns the view of this name.
    pub(super) fn view_named(&self, base: Ino, name: &[u8]) -> Option<Arc<Inode>> {
        let (_, ino) = self.views.get(&base)?.iter().find(|(there, _)| there == name)?;
        self.above.get(ino).cloned()
    }

    /// Detaches a view from its name, so that the next lookup creates another inode.
    pub(super) fn forget_view_name(&mut self, inode: &Inode) {
        self.views.retain(|_, views| {
            views.retain(|(_, ino)| *ino != inode.ino);
            !views.is_empty()
        });
    }

    /// Returns the referenced views of a file.
    pub(super) fn views_of(&self, base: Ino) -> Vec<Arc<Inode>> {
        let views = self.views.get(&base).into_iter().flatten();
        views.filter_map(|(_, ino)| self.above.get(ino).cloned()).collect()
    }

    pub(super) fn add_use(&self, inode: &Inode) {
        inode.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases `count` uses; returns the inode if these were the last.
    pub(super) fn drop_uses(&mut self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        let inode = self.above.get(&ino)?;
        let uses = inode.uses.load(Ordering::Relaxed);
        inode.uses.store(uses.saturating_sub(count), Ordering::Relaxed);
        (uses <= count).then(|| inode.clone())
    }

    /// Removes an inode, unless it has been used again; returns true if it was removed.
    pub(super) fn remove_unused(&mut self, inode: &Arc<Inode>) -> bool {
        let unused = inode.uses.load(Ordering::Relaxed) == 0
            && self.above.get(&inode.ino).is_some_and(|there| Arc::ptr_eq(there, inode));
        if unused {
            self.above.remove(&inode.ino);
            if inode.view_name.is_none() {
                let location = locked(&inode.location).clone();
                self.below.remove(&location.ino);
                if location.unlinked && self.kept.remove(&location.ino).is_some() {
                    self.kept_above.remove(&inode.ino);
                }
            } else {
                self.forget_view_name(inode);
            }
        }
        unused
    }

    /// Maps `new`, which is about to replace `old` below, to the same inode, until one of them is
    /// dropped.
    pub(super) fn alias(&mut self, old: Ino, new: Ino) {
        if let Some(ino) = self.below.get(&old).copied() {
            self.below.insert(new, ino);
        }
    }

    pub(super) fn drop_alias(&mut self, below: Ino) {
        self.below.remove(&below);
    }

    pub(super) fn clear(&mut self) -> Vec<Arc<Inode>> {
        self.below.clear();
        self.views.clear();
        self.above.drain().map(|(_, inode)| inode).collect()
    }
}
