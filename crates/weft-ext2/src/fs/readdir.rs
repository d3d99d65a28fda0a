//! Listing directories. A cursor is the byte offset of the next entry: entries never move, so it
//! stays valid while names come and go.

use super::{Ext2, State, plain};
use crate::Result;
use crate::layout::{Dirents, file_type_kind};
use crate::volume::Volume;
use std::ops::Range;
use weft_patch::{BlockNr, Op};
use weft_vfs::{DirCursor, DirEntry, Entry, Error as FsError, FileKind, Ino};

/// Entries whose inodes are read at a time.
const PLUS_BATCH: usize = 64;

/// Some entries of one block.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    entries: Vec<Listed>,
    /// Where to go on; `None` at the end.
    next: Option<u64>,
}

struct Listed {
    ino: u32,
    /// What the entry says; it need not say anything.
    kind: Option<FileKind>,
    name: Range<usize>,
    next: u64,
}

impl Batch {
    fn entry(&self, listed: &Listed) -> DirEntry<'_> {
        DirEntry {
            ino: Ino(u64::from(listed.ino)),
            kind: listed.kind.unwrap_or(FileKind::Regular),
            name: self.names.get(listed.name.clone()).unwrap_or_default(),
            next: DirCursor(listed.next),
        }
    }

    fn is_dots(&self, listed: &Listed) -> bool {
        matches!(self.names.get(listed.name.clone()), Some(b"." | b".."))
    }
}

impl State {
    /// At most `max` entries from byte `at` of a directory on, of one block.
    fn list(&mut self, op: &mut Op<'_>, dir: u32, mut at: u64, max: usize) -> Result<Batch> {
        let node = self.load(op, dir)?;
        if node.kind != FileKind::Directory {
            return Err(FsError::NotADirectory.into());
        }
        let mut batch = Batch::default();
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&dir).ok_or(FsError::Stale(u64::from(dir)))?;
        let bs = vol.block_bytes() as u64;
        if node.inode.links == 0 {
            return Ok(batch);
        }
        let filetype = vol.has_filetype();
        while at < node.inode.size_bytes {
            let fbn = at / bs;
            let (nr, run) = vol.map_run(op, node, fbn, node.inode.size_bytes.div_ceil(bs) - fbn)?;
            if nr == 0 {
                at = (fbn + run) * bs;
                continue;
            }
            let mut full = false;
            for entry in Dirents::new(op.peek(BlockNr(u64::from(nr)))?, filetype) {
                let entry = entry.map_err(|e| Volume::dir_error(dir, nr, e))?;
                let offset = fbn * bs + entry.offset as u64;
                if offset < at || entry.ino == 0 {
                    continue;
                }
                if batch.entries.len() == max {
                    full = true;
                    batch.next = Some(offset);
                    break;
                }
                let from = batch.names.len();
                batch.names.extend_from_slice(entry.name);
                batch.entries.push(Listed {
                    ino: entry.ino,
                    kind: file_type_kind(entry.file_type),
                    name: from..batch.names.len(),
                    next: offset + entry.rec_len as u64,
                });
            }
            at = (fbn + 1) * bs;
            if full {
                break;
            }
            if !batch.entries.is_empty() {
                batch.next = Some(at);
                break;
            }
        }
        // A volume without kinds in its entries, or an entry that leaves its kind open.
        for listed in batch.entries.iter_mut().filter(|listed| listed.kind.is_none()) {
            listed.kind = self.load(op, listed.ino).ok().map(|node| node.kind);
        }
        Ok(batch)
    }
}

impl Ext2 {
    pub(super) fn do_readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = plain(ino)?;
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

    pub(super) fn do_readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let dir = plain(ino)?;
        let mut at = Some(cursor.0);
        while let Some(from) = at {
            // References first, so that nothing listed can vanish; those not wanted are given
            // back after.
            let mut entries = Vec::new();
            let mut held = Vec::new();
            let listed = self.look(|st, op| {
                let batch = st.list(op, dir, from, PLUS_BATCH)?;
                for listed in &batch.entries {
                    let node = if batch.is_dots(listed) {
                        st.load(op, listed.ino)?
                    } else {
                        st.load_entry(op, dir, listed.ino)?
                    };
                    if !batch.is_dots(listed) {
                        node.refs += 1;
                        held.push(Ino(u64::from(node.ino)));
                    }
                    entries.push(node.entry(self.block_bytes));
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
