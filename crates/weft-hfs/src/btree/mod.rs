//! B*-trees on ordered blocks: the catalog and the extents file.
//!
//! # What a power cut leaves
//!
//! A node is one 512-byte block, which a device writes whole or not at all. So each change of one
//! node is atomic, and only changes of several nodes must be ordered. The rule is that of soft
//! updates: *the index is the truth*. A record counts if the search for its key from the root ends
//! in the node that holds it; all other content of a node is stale.
//!
//! - **Split** of *L*. The new right node *R* is written first, with the upper half, and waits for
//!   all that this half was waiting for. Then its entry is put into the parent (or the new root is
//!   written, and then the header). Only then does *L* lose its upper half. In between, *L* ends
//!   with a stale copy: the search does not find it, as *R*'s entry leads past it.
//! - **Merge** of *L* and *R*. *L* with all records is written first; until *R*'s entry is gone a
//!   search finds the same records as before. Then *R*'s entry is removed, then *R* is zeroed.
//! - **An empty node** is removed with its entry; then it is zeroed. Its range falls to its right
//!   neighbour (which takes the empty node's place under the old key), so that stale copies in its
//!   left neighbour stay unreachable. If there is no right neighbour under the same parent, the
//!   range falls to the left, after the stale copies there are gone.
//! - **Before a node is removed**, in a merge or empty, all records that have left it must be where
//!   the search finds them: the records it lost in a split may be reachable only by a new root that
//!   is not written yet. The changes that made its own keys lead to it carry over to its heir. But
//!   no entry of *L*'s old half comes to lead to a node of *R*'s before *R* itself is out of the
//!   tree, or that node would have two entries.
//! - **Depth.** Root and depth are in the header, one block.
//! - **Links, map, counts** are not ordered: all of them follow from the index.
//!
//! Two rules follow for users of the tree.
//!
//! - A change is durable only when the node is written *and* the search leads to it on the disk: a
//!   change's patch is joined with those that made the nodes of its path reachable. Every operation
//!   that must follow the change (reusing blocks that a removed record had) waits for both; the
//!   node itself need not wait, as older versions of records agree with each other.
//! - An index key may be smaller than the first key below it, when the first record was removed.
//!   That changes no search; the key is raised by `Tree::raise_keys` at the next sync. (Raising it
//!   at once would make each removal wait for the next, as neighbouring nodes alternate.)
//!
//! Under a journal an operation is atomic, and no order is kept inside it.
//!
//! After a cut, [`volume`](crate::volume)'s recovery cuts off stale copies, frees and zeroes
//! unreferenced nodes, and corrects links, map and counts.

pub(crate) mod bulk;
mod grow;
mod insert;
mod keys;
pub(crate) mod node;
mod open;
mod remove;
mod scan;

pub(crate) use insert::leaf_record;

use crate::layout::{
    BLOCK_BYTES, CatalogKey, Extent, ExtentKey, HEADER_RECORD_OFFSET, Header, NodeKind, changed,
};
use crate::store::Store;
use crate::{Error, Result};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use hashbrown::HashMap;
use node::{NodeBuf, View};
use smallvec::SmallVec;

/// Most levels of a tree. HFS itself stops at 8.
pub const MAX_DEPTH: u16 = 16;

/// The kind of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeKind {
    /// The catalog: names.
    Catalog,
    /// The extents file: extents after the first three of a fork.
    Extents,
}

impl TreeKind {
    /// Compares encoded keys.
    #[must_use]
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Catalog => CatalogKey::compare(a, b),
            Self::Extents => ExtentKey::compare(a, b),
        }
    }

    /// Returns the length of every index key, which is also the longest of a leaf key; the length
    /// byte is not counted.
    #[must_use]
    pub fn key_bytes(self) -> u8 {
        match self {
            Self::Catalog => 37,
            Self::Extents => 7,
        }
    }

    pub(crate) fn takes_key_len(self, len: usize) -> bool {
        match self {
            Self::Catalog => (6..=37).contains(&len),
            Self::Extents => len == 7,
        }
    }

    /// Builds an index record: the key at its fixed length, and the node.
    pub(crate) fn index_record(self, key: &[u8], child: u32) -> SmallVec<[u8; 64]> {
        let mut record = self.index_key(key);
        record.extend_from_slice(&child.to_be_bytes());
        record
    }

    pub(crate) fn index_key(self, key: &[u8]) -> SmallVec<[u8; 64]> {
        let len = usize::from(self.key_bytes()) + 1;
        let mut record = SmallVec::from_slice(key.get(..len).unwrap_or(key));
        record.resize(len, 0);
        if let Some(first) = record.first_mut() {
            *first = self.key_bytes();
        }
        record
    }

    fn name(self) -> &'static str {
        match self {
            Self::Catalog => "catalog",
            Self::Extents => "extents",
        }
    }
}

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
struct MapPart {
    node: u32,
    offset: usize,
    len_bytes: usize,
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
    place: Place,
    /// The header as the store has it.
    stored_header: [u8; Header::BYTES],
    /// The map of nodes, and the locations of its parts.
    map: Vec<u8>,
    map_parts: Vec<MapPart>,
    /// The map's last part links to a further node although the map is complete.
    map_leads_on: bool,
    /// For each node the changes that its content waits for, until they are durable.
    needs: HashMap<u32, Befores<P>>,
    /// For each node the change that made (all of) its content reachable, until it is durable.
    reach: HashMap<u32, P>,
    /// For each node the change that cut off its stale copy, until it is durable.
    trims: HashMap<u32, P>,
    /// For the last leaf before the boundary at which two index nodes were merged, the change that
    /// took the right one out of the tree, until it is durable.
    seams: HashMap<u32, P>,
    /// Leaves whose index key is too small, with the change that made it so.
    loose: BTreeMap<u32, P>,
    /// The change that gave the file its last nodes.
    grown: P,
    /// The node last split because records were appended at its end.
    appending: u32,
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
        Err(self.damaged(0, format!("node {node} is beyond its end")))
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
            return Err(self.damaged(0, format!("it is pointed to as node {node}")));
        }
        let raw = s.read(self.block_of(node)?)?;
        let view = View::parse(self.kind, raw).map_err(|e| self.damaged(node, e))?;
        let leaf = view.head.kind == NodeKind::Leaf;
        if u16::from(view.head.height) != height || leaf != (height == 1) {
            return Err(self.damaged(
                node,
                format!("its height is {} where {height} was to be", view.head.height),
            ));
        }
        if view.count() == 0 {
            return Err(self.damaged(node, "it is empty"));
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
    fn height(&self, level: usize) -> u16 {
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
            return Err(self.damaged(step.node, "a record is shorter than its kind"));
        }
        Ok(view.value_offset(step.index))
    }

    /// Writes the difference of two versions of a node as one change: changes of one node then
    /// overlap, and keep their order.
    fn write_node<S: Store<Patch = P>>(
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
    fn write_link<S: Store<Patch = P>>(
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

    fn set_next<S: Store<Patch = P>>(&self, s: &mut S, node: u32, to: u32) -> Result<()> {
        self.write_link(s, node, 0, to)
    }

    fn set_prev<S: Store<Patch = P>>(&self, s: &mut S, node: u32, to: u32) -> Result<()> {
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
    fn note_needs<S: Store<Patch = P>>(
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

    fn needs_of<S: Store<Patch = P>>(&mut self, s: &S, node: u32) -> Befores<P> {
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
    fn reachable<S: Store<Patch = P>>(
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
    fn note_reach<S: Store<Patch = P>>(&mut self, s: &mut S, node: u32, patch: P) -> Result<()> {
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
