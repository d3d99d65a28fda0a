//! The items of a volume, by the records of its trees, and the inconsistencies among them.

use super::problem::Problem;
use super::walk::Found;
use crate::btree::TreeKind;
use crate::layout::{
    BAD_BLOCKS_ID, CATALOG_ID, CatalogKey, CatalogRecord, DirectoryRecord, EXTENTS_ID, Extent,
    ExtentKey, ExtentRecord, FIRST_ID, FORK_MAX_BYTES, FileFlags, FileRecord, Fork, Mdb,
    NEXT_ID_AHEAD, Name, ROOT_ID, ROOT_PARENT_ID, ThreadRecord, VOLUME_NAME_MAX_BYTES,
};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// All items of a volume.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub folders: BTreeMap<u32, (CatalogKey, DirectoryRecord)>,
    pub files: BTreeMap<u32, (CatalogKey, FileRecord)>,
    pub threads: BTreeMap<u32, ThreadRecord>,
    /// Second records of items that have another one.
    pub duplicates: Vec<(CatalogKey, CatalogRecord)>,
    /// Records of the extents file.
    pub overflow: BTreeMap<(u32, Fork), BTreeMap<u32, ExtentRecord>>,
    pub problems: Vec<Problem>,
    /// Deviations that Macs accept.
    pub notes: Vec<Problem>,
}

impl Census {
    /// Collects the records of both trees.
    pub fn new(catalog: &[Found], extents: &[Found]) -> Self {
        let mut census = Self::default();
        for found in catalog {
            census.take(found);
        }
        for found in extents {
            match (ExtentKey::parse(&found.key), ExtentKey::parse_record(&found.value)) {
                (Ok(key), Some(record)) => {
                    let of = census.overflow.entry((key.file_id, key.fork)).or_default();
                    of.insert(u32::from(key.block), record);
                }
                (Err(e), _) => census.bad_in(TreeKind::Extents, found, format!("{e}")),
                (_, None) => {
                    census.bad_in(TreeKind::Extents, found, "the record is too short".into());
                }
            }
        }
        census
    }

    fn bad(&mut self, found: &Found, what: String) {
        self.bad_in(TreeKind::Catalog, found, what);
    }

    fn bad_in(&mut self, tree: TreeKind, found: &Found, what: String) {
        let parent = crate::layout::get32(&found.key, 2);
        self.problems.push(Problem::Record { tree, parent, block: found.block, what });
    }

    fn take(&mut self, found: &Found) {
        let key = match CatalogKey::parse(&found.key) {
            Ok(key) => key,
            Err(e) => return self.bad(found, format!("{e}")),
        };
        let record = match CatalogRecord::parse(&found.value) {
            Ok(record) => record,
            Err(e) => return self.bad(found, format!("{e}")),
        };
        if key.name.is_empty() != matches!(record, CatalogRecord::Thread(_)) {
            return self.bad(
                found,
                "invalid key: a thread record has no name in it, any other has one".into(),
            );
        }
        let id = record.id().unwrap_or(key.parent);
        for field in record.wrong_bytes(&found.value) {
            self.problems.push(Problem::Field { id, parent: key.parent, name: key.name, field });
        }
        match record {
            CatalogRecord::Thread(thread) => {
                self.threads.insert(key.parent, thread);
            }
            CatalogRecord::Directory(dir) => {
                if dir.id < FIRST_ID && dir.id != ROOT_ID {
                    return self.bad(found, format!("folder with the reserved id {}", dir.id));
                }
                if self.files.contains_key(&dir.id) {
                    return self.bad(found, format!("a folder and a file have id {}", dir.id));
                }
                if let Some(other) = self.folders.insert(dir.id, (key, dir)) {
                    self.double(other.0, CatalogRecord::Directory(other.1), key, record);
                }
            }
            CatalogRecord::File(file) => {
                if file.id < FIRST_ID {
                    return self.bad(found, format!("file with the reserved id {}", file.id));
                }
                if self.folders.contains_key(&file.id) {
                    return self.bad(found, format!("a folder and a file have id {}", file.id));
                }
                if let Some(other) = self.files.insert(file.id, (key, file)) {
                    self.double(other.0, CatalogRecord::File(other.1), key, record);
                }
            }
        }
    }

    /// Resolves two records of an item: the unmarked one stays in the census, where the second was
    /// inserted.
    fn double(
        &mut self,
        a: CatalogKey,
        first: CatalogRecord,
        b: CatalogKey,
        second: CatalogRecord,
    ) {
        let (key, goes, stays) = if second.is_marked() && !first.is_marked() {
            (b, second, (a, first))
        } else {
            (a, first, (b, second))
        };
        match stays {
            (key, CatalogRecord::Directory(dir)) => {
                self.folders.insert(dir.id, (key, dir));
            }
            (key, CatalogRecord::File(file)) => {
                self.files.insert(file.id, (key, file));
            }
            _ => {}
        }
        let id = goes.id().unwrap_or(0);
        self.problems.push(Problem::Duplicate { id, parent: key.parent, name: key.name });
        self.duplicates.push((key, goes));
    }

    /// Checks the items for consistency among each other and with the counts of the MDB.
    pub fn check_items(&mut self, mdb: &Mdb) {
        let mut found = Vec::new();
        let mut valence: BTreeMap<u32, u32> = BTreeMap::new();
        let mut root = (0_u32, 0_u32);
        let mut highest = FIRST_ID - 1;
        let marks = |record: &CatalogRecord| record.is_marked();
        let items: Vec<(CatalogKey, CatalogRecord)> = self.items().collect();
        for (key, record) in items {
            let id = record.id().unwrap_or(0);
            highest = highest.max(id);
            let folder = matches!(record, CatalogRecord::Directory(_));
            if marks(&record) {
                found.push(Problem::Marked { id, parent: key.parent, name: key.name });
            }
            if id != ROOT_ID {
                *valence.entry(key.parent).or_default() += 1;
                if !self.folders.contains_key(&key.parent) {
                    found.push(Problem::Orphan { id, parent: key.parent, name: key.name });
                }
                if key.parent == ROOT_ID {
                    if folder { root.1 += 1 } else { root.0 += 1 }
                }
            }
            if Name::new(key.name.as_bytes()).is_err_and(|_| !legal(&key.name)) {
                found.push(Problem::BadName { id, parent: key.parent, name: key.name });
            }
            let thread = self.threads.get(&id);
            // Macs ignore the thread's target, as long as the thread is a valid one.
            let sound = thread.is_some_and(|t| t.of_file != folder && !t.name.is_empty());
            let leads = thread.is_some_and(|t| t.parent == key.parent && t.name == key.name);
            match &record {
                CatalogRecord::Directory(_) if !sound => {
                    found.push(Problem::Thread { id, missing: thread.is_none() });
                }
                CatalogRecord::File(file)
                    if thread.is_none() && file.flags.contains(FileFlags::THREAD) =>
                {
                    found.push(Problem::ThreadFlag { id, parent: key.parent, name: key.name });
                }
                CatalogRecord::File(_) if thread.is_none() => {}
                CatalogRecord::File(_) if !sound => {
                    found.push(Problem::Thread { id, missing: false });
                }
                _ if !leads => self.notes.push(Problem::Thread { id, missing: false }),
                _ => {}
            }
            for field in wrong_fields(&record) {
                found.push(Problem::Field { id, parent: key.parent, name: key.name, field });
            }
        }
        for (&id, thread) in &self.threads {
            highest = highest.max(id);
            let (parent, name) = (thread.parent, thread.name);
            if self.folders.contains_key(&id) || self.files.contains_key(&id) {
                continue;
            }
            if !thread.of_file && valence.contains_key(&id) {
                found.push(Problem::Folder { id, parent, name });
            } else {
                found.push(Problem::LoneThread { id });
            }
        }
        for (&id, (_, dir)) in &self.folders {
            let right = u16::try_from(valence.get(&id).copied().unwrap_or(0)).unwrap_or(u16::MAX);
            if dir.valence != right {
                found.push(Problem::Valence { id, found: dir.valence, right });
            }
        }
        match self.folders.get(&ROOT_ID) {
            None => found.push(Problem::Mdb { what: "the catalog has no root folder".into() }),
            Some((key, _)) => {
                if key.parent != ROOT_PARENT_ID {
                    found.push(Problem::Mdb {
                        what: format!(
                            "the parent of the root folder is {}, should be 1",
                            key.parent
                        ),
                    });
                }
                if key.name != mdb.name {
                    found.push(Problem::Mdb {
                        what: format!(
                            "the volume's name is {}, but its root folder's {}",
                            mdb.name, key.name
                        ),
                    });
                }
                if key.name.len() > VOLUME_NAME_MAX_BYTES {
                    found.push(Problem::Mdb {
                        what: "the root folder's name is longer than 27 bytes".into(),
                    });
                }
            }
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let folders = count(self.folders.keys().filter(|&&id| id != ROOT_ID).count());
        for (what, was, right) in [
            ("the number of files", mdb.files, count(self.files.len())),
            ("the number of folders", mdb.dirs, folders),
            ("the number of files in the root", u32::from(mdb.root_files), root.0.min(65_535)),
            ("the number of folders in the root", u32::from(mdb.root_dirs), root.1.min(65_535)),
        ] {
            if was != right {
                found.push(Problem::Count { what, found: was, right });
            }
        }
        let least = highest.saturating_add(1);
        let right = mdb.next_id.clamp(least, least.saturating_add(NEXT_ID_AHEAD));
        if mdb.next_id != right {
            let found_id = mdb.next_id;
            found.push(Problem::Count { what: "the next id", found: found_id, right });
        }
        self.problems.append(&mut found);
    }

    /// Returns all items without duplicates.
    pub fn items(&self) -> impl Iterator<Item = (CatalogKey, CatalogRecord)> {
        let folders = self.folders.values().map(|(k, d)| (*k, CatalogRecord::Directory(*d)));
        folders.chain(self.files.values().map(|(k, f)| (*k, CatalogRecord::File(*f))))
    }

    /// Checks extents, and returns the allocation blocks that are in use.
    pub fn check_extents(&mut self, mdb: &Mdb) -> Vec<bool> {
        let mut owners = Owners {
            used: vec![false; usize::from(mdb.alloc_blocks)],
            problems: Vec::new(),
            notes: Vec::new(),
        };
        let empty = BTreeMap::new();
        let overflow = |id, fork| self.overflow.get(&(id, fork)).unwrap_or(&empty);
        let size = mdb.alloc_block_bytes;
        let trees = [
            (EXTENTS_ID, mdb.extents_file, mdb.extents_file_bytes),
            (CATALOG_ID, mdb.catalog_file, mdb.catalog_file_bytes),
        ];
        for (id, first, bytes) in trees {
            owners.fork(id, Fork::Data, &first, overflow(id, Fork::Data), bytes / size);
        }
        for (&block, record) in overflow(BAD_BLOCKS_ID, Fork::Data) {
            owners.slots(BAD_BLOCKS_ID, Fork::Data, record);
            let _ = block;
            for extent in record.iter().filter(|e| e.count > 0) {
                owners.claim(BAD_BLOCKS_ID, Fork::Data, *extent);
            }
        }
        for (_, file) in self.files.values() {
            for fork in Fork::ALL {
                let sizes = file.fork(fork);
                let mut bad = |what| {
                    owners.problems.push(Problem::Lengths { id: file.id, fork, what });
                };
                if sizes.space_bytes % size != 0 {
                    bad("physical length is not a multiple of the allocation block size");
                }
                if sizes.len_bytes > sizes.space_bytes {
                    bad("logical length exceeds the physical length");
                }
                if sizes.len_bytes > FORK_MAX_BYTES {
                    bad("logical length exceeds 2147483647 bytes");
                }
                let more = overflow(file.id, fork);
                owners.fork(file.id, fork, &sizes.extents, more, sizes.space_bytes / size);
            }
        }
        for (&(id, fork), records) in &self.overflow {
            let known = self.files.contains_key(&id)
                || (fork == Fork::Data && [BAD_BLOCKS_ID, CATALOG_ID].contains(&id));
            if !known {
                for &block in records.keys() {
                    owners.problems.push(Problem::Extents { id, fork, block, lone: true });
                }
            }
        }
        self.problems.append(&mut owners.problems);
        self.notes.append(&mut owners.notes);
        owners.used
    }
}

/// Returns true if a name is legal: HFS itself refuses a colon and an empty name, Apple's checker
/// dots alone. A NUL is only unwise.
fn legal(name: &Name) -> bool {
    !name.is_empty() && !name.as_bytes().contains(&b':') && !name.is_dots()
}

fn wrong_fields(record: &CatalogRecord) -> impl Iterator<Item = &'static str> {
    let checks = match record {
        // Desktop DB and Desktop DF of System 7 have a filTyp, and no system reads dirResrv.
        CatalogRecord::File(file) => [
            (file.fork(Fork::Data).start_block != 0, "filStBlk"),
            (file.fork(Fork::Resource).start_block != 0, "filRStBlk"),
            (file.reserved != 0 && !record.is_marked(), "filResrv"),
        ],
        CatalogRecord::Directory(dir) => {
            [(dir.flags & 3 != 0, "dirFlags"), (false, ""), (false, "")]
        }
        CatalogRecord::Thread(_) => [(false, ""); 3],
    };
    checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, field)| field)
}

/// The allocation blocks that are in use, and conflicts over them.
struct Owners {
    used: Vec<bool>,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
}

impl Owners {
    /// Checks that the slots after the last extent of a record are zero.
    fn slots(&mut self, id: u32, fork: Fork, record: &ExtentRecord) {
        let used = record.iter().take_while(|e| e.count > 0).count();
        if record.iter().skip(used).any(|e| *e != Extent::default()) {
            self.problems.push(Problem::Slot { id, fork });
        }
    }

    fn claim(&mut self, id: u32, fork: Fork, extent: Extent) {
        let Extent { start, count } = extent;
        if extent.end() as usize > self.used.len() {
            self.problems.push(Problem::Range { id, fork, start, count });
            return;
        }
        let range = usize::from(start)..extent.end() as usize;
        let blocks = self.used.get_mut(range).unwrap_or(&mut []);
        if blocks.iter().any(|&used| used) {
            self.problems.push(Problem::Overlap { id, fork, start, count });
        }
        blocks.fill(true);
    }

    /// Claims the extents of a fork of `want` allocation blocks, and checks their number.
    fn fork(
        &mut self,
        id: u32,
        fork: Fork,
        first: &ExtentRecord,
        more: &BTreeMap<u32, ExtentRecord>,
        want: u32,
    ) {
        let mut at = 0_u32;
        let mut record = Some(*first);
        let mut last_key = 0;
        while let Some(extents) = record {
            let before = at;
            self.slots(id, fork, &extents);
            for extent in extents.iter().take_while(|e| e.count > 0) {
                // Extents beyond the end belong to the fork, too.
                self.claim(id, fork, *extent);
                if extent.end() as usize == self.used.len() {
                    self.problems.push(Problem::LastBlock { id, fork });
                }
                at += u32::from(extent.count);
            }
            if at >= want || at == before && at > 0 {
                break;
            }
            last_key = at;
            record = more.get(&at).copied();
        }
        if at < want {
            let what = "extents cover less than the physical length";
            self.problems.push(Problem::Lengths { id, fork, what });
        } else if at > want {
            // A whole superfluous record of the extents file would be a problem. In the record of a
            // file Macs accept it.
            let what = "extents cover more than the physical length";
            let list = if id < FIRST_ID { &mut self.problems } else { &mut self.notes };
            list.push(Problem::Lengths { id, fork, what });
        }
        for &block in more.keys() {
            let is_part = block <= last_key && block < want;
            if !is_part {
                self.problems.push(Problem::Extents { id, fork, block, lone: false });
            }
        }
    }
}
