//! The locks of this file system, and their order.
//!
//! A thread that holds one of these takes only locks further down, or a lock of no rank:
//!
//! 1. the stages pushed on a file (`Inode::runtime_stages`); the attachment of views to known files
//!    (`TransformFs::linking`); the archives of trees (`Tree::archive`), the inner one first;
//! 2. of each file its snapshot (`Inode::snapshot`), then its state (`Inode::file`); those of a view
//!    before those of its base;
//! 3. names (`Mount::names`);
//! 4. the table of inodes (`Mount::inodes`);
//! 5. the location and the path of an inode.
//!
//! The others have no rank: no lock of this list is taken under them. Calls to the file system below
//! are made under no lock of the ranks 4 and 5.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a thread has panicked under it: the data under the locks of this
/// file system is consistent after each statement.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
