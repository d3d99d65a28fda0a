//! Durability: of one file, of everything.
//!
//! A file is durable with its data, its map, its inode, the names it was given (or lost) lately,
//! and those of the directories above it: a file in a new directory, or in one that was moved, is
//! found after a crash only if all of the path is there.

use crate::counts::SETTLE_BATCH;
use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::state::{LAZY_BATCH, State};
use crate::{Error, Result};
use hashbrown::HashSet;
use weft_patch::{Op, Owner, PatchId};
use weft_vfs::{Error as FsError, Ino};

impl<F: Format> State<F> {
    /// Returns the directory above an inode, if it is known or can be read. One that was dropped from
    /// memory is durable itself, and those above it may not be.
    fn above(&mut self, op: &mut Op<'_>, ino: Ino) -> Option<Ino> {
        if ino == self.root {
            return None;
        }
        let in_memory = self.nodes.get(ino).map(|node| node.parent);
        let known = in_memory.filter(|parent| *parent != Ino(0));
        let known = known.or_else(|| self.nodes.parent_of_dropped(ino));
        known.or_else(|| self.parent_of(op, ino).ok())
    }

    /// Returns the patches that must be durable with inode `ino`, beside the blocks it owns.
    fn sync_set(&mut self, op: &mut Op<'_>, ino: Ino) -> Vec<PatchId> {
        let mut patches = Vec::new();
        let mut seen = HashSet::new();
        let mut todo = vec![ino];
        while let Some(at) = todo.pop() {
            if !seen.insert(at) {
                continue;
            }
            if let Some(node) = self.nodes.get(at) {
                let names = node.names.iter().map(|(_, patch)| patch);
                let all = names.chain([node.patch, node.grown]);
                patches.extend(all.filter(|patch| !op.is_durable(*patch)));
                todo.extend(node.names.iter().map(|(dir, _)| dir));
            }
            todo.extend(self.above(op, at));
        }
        patches
    }

    /// Returns the removals of old names of directory `dir` and of those above it that may not be
    /// durable. A directory that moves below them follows these: an old name may be in a directory below
    /// the one that moves, which would contain itself then.
    pub(crate) fn removals_above(&mut self, op: &mut Op<'_>, dir: Ino) -> Vec<PatchId> {
        let mut patches = Vec::new();
        let mut at = dir;
        // A loop on the disk must not become one here.
        for _ in 0..=self.format.limits().inodes_max {
            if let Some(node) = self.nodes.get(at) {
                patches.extend(node.names.removals().filter(|patch| !op.is_durable(*patch)));
            }
            match self.above(op, at) {
                Some(above) => at = above,
                None => break,
            }
        }
        patches
    }

    /// Returns the patches that must be durable for names in directory `dir` to be found from the
    /// root: those of the blocks it grew by, of its own name, and the same for the directories
    /// above it.
    pub(crate) fn way_to(&mut self, op: &mut Op<'_>, dir: Ino) -> Vec<PatchId> {
        let mut patches = Vec::new();
        let mut at = dir;
        // A loop on the disk must not become one here.
        for _ in 0..=self.format.limits().inodes_max {
            if let Some(node) = self.nodes.get_mut(at) {
                let before = patches.len();
                let changes = node.names.iter().map(|(_, patch)| patch).chain([node.grown]);
                patches.extend(changes.filter(|patch| !op.is_durable(*patch)));
                node.relied_on |= patches.len() > before;
            }
            match self.above(op, at) {
                Some(above) => at = above,
                None => break,
            }
        }
        patches
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let waits = |st: &State<F>| st.lazy.contains(&ino) || st.deferred.contains(&ino);
        if !data_only && waits(&self.lock()) {
            self.change_only(1, &[Need::Inode(ino)], |st, op| {
                st.settle_lowerings(op, ino)?;
                if st.lazy.contains(&ino) {
                    st.write_node(op, ino, &[])?;
                }
                Ok(())
            })?;
        }
        let also = self.look(|st, op| match st.load(op, ino) {
            // One without a name that is gone has nothing to be found by.
            Ok(_) | Err(Error::Vfs(FsError::Stale(_))) => Ok(st.sync_set(op, ino)),
            Err(e) => Err(e),
        })?;
        self.engine.sync_owner(Owner(ino.0), &also)?;
        // Where nothing was dirty, nobody has looked.
        Ok(self.device.check_whole()?)
    }

    pub(crate) fn do_sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        loop {
            let more = self.change_only(1 + LAZY_BATCH as u32, &[Need::Lazy], |st, op| {
                st.write_lazy(op)?;
                if st.lazy.is_empty() {
                    st.format.write_summary(op)?;
                }
                Ok(!st.lazy.is_empty())
            })?;
            if !more {
                break;
            }
        }
        let deferred: Vec<Ino> = self.lock().deferred.iter().copied().collect();
        for some in deferred.chunks(SETTLE_BATCH) {
            let needs: Vec<Need<'_>> = some.iter().map(|ino| Need::Inode(*ino)).collect();
            self.change_only(SETTLE_BATCH as u32, &needs, |st, op| {
                some.iter().try_for_each(|ino| st.settle_lowerings(op, *ino))
            })?;
        }
        self.engine.sync()?;
        Ok(self.device.check_whole()?)
    }
}
