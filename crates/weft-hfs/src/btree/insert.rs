//! Inserting a record, and splitting nodes that are full.

use super::node::{CAPACITY, NodeBuf, key_space};
use super::tree::{Befores, Path, Tree};
use crate::layout::NodeKind;
use crate::store::Store;
use crate::{Error, Result};
use smallvec::SmallVec;

/// A record with its key: at most 38 bytes and 102 bytes.
pub(crate) type Record = SmallVec<[u8; 256]>;

/// Builds a leaf record from an encoded key and a value.
pub(crate) fn leaf_record(key: &[u8], value: &[u8]) -> Record {
    let mut record = Record::from_slice(key);
    record.resize(key_space(key.len().saturating_sub(1)), 0);
    record.extend_from_slice(value);
    record
}

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Returns the number of nodes that inserting a record of `len` bytes at the end of a path
    /// allocates.
    pub(crate) fn nodes_to_insert<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        path: &Path,
        len: usize,
    ) -> Result<u32> {
        if path.steps.is_empty() {
            return Ok(1);
        }
        let mut len = len;
        let mut nodes = 0;
        for (level, step) in path.steps.iter().enumerate().rev() {
            if self.view(s, step.node, self.height(level))?.used() + len + 2 <= CAPACITY {
                return Ok(nodes);
            }
            nodes += 1;
            len = usize::from(self.kind.key_bytes()) + 5;
        }
        Ok(nodes + 1)
    }

    /// Inserts a record at the end of a search's path. The tree must have as many free nodes as
    /// [`nodes_to_insert`](Self::nodes_to_insert) returns. The patch is durable when the record is
    /// found after a power cut.
    pub(crate) fn insert<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        key: &[u8],
        value: &[u8],
        befores: &[P],
    ) -> Result<P> {
        debug_assert!(!path.found);
        let record = leaf_record(key, value);
        let Some(leaf) = path.leaf() else { return self.first_record(s, &record, befores) };
        self.header.records += 1;
        self.version += 1;
        let patch = self.insert_at(s, path, path.steps.len() - 1, leaf.index, &record, befores)?;
        if leaf.index == 0 {
            self.lower_keys(s, path, key)?;
        }
        Ok(patch)
    }

    fn first_record<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        record: &[u8],
        befores: &[P],
    ) -> Result<P> {
        let root = self.take_node(s, 0)?;
        let mut node = NodeBuf::empty(NodeKind::Leaf, 1);
        node.push(record);
        let mut waits = Befores::from_slice(befores);
        waits.push(self.grown);
        let made = s.init(self.block_of(root)?, &node.raw, &waits)?;
        self.note_needs(s, root, befores)?;
        self.version += 1;
        self.header.records += 1;
        self.header.depth = 1;
        self.header.root = root;
        self.header.first_leaf = root;
        self.header.last_leaf = root;
        let rooted = self.write_header(s, &[made])?;
        self.note_reach(s, root, rooted)?;
        s.join(&[made, rooted])
    }

    /// Inserts a record before record `at` of the node at `level` of a path.
    fn insert_at<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        level: usize,
        at: usize,
        record: &[u8],
        befores: &[P],
    ) -> Result<P> {
        let Some(step) = path.steps.get(level) else { return Err(Error::NotFound) };
        let old = self.load(s, step.node, self.height(level))?;
        if !old.fits(record.len()) {
            return self.split(s, path, level, at, record, befores, &old);
        }
        let mut new = old.clone();
        new.insert(at, record);
        let patch = self.write_node(s, step.node, &old, &new, befores)?;
        self.note_needs(s, step.node, befores)?;
        self.reachable(s, patch, path, level + 1)
    }

    /// Splits a node that a record does not fit in. See the [module](super) for the order.
    #[allow(clippy::too_many_arguments)] // those of insert_at, and the loaded node
    fn split<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        level: usize,
        at: usize,
        record: &[u8],
        befores: &[P],
        old: &NodeBuf,
    ) -> Result<P> {
        let Some(&step) = path.steps.get(level) else { return Err(Error::NotFound) };
        let height = self.height(level);
        let (node, next, count) = (step.node, old.next(), old.count());
        let right = self.take_node(s, node)?;
        // A node that grows at its end is likely to continue so: the left node stays full.
        let at_end = at == count && (next == 0 || self.appending == node);
        let (mut left_buf, mut right_buf) = distribute(old, at, record, at_end);
        self.appending = if at == count { right } else { 0 };
        left_buf.set_next(right);
        left_buf.set_prev(old.prev());
        right_buf.set_prev(node);
        right_buf.set_next(next);
        let in_right = at >= left_buf.count();

        let mut waits = self.needs_of(s, node);
        waits.extend(befores.iter().copied().filter(|&b| !s.is_durable(b)));
        self.note_needs(s, right, &waits)?;
        waits.push(self.grown);
        let made = s.init(self.block_of(right)?, &right_buf.raw, &waits)?;
        self.set_prev(s, next, right)?;
        if height == 1 && next == 0 {
            self.header.last_leaf = right;
        }

        let entry = self.kind.index_record(right_buf.view().key(0), right);
        let pointed = if let Some(parent) = level.checked_sub(1) {
            let index = path.steps.get(parent).map_or(0, |step| step.index + 1);
            self.insert_at(s, path, parent, index, &entry, &[made])?
        } else {
            let first = self.kind.index_record(left_buf.view().key(0), node);
            self.new_root(s, height, &[&first, &entry], made)?
        };
        // Records that moved to the right node wait for the same changes as those of the left node
        // before they are reachable.
        if let Some(&before) = self.reach.get(&node) {
            self.note_reach(s, right, before)?;
        }
        self.note_reach(s, right, pointed)?;
        if let Some(seam) = self.seams.remove(&node) {
            self.seams.insert(right, seam);
        }

        let cut = if at_end {
            self.set_next(s, node, right)?;
            pointed
        } else {
            let mut waits = Befores::from_slice(&[pointed]);
            if !in_right {
                waits.extend_from_slice(befores);
                self.note_needs(s, node, befores)?;
            }
            let cut = self.write_node(s, node, old, &left_buf, &waits)?;
            if !s.is_atomic() {
                self.trims.insert(node, cut);
            }
            cut
        };
        if in_right {
            return s.join(&[made, pointed]);
        }
        self.reachable(s, cut, path, level + 1)
    }

    fn new_root<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        height: u16,
        entries: &[&[u8]],
        made: P,
    ) -> Result<P> {
        let root = self.take_node(s, self.header.root)?;
        let mut buf = NodeBuf::empty(NodeKind::Index, u8::try_from(height + 1).unwrap_or(u8::MAX));
        for entry in entries {
            buf.push(entry);
        }
        let rooted = s.init(self.block_of(root)?, &buf.raw, &[made, self.grown])?;
        self.note_needs(s, root, &[made])?;
        self.header.root = root;
        self.header.depth = height + 1;
        let pointed = self.write_header(s, &[rooted])?;
        self.note_reach(s, root, pointed)?;
        Ok(pointed)
    }
}

/// Distributes the records of a full node and a new one over two nodes of about the same size; if
/// `at_end`, the new record is alone in the right node.
fn distribute(old: &NodeBuf, at: usize, record: &[u8], at_end: bool) -> (NodeBuf, NodeBuf) {
    let view = old.view();
    let empty = NodeBuf::empty(view.head.kind, view.head.height);
    let (mut left, mut right) = (empty.clone(), empty);
    let count = view.count();
    let all = || {
        (0..=count).map(|i| match i.cmp(&at) {
            core::cmp::Ordering::Less => view.record(i),
            core::cmp::Ordering::Equal => record,
            core::cmp::Ordering::Greater => view.record(i - 1),
        })
    };
    let total: usize = all().map(|r| r.len() + 2).sum();
    let mut used = 0;
    for (i, r) in all().enumerate() {
        let goes_left = if at_end {
            i < count
        } else {
            // The record that crosses the middle goes left if most of it is there.
            i == 0 || (i < count && used + (r.len() + 2) / 2 <= total / 2)
        };
        used += r.len() + 2;
        if goes_left && right.count() == 0 && left.fits(r.len()) {
            left.push(r);
        } else {
            right.push(r);
        }
    }
    (left, right)
}
