//! The records of a repaired volume: all contradictions among those that were found are resolved,
//! and each fork has blocks of its own.

use crate::btree::Tree;
use crate::fsck::census::Census;
use crate::fsck::walk::{Found, Walk, read_node, shape};
use crate::layout::{
    BAD_BLOCKS_ID, BLOCK_BYTES, CATALOG_ID, CatalogKey, CatalogRecord, DirectoryRecord, EXTENTS_ID,
    Extent, ExtentRecord, FIRST_ID, FORK_MAX_BYTES, FileFlags, FileRecord, Fork, Header, MDB_BLOCK,
    Mdb, NEXT_ID_AHEAD, NODE_BYTES, Name, NodeKind, ROOT_ID, ROOT_PARENT_ID, ThreadRecord,
    VOLUME_NAME_MAX_BYTES,
};
use crate::store::Store;
use crate::volume::Volume;
use crate::{Error, Result};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// Keys and values of a tree.
pub(super) type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the records of a tree's leaves: those that its index leads to, or those of all leaves if
/// the index is damaged; and true if the whole tree is sound.
fn gather<S: Store<Patch = P>, P: Copy + PartialEq + core::fmt::Debug>(
    s: &mut S,
    tree: &Tree<P>,
    unmounted: bool,
) -> Result<(Vec<Found>, bool)> {
    let walk = Walk::new(s, tree);
    // After a power cut a tree may have stale records, which its index does not lead to. On a
    // volume that was unmounted there are none: there, the index is damaged.
    let left_over = !unmounted || (walk.stale.is_empty() && walk.empty.is_empty());
    if walk.damage.is_empty() && left_over {
        let stored = Header::parse(s.read(tree.block_of(0)?)?);
        let sound = shape(s, tree, &walk, &stored)?.is_empty();
        return Ok((walk.records, sound));
    }
    let mut all = walk.records;
    for node in 1..tree.header.nodes {
        let Ok(buf) = read_node(s, tree, node) else { continue };
        let view = buf.view();
        if view.head.kind != NodeKind::Leaf {
            continue;
        }
        let block = tree.block_of(node).unwrap_or(0);
        for i in 0..view.count() {
            let (key, value) = (view.key(i).to_vec(), view.value(i).to_vec());
            all.push(Found { key, value, node, block });
        }
    }
    // A stable sort: of equal keys the one that the index led to comes first.
    all.sort_by(|a, b| tree.kind.compare(&a.key, &b.key));
    all.dedup_by(|b, a| tree.kind.compare(&a.key, &b.key).is_eq());
    Ok((all, false))
}

/// The repaired volume.
pub(super) struct Rebuild {
    pub(super) census: Census,
    pub(super) mdb: Mdb,
    /// All extents of each fork, of the catalog and of the bad blocks.
    pub(super) forks: BTreeMap<(u32, Fork), Vec<Extent>>,
    pub(super) used: Vec<bool>,
    /// No run of free blocks is longer than this. A hostile volume has hundreds of thousands of
    /// extents for which the search fails.
    longest_free: u32,
    /// The records that catalog and extents tree have now, and the soundness of the trees.
    pub(super) found: [Vec<Found>; 2],
    pub(super) sound: [bool; 2],
}

impl Rebuild {
    pub(super) fn new<S: Store>(s: &mut S, volume: &Volume<S::Patch>) -> Result<Self> {
        let (catalog, catalog_sound) = gather(s, &volume.catalog, volume.is_clean())?;
        let (extents, extents_sound) = gather(s, &volume.extents, volume.is_clean())?;
        let mdb = volume.mdb.clone();
        let used = vec![false; usize::from(mdb.alloc_blocks)];
        let census = Census::new(&catalog, &extents);
        // A tree that stays has a file of exactly its nodes, and does not have the last allocation
        // block.
        let size = u64::from(mdb.alloc_block_bytes);
        let whole = |tree: &Tree<S::Patch>| {
            let blocks: u64 = tree.extents.iter().map(|e| u64::from(e.count)).sum();
            let bytes = u64::from(volume.mdb_file_bytes(tree.kind));
            bytes == blocks * size
                && bytes == u64::from(tree.header.nodes) * NODE_BYTES as u64
                && tree.extents.iter().all(|e| e.end() < u32::from(mdb.alloc_blocks))
        };
        let sound =
            [catalog_sound && whole(&volume.catalog), extents_sound && whole(&volume.extents)];
        let found = [catalog, extents];
        let longest_free = u32::MAX;
        let forks = BTreeMap::new();
        let mut rebuild = Self { census, mdb, forks, used, longest_free, found, sound };
        rebuild.settle_items()?;
        rebuild.settle_forks(s, volume)?;
        Ok(rebuild)
    }

    pub(super) fn claim(&mut self, extent: Extent) -> bool {
        let range = usize::from(extent.start)..extent.end() as usize;
        match self.used.get_mut(range) {
            Some(blocks) if blocks.iter().all(|used| !used) => {
                blocks.fill(true);
                true
            }
            _ => false,
        }
    }

    /// Reverts [`claim`](Self::claim).
    pub(super) fn give_back(&mut self, extent: Extent) {
        let range = usize::from(extent.start)..extent.end() as usize;
        if let Some(blocks) = self.used.get_mut(range) {
            blocks.fill(false);
        }
        self.longest_free = u32::MAX;
    }

    /// Returns the used blocks among those that may be allocated: the volume's last block may not.
    pub(super) fn takeable(&self) -> &[bool] {
        self.used.split_last().map_or(&[], |(_, rest)| rest)
    }

    /// Returns the first block of a run of `count` free blocks.
    fn free_run(&mut self, count: u16) -> Option<u16> {
        if u32::from(count) > self.longest_free {
            return None;
        }
        let mut run = 0;
        for (nr, used) in self.takeable().iter().enumerate() {
            run = if *used { 0 } else { run + 1 };
            if run == usize::from(count) {
                return u16::try_from(nr + 1 - run).ok();
            }
        }
        self.longest_free = u32::from(count).saturating_sub(1);
        None
    }

    /// Puts every item into a folder, gives every folder a thread, and removes all other threads.
    fn settle_items(&mut self) -> Result<()> {
        let census = &mut self.census;
        let now = self.mdb.modified;
        census.duplicates.clear();
        let new = |id| DirectoryRecord { id, created: now, modified: now, ..Default::default() };
        if let Some((key, _)) = census.folders.get_mut(&ROOT_ID) {
            key.parent = ROOT_PARENT_ID;
            let name = key.name.as_bytes();
            key.name = Name::any(name.get(..VOLUME_NAME_MAX_BYTES).unwrap_or(name))?;
        } else {
            let name =
                if self.mdb.name.is_empty() { Name::new(b"Untitled")? } else { self.mdb.name };
            census.folders.insert(ROOT_ID, (CatalogKey::new(ROOT_PARENT_ID, name), new(ROOT_ID)));
        }
        let has_items: Vec<u32> = census.items().map(|(key, _)| key.parent).collect();
        for (&id, thread) in &census.threads {
            if !thread.of_file
                && has_items.contains(&id)
                && !census.folders.contains_key(&id)
                && !census.files.contains_key(&id)
            {
                census.folders.insert(id, (CatalogKey::new(thread.parent, thread.name), new(id)));
            }
        }
        let highest = census.items().filter_map(|(_, r)| r.id()).max().unwrap_or(0).max(15);
        let least = highest.saturating_add(1);
        self.mdb.next_id = self.mdb.next_id.clamp(least, least.saturating_add(NEXT_ID_AHEAD));

        // Items in no folder, or in a ring of folders, get a folder of their own.
        let lost: Vec<u32> = census
            .items()
            .filter_map(|(key, record)| record.id().map(|id| (id, key)))
            .filter(|&(id, key)| id != ROOT_ID && !leads_to_root(census, key.parent))
            .filter(|&(_, key)| {
                // Only the tops of lost subtrees, but all items of a ring.
                !census.folders.contains_key(&key.parent) || in_ring(census, key.parent)
            })
            .map(|(id, _)| id)
            .collect();
        if !lost.is_empty() {
            let id = self.mdb.next_id;
            self.mdb.next_id += 1;
            let name = Name::new(b"Recovered items")?;
            census.folders.insert(id, (CatalogKey::new(ROOT_ID, name), new(id)));
            for item in lost {
                if let Some((key, _)) = census.folders.get_mut(&item) {
                    key.parent = id;
                } else if let Some((key, _)) = census.files.get_mut(&item) {
                    key.parent = id;
                }
            }
        }
        self.settle_names()?;
        self.settle_records();
        Ok(())
    }

    /// Makes all names valid, and distinct within each folder.
    fn settle_names(&mut self) -> Result<()> {
        let census = &mut self.census;
        let folders = census.folders.iter_mut().map(|(id, (key, _))| (*id, key));
        let files = census.files.iter_mut().map(|(id, (key, _))| (*id, key));
        let mut keys: Vec<(u32, &mut CatalogKey)> = folders.chain(files).collect();
        for (_, key) in &mut keys {
            let dots = key.name.is_dots();
            let letter = |&b: &u8| if b == b':' || dots { b'-' } else { b };
            let bytes: Vec<u8> = key.name.as_bytes().iter().map(letter).collect();
            key.name = Name::any(&bytes)?;
        }
        let order = |a: &CatalogKey, b: &CatalogKey| {
            a.parent.cmp(&b.parent).then_with(|| a.name.order(&b.name))
        };
        loop {
            keys.sort_by(|a, b| order(a.1, b.1));
            let mut changed = false;
            for i in 1..keys.len() {
                let (before, rest) = keys.split_at_mut(i);
                let (Some((_, a)), Some((id, b))) = (before.last(), rest.first_mut()) else {
                    break;
                };
                if order(a, b).is_eq() {
                    // The id makes the name unique; the name is shortened to hold it.
                    let tail = format!(" #{id}");
                    let keep = Name::MAX_BYTES.saturating_sub(tail.len()).min(b.name.len());
                    let mut bytes = b.name.as_bytes().get(..keep).unwrap_or(&[]).to_vec();
                    bytes.extend_from_slice(tail.as_bytes());
                    b.name = Name::any(&bytes)?;
                    changed = true;
                }
            }
            if !changed {
                return Ok(());
            }
        }
    }

    /// Corrects threads, counts and reserved fields.
    fn settle_records(&mut self) {
        let census = &mut self.census;
        let mut valence: BTreeMap<u32, u16> = BTreeMap::new();
        for (key, _) in census.items() {
            let count = valence.entry(key.parent).or_default();
            *count = count.saturating_add(1);
        }
        let old = core::mem::take(&mut census.threads);
        for (&id, (key, dir)) in &mut census.folders {
            dir.valence = valence.get(&id).copied().unwrap_or(0);
            if CatalogRecord::Directory(*dir).is_marked() {
                dir.reserved = [0; 4];
            }
            dir.flags &= !3;
            let thread = ThreadRecord { of_file: false, parent: key.parent, name: key.name };
            census.threads.insert(id, thread);
        }
        for (&id, (key, file)) in &mut census.files {
            file.reserved = 0;
            for fork in Fork::ALL {
                file.fork_mut(fork).start_block = 0;
            }
            let threaded = old.get(&id).is_some_and(|thread| thread.of_file);
            let says = file.flags.contains(FileFlags::THREAD);
            file.flags.set(FileFlags::THREAD, threaded && says);
            if threaded && says {
                let thread = ThreadRecord { of_file: true, parent: key.parent, name: key.name };
                census.threads.insert(id, thread);
            }
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        self.mdb.files = count(census.files.len());
        self.mdb.dirs = count(census.folders.len().saturating_sub(1));
        let in_root = |key: &&CatalogKey| key.parent == ROOT_ID;
        self.mdb.root_files = short(census.files.values().map(|f| &f.0).filter(in_root).count());
        self.mdb.root_dirs = short(census.folders.values().map(|f| &f.0).filter(in_root).count());
        if let Some((key, _)) = census.folders.get(&ROOT_ID) {
            self.mdb.name = key.name;
        }
    }

    /// Gives each fork blocks of its own.
    fn settle_forks<S: Store>(&mut self, s: &mut S, volume: &Volume<S::Patch>) -> Result<()> {
        let size = self.mdb.alloc_block_bytes;
        for (id, tree) in [(EXTENTS_ID, &volume.extents), (CATALOG_ID, &volume.catalog)] {
            for &extent in &tree.extents {
                if !self.claim(extent) {
                    return Err(Error::corrupt(
                        "MDB",
                        MDB_BLOCK,
                        "the files of the two trees overlap",
                    ));
                }
            }
            self.forks.insert((id, Fork::Data), tree.extents.clone());
        }
        let overflow = core::mem::take(&mut self.census.overflow);
        if let Some(bad) = overflow.get(&(BAD_BLOCKS_ID, Fork::Data)) {
            let all: Vec<Extent> =
                bad.values().flatten().copied().filter(|e| e.count > 0).collect();
            let kept = all.into_iter().filter(|&extent| self.claim(extent)).collect();
            self.forks.insert((BAD_BLOCKS_ID, Fork::Data), kept);
        }
        // First all sound extents, so that damaged ones cannot take their blocks.
        let ids: Vec<u32> = self.census.files.keys().copied().collect();
        let mut doubled = BTreeSet::new();
        for id in ids {
            for fork in Fork::ALL {
                let Some((_, file)) = self.census.files.get(&id) else { continue };
                let sizes = *file.fork(fork);
                let mut want = sizes.space_bytes.div_ceil(size);
                let mut extents: Vec<Extent> = Vec::new();
                let mut record = Some(sizes.extents);
                let mut at = 0;
                while let Some(these) = record.take() {
                    let from = at;
                    for extent in these.iter().filter(|e| e.count > 0) {
                        let count = want.min(u32::from(extent.count));
                        want -= count;
                        at += u32::from(extent.count);
                        let sound = extent.end() <= u32::from(self.mdb.alloc_blocks);
                        if count == 0 || !sound {
                            want = 0;
                            continue;
                        }
                        let count = u16::try_from(count).unwrap_or(extent.count);
                        extents.push(Extent { start: extent.start, count });
                    }
                    if want > 0 && at > from {
                        record = overflow.get(&(id, fork)).and_then(|more| more.get(&at)).copied();
                    }
                }
                for (i, &extent) in extents.iter().enumerate() {
                    if !self.claim(extent) {
                        doubled.insert((id, fork, i));
                    }
                }
                self.forks.insert((id, fork), extents);
            }
        }
        for &(id, fork, i) in &doubled {
            if !self.copy_extent(s, volume, (id, fork), i)? {
                // The fork ends here. Its later blocks are freed, unless they belong to another
                // fork.
                let Some(extents) = self.forks.get_mut(&(id, fork)) else { continue };
                for (behind, extent) in extents.split_off(i).into_iter().enumerate() {
                    if !doubled.contains(&(id, fork, i + behind)) {
                        self.give_back(extent);
                    }
                }
            }
        }
        self.clear_last_block(s, volume)?;
        for (&id, (_, file)) in &mut self.census.files {
            for fork in Fork::ALL {
                let extents = self.forks.get(&(id, fork)).map_or(&[][..], Vec::as_slice);
                fit(file, fork, extents, size);
            }
        }
        Ok(())
    }

    /// Moves the content of the last allocation block to another block, if one is free.
    fn clear_last_block<S: Store>(&mut self, s: &mut S, volume: &Volume<S::Patch>) -> Result<()> {
        let end = u32::from(self.mdb.alloc_blocks);
        let has_it = |of: &(u32, Fork), extents: &[Extent]| {
            of.0 >= FIRST_ID && extents.iter().any(|e| e.count > 0 && e.end() == end)
        };
        let Some(of) =
            self.forks.iter().find(|(of, extents)| has_it(of, extents)).map(|(of, _)| *of)
        else {
            return Ok(());
        };
        // The last block becomes an extent of its own, which is then copied.
        let Some(extents) = self.forks.get_mut(&of) else { return Ok(()) };
        let Some(i) = extents.iter().position(|e| e.end() == end) else { return Ok(()) };
        let Some(whole) = extents.get(i).copied() else { return Ok(()) };
        let last = Extent { start: self.mdb.alloc_blocks.saturating_sub(1), count: 1 };
        let rest = Extent { start: whole.start, count: whole.count.saturating_sub(1) };
        extents.splice(i..=i, [rest, last].into_iter().filter(|e| e.count > 0));
        let at = i + usize::from(rest.count > 0);
        if self.copy_extent(s, volume, of, at)? {
            self.give_back(last);
        } else if let Some(extents) = self.forks.get_mut(&of) {
            extents.splice(i..=at, [whole]);
        }
        Ok(())
    }

    /// Copies an extent whose blocks belong to another fork to free blocks. Returns false if there
    /// are not enough.
    fn copy_extent<S: Store>(
        &mut self,
        s: &mut S,
        volume: &Volume<S::Patch>,
        of: (u32, Fork),
        i: usize,
    ) -> Result<bool> {
        let Some(&extent) = self.forks.get(&of).and_then(|extents| extents.get(i)) else {
            return Ok(true);
        };
        let Some(start) = self.free_run(extent.count) else { return Ok(false) };
        let copy = Extent { start, count: extent.count };
        self.claim(copy);
        let per = self.mdb.blocks_per_alloc();
        let (from, to) =
            (volume.block_of(u32::from(extent.start)), volume.block_of(u32::from(start)));
        for block in 0..u64::from(extent.count) * per {
            let mut content = [0; BLOCK_BYTES];
            s.read_data(from + block, 0, &mut content)?;
            s.write_data(to + block, of.0, 0, &content, true)?;
        }
        if let Some(slot) = self.forks.get_mut(&of).and_then(|extents| extents.get_mut(i)) {
            *slot = copy;
        }
        Ok(true)
    }
}

/// Adjusts the lengths of a fork to its extents.
fn fit(file: &mut FileRecord, fork: Fork, extents: &[Extent], size: u32) {
    let blocks: u32 = extents.iter().map(|e| u32::from(e.count)).sum();
    let sizes = file.fork_mut(fork);
    sizes.space_bytes = blocks.saturating_mul(size);
    sizes.len_bytes = sizes.len_bytes.min(sizes.space_bytes).min(FORK_MAX_BYTES);
    sizes.extents = ExtentRecord::default();
    for (to, from) in sizes.extents.iter_mut().zip(extents) {
        *to = *from;
    }
}

/// Returns true if a folder lies, directly or through others, in the root.
fn leads_to_root(census: &Census, folder: u32) -> bool {
    let mut at = folder;
    for _ in 0..=census.folders.len() {
        if at == ROOT_ID {
            return true;
        }
        match census.folders.get(&at) {
            Some((key, _)) => at = key.parent,
            None => return false,
        }
    }
    false
}

/// Returns true if the path upwards from a folder is endless.
fn in_ring(census: &Census, folder: u32) -> bool {
    let mut at = folder;
    for _ in 0..=census.folders.len() {
        match census.folders.get(&at) {
            Some((key, _)) if at != ROOT_ID => at = key.parent,
            _ => return false,
        }
    }
    true
}
