//! The names of a directory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The names of a directory, each with the number of its inode in a snapshot. An entry keeps its
/// cookie as long as the name stands, and cookies only grow, so a cursor is the last cookie seen.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) parent: u64,
    by_name: BTreeMap<Arc<[u8]>, u64>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, u64)>,
    next_cookie: u64,
}

impl Names {
    /// Cookies 1 and 2 are `.` and `..`.
    pub(super) fn new(parent: u64) -> Self {
        Self { parent, by_name: BTreeMap::new(), by_cookie: BTreeMap::new(), next_cookie: 3 }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, number)| *number)
    }

    /// Adds the name, or changes it to name `ino`.
    pub(super) fn set(&mut self, name: &[u8], number: u64) {
        if let Some(cookie) = self.by_name.get(name) {
            if let Some(slot) = self.by_cookie.get_mut(cookie) {
                slot.1 = number;
            }
            return;
        }
        let shared: Arc<[u8]> = name.into();
        self.by_name.insert(Arc::clone(&shared), self.next_cookie);
        self.by_cookie.insert(self.next_cookie, (shared, number));
        self.next_cookie += 1;
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.by_name.remove(name) {
            self.by_cookie.remove(&cookie);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        self.by_name.len() as u64
    }

    /// Returns the entries after `cursor`, without `.` and `..`.
    pub(super) fn after(&self, cursor: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.by_cookie
            .range(cursor.saturating_add(1)..)
            .map(|(&cookie, (name, number))| (cookie, &**name, *number))
    }

    /// Returns all names and numbers, in order of the names.
    pub(super) fn sorted(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let number = |cookie| self.by_cookie.get(cookie).map(|(_, number)| *number);
        self.by_name.iter().filter_map(move |(name, cookie)| Some((&**name, number(cookie)?)))
    }
}
