//! Folders that their threads do not lead to, and damage that reads pass over.
//!
//! A folder is found by its thread. Real disks have threads with another name than the folder's
//! (Macs ignore it), and damaged ones have no thread or one that leads elsewhere. The volume then
//! searches the whole catalog for such a folder, once.

use super::Volume;
use crate::layout::{CatalogKey, CatalogRecord, DirectoryRecord};
use crate::store::Store;
use crate::{Error, Result};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use hashbrown::{HashMap, HashSet};

/// The folders that were found without their threads.
#[derive(Debug, Default)]
pub(super) struct Strays {
    keys: HashMap<u32, CatalogKey>,
    /// The version of the catalog that was searched.
    seen: Option<u64>,
}

/// The damage that reads have passed over, in words, each item once.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    known: HashSet<String>,
    told: Vec<String>,
}

/// The most entries that are kept: a hostile volume may have any number.
const TOLD_MAX: usize = 1000;

impl<P: Copy + PartialEq + core::fmt::Debug> Volume<P> {
    /// Records that a read has passed over something damaged.
    pub(super) fn pass_over(&self, what: String) {
        let mut over = self.passed_over.borrow_mut();
        if over.told.len() < TOLD_MAX && over.known.insert(what.clone()) {
            over.told.push(what);
        }
    }

    /// Returns the damage that reads have passed over so far, each item once.
    #[must_use]
    pub fn passed_over(&self) -> Vec<String> {
        self.passed_over.borrow().told.clone()
    }

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
        found.ok_or_else(|| Error::corrupt("catalog", 0, format!("nothing leads to folder {id}")))
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
