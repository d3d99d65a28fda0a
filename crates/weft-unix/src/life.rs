//! The end of files: truncation, inodes without names, deletion.
//!
//! Order of a cut: the inode's size, counts and own pointers change as one; then pointers
//! elsewhere that stay are cleared; then bitmap bits. A long file is cut in steps from its end,
//! each of which leaves it whole.
//!
//! An inode without a name lives on while it is referenced. If the format keeps a list of such
//! [orphans](crate::Orphans), a recovery finds it there; otherwise a crash leaks it.

use crate::Result;
use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::node::Patches;
use crate::state::State;
use std::sync::PoisonError;
use weft_patch::{Op, Owner, PatchId, about_to_wait};
use weft_vfs::{Error as FsError, FileKind, Ino};

/// Blocks of metadata that one step of a cut may change: bitmaps and descriptors, and blocks of the
/// file's map.
pub(crate) const CUT_META_BLOCKS: u32 = 64;

impl<F: Format> State<F> {
    /// Deletes an inode that has lost its last name, or notes that it has none while it is used.
    /// Returns the change of the inode.
    pub(crate) fn lost_last_name(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<PatchId> {
        self.settle_lowerings_of(op, ino)?;
        let used = self.node(ino)?.is_used();
        if !used && let Some(cleared) = self.delete_step(op, ino)? {
            return Ok(cleared);
        }
        self.mark_nameless(op, ino)?;
        let unlinked = self.node(ino)?.unlinked;
        let written = self.write_node(op, ino, &[unlinked])?;
        if !used {
            self.doomed.push(ino);
        }
        Ok(written)
    }

    /// Marks an inode as one without a name, which only its use keeps alive. The caller writes it.
    pub(crate) fn mark_nameless(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        self.nameless.insert(ino);
        self.format.add_orphan(op, &mut self.nodes, ino, self.policy)
    }

    /// Removes an inode, which got a name or is deleted, from the list of orphans. The caller
    /// writes it.
    pub(crate) fn mark_named(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        self.nameless.remove(&ino);
        self.format.remove_orphan(op, &mut self.nodes, ino)
    }

    /// Adds an inode that an earlier mount left on the list of orphans. If it has no name, it will
    /// be deleted.
    pub fn take_orphan(&mut self, node: crate::Node<F>) {
        let ino = node.ino;
        if node.inode.links == 0 {
            self.nameless.insert(ino);
            self.doomed.push(ino);
        }
        self.nodes.insert(node);
    }

    /// Deletes an inode that has lost its last name, unless it is used.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn doom(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        let node = self.load(op, ino)?;
        // Whoever holds it (by a handle of an earlier mount) may keep it.
        node.inode.links = 0;
        node.surplus = 0;
        if !node.is_used() {
            self.nameless.insert(ino);
            self.doomed.push(ino);
        }
        Ok(())
    }

    /// Returns the number of inodes that have no name and are not open, and of the blocks that they
    /// still hold. They are being deleted or about to be: deleting a long file takes several steps,
    /// and the kernel may send its FORGET after a STATFS. A program that removed a file counts on
    /// its space at once. (FreeBSD's soft updates count these as `fs_pendingblocks`.)
    pub(crate) fn being_deleted(&self) -> (u64, u64) {
        let nodes = self.nameless.iter().filter_map(|ino| self.nodes.get(*ino));
        nodes
            .filter(|node| node.opens == 0 && (node.refs == 0 || !node.unnamed))
            .fold((0, 0), |(inodes, blocks), node| {
                (inodes + 1, blocks + self.format.blocks_of(node))
            })
    }

    /// Deletes an inode that has no name and no user, or a part of a long one. Returns the change
    /// that cleared it if it is gone.
    pub(crate) fn delete_step(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<Option<PatchId>> {
        let block_bytes = u64::from(self.block_bytes);
        let (format, node) = self.with_node(ino)?;
        format.release_reserved(ino);
        node.epoch += 1;
        let (cut, left) = format.cut(op, node, 0, true)?;
        let unlinked = node.unlinked;
        if left > 0 {
            node.inode.size_bytes = node.inode.size_bytes.min(left * block_bytes);
            self.apply_cut(op, ino, cut, &[unlinked])?;
            return Ok(None);
        }
        node.inode.links = 0;
        node.inode.size_bytes = 0;
        self.mark_named(op, ino)?;
        let cleared = self.apply_cut(op, ino, cut, &[unlinked])?;
        let (format, node) = self.with_node(ino)?;
        format.free_inode(op, node, cleared)?;
        self.nodes.remove(ino);
        self.lazy.remove(&ino);
        Ok(Some(cleared))
    }

    /// Writes an inode whose tail has been cut off in memory, then frees what was cut. Returns
    /// the inode's patch.
    fn apply_cut(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        cut: F::Cut,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let written = self.write_node(op, ino, befores)?;
        self.format.finish_cut(op, ino, cut, written)?;
        Ok(written)
    }

    /// Sets a file's length in bytes, or brings it nearer to that. Returns whether it is done.
    ///
    /// # Errors
    /// [`FsError::TooLarge`], [`Error::Corrupt`](crate::Error::Corrupt).
    pub fn truncate_step(&mut self, op: &mut Op<'_>, ino: Ino, size: u64) -> Result<bool> {
        let block_bytes = u64::from(self.block_bytes);
        if size > self.file_max_bytes {
            return Err(FsError::TooLarge.into());
        }
        let old = self.node(ino)?.inode.size_bytes;
        if size > old {
            let mut befores = Patches::new();
            self.format.allow_size(op, size, &mut befores)?;
            befores.extend(self.zero_tail(op, ino, old, size, &[])?);
            let (format, node) = self.with_node(ino)?;
            node.epoch += 1;
            node.inode.size_bytes = size;
            node.modified(format);
            self.write_node(op, ino, &befores)?;
            return Ok(true);
        }
        let keep = size.div_ceil(block_bytes);
        let (format, node) = self.with_node(ino)?;
        format.release_reserved(ino);
        node.epoch += 1;
        node.modified(format);
        let (cut, left) = format.cut(op, node, keep, false)?;
        let done = left <= keep;
        node.inode.size_bytes = if done { size } else { old.min(left * block_bytes) };
        let written = self.apply_cut(op, ino, cut, &[])?;
        if done && size < old {
            // Nobody may see the rest of the last block again: also not after a crash, so not
            // before the new size.
            self.zero_tail(op, ino, size, size.next_multiple_of(block_bytes), &[written])?;
        }
        Ok(done)
    }

    /// Zeroes the bytes from `from` to `to` as far as they share a block with byte `from - 1`.
    pub(crate) fn zero_tail(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        from: u64,
        to: u64,
        befores: &[PatchId],
    ) -> Result<Option<PatchId>> {
        let block_bytes = u64::from(self.block_bytes);
        let end = to.min(from.next_multiple_of(block_bytes));
        if from.is_multiple_of(block_bytes) || from >= end {
            return Ok(None);
        }
        let (format, node) = self.with_node(ino)?;
        let Some(nr) = format.map(op, node, from / block_bytes, 1)?.start else {
            return Ok(None);
        };
        let zeroes = vec![0; usize::try_from(end - from).unwrap_or(0)];
        let at = usize::try_from(from % block_bytes).unwrap_or(0);
        Ok(Some(op.write_data(nr, Owner(ino.0), at, &zeroes, false, befores)?))
    }
}

impl<F: Format> UnixFs<F> {
    /// Deletes the inodes that have no name and no user any more.
    pub fn reap(&self) {
        if about_to_wait().is_err() {
            // Nothing was changed: whoever removed the last name of an inode deletes it.
            return;
        }
        let _deleting = self.deletions.read().unwrap_or_else(PoisonError::into_inner);
        while let Some(ino) = self.next_doomed() {
            // A step allocates nothing. If it asked for room, it would wait for the device on a nearly
            // full volume.
            let needs = [Need::Cut(ino, 0)];
            let result = self.change_without_room(CUT_META_BLOCKS, &needs, |st, op| {
                // It may have been found again meanwhile (a stale reference).
                match st.nodes.get(ino) {
                    Some(node) if !node.is_used() && node.inode.links == 0 => {}
                    _ => return Ok(true),
                }
                Ok(st.delete_step(op, ino)?.is_some())
            });
            match result {
                Ok(true) => {}
                Ok(false) => self.lock().doomed.push(ino),
                Err(e) => {
                    // Its space leaks until a check.
                    let mut st = self.lock();
                    st.nodes.remove(ino);
                    st.nameless.remove(&ino);
                    st.format.note_damage(format!("inode {} could not be deleted: {e}", ino.0));
                }
            }
        }
    }

    /// Deletes all inodes that have no name and no user, and waits for other threads that delete
    /// some.
    pub(crate) fn finish_deletions(&self) {
        if self.lock().nameless.is_empty() {
            return;
        }
        self.reap();
        drop(self.deletions.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn next_doomed(&self) -> Option<Ino> {
        self.lock().doomed.pop()
    }

    pub(crate) fn do_truncate(&self, ino: Ino, size: u64) -> Result<()> {
        loop {
            let needs = [Need::Cut(ino, size)];
            let done = self.change(CUT_META_BLOCKS, &needs, |st, op| {
                match st.load(op, ino)?.kind {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(FsError::IsADirectory.into()),
                    _ => return Err(FsError::Invalid("not a regular file").into()),
                }
                st.check_mutable(ino, false)?;
                st.truncate_step(op, ino, size)
            })?;
            if done {
                return Ok(());
            }
        }
    }
}
