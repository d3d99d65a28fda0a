//! Invalidation: a file system announces changes to the caching front above it.

use crate::Ino;

/// The receiver of changes that the front did not make itself. Calls may come from any thread that
/// holds no lock of the file system: they may block until the front's own requests in flight have
/// ended.
pub trait Invalidate: Send + Sync {
    /// Announces that the attributes of `ino` changed, and if `data` its content too.
    fn inode(&self, ino: Ino, data: bool);

    /// Announces that `name` in `parent` has another meaning (or exists now).
    fn entry(&self, parent: Ino, name: &[u8]);

    /// Waits until the earlier announcements have reached the caches, or a time limit. Must not be
    /// called within a call that the caches of the front wait for: reading and writing.
    fn settle(&self) {}
}
