//! Locks of open files (`F_OFD_SETLK`).
//!
//! The kernel asks for them as for those of processes, with an owner of its own for each open file, and
//! sends nothing when they end: it looks for locks to release among those that it has recorded itself,
//! and it records none where the file system has locks of its own. So they are released here, with the
//! open file. Locks of processes are not touched: a process that closes a descriptor of the file loses
//! them, with a FLUSH, before the open file is released.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use weft_vfs::{Handle, Ino};

/// The owners of locks on the files of a mount, with the open file that each has locked by last.
#[derive(Debug, Default)]
pub(super) struct OpenFileLocks(Mutex<HashMap<Ino, HashMap<u64, Handle>>>);

impl OpenFileLocks {
    fn on<R>(&self, ino: Ino, change: impl FnOnce(&mut HashMap<u64, Handle>) -> R) -> R {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let owners = files.entry(ino).or_default();
        let result = change(owners);
        if owners.is_empty() {
            files.remove(&ino);
        }
        result
    }

    /// Notes that `owner` has locked a part of a file.
    pub(super) fn taken(&self, ino: Ino, owner: u64, handle: Handle) {
        self.on(ino, |owners| owners.insert(owner, handle));
    }

    /// Notes that all locks of `owner` on a file are released.
    pub(super) fn dropped(&self, ino: Ino, owner: u64) {
        self.on(ino, |owners| owners.remove(&owner));
    }

    /// Returns the owners whose locks end with the open file `handle`, and forgets them.
    pub(super) fn end_with(&self, ino: Ino, handle: Handle) -> Vec<u64> {
        self.on(ino, |owners| {
            owners.extract_if(|_, by| *by == handle).map(|(owner, _)| owner).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_owners_that_no_flush_has_dropped_end_with_the_open_file() {
        let locks = OpenFileLocks::default();
        let (file, first, second) = (Ino(7), Handle(1), Handle(2));
        locks.taken(file, 100, first);
        locks.taken(file, 200, first);
        locks.taken(Ino(8), 300, first);
        // A process that closes a descriptor, and locks again by another, before the first is released.
        locks.dropped(file, 100);
        locks.taken(file, 100, second);
        assert_eq!(locks.end_with(file, first), [200]);
        assert_eq!(locks.end_with(file, first), [0; 0]);
        locks.dropped(file, 100);
        locks.dropped(Ino(8), 300);
        assert!(locks.0.into_inner().unwrap().is_empty());
    }
}
