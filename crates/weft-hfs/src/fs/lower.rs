//! The lower interface on a mounted volume: items by parent and name, byte ranges of either fork.

use super::hfs::Hfs;
use super::node::Known;
use crate::layout::{CatalogRecord, FileRecord, Fork, Mdb, Name};
use crate::volume::New;
use crate::{Error, Result};
use weft_vfs::{Handle, OpenFlags};

/// An item of a folder.
pub type ItemInfo = (Name, CatalogRecord);

/// The volume's master directory block.
pub type VolumeInfo = Mdb;

impl Hfs {
    /// Returns the volume's master directory block with its current values.
    #[must_use]
    pub fn volume_info(&self) -> VolumeInfo {
        self.lock().vol.current_mdb().clone()
    }

    /// Renames the volume, to a name of at most 27 bytes.
    ///
    /// # Errors
    /// [`Error::NameTooLong`], [`Error::BadName`].
    pub fn set_label(&self, name: &Name) -> Result<()> {
        self.change(|st, s| st.vol.set_name(s, name).map(|_| ()))
    }

    /// Changes the `drFndrInfo` words of the volume; word 0 is the id of the blessed folder.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Device`].
    pub fn set_volume_finder_info(&self, words: [u32; 8]) -> Result<()> {
        self.change(|st, _| {
            st.vol.set_finder_info(words);
            Ok(())
        })
    }

    /// Returns an item of a folder.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn item(&self, parent: u32, name: &Name) -> Result<ItemInfo> {
        self.look(|st, s| {
            let (key, record) = st.vol.lookup(s, parent, name)?;
            // The record of an open file may be newer in memory.
            let id = record.id().unwrap_or(0);
            match st.nodes.get(&id).and_then(|node| node.file.as_ref()) {
                Some(file) => Ok((key.name, CatalogRecord::File(file.record))),
                None => Ok((key.name, record)),
            }
        })
    }

    /// The items of a folder, in order.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn items(&self, parent: u32) -> Result<Vec<ItemInfo>> {
        self.look(|st, s| {
            let mut items = Vec::new();
            st.vol.list(s, parent, &Name::EMPTY, |key, record| {
                items.push((key.name, *record));
                Ok(true)
            })?;
            Ok(items)
        })
    }

    /// Makes a file or folder; returns its id.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::TooMany`].
    pub fn create_item(&self, parent: u32, name: &Name, what: &New) -> Result<u32> {
        self.change(|st, s| {
            let (id, patch) = st.vol.create(s, parent, name, what)?;
            st.changes.note(s, id, patch)?;
            st.changes.note(s, parent, patch)?;
            Ok(id)
        })
    }

    /// Opens a fork of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::ReadOnly`].
    pub fn open_fork(
        &self,
        parent: u32,
        name: &Name,
        fork: Fork,
        flags: OpenFlags,
    ) -> Result<Handle> {
        let id = self.known_file(parent, name)?;
        Ok(self.do_open(id, fork, flags)?.handle)
    }

    /// Closes a fork.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `handle` is not an open handle of this volume.
    pub fn close_fork(&self, handle: Handle) -> Result<()> {
        self.do_release(handle)
    }

    /// Makes a node for a file, and returns its id.
    fn known_file(&self, parent: u32, name: &Name) -> Result<u32> {
        self.look(|st, s| {
            let (key, record) = st.vol.lookup(s, parent, name)?;
            let CatalogRecord::File(file) = record else { return Err(Error::IsADirectory) };
            st.node_of(parent, key.name, &record)?;
            Ok(file.id)
        })
    }

    fn with_known<R>(
        &self,
        parent: u32,
        name: &Name,
        f: impl FnOnce(u32) -> Result<R>,
    ) -> Result<R> {
        let id = self.known_file(parent, name)?;
        let result = f(id);
        self.end_life(id);
        result
    }

    /// Reads bytes of a fork; returns their number, smaller than `buf` only at the end.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::Corrupt`].
    pub fn read_fork(
        &self,
        parent: u32,
        name: &Name,
        fork: Fork,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.with_known(parent, name, |id| self.do_read(id, fork, offset, buf))
    }

    /// Writes bytes of a fork; returns their number, smaller than `data` only if the volume is
    /// full.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    pub fn write_fork(
        &self,
        parent: u32,
        name: &Name,
        fork: Fork,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.with_known(parent, name, |id| self.do_write(id, fork, Some(offset), data))
    }

    /// Makes a fork `len_bytes` long.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    pub fn truncate_fork(
        &self,
        parent: u32,
        name: &Name,
        fork: Fork,
        len_bytes: u64,
    ) -> Result<()> {
        self.with_known(parent, name, |id| self.do_set_len(id, fork, len_bytes))
    }

    /// Allocates space for `len_bytes` to a fork, without making it longer.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    pub fn grow_fork(&self, parent: u32, name: &Name, fork: Fork, len_bytes: u64) -> Result<()> {
        self.with_known(parent, name, |id| {
            self.change(|st, s| {
                let patch =
                    st.with_file(s, id, |vol, s, file| vol.grow(s, file, fork, len_bytes))?;
                st.changes.note(s, id, patch)
            })
        })
    }

    /// Changes a file's record, except for its forks: dates, flags, Finder info.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    pub fn change_file(
        &self,
        parent: u32,
        name: &Name,
        change: impl Fn(&mut FileRecord),
    ) -> Result<()> {
        self.with_known(parent, name, |id| {
            self.change(|st, s| {
                let patch =
                    st.with_file(s, id, |vol, s, file| vol.change_file(s, file, &change))?;
                st.changes.note(s, id, patch)
            })
        })
    }

    /// Changes a folder's record: dates and Finder info. The root folder has id 2.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`].
    pub fn change_folder(
        &self,
        id: u32,
        change: impl Fn(&mut crate::layout::DirectoryRecord),
    ) -> Result<()> {
        self.change(|st, s| {
            st.vol
                .change_folder(s, id, |dir| {
                    let (own, valence) = (dir.id, dir.valence);
                    change(dir);
                    dir.id = own;
                    dir.valence = valence;
                })
                .and_then(|patch| st.changes.note(s, id, patch))
        })
    }

    /// A folder's record, by its id.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`].
    pub fn folder(&self, id: u32) -> Result<crate::layout::DirectoryRecord> {
        self.look(|st, s| match st.known(s, id)? {
            Known::Folder(dir) => Ok(dir),
            Known::File(_) => Err(Error::NotADirectory),
        })
    }
}
