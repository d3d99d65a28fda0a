//! Removing a record, and merging or removing nodes that become small or empty.

use super::node::CAPACITY;
use super::tree::{Befores, Path, Tree};
use crate::store::Store;
use crate::{Error, Result};

/// A node with fewer used bytes than this is merged with a neighbour if possible.
const SMALL: usize = CAPACITY / 2;
/// Two nodes that have no more than this together are merged: some room is left, so that the result
/// does not split again at once.
const TOGETHER: usize = CAPACITY * 3 / 4;

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Removes the record that a search found. The patch is durable when the removal is.
    pub(crate) fn remove<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        befores: &[P],
    ) -> Result<P> {
        let Some(leaf) = path.leaf().filter(|_| path.found) else { return Err(Error::NotFound) };
        let level = path.steps.len() - 1;
        self.header.records = self.header.records.saturating_sub(1);
        self.version += 1;
        let free_nodes = self.header.free_nodes;
        let old = self.load(s, leaf.node, 1)?;
        let removed = if old.count() == 1 {
            self.drop_node(s, path, level, befores)?
        } else {
            let mut new = old.clone();
            new.remove(leaf.index);
            let patch = self.write_node(s, leaf.node, &old, &new, befores)?;
            self.note_needs(s, leaf.node, befores)?;
            if leaf.index == 0 && level > 0 {
                self.note_loose(s, leaf.node, patch)?;
            }
            let patch = self.reachable(s, patch, path, level + 1)?;
            self.try_merge(s, path, level)?;
            patch
        };
        if self.header.free_nodes != free_nodes {
            self.lower_root(s)?;
        }
        Ok(removed)
    }

    /// Returns the changes that must be durable before a node can be removed.
    ///
    /// - The changes that its content waits for: on the disk it may still have records that were
    ///   removed, and their removal waited for that.
    /// - The change that cut off its upper half, when it was split: until the new node can be
    ///   reached, which may take a new root, that half is nowhere else.
    /// - The change that made the node on its right its neighbour, if their parents were merged.
    ///
    /// The change that made its keys lead to it goes on to its heir, with
    /// [`note_reach`](Self::note_reach): if it had to be durable first, a folder that is emptied
    /// would be written a node at a time.
    fn parting<S: Store<Patch = P>>(&mut self, s: &S, node: u32) -> Befores<P> {
        let mut all = self.needs_of(s, node);
        all.extend(self.trims.get(&node).copied());
        all.extend(self.seams.get(&node).copied());
        all
    }

    /// Takes a node, whose last record is being removed, out of the tree.
    fn drop_node<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        level: usize,
        befores: &[P],
    ) -> Result<P> {
        let Some(&step) = path.steps.get(level) else { return Err(Error::NotFound) };
        let height = self.height(level);
        // Removing the node also removes the records that have left it but are still in its block
        // on the disk.
        let mut all = self.parting(s, step.node);
        all.extend_from_slice(befores);
        let befores = all.as_slice();
        let (prev, next) = {
            let head = self.view(s, step.node, height)?.head;
            (head.prev, head.next)
        };
        let Some(&parent) = level.checked_sub(1).and_then(|p| path.steps.get(p)) else {
            self.header.root = 0;
            self.header.depth = 0;
            self.header.first_leaf = 0;
            self.header.last_leaf = 0;
            let gone = self.write_header(s, befores)?;
            self.give_node(s, step.node, gone)?;
            return Ok(gone);
        };
        let old = self.load(s, parent.node, height + 1)?;
        let mut new = old.clone();
        let gone = if old.count() == 1 {
            self.drop_node(s, path, level - 1, befores)?
        } else if parent.index + 1 < old.count() {
            // The right neighbour takes the node's place, under its key.
            let right = old.view().child(parent.index + 1);
            new.set_child(parent.index, right);
            new.remove(parent.index + 1);
            let patch = self.write_node(s, parent.node, &old, &new, befores)?;
            self.note_needs(s, parent.node, befores)?;
            let patch = self.reachable(s, patch, path, path.steps.len())?;
            let leaf = self.edge_leaf(s, right, height, false, &mut Befores::new())?;
            self.note_loose(s, leaf, patch)?;
            self.note_reach(s, leaf, patch)?;
            patch
        } else {
            let left = old.view().child(parent.index - 1);
            let mut waits = Befores::from_slice(befores);
            let leaf = self.edge_leaf(s, left, height, true, &mut waits)?;
            new.remove(parent.index);
            let patch = self.write_node(s, parent.node, &old, &new, &waits)?;
            self.note_needs(s, parent.node, &waits)?;
            let patch = self.reachable(s, patch, path, path.steps.len())?;
            self.note_reach(s, leaf, patch)?;
            patch
        };
        self.unlink(s, height, prev, next)?;
        self.give_node(s, step.node, gone)?;
        Ok(gone)
    }

    /// Takes a node without records of its own out of the tree, if the entry with `key` leads to
    /// it; returns the change, or `None`. For a recovery: links are not correct yet.
    pub(crate) fn drop_empty<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        node: u32,
        height: u16,
        key: &[u8],
        after: P,
    ) -> Result<Option<P>> {
        let path = self.find(s, key)?;
        let Some(level) = usize::from(self.header.depth).checked_sub(usize::from(height)) else {
            return Ok(None);
        };
        if path.steps.get(level).is_none_or(|step| step.node != node) {
            return Ok(None);
        }
        let gone = self.drop_node(s, &path, level, &[after])?;
        self.lower_root(s)?;
        Ok(Some(gone))
    }

    /// Closes the gap that a removed node leaves in a level.
    fn unlink<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        height: u16,
        prev: u32,
        next: u32,
    ) -> Result<()> {
        self.set_next(s, prev, next)?;
        self.set_prev(s, next, prev)?;
        if height == 1 {
            if prev == 0 {
                self.header.first_leaf = next;
            }
            if next == 0 {
                self.header.last_leaf = prev;
            }
        }
        Ok(())
    }

    /// Returns the first or last leaf below a node. Adds to `trims` the changes that cut off the
    /// stale copies on the path.
    pub(super) fn edge_leaf<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        node: u32,
        height: u16,
        last: bool,
        trims: &mut Befores<P>,
    ) -> Result<u32> {
        let mut at = node;
        for height in (1..=height).rev() {
            trims.extend(self.trims.get(&at).copied());
            if height > 1 {
                let view = self.view(s, at, height)?;
                at = view.child(if last { view.count() - 1 } else { 0 });
            }
        }
        Ok(at)
    }

    /// Merges a node that has become small with a neighbour under the same parent.
    fn try_merge<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        level: usize,
    ) -> Result<()> {
        let (Some(step), Some(above)) = (path.steps.get(level), level.checked_sub(1)) else {
            return Ok(());
        };
        let Some(parent) = path.steps.get(above).copied() else { return Ok(()) };
        let height = self.height(level);
        let used = self.view(s, step.node, height)?.used();
        if used > SMALL {
            return Ok(());
        }
        let index = self.load(s, parent.node, height + 1)?;
        let neighbours = [parent.index.checked_sub(1), Some(parent.index + 1)];
        for neighbour in neighbours.into_iter().flatten().filter(|&i| i < index.count()) {
            let other = self.view(s, index.view().child(neighbour), height)?.used();
            if used + other <= TOGETHER {
                self.merge(s, path, level, neighbour.min(parent.index))?;
                return self.try_merge(s, path, above);
            }
        }
        Ok(())
    }

    /// Merges the nodes of entries `at` and `at + 1` of the parent of a step into the left one.
    fn merge<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        level: usize,
        at: usize,
    ) -> Result<()> {
        let height = self.height(level);
        let Some(&parent) = level.checked_sub(1).and_then(|p| path.steps.get(p)) else {
            return Ok(());
        };
        let old = self.load(s, parent.node, height + 1)?;
        let (left, right) = (old.view().child(at), old.view().child(at + 1));
        let old_left = self.load(s, left, height)?;
        let right_buf = self.load(s, right, height)?;

        let mut all = old_left.clone();
        for i in 0..right_buf.count() {
            all.push(right_buf.view().record(i));
        }
        all.set_next(right_buf.next());
        // The last leaf of the left node gets the keys between the two.
        let mut waits = self.parting(s, right);
        let edge = self.edge_leaf(s, left, height, true, &mut waits)?;
        let needs = self.needs_of(s, right);
        let copied = self.write_node(s, left, &old_left, &all, &needs)?;
        self.note_needs(s, left, &needs)?;
        self.set_prev(s, right_buf.next(), left)?;
        if height == 1 && right_buf.next() == 0 {
            self.header.last_leaf = left;
        }

        let mut new = old.clone();
        new.remove(at + 1);
        waits.push(copied);
        let patch = self.write_node(s, parent.node, &old, &new, &waits)?;
        self.note_needs(s, parent.node, &waits)?;
        let mut pointed = self.reachable(s, patch, path, level)?;
        if let Some(&reach) = self.reach.get(&right) {
            pointed = s.join(&[pointed, reach])?;
        }
        self.note_reach(s, left, pointed)?;
        self.note_reach(s, edge, pointed)?;
        if height > 1 && !s.is_atomic() {
            let before = self.seams.get(&edge).copied();
            let seam = s.join(&before.into_iter().chain([pointed]).collect::<Befores<P>>())?;
            self.seams.insert(edge, seam);
        }
        self.appending = 0;
        self.give_node(s, right, pointed)
    }

    /// Removes a root that has only one entry.
    fn lower_root<S: Store<Patch = P>>(&mut self, s: &mut S) -> Result<()> {
        while self.header.depth > 1 {
            let root = self.header.root;
            let view = self.view(s, root, self.header.depth)?;
            if view.count() > 1 {
                break;
            }
            let child = view.child(0);
            let waits = self.parting(s, root);
            self.header.root = child;
            self.header.depth -= 1;
            let mut lowered = self.write_header(s, &waits)?;
            if let Some(&reach) = self.reach.get(&root) {
                lowered = s.join(&[lowered, reach])?;
            }
            self.note_reach(s, child, lowered)?;
            self.give_node(s, root, lowered)?;
        }
        Ok(())
    }
}
