//! Names that a file system with logs of single inodes (btrfs) can bring back, or lose, as a log has the
//! names of its inodes and not those of all others that had them before.

use super::Builder;
use crate::calls::{Action, Call, CallNr, NodeNr};
use crate::effects::{Change, Effect};
use crate::model::UnitNr;

impl Builder<'_> {
    /// The log of an inode has its names, not those that it had in the meantime: by the commit before,
    /// one of them may be that of another inode, until a later commit or the log of the directory.
    pub(super) fn restore_passed(&mut self, nr: CallNr, node: NodeNr) {
        for (name, old) in self.log.passed(node, &self.units, &self.effects) {
            self.restore(nr, name, old, None);
        }
    }

    /// An inode that is in the log and is removed leaves the log, and with it what the log had of its name:
    /// by the commit before, that may be another inode's. Not if the directory was fsynced since the other
    /// lost it: that it is gone is in the directory's log.
    pub(super) fn restore_removed(&mut self, nr: CallNr, call: &Call) {
        let Action::Remove { at, node, is_dir: false } = &call.action else { return };
        if !self.model.logs_single_inodes() || !self.log.has(*node) {
            return;
        }
        // Its unit is the last one.
        let removal = self.units.len().checked_sub(1).map(|last| UnitNr(last as u32));
        let name = (at.dir, at.name.clone());
        for old in self.log.others_of(&name, *node, &self.units, &self.effects) {
            self.restore(nr, name.clone(), old, removal);
        }
    }

    /// Gives a name back to an inode that had it before, and takes it away again: two units, of which a
    /// power cut may leave the first alone. `after` must be durable before.
    fn restore(
        &mut self,
        nr: CallNr,
        (dir, name): (NodeNr, Vec<u8>),
        old: NodeNr,
        after: Option<UnitNr>,
    ) {
        let made = [dir, old].map(|node| self.nodes.get(&node).and_then(|n| n.made));
        let mut requires: Vec<_> = made.into_iter().flatten().chain(after).collect();
        for (node, before) in [(Some(old), None), (None, Some(old))] {
            let change = Change::Name { dir, name: name.clone(), node, before };
            let effect = self.effects.len() as u32;
            self.effects.push(Effect { call: nr, change });
            requires = vec![self.push(nr, vec![effect], requires)];
        }
        self.node(dir).metadata.append(&mut requires);
    }

    /// A new file that is in the log leaves it when another replaces it. That one, if it was never
    /// logged, is not put into it: the next `fsync` of anything may leave neither.
    pub(super) fn forget_replaced(&mut self, nr: CallNr, call: &Call) {
        let Action::Rename { to, node, replaced: Some(replaced), exchange: false, .. } =
            &call.action
        else {
            return;
        };
        if self.model.logs_single_inodes() && self.log.has_new(*replaced) && !self.log.has(*node) {
            let (dir, name) = (to.dir, to.name.clone());
            let change = Change::Name { dir, name, node: None, before: Some(*replaced) };
            let effect = self.effects.len() as u32;
            self.effects.push(Effect { call: nr, change });
            let made = [dir, *replaced].map(|node| self.nodes.get(&node).and_then(|n| n.made));
            self.push(nr, vec![effect], made.into_iter().flatten().collect());
        }
    }
}
