//! Items of folders: finding, listing, making and removing.

use super::file::File;
use super::map::load_map;
use super::state::Volume;
use crate::btree::Befores;
use crate::layout::{
    CatalogKey, CatalogRecord, DInfo, DXInfo, DirectoryRecord, Extent, FInfo, FXInfo, FileFlags,
    FileRecord, Fork, Name, ROOT_ID, ThreadRecord, changed, get32,
};
use crate::store::Store;
use crate::{Error, Result};
use alloc::format;
use alloc::vec::Vec;

/// A file or folder as the catalog has it: the key has the name in its original spelling.
pub type Item = (CatalogKey, CatalogRecord);

/// A new item for [`create`](Volume::create).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum New {
    /// An empty file.
    File {
        /// Type, creator, flags.
        info: FInfo,
        /// Script, comment.
        xinfo: FXInfo,
    },
    /// An empty folder.
    Folder {
        /// Window, flags, view.
        info: DInfo,
        /// Script, comment.
        xinfo: DXInfo,
    },
}

impl New {
    /// An empty file without Finder information.
    pub const FILE: Self = Self::File {
        info: FInfo {
            file_type: [0; 4],
            creator: [0; 4],
            flags: 0,
            location: crate::layout::Point { v: 0, h: 0 },
            folder: 0,
        },
        xinfo: FXInfo {
            icon_id: 0,
            unused: [0; 6],
            script: 0,
            x_flags: 0,
            comment_id: 0,
            put_away: 0,
        },
    };
}

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    pub(crate) fn record_at<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        key: &CatalogKey,
    ) -> Result<(crate::btree::Path, CatalogRecord)> {
        let (raw, len) = key.encode();
        let path = self.catalog.find(s, raw.get(..len).unwrap_or(&raw))?;
        let record = self.catalog.value(s, &path, CatalogRecord::parse)?;
        let node = path.leaf().map_or(0, |step| step.node);
        Ok((path, record.map_err(|e| self.catalog.damaged(node, format!("{e}")))?))
    }

    /// Returns the item with a name in a folder.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`].
    pub fn lookup<S: Store<Patch = P>>(&self, s: &mut S, parent: u32, name: &Name) -> Result<Item> {
        let (raw, len) = CatalogKey::new(parent, *name).encode();
        let path = self.catalog.find(s, raw.get(..len).unwrap_or(&raw))?;
        let Some(step) = path.leaf().filter(|_| path.found && !name.is_empty()) else {
            return Err(Error::NotFound);
        };
        let view = self.catalog.view(s, step.node, 1)?;
        let key = CatalogKey::parse(view.key(step.index));
        let record = CatalogRecord::parse(view.value(step.index));
        let bad = |e: Error| self.catalog.damaged(step.node, format!("{e}"));
        match record.map_err(bad)? {
            CatalogRecord::Thread(_) => Err(Error::NotFound),
            record => Ok((key.map_err(bad)?, record)),
        }
    }

    /// Returns the thread of a folder (or of a file, if it has one).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`].
    pub fn thread<S: Store<Patch = P>>(&self, s: &mut S, id: u32) -> Result<ThreadRecord> {
        match self.record_at(s, &CatalogKey::thread(id))?.1 {
            CatalogRecord::Thread(thread) => Ok(thread),
            _ => Err(Error::corrupt(
                "catalog",
                0,
                format!("the thread record of item {id} is of another type"),
            )),
        }
    }

    /// Returns a folder, by its id.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`].
    pub fn folder<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        id: u32,
    ) -> Result<(CatalogKey, DirectoryRecord)> {
        if let Some((recent, key, dir)) = self.recent.get()
            && recent == id
        {
            return Ok((key, dir));
        }
        let (key, dir) = match self.thread(s, id) {
            Ok(thread) if thread.of_file => return Err(Error::NotADirectory),
            Ok(thread) => {
                let key = CatalogKey::new(thread.parent, thread.name);
                match self.record_at(s, &key) {
                    Ok((_, CatalogRecord::Directory(dir))) if dir.id == id => (key, dir),
                    Err(Error::NotInMemory) => return Err(Error::NotInMemory),
                    _ => self.stray(s, id)?,
                }
            }
            // Neither a thread nor a record: there is no such folder.
            Err(Error::NotFound) => match self.stray(s, id) {
                Err(Error::NotInMemory) => return Err(Error::NotInMemory),
                stray => stray.map_err(|_| Error::NotFound)?,
            },
            Err(Error::NotInMemory) => return Err(Error::NotInMemory),
            Err(_) => self.stray(s, id)?,
        };
        self.recent.set(Some((id, key, dir)));
        Ok((key, dir))
    }

    /// Returns the parent of a folder.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`].
    pub fn parent_of<S: Store<Patch = P>>(&self, s: &mut S, id: u32) -> Result<u32> {
        Ok(self.folder(s, id)?.0.parent)
    }

    /// Calls `each` with the items of a folder in order, from the first after `after` on, until it
    /// returns `false`. `each` must not use the store. Damaged items are passed over: see
    /// [`passed_over`](Self::passed_over).
    ///
    /// # Errors
    /// Those of `each`.
    pub fn list<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        parent: u32,
        after: &Name,
        mut each: impl FnMut(&CatalogKey, &CatalogRecord) -> Result<bool>,
    ) -> Result<()> {
        let (from, len) = CatalogKey::new(parent, *after).encode();
        let from = from.get(..len).unwrap_or(&from);
        let pass = |e: Error| {
            self.passed_over.borrow_mut().note(format!("folder {parent}: {e}"));
            Ok(())
        };
        self.catalog.scan_past(s, from, pass, |raw_key, value| {
            if get32(raw_key, 2) != parent {
                return Ok(false);
            }
            let read =
                CatalogKey::parse(raw_key).and_then(|key| Ok((key, CatalogRecord::parse(value)?)));
            match read {
                // No listing needs a thread record, and some programs write shorter ones.
                Err(_) if matches!(value.first(), Some(3 | 4)) => Ok(true),
                Err(e) => {
                    let name = raw_key.get(7..).unwrap_or(&[]).escape_ascii();
                    self.passed_over
                        .borrow_mut()
                        .note(format!("folder {parent}, catalog record of {name}: {e}"));
                    Ok(true)
                }
                Ok((_, CatalogRecord::Thread(_))) => Ok(true),
                Ok((key, _)) if key.name.order(after).is_le() => Ok(true),
                Ok((key, record)) => each(&key, &record),
            }
        })
    }

    /// Changes a folder's record.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`].
    pub fn change_folder<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        id: u32,
        change: impl FnOnce(&mut DirectoryRecord),
    ) -> Result<P> {
        self.check_writable()?;
        let (key, mut dir) = self.folder(s, id)?;
        let (raw_key, key_len) = key.encode();
        let path = self.catalog.find(s, raw_key.get(..key_len).unwrap_or(&raw_key))?;
        let old = CatalogRecord::Directory(dir).encode();
        change(&mut dir);
        let new = CatalogRecord::Directory(dir).encode();
        let Some(range) = changed(&old.0, &new.0) else { return Ok(S::DURABLE) };
        let first = range.start;
        let moved = self.moved_by(s, id);
        let waits = Self::all_befores(&[], moved);
        self.touch();
        self.recent.set(None);
        let bytes = new.0.get(range).unwrap_or(&[]);
        let patch = self.catalog.update(s, &path, first, bytes, &waits)?;
        self.recent.set(Some((id, key, dir)));
        Ok(patch)
    }

    /// Changes a file's record, except for its forks.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`].
    pub fn change_file<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        change: impl FnOnce(&mut FileRecord),
    ) -> Result<P> {
        self.check_writable()?;
        let (id, forks) = (file.record.id, file.record.forks);
        change(&mut file.record);
        file.record.id = id;
        file.record.forks = forks;
        self.touch();
        self.write_record(s, file, &[])
    }

    /// Counts an item as added to a folder, or as removed.
    pub(super) fn count_item<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        parent: u32,
        folder: bool,
        more: bool,
    ) -> Result<()> {
        let step = |n: u16| if more { n.saturating_add(1) } else { n.saturating_sub(1) };
        if parent == ROOT_ID {
            if folder {
                self.mdb.root_dirs = step(self.mdb.root_dirs);
            } else {
                self.mdb.root_files = step(self.mdb.root_files);
            }
        }
        let now = self.now;
        self.change_folder(s, parent, |dir| {
            dir.valence = step(dir.valence);
            dir.modified = now;
        })?;
        Ok(())
    }

    /// Checks that a folder can take one more item.
    pub(super) fn roomy_folder<S: Store<Patch = P>>(&self, s: &mut S, id: u32) -> Result<()> {
        let (_, dir) = self.folder(s, id)?;
        if dir.valence == u16::MAX {
            return Err(Error::TooMany("items in one folder"));
        }
        Ok(())
    }

    /// Inserts a record, growing the catalog if necessary.
    pub(crate) fn insert_record<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        key: &CatalogKey,
        record: &CatalogRecord,
        befores: &[P],
    ) -> Result<P> {
        let ((raw_key, key_len), (raw, len)) = (key.encode(), record.encode());
        let raw_key = raw_key.get(..key_len).unwrap_or(&raw_key);
        let path = self.catalog.find(s, raw_key)?;
        if path.found {
            return Err(Error::Exists);
        }
        let nodes = self.catalog.nodes_to_insert(s, &path, len + key_len.next_multiple_of(2))?;
        self.need_catalog_nodes(s, nodes)?;
        self.catalog.insert(s, &path, raw_key, raw.get(..len).unwrap_or(&raw), befores)
    }

    pub(crate) fn remove_record<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        key: &CatalogKey,
        befores: &[P],
    ) -> Result<P> {
        let (raw, len) = key.encode();
        let path = self.catalog.find(s, raw.get(..len).unwrap_or(&raw))?;
        self.catalog.remove(s, &path, befores)
    }

    /// Makes a file or folder; returns its id.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::TooMany`]; nothing has changed then.
    pub fn create<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        parent: u32,
        name: &Name,
        what: &New,
    ) -> Result<(u32, P)> {
        self.check_writable()?;
        Name::new(name.as_bytes())?;
        self.roomy_folder(s, parent)?;
        let id = self.mdb.next_id;
        if i32::try_from(id).is_err() || id < crate::layout::FIRST_ID {
            return Err(Error::TooMany("files and folders, ever"));
        }
        let now = self.now;
        let key = CatalogKey::new(parent, *name);
        let folder = matches!(what, New::Folder { .. });
        let record = match *what {
            New::File { info, xinfo } => CatalogRecord::File(FileRecord {
                flags: FileFlags::USED,
                info,
                xinfo,
                id,
                created: now,
                modified: now,
                ..FileRecord::default()
            }),
            New::Folder { info, xinfo } => CatalogRecord::Directory(DirectoryRecord {
                info,
                xinfo,
                id,
                created: now,
                modified: now,
                ..DirectoryRecord::default()
            }),
        };
        if folder {
            // Both records or none: the second insertion must not fail for lack of nodes.
            let depth = u32::from(self.catalog.header.depth);
            if self.lookup(s, parent, name).is_ok() {
                return Err(Error::Exists);
            }
            self.need_catalog_nodes(s, 2 * (depth + 2))?;
        }
        let mut patch = self.insert_record(s, &key, &record, &[])?;
        self.mdb.next_id = id + 1;
        if folder {
            let thread = ThreadRecord { of_file: false, parent, name: *name };
            let thread = CatalogRecord::Thread(thread);
            let threaded = self.insert_record(s, &CatalogKey::thread(id), &thread, &[])?;
            patch = s.join(&[patch, threaded])?;
            self.mdb.dirs = self.mdb.dirs.saturating_add(1);
            if !s.is_durable(patch) {
                self.places.insert(id, (patch, parent));
            }
        } else {
            self.mdb.files = self.mdb.files.saturating_add(1);
        }
        self.count_item(s, parent, folder, true)?;
        self.touch();
        Ok((id, patch))
    }

    /// Removes a file's name. Its blocks become free on the disk, but are not allocated again
    /// before [`drop_file`](Self::drop_file): the file can be read and written until then.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] also for a locked file.
    pub fn remove_file<S: Store<Patch = P>>(&mut self, s: &mut S, file: &mut File) -> Result<P> {
        self.check_writable()?;
        for fork in Fork::ALL {
            self.map(s, file, fork)?;
        }
        let moved = self.moved_by(s, file.id());
        let waits = Self::all_befores(&[], moved);
        let key = CatalogKey::new(file.parent, file.name);
        let gone = self.remove_record(s, &key, &waits)?;
        let gone = self.forget_file(s, file, gone)?;
        self.count_item(s, file.parent, false, false)?;
        Ok(gone)
    }

    /// Removes the other records of a file whose own record is gone.
    pub(super) fn forget_file<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        file: &mut File,
        gone: P,
    ) -> Result<P> {
        let id = file.id();
        let mut all = Befores::from_slice(&[gone]);
        for fork in Fork::ALL {
            let Some(map) = file.map_ref(fork) else { continue };
            for i in 1..map.records.len() {
                let key = Self::overflow_key(id, fork, map.record(i).0)?;
                all.extend(self.remove_extents(s, &key, &[gone])?);
            }
            self.space.let_go(&map.extents());
        }
        if file.record.flags.contains(FileFlags::THREAD) {
            match self.remove_record(s, &CatalogKey::thread(id), &[]) {
                Ok(_) | Err(Error::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        self.mdb.files = self.mdb.files.saturating_sub(1);
        self.touch();
        file.deleted = true;
        s.join(&all)
    }

    /// Releases the blocks of a file that `gone` removed.
    pub fn drop_file<S: Store<Patch = P>>(&mut self, s: &mut S, file: &File, gone: P) {
        let per = self.mdb.blocks_per_alloc();
        for fork in Fork::ALL {
            self.space.drop_window((file.id(), fork));
            let extents: Vec<Extent> =
                file.map_ref(fork).map(super::map::ForkMap::extents).unwrap_or_default();
            for extent in &extents {
                let block = self.block_of(u32::from(extent.start));
                s.free(block, u64::from(extent.count) * per, gone);
            }
            self.space.release(s, &extents, gone);
        }
    }

    /// Returns true if a folder has no items, regardless of its count.
    pub(super) fn is_empty_folder<S: Store<Patch = P>>(&self, s: &mut S, id: u32) -> Result<bool> {
        let mut empty = true;
        self.list(s, id, &Name::EMPTY, |_, _| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotADirectory`], [`Error::NotFound`].
    pub fn remove_folder<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        parent: u32,
        name: &Name,
    ) -> Result<P> {
        self.check_writable()?;
        let (key, CatalogRecord::Directory(dir)) = self.lookup(s, parent, name)? else {
            return Err(Error::NotADirectory);
        };
        if dir.id == ROOT_ID {
            return Err(Error::Refused("the root folder stays"));
        }
        self.recent.set(None);
        if !self.is_empty_folder(s, dir.id)? {
            return Err(Error::NotEmpty);
        }
        let left = self.left_by(s, dir.id);
        let mut waits = Self::all_befores(&[], self.moved_by(s, dir.id));
        waits.extend(left);
        let gone = self.remove_record(s, &key, &waits)?;
        if left.is_some() {
            // Until `gone` is durable the old records of those items lie below `parent`.
            self.note_left(s, parent, gone)?;
        }
        let gone = self.forget_folder(s, dir.id, gone)?;
        self.count_item(s, parent, true, false)?;
        Ok(gone)
    }

    /// Removes the other records of a folder whose own record is gone.
    pub(super) fn forget_folder<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        id: u32,
        gone: P,
    ) -> Result<P> {
        let unthreaded = match self.remove_record(s, &CatalogKey::thread(id), &[]) {
            Err(Error::NotFound) => gone,
            other => other?,
        };
        self.recent.set(None);
        self.mdb.dirs = self.mdb.dirs.saturating_sub(1);
        self.places.remove(&id);
        self.left.remove(&id);
        self.touch();
        s.join(&[gone, unthreaded])
    }

    /// Returns the extents of a fork, by its file's record.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn extents_of<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        record: &FileRecord,
        fork: Fork,
    ) -> Result<Vec<Extent>> {
        let sizes = record.fork(fork);
        let of = (record.id, fork);
        let map = load_map(s, &self.extents, &self.mdb, of, &sizes.extents, sizes.space_bytes)?;
        Ok(map.extents())
    }
}
