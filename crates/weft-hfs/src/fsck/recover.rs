//! Recovery of a volume after a power cut.
//!
//! Recovery can be interrupted and repeated: every step is in the order that keeps the volume's
//! content, only with less stale data. Inconsistencies that ordered writes cannot produce are
//! damage, which is not touched here: a [`repair`](super::repair_on) corrects it.

use super::census::Census;
use super::problem::Problem;
use super::walk::{Walk, read_node};
use crate::btree::node::NodeBuf;
use crate::btree::{Befores, TreeKind};
use crate::layout::{
    CatalogKey, CatalogRecord, DirectoryRecord, ExtentKey, ExtentRecord, FileFlags, Fork, Mdb,
    NODE_BYTES, ThreadRecord,
};
use crate::store::Store;
use crate::volume::Volume;
use crate::{Error, Result};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use hashbrown::HashSet;

/// The changes that a recovery made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Nodes of the trees that were changed.
    pub nodes: u32,
    /// Records that were removed, added or changed.
    pub records: u32,
    /// Items that were left in no folder, and were removed: they had not been synced.
    pub items: u32,
}

impl Recovered {
    /// Returns the number of changes.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.nodes + self.records + self.items
    }
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "corrected {} nodes and {} records, removed {} items without a folder",
            self.nodes, self.records, self.items
        )
    }
}

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Repairs the trees after a power cut. All of it must be durable before
    /// [`recover_rest`](Self::recover_rest).
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damage: nothing has been written then.
    pub fn recover_trees<S: Store<Patch = P>>(&mut self, s: &mut S) -> Result<Recovered> {
        self.recent.set(None);
        let mut done = Recovered::default();
        for kind in [TreeKind::Extents, TreeKind::Catalog] {
            // The file grew, and the tree does not cover the new part yet.
            let (bytes, map) = match kind {
                TreeKind::Catalog => (self.mdb.catalog_file_bytes, &self.catalog_map),
                TreeKind::Extents => (self.mdb.extents_file_bytes, &self.extents_map),
            };
            let extents = map.extents();
            let tree = self.tree_mut(kind);
            if bytes / NODE_BYTES as u32 > tree.header.nodes {
                tree.grow(s, &extents, bytes, S::DURABLE)?;
                done.nodes += 1;
            }
        }
        let catalog = Walk::new(s, &self.catalog);
        let extents = Walk::new(s, &self.extents);
        if let Some(problem) = catalog.damage.iter().chain(&extents.damage).next() {
            return Err(damage(problem));
        }
        check_records(&Census::new(&catalog.records, &[]))?;
        done.nodes += self.recover_tree(s, TreeKind::Catalog, &catalog, S::DURABLE)?;
        done.nodes += self.recover_tree(s, TreeKind::Extents, &extents, S::DURABLE)?;
        Ok(done)
    }

    /// Repairs the records in the trees, the bitmap and the counts. Freed blocks can be used when
    /// all of it is durable. Changes records as any other operation does, and so requires trees
    /// without stale copies, on the disk as in memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damage.
    pub fn recover_rest<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        mut done: Recovered,
    ) -> Result<Recovered> {
        let catalog = Walk::new(s, &self.catalog);
        self.recover_items(s, &catalog, &mut done)?;
        let catalog = Walk::new(s, &self.catalog);
        let extents = Walk::new(s, &self.extents);
        self.recover_extents(s, &catalog, &extents, &mut done)?;
        while self.tidy(s, usize::MAX)? {}
        self.touch();
        self.store_counts(s)?;
        let Some(copy) = self.mdb.copy_block(self.device_blocks) else { return Ok(done) };
        let copy = Mdb::parse(s.read(copy)?);
        let trees = |m: &Mdb| {
            let files = (m.catalog_file, m.catalog_file_bytes, m.extents_file);
            (files, m.extents_file_bytes, m.created)
        };
        if copy.is_err() || copy.is_ok_and(|copy| trees(&copy) != trees(&self.mdb)) {
            self.write_copy(s, &[])?;
        }
        Ok(done)
    }

    fn tree_mut(&mut self, kind: TreeKind) -> &mut crate::btree::Tree<P> {
        match kind {
            TreeKind::Catalog => &mut self.catalog,
            TreeKind::Extents => &mut self.extents,
        }
    }

    /// Cuts off stale copies; returns their number, and the change that later steps wait for.
    fn cut_stale<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        kind: TreeKind,
        walk: &Walk,
        after: P,
    ) -> Result<(u32, P)> {
        let tree = self.tree_mut(kind);
        let mut changed = 0;
        let mut cuts = Befores::from_slice(&[after]);
        for (node, mine, count) in &walk.stale {
            let node = *node;
            let old = load(s, tree, node)?;
            let mut new = old.clone();
            for i in (0..*count).rev().filter(|i| !mine.contains(i)) {
                new.remove(i);
            }
            cuts.push(s.write(tree.block_of(node)?, 0, &new.raw, &[])?);
            changed += 1;
        }
        Ok((changed, s.join(&cuts)?))
    }

    /// Cuts off stale copies, then corrects keys, links, map and header.
    fn recover_tree<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        kind: TreeKind,
        walk: &Walk,
        after: P,
    ) -> Result<u32> {
        let (mut changed, mut cut) = self.cut_stale(s, kind, walk, after)?;
        let again;
        let walk = if walk.empty.is_empty() {
            walk
        } else {
            let tree = self.tree_mut(kind);
            let before = changed;
            for (node, height, key) in &walk.empty {
                if let Some(gone) = tree.drop_empty(s, *node, *height, key, cut)? {
                    // Keys are raised after the nodes that they would lead past are gone.
                    cut = s.join(&[cut, gone])?;
                    changed += 1;
                }
            }
            if changed == before {
                let node = walk.empty.first().map_or(0, |(node, ..)| *node);
                return Err(tree.damaged(node, "no records of its own"));
            }
            again = Walk::new(s, tree);
            let rest = !again.stale.is_empty() || !again.empty.is_empty();
            if let Some(problem) = again.damage.first() {
                return Err(damage(problem));
            }
            if rest {
                // Removing the empty nodes has exposed more stale copies or empty nodes.
                return Ok(changed + self.recover_tree(s, kind, &again, cut)?);
            }
            &again
        };
        let tree = self.tree_mut(kind);
        for off in &walk.keys_off {
            let mut node = load(s, tree, off.node)?;
            node.set_index_key(off.index, &kind.index_key(&off.right));
            s.write(tree.block_of(off.node)?, 0, &node.raw, &[cut])?;
            changed += 1;
        }
        for level in &walk.levels {
            for (i, &node) in level.iter().enumerate() {
                let prev = i.checked_sub(1).and_then(|i| level.get(i)).copied().unwrap_or(0);
                let next = level.get(i + 1).copied().unwrap_or(0);
                let mut buf = load(s, tree, node)?;
                if (buf.next(), buf.prev()) != (next, prev) {
                    buf.set_next(next);
                    buf.set_prev(prev);
                    s.write(tree.block_of(node)?, 0, buf.raw.get(..8).unwrap_or(&[]), &[])?;
                    changed += 1;
                }
            }
        }
        let maps: HashSet<u32> = tree.map_nodes().collect();
        tree.write_map(s, |node| maps.contains(&node) || walk.used.contains(&node))?;
        for node in 0..tree.header.nodes {
            let block = tree.block_of(node)?;
            if !tree.is_used(node) && s.read(block)?.iter().any(|&b| b != 0) {
                s.init(block, &[0; NODE_BYTES], &[])?;
                changed += 1;
            }
        }
        let leaves = walk.levels.first();
        tree.header.first_leaf = leaves.and_then(|l| l.first()).copied().unwrap_or(0);
        tree.header.last_leaf = leaves.and_then(|l| l.last()).copied().unwrap_or(0);
        tree.header.records = u32::try_from(walk.records.len()).unwrap_or(u32::MAX);
        tree.write_header(s, &[])?;
        Ok(changed)
    }

    /// Corrects duplicate records, threads, items in no folder, and counts.
    fn recover_items<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        catalog: &Walk,
        done: &mut Recovered,
    ) -> Result<()> {
        let mut census = Census::new(&catalog.records, &[]);
        check_records(&census)?;
        for (key, _) in core::mem::take(&mut census.duplicates) {
            self.remove_record(s, &key, &[])?;
            done.records += 1;
        }
        // A folder that has items and a thread but no record has lost it: the record is rebuilt
        // from the thread.
        loop {
            let parents: HashSet<u32> =
                census.items().filter(|(_, r)| r.id() != Some(2)).map(|(k, _)| k.parent).collect();
            let lost = census.threads.iter().find(|&(id, thread)| {
                !thread.of_file
                    && parents.contains(id)
                    && !census.folders.contains_key(id)
                    && census.folders.contains_key(&thread.parent)
                    && self.lookup(s, thread.parent, &thread.name).is_err()
            });
            let Some((&id, &thread)) = lost else { break };
            let key = CatalogKey::new(thread.parent, thread.name);
            let dir = DirectoryRecord {
                id,
                created: self.now,
                modified: self.now,
                ..DirectoryRecord::default()
            };
            self.insert_record(s, &key, &CatalogRecord::Directory(dir), &[])?;
            census.folders.insert(id, (key, dir));
            done.records += 1;
        }
        // Items in no folder are removed, with all items in them: all of them are younger than the
        // last sync.
        loop {
            let orphans: Vec<_> = census
                .items()
                .filter(|(key, record)| {
                    record.id() != Some(2) && !census.folders.contains_key(&key.parent)
                })
                .collect();
            if orphans.is_empty() {
                break;
            }
            for (key, record) in orphans {
                self.remove_record(s, &key, &[])?;
                let id = record.id().unwrap_or(0);
                census.folders.remove(&id);
                census.files.remove(&id);
                done.items += 1;
            }
        }
        self.recover_threads(s, &mut census, done)?;

        census.problems.clear();
        census.check_items(&self.mdb.clone());
        for problem in core::mem::take(&mut census.problems) {
            match problem {
                Problem::Valence { id, right, .. } => {
                    self.change_folder(s, id, |dir| dir.valence = right)?;
                    done.records += 1;
                }
                Problem::Count { what, right, .. } => {
                    let short = u16::try_from(right).unwrap_or(u16::MAX);
                    match what {
                        "the number of files" => self.mdb.files = right,
                        "the number of folders" => self.mdb.dirs = right,
                        "the number of files in the root" => self.mdb.root_files = short,
                        "the number of folders in the root" => self.mdb.root_dirs = short,
                        _ => self.mdb.next_id = right,
                    }
                }
                Problem::Mdb { .. } => {
                    if let Some((key, _)) = census.folders.get(&2) {
                        self.mdb.name = key.name;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn recover_threads<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        census: &mut Census,
        done: &mut Recovered,
    ) -> Result<()> {
        let items: Vec<_> = census.items().collect();
        for (key, mut record) in items {
            let Some(id) = record.id() else { continue };
            if record.is_marked() {
                record.set_mark(false);
                self.store_record(s, &key, &record)?;
                done.records += 1;
            }
            let of_file = matches!(record, CatalogRecord::File(_));
            let right = ThreadRecord { of_file, parent: key.parent, name: key.name };
            let thread = census.threads.get(&id).copied();
            if thread == Some(right) {
                continue;
            }
            match (&mut record, thread) {
                (CatalogRecord::File(file), None) => {
                    if file.flags.contains(FileFlags::THREAD) {
                        file.flags.remove(FileFlags::THREAD);
                        self.store_record(s, &key, &record)?;
                        done.records += 1;
                    }
                    continue;
                }
                (_, Some(_)) => {
                    self.store_record(s, &CatalogKey::thread(id), &CatalogRecord::Thread(right))?;
                }
                (_, None) => {
                    let thread = CatalogRecord::Thread(right);
                    self.insert_record(s, &CatalogKey::thread(id), &thread, &[])?;
                }
            }
            census.threads.insert(id, right);
            done.records += 1;
        }
        let lone: Vec<u32> = census
            .threads
            .keys()
            .copied()
            .filter(|id| !census.folders.contains_key(id) && !census.files.contains_key(id))
            .collect();
        for id in lone {
            self.remove_record(s, &CatalogKey::thread(id), &[])?;
            census.threads.remove(&id);
            done.records += 1;
        }
        // The copies in memory follow the stored records.
        for (_, dir) in census.folders.values_mut() {
            dir.reserved[3] = 0;
        }
        for (_, file) in census.files.values_mut() {
            file.reserved = 0;
        }
        Ok(())
    }

    fn store_record<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        key: &CatalogKey,
        record: &CatalogRecord,
    ) -> Result<()> {
        let (path, _) = self.record_at(s, key)?;
        self.recent.set(None);
        let (raw, len) = record.encode();
        self.catalog.update(s, &path, 0, raw.get(..len).unwrap_or(&raw), &[])?;
        Ok(())
    }

    /// Removes overflow records that no fork needs, and rebuilds the bitmap.
    fn recover_extents<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        catalog: &Walk,
        extents: &Walk,
        done: &mut Recovered,
    ) -> Result<()> {
        let mut census = Census::new(&catalog.records, &extents.records);
        self.trim_overflow(s, &mut census, done)?;
        census.problems.clear();
        let used = census.check_extents(&self.mdb);
        for problem in &census.problems {
            match problem {
                Problem::Extents { id, fork, block, .. } => {
                    let key = Self::overflow_key(*id, *fork, *block)?;
                    self.remove_extents(s, &key, &[])?;
                    done.records += 1;
                }
                // Unusual but harmless.
                Problem::Slot { .. } | Problem::LastBlock { .. } => {}
                problem => return Err(damage(problem)),
            }
        }
        self.space.set_bitmap(&used);
        Ok(())
    }

    /// Cuts the overflow record that holds the end of a fork at that end.
    fn trim_overflow<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        census: &mut Census,
        done: &mut Recovered,
    ) -> Result<()> {
        let size = self.mdb.alloc_block_bytes;
        let mut forks: Vec<(u32, Fork, ExtentRecord, u32)> = census
            .files
            .values()
            .flat_map(|(_, file)| {
                Fork::ALL.map(|fork| {
                    let sizes = file.fork(fork);
                    (file.id, fork, sizes.extents, sizes.space_bytes / size)
                })
            })
            .collect();
        let catalog = self.mdb.catalog_file_bytes / size;
        forks.push((crate::layout::CATALOG_ID, Fork::Data, self.mdb.catalog_file, catalog));
        for (id, fork, first, want) in forks {
            let Some(more) = census.overflow.get_mut(&(id, fork)) else { continue };
            let own: u32 = first.iter().map(|e| u32::from(e.count)).sum();
            for (&block, record) in more.iter_mut().filter(|(b, _)| (own..want).contains(*b)) {
                let mut at = block;
                let was = *record;
                for extent in record.iter_mut() {
                    let keep = want.saturating_sub(at).min(u32::from(extent.count));
                    at += u32::from(extent.count);
                    extent.count = u16::try_from(keep).unwrap_or(extent.count);
                    if keep == 0 {
                        extent.start = 0;
                    }
                }
                if *record != was {
                    let key = Self::overflow_key(id, fork, block)?;
                    self.put_extents(s, &key, &ExtentKey::encode_record(record), &[])?;
                    done.records += 1;
                }
            }
        }
        Ok(())
    }
}

/// Returns an error for unreadable records, and for two records of one item of which neither is
/// marked: both are damage.
fn check_records(census: &Census) -> Result<()> {
    if let Some(problem) = census.problems.iter().find(|p| matches!(p, Problem::Record { .. })) {
        return Err(damage(problem));
    }
    for (key, record) in &census.duplicates {
        if !record.is_marked() {
            let id = record.id().unwrap_or(0);
            let (parent, name) = (key.parent, key.name);
            return Err(damage(&Problem::Duplicate { id, parent, name }));
        }
    }
    Ok(())
}

fn damage(problem: &Problem) -> Error {
    Error::corrupt("volume", 0, format!("{problem} (a repair may help)"))
}

fn load<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
    s: &mut S,
    tree: &crate::btree::Tree<P>,
    node: u32,
) -> Result<NodeBuf> {
    read_node(s, tree, node).map_err(|e| tree.damaged(node, e))
}
