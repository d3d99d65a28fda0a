//! Change announced upward: a file system tells the front that caches above it.

use crate::Ino;

/// Where a file system announces changes that the front did not make itself. Calls may come from
/// any thread that holds no lock of the file system: they may block until the front's own
/// requests in flight have ended.
pub trait Invalidate: Send + Sync {
    /// The attributes of `ino` changed, and if `data` its content too.
    fn inode(&self, ino: Ino, data: bool);

    /// What `name` in `parent` means changed (or a "no such name" is no longer true).
    fn entry(&self, parent: Ino, name: &[u8]);

    /// Returns when what was announced before has reached whoever caches, or when that takes too
    /// long. Not from a call that the front's own caches wait for: reading and writing.
    fn settle(&self) {}
}
