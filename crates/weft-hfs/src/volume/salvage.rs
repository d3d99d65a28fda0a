//! Opening a volume whose extents file is damaged, for a repair.

use super::map::ForkMap;
use crate::btree::Tree;
use crate::btree::node::View;
use crate::layout::{CATALOG_ID, ExtentKey, ExtentRecord, Fork, Mdb, NodeKind};
use crate::store::Store;
use alloc::collections::BTreeMap;

/// Returns the extents of the catalog as the leaves of the extents file have them, regardless of
/// its index. They may end before the catalog does.
pub(super) fn catalog_map<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
    s: &mut S,
    extents: &Tree<P>,
    mdb: &Mdb,
) -> ForkMap {
    let mut more: BTreeMap<u32, ExtentRecord> = BTreeMap::new();
    for node in 1..extents.header.nodes {
        let Ok(block) = extents.block_of(node) else { break };
        let Ok(raw) = s.read(block) else { continue };
        let Ok(view) = View::parse(extents.kind, raw) else { continue };
        if view.head.kind != NodeKind::Leaf {
            continue;
        }
        for i in 0..view.count() {
            if let (Ok(key), Some(record)) =
                (ExtentKey::parse(view.key(i)), ExtentKey::parse_record(view.value(i)))
                && (key.file_id, key.fork) == (CATALOG_ID, Fork::Data)
            {
                more.insert(key.block.into(), record);
            }
        }
    }
    let mut map = ForkMap::default();
    map.push_record(&mdb.catalog_file);
    let want = mdb.catalog_file_bytes / mdb.alloc_block_bytes;
    while map.blocks() < want
        && more.get(&map.blocks()).is_some_and(|record| {
            record.iter().all(|e| e.end() <= u32::from(mdb.alloc_blocks)) && map.push_record(record)
        })
    {}
    map
}
