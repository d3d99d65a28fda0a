//! An open tree: its header and map, the way to a key, and the changes that its nodes wait for.

use super::kind::TreeKind;
use super::node::{NodeBuf, View};
use crate::layout::{BLOCK_BYTES, Extent, HEADER_RECORD_OFFSET, Header, NodeKind, changed};
use crate::store::Store;
use crate::{Error, Result};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Most levels of a tree. HFS itself stops at 8.
pub const MAX_DEPTH: u16 = 16;

/// The geometry of the volume, which places the tree's file.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The block where the allocation blocks begin.
    pub first_block: u64,
    /// Blocks of an allocation block.
    pub blocks_per_alloc: u64,
}

/// One node of the path from the root to a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub node: u32,
    /// The entry that was followed; in a leaf the record, or its insertion point.
    pub index: usize,
}

/// The path to a key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Path {
    /// From the root on; empty if the tree is empty.
    pub steps: SmallVec<[Step; 5]>,
    /// The key is in the leaf.
    pub found: bool,
}

impl Path {
    pub fn leaf(&self) -> Option<Step> {
        self.steps.last().copied()
    }
}

/// Patches that a change waits for.
pub(crate) type Befores<P> = SmallVec<[P; 4]>;

/// A part of the map of nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapPart {
    pub(super) node: u32,
    pub(super) offset: usize,
    pub(super) len_bytes: usize,
}

/// An open tree.
#[derive(Debug)]
pub struct Tree<P> {
    /// The kind of the tree.
    pub kind: TreeKind,
    /// The header as it shall be written.
    pub header: Header,
    /// The extents of its file.
    pub extents: Vec<Extent>,
    pub(super) place: Place,
    /// The header as the store has it.
    pub(super) stored_header: [u8; Header::BYTES],
    /// The map of nodes, and the locations of its parts.
    pub(super) map: Vec<u8>,
    pub(super) map_parts: Vec<MapPart>,
    /// The map's last part links to a further node although the map is complete.
    pub(super) map_leads_on: bool,
    /// For each node the changes that its content waits for, until they are durable.
    pub(super) needs: HashMap<u32, Befores<P>>,
    /// For each node the change that made (all of) its content reachable, until it is durable.
    pub(super) reach: HashMap<u32, P>,
    /// For each node the change that cut off its stale copy, until it is durable.
    pub(super) trims: HashMap<u32, P>,
    /// For the last leaf before the boundary at which two index nodes were merged, the change that
    /// took the right one out of the tree, until it is durable.
    pub(super) seams: HashMap<u32, P>,
    /// Leaves whose index key is too small, with the change that made it so.
    pub(super) loose: BTreeMap<u32, P>,
    /// The change that gave the file its last nodes.
    pub(super) grown: P,
    /// The node last split because records were appended at its end.
    pub(super) appending: u32,
    /// The reason why the header could not be read, of a tree that is opened for its leaves alone.
    pub(crate) headless: Option<String>,
    /// Counts changes of record positions.
    pub(crate) version: u64,
}

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Returns the block of a node.
    pub(crate) fn block_of(&self, node: u32) -> Result<u64> {
        let mut at = u64::from(node);
        for extent in &self.extents {
            let blocks = u64::from(extent.count) * self.place.blocks_per_alloc;
            if at < blocks {
                let start = u64::from(extent.start) * self.place.blocks_per_alloc;
                return Ok(self.place.first_block + start + at);
            }
            at -= blocks;
        }
        Err(self.damaged(0, format!("node {node} is past the end of the file")))
    }

    pub(crate) fn damaged(&self, node: u32, problem: impl Into<String>) -> Error {
        let block = if node == 0 { 0 } else { self.block_of(node).unwrap_or(0) };
        Error::corrupt(format!("{} node {node}", self.kind.name()), block, problem)
    }

    /// Returns a checked view of a node of a given height.
    pub(crate) fn view<'s, S: Store<Patch = P>>(
        &self,
        s: &'s mut S,
        node: u32,
        height: u16,
    ) -> Result<View<'s>> {
        if node == 0 || node >= self.header.nodes {
            return Err(
                self.damaged(0, format!("an index record points to the invalid node {node}"))
            );
        }
        let raw = s.read(self.block_of(node)?)?;
        let view = View::parse(self.kind, raw).map_err(|e| self.damaged(node, e))?;
        let leaf = view.head.kind == NodeKind::Leaf;
        if u16::from(view.head.height) != height || leaf != (height == 1) {
            return Err(self
                .damaged(node, format!("its height is {}, should be {height}", view.head.height)));
        }
        if view.count() == 0 {
            return Err(self.damaged(node, "no records"));
        }
        Ok(view)
    }

    pub(crate) fn load<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        node: u32,
        height: u16,
    ) -> Result<NodeBuf> {
        Ok(NodeBuf::of(&self.view(s, node, height)?))
    }

    /// Returns the height of the nodes at a level of a path.
    pub(super) fn height(&self, level: usize) -> u16 {
        self.header.depth.saturating_sub(u16::try_from(level).unwrap_or(u16::MAX))
    }

    /// Searches for a key; returns the path to it or to its insertion point.
    pub(crate) fn find<S: Store<Patch = P>>(&self, s: &mut S, key: &[u8]) -> Result<Path> {
        let mut path = Path::default();
        let mut node = self.header.root;
        for height in (1..=self.header.depth).rev() {
            let view = self.view(s, node, height)?;
            let found = view.search(self.kind, key);
            let (Ok(index) | Err(index)) = found;
            if height == 1 {
                path.found = found.is_ok();
                path.steps.push(Step { node, index });
            } else {
                // A key before the first entry belongs to the first entry, too.
                let index = if found.is_ok() { index } else { index.saturating_sub(1) };
                path.steps.push(Step { node, index });
                node = view.child(index);
            }
        }
        Ok(path)
    }

    /// Calls `with` with the value of the record that a search found.
    pub(crate) fn value<S: Store<Patch = P>, R>(
        &self,
        s: &mut S,
        path: &Path,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let Some(step) = path.leaf().filter(|_| path.found) else { return Err(Error::NotFound) };
        let view = self.view(s, step.node, 1)?;
        Ok(with(view.value(step.index)))
    }

    /// Returns the offset in its leaf of a record's value, which must have `len` bytes.
    pub(crate) fn value_place<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        path: &Path,
        len: usize,
    ) -> Result<usize> {
        let Some(step) = path.leaf().filter(|_| path.found) else { return Err(Error::NotFound) };
        let view = self.view(s, step.node, 1)?;
        if view.value(step.index).len() < len {
            return Err(self.damaged(step.node, "a record is too short for its type"));
        }
        Ok(view.value_offset(step.index))
    }

    /// Writes the difference of two versions of a node as one change: changes of one node then
    /// overlap, and keep their order.
    pub(super) fn write_node<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        node: u32,
        old: &NodeBuf,
        new: &NodeBuf,
        befores: &[P],
    ) -> Result<P> {
        let range = changed(&old.raw, &new.raw).unwrap_or(0..1);
        let at = range.start;
        s.write(self.block_of(node)?, at, new.raw.get(range).unwrap_or(&[]), befores)
    }

    /// Changes one of the two links of a node in place.
    pub(super) fn write_link<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        node: u32,
        offset: usize,
        to: u32,
    ) -> Result<()> {
        if node != 0 {
            s.write(self.block_of(node)?, offset, &to.to_be_bytes(), &[])?;
        }
        Ok(())
    }

    pub(super) fn set_next<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        node: u32,
        to: u32,
    ) -> Result<()> {
        self.write_link(s, node, 0, to)
    }

    pub(super) fn set_prev<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        node: u32,
        to: u32,
    ) -> Result<()> {
        self.write_link(s, node, 4, to)
    }

    /// Writes the header record if it has changed.
    pub(crate) fn write_header<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        befores: &[P],
    ) -> Result<P> {
        let raw = self.header.encode();
        if raw == self.stored_header {
            return Ok(S::DURABLE);
        }
        let patch = s.write(self.block_of(0)?, HEADER_RECORD_OFFSET, &raw, befores)?;
        self.stored_header = raw;
        Ok(patch)
    }

    /// Overwrites the value of the record that a path leads to, from byte `offset` of the value on.
    pub(crate) fn update<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        offset: usize,
        bytes: &[u8],
        befores: &[P],
    ) -> Result<P> {
        let at = self.value_place(s, path, offset + bytes.len())? + offset;
        self.update_at(s, path, at, bytes, befores)
    }

    /// Overwrites bytes of the leaf that a path leads to.
    pub(crate) fn update_at<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        path: &Path,
        at: usize,
        bytes: &[u8],
        befores: &[P],
    ) -> Result<P> {
        let Some(step) = path.leaf() else { return Err(Error::NotFound) };
        let patch = s.write(self.block_of(step.node)?, at, bytes, befores)?;
        self.note_needs(s, step.node, befores)?;
        self.reachable(s, patch, path, path.steps.len())
    }

    /// Records the changes that the content of a node waits for: they go along when the content
    /// moves.
    pub(super) fn note_needs<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        node: u32,
        befores: &[P],
    ) -> Result<()> {
        const MANY: usize = 32;
        if s.is_atomic() || befores.iter().all(|&b| s.is_durable(b)) {
            return Ok(());
        }
        let needs = self.needs.entry(node).or_default();
        for &before in befores {
            if !s.is_durable(before) && needs.last() != Some(&before) && !needs.contains(&before) {
                needs.push(before);
            }
        }
        if needs.len() > MANY {
            needs.retain(|&mut b| !s.is_durable(b));
            if needs.len() > MANY / 2 {
                let all = s.join(needs)?;
                needs.clear();
                needs.push(all);
            }
        }
        Ok(())
    }

    pub(super) fn needs_of<S: Store<Patch = P>>(&mut self, s: &S, node: u32) -> Befores<P> {
        let Some(needs) = self.needs.get_mut(&node) else { return Befores::new() };
        needs.retain(|&mut b| !s.is_durable(b));
        if needs.is_empty() {
            self.needs.remove(&node);
            return Befores::new();
        }
        needs.clone()
    }

    /// Returns the changes that the leaf at the end of a path waits for.
    pub(crate) fn needs_at<S: Store<Patch = P>>(&mut self, s: &S, path: &Path) -> Befores<P> {
        path.leaf().map_or_else(Befores::new, |step| self.needs_of(s, step.node))
    }

    /// Joins a change of the last of `levels` nodes of a path with the changes that make those
    /// nodes reachable.
    pub(super) fn reachable<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        patch: P,
        path: &Path,
        levels: usize,
    ) -> Result<P> {
        if self.reach.is_empty() {
            return Ok(patch);
        }
        let mut all = Befores::new();
        for step in path.steps.iter().take(levels) {
            if let Some(&reach) = self.reach.get(&step.node) {
                if s.is_durable(reach) {
                    self.reach.remove(&step.node);
                } else if reach != patch && !all.contains(&reach) {
                    all.push(reach);
                }
            }
        }
        if all.is_empty() {
            return Ok(patch);
        }
        all.push(patch);
        s.join(&all)
    }

    /// Records a (further) change that makes all of a node's content reachable.
    pub(super) fn note_reach<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        node: u32,
        patch: P,
    ) -> Result<()> {
        if s.is_atomic() || s.is_durable(patch) {
            return Ok(());
        }
        let all = match self.reach.get(&node) {
            Some(&before) if before != patch && !s.is_durable(before) => {
                s.join(&[before, patch])?
            }
            _ => patch,
        };
        self.reach.insert(node, all);
        Ok(())
    }

    /// Drops the records of changes that have become durable.
    pub(crate) fn settle<S: Store<Patch = P>>(&mut self, s: &S) {
        self.reach.retain(|_, &mut p| !s.is_durable(p));
        self.trims.retain(|_, &mut p| !s.is_durable(p));
        self.seams.retain(|_, &mut p| !s.is_durable(p));
        self.needs.retain(|_, needs| {
            needs.retain(|&mut b| !s.is_durable(b));
            !needs.is_empty()
        });
    }
}

const _: () = assert!(BLOCK_BYTES == crate::layout::NODE_BYTES);
