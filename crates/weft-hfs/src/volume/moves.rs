//! Moving and renaming items. See the [module](super) for the order.

use super::file::File;
use super::state::Volume;
use crate::btree::Befores;
use crate::layout::{CatalogKey, CatalogRecord, FileFlags, Name, ROOT_ID, ThreadRecord};
use crate::store::Store;
use crate::{Error, Result};

/// The result of a move.
#[derive(Debug)]
pub struct Moved<P> {
    /// Durable when the item is at its new location and no longer at its old one.
    pub patch: P,
    /// The file that was at the new location: its blocks wait for [`drop_file`](Volume::drop_file).
    pub replaced: Option<File>,
    /// The id of the folder that was at the new location.
    pub replaced_folder: Option<u32>,
}

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Moves an item to another folder, renames it, or both. An item at the new location is
    /// replaced if `replace`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotEmpty`], [`Error::IsADirectory`] and
    /// [`Error::NotADirectory`] where the kinds differ, [`Error::Invalid`] for a folder that would
    /// be moved into itself, [`Error::NoSpace`]; nothing has changed then.
    pub fn move_item<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        from: (u32, &Name),
        to: (u32, &Name),
        replace: bool,
    ) -> Result<Moved<P>> {
        self.check_writable()?;
        self.recent.set(None);
        Name::new(to.1.as_bytes())?;
        let (old_key, mut record) = self.lookup(s, from.0, from.1)?;
        let Some(id) = record.id() else { return Err(Error::NotFound) };
        let folder = matches!(record, CatalogRecord::Directory(_));
        if id == ROOT_ID {
            return Err(Error::Refused("the root folder is renamed with the volume"));
        }
        let new_key = CatalogKey::new(to.0, *to.1);
        if from.0 == to.0 && from.1.order(to.1).is_eq() {
            let patch = self.respell(s, &old_key, &new_key, &record)?;
            return Ok(Moved { patch, replaced: None, replaced_folder: None });
        }
        if from.0 != to.0 {
            self.roomy_folder(s, to.0)?;
            if folder && self.is_below(s, to.0, id)? {
                return Err(Error::Refused("a folder cannot be moved into itself"));
            }
        }
        let target = match self.lookup(s, to.0, to.1) {
            Ok(_) if !replace => return Err(Error::Exists),
            Ok(item) => Some(item),
            Err(Error::NotFound) => None,
            Err(e) => return Err(e),
        };
        let mut replaced = None;
        let mut replaced_folder = None;
        match &target {
            Some((_, CatalogRecord::Directory(_))) if !folder => return Err(Error::IsADirectory),
            Some((_, CatalogRecord::File(_))) if folder => return Err(Error::NotADirectory),
            Some((_, CatalogRecord::Directory(dir))) => {
                if !self.is_empty_folder(s, dir.id)? {
                    return Err(Error::NotEmpty);
                }
                replaced_folder = Some(dir.id);
            }
            Some((key, CatalogRecord::File(file))) => {
                let mut file = File::new(to.0, key.name, *file);
                for fork in crate::layout::Fork::ALL {
                    self.map(s, &mut file, fork)?;
                }
                replaced = Some(file);
            }
            Some((_, CatalogRecord::Thread(_))) => return Err(Error::Exists),
            None => {
                let depth = u32::from(self.catalog.header.depth);
                self.need_catalog_nodes(s, depth + 2)?;
            }
        }

        let mut waits = Self::all_befores(&[], self.moved_by(s, id));
        let mut clean = record;
        clean.set_mark(false);
        if !s.is_atomic() {
            record.set_mark(true);
            let (path, _) = self.record_at(s, &old_key)?;
            // The new record repeats the old one: it waits for the same data and extents.
            let needs = self.catalog.needs_at(s, &path);
            let (raw, len) = record.encode();
            let mark = raw.get(len - 4..len).unwrap_or(&[]);
            let marked = self.catalog.update(s, &path, len - 4, mark, &waits)?;
            waits = needs;
            waits.push(marked);
        }
        if folder && from.0 != to.0 {
            // If an ancestor of the new location was moved out of this folder, that move must be
            // durable first: else the two folders would lie in each other, and in no other folder.
            waits.extend(self.way_to(s, to.0)?);
        }
        let there = match &target {
            None => self.insert_record(s, &new_key, &clean, &waits)?,
            Some((key, _)) => {
                if let Some(other) = replaced.as_ref().map(File::id).or(replaced_folder) {
                    waits.extend(self.moved_by(s, other));
                }
                let left = replaced_folder.and_then(|other| self.left_by(s, other));
                waits.extend(left);
                let there = self.overwrite(s, key, &new_key, &clean, &waits)?;
                if left.is_some() {
                    self.note_left(s, to.0, there)?;
                }
                there
            }
        };
        let threaded = self.rethread(s, id, &clean, &new_key)?;
        self.recent.set(None);
        let mut waits = Befores::from_slice(&[there]);
        if from.0 != to.0 {
            waits.extend(self.way_to(s, to.0)?);
        }
        let gone = self.remove_record(s, &old_key, &waits)?;
        if !s.is_durable(gone) {
            self.moved.insert(id, gone);
        }
        if from.0 != to.0 {
            self.note_left(s, from.0, gone)?;
        }
        if let Some(file) = &mut replaced {
            self.forget_file(s, file, there)?;
        }
        if let Some(other) = replaced_folder {
            self.forget_folder(s, other, there)?;
        }
        if from.0 != to.0 || target.is_some() {
            self.count_item(s, from.0, folder, false)?;
            if target.is_none() {
                self.count_item(s, to.0, folder, true)?;
            }
        } else {
            let now = self.now;
            self.change_folder(s, to.0, |dir| dir.modified = now)?;
        }
        if from.0 != to.0 && target.is_some() {
            let now = self.now;
            self.change_folder(s, to.0, |dir| dir.modified = now)?;
        }
        let patch = s.join(&[gone, threaded])?;
        if folder && !s.is_durable(patch) {
            self.places.insert(id, (patch, to.0));
        }
        self.touch();
        Ok(Moved { patch, replaced, replaced_folder })
    }

    /// Replaces a record and the spelling of its key, in one write.
    fn overwrite<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        old_key: &CatalogKey,
        new_key: &CatalogKey,
        record: &CatalogRecord,
        befores: &[P],
    ) -> Result<P> {
        let (path, _) = self.record_at(s, old_key)?;
        let ((raw_key, key_len), (raw, len)) = (new_key.encode(), record.encode());
        let mut bytes = crate::btree::leaf_record(raw_key.get(..key_len).unwrap_or(&[]), &[]);
        let space = bytes.len();
        bytes.extend_from_slice(raw.get(..len).unwrap_or(&[]));
        let at = self.catalog.value_place(s, &path, len)?;
        // All spellings of a name have the same length.
        let Some(at) = at.checked_sub(space).filter(|_| old_key.name.len() == new_key.name.len())
        else {
            return Err(Error::Exists);
        };
        self.catalog.version += 1;
        self.catalog.update_at(s, &path, at, &bytes, befores)
    }

    /// Changes the spelling of a name, which still names the same item.
    fn respell<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        old_key: &CatalogKey,
        new_key: &CatalogKey,
        record: &CatalogRecord,
    ) -> Result<P> {
        if old_key.name == new_key.name {
            return Ok(S::DURABLE);
        }
        self.recent.set(None);
        let patch = self.overwrite(s, old_key, new_key, record, &[])?;
        let threaded = match record.id() {
            Some(id) => self.rethread(s, id, record, new_key)?,
            None => patch,
        };
        let now = self.now;
        self.change_folder(s, new_key.parent, |dir| dir.modified = now)?;
        s.join(&[patch, threaded])
    }

    /// Updates the thread of an item, if it has one, to its new location.
    fn rethread<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        id: u32,
        record: &CatalogRecord,
        key: &CatalogKey,
    ) -> Result<P> {
        let of_file = match record {
            CatalogRecord::File(file) if !file.flags.contains(FileFlags::THREAD) => {
                return Ok(S::DURABLE);
            }
            CatalogRecord::File(_) => true,
            _ => false,
        };
        let thread = ThreadRecord { of_file, parent: key.parent, name: key.name };
        let (raw, len) = CatalogRecord::Thread(thread).encode();
        let path = match self.record_at(s, &CatalogKey::thread(id)) {
            Ok((path, _)) => path,
            Err(Error::NotFound) if of_file => return Ok(S::DURABLE),
            Err(e) => return Err(e),
        };
        self.catalog.update(s, &path, 0, raw.get(..len).unwrap_or(&raw), &[])
    }

    /// Returns true if folder `id` is folder `above`, or lies below it.
    fn is_below<S: Store<Patch = P>>(&self, s: &mut S, id: u32, above: u32) -> Result<bool> {
        let mut at = id;
        for _ in 0..=self.mdb.dirs.saturating_add(1) {
            if at == above {
                return Ok(true);
            }
            if at <= ROOT_ID {
                return Ok(false);
            }
            at = self.parent_of(s, at)?;
        }
        Err(Error::corrupt("catalog", 0, "folders form a loop"))
    }

    /// Renames the volume, and with it the root folder, to a name of at most 27 bytes.
    ///
    /// # Errors
    /// [`Error::NameTooLong`], [`Error::BadName`].
    pub fn set_name<S: Store<Patch = P>>(&mut self, s: &mut S, name: &Name) -> Result<P> {
        self.check_writable()?;
        Name::new(name.as_bytes())?;
        if name.len() > crate::layout::VOLUME_NAME_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        let (old_key, mut root) = {
            let (key, dir) = self.folder(s, ROOT_ID)?;
            (key, CatalogRecord::Directory(dir))
        };
        let new_key = CatalogKey::new(old_key.parent, *name);
        if let CatalogRecord::Directory(dir) = &mut root {
            dir.modified = self.now;
        }
        self.mdb.name = *name;
        self.recent.set(None);
        self.touch();
        if old_key.name.order(name).is_eq() {
            let patch = self.overwrite(s, &old_key, &new_key, &root, &[])?;
            let threaded = self.rethread(s, ROOT_ID, &root, &new_key)?;
            return s.join(&[patch, threaded]);
        }
        let depth = u32::from(self.catalog.header.depth);
        self.need_catalog_nodes(s, depth + 2)?;
        let mut waits = Befores::new();
        if !s.is_atomic() {
            let mut marked = root;
            marked.set_mark(true);
            let (path, _) = self.record_at(s, &old_key)?;
            let (raw, len) = marked.encode();
            let mark = raw.get(len - 4..len).unwrap_or(&[]);
            waits.push(self.catalog.update(s, &path, len - 4, mark, &[])?);
        }
        let there = self.insert_record(s, &new_key, &root, &waits)?;
        let threaded = self.rethread(s, ROOT_ID, &root, &new_key)?;
        let gone = self.remove_record(s, &old_key, &[there])?;
        s.join(&[gone, threaded])
    }
}
