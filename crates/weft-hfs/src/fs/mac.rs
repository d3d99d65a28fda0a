//! The upper interface: paths and open files, as Macintosh programs had them.
//!
//! A path is bytes of MacRoman with colons: `Volume:Folder:File` starts at the volume,
//! `:Folder:File` or `File` at a folder, and each further colon in a row goes one folder up. Every
//! call is built on one of the lower interface.

use super::hfs::Hfs;
use super::mac_file::MacFile;
use crate::layout::{CatalogKey, CatalogRecord, FInfo, FXInfo, Fork, Name, ROOT_ID};
use crate::volume::New;
use crate::{Error, Result};
use std::sync::Arc;
use weft_vfs::{OpenFlags, RenameFlags};

/// A volume with a start folder for relative paths.
#[derive(Debug, Clone)]
pub struct Mac {
    fs: Arc<Hfs>,
    folder: u32,
}

impl Mac {
    /// Makes a start folder at the root of a volume.
    #[must_use]
    pub fn new(fs: Arc<Hfs>) -> Self {
        Self { fs, folder: ROOT_ID }
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Hfs> {
        &self.fs
    }

    /// Changes the start folder for relative paths.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`].
    pub fn change_folder(&mut self, path: &[u8]) -> Result<()> {
        self.folder = self.folder_at(path)?;
        Ok(())
    }

    /// Returns the parent folder and the name of the item at a path; `None` for the volume itself.
    fn resolve(&self, path: &[u8]) -> Result<Option<(u32, Name)>> {
        let mut parts: Vec<&[u8]> = path.split(|&b| b == b':').collect();
        let mut folder = self.folder;
        if path.contains(&b':') {
            match parts.first() {
                // A path relative to the start folder: the first colon separates nothing.
                Some([]) => {}
                Some(first) => {
                    let name = self.fs.volume_info().name;
                    if name.order(&Name::any(first)?).is_ne() {
                        return Err(Error::NotFound);
                    }
                    folder = ROOT_ID;
                }
                None => return Ok(None),
            }
            parts.remove(0);
        }
        // A colon at the end marks a folder.
        if parts.last().is_some_and(|last| last.is_empty()) {
            parts.pop();
        }
        let Some((last, above)) = parts.split_last() else {
            return self.name_of(folder);
        };
        for part in above {
            folder = self.step(folder, part)?;
        }
        if last.is_empty() {
            let up = self.step(folder, last)?;
            return self.name_of(up);
        }
        Ok(Some((folder, Name::any(last)?)))
    }

    fn step(&self, folder: u32, part: &[u8]) -> Result<u32> {
        if part.is_empty() {
            return Ok(self.name_of(folder)?.map_or(ROOT_ID, |(parent, _)| parent));
        }
        match self.fs.item(folder, &Name::any(part)?)? {
            (_, CatalogRecord::Directory(dir)) => Ok(dir.id),
            _ => Err(Error::NotADirectory),
        }
    }

    fn name_of(&self, folder: u32) -> Result<Option<(u32, Name)>> {
        if folder == ROOT_ID {
            return Ok(None);
        }
        let CatalogKey { parent, name } = self.fs.look(|st, s| Ok(st.vol.folder(s, folder)?.0))?;
        Ok(Some((parent, name)))
    }

    fn place(&self, path: &[u8]) -> Result<(u32, Name)> {
        self.resolve(path)?.ok_or_else(|| Error::Invalid("the volume itself".into()))
    }

    fn folder_at(&self, path: &[u8]) -> Result<u32> {
        match self.resolve(path)? {
            None => Ok(ROOT_ID),
            Some((parent, name)) => self.step(parent, name.as_bytes()),
        }
    }

    /// Makes an empty file with this type and creator.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::NoSpace`].
    pub fn create_file(&self, path: &[u8], file_type: [u8; 4], creator: [u8; 4]) -> Result<()> {
        let (parent, name) = self.place(path)?;
        let info = FInfo { file_type, creator, ..FInfo::default() };
        self.fs.create_item(parent, &name, &New::File { info, xinfo: FXInfo::default() })?;
        Ok(())
    }

    /// Makes an empty folder.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file).
    pub fn create_folder(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.place(path)?;
        let what = New::Folder { info: Default::default(), xinfo: Default::default() };
        self.fs.create_item(parent, &name, &what)?;
        Ok(())
    }

    /// Removes a file, or an empty folder.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotEmpty`].
    pub fn delete(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.place(path)?;
        self.fs.delete_item(parent, &name)
    }

    /// Moves an item to another path, at which no item may exist.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::Invalid`] for a folder into itself.
    pub fn move_item(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (old, new) = (self.place(from)?, self.place(to)?);
        self.fs.move_item((old.0, &old.1), (new.0, &new.1), false)
    }

    /// The items of a folder, in order.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`].
    pub fn list(&self, path: &[u8]) -> Result<Vec<super::lower::ItemInfo>> {
        self.fs.items(self.folder_at(path)?)
    }

    /// Returns the catalog record of an item.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn info(&self, path: &[u8]) -> Result<super::lower::ItemInfo> {
        match self.resolve(path)? {
            Some((parent, name)) => self.fs.item(parent, &name),
            None => {
                let root = self.fs.folder(ROOT_ID)?;
                Ok((self.fs.volume_info().name, CatalogRecord::Directory(root)))
            }
        }
    }

    /// Sets the Finder info of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    pub fn set_finder_info(&self, path: &[u8], info: &FInfo, xinfo: &FXInfo) -> Result<()> {
        let (parent, name) = self.place(path)?;
        self.fs.change_file(parent, &name, |record| {
            record.info = *info;
            record.xinfo = *xinfo;
        })
    }

    /// Opens a fork of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::ReadOnly`].
    pub fn open(&self, path: &[u8], fork: Fork, flags: OpenFlags) -> Result<MacFile> {
        let (parent, name) = self.place(path)?;
        let (_, record) = self.fs.item(parent, &name)?;
        let id = record.id().unwrap_or(0);
        let handle = self.fs.open_fork(parent, &name, fork, flags)?;
        Ok(MacFile::new(Arc::clone(&self.fs), id, fork, handle))
    }
}

impl Hfs {
    /// The length of a fork of a file that is open.
    pub(super) fn fork_len(&self, id: u32, fork: Fork) -> Result<u64> {
        self.look(|st, s| match st.known(s, id)? {
            super::node::Known::File(file) => Ok(u64::from(file.fork(fork).len_bytes)),
            super::node::Known::Folder(_) => Err(Error::IsADirectory),
        })
    }

    /// Removes a file, or an empty folder.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotEmpty`].
    pub fn delete_item(&self, parent: u32, name: &Name) -> Result<()> {
        self.remove_item(parent, name, None)
    }

    /// Moves an item to another folder, renames it, or both.
    ///
    /// # Errors
    /// [`Error::Exists`] unless `replace`, [`Error::NotFound`], [`Error::Invalid`] for a folder
    /// into itself.
    pub fn move_item(&self, from: (u32, &Name), to: (u32, &Name), replace: bool) -> Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NO_REPLACE };
        self.rename_item(from, to, flags)
    }
}
