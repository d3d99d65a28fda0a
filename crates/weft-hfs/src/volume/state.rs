//! An open volume in memory: its MDB, trees and space, and the changes that others must follow.

use super::map::{ForkMap, load_map};
use super::passed_over::PassedOver;
use super::salvage;
use super::space::Space;
use crate::btree::{Befores, Place, Tree, TreeKind};
use crate::layout::{
    Attributes, CATALOG_ID, CatalogKey, CatalogRecord, DirectoryRecord, Extent, FIRST_ID, Fork,
    MDB_BLOCK, MDB_BYTES, Mdb, NEXT_ID_AHEAD, changed,
};
use crate::store::Store;
use crate::{Error, Result};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use hashbrown::HashMap;

/// The folders that were found without their threads.
#[derive(Debug, Default)]
pub(super) struct Strays {
    pub keys: HashMap<u32, CatalogKey>,
    /// The version of the catalog that was searched.
    pub seen: Option<u64>,
}

/// Blocks reserved for a fork, and the parts of the volume, first block and number, to be zeroed
/// for it.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(super) owner: (u32, Fork),
    pub(super) extents: Vec<Extent>,
    pub parts: Vec<(u64, u64)>,
}

/// An open volume.
#[derive(Debug)]
pub struct Volume<P> {
    pub(crate) mdb: Mdb,
    stored_mdb: [u8; MDB_BYTES],
    mdb_changed: bool,
    /// Operations whose counts have not been written to the store yet.
    uncounted: u32,
    /// The copy of the MDB must be written with the next counts.
    copy_due: bool,
    /// Folders that their threads do not lead to.
    pub(super) strays: RefCell<Strays>,
    /// The damage that reads have passed over.
    pub(super) passed_over: RefCell<PassedOver>,
    /// The folder that was read last, as the catalog has it.
    pub(crate) recent: Cell<Option<(u32, CatalogKey, DirectoryRecord)>>,
    pub(crate) device_blocks: u64,
    pub(crate) space: Space,
    /// Blocks reserved for a fork that wait to be zeroed: an operation ended with
    /// [`Error::Unzeroed`].
    pub(crate) unzeroed: Option<Reserved>,
    /// Blocks reserved for a fork that were zeroed for the operation in progress.
    pub(crate) zeroed: Vec<Reserved>,
    pub(crate) catalog: Tree<P>,
    pub(crate) extents: Tree<P>,
    pub(crate) catalog_map: ForkMap,
    pub(crate) extents_map: ForkMap,
    /// For folders the change that put them into their parent, until it is durable, and that
    /// parent's id.
    pub(super) places: HashMap<u32, (P, u32)>,
    /// For items the change that removed their old records, until it is durable.
    pub(super) moved: HashMap<u32, P>,
    /// For folders the change that removed the old records of items moved out of them, until it is
    /// durable.
    pub(super) left: HashMap<u32, P>,
    /// The time that changes are dated with: seconds since 1904, local time.
    pub(crate) now: u32,
    read_only: bool,
}

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Opens the volume in the store's first `device_blocks` blocks. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NotHfs`], [`Error::Corrupt`].
    pub fn open<S: Store<Patch = P>>(s: &mut S, device_blocks: u64) -> Result<Self> {
        if device_blocks < MDB_BLOCK + 3 {
            return Err(Error::NotHfs { found: 0 });
        }
        let mdb = Mdb::parse(s.read(MDB_BLOCK)?)?;
        Self::open_trees(s, mdb, device_blocks, false)
    }

    /// As [`open`](Self::open), with an MDB that was read elsewhere. With `salvage`, a tree whose
    /// header is damaged is opened for its leaves alone: see [`Tree::of_leaves`].
    pub(crate) fn open_trees<S: Store<Patch = P>>(
        s: &mut S,
        mdb: Mdb,
        device_blocks: u64,
        salvage: bool,
    ) -> Result<Self> {
        mdb.check(device_blocks)?;
        let mut bitmap = Vec::new();
        for block in 0..mdb.bitmap_blocks() {
            bitmap.extend_from_slice(s.read(u64::from(mdb.bitmap_block) + block)?);
        }
        let place = Place {
            first_block: u64::from(mdb.first_block),
            blocks_per_alloc: mdb.blocks_per_alloc(),
        };
        let mut extents_map = ForkMap::default();
        extents_map.push_record(&mdb.extents_file);
        let open = |s: &mut S, kind, extents: Vec<_>, file_bytes| match Tree::open(
            s,
            kind,
            place,
            extents.clone(),
            file_bytes,
        ) {
            Err(e @ Error::Corrupt { .. }) if salvage => {
                Tree::of_leaves(s, kind, place, extents, file_bytes, &e)
            }
            other => other,
        };
        let extents = open(s, TreeKind::Extents, extents_map.extents(), mdb.extents_file_bytes)?;
        let catalog_map = match load_map(
            s,
            &extents,
            &mdb,
            (CATALOG_ID, Fork::Data),
            &mdb.catalog_file,
            mdb.catalog_file_bytes,
        ) {
            Err(Error::Corrupt { .. }) if salvage => salvage::catalog_map(s, &extents, &mdb),
            other => other?,
        };
        let catalog = open(s, TreeKind::Catalog, catalog_map.extents(), mdb.catalog_file_bytes)?;
        let mut volume = Self {
            stored_mdb: [0; MDB_BYTES],
            mdb_changed: false,
            uncounted: 0,
            copy_due: false,
            strays: RefCell::default(),
            passed_over: RefCell::default(),
            recent: Cell::new(None),
            device_blocks,
            space: Space::new(mdb.alloc_blocks, bitmap),
            unzeroed: None,
            zeroed: Vec::new(),
            extents,
            catalog,
            catalog_map,
            extents_map,
            places: HashMap::new(),
            moved: HashMap::new(),
            left: HashMap::new(),
            now: mdb.modified,
            read_only: false,
            mdb,
        };
        if let Some(raw) = s.read(MDB_BLOCK)?.first_chunk() {
            volume.stored_mdb = *raw;
        }
        volume.space.hint = u32::from(volume.mdb.alloc_hint);
        Ok(volume)
    }

    /// Returns the damage that reads have passed over so far, each item once.
    #[must_use]
    pub fn passed_over(&self) -> Vec<String> {
        self.passed_over.borrow().listed.clone()
    }

    /// Returns the MDB as it shall be written.
    #[must_use]
    pub fn mdb(&self) -> &Mdb {
        &self.mdb
    }

    /// Sets the time that changes are dated with: seconds since 1904, in local time.
    pub fn set_now(&mut self, now: u32) {
        self.now = now;
    }

    /// Refuses all changes from now on, or allows them.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Returns true if the volume was unmounted cleanly.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.mdb.attributes.contains(Attributes::UNMOUNTED)
    }

    /// Returns true if the volume's attributes forbid changes.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.mdb.attributes.intersects(Attributes::HARDWARE_LOCK | Attributes::SOFTWARE_LOCK)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Marks the MDB as changed.
    pub(crate) fn touch(&mut self) {
        self.mdb_changed = true;
    }

    /// Sets `drFndrInfo`.
    pub fn set_finder_info(&mut self, words: [u32; 8]) {
        self.mdb.finder_info = words;
        self.touch();
    }

    /// Sets the dates of creation and of the last backup: seconds since 1904, in local time.
    pub fn set_dates(&mut self, created: u32, backed_up: u32) {
        (self.mdb.created, self.mdb.backed_up) = (created, backed_up);
        // Apple's checker compares the dates of creation.
        self.copy_due = true;
        self.touch();
    }

    /// Marks the volume as in use, or as unmounted, in its MDB.
    pub fn mark<S: Store<Patch = P>>(&mut self, s: &mut S, unmounted: bool) -> Result<P> {
        self.mdb.attributes.set(Attributes::UNMOUNTED, unmounted);
        self.write_mdb(s, &[])
    }

    /// Returns the MDB as it would be written now, with the free blocks counted.
    pub fn current_mdb(&mut self) -> &Mdb {
        self.refresh_mdb();
        &self.mdb
    }

    /// Updates the free block count and the allocation hint of the MDB.
    pub(super) fn refresh_mdb(&mut self) {
        self.mdb.free_blocks = u16::try_from(self.space.free_on_disk()).unwrap_or(u16::MAX);
        self.mdb.alloc_hint =
            u16::try_from(self.space.hint).ok().filter(|&h| h < self.mdb.alloc_blocks).unwrap_or(0);
    }

    pub(crate) fn write_mdb<S: Store<Patch = P>>(&mut self, s: &mut S, befores: &[P]) -> Result<P> {
        self.refresh_mdb();
        let raw = self.mdb.encode();
        let Some(range) = changed(&self.stored_mdb, &raw) else { return Ok(S::DURABLE) };
        let first = range.start;
        let patch = s.write(MDB_BLOCK, first, raw.get(range).unwrap_or(&[]), befores)?;
        self.stored_mdb = raw;
        Ok(patch)
    }

    /// Writes the copy of the MDB, as the Mac does when a tree's file has grown. Writes nothing if
    /// the device ends too early for the copy.
    pub(crate) fn write_copy<S: Store<Patch = P>>(&self, s: &mut S, befores: &[P]) -> Result<P> {
        match self.mdb.copy_block(self.device_blocks) {
            Some(block) => s.write(block, 0, &self.mdb.encode(), befores),
            None => Ok(S::DURABLE),
        }
    }

    /// Sets the next id to one that Apple's checker accepts, when many items have been removed: the
    /// next id must not be far above the highest id in use.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Device`].
    pub fn settle_next_id<S: Store<Patch = P>>(&mut self, s: &mut S) -> Result<()> {
        let ahead = FIRST_ID.saturating_add(NEXT_ID_AHEAD);
        let items = self.mdb.files.saturating_add(self.mdb.dirs);
        if self.mdb.next_id <= items.saturating_add(ahead) {
            return Ok(());
        }
        let mut highest = FIRST_ID - 1;
        let (first, len) = CatalogKey::thread(0).encode();
        self.catalog.scan(s, first.get(..len).unwrap_or(&first), |_, value| {
            // Unreadable records are left to a check.
            if let Ok(Some(id)) = CatalogRecord::parse(value).map(|record| record.id()) {
                highest = highest.max(id);
            }
            Ok(true)
        })?;
        let most = highest.saturating_add(1).saturating_add(NEXT_ID_AHEAD);
        if self.mdb.next_id > most {
            self.mdb.next_id = most;
            self.touch();
        }
        Ok(())
    }

    /// Ends an operation. Bitmap, tree headers and MDB follow from the trees after a cut, so they
    /// need not be written to the store each time.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn finish<S: Store<Patch = P>>(&mut self, s: &mut S) -> Result<()> {
        const AT_ONCE: u32 = 64;
        if s.is_atomic() {
            // No recovery would find deferred changes.
            self.tidy(s, usize::MAX)?;
            return self.store_counts(s);
        }
        self.uncounted += 1;
        if self.uncounted < AT_ONCE { Ok(()) } else { self.store_counts(s) }
    }

    /// Writes bitmap, tree headers and MDB to the store.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn store_counts<S: Store<Patch = P>>(&mut self, s: &mut S) -> Result<()> {
        self.uncounted = 0;
        self.space.write(s, u64::from(self.mdb.bitmap_block))?;
        self.catalog.write_header(s, &[])?;
        self.extents.write_header(s, &[])?;
        if self.mdb_changed {
            self.mdb_changed = false;
            self.mdb.modified = self.now;
            self.mdb.write_count = self.mdb.write_count.wrapping_add(1);
            self.write_mdb(s, &[])?;
        }
        if core::mem::take(&mut self.copy_due) {
            self.write_copy(s, &[])?;
        }
        Ok(())
    }

    /// Drops the records of changes that have become durable, and makes the blocks they freed
    /// available.
    pub fn settle<S: Store<Patch = P>>(&mut self, s: &mut S) {
        self.space.settle(s);
        self.catalog.settle(s);
        self.extents.settle(s);
        self.places.retain(|_, &mut (p, _)| !s.is_durable(p));
        self.moved.retain(|_, &mut p| !s.is_durable(p));
        self.left.retain(|_, &mut p| !s.is_durable(p));
    }

    /// Updates up to `most` index keys of each tree, which a checker requires to be exact. Returns
    /// true if there are more.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Device`].
    pub fn tidy<S: Store<Patch = P>>(&mut self, s: &mut S, most: usize) -> Result<bool> {
        self.catalog.raise_keys(s, most)?;
        self.extents.raise_keys(s, most)?;
        Ok(self.catalog.has_loose_keys() || self.extents.has_loose_keys())
    }

    /// Returns the length of a tree's file in bytes.
    pub(crate) fn mdb_file_bytes(&self, kind: TreeKind) -> u32 {
        match kind {
            TreeKind::Catalog => self.mdb.catalog_file_bytes,
            TreeKind::Extents => self.mdb.extents_file_bytes,
        }
    }

    /// Returns the number of allocation blocks that can be allocated now.
    #[must_use]
    pub fn free_now(&self) -> u32 {
        self.space.free_now()
    }

    /// Returns the change that removed the old record of an item, if it may not be durable.
    pub(crate) fn moved_by<S: Store<Patch = P>>(&mut self, s: &S, id: u32) -> Option<P> {
        if self.moved.is_empty() {
            return None;
        }
        let patch = *self.moved.get(&id)?;
        if s.is_durable(patch) {
            self.moved.remove(&id);
            return None;
        }
        Some(patch)
    }

    /// Returns the change that removed the old records of items moved out of a folder, if it may
    /// not be durable.
    pub(crate) fn left_by<S: Store<Patch = P>>(&self, s: &S, id: u32) -> Option<P> {
        self.left.get(&id).copied().filter(|&patch| !s.is_durable(patch))
    }

    /// Records that `patch` removed the old record of a moved item from a folder, or from one below
    /// it.
    pub(crate) fn note_left<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        folder: u32,
        patch: P,
    ) -> Result<()> {
        if s.is_atomic() || s.is_durable(patch) {
            return Ok(());
        }
        let all = match self.left_by(s, folder) {
            Some(before) => s.join(&[before, patch])?,
            None => patch,
        };
        self.left.insert(folder, all);
        Ok(())
    }

    /// Returns the changes that must be durable for folder `id` to be found from the root.
    pub fn way_to<S: Store<Patch = P>>(&self, s: &mut S, id: u32) -> Result<Vec<P>> {
        let mut patches = Vec::new();
        let mut at = id;
        // Folders whose location is durable may lie between folders whose location is not.
        for _ in 0..=self.mdb.dirs {
            if self.places.is_empty() || at <= crate::layout::ROOT_ID {
                break;
            }
            at = match self.places.get(&at) {
                Some(&(patch, parent)) => {
                    if !s.is_durable(patch) {
                        patches.push(patch);
                    }
                    parent
                }
                None => self.parent_of(s, at)?,
            };
        }
        Ok(patches)
    }

    pub(crate) fn all_befores(first: &[P], more: Option<P>) -> Befores<P> {
        first.iter().copied().chain(more).collect()
    }
}
