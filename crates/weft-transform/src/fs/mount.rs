//! A mount: the file system below, and the state shared by all files.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weft_vfs::{FileSystem, Ino};

use super::access::ACCESS_LIST;
use super::inodes::InodeTable;
use super::locks::locked;
use super::temporaries::Temporaries;
use crate::store::Limits;

/// The file system below, its inodes, and the state shared by all files.
pub(super) struct Mount {
    pub(super) below: Arc<dyn FileSystem>,
    pub(super) inodes: Arc<Mutex<InodeTable>>,
    /// Held while names change.
    pub(super) names: Mutex<()>,
    pub(super) temporaries: Temporaries,
    pub(super) limits: Limits,
    /// Only a single user, or users who may read all of it, can reach this file system.
    pub(super) one_user: AtomicBool,
}

impl Mount {
    pub(super) fn new(below: Arc<dyn FileSystem>, session: u32, limits: Limits) -> Self {
        let temporaries = Temporaries::new(session, below.root());
        Self {
            below,
            inodes: Arc::default(),
            names: Mutex::default(),
            temporaries,
            limits,
            one_user: AtomicBool::new(false),
        }
    }

    /// Returns the inodes, locked.
    pub(super) fn inodes(&self) -> MutexGuard<'_, InodeTable> {
        locked(&self.inodes)
    }

    pub(super) fn is_of_one_user(&self) -> bool {
        self.one_user.load(Ordering::Acquire)
    }

    /// Returns the access list of an inode below, if it has one.
    pub(super) fn access_list(&self, below: Ino) -> Option<Vec<u8>> {
        self.below.getxattr(below, ACCESS_LIST).ok()
    }
}
