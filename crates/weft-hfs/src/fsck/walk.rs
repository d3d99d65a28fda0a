//! Walking a tree by its index, also if it is damaged.

use super::problem::Problem;
use crate::Result;
use crate::btree::Tree;
use crate::btree::node::{NodeBuf, View};
use crate::layout::{HEADER_TYPE_OFFSET, NodeKind};
use crate::store::Store;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use hashbrown::HashSet;

/// A record, and its location.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub node: u32,
    pub block: u64,
}

/// A wrong index key.
#[derive(Debug, Clone)]
pub(crate) struct KeyOff {
    pub node: u32,
    pub index: usize,
    pub right: Vec<u8>,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The nodes of each level in order, leaves first.
    pub levels: Vec<Vec<u32>>,
    /// Reachable index and leaf nodes.
    pub used: HashSet<u32>,
    /// Nodes that contain stale records: the node, the range of its own records, and the count of
    /// all.
    pub stale: Vec<(u32, core::ops::Range<usize>, usize)>,
    pub keys_off: Vec<KeyOff>,
    /// Nodes without records of their own, with the keys of their entries.
    pub empty: Vec<(u32, u16, Vec<u8>)>,
    /// The records that the index leads to.
    pub records: Vec<Found>,
    /// Damage that stopped the walk in a part of the tree.
    pub damage: Vec<Problem>,
}

/// The part of a tree below an entry.
struct Part {
    node: u32,
    height: u16,
    /// The key of the entry.
    start: Vec<u8>,
    /// Keys before this belong to another node.
    low: Option<Vec<u8>>,
    /// Keys from here on belong to another node.
    end: Option<Vec<u8>>,
}

impl Walk {
    /// Walks a tree.
    pub fn new<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
        s: &mut S,
        tree: &Tree<P>,
    ) -> Self {
        let depth = tree.header.depth;
        let mut walk = Self { levels: vec![Vec::new(); usize::from(depth)], ..Self::default() };
        if let Some(what) = &tree.headless {
            let block = tree.block_of(0).unwrap_or(0);
            let what = what.clone();
            walk.damage.push(Problem::Node { tree: tree.kind, node: 0, block, what });
        }
        if depth > 0 {
            let root = tree.header.root;
            walk.visit(
                s,
                tree,
                &Part { node: root, height: depth, start: Vec::new(), low: None, end: None },
            );
        }
        // The keys of the whole tree ascend; overlapping nodes are damage.
        for i in 1..walk.records.len() {
            let (Some(a), Some(b)) = (walk.records.get(i - 1), walk.records.get(i)) else { break };
            if tree.kind.compare(&a.key, &b.key) != Ordering::Less {
                walk.damage.push(Problem::Node {
                    tree: tree.kind,
                    node: b.node,
                    block: b.block,
                    what: "keys out of order".into(),
                });
                break;
            }
        }
        walk
    }

    /// Visits a node and all nodes below it; returns the first key of its leaves. The depth of the
    /// recursion is that of the tree, which is bounded.
    fn visit<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
        &mut self,
        s: &mut S,
        tree: &Tree<P>,
        part: &Part,
    ) -> Option<Vec<u8>> {
        let kind = tree.kind;
        let node = part.node;
        let block = tree.block_of(node).unwrap_or(0);
        let mut bad = |what| {
            self.damage.push(Problem::Node { tree: kind, node, block, what });
            None
        };
        if node == 0 || node >= tree.header.nodes {
            return bad(format!(
                "an index record points to node {node}, but the tree has {}",
                tree.header.nodes
            ));
        }
        let buf = match read_node(s, tree, node) {
            Ok(buf) => buf,
            Err(e) => return bad(e),
        };
        let view = buf.view();
        let leaf = view.head.kind == NodeKind::Leaf;
        if u16::from(view.head.height) != part.height || leaf != (part.height == 1) {
            return bad(format!("its height is {}, should be {}", view.head.height, part.height));
        }
        if !self.used.insert(node) {
            return bad("two index records point to it".into());
        }
        let count = view.count();
        let is_mine = |i: usize| {
            part.end.as_ref().is_none_or(|end| kind.compare(view.key(i), end) == Ordering::Less)
        };
        let end = (0..count).take_while(|&i| is_mine(i)).count();
        let front = part.low.as_ref().map_or(0, |low| {
            let before = (0..end).take_while(|&i| kind.compare(view.key(i), low).is_lt()).count();
            // The range of an entry extends to the next entry.
            let exact = before < end && kind.compare(view.key(before), low).is_eq();
            if leaf || exact { before } else { before.saturating_sub(1) }
        });
        if front >= end {
            // A power cut interrupted a merge after the node's records were removed.
            self.empty.push((node, part.height, part.start.clone()));
            return None;
        }
        if front > 0 || end < count {
            self.stale.push((node, front..end, count));
        }
        if let Some(level) = self.levels.get_mut(usize::from(part.height) - 1) {
            level.push(node);
        }
        let rises = |i: usize| kind.compare(view.key(i - 1), view.key(i)) == Ordering::Less;
        if let Some(i) = (front + 1..end).find(|&i| !rises(i)) {
            let what = format!("keys out of order at record {i}");
            self.damage.push(Problem::Node { tree: kind, node, block, what });
        }
        if leaf {
            for i in front..end {
                let (key, value) = (view.key(i).to_vec(), view.value(i).to_vec());
                self.records.push(Found { key, value, node, block });
            }
            return Some(view.key(front).to_vec());
        }
        let mut first = None;
        for i in front..end {
            let stop = if i + 1 < end { Some(view.key(i + 1).to_vec()) } else { part.end.clone() };
            let start = view.key(i).to_vec();
            let low = if i == front { part.low.clone() } else { Some(start.clone()) };
            let (child, height) = (view.child(i), part.height - 1);
            let below = Part { node: child, height, start, low, end: stop };
            let below = self.visit(s, tree, &below);
            if let Some(key) = &below
                && kind.compare(key, view.key(i)) != Ordering::Equal
            {
                self.keys_off.push(KeyOff { node, index: i - front, right: key.clone() });
            } else if let Some(key) = &below
                && kind.index_key(key).as_slice() != view.key(i)
                && view.key(i).first() != Some(&kind.key_bytes())
            {
                self.keys_off.push(KeyOff { node, index: i - front, right: key.clone() });
            }
            if i == front {
                first = below;
            }
        }
        first
    }
}

/// Reads and checks an index or leaf node.
pub(crate) fn read_node<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
    s: &mut S,
    tree: &Tree<P>,
    node: u32,
) -> core::result::Result<NodeBuf, alloc::string::String> {
    let block = tree.block_of(node).map_err(|e| format!("{e}"))?;
    let raw = s.read(block).map_err(|e| format!("{e}"))?;
    View::parse(tree.kind, raw).map(|view| NodeBuf::of(&view))
}

/// Returns the problems in links, map, header and free nodes of a tree that was walked.
pub(crate) fn shape<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
    s: &mut S,
    tree: &Tree<P>,
    walk: &Walk,
    stored: &crate::layout::Header,
) -> Result<Vec<Problem>> {
    let mut found = Vec::new();
    let kind = tree.kind;
    for (node, mine, count) in &walk.stale {
        let (node, block) = (*node, tree.block_of(*node)?);
        found.push(Problem::Stale { tree: kind, node, block, count: count - mine.len() });
    }
    for &(node, ..) in &walk.empty {
        let block = tree.block_of(node)?;
        found.push(Problem::Stale { tree: kind, node, block, count: 1 });
    }
    for off in &walk.keys_off {
        let (node, index) = (off.node, off.index);
        found.push(Problem::IndexKey { tree: kind, node, block: tree.block_of(node)?, index });
    }
    for level in &walk.levels {
        for (i, &node) in level.iter().enumerate() {
            let prev = i.checked_sub(1).and_then(|i| level.get(i)).copied().unwrap_or(0);
            let next = level.get(i + 1).copied().unwrap_or(0);
            let block = tree.block_of(node)?;
            let raw = s.read(block)?;
            if (crate::layout::get32(raw, 0), crate::layout::get32(raw, 4)) != (next, prev) {
                found.push(Problem::Link { tree: kind, node, block });
            }
        }
    }
    let maps: HashSet<u32> = tree.map_nodes().collect();
    let mut free = 0;
    for node in 0..tree.header.nodes {
        let used = maps.contains(&node) || walk.used.contains(&node);
        free += u32::from(!used);
        if tree.is_used(node) != used {
            found.push(Problem::Map { tree: kind, node, used });
        }
        if !used && s.read(tree.block_of(node)?)?.iter().any(|&b| b != 0) {
            found.push(Problem::FreeNode { tree: kind, node, block: tree.block_of(node)? });
        }
    }
    if tree.map_goes_on() {
        found.push(Problem::MapTail { tree: kind });
    }
    let byte = crate::layout::get8(s.read(tree.block_of(0)?)?, HEADER_TYPE_OFFSET);
    if byte != 0 {
        let field = "the tree type";
        found.push(Problem::Header { tree: kind, field, found: byte.into(), right: 0 });
    }
    let leaves = walk.levels.first();
    let end = |leaf: Option<&u32>| leaf.copied().unwrap_or(0);
    let records = u32::try_from(walk.records.len()).unwrap_or(u32::MAX);
    for (field, was, right) in [
        ("the number of records", stored.records, records),
        ("the first leaf", stored.first_leaf, end(leaves.and_then(|l| l.first()))),
        ("the last leaf", stored.last_leaf, end(leaves.and_then(|l| l.last()))),
        ("the number of free nodes", stored.free_nodes, free),
    ] {
        if was != right {
            found.push(Problem::Header { tree: kind, field, found: was, right });
        }
    }
    Ok(found)
}
