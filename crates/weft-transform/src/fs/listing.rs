//! Directory listing: temporary files are skipped, inode numbers and sizes are those of this file
//! system.

use weft_vfs::{Attr, Caller, DirCursor, DirEntry, Entry, Error, FileSystem, Ino, Result};

use super::inodes::is_synthetic;
use super::path::FRESH_PREFIX;
use super::transform_fs::TransformFs;

/// The number of names that are read from below at a time, to look up each.
const BATCH: usize = 128;

impl TransformFs {
    pub(super) fn list(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if is_synthetic(ino) {
            return self.synthetic_list(ino, cursor, each);
        }
        let directory = self.inode(ino)?;
        let mut stale = Vec::new();
        self.mount.below.readdir(directory.below(), cursor, &mut |entry| {
            if entry.name.starts_with(FRESH_PREFIX) {
                stale.push(entry.name.to_vec());
                return true;
            }
            let ino = self.mount.inodes().number(entry.ino);
            each(DirEntry { ino, ..entry })
        })?;
        self.remove_stale(directory.below(), stale);
        Ok(())
    }

    pub(super) fn list_plus(
        &self,
        ino: Ino,
        mut cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        if self.in_tree(ino).is_ok() {
            return self.tree_list_plus(ino, cursor, each);
        }
        loop {
            let mut batch = Vec::new();
            self.list(ino, cursor, &mut |DirEntry { ino, kind, name, next }| {
                batch.push((ino, kind, name.to_vec(), next));
                batch.len() < BATCH
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            for (listed, kind, name, next) in batch {
                cursor = next;
                let entry = match self.lookup(ino, &name) {
                    Ok(entry) => entry,
                    // Removed since it was listed.
                    Err(Error::NotFound | Error::Stale(_)) => continue,
                    Err(e) => return Err(e),
                };
                let Attr { ino: found, .. } = entry.attr;
                let dots = name == b"." || name == b"..";
                let shown = if dots { listed } else { found };
                let more = each(DirEntry { ino: shown, kind, name: &name, next }, entry);
                if dots || !more {
                    self.forget(found, 1);
                }
                if !more {
                    return Ok(());
                }
            }
        }
    }

    /// Removes the temporary files of an earlier mount that ended abruptly.
    fn remove_stale(&self, directory: Ino, names: Vec<Vec<u8>>) {
        for name in names {
            if self.mount.temporaries.number(&name).is_none() {
                match self.mount.below.unlink(&Caller::ROOT, directory, &name) {
                    Ok(()) => tracing::info!("removed what a commit cut short left behind"),
                    Err(e) => tracing::warn!("what a commit cut short left behind stays: {e}"),
                }
            }
        }
    }
}
