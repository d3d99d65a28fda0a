//! Synthetic inodes, which do not exist in the file system below: those of [trees](super::trees),
//! and of the [directory of counters](super::meter_directory). They are read-only.

use weft_vfs::{
    Attr, DirCursor, DirEntry, Entry, Error, FileSystem, Handle, Ino, OpenFlags, Opened, Result,
};

use super::locks::locked;
use super::meter_directory::{
    METER_DIRECTORY, MeterDirectory, is_meter_inode, list_meters, meter_attr,
};
use super::transform_fs::{Open, TransformFs};

impl TransformFs {
    fn meter_directory(&self) -> Result<&MeterDirectory> {
        self.meter_directory.as_ref().ok_or(Error::NotFound)
    }

    /// Looks up the directory of counters in the root, or a name in it.
    pub(super) fn meter_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if parent == METER_DIRECTORY && name == b".." {
            return self.lookup(self.root(), b".");
        }
        let ino = self.meter_directory()?.lookup(parent, name, self.root());
        Ok(Entry { attr: self.meter_attr(ino.ok_or(Error::NotFound)?)?, generation: 0 })
    }

    fn meter_attr(&self, ino: Ino) -> Result<Attr> {
        Ok(meter_attr(ino, &self.mount.below.getattr(self.root())?))
    }

    pub(super) fn synthetic_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if is_meter_inode(parent) {
            self.meter_lookup(parent, name)
        } else {
            self.tree_lookup(parent, name)
        }
    }

    pub(super) fn synthetic_forget(&self, ino: Ino, count: u64) {
        if let Ok((tree, _)) = self.in_tree(ino) {
            self.release_tree(tree.nr, count);
        }
    }

    pub(super) fn synthetic_attr(&self, ino: Ino) -> Result<Attr> {
        if is_meter_inode(ino) {
            return self.meter_attr(ino);
        }
        let (tree, nr) = self.in_tree(ino)?;
        tree.attr(nr)
    }

    pub(super) fn synthetic_attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if is_meter_inode(ino) { Err(Error::NoAttribute) } else { self.tree_attribute(ino, name) }
    }

    /// Opens a file; as such files are read-only, they need no more state than their handle.
    pub(super) fn synthetic_open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(Error::ReadOnly);
        }
        let is_meter = is_meter_inode(ino);
        let content = if is_meter {
            Some(self.meter_directory()?.render(ino)?)
        } else {
            self.tree_open(ino)?;
            None
        };
        let open = Open { ino, flags, below: None, direct_io: is_meter, passthrough: false };
        let handle = self.new_handle(open);
        if let Some(content) = content {
            self.meter_directory()?.opened(handle, content);
        }
        Ok(Opened { handle, keep_cache: !is_meter, direct_io: is_meter })
    }

    pub(super) fn synthetic_read(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        if is_meter_inode(ino) {
            self.meter_directory()?.read(handle, offset, buf)
        } else {
            self.tree_read(ino, offset, buf)
        }
    }

    pub(super) fn synthetic_release(&self, handle: Handle) {
        // As these files keep no state, closing one of them twice is no error.
        let _ = locked(&self.handles).close(handle);
        if let Some(directory) = &self.meter_directory {
            directory.released(handle);
        }
    }

    pub(super) fn synthetic_list(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if is_meter_inode(ino) {
            list_meters(cursor, self.root(), each);
            return Ok(());
        }
        self.tree_entries(ino, cursor, &mut |entry, _| each(entry))
    }
}
