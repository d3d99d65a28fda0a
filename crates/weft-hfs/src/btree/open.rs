//! Opening a tree: its header and its map.

use super::kind::TreeKind;
use super::tree::{MAX_DEPTH, MapPart, Place, Tree};
use crate::layout::{
    Extent, HEADER_MAP_BYTES, HEADER_MAP_OFFSET, Header, MAP_NODE_BYTES, NODE_BYTES,
    NodeDescriptor, NodeKind, RECORDS_OFFSET, get16,
};
use crate::store::Store;
use crate::{Error, Result};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use hashbrown::HashMap;

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    fn without_header<S: Store<Patch = P>>(
        kind: TreeKind,
        place: Place,
        extents: Vec<Extent>,
    ) -> Self {
        Self {
            kind,
            header: Header::default(),
            extents,
            place,
            stored_header: [0; Header::BYTES],
            map: Vec::new(),
            map_parts: Vec::new(),
            map_leads_on: false,
            needs: HashMap::new(),
            reach: HashMap::new(),
            trims: HashMap::new(),
            seams: HashMap::new(),
            loose: BTreeMap::new(),
            grown: S::DURABLE,
            appending: 0,
            headless: None,
            version: 0,
        }
    }

    /// Opens a tree whose header cannot be read, with the reason: without an index, but with all
    /// its nodes. For a check and a repair, which rebuild the tree from its leaves.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a file without nodes.
    pub(crate) fn of_leaves<S: Store<Patch = P>>(
        _: &mut S,
        kind: TreeKind,
        place: Place,
        extents: Vec<Extent>,
        file_bytes: u32,
        why: &Error,
    ) -> Result<Self> {
        let mut tree = Self::without_header::<S>(kind, place, extents);
        let blocks: u64 = tree.extents.iter().map(|e| u64::from(e.count)).sum();
        let there = blocks.saturating_mul(place.blocks_per_alloc);
        let nodes = (file_bytes / NODE_BYTES as u32).min(u32::try_from(there).unwrap_or(u32::MAX));
        if nodes == 0 {
            return Err(why.clone());
        }
        tree.header = Header {
            node_bytes: NODE_BYTES as u16,
            key_bytes: u16::from(kind.key_bytes()),
            nodes,
            ..Header::default()
        };
        tree.headless = Some(match why {
            Error::Corrupt { problem, .. } => format!("its header: {problem}"),
            e => format!("its header: {e}"),
        });
        Ok(tree)
    }

    /// Opens the tree whose file has these extents and this many bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an invalid header.
    pub fn open<S: Store<Patch = P>>(
        s: &mut S,
        kind: TreeKind,
        place: Place,
        extents: Vec<Extent>,
        file_bytes: u32,
    ) -> Result<Self> {
        let mut tree = Self::without_header::<S>(kind, place, extents);
        let block = tree.block_of(0)?;
        let raw = s.read(block)?;
        let bad = |problem| Err(Error::corrupt(format!("{} header", kind.name()), block, problem));
        match NodeDescriptor::parse(raw) {
            Some(head) if head.kind == NodeKind::Header => {}
            _ => return bad("not a header node".into()),
        }
        let header = Header::parse(raw);
        let file_nodes = file_bytes / NODE_BYTES as u32;
        if usize::from(header.node_bytes) != NODE_BYTES {
            return bad(format!("node size is {} bytes, should be 512", header.node_bytes));
        }
        if header.key_bytes != u16::from(kind.key_bytes()) {
            return bad(format!("invalid maximum key length {}", header.key_bytes));
        }
        if header.nodes == 0 || header.nodes > file_nodes {
            return bad(format!(
                "the tree has {} nodes, but its file only {file_nodes}",
                header.nodes
            ));
        }
        if header.depth > MAX_DEPTH || header.root >= header.nodes {
            return bad(format!(
                "invalid root node {} for a depth of {}",
                header.root, header.depth
            ));
        }
        if (header.depth == 0) != (header.root == 0) {
            return bad(format!(
                "invalid root node {} for a depth of {}",
                header.root, header.depth
            ));
        }
        tree.stored_header = header.encode();
        tree.header = header;
        tree.block_of(header.nodes - 1)?;
        tree.load_map(s)?;
        Ok(tree)
    }

    /// Reads the map of nodes, and counts the free nodes in it.
    fn load_map<S: Store<Patch = P>>(&mut self, s: &mut S) -> Result<()> {
        let mut node = 0;
        let most = self.header.nodes as usize / (8 * MAP_NODE_BYTES) + 2;
        let mut part = MapPart { node, offset: HEADER_MAP_OFFSET, len_bytes: HEADER_MAP_BYTES };
        loop {
            let raw = s.read(self.block_of(node)?)?;
            let next = NodeDescriptor::parse(raw).map_or(0, |head| head.next);
            self.map
                .extend(raw.get(part.offset..).iter().flat_map(|r| r.iter().take(part.len_bytes)));
            self.map_parts.push(part);
            if next == 0 || self.map.len() * 8 >= self.header.nodes as usize {
                self.map_leads_on = next != 0;
                break;
            }
            if next >= self.header.nodes || self.map_parts.len() > most {
                return Err(
                    self.damaged(node, format!("its map continues in the invalid node {next}"))
                );
            }
            let raw = s.read(self.block_of(next)?)?;
            let end = usize::from(get16(raw, NODE_BYTES - 4));
            match NodeDescriptor::parse(raw) {
                Some(head)
                    if head.kind == NodeKind::Map
                        && head.records == 1
                        && (RECORDS_OFFSET + 1..=NODE_BYTES - 4).contains(&end) => {}
                _ => return Err(self.damaged(next, "not a map node")),
            }
            node = next;
            let len_bytes = end - RECORDS_OFFSET;
            part = MapPart { node, offset: RECORDS_OFFSET, len_bytes };
        }
        if self.map.len() * 8 < self.header.nodes as usize {
            return Err(self.damaged(
                node,
                format!("the map ends after {} of {} nodes", self.map.len() * 8, self.header.nodes),
            ));
        }
        let used = (0..self.header.nodes).filter(|&n| self.is_used(n)).count();
        self.header.free_nodes = self.header.nodes - u32::try_from(used).unwrap_or(u32::MAX);
        Ok(())
    }
}
