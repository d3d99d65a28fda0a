//! A mount: the file system below, and the state shared by all files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weft_vfs::{FileSystem, Ino};

use super::access::ACCESS_LIST;
use super::inodes::InodeTable;
use super::locks::locked;
use crate::store::Limits;

/// The file system below, its inodes, and the state shared by all files.
pub(super) struct Mount {
    pub(super) below: Arc<dyn FileSystem>,
    pub(super) inodes: Arc<Mutex<InodeTable>>,
    /// Held while names change.
    pub(super) names: Mutex<()>,
    /// Part of the names of temporary files, different for each mount.
    pub(super) session: u32,
    /// The other part: the number of temporary files that the mount has created. The names of the
    /// first 2^40 fit into the 31 bytes of HFS.
    pub(super) fresh_names: AtomicU64,
    pub(super) limits: Limits,
    /// Only a single user, or users who may read all of it, can reach this file system.
    pub(super) one_user: AtomicBool,
}

impl Mount {
    pub(super) fn new(below: Arc<dyn FileSystem>, session: u32, limits: Limits) -> Self {
        Self {
            below,
            inodes: Arc::default(),
            names: Mutex::default(),
            session,
            fresh_names: AtomicU64::new(0),
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
