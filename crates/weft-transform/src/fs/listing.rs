//! Directory listing: temporary files are skipped, inode numbers and sizes are those of this file
//! system.

use weft_vfs::{Attr, DirCursor, DirEntry, Entry, Error, FileKind, FileSystem, Ino, Result};

use super::TransformFs;
use super::base::{FRESH_PREFIX, locked};
use super::shown::is_shown;

/// The number of names that are read from below at a time, to look up each.
const BATCH: usize = 128;

/// A name read from below.
struct Listed {
    ino: Ino,
    kind: FileKind,
    name: Vec<u8>,
    next: DirCursor,
}

impl TransformFs {
    pub(super) fn list(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if is_shown(ino) {
            return self.shown_list(ino, cursor, each);
        }
        let directory = self.node(ino)?;
        let mut stale = Vec::new();
        self.ground.below.readdir(directory.below(), cursor, &mut |entry| {
            if entry.name.starts_with(FRESH_PREFIX) {
                stale.push(entry.name.to_vec());
                return true;
            }
            let ino = locked(&self.ground.nodes).number(entry.ino);
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
            return self.list_tree_plus(ino, cursor, each);
        }
        loop {
            let mut batch = Vec::new();
            self.list(ino, cursor, &mut |entry| {
                let DirEntry { ino, kind, name, next } = entry;
                batch.push(Listed { ino, kind, name: name.to_vec(), next });
                batch.len() < BATCH
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            for Listed { ino: listed, kind, name, next } in batch {
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

    /// Lists a directory of an archive, whose entries are known without looking up each name.
    fn list_tree_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let mut failed = None;
        self.tree_list_plus(ino, cursor, &mut |entry, found| match found {
            Some(found) => each(entry, found),
            // `.` and `..`, which must not add a use.
            None => match self.lookup(ino, entry.name) {
                Ok(found) => {
                    let goes_on = each(entry, found);
                    self.forget(found.attr.ino, 1);
                    goes_on
                }
                Err(e) => {
                    failed = Some(e);
                    false
                }
            },
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Removes the temporary files of an earlier mount that ended abruptly.
    fn remove_stale(&self, directory: Ino, names: Vec<Vec<u8>>) {
        let ours = format!("{:08x}-", self.ground.session);
        for name in names {
            let of = &name[FRESH_PREFIX.len()..];
            if !of.starts_with(ours.as_bytes()) {
                match self.ground.below.unlink(directory, &name) {
                    Ok(()) => tracing::info!("removed what a commit cut short left behind"),
                    Err(e) => tracing::warn!("what a commit cut short left behind stays: {e}"),
                }
            }
        }
    }
}
