//! Synthetic inodes, which do not exist in the file system below: those of [trees](super::trees),
//! and of the mount's [own](super::own) directory. They are read-only.

use weft_vfs::{Attr, DirCursor, DirEntry, Entry, Error, Handle, Ino, OpenFlags, Opened, Result};

use super::TransformFs;
use super::own::is_own;
use super::trees::FIRST;

/// Returns true for a synthetic inode.
pub(super) fn is_shown(ino: Ino) -> bool {
    ino.0 >= FIRST
}

impl TransformFs {
    pub(super) fn shown_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if is_own(parent) { self.own_lookup(parent, name) } else { self.tree_lookup(parent, name) }
    }

    pub(super) fn shown_forget(&self, ino: Ino, count: u64) {
        if !is_own(ino) {
            self.tree_forget(ino, count);
        }
    }

    pub(super) fn shown_attr(&self, ino: Ino) -> Result<Attr> {
        if is_own(ino) { self.own_attr(ino) } else { self.tree_attr(ino) }
    }

    pub(super) fn shown_attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if is_own(ino) { Err(Error::NoAttribute) } else { self.tree_attribute(ino, name) }
    }

    pub(super) fn shown_open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if is_own(ino) { self.own_open(ino, flags) } else { self.tree_open(ino, flags) }
    }

    pub(super) fn shown_read(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        if is_own(ino) {
            self.own_read(handle, offset, buf)
        } else {
            self.tree_read(ino, offset, buf)
        }
    }

    pub(super) fn shown_release(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_own(ino) {
            return self.own_release(handle);
        }
        self.tree_release(handle);
        Ok(())
    }

    pub(super) fn shown_list(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if is_own(ino) { self.own_list(cursor, each) } else { self.tree_list(ino, cursor, each) }
    }
}
