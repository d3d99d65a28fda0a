//! The end of files: truncation, inodes without names, orphans.
//!
//! Order of a cut: the inode's size, counts and direct pointers change as one; then the pointers
//! in indirect blocks that stay are cleared; then bitmap bits. A long file is cut in steps from
//! its end, each of which leaves it whole.
//!
//! An inode without a name lives on while it is referenced. Under a journal it is on the
//! superblock's chain of orphans (each links to the next through its deletion time), so that a
//! recovery finds it; in soft updates it is just leaked by a crash, as its deletion time tells.

use super::{Ext2, Node, State};
use crate::volume::Cut;
use crate::{Error, Result};
use std::sync::PoisonError;
use weft_patch::{BlockNr, Op, Owner, PatchId, Policy};
use weft_vfs::{Error as FsError, FileKind, Time};

/// Blocks freed by one operation, about.
const CUT_BLOCKS: u64 = 16_384;
/// Blocks of metadata that this may change: bitmaps and descriptors, and indirect blocks.
pub(super) const CUT_META_BLOCKS: u32 = 64;

fn now_secs() -> u32 {
    u32::try_from(Time::now().secs.clamp(1, i64::from(u32::MAX))).unwrap_or(1)
}

impl State {
    /// An inode's last name is gone. Returns the change that says so in the inode.
    pub(super) fn lost_last_name(&mut self, op: &mut Op<'_>, ino: u32) -> Result<PatchId> {
        let node = self.node(ino)?;
        let used = node.refs > 0 || node.opens > 0;
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

    /// Says in an inode that it has no name and lives by its use alone. The caller writes it.
    pub(super) fn mark_nameless(&mut self, op: &mut Op<'_>, ino: u32) -> Result<()> {
        self.nameless.insert(ino);
        if matches!(self.policy, Policy::Journal(_)) {
            let next = std::mem::replace(&mut self.vol.sb.last_orphan, ino);
            self.node(ino)?.inode.dtime = next;
            self.vol.write_last_orphan(op)?;
            self.orphans.push(ino);
        } else {
            self.node(ino)?.inode.dtime = now_secs();
        }
        Ok(())
    }

    /// Takes an inode off the chain of orphans: it got a name, or is deleted.
    pub(super) fn unchain(&mut self, op: &mut Op<'_>, ino: u32) -> Result<()> {
        self.nameless.remove(&ino);
        let Some(at) = self.orphans.iter().position(|&o| o == ino) else { return Ok(()) };
        self.orphans.remove(at);
        let next = if at == 0 { 0 } else { self.orphans[at - 1] };
        // The list is in the order of the chain's making: who links to this one is behind it.
        match self.orphans.get(at).copied() {
            None => {
                self.vol.sb.last_orphan = next;
                self.vol.write_last_orphan(op)?;
            }
            Some(previous) => {
                if let Some(node) = self.nodes.get_mut(&previous) {
                    node.inode.dtime = next;
                    self.write_node(op, previous, &[])?;
                }
            }
        }
        Ok(())
    }

    /// The number of inodes that have no name and are not open, and of the blocks that they still
    /// hold. They are being deleted or about to be: deleting a long file takes several steps, and the
    /// kernel may send its FORGET after a STATFS. A program that removed a file counts on its space at
    /// once. (FreeBSD's soft updates count these as `fs_pendingblocks`.)
    pub(super) fn being_deleted(&self) -> (u64, u64) {
        let units = u64::from(self.vol.geometry.block_bytes / 512);
        let nodes = self.nameless.iter().filter_map(|ino| self.nodes.get(ino));
        let going = |node: &&Node| node.opens == 0 && (node.refs == 0 || !node.unnamed);
        nodes.filter(going).fold((0, 0), |(inodes, blocks), node| {
            // Others may share the block of attributes.
            let shared = u64::from(node.inode.file_acl != 0);
            (inodes + 1, blocks + (u64::from(node.inode.blocks_512) / units).saturating_sub(shared))
        })
    }

    /// Deletes an inode that nothing names or uses, or a part of a long one; returns the
    /// change that cleared it if it is gone.
    pub(super) fn delete_step(&mut self, op: &mut Op<'_>, ino: u32) -> Result<Option<PatchId>> {
        let block_bytes = self.vol.geometry.block_bytes;
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        vol.drop_window(ino);
        node.epoch += 1;
        let cut = if node.inode.has_blocks(block_bytes) {
            vol.cut(op, node, 0, CUT_BLOCKS)?
        } else {
            Cut::default()
        };
        let unlinked = node.unlinked;
        if cut.from > 0 {
            node.inode.size_bytes = node.inode.size_bytes.min(cut.from * u64::from(block_bytes));
            self.apply_cut(op, ino, &cut, &[unlinked])?;
            return Ok(None);
        }
        self.unchain(op, ino)?;
        let node = self.node(ino)?;
        let acl = std::mem::take(&mut node.inode.file_acl);
        let kind = node.kind;
        node.inode.links = 0;
        node.inode.dtime = now_secs();
        node.inode.size_bytes = 0;
        node.inode.block = Default::default();
        let cleared = self.apply_cut(op, ino, &cut, &[unlinked])?;
        if acl != 0 && self.vol.is_data_block(acl) {
            self.vol.release_xattr_block(op, acl, cleared)?;
        }
        self.vol.free_inode(op, ino, Some(kind), cleared)?;
        self.nodes.remove(&ino);
        self.lazy.remove(&ino);
        Ok(Some(cleared))
    }

    /// Writes an inode whose tail has been cut off in memory, then frees what was cut. Returns
    /// the inode's patch.
    fn apply_cut(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        cut: &Cut,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let units = u64::from(self.vol.geometry.block_bytes / 512);
        let node = self.node(ino)?;
        let freed = u32::try_from(cut.count * units).unwrap_or(u32::MAX);
        node.inode.blocks_512 = node.inode.blocks_512.saturating_sub(freed);
        let written = self.write_node(op, ino, befores)?;
        let vol = &mut self.vol;
        let mut cleared = written;
        if !cut.clears.is_empty() {
            let mut clears = vec![written];
            for &range in &cut.clears {
                clears.push(vol.clear_pointers(op, ino, range, &[written])?);
            }
            cleared = op.join(&clears)?;
        }
        // Indirect blocks first: what waits for data is cancelled with them.
        for &nr in &cut.meta {
            vol.free_blocks(op, nr, 1, cleared)?;
        }
        for &(start, len) in cut.data.iter().rev() {
            vol.free_blocks(op, start, len, cleared)?;
        }
        Ok(written)
    }

    /// Sets a file's length, or brings it nearer; says whether it is done.
    pub(super) fn truncate_step(&mut self, op: &mut Op<'_>, ino: u32, size: u64) -> Result<bool> {
        let block_bytes = u64::from(self.vol.geometry.block_bytes);
        if size > self.vol.geometry.max_file_bytes() {
            return Err(FsError::TooLarge.into());
        }
        let old = self.node(ino)?.inode.size_bytes;
        if size > old {
            let mut befores = self.need_large_file(op, size)?;
            befores.extend(self.zero_tail(op, ino, old, size, &[])?);
            let node = self.node(ino)?;
            node.epoch += 1;
            node.inode.size_bytes = size;
            node.modified();
            self.write_node(op, ino, &befores)?;
            return Ok(true);
        }
        let keep = size.div_ceil(block_bytes);
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        vol.drop_window(ino);
        node.goal = 0;
        node.epoch += 1;
        node.modified();
        let cut = vol.cut(op, node, keep, CUT_BLOCKS)?;
        let done = cut.from <= keep;
        node.inode.size_bytes = if done { size } else { old.min(cut.from * block_bytes) };
        let written = self.apply_cut(op, ino, &cut, &[])?;
        if done && size < old {
            // Nobody may see the rest of the last block again: also not after a crash, so not
            // before the new size.
            self.zero_tail(op, ino, size, size.next_multiple_of(block_bytes), &[written])?;
        }
        Ok(done)
    }

    /// Zeroes the bytes from `from` to `to` as far as they share a block with byte `from - 1`.
    pub(super) fn zero_tail(
        &mut self,
        op: &mut Op<'_>,
        ino: u32,
        from: u64,
        to: u64,
        befores: &[PatchId],
    ) -> Result<Option<PatchId>> {
        let block_bytes = u64::from(self.vol.geometry.block_bytes);
        let end = to.min(from.next_multiple_of(block_bytes));
        if from.is_multiple_of(block_bytes) || from >= end {
            return Ok(None);
        }
        let Self { vol, nodes, .. } = self;
        let node = nodes.get_mut(&ino).ok_or(FsError::Stale(u64::from(ino)))?;
        let (nr, _) = vol.map_run(op, node, from / block_bytes, 1)?;
        if nr == 0 {
            return Ok(None);
        }
        let zeroes = vec![0; usize::try_from(end - from).unwrap_or(0)];
        let at = usize::try_from(from % block_bytes).unwrap_or(0);
        let owner = Owner(u64::from(ino));
        let nr = BlockNr(u64::from(nr));
        Ok(Some(op.write_data(nr, owner, at, &zeroes, false, befores)?))
    }

    /// Sets the `large_file` feature before a file reaches 2 GiB.
    pub(super) fn need_large_file(
        &mut self,
        op: &mut Op<'_>,
        size: u64,
    ) -> Result<crate::volume::Patches> {
        use crate::layout::RoCompat;
        let mut befores = crate::volume::Patches::new();
        let features = self.vol.sb.features.ro_compat;
        if size <= u64::from(i32::MAX.unsigned_abs()) || features.contains(RoCompat::LARGE_FILE) {
            return Ok(befores);
        }
        if self.vol.sb.revision == 0 {
            return Err(FsError::TooLarge.into());
        }
        self.vol.sb.features.ro_compat |= RoCompat::LARGE_FILE;
        self.vol.geometry.features = self.vol.sb.features;
        befores.push(self.vol.write_sb(op, &[])?);
        Ok(befores)
    }

    /// Reads the chain of orphans of a volume that was not unmounted: those without names are
    /// doomed; of the others the part past their length is cut off.
    pub(super) fn load_orphans(&mut self, op: &mut Op<'_>) -> Result<Vec<u32>> {
        let mut next = self.vol.sb.last_orphan;
        let mut to_cut = Vec::new();
        let mut seen = hashbrown::HashSet::new();
        while next != 0 {
            if !seen.insert(next) {
                self.vol.note_damage("the chain of orphan inodes is a loop".into());
                break;
            }
            let ino = next;
            let inode = match self.vol.read_inode(op, ino) {
                Ok(inode) if ino >= self.vol.geometry.first_inode => inode,
                _ => {
                    self.vol.note_damage(format!("inode {ino} in the chain of orphans is none"));
                    break;
                }
            };
            next = inode.dtime;
            let Some(kind) = inode.kind() else {
                self.vol.note_damage(format!("inode {ino} in the chain of orphans is none"));
                break;
            };
            let links = inode.links;
            let node = super::Node::new(ino, kind, inode);
            self.nodes.insert(ino, node);
            self.orphans.insert(0, ino);
            if links == 0 {
                self.nameless.insert(ino);
                self.doomed.push(ino);
            } else if kind == FileKind::Regular {
                to_cut.push(ino);
            }
        }
        Ok(to_cut)
    }
}

impl Ext2 {
    /// Deletes the inodes that nothing names or uses any more.
    pub(super) fn reap(&self) {
        let _deleting = self.deletions.read().unwrap_or_else(PoisonError::into_inner);
        while let Some(ino) = self.next_doomed() {
            // A step allocates nothing. If it asked for room, it would wait for the device on a nearly
            // full volume.
            let result = self.change_without_room(CUT_META_BLOCKS, |st, op| {
                // It may have been found again meanwhile (a stale reference).
                match st.nodes.get(&ino) {
                    Some(node) if node.refs == 0 && node.opens == 0 && node.inode.links == 0 => {}
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
                    st.nodes.remove(&ino);
                    st.nameless.remove(&ino);
                    st.vol.note_damage(format!("inode {ino} could not be deleted: {e}"));
                }
            }
        }
    }

    /// Deletes all inodes that have no name and no user, and waits for other threads that delete some.
    /// Returns whether there were inodes without names.
    pub(super) fn finish_deletions(&self) -> bool {
        if self.lock().nameless.is_empty() {
            return false;
        }
        self.reap();
        drop(self.deletions.write().unwrap_or_else(PoisonError::into_inner));
        true
    }

    fn next_doomed(&self) -> Option<u32> {
        self.lock().doomed.pop()
    }

    /// Ends the life of the orphans of the last mount.
    pub(super) fn recover_orphans(&self) -> Result<()> {
        let to_cut = self.look(super::State::load_orphans)?;
        for ino in to_cut {
            loop {
                let done = self.change_inner(CUT_META_BLOCKS, |st, op| {
                    let size = st.node(ino)?.inode.size_bytes;
                    st.truncate_step(op, ino, size)
                })?;
                if done {
                    break;
                }
            }
            self.change_inner(8, |st, op| {
                st.unchain(op, ino)?;
                st.node(ino)?.inode.dtime = 0;
                st.write_node(op, ino, &[])?;
                Ok(())
            })?;
        }
        self.reap();
        self.change_inner(2, |st, op| {
            if st.vol.sb.last_orphan != 0 {
                st.vol.sb.last_orphan = 0;
                st.vol.write_last_orphan(op)?;
            }
            Ok::<(), Error>(())
        })
    }
}
