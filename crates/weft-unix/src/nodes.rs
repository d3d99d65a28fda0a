//! The inodes in memory, a bounded number of them, and the references on those that are not.
//!
//! The kernel remembers an inode until it forgets it, long after its last use, and holds a reference
//! on it for so long. So a reference does not keep an inode in memory: one that the volume has in
//! full may be dropped, and is read again when it is needed (from the engine's cache, as a rule).
//! Of a dropped inode the table keeps the number of its references and its directory.
//!
//! Invariants:
//! - An inode is in memory once at most, owned by this table, which the state's lock protects: nobody
//!   else can hold it. It is in memory or among the dropped ones, never both.
//! - An inode is dropped between two operations only: what one of them has loaded stays to its end.
//! - An inode is dropped only if reading it again gives the same: nothing of it waits to be written
//!   or to be durable ([`Node::is_settled`]), it has a name and no handle.
//! - A read without the lock finds out that an inode was dropped meanwhile ([`Node::version`]).

use crate::format::Inodes;
use crate::node::Node;
use hashbrown::HashMap;
use weft_vfs::Ino;

/// Capacity that a table keeps whatever its size, in entries.
const KEPT_CAPACITY: usize = 1024;

/// The references on an inode that is not in memory.
#[derive(Debug, Clone, Copy)]
struct Dropped {
    refs: u64,
    /// As [`Node::parent`]; 0 if it was not known.
    parent: Ino,
}

/// The inodes in memory.
#[derive(Debug)]
pub struct Nodes<F: Inodes> {
    /// In the order in which the hand of the clock passes them.
    all: Vec<Box<Node<F>>>,
    by_ino: HashMap<Ino, u32>,
    dropped: HashMap<Ino, Dropped>,
    hand: usize,
    /// Those added since the hand moved last.
    added: usize,
    /// The next [`trim`](Self::trim) drops recently used inodes, too.
    hurried: bool,
    /// Those ever added.
    loads: u64,
    max: usize,
}

impl<F: Inodes> Nodes<F> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            all: Vec::new(),
            by_ino: HashMap::new(),
            dropped: HashMap::new(),
            hand: 0,
            added: 0,
            hurried: false,
            loads: 0,
            max,
        }
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Returns an inode in memory.
    #[must_use]
    pub fn get(&self, ino: Ino) -> Option<&Node<F>> {
        Some(&self.all[*self.by_ino.get(&ino)? as usize])
    }

    /// Returns an inode in memory.
    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Node<F>> {
        Some(&mut self.all[*self.by_ino.get(&ino)? as usize])
    }

    /// Reports whether an inode is in memory, and protects it from being dropped soon.
    pub(crate) fn touch(&mut self, ino: Ino) -> bool {
        self.get_mut(ino).is_some_and(|node| {
            node.recent = true;
            true
        })
    }

    /// Adds an inode. It has the references that were taken when it was in memory last. It is not
    /// there now, but on a damaged volume: a new inode may get the number of one that is in use, if the
    /// bitmap calls that free. Then it takes its place.
    pub(crate) fn insert(&mut self, mut node: Node<F>) {
        let ino = node.ino;
        if let Some(replaced) = self.remove(ino) {
            node.refs += replaced.refs;
            node.opens += replaced.opens;
        }
        if let Some(dropped) = self.dropped.remove(&ino) {
            node.refs += dropped.refs;
            if node.parent == Ino(0) {
                node.parent = dropped.parent;
            }
        }
        self.loads += 1;
        node.load = self.loads;
        node.recent = true;
        self.added += 1;
        let at = u32::try_from(self.all.len()).expect("fewer than 2^32 inodes in memory");
        self.all.push(Box::new(node));
        self.by_ino.insert(ino, at);
    }

    /// Removes an inode from memory.
    pub(crate) fn remove(&mut self, ino: Ino) -> Option<Box<Node<F>>> {
        let at = self.by_ino.remove(&ino)? as usize;
        let node = self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            self.by_ino.insert(moved.ino, at as u32);
        }
        Some(node)
    }

    /// Drops inodes that were not used since the hand passed them last and that `may_drop`, as long
    /// as there are too many, and tells `dropped` of each. Looks at a few for each that was added;
    /// at `more` besides.
    pub(crate) fn trim(
        &mut self,
        more: usize,
        may_drop: impl Fn(&Node<F>) -> bool,
        mut dropped: impl FnMut(Ino),
    ) {
        let added = std::mem::take(&mut self.added);
        let hurried = std::mem::take(&mut self.hurried);
        if self.all.len() <= self.max {
            return;
        }
        // Each is passed twice before it goes, and some must stay.
        for _ in 0..more + 3 * added {
            if self.all.len() <= self.max {
                return;
            }
            self.hand = if self.hand + 1 < self.all.len() { self.hand + 1 } else { 0 };
            let node = &mut self.all[self.hand];
            let recent = std::mem::take(&mut node.recent) && !hurried;
            if recent || node.opens > 0 || !may_drop(node) {
                continue;
            }
            let (ino, refs, parent) = (node.ino, node.refs, node.parent);
            self.remove(ino);
            if refs > 0 {
                self.dropped.insert(ino, Dropped { refs, parent });
            }
            dropped(ino);
        }
    }

    /// Has the next [`trim`](Self::trim) drop recently used inodes too: after a burst nearly all are.
    pub(crate) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// Returns the number of inodes in memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the root is always there")]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes `count` references off an inode that is not in memory.
    pub(crate) fn forget_dropped(&mut self, ino: Ino, count: u64) {
        let Some(dropped) = self.dropped.get_mut(&ino) else { return };
        dropped.refs = dropped.refs.saturating_sub(count);
        if dropped.refs == 0 {
            self.dropped.remove(&ino);
        }
    }

    /// Takes all references and handles off all inodes. Returns those in memory that had some.
    pub(crate) fn forget_all(&mut self) -> Vec<Ino> {
        self.dropped.clear();
        let mut used = Vec::new();
        for node in &mut self.all {
            if node.is_used() {
                used.push(node.ino);
            }
            (node.refs, node.opens) = (0, 0);
        }
        used
    }

    /// Returns the directory that an inode has, or had when it was dropped: for a directory the one
    /// that `..` names, for another file the one where it was seen last.
    pub(crate) fn parent_of_dropped(&self, ino: Ino) -> Option<Ino> {
        self.dropped.get(&ino).map(|dropped| dropped.parent).filter(|parent| *parent != Ino(0))
    }

    /// Gives back the memory of inodes and references that are gone.
    pub(crate) fn shrink(&mut self) {
        let (all, dropped) = (self.all.len(), self.dropped.len());
        if self.all.capacity() > 4 * all.max(KEPT_CAPACITY) {
            self.all.shrink_to(2 * all);
            self.by_ino.shrink_to(2 * all);
        }
        if self.dropped.capacity() > 4 * dropped.max(KEPT_CAPACITY) {
            self.dropped.shrink_to(2 * dropped);
        }
    }
}
