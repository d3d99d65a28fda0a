//! Writing the result of a repair, in the order that the [module above](super) gives.

use super::rebuild::{Rebuild, Records};
use crate::btree::{Tree, TreeKind, bulk};
use crate::fsck::walk::Found;
use crate::layout::{
    Attributes, BAD_BLOCKS_ID, BLOCK_BYTES, CATALOG_ID, CatalogKey, CatalogRecord, EXTENTS_ID,
    Extent, ExtentKey, ExtentRecord, Fork, MDB_BLOCK, Mdb, NODE_BYTES,
};
use crate::store::{Bare, Device, Store};
use crate::volume::Volume;
use crate::{Error, Result};
use alloc::vec;
use alloc::vec::Vec;

impl Rebuild {
    /// Writes the repaired volume; see the [module](super) for the order. Returns true if the trees
    /// had to be written in place.
    pub(super) fn write<D: Device>(
        mut self,
        s: &mut Bare<D>,
        volume: &Volume<()>,
        device_blocks: u64,
    ) -> Result<bool> {
        let catalog = self.catalog_records();
        let keep = self.sound[0] && same(&catalog, &self.found[0]);
        let mut in_place = false;
        let mut old: Vec<Extent> = Vec::new();
        let mut place = |rebuild: &mut Self, tree: &Tree<()>, records: &Records| {
            let placed = rebuild.place(tree, records)?;
            if let Some(extents) = &placed {
                old.extend(&tree.extents);
                rebuild.forks.insert((file_of(tree.kind), Fork::Data), extents.clone());
            }
            in_place |= placed.is_none();
            Ok::<_, Error>(placed.unwrap_or_else(|| tree.extents.clone()))
        };
        let catalog_at =
            if keep { None } else { Some(place(&mut self, &volume.catalog, &catalog)?) };
        let extents = self.extents_records()?;
        let keep = self.sound[1] && same(&extents, &self.found[1]);
        let extents_at =
            if keep { None } else { Some(place(&mut self, &volume.extents, &extents)?) };

        if catalog_at.is_some() || extents_at.is_some() {
            self.mark_inconsistent(s)?;
        }
        self.write_bitmap(s)?;
        for (tree, records, at) in
            [(&volume.catalog, &catalog, catalog_at), (&volume.extents, &extents, extents_at)]
        {
            let bytes = match &at {
                Some(extents) => self.write_tree(s, tree.kind, records, extents)?,
                None => volume.mdb_file_bytes(tree.kind),
            };
            let mut first = ExtentRecord::default();
            for (to, from) in first.iter_mut().zip(at.as_ref().unwrap_or(&tree.extents)) {
                *to = *from;
            }
            match tree.kind {
                TreeKind::Catalog => {
                    (self.mdb.catalog_file, self.mdb.catalog_file_bytes) = (first, bytes);
                }
                TreeKind::Extents => {
                    (self.mdb.extents_file, self.mdb.extents_file_bytes) = (first, bytes);
                }
            }
        }
        for extent in old {
            self.give_back(extent);
        }
        let mdb = self.new_mdb();
        s.flush()?;
        s.write(MDB_BLOCK, 0, &mdb, &[])?;
        s.flush()?;
        self.write_bitmap(s)?;
        if let Some(copy) = self.mdb.copy_block(device_blocks) {
            s.write(copy, 0, &mdb, &[])?;
        }
        s.flush()?;
        Ok(in_place)
    }

    fn catalog_records(&self) -> Records {
        let mut catalog = Records::new();
        let mut put = |key: CatalogKey, record: CatalogRecord| {
            let ((key, key_len), (raw, len)) = (key.encode(), record.encode());
            let key = key.get(..key_len).unwrap_or(&key).to_vec();
            catalog.push((key, raw.get(..len).unwrap_or(&raw).to_vec()));
        };
        for (key, record) in self.census.items() {
            put(key, record);
        }
        for (&id, thread) in &self.census.threads {
            put(CatalogKey::thread(id), CatalogRecord::Thread(*thread));
        }
        catalog.sort_by(|a, b| CatalogKey::compare(&a.0, &b.0));
        catalog
    }

    fn extents_records(&self) -> Result<Records> {
        let mut extents = Records::new();
        for (&(id, fork), all) in &self.forks {
            // The first three of a fork are in the file's own record; bad blocks have no such
            // record.
            let own = if id == BAD_BLOCKS_ID { 0 } else { 3 };
            let mut at: u32 = all.iter().take(own).map(|e| u32::from(e.count)).sum();
            for three in all.get(own..).unwrap_or(&[]).chunks(3) {
                let block = u16::try_from(at).map_err(|_| Error::TooLarge)?;
                let key = ExtentKey { file_id: id, fork, block }.encode().to_vec();
                let mut record = ExtentRecord::default();
                for (to, from) in record.iter_mut().zip(three) {
                    *to = *from;
                    at += u32::from(from.count);
                }
                extents.push((key, ExtentKey::encode_record(&record).to_vec()));
            }
        }
        extents.sort_by(|a, b| ExtentKey::compare(&a.0, &b.0));
        Ok(extents)
    }

    /// Allocates free blocks for a tree of these records: as many as it has now, or as it needs at
    /// least; in at most three pieces, as the Mac reads no more of the extents file. `None` if
    /// there are not enough.
    fn place(&mut self, tree: &Tree<()>, records: &Records) -> Result<Option<Vec<Extent>>> {
        let size = self.mdb.alloc_block_bytes;
        let now: u32 = tree.extents.iter().map(|e| u32::from(e.count)).sum();
        let nodes = |blocks: u32| blocks.saturating_mul(size / NODE_BYTES as u32);
        let built = match bulk::build(tree.kind, records, nodes(now)) {
            // More records than before: a node for each is enough to count the nodes.
            Err(Error::NoSpace) => {
                let many = u32::try_from(records.len()).unwrap_or(u32::MAX).saturating_add(64);
                bulk::build(tree.kind, records, many.saturating_mul(2))?
            }
            built => built?,
        };
        let least = u32::try_from(built.len() * NODE_BYTES).map_err(|_| Error::NoSpace)?;
        let least = least.div_ceil(size) + 1;
        for want in [now.max(least), least] {
            let mut runs = self.free_runs();
            runs.sort_by_key(|run| core::cmp::Reverse(run.count));
            runs.truncate(3);
            let mut left = want;
            let mut taken = Vec::new();
            for run in runs {
                let count = u16::try_from(left.min(run.count.into())).unwrap_or(run.count);
                if count > 0 {
                    taken.push(Extent { start: run.start, count });
                }
                left -= u32::from(count);
            }
            if left == 0 {
                for &extent in &taken {
                    self.claim(extent);
                }
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    fn free_runs(&self) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        for (nr, _) in self.takeable().iter().enumerate().filter(|(_, used)| !**used) {
            let Ok(nr) = u16::try_from(nr) else { break };
            match runs.last_mut() {
                Some(run) if run.end() == u32::from(nr) => run.count += 1,
                _ => runs.push(Extent { start: nr, count: 1 }),
            }
        }
        runs
    }

    /// Writes all nodes of a tree; returns the length of its file.
    fn write_tree<D: Device>(
        &self,
        s: &mut Bare<D>,
        kind: TreeKind,
        records: &Records,
        extents: &[Extent],
    ) -> Result<u32> {
        let per = self.mdb.blocks_per_alloc();
        let blocks = extents.iter().flat_map(|e| {
            let first = u64::from(self.mdb.first_block) + u64::from(e.start) * per;
            first..first + u64::from(e.count) * per
        });
        let nodes: u64 = extents.iter().map(|e| u64::from(e.count) * per).sum();
        let built = bulk::build(kind, records, u32::try_from(nodes).unwrap_or(u32::MAX))?;
        for (node, block) in blocks.enumerate() {
            let raw = built.get(node).unwrap_or(&[0; NODE_BYTES]);
            if s.read(block)? != raw {
                s.init(block, raw, &[])?;
            }
        }
        u32::try_from(nodes * NODE_BYTES as u64).map_err(|_| Error::NoSpace)
    }

    /// Keeps other systems from changing a volume whose repair is interrupted.
    fn mark_inconsistent<D: Device>(&self, s: &mut Bare<D>) -> Result<()> {
        // If this block is not even an MDB, no system will mount the volume.
        if let Ok(mut mdb) = Mdb::parse(s.read(MDB_BLOCK)?) {
            mdb.attributes.insert(Attributes::INCONSISTENT);
            s.write(MDB_BLOCK, 0, &mdb.encode(), &[])?;
            s.flush()?;
        }
        Ok(())
    }

    fn write_bitmap<D: Device>(&self, s: &mut Bare<D>) -> Result<()> {
        let mut bitmap = vec![0_u8; usize::try_from(self.mdb.bitmap_blocks()).unwrap_or(0) * 512];
        for (nr, _) in self.used.iter().enumerate().filter(|(_, used)| **used) {
            if let Some(byte) = bitmap.get_mut(nr / 8) {
                *byte |= 0x80 >> (nr % 8);
            }
        }
        for (i, block) in bitmap.chunks(BLOCK_BYTES).enumerate() {
            let nr = u64::from(self.mdb.bitmap_block) + i as u64;
            if s.read(nr)? != block {
                s.write(nr, 0, block, &[])?;
            }
        }
        Ok(())
    }

    /// Returns the MDB of a sound volume that was unmounted.
    fn new_mdb(&mut self) -> [u8; crate::layout::MDB_BYTES] {
        let size = self.mdb.alloc_block_bytes;
        if !self.mdb.takes_file_clump(self.mdb.clump_bytes) {
            self.mdb.clump_bytes = Mdb::default_clump(size);
        }
        if !self.mdb.takes_file_clump(self.mdb.clump_bytes) {
            self.mdb.clump_bytes = size;
        }
        let limit = u32::try_from(self.mdb.clump_limit()).unwrap_or(u32::MAX) / size * size;
        for (file_bytes, clump) in [
            (self.mdb.extents_file_bytes, &mut self.mdb.extents_clump_bytes),
            (self.mdb.catalog_file_bytes, &mut self.mdb.catalog_clump_bytes),
        ] {
            if !clump.is_multiple_of(size) || *clump > limit {
                *clump = file_bytes.min(limit) / size * size;
            }
        }
        if !self.mdb.is_wrapper() {
            self.mdb.embed_signature = 0;
            self.mdb.embed_extent = Extent::default();
        }
        self.mdb.attributes.remove(Attributes::RESERVED);
        let free = self.used.iter().filter(|used| !**used).count();
        self.mdb.free_blocks = u16::try_from(free).unwrap_or(u16::MAX);
        self.mdb.attributes.insert(Attributes::UNMOUNTED);
        self.mdb.attributes.remove(Attributes::INCONSISTENT);
        self.mdb.write_count = self.mdb.write_count.wrapping_add(1);
        self.mdb.encode()
    }
}

/// Returns the id of a tree's file.
fn file_of(kind: TreeKind) -> u32 {
    match kind {
        TreeKind::Catalog => CATALOG_ID,
        TreeKind::Extents => EXTENTS_ID,
    }
}

/// Returns true if the records of a tree are those that were found in it.
fn same(records: &Records, found: &[Found]) -> bool {
    records.len() == found.len()
        && records.iter().zip(found).all(|(r, f)| r.0 == f.key && r.1 == f.value)
}
