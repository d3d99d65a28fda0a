//! Detection of changes of stored files.

use weft_vfs::{Attr, Ino, Time};

/// The attributes of a stored file that change when another process writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    ino: Ino,
    size_bytes: u64,
    mtime: Time,
    /// For a view, the version of its base.
    pub(super) changes: u64,
}

impl FileVersion {
    pub(super) fn of(attr: &Attr, changes: u64) -> Self {
        Self { ino: attr.ino, size_bytes: attr.size_bytes, mtime: attr.mtime, changes }
    }
}
