//! Nodes of a B*-tree: 512 bytes each, so that a device writes a node whole or not at all.

use super::{get8, get16, get32, put, put16, put32};

/// Bytes of a node.
pub const NODE_BYTES: usize = 512;
/// Offset of the first record in a node.
pub const RECORDS_OFFSET: usize = 14;
/// Offset of the header record in node 0.
pub const HEADER_RECORD_OFFSET: usize = 14;
/// Offset in node 0 of the kind of tree (`btreeType` of TN1150), which is 0 on HFS.
pub const HEADER_TYPE_OFFSET: usize = HEADER_RECORD_OFFSET + 36;
/// Offset of the map record in node 0.
pub const HEADER_MAP_OFFSET: usize = 248;
/// Bytes of the map record in node 0: it covers 2048 nodes.
pub const HEADER_MAP_BYTES: usize = 256;
/// Bytes of the map record in a map node.
pub const MAP_NODE_BYTES: usize = 492;

/// `ndType`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// Pointers to nodes.
    Index,
    /// Node 0.
    Header,
    /// A further part of the map of nodes.
    Map,
    /// Records.
    Leaf,
}

impl NodeKind {
    /// Returns the byte on disk.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Index => 0,
            Self::Header => 1,
            Self::Map => 2,
            Self::Leaf => 0xff,
        }
    }

    /// Returns the kind that a byte stands for.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Index,
            1 => Self::Header,
            2 => Self::Map,
            0xff => Self::Leaf,
            _ => return None,
        })
    }
}

/// The first 14 bytes of a node (`NodeDescriptor`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeDescriptor {
    /// `ndFLink`: next node of its level, 0 at the end.
    pub next: u32,
    /// `ndBLink`: previous node of its level.
    pub prev: u32,
    /// `ndType`
    pub kind: NodeKind,
    /// `ndNHeight`: 1 for a leaf, 0 for header and map.
    pub height: u8,
    /// `ndNRecs`
    pub records: u16,
}

impl NodeDescriptor {
    /// Reads a descriptor; `None` for an unknown kind of node.
    #[must_use]
    pub fn parse(raw: &[u8]) -> Option<Self> {
        Some(Self {
            next: get32(raw, 0),
            prev: get32(raw, 4),
            kind: NodeKind::from_byte(get8(raw, 8))?,
            height: get8(raw, 9),
            records: get16(raw, 10),
        })
    }

    /// Writes the descriptor to the start of a node.
    pub fn encode_into(&self, raw: &mut [u8]) {
        put32(raw, 0, self.next);
        put32(raw, 4, self.prev);
        put(raw, 8, &[self.kind.byte(), self.height]);
        put16(raw, 10, self.records);
        put16(raw, 12, 0);
    }
}

/// The header record of a tree (`BTHdrRec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// `bthDepth`: levels, 0 for an empty tree.
    pub depth: u16,
    /// `bthRoot`: root node.
    pub root: u32,
    /// `bthNRecs`: leaf records.
    pub records: u32,
    /// `bthFNode`: first leaf.
    pub first_leaf: u32,
    /// `bthLNode`: last leaf.
    pub last_leaf: u32,
    /// `bthNodeSize`: 512.
    pub node_bytes: u16,
    /// `bthKeyLen`: longest key, without its length byte.
    pub key_bytes: u16,
    /// `bthNNodes`: nodes of the file.
    pub nodes: u32,
    /// `bthFree`: free nodes.
    pub free_nodes: u32,
}

impl Header {
    /// Used bytes of the header record.
    pub const BYTES: usize = 30;

    /// Reads the header record of node 0.
    #[must_use]
    pub fn parse(node: &[u8]) -> Self {
        let at = HEADER_RECORD_OFFSET;
        Self {
            depth: get16(node, at),
            root: get32(node, at + 2),
            records: get32(node, at + 6),
            first_leaf: get32(node, at + 10),
            last_leaf: get32(node, at + 14),
            node_bytes: get16(node, at + 18),
            key_bytes: get16(node, at + 20),
            nodes: get32(node, at + 22),
            free_nodes: get32(node, at + 26),
        }
    }

    /// Returns the bytes of the header record.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut raw = [0; Self::BYTES];
        put16(&mut raw, 0, self.depth);
        put32(&mut raw, 2, self.root);
        put32(&mut raw, 6, self.records);
        put32(&mut raw, 10, self.first_leaf);
        put32(&mut raw, 14, self.last_leaf);
        put16(&mut raw, 18, self.node_bytes);
        put16(&mut raw, 20, self.key_bytes);
        put32(&mut raw, 22, self.nodes);
        put32(&mut raw, 26, self.free_nodes);
        raw
    }

    /// Returns a whole node 0 of a tree with this header and only node 0 marked as used in the map.
    #[must_use]
    pub fn encode_node(&self) -> [u8; NODE_BYTES] {
        let mut raw = [0; NODE_BYTES];
        let head =
            NodeDescriptor { next: 0, prev: 0, kind: NodeKind::Header, height: 0, records: 3 };
        head.encode_into(&mut raw);
        put(&mut raw, HEADER_RECORD_OFFSET, &self.encode());
        put(&mut raw, HEADER_MAP_OFFSET, &[0x80]);
        for (at, offset) in [(510, 14), (508, 120), (506, 248), (504, 504)] {
            put16(&mut raw, at, offset);
        }
        raw
    }
}
