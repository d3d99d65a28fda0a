//! Building a whole tree at once, from sorted records.

use super::insert::leaf_record;
use super::kind::TreeKind;
use super::node::NodeBuf;
use crate::layout::{
    HEADER_MAP_BYTES, HEADER_MAP_OFFSET, Header, MAP_NODE_BYTES, NODE_BYTES, NodeDescriptor,
    NodeKind, RECORDS_OFFSET, put16, put32,
};
use crate::{Error, Result};
use alloc::vec;
use alloc::vec::Vec;

/// Returns the first nodes of a tree whose file has `nodes` nodes; the rest of the file must be
/// zero.
///
/// # Errors
/// [`Error::NoSpace`] if `nodes` is too small.
pub(crate) fn build(
    kind: TreeKind,
    records: &[(Vec<u8>, Vec<u8>)],
    nodes: u32,
) -> Result<Vec<[u8; NODE_BYTES]>> {
    let in_header = 8 * HEADER_MAP_BYTES as u32;
    let map_nodes = nodes.saturating_sub(in_header).div_ceil(8 * MAP_NODE_BYTES as u32);
    let mut next = 1 + map_nodes;
    let mut all: Vec<(u32, NodeBuf)> = Vec::new();
    let mut level: Vec<(Vec<u8>, u32)> = Vec::new();
    let leaves = records.iter().map(|(key, value)| (key.clone(), leaf_record(key, value)));
    fill(leaves, NodeKind::Leaf, 1, &mut next, &mut all, &mut level);
    let (first_leaf, last_leaf) =
        (level.first().map_or(0, |l| l.1), level.last().map_or(0, |l| l.1));
    let mut depth = u16::from(!level.is_empty());
    while level.len() > 1 {
        depth += 1;
        let entries = level.iter().map(|(key, node)| {
            let mut record = super::insert::Record::new();
            record.extend_from_slice(&kind.index_record(key, *node));
            (key.clone(), record)
        });
        let mut above = Vec::new();
        let height = u8::try_from(depth).map_err(|_| Error::NoSpace)?;
        fill(entries, NodeKind::Index, height, &mut next, &mut all, &mut above);
        level = above;
    }
    if next > nodes {
        return Err(Error::NoSpace);
    }
    let header = Header {
        depth,
        root: level.first().map_or(0, |l| l.1),
        records: u32::try_from(records.len()).unwrap_or(u32::MAX),
        first_leaf,
        last_leaf,
        node_bytes: NODE_BYTES as u16,
        key_bytes: u16::from(kind.key_bytes()),
        nodes,
        free_nodes: nodes - next,
    };
    let mut raw = vec![header.encode_node()];
    for i in 0..map_nodes {
        let mut map = [0; NODE_BYTES];
        let after = if i + 1 < map_nodes { i + 2 } else { 0 };
        let head =
            NodeDescriptor { next: after, prev: 0, kind: NodeKind::Map, height: 0, records: 1 };
        head.encode_into(&mut map);
        put16(&mut map, NODE_BYTES - 2, RECORDS_OFFSET as u16);
        put16(&mut map, NODE_BYTES - 4, (RECORDS_OFFSET + MAP_NODE_BYTES) as u16);
        raw.push(map);
    }
    if let (Some(head), true) = (raw.first_mut(), map_nodes > 0) {
        put32(head, 0, 1);
    }
    for node in 0..next {
        set_used(&mut raw, node);
    }
    raw.extend(all.into_iter().map(|(_, buf)| buf.raw));
    Ok(raw)
}

/// Sets the bit of a node in the map, which is in the first nodes.
fn set_used(raw: &mut [[u8; NODE_BYTES]], node: u32) {
    let byte = node as usize / 8;
    let (part, at) = match byte.checked_sub(HEADER_MAP_BYTES) {
        None => (0, HEADER_MAP_OFFSET + byte),
        Some(byte) => (1 + byte / MAP_NODE_BYTES, RECORDS_OFFSET + byte % MAP_NODE_BYTES),
    };
    if let Some(byte) = raw.get_mut(part).and_then(|node| node.get_mut(at)) {
        *byte |= 0x80 >> (node % 8);
    }
}

/// Fills the nodes of one level, one after the other.
fn fill(
    records: impl Iterator<Item = (Vec<u8>, super::insert::Record)>,
    kind: NodeKind,
    height: u8,
    next: &mut u32,
    all: &mut Vec<(u32, NodeBuf)>,
    level: &mut Vec<(Vec<u8>, u32)>,
) {
    let first = all.len();
    for (key, record) in records {
        let fits = all.len() > first && all.last().is_some_and(|(_, b)| b.fits(record.len()));
        if !fits {
            let mut buf = NodeBuf::empty(kind, height);
            if all.len() > first
                && let Some((prev, before)) = all.last_mut()
            {
                before.set_next(*next);
                buf.set_prev(*prev);
            }
            level.push((key, *next));
            all.push((*next, buf));
            *next += 1;
        }
        if let Some((_, buf)) = all.last_mut() {
            buf.push(&record);
        }
    }
}
