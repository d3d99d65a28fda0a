//! What a file system that logs single inodes (btrfs) writes out of the order of the calls.
//!
//! A commit of such a file system holds all changes of names and inodes until then. An `fsync`
//! writes a log instead, of the inode and what belongs to it: its names, other inodes that had one
//! of these names before, new directories on the way to it; for a directory the inodes that got a
//! name in it. What is done to a logged inode afterwards changes the log at once, and is durable
//! with the next `fsync` of anything. A change that may be in a log waits for no other change.

use std::collections::{HashMap, HashSet};

use crate::calls::NodeNr;
use crate::effects::{Change, Effect};
use crate::model::{Unit, UnitNr};

/// A name in a directory.
type Name = (NodeNr, Vec<u8>);

/// The inodes that were logged since the last commit, and the changes that may be in the log.
#[derive(Default)]
pub(crate) struct InodeLog {
    /// The units that a commit orders, each with the number of such units of metadata before it.
    ordered: Vec<(UnitNr, usize)>,
    /// Those that may be durable without the units before them.
    loose: HashSet<UnitNr>,
    /// The units that are not loose, by the inodes that they change or name.
    touching: HashMap<NodeNr, Vec<UnitNr>>,
    /// The inodes that have had a name.
    owners: HashMap<Name, Vec<NodeNr>>,
    logged: HashSet<NodeNr>,
    made: HashSet<NodeNr>,
}

impl InodeLog {
    /// Whether an inode is in the log as it came into being.
    pub(crate) fn has_new(&self, node: NodeNr) -> bool {
        self.has(node) && self.made.contains(&node)
    }

    pub(crate) fn has(&self, node: NodeNr) -> bool {
        self.logged.contains(&node)
    }

    /// Notes a unit of metadata, or the size of a file, and that `before` units of metadata have
    /// come before.
    pub(crate) fn note(
        &mut self,
        unit: UnitNr,
        before: usize,
        units: &[Unit],
        effects: &[Effect],
        is_loose: bool,
    ) {
        self.ordered.push((unit, before));
        let mut is_loose = is_loose;
        let mut touched = Vec::new();
        let mut todo = Vec::new();
        for effect in &units[unit.index()].effects {
            match &effects[*effect as usize].change {
                Change::Name { dir, name, node, before } => {
                    let inodes = [*node, *before].into_iter().flatten();
                    touched.extend(inodes.clone().chain([*dir]));
                    is_loose |= inodes.clone().any(|inode| self.has(inode));
                    is_loose |= node.is_none() && self.has(*dir);
                    let owners = self.owners.entry((*dir, name.clone())).or_default();
                    owners.extend(inodes);
                    // A new name of a logged inode is logged as by an `fsync`.
                    if node.is_some_and(|node| self.logged.contains(&node)) {
                        todo.extend(owners.iter().chain(self.made.get(dir)));
                    }
                }
                change => {
                    let node = change.node();
                    touched.push(node);
                    is_loose |= self.has(node);
                    if matches!(change, Change::Node(_)) {
                        self.made.insert(node);
                    }
                }
            }
        }
        if is_loose {
            self.loose.insert(unit);
        } else {
            for node in touched {
                self.touching.entry(node).or_default().push(unit);
            }
        }
        self.log(todo, units, effects);
    }

    /// Logs an inode and what belongs to it.
    pub(crate) fn fsync(&mut self, node: NodeNr, units: &[Unit], effects: &[Effect]) {
        self.log(vec![node], units, effects);
    }

    fn log(&mut self, mut todo: Vec<NodeNr>, units: &[Unit], effects: &[Effect]) {
        let mut seen = HashSet::new();
        while let Some(inode) = todo.pop() {
            if !seen.insert(inode) {
                continue;
            }
            self.logged.insert(inode);
            for unit in self.touching.remove(&inode).unwrap_or_default() {
                self.loose.insert(unit);
                for effect in &units[unit.index()].effects {
                    let Change::Name { dir, name, node, before } =
                        &effects[*effect as usize].change
                    else {
                        continue;
                    };
                    todo.extend([*node, *before].into_iter().flatten());
                    if *dir != inode {
                        let name = (*dir, name.clone());
                        todo.extend(self.owners.get(&name).into_iter().flatten());
                        todo.extend(self.made.get(dir));
                    }
                }
            }
        }
    }

    /// Everything is durable.
    pub(crate) fn commit(&mut self) {
        self.touching.clear();
        self.owners.clear();
        self.logged.clear();
        self.made.clear();
    }

    /// Adds to what each unit requires the units before it in `chain`, all units of metadata in
    /// order, but for those that may be in the log.
    pub(crate) fn finish(self, chain: &[UnitNr], units: &mut [Unit]) {
        for (unit, before) in self.ordered.iter().filter(|(unit, _)| !self.loose.contains(unit)) {
            let call = units[unit.index()].call;
            let mut requires = Vec::new();
            for former in chain[..*before].iter().rev() {
                let is_durable = units[former.index()].durable_after.is_some_and(|c| c < call);
                let is_loose = self.loose.contains(former);
                if !(is_durable && is_loose) {
                    requires.push(*former);
                }
                if !is_loose {
                    break;
                }
            }
            let own = &mut units[unit.index()].requires;
            own.append(&mut requires);
            own.sort_unstable();
            own.dedup();
        }
    }
}
