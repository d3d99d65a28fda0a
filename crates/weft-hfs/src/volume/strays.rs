//! Folders that their threads do not lead to.
//!
//! A folder is found by its thread. Real disks have threads with another name than the folder's
//! (Macs ignore it), and damaged ones have no thread or one that leads elsewhere. The volume then
//! searches the whole catalog for such a folder, once.

use super::state::{Strays, Volume};
use crate::layout::{CatalogKey, CatalogRecord, DirectoryRecord};
use crate::store::Store;
use crate::{Error, Result};
use alloc::format;
use hashbrown::HashMap;

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Returns a folder that its thread does not lead to.
    pub(super) fn stray<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        id: u32,
    ) -> Result<(CatalogKey, DirectoryRecord)> {
        let at = |s: &mut S, key: CatalogKey| match self.record_at(s, &key) {
            Ok((_, CatalogRecord::Directory(dir))) if dir.id == id => Ok(Some((key, dir))),
            Err(Error::NotInMemory) => Err(Error::NotInMemory),
            _ => Ok(None),
        };
        let known = self.strays.borrow().keys.get(&id).copied();
        if let Some(key) = known
            && let Some(found) = at(s, key)?
        {
            return Ok(found);
        }
        let version = self.catalog.version;
        if self.strays.borrow().seen != Some(version) {
            let keys = self.all_folders(s)?;
            *self.strays.borrow_mut() = Strays { keys, seen: Some(version) };
        }
        let found = self.strays.borrow().keys.get(&id).copied();
        let found = match found {
            Some(key) => at(s, key)?,
            None => None,
        };
        found.ok_or_else(|| {
            Error::corrupt("catalog", 0, format!("folder {id} is not in the catalog"))
        })
    }

    /// Returns the keys of all folders, as far as the catalog can be read.
    fn all_folders<S: Store<Patch = P>>(&self, s: &mut S) -> Result<HashMap<u32, CatalogKey>> {
        let mut keys = HashMap::new();
        let (first, len) = CatalogKey::thread(0).encode();
        let first = first.get(..len).unwrap_or(&first);
        let on = |_| Ok(());
        self.catalog.scan_past(s, first, on, |key, value| {
            if let (Ok(key), Ok(CatalogRecord::Directory(dir))) =
                (CatalogKey::parse(key), CatalogRecord::parse(value))
            {
                keys.entry(dir.id).or_insert(key);
            }
            Ok(true)
        })?;
        Ok(keys)
    }
}
