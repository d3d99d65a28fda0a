//! Writing a planned volume.

use super::options::MkfsOptions;
use super::plan::Plan;
use crate::Result;
use crate::btree::node::NodeBuf;
use crate::btree::{TreeKind, leaf_record};
use crate::layout::{
    Attributes, BLOCK_BYTES, CatalogKey, CatalogRecord, DirectoryRecord, Extent, FIRST_ID,
    HEADER_MAP_BYTES, HEADER_MAP_OFFSET, Header, MAP_NODE_BYTES, MDB_BLOCK, Mdb, NODE_BYTES,
    NodeDescriptor, NodeKind, RECORDS_OFFSET, ROOT_ID, ROOT_PARENT_ID, ThreadRecord, put, put16,
    put32,
};
use crate::store::Device;
use alloc::vec;
use alloc::vec::Vec;

const BLOCK: u64 = BLOCK_BYTES as u64;

pub(super) fn build<D: Device>(device: &mut D, plan: &Plan, options: &MkfsOptions) -> Result<()> {
    let mdb = mdb(plan, options);
    // Structures of an older volume must not be taken for part of this one: its MDB goes first.
    device.write_zeroes(0, u64::from(plan.first_block) * BLOCK)?;
    device.write_zeroes((plan.blocks - 2) * BLOCK, 2 * BLOCK)?;

    let mut bitmap = vec![0_u8; usize::from(plan.alloc_blocks).div_ceil(8)];
    for nr in 0..usize::from(plan.extents_blocks) + usize::from(plan.catalog_blocks) {
        if let Some(byte) = bitmap.get_mut(nr / 8) {
            *byte |= 0x80 >> (nr % 8);
        }
    }
    device.write_at(&bitmap, u64::from(mdb.bitmap_block) * BLOCK)?;

    let alloc_bytes = u64::from(plan.alloc_block_bytes);
    let extents_at = u64::from(plan.first_block) * BLOCK;
    let catalog_at = extents_at + u64::from(plan.extents_blocks) * alloc_bytes;
    tree(device, extents_at, TreeKind::Extents, mdb.extents_file_bytes, None)?;
    let leaf = root_leaf(options);
    tree(device, catalog_at, TreeKind::Catalog, mdb.catalog_file_bytes, Some(&leaf))?;

    device.write_at(&mdb.encode(), (plan.blocks - 2) * BLOCK)?;
    device.flush()?;
    device.write_at(&mdb.encode(), MDB_BLOCK * BLOCK)?;
    device.flush()
}

fn mdb(plan: &Plan, options: &MkfsOptions) -> Mdb {
    let size = plan.alloc_block_bytes;
    let (extents, catalog) = (plan.extents_blocks, plan.catalog_blocks);
    let first = Extent { start: 0, count: extents };
    let second = Extent { start: extents, count: catalog };
    let none = Extent::default();
    // The share of a tree in a small volume may exceed the limit of a clump.
    let tree_clump = |blocks: u16| u32::from(blocks.min(plan.alloc_blocks / 4)) * size;
    Mdb {
        created: options.now,
        modified: options.now,
        attributes: Attributes::UNMOUNTED,
        root_files: 0,
        bitmap_block: 3,
        alloc_hint: extents.saturating_add(catalog),
        alloc_blocks: plan.alloc_blocks,
        alloc_block_bytes: size,
        clump_bytes: options.clump_bytes.unwrap_or(Mdb::default_clump(size)),
        first_block: plan.first_block,
        next_id: FIRST_ID,
        free_blocks: plan.alloc_blocks - extents - catalog,
        name: options.name,
        backed_up: 0,
        sequence: 0,
        write_count: 0,
        extents_clump_bytes: tree_clump(extents),
        catalog_clump_bytes: tree_clump(catalog),
        root_dirs: 0,
        files: 0,
        dirs: 0,
        finder_info: [0; 8],
        embed_signature: 0,
        embed_extent: none,
        extents_file_bytes: u32::from(extents) * size,
        extents_file: [first, none, none],
        catalog_file_bytes: u32::from(catalog) * size,
        catalog_file: [second, none, none],
    }
}

/// Returns the leaf with the root folder and its thread.
fn root_leaf(options: &MkfsOptions) -> NodeBuf {
    let mut leaf = NodeBuf::empty(NodeKind::Leaf, 1);
    let root = CatalogRecord::Directory(DirectoryRecord {
        id: ROOT_ID,
        created: options.now,
        modified: options.now,
        ..DirectoryRecord::default()
    });
    let thread = CatalogRecord::Thread(ThreadRecord {
        of_file: false,
        parent: ROOT_PARENT_ID,
        name: options.name,
    });
    for (key, record) in [
        (CatalogKey::new(ROOT_PARENT_ID, options.name), root),
        (CatalogKey::thread(ROOT_ID), thread),
    ] {
        let ((key, key_len), (raw, len)) = (key.encode(), record.encode());
        leaf.push(&leaf_record(key.get(..key_len).unwrap_or(&key), raw.get(..len).unwrap_or(&raw)));
    }
    leaf
}

/// Writes a tree at byte `at`, empty or with one leaf.
fn tree<D: Device>(
    device: &mut D,
    at: u64,
    kind: TreeKind,
    file_bytes: u32,
    leaf: Option<&NodeBuf>,
) -> Result<()> {
    device.write_zeroes(at, u64::from(file_bytes))?;
    let nodes = file_bytes / NODE_BYTES as u32;
    let in_header = 8 * HEADER_MAP_BYTES as u32;
    let map_nodes = nodes.saturating_sub(in_header).div_ceil(8 * MAP_NODE_BYTES as u32);
    let used = 1 + u32::from(leaf.is_some()) + map_nodes;
    let root = u32::from(leaf.is_some());
    let header = Header {
        depth: u16::from(leaf.is_some()),
        root,
        records: leaf.map_or(0, |leaf| u32::try_from(leaf.count()).unwrap_or(0)),
        first_leaf: root,
        last_leaf: root,
        node_bytes: NODE_BYTES as u16,
        key_bytes: u16::from(kind.key_bytes()),
        nodes,
        free_nodes: nodes - used,
    };
    let mut head = header.encode_node();
    let first_map_node = 1 + root;
    if map_nodes > 0 {
        put32(&mut head, 0, first_map_node);
    }
    // The nodes in use are the first ones: few enough for the map in node 0.
    let mut bits: Vec<u8> = vec![0; HEADER_MAP_BYTES];
    for node in 0..used as usize {
        if let Some(byte) = bits.get_mut(node / 8) {
            *byte |= 0x80 >> (node % 8);
        }
    }
    put(&mut head, HEADER_MAP_OFFSET, &bits);
    device.write_at(&head, at)?;
    if let Some(leaf) = leaf {
        device.write_at(&leaf.raw, at + NODE_BYTES as u64)?;
    }
    for i in 0..map_nodes {
        let node = first_map_node + i;
        let mut raw = [0; NODE_BYTES];
        let next = if i + 1 < map_nodes { node + 1 } else { 0 };
        let head = NodeDescriptor { next, prev: 0, kind: NodeKind::Map, height: 0, records: 1 };
        head.encode_into(&mut raw);
        put16(&mut raw, NODE_BYTES - 2, RECORDS_OFFSET as u16);
        put16(&mut raw, NODE_BYTES - 4, (RECORDS_OFFSET + MAP_NODE_BYTES) as u16);
        device.write_at(&raw, at + u64::from(node) * NODE_BYTES as u64)?;
    }
    Ok(())
}
