//! Listing directories.

use crate::Result;
use crate::format::{Format, Listed, Listing};
use crate::front::UnixFs;
use crate::state::State;
use weft_patch::Op;
use weft_vfs::{DirCursor, DirEntry, Entry, Error as FsError, FileKind, Ino};

/// Entries whose inodes are read at a time.
const PLUS_BATCH: usize = 64;

impl Listing {
    fn entry(&self, listed: &Listed) -> DirEntry<'_> {
        DirEntry {
            ino: listed.ino,
            kind: listed.kind.unwrap_or(FileKind::Regular),
            name: self.names.get(listed.name.clone()).unwrap_or_default(),
            next: DirCursor(listed.next),
        }
    }

    fn is_dots(&self, listed: &Listed) -> bool {
        matches!(self.names.get(listed.name.clone()), Some(b"." | b".."))
    }
}

impl<F: Format> State<F> {
    /// Lists at most `max` entries of a directory from `cursor` on, and no more than the format
    /// lists at once.
    fn list(&mut self, op: &mut Op<'_>, dir: Ino, cursor: u64, max: usize) -> Result<Listing> {
        let node = self.load(op, dir)?;
        if node.kind != FileKind::Directory {
            return Err(FsError::NotADirectory.into());
        }
        if node.inode.links == 0 {
            return Ok(Listing::default());
        }
        let (format, node) = self.with_node(dir)?;
        let mut listing = format.list(op, node, cursor, max)?;
        // A volume without kinds in its entries, or an entry that leaves its kind open.
        for listed in listing.entries.iter_mut().filter(|listed| listed.kind.is_none()) {
            listed.kind = self.load(op, listed.ino).ok().map(|node| node.kind);
        }
        Ok(listing)
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_readdir(
        &self,
        dir: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.relieve_lazy()?;
        let mut at = Some(cursor.0);
        while let Some(from) = at {
            let batch = self.look(|st, op| {
                self.note_access(st, dir);
                st.list(op, dir, from, usize::MAX)
            })?;
            for listed in &batch.entries {
                if !each(batch.entry(listed)) {
                    return Ok(());
                }
            }
            at = batch.next;
        }
        Ok(())
    }

    pub(crate) fn do_readdir_plus(
        &self,
        dir: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let mut at = Some(cursor.0);
        while let Some(from) = at {
            // References first, so that nothing listed can vanish; those not wanted are given
            // back after.
            let mut entries = Vec::new();
            let mut held = Vec::new();
            let listed = self.look(|st, op| {
                let batch = st.list(op, dir, from, PLUS_BATCH)?;
                // All of them first: blocks that are missing are then read together, and no
                // reference is taken twice.
                for listed in &batch.entries {
                    let _ = st.load(op, listed.ino);
                }
                op.want([])?;
                for listed in &batch.entries {
                    let block_bytes = st.block_bytes;
                    let node = if batch.is_dots(listed) {
                        st.load(op, listed.ino)?
                    } else {
                        st.load_entry(op, dir, listed.ino)?
                    };
                    if !batch.is_dots(listed) {
                        node.refs += 1;
                        held.push(node.ino);
                    }
                    entries.push(node.entry(block_bytes));
                }
                Ok(batch)
            });
            let batch = match listed {
                Ok(batch) => batch,
                Err(e) => {
                    for ino in held {
                        self.do_forget(ino, 1);
                    }
                    return Err(e);
                }
            };
            let mut taken = 0;
            for (listed, entry) in batch.entries.iter().zip(&entries) {
                if !each(batch.entry(listed), *entry) {
                    break;
                }
                taken += 1;
            }
            for (listed, entry) in batch.entries.iter().zip(&entries).skip(taken) {
                if !batch.is_dots(listed) {
                    self.do_forget(entry.attr.ino, 1);
                }
            }
            if taken < batch.entries.len() {
                return Ok(());
            }
            at = batch.next;
        }
        Ok(())
    }
}
