//! The inodes of this file system. A file that is rewritten changes its inode below and keeps its
//! number here; all others have the same number on both sides, except where a number below is taken
//! by a file that kept it. A file gets the same number again after it was forgotten.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_vfs::{Error, FileKind, Ino, Result};

use super::attach_ioctl::RuntimeStages;
use super::base::{Place, SharedPlace, locked};
use super::file::{Attached, File};
use super::ground::View;
use super::snapshot::Snapshot;

/// A referenced inode.
pub(super) struct Node {
    /// The inode number in this file system.
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) place: SharedPlace,
    /// A path of the inode, as of the last lookup.
    pub(super) path: Mutex<Vec<u8>>,
    pub(super) file: Mutex<File>,
    /// The stages pushed by programs that have the file open.
    pub(super) runtime_stages: Mutex<RuntimeStages>,
    /// The name of a view: a node that shares the location of its base, and has no inode below.
    pub(super) view: Option<Vec<u8>>,
    /// The snapshot that a view shows as long as the kernel reads it directly.
    pub(super) snapshot: Mutex<Option<Snapshot>>,
    /// The validity of cached attributes, shared by a file and its views.
    pub(super) vouched: Arc<Mutex<Vouched>>,
    /// The number of the last link change in the file system in which this link was found to have
    /// another target, or other permissions, than before.
    pub(super) led_elsewhere: AtomicU64,
    /// The number of the last such change behind this file when its permissions were last reported
    /// to the kernel.
    pub(super) told: AtomicU64,
    /// The number of descriptors through which the kernel writes the file below directly.
    pub(super) written_past: AtomicU64,
    /// The number of descriptors whose reads go through the kernel's cache, which relies on the
    /// length that was reported to it.
    pub(super) cached_opens: AtomicU64,
    /// References and open handles.
    uses: AtomicU64,
}

impl Node {
    /// The inode below.
    pub(super) fn below(&self) -> Ino {
        locked(&self.place).ino
    }
}

/// How long the kernel keeps the attributes of a view.
const VOUCHED_FOR: Duration = Duration::from_millis(10);

/// From when on they are certainly forgotten, counted as above: the kernel counts from when it has
/// the answer.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(40);

/// What was changed less long ago is not vouched for, so that nobody who changes a file and looks
/// at its views in turn has to wait.
const QUIET: Duration = Duration::from_secs(1);

/// Until when the kernel may keep the attributes of the views of a file: whoever changes the file
/// waits for that. Without it the kernel asks for the attributes of a view before each read.
#[derive(Debug, Default)]
pub(super) struct Vouched {
    until: Option<Instant>,
    changed: Option<Instant>,
}

impl Vouched {
    /// For how long what is looked up after `now` may be kept.
    pub(super) fn vouch(&mut self, now: Instant) -> Duration {
        if self.changed.is_some_and(|changed| now.saturating_duration_since(changed) < QUIET) {
            return Duration::ZERO;
        }
        self.until = Some(now + FORGOTTEN_AFTER);
        VOUCHED_FOR
    }

    /// The file is about to change. Returns how long that has to wait.
    pub(super) fn change(&mut self, now: Instant) -> Duration {
        self.changed = Some(now);
        self.until.take().map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// All referenced inodes.
#[derive(Default)]
pub(super) struct Nodes {
    above: HashMap<Ino, Arc<Node>>,
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

impl Nodes {
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Node>> {
        self.above.get(&ino).cloned().ok_or(Error::Stale(ino.0))
    }

    /// Returns the inode number of an inode below, referenced or not.
    pub(super) fn number(&mut self, below: Ino) -> Ino {
        if let Some(ino) = self.below.get(&below).or_else(|| self.kept.get(&below)) {
            return *ino;
        }
        let taken = below.0 >= super::trees::FIRST
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

    /// Returns the node of an inode below, with one more use.
    pub(super) fn acquire(&self, below: Ino) -> Option<Arc<Node>> {
        let node = self.below.get(&below).and_then(|ino| self.above.get(ino))?;
        self.add_use(node);
        Some(node.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.above.values().cloned().collect()
    }

    /// Creates a node, or finds the existing one, and adds one use; returns true if it was created.
    pub(super) fn insert(
        &mut self,
        place: Place,
        kind: FileKind,
        path: Vec<u8>,
        attached: &Attached,
    ) -> (Arc<Node>, bool) {
        if let Some(node) = self.acquire(place.ino) {
            return (node, false);
        }
        let below = place.ino;
        let ino = self.number(below);
        let node = Arc::new(Node {
            ino,
            kind,
            place: Arc::new(Mutex::new(place)),
            path: Mutex::new(path),
            file: Mutex::new(File::new(attached.clone())),
            runtime_stages: Mutex::default(),
            view: None,
            snapshot: Mutex::default(),
            vouched: Arc::default(),
            led_elsewhere: AtomicU64::new(0),
            told: AtomicU64::new(0),
            written_past: AtomicU64::new(0),
            cached_opens: AtomicU64::new(0),
            uses: AtomicU64::new(1),
        });
        self.above.insert(ino, node.clone());
        self.below.insert(below, ino);
        (node, true)
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

    /// Creates the node of a view of `base`, or finds the existing one, and adds one use; returns
    /// true if it was created.
    pub(super) fn insert_view(
        &mut self,
        base: &Arc<Node>,
        name: &[u8],
        path: Vec<u8>,
        view: View,
    ) -> (Arc<Node>, bool) {
        if let Some(node) = self.view_named(base.ino, name) {
            self.add_use(&node);
            return (node, false);
        }
        let ino = self.make_up();
        let node = Arc::new(Node {
            ino,
            kind: FileKind::Regular,
            place: base.place.clone(),
            path: Mutex::new(path),
            file: Mutex::new(File::new(Attached::View(Arc::new(view)))),
            runtime_stages: Mutex::default(),
            view: Some(name.to_vec()),
            snapshot: Mutex::default(),
            vouched: base.vouched.clone(),
            led_elsewhere: AtomicU64::new(0),
            told: AtomicU64::new(0),
            written_past: AtomicU64::new(0),
            cached_opens: AtomicU64::new(0),
            uses: AtomicU64::new(1),
        });
        self.above.insert(ino, node.clone());
        self.views.entry(base.ino).or_default().push((name.to_vec(), ino));
        (node, true)
    }

    /// Returns the view of this name.
    pub(super) fn view_named(&self, base: Ino, name: &[u8]) -> Option<Arc<Node>> {
        let (_, ino) = self.views.get(&base)?.iter().find(|(there, _)| there == name)?;
        self.above.get(ino).cloned()
    }

    /// Detaches a view from its name, so that the next lookup creates another inode.
    pub(super) fn forget_view_name(&mut self, node: &Node) {
        self.views.retain(|_, views| {
            views.retain(|(_, ino)| *ino != node.ino);
            !views.is_empty()
        });
    }

    /// Returns the referenced views of a file.
    pub(super) fn views_of(&self, base: Ino) -> Vec<Arc<Node>> {
        let views = self.views.get(&base).into_iter().flatten();
        views.filter_map(|(_, ino)| self.above.get(ino).cloned()).collect()
    }

    pub(super) fn add_use(&self, node: &Node) {
        node.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases `count` uses; returns the node if these were the last.
    pub(super) fn drop_uses(&mut self, ino: Ino, count: u64) -> Option<Arc<Node>> {
        let node = self.above.get(&ino)?;
        let uses = node.uses.load(Ordering::Relaxed);
        node.uses.store(uses.saturating_sub(count), Ordering::Relaxed);
        (uses <= count).then(|| node.clone())
    }

    /// Removes a node, unless it has been used again; returns true if it was removed.
    pub(super) fn remove_unused(&mut self, node: &Arc<Node>) -> bool {
        let unused = node.uses.load(Ordering::Relaxed) == 0
            && self.above.get(&node.ino).is_some_and(|there| Arc::ptr_eq(there, node));
        if unused {
            self.above.remove(&node.ino);
            if node.view.is_none() {
                let place = locked(&node.place).clone();
                self.below.remove(&place.ino);
                if place.unlinked && self.kept.remove(&place.ino).is_some() {
                    self.kept_above.remove(&node.ino);
                }
            } else {
                self.forget_view_name(node);
            }
        }
        unused
    }

    /// Maps `new`, which is about to replace `old` below, to the same node, until one of them is
    /// dropped.
    pub(super) fn alias(&mut self, old: Ino, new: Ino) {
        if let Some(ino) = self.below.get(&old).copied() {
            self.below.insert(new, ino);
        }
    }

    pub(super) fn drop_alias(&mut self, below: Ino) {
        self.below.remove(&below);
    }

    pub(super) fn clear(&mut self) -> Vec<Arc<Node>> {
        self.below.clear();
        self.views.clear();
        self.above.drain().map(|(_, node)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_changes_waits_for_what_was_vouched() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut vouched = Vouched::default();
        assert_eq!(vouched.change(start), Duration::ZERO);
        assert_eq!(vouched.vouch(at(999)), Duration::ZERO);
        assert_eq!(vouched.vouch(at(1000)), VOUCHED_FOR);
        assert_eq!(vouched.vouch(at(1010)), VOUCHED_FOR);
        assert_eq!(vouched.change(at(1015)), FORGOTTEN_AFTER - Duration::from_millis(5));
        assert_eq!(vouched.change(at(1016)), Duration::ZERO);
        assert_eq!(vouched.vouch(at(1016)), Duration::ZERO);
        assert_eq!(vouched.vouch(at(2016)), VOUCHED_FOR);
        assert_eq!(vouched.change(at(3000)), Duration::ZERO);
    }
}
