//! Maintenance of index keys: each is the first key of the subtree below it.

use super::tree::{Befores, Path, Tree};
use crate::Result;
use crate::store::Store;
use core::cmp::Ordering;
use smallvec::SmallVec;

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Lowers the index keys that are too large after an insertion before the first key of the
    /// tree. Needs no order, as the search takes the first entry for any smaller key.
    pub(super) fn lower_keys<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        path: &Path,
        key: &[u8],
    ) -> Result<()> {
        for step in path.steps.iter().rev().skip(1) {
            if step.index != 0 {
                break;
            }
            // A split may have put a level above the path.
            let Ok(view) = self.view_any(s, step.node) else { break };
            if self.kind.compare(view.key(0), key) != Ordering::Greater {
                break;
            }
            let old = super::node::NodeBuf::of(&view);
            let mut new = old.clone();
            new.set_index_key(0, &self.kind.index_key(key));
            self.write_node(s, step.node, &old, &new, &[])?;
        }
        Ok(())
    }

    /// Returns a checked view of a node of any height.
    fn view_any<'s, S: Store<Patch = P>>(
        &self,
        s: &'s mut S,
        node: u32,
    ) -> Result<super::node::View<'s>> {
        let raw = s.read(self.block_of(node)?)?;
        super::node::View::parse(self.kind, raw).map_err(|e| self.damaged(node, e))
    }

    /// Records that `removed` made the index key of a leaf too small.
    pub(super) fn note_loose<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        leaf: u32,
        removed: P,
    ) -> Result<()> {
        let all = match self.loose.get(&leaf) {
            Some(&before) if before != removed && !s.is_durable(before) => {
                s.join(&[before, removed])?
            }
            _ => removed,
        };
        self.loose.insert(leaf, all);
        Ok(())
    }

    /// Returns true if index keys wait to be raised.
    pub(crate) fn has_loose_keys(&self) -> bool {
        !self.loose.is_empty()
    }

    /// Raises the index keys of up to `most` leaves whose first records were removed. The range
    /// between the old and the new key falls to the leaf on the left; so stale copies there must be
    /// gone, and the removal must be durable.
    pub(crate) fn raise_keys<S: Store<Patch = P>>(&mut self, s: &mut S, most: usize) -> Result<()> {
        for _ in 0..most {
            let Some((leaf, removed)) = self.loose.pop_first() else { break };
            self.raise_key(s, leaf, removed)?;
        }
        Ok(())
    }

    fn raise_key<S: Store<Patch = P>>(&mut self, s: &mut S, leaf: u32, removed: P) -> Result<()> {
        if self.header.depth < 2 || !self.is_used(leaf) {
            return Ok(());
        }
        let (key, prev): (SmallVec<[u8; 64]>, u32) = {
            let view = self.view(s, leaf, 1)?;
            (SmallVec::from_slice(view.key(0)), view.head.prev)
        };
        let path = self.find(s, &key)?;
        if path.leaf().is_none_or(|step| step.node != leaf) {
            return Err(self.damaged(leaf, "the index assigns its first key to another node"));
        }
        let mut waits = Befores::from_slice(&[removed]);
        waits.extend(self.needs_of(s, leaf));
        let mut raised = Befores::new();
        for (level, step) in path.steps.iter().enumerate().rev().skip(1) {
            let height = self.height(level);
            let old = self.load(s, step.node, height)?;
            if let Some(left) = step.index.checked_sub(1) {
                // From here on the range belongs to the nodes on the left, down to the last leaf of
                // the left child.
                self.edge_leaf(s, old.view().child(left), height - 1, true, &mut waits)?;
            }
            if self.kind.compare(old.view().key(step.index), &key) != Ordering::Equal {
                let mut new = old.clone();
                new.set_index_key(step.index, &self.kind.index_key(&key));
                let patch = self.write_node(s, step.node, &old, &new, &waits)?;
                self.note_needs(s, step.node, &waits)?;
                raised.push(patch);
                // From the leaf upwards: a raised key makes the search pass the nodes below it.
                waits.push(patch);
            }
            if step.index != 0 {
                break;
            }
        }
        if prev != 0 && !raised.is_empty() {
            let all = s.join(&raised)?;
            self.note_reach(s, prev, all)?;
        }
        Ok(())
    }
}
