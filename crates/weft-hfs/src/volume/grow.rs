//! The files of the trees: records of the extents file, and growth of both trees.

use super::map::Run;
use super::state::{Reserved, Volume};
use crate::btree::{Befores, TreeKind};
use crate::layout::{
    BLOCK_BYTES, CATALOG_ID, EXTENT_RECORD_BYTES, EXTENTS_ID, Extent, ExtentKey, FORK_MAX_BYTES,
    Fork, NODE_BYTES,
};
use crate::store::Store;
use crate::{Error, Result};
use alloc::vec::Vec;

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Inserts a record into the extents file, or overwrites it.
    pub(crate) fn put_extents<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        key: &[u8; ExtentKey::BYTES],
        value: &[u8; EXTENT_RECORD_BYTES],
        befores: &[P],
    ) -> Result<P> {
        let path = self.extents.find(s, key)?;
        if path.found {
            self.extents.update(s, &path, 0, value, befores)
        } else {
            self.extents.insert(s, &path, key, value, befores)
        }
    }

    /// Removes a record of the extents file, if it is there.
    pub(crate) fn remove_extents<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        key: &[u8],
        befores: &[P],
    ) -> Result<Option<P>> {
        let path = self.extents.find(s, key)?;
        if path.found { self.extents.remove(s, &path, befores).map(Some) } else { Ok(None) }
    }

    /// Makes sure that the extents file has `nodes` free nodes.
    pub(super) fn need_extents_nodes<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        nodes: u32,
    ) -> Result<()> {
        if self.extents.header.free_nodes >= nodes {
            return Ok(());
        }
        self.grow_tree(s, TreeKind::Extents, nodes)
    }

    /// Makes sure that the catalog has `nodes` free nodes.
    pub(super) fn need_catalog_nodes<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        nodes: u32,
    ) -> Result<()> {
        if self.catalog.header.free_nodes >= nodes {
            return Ok(());
        }
        // Makes room for the record of a fourth extent first.
        if self.catalog_map.runs.len() >= 3 {
            let depth = u32::from(self.extents.header.depth);
            self.need_extents_nodes(s, depth + 2)?;
        }
        self.grow_tree(s, TreeKind::Catalog, nodes)
    }

    /// Allocates `want` blocks for a fork (`least` on a full volume), to be zeroed by
    /// [`zero_taken`](Self::zero_taken). Too many are reserved, and taken when the operation is
    /// tried again.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unzeroed`].
    pub(super) fn take_zeroed<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        owner: (u32, Fork),
        goal: Option<u32>,
        (least, want): (u32, u32),
        keep: u32,
    ) -> Result<Vec<Extent>> {
        if let Some(i) = self.zeroed.iter().position(|reserved| reserved.owner == owner) {
            let reserved = self.zeroed.swap_remove(i);
            if (least..=want).contains(&blocks_of(&reserved.extents)) {
                return Ok(reserved.extents);
            }
            // The fork has changed meanwhile.
            self.space.put_back(&reserved.extents);
        }
        let extents = match self.space.take(owner, goal, want, keep) {
            Err(Error::NoSpace) if least < want => self.space.take(owner, goal, least, keep)?,
            taken => taken?,
        };
        let per = self.mdb.blocks_per_alloc();
        if !s.zeroes_before(owner.0, u64::from(blocks_of(&extents)) * per) {
            return Ok(extents);
        }
        let parts = extents.iter().map(|extent| {
            let block = self.block_of(u32::from(extent.start));
            s.zeroed_part(block, u64::from(extent.count) * per)
        });
        let parts = parts.collect();
        self.unzeroed = Some(Reserved { owner, extents, parts });
        Err(Error::Unzeroed)
    }

    /// Makes the blocks zero that [`take_zeroed`](Self::take_zeroed) returned.
    pub(super) fn zero_taken<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        id: u32,
        taken: &[Extent],
        waits: &mut Befores<P>,
    ) -> Result<()> {
        let per = self.mdb.blocks_per_alloc();
        let blocks = u64::from(blocks_of(taken)) * per;
        for extent in taken {
            let (block, count) =
                (self.block_of(u32::from(extent.start)), u64::from(extent.count) * per);
            if !s.zeroes_before(id, blocks) {
                waits.push(s.zero_data(block, id, count)?);
                continue;
            }
            let (first, zeroed) = s.zeroed_part(block, count);
            for shared in (block..first).chain(first + zeroed..block + count) {
                waits.push(s.write(shared, 0, &[0; BLOCK_BYTES], &[])?);
            }
        }
        Ok(())
    }

    /// Keeps blocks that were zeroed for the next attempt of the operation.
    pub(super) fn keep_zeroed(&mut self, owner: (u32, Fork), extents: Vec<Extent>) {
        self.zeroed.push(Reserved { owner, extents, parts: Vec::new() });
    }

    /// Gives up the blocks that were zeroed for an operation which did not take them.
    pub(crate) fn drop_zeroed(&mut self, zeroed: Vec<Reserved>) {
        for reserved in zeroed {
            self.space.put_back(&reserved.extents);
        }
    }

    /// Makes a tree's file longer by its clump size, or at least by `nodes` nodes.
    fn grow_tree<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        kind: TreeKind,
        nodes: u32,
    ) -> Result<()> {
        let size = self.mdb.alloc_block_bytes;
        let (id, clump, map) = match kind {
            TreeKind::Catalog => (CATALOG_ID, self.mdb.catalog_clump_bytes, &self.catalog_map),
            TreeKind::Extents => (EXTENTS_ID, self.mdb.extents_clump_bytes, &self.extents_map),
        };
        // The map may need a node of its own.
        let least = ((nodes + 1) * NODE_BYTES as u32).div_ceil(size);
        let most = (FORK_MAX_BYTES / size).saturating_sub(map.blocks());
        let goal = map.runs.last().map(|run| run.extent.end());
        let want = (clump / size).max(least);
        if least > most {
            return Err(Error::NoSpace);
        }
        self.space.settle(s);
        let want = (least, want.min(most).max(least));
        let mut map = map.clone();
        let taken = self.take_zeroed(s, (id, Fork::Data), goal, want, 0)?;
        let first_changed = super::fork::append(&mut map, &taken);
        if kind == TreeKind::Extents && map.runs.len() > 3 {
            // The Mac reads no more than three extents of the extents file.
            self.space.put_back(&taken);
            return Err(Error::NoSpace);
        }
        self.space.use_up(&taken);
        let mut waits = Befores::new();
        self.zero_taken(s, id, &taken, &mut waits)?;
        for i in first_changed.max(1)..map.records.len() {
            let (at, extents) = map.record(i);
            let key = Self::overflow_key(id, Fork::Data, at)?;
            let value = ExtentKey::encode_record(&extents);
            waits.push(self.put_extents(s, &key, &value, &[])?);
        }
        let bytes = map.blocks() * size;
        let first = map.record(0).1;
        match kind {
            TreeKind::Catalog => {
                self.mdb.catalog_file = first;
                self.mdb.catalog_file_bytes = bytes;
            }
            TreeKind::Extents => {
                self.mdb.extents_file = first;
                self.mdb.extents_file_bytes = bytes;
            }
        }
        let mapped = self.write_mdb(s, &waits)?;
        self.write_copy(s, &[mapped])?;
        let extents: Vec<Extent> = map.runs.iter().map(|run: &Run| run.extent).collect();
        match kind {
            TreeKind::Catalog => {
                self.catalog_map = map;
                self.catalog.grow(s, &extents, bytes, mapped)?;
            }
            TreeKind::Extents => {
                self.extents_map = map;
                self.extents.grow(s, &extents, bytes, mapped)?;
            }
        }
        self.touch();
        Ok(())
    }
}

/// Returns the number of blocks of some extents.
fn blocks_of(extents: &[Extent]) -> u32 {
    extents.iter().map(|extent| u32::from(extent.count)).sum()
}
