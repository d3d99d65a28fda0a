//! Durability: of one file, of everything.
//!
//! A file is durable with its data, its map, its inode, the names it was given (or lost) lately,
//! and those of the directories above it: a file in a new directory, or in one that was moved, is
//! found after a crash only if all of the path is there.

use crate::Result;
use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::node::Node;
use crate::state::{LAZY_BATCH, State};
use hashbrown::HashSet;
use weft_patch::{Op, Owner, PatchId};
use weft_vfs::{FileKind, Ino};

impl<F: Format> State<F> {
    /// Returns the patches that must be durable with inode `ino`, beside the blocks it owns.
    fn sync_set(&self, op: &Op<'_>, ino: Ino) -> Vec<PatchId> {
        let mut patches = Vec::new();
        let mut seen = HashSet::new();
        let mut todo = vec![ino];
        while let Some(at) = todo.pop() {
            let Some(node) = self.nodes.get(&at) else { continue };
            if !seen.insert(at) {
                continue;
            }
            let mut add = |patch: PatchId| {
                if !op.is_durable(patch) {
                    patches.push(patch);
                }
            };
            add(node.patch);
            add(node.grown);
            for &(dir, patch) in &node.names {
                add(patch);
                todo.push(dir);
            }
            if at != self.root {
                todo.push(node.parent);
            }
        }
        patches
    }
}

impl<F: Format> State<F> {
    /// Returns the patches that must be durable for names in directory `dir` to be found from the
    /// root: those of the blocks it grew by, of its own name, and the same for the directories
    /// above it.
    pub(crate) fn way_to(&self, op: &Op<'_>, dir: Ino) -> Vec<PatchId> {
        let mut patches = Vec::new();
        let mut at = dir;
        // A loop on the disk must not become one here.
        for _ in 0..=self.format.limits().inodes_max {
            let Some(node) = self.nodes.get(&at) else { break };
            let changes = node.names.iter().map(|(_, patch)| *patch).chain([node.grown]);
            patches.extend(changes.filter(|patch| !op.is_durable(*patch)));
            if at == self.root {
                break;
            }
            at = node.parent;
        }
        patches
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        if !data_only && self.lock().lazy.contains(&ino) {
            self.change_only(1, &[Need::Inode(ino)], |st, op| {
                st.write_node(op, ino, &[])?;
                Ok(())
            })?;
        }
        let also = self.look(|st, op| {
            let named = |node: &Node<F>| node.kind == FileKind::Directory && node.inode.links > 0;
            if st.nodes.get(&ino).is_some_and(named) {
                st.parent_of(op, ino)?;
            }
            Ok(st.sync_set(op, ino))
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
        self.engine.sync()?;
        Ok(self.device.check_whole()?)
    }
}
