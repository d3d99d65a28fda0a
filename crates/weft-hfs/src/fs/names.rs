//! Names: looking up, making, removing, renaming, listing.

use super::attr::info_by_name;
use super::hfs::{BLOCKS, Hfs};
use super::node::{HfsVolume, Known, State, plain};
use super::store::OpStore;
use crate::layout::{CatalogRecord, FXInfo, Name, ROOT_ID};
use crate::volume::New;
use crate::{Error, Result, macroman};
use weft_patch::PatchId;
use weft_vfs::{
    DirCursor, DirEntry, Entry, Error as FsError, FileKind, Ino, RenameFlags, Result as FsResult,
    check_name,
};

/// Converts a Unix name to an HFS name for looking up an item.
fn sought(name: &[u8]) -> FsResult<Name> {
    check_name(name)?;
    // A name that MacRoman cannot express belongs to no item.
    let name = macroman::name_from_unix(name).map_err(|_| FsError::NotFound)?;
    Ok(Name::any(&name)?)
}

/// Converts a Unix name to an HFS name for a new item.
fn given(name: &[u8]) -> FsResult<Name> {
    if matches!(name, b"." | b"..") {
        return Err(FsError::Exists);
    }
    check_name(name)?;
    let name = macroman::name_from_unix(name)
        .map_err(|_| FsError::Invalid("the name has characters that MacRoman does not have"))?;
    Ok(Name::new(&name)?)
}

impl Hfs {
    /// Looks an item up, and takes `refs` references on it.
    fn find(&self, parent: u32, name: &[u8], refs: u64) -> FsResult<Entry> {
        if name == b"." || name == b".." {
            return Ok(self.look(|st, s| {
                st.folder(s, parent)?;
                let id = match name {
                    b".." if parent != ROOT_ID => st.vol.parent_of(s, parent)?,
                    _ => parent,
                };
                st.node(s, id)?;
                let entry = self.entry(st, s, id)?;
                st.node(s, id)?.refs += refs;
                Ok(entry)
            })?);
        }
        self.look(|st, s| st.folder(s, parent))?;
        let name = sought(name)?;
        Ok(self.look(|st, s| {
            let (key, record) = st.vol.lookup(s, parent, &name)?;
            st.node_of(parent, key.name, &record)?;
            let entry = self.entry_of(st, s, &record)?;
            st.node_of(parent, key.name, &record)?.refs += refs;
            Ok(entry)
        })?)
    }

    /// Checks that there is a folder, and brings the nodes of the catalog that lead to a name in it
    /// into memory, before a change and without the engine's lock. What is wrong with the name the
    /// change finds out itself.
    fn check_folder(&self, parent: u32, name: Option<&Name>) -> Result<()> {
        self.look(|st, s| {
            st.folder(s, parent)?;
            match name.map(|name| st.vol.lookup(s, parent, name)) {
                Some(Err(Error::NotInMemory)) => Err(Error::NotInMemory),
                _ => Ok(()),
            }
        })
    }

    /// Returns the entry of an item whose record was just read, and which has a node.
    fn entry_of(
        &self,
        st: &mut State,
        s: &mut OpStore<'_, '_>,
        record: &CatalogRecord,
    ) -> Result<Entry> {
        let known = st.known_of(s, record)?;
        let attr = self.attr_of(st, record.id().unwrap_or(0), &known);
        Ok(Entry { attr, generation: 0 })
    }

    pub(super) fn do_lookup(&self, parent: Ino, name: &[u8]) -> FsResult<Entry> {
        self.find(plain(parent)?, name, 1)
    }

    pub(super) fn entry(&self, st: &mut State, s: &mut OpStore<'_, '_>, id: u32) -> Result<Entry> {
        Ok(Entry { attr: self.attr(st, s, id)?, generation: 0 })
    }

    pub(super) fn do_create(&self, parent: Ino, name: &[u8], folder: bool) -> FsResult<Entry> {
        let parent = plain(parent)?;
        let name = given(name);
        self.check_folder(parent, name.as_ref().ok())?;
        let name = name?;
        let what = if folder {
            New::Folder { info: Default::default(), xinfo: Default::default() }
        } else {
            let info = info_by_name(name.as_bytes());
            New::File { info, xinfo: FXInfo::default() }
        };
        Ok(self.change(|st, s| {
            let (id, patch) = st.vol.create(s, parent, &name, &what)?;
            let (key, record) = st.vol.lookup(s, parent, &name)?;
            st.node_of(parent, key.name, &record)?.refs += 1;
            st.changes.note(s, id, patch)?;
            st.changes.note(s, parent, patch)?;
            self.entry(st, s, id)
        })?)
    }

    pub(super) fn do_remove(&self, parent: Ino, name: &[u8], folder: bool) -> FsResult<()> {
        let parent = plain(parent)?;
        match (name, folder) {
            (b".", true) => return Err(FsError::Invalid("the folder itself")),
            (b"..", true) => return Err(FsError::NotEmpty),
            (b"." | b"..", false) => return Err(FsError::IsADirectory),
            _ => {}
        }
        let name = sought(name);
        self.check_folder(parent, name.as_ref().ok())?;
        let name = name?;
        Ok(self.remove_item(parent, &name, Some(folder))?)
    }

    /// Removes an item; `folder` restricts it to folders (`true`) or files (`false`).
    pub(super) fn remove_item(&self, parent: u32, name: &Name, folder: Option<bool>) -> Result<()> {
        self.change(|st, s| {
            let (key, record) = st.vol.lookup(s, parent, name)?;
            let is_folder = matches!(record, CatalogRecord::Directory(_));
            match (is_folder, folder) {
                (true, Some(false)) => return Err(Error::IsADirectory),
                (false, Some(true)) => return Err(Error::NotADirectory),
                _ => {}
            }
            let id = record.id().unwrap_or(0);
            let gone = if is_folder {
                st.vol.remove_folder(s, parent, name)?
            } else {
                st.node_of(parent, key.name, &record)?;
                st.with_file(s, id, HfsVolume::remove_file)?
            };
            Self::gone(st, s, id, gone)?;
            st.changes.note(s, parent, gone)
        })
    }

    /// Records that `gone` removed the name of an item.
    fn gone(st: &mut State, s: &mut OpStore<'_, '_>, id: u32, gone: PatchId) -> Result<()> {
        if let Some(node) = st.nodes.get_mut(&id) {
            node.gone = Some(gone);
        }
        st.release(s, id, true);
        st.changes.note(s, id, gone)
    }

    pub(super) fn do_rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> FsResult<()> {
        let (old_parent, new_parent) = (plain(from.0)?, plain(to.0)?);
        let special = |name: &[u8]| matches!(name, b"." | b"..");
        if flags.contains(RenameFlags::EXCHANGE) {
            return Err(FsError::Invalid("HFS cannot exchange two items"));
        }
        let (old_name, new_name) = (sought(from.1), given(to.1));
        self.check_folder(old_parent, old_name.as_ref().ok())?;
        self.check_folder(new_parent, new_name.as_ref().ok())?;
        if special(from.1) || special(to.1) {
            return Err(FsError::Busy);
        }
        let (old_name, new_name) = (old_name?, new_name?);
        Ok(self.rename_item((old_parent, &old_name), (new_parent, &new_name), flags)?)
    }

    pub(super) fn rename_item(
        &self,
        from: (u32, &Name),
        to: (u32, &Name),
        flags: RenameFlags,
    ) -> Result<()> {
        let ((old_parent, old_name), (new_parent, new_name)) = (from, to);
        let replace = !flags.contains(RenameFlags::NO_REPLACE);
        self.change(|st, s| {
            let (_, record) = st.vol.lookup(s, old_parent, old_name)?;
            let id = record.id().unwrap_or(0);
            if !replace && old_parent == new_parent && old_name == new_name {
                return Err(Error::Exists);
            }
            // The replaced file may be open: its node has the newest record.
            let target = match st.vol.lookup(s, new_parent, new_name) {
                Ok((_, target)) => target.id().filter(|&t| t != id),
                Err(_) => None,
            };
            let moved = st.vol.move_item(s, from, to, replace)?;
            if let Some(file) = st.nodes.get_mut(&id).and_then(|node| node.file.as_mut()) {
                file.move_to(new_parent, *new_name);
            }
            match (moved.replaced, target) {
                (Some(file), Some(target)) => {
                    match st.nodes.get_mut(&target).and_then(|node| node.file.as_mut()) {
                        Some(known) => known.set_deleted(),
                        None => st.vol.drop_file(s, &file, moved.patch),
                    }
                    Self::gone(st, s, target, moved.patch)?;
                }
                (None, Some(target)) => Self::gone(st, s, target, moved.patch)?,
                _ => {}
            }
            for item in [id, old_parent, new_parent] {
                st.changes.note(s, item, moved.patch)?;
            }
            Ok(())
        })
    }

    pub(super) fn do_forget(&self, ino: Ino, count: u64) {
        let Ok(id) = plain(ino) else { return };
        let last = {
            let mut st = self.lock();
            let Some(node) = st.nodes.get_mut(&id) else { return };
            node.refs = node.refs.saturating_sub(count);
            node.refs == 0 && node.opens == 0
        };
        if last {
            self.end_life(id);
        }
    }

    /// Drops the node of an unused item, and frees the item's blocks if it was removed.
    pub(super) fn end_life(&self, id: u32) {
        // Freeing changes the bitmap in memory, and revokes blocks in the log: the operation must
        // announce those blocks. Only under the lock, after the announcement, is it known whether
        // blocks must be freed.
        let release = |max_blocks| {
            self.operate(max_blocks, |st, s| Ok(st.release(s, id, max_blocks == BLOCKS)))
        };
        let released = match release(0) {
            Ok(false) => release(BLOCKS),
            other => other,
        };
        if let Err(e) = released {
            tracing::warn!("the space of a removed file is not free before the next mount: {e}");
        }
    }

    /// Lists a folder from the entry after a cursor: 1 and 2 are those of `.` and `..`, others are
    /// ids.
    pub(super) fn do_readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        plus: bool,
        each: &mut dyn FnMut(DirEntry<'_>, Option<Entry>) -> bool,
    ) -> FsResult<()> {
        // About the number that the kernel takes at once: further items would be read in vain.
        const BATCH: usize = 32;
        let dir = plain(ino)?;
        let mut at = cursor.0;
        let up = self.look(|st, s| {
            match st.known(s, dir)? {
                Known::Folder(_) => {}
                Known::File(_) => return Err(Error::NotADirectory),
            }
            if dir == ROOT_ID {
                return Ok(Some(ROOT_ID));
            }
            Ok(st.vol.parent_of(s, dir).ok())
        })?;
        for (next, name, id) in [(1, &b"."[..], dir), (2, &b".."[..], up.unwrap_or(dir))] {
            if at < next {
                let entry = DirEntry {
                    ino: Ino(u64::from(id)),
                    kind: FileKind::Directory,
                    name,
                    next: DirCursor(next),
                };
                let attr =
                    if plus { Some(self.look(|st, s| self.entry(st, s, id))?) } else { None };
                if !each(entry, attr) {
                    return Ok(());
                }
                at = next;
            }
        }
        if up.is_none() {
            return Ok(());
        }
        loop {
            let batch = self.look(|st, s| {
                let after = match at {
                    0..=2 => Name::EMPTY,
                    id => match Self::cursor_name(st, s, dir, id)? {
                        Some(name) => name,
                        None => return Ok(Vec::new()),
                    },
                };
                let mut batch = Vec::new();
                st.vol.list(s, dir, &after, |key, record| {
                    batch.push((key.name, *record));
                    Ok(batch.len() < BATCH)
                })?;
                let cursors = st.cursors.entry(dir).or_default();
                for (name, record) in &batch {
                    cursors.insert(record.id().unwrap_or(0), *name);
                }
                // Takes references on the entries, which are dropped if the caller does not want
                // the entry.
                let mut shown = Vec::new();
                for (name, record) in batch {
                    let id = record.id().unwrap_or(0);
                    let entry = if plus {
                        st.node_of(dir, name, &record)?.refs += 1;
                        Some(self.entry_of(st, s, &record)?)
                    } else {
                        None
                    };
                    shown.push((name, matches!(record, CatalogRecord::Directory(_)), id, entry));
                }
                Ok(shown)
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            let mut wanted = true;
            for (name, folder, id, entry) in batch {
                if !wanted {
                    if plus {
                        self.do_forget(Ino(u64::from(id)), 1);
                    }
                    continue;
                }
                let name = macroman::name_to_unix(name.as_bytes());
                let next = DirCursor(u64::from(id));
                let kind = if folder { FileKind::Directory } else { FileKind::Regular };
                let ino = Ino(u64::from(id));
                wanted = each(DirEntry { ino, kind, name: name.as_bytes(), next }, entry);
                if !wanted && plus {
                    self.do_forget(ino, 1);
                }
                at = u64::from(id);
            }
            if !wanted {
                return Ok(());
            }
        }
    }

    /// Returns the name that a cursor stands for: the name when the cursor was given out, or the
    /// current one.
    fn cursor_name(
        st: &mut State,
        s: &mut OpStore<'_, '_>,
        dir: u32,
        cursor: u64,
    ) -> Result<Option<Name>> {
        let id = u32::try_from(cursor).map_err(|_| Error::Stale(dir))?;
        if let Some(name) = st.cursors.get(&dir).and_then(|names| names.get(&id)) {
            return Ok(Some(*name));
        }
        let mut found = None;
        st.vol.list(s, dir, &Name::EMPTY, |key, record| {
            if record.id() == Some(id) {
                found = Some(key.name);
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Returns the changes that must be durable with an item.
    pub(super) fn sync_set(
        st: &mut State,
        s: &mut OpStore<'_, '_>,
        id: u32,
    ) -> Result<Vec<PatchId>> {
        let mut patches = st.changes.of(s, id);
        if st.nodes.get(&id).is_some_and(|node| node.gone.is_some()) {
            return Ok(patches);
        }
        let folder = match st.nodes.get(&id).and_then(|node| node.file.as_ref()) {
            Some(file) => file.parent,
            None => id,
        };
        patches.extend(st.vol.way_to(s, folder)?);
        Ok(patches)
    }
}
