//! Link counts under soft updates: raised before a name is there, lowered when it is gone for certain.
//!
//! A count on the volume may be too high, never too low. A lowering that waits for the removal of a
//! name, as a patch of the graph, would have the next raising of the same count wait for it, and the
//! next name for that: inodes and directories that change again and again would wait for each other in
//! turns, a round of write-back for each change. So a lowering is *put off*: the inode as written
//! ([`Inode::links`](crate::Inode)) counts what may be on the volume, and [`Node::links`] what is there
//! now. When the removals are durable the count is lowered with the next write of the inode, or when
//! there is nothing else to write; a sync makes a change of it that follows the removals.
//!
//! A patch that only a lowering waits for is unknown to the graph, and is cancelled with its block when
//! a directory is deleted. So the deletion of a directory first makes changes of the lowerings that wait
//! for changes in it ([`State::settle_lowerings_of`]).

use crate::Result;
use crate::format::{Format, Inodes};
use crate::node::{Node, Patches, push_patch};
use crate::state::State;
use smallvec::SmallVec;
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{FileKind, Ino};

/// Inodes with lowerings that are put off; those of further inodes become changes at once.
const DEFERRED_MAX: usize = 1024;
/// Inodes of whose lowerings one operation makes changes.
pub(crate) const SETTLE_BATCH: usize = 32;

/// A lowering of a link count that is put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Removal {
    /// The patches after which fewer names count.
    pub patches: [PatchId; 2],
    /// The directories in whose blocks these are; inode 0 for others.
    pub dirs: [Ino; 2],
}

impl Removal {
    /// The removal of a name of directory `dir`.
    pub fn of_name(dir: Ino, cleared: PatchId) -> Self {
        Self { patches: [cleared, PatchId::DURABLE], dirs: [dir, Ino(0)] }
    }

    /// The end of an inode that counted on another one.
    pub fn of_inode(gone: PatchId) -> Self {
        Self { patches: [gone, PatchId::DURABLE], dirs: [Ino(0); 2] }
    }

    fn is_durable(&self, op: &Op<'_>) -> bool {
        self.patches.iter().all(|patch| op.is_durable(*patch))
    }
}

/// The lowerings of one inode's count that are put off.
#[derive(Debug, Default)]
pub(crate) struct Lowerings(SmallVec<[(Removal, u32); 0]>);

impl Lowerings {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, removal: Removal) {
        match self.0.iter_mut().rev().find(|(other, _)| *other == removal) {
            Some((_, count)) => *count += 1,
            None => self.0.push((removal, 1)),
        }
    }

    /// Takes one lowering back that waits for the removal of a name. Returns false if there is none.
    fn take_back(&mut self, dir: Ino, cleared: PatchId) -> bool {
        let found = self.0.iter().rposition(|(removal, _)| {
            removal.patches[0].is_with(cleared)
                && removal.patches[1] == PatchId::DURABLE
                && removal.dirs[0] == dir
        });
        let Some(at) = found else { return false };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
        true
    }

    /// Takes those whose removals are durable. Returns how many they are.
    fn take_durable(&mut self, op: &Op<'_>) -> u32 {
        let mut count = 0;
        self.0.retain(|(removal, n)| {
            let durable = removal.is_durable(op);
            count += if durable { *n } else { 0 };
            !durable
        });
        count
    }

    /// Takes all of them. Returns the patches that they wait for.
    fn take_all(&mut self, op: &Op<'_>) -> Patches {
        let mut patches = Patches::new();
        for patch in self.0.drain(..).flat_map(|(removal, _)| removal.patches) {
            if !op.is_durable(patch) && !patches.contains(&patch) {
                push_patch(&mut patches, patch);
            }
        }
        patches
    }

    fn wait_for(&self, dir: Ino) -> bool {
        self.0.iter().any(|(removal, _)| removal.dirs.contains(&dir))
    }
}

impl<F: Inodes> Node<F> {
    /// Returns the number of its names, and of the entries `.` and `..` that name it. The inode as
    /// written may count more.
    #[must_use]
    pub fn links(&self) -> u32 {
        self.inode.links.saturating_sub(self.surplus)
    }

    /// Counts one name less at once: the volume has none that counts on it.
    pub(crate) fn drop_surplus(&mut self) {
        self.inode.links = self.inode.links.saturating_sub(1);
        self.surplus = self.surplus.saturating_sub(1);
    }

    /// Lowers the count to 0. Returns the removals that must be durable before.
    pub(crate) fn end_links(&mut self, op: &Op<'_>) -> Patches {
        self.inode.links = 0;
        self.surplus = 0;
        self.lowerings.take_all(op)
    }

    /// Takes back the lowering that waits for the removal of a name which is there again, in the patch
    /// that removed it: a write has both or neither. Returns whether there was one.
    pub(crate) fn keep_count(&mut self, dir: Ino, cleared: PatchId) -> bool {
        let found = self.lowerings.take_back(dir, cleared);
        if found {
            self.drop_surplus();
        }
        found
    }

    /// Lowers the count by those lowerings whose removals are durable.
    fn lower_durable(&mut self, op: &Op<'_>) {
        if !self.lowerings.is_empty() {
            let count = self.lowerings.take_durable(op);
            self.inode.links = self.inode.links.saturating_sub(count);
            self.surplus = self.surplus.saturating_sub(count);
        }
    }
}

impl<F: Format> State<F> {
    /// Lowers the count in memory by what is durable, before the inode is written.
    pub(crate) fn lower_durable(&mut self, op: &Op<'_>, ino: Ino) {
        let Some(node) = self.nodes.get_mut(ino) else { return };
        if node.lowerings.is_empty() {
            return;
        }
        node.lower_durable(op);
        if node.lowerings.is_empty() {
            self.deferred.remove(&ino);
        }
    }

    /// Makes room for one more in the count of an inode as written.
    pub(crate) fn make_countable(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        let links_max = self.format.limits().links_max;
        let node = self.node(ino)?;
        if node.inode.links < links_max || node.lowerings.is_empty() {
            return Ok(());
        }
        self.settle_lowerings(op, ino)
    }

    /// Lowers a count after a removal, and writes the inode.
    pub(crate) fn lower(&mut self, op: &mut Op<'_>, ino: Ino, removal: Removal) -> Result<()> {
        let puts_off = self.puts_off();
        let node = self.node(ino)?;
        // A directory counts its `.` and a name, whatever the volume says.
        let least = if node.kind == FileKind::Directory { 2 } else { 0 };
        if node.links() <= least {
            return self.write_node(op, ino, &removal.patches).map(drop);
        }
        if puts_off {
            node.surplus += 1;
            return self.lower_surplus(op, ino, removal);
        }
        node.inode.links -= 1;
        self.write_node(op, ino, &removal.patches).map(drop)
    }

    /// Lowers a count, which is one too high, after a removal, and writes the inode.
    pub(crate) fn lower_surplus(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        removal: Removal,
    ) -> Result<()> {
        if removal.is_durable(op) {
            self.node(ino)?.drop_surplus();
            return self.write_node(op, ino, &[]).map(drop);
        }
        self.write_node(op, ino, &[])?;
        for dir in removal.dirs {
            if let Some(dir) = self.nodes.get_mut(dir) {
                dir.holds_lowerings = true;
            }
        }
        self.node(ino)?.lowerings.add(removal);
        self.deferred.insert(ino);
        if self.deferred.len() <= DEFERRED_MAX {
            return Ok(());
        }
        // A search of all is not for each change.
        if self.changes.is_multiple_of(DEFERRED_MAX as u64 / 4) {
            self.settle_durable(op)?;
        }
        if self.deferred.len() > DEFERRED_MAX {
            self.settle_lowerings(op, ino)?;
        }
        Ok(())
    }

    /// Lowers the counts whose removals are all durable.
    pub(crate) fn settle_durable(&mut self, op: &mut Op<'_>) -> Result<()> {
        let all: Vec<Ino> = self.deferred.iter().copied().collect();
        for ino in all {
            let Some(node) = self.nodes.get(ino) else {
                self.deferred.remove(&ino);
                continue;
            };
            if node.lowerings.0.iter().all(|(removal, _)| removal.is_durable(op)) {
                self.deferred.remove(&ino);
                self.write_node(op, ino, &[])?;
            }
        }
        Ok(())
    }

    /// Makes the lowerings of an inode's count a change that follows the removals.
    pub(crate) fn settle_lowerings(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<()> {
        self.deferred.remove(&ino);
        let Some(node) = self.nodes.get_mut(ino) else { return Ok(()) };
        if node.lowerings.is_empty() {
            return Ok(());
        }
        let count: u32 = node.lowerings.0.iter().map(|(_, n)| n).sum();
        let removals = node.lowerings.take_all(op);
        node.inode.links = node.inode.links.saturating_sub(count);
        node.surplus = node.surplus.saturating_sub(count);
        self.write_node(op, ino, &removals).map(drop)
    }

    /// Makes changes of the lowerings that wait for changes in a directory which is being deleted.
    pub(crate) fn settle_lowerings_of(&mut self, op: &mut Op<'_>, dir: Ino) -> Result<()> {
        if !std::mem::take(&mut self.node(dir)?.holds_lowerings) {
            return Ok(());
        }
        let waits = |ino: &Ino| self.nodes.get(*ino).is_some_and(|n| n.lowerings.wait_for(dir));
        let waiting: Vec<Ino> = self.deferred.iter().copied().filter(waits).collect();
        waiting.into_iter().try_for_each(|ino| self.settle_lowerings(op, ino))
    }

    /// Reports whether lowerings are put off under this policy: elsewhere they need no order.
    pub(crate) fn puts_off(&self) -> bool {
        self.policy == Policy::Soft
    }
}
