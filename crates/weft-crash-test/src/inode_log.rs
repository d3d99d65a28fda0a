//! What a file system that logs single inodes (btrfs) writes out of the order of the calls.
//!
//! A commit of such a file system holds all changes of names and inodes until then. An `fsync`
//! writes a log instead, of the inode and what belongs to it: its names, other inodes that had one
//! of these names before, new directories on the way to it; for a directory the inodes that got a
//! name in it. What is done to a logged inode afterwards changes the log at once, and is durable
//! with the next `fsync` of anything. A change that may be in a log waits for no other change, with
//! one exception: of a directory that was fsynced the log holds each later `rename` in it
//! (`btrfs_log_new_name`), and what it holds is written as a whole. A later removal in the directory
//! can be in the log only if the directory still is, and then the `rename` is too.
//!
//! That a logged *file* has a new name is not in the log for certain: a commit, which happens at any
//! time, ends what is logged. A later `fsync` of another file does not bring it then.

use std::collections::{HashMap, HashSet};

use crate::calls::NodeNr;
use crate::effects::{Change, Effect};
use crate::model::{Unit, UnitNr};

/// The most renames that later changes are held to, and the most inodes that are followed to find what
/// an `fsync` releases: of more, the model allows more than it must, so that its cost is bounded.
const RENAMES_MAX: usize = 64;
const RELEASED_MAX: usize = 1000;

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
    /// The inodes that have a name now, where it was changed.
    holders: HashMap<Name, Option<NodeNr>>,
    logged: HashSet<NodeNr>,
    made: HashSet<NodeNr>,
    /// Directories that were fsynced.
    directories: HashSet<NodeNr>,
    /// For each directory that was fsynced, the number of units before its last `fsync`: its log has the
    /// removals of names that are among them.
    synced: HashMap<NodeNr, usize>,
    /// The renames in such a directory, which its log holds if it holds anything later.
    renames: Vec<(UnitNr, NodeNr)>,
    /// The renames that each later change in such a directory requires, until the log may hold that change
    /// without the directory.
    held: HashMap<UnitNr, Vec<UnitNr>>,
    /// All units by the inodes that they change or name.
    all: HashMap<NodeNr, Vec<UnitNr>>,
}

/// The changes of names of a unit that changes nothing else, all in one directory.
struct Names {
    dir: NodeNr,
    is_rename: bool,
    inodes: Vec<NodeNr>,
}

impl Names {
    fn new(unit: &Unit, effects: &[Effect]) -> Option<Self> {
        let mut dirs = HashSet::new();
        let (mut removed, mut named, mut inodes) = (None, None, Vec::new());
        for effect in &unit.effects {
            let Change::Name { dir, node, before, .. } = &effects[*effect as usize].change else {
                return None;
            };
            dirs.insert(*dir);
            inodes.extend([*node, *before].into_iter().flatten());
            match node {
                Some(node) => named = Some(*node),
                None => removed = *before,
            }
        }
        let [dir] = dirs.into_iter().collect::<Vec<_>>()[..] else { return None };
        Some(Self { dir, is_rename: named.is_some() && named == removed, inodes })
    }
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
        self.note_in_directory(unit, units, effects);
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
                    self.holders.insert((*dir, name.clone()), *node);
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
        for node in &touched {
            self.all.entry(*node).or_default().push(unit);
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

    /// Notes what a change in a directory that was fsynced requires. A name that is changed again may
    /// be missing in the log, and an inode that was logged has its names there by itself.
    fn note_in_directory(&mut self, unit: UnitNr, units: &[Unit], effects: &[Effect]) {
        let changed = |unit: &Unit| -> HashSet<Name> {
            let changes = unit.effects.iter().map(|e| &effects[*e as usize].change);
            let names = changes.filter_map(|change| match change {
                Change::Name { dir, name, .. } => Some((*dir, name.clone())),
                _ => None,
            });
            names.collect()
        };
        let own = changed(&units[unit.index()]);
        if !own.is_empty() {
            self.renames.retain(|(rename, _)| changed(&units[rename.index()]).is_disjoint(&own));
        }
        let Some(names) = Names::new(&units[unit.index()], effects) else { return };
        if !self.directories.contains(&names.dir) {
            return;
        }
        if !names.inodes.iter().any(|inode| self.has(*inode)) {
            let before = self.renames.iter().filter(|(_, dir)| *dir == names.dir);
            self.held.insert(unit, before.map(|(rename, _)| *rename).collect());
        }
        if names.is_rename {
            self.renames.push((unit, names.dir));
            if self.renames.len() > RENAMES_MAX {
                self.renames.remove(0);
            }
        }
    }

    /// Logs an inode and what belongs to it.
    pub(crate) fn fsync(&mut self, node: NodeNr, is_dir: bool, units: &[Unit], effects: &[Effect]) {
        if is_dir {
            self.release_all();
            self.synced.insert(node, units.len());
        }
        self.log(vec![node], units, effects);
        // A new directory may be in the log without what is in it.
        if is_dir && !self.made.contains(&node) {
            self.directories.insert(node);
        }
    }

    /// The names that an inode had in the meantime, and nothing has now, each with an inode that had
    /// it before: what is logged of an inode are the names it has, so that the other is not missed.
    pub(crate) fn passed(
        &self,
        node: NodeNr,
        units: &[Unit],
        effects: &[Effect],
    ) -> Vec<(Name, NodeNr)> {
        let mut found = Vec::new();
        let own = self.all.get(&node).into_iter().flatten();
        for effect in own.flat_map(|unit| &units[unit.index()].effects) {
            let Change::Name { dir, name, node: Some(named), .. } =
                &effects[*effect as usize].change
            else {
                continue;
            };
            let name = (*dir, name.clone());
            if *named != node || self.holders.get(&name) != Some(&None) {
                continue;
            }
            let owners = self.owners.get(&name).into_iter().flatten();
            let before = owners.take_while(|owner| **owner != node);
            let before = before.filter(|owner| !self.is_gone(&name, **owner, units, effects));
            found.extend(before.map(|owner| (name.clone(), *owner)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The inodes but this one that have had a name since the last commit, or had it at that commit, and
    /// whose loss of it may not be on the disk.
    pub(crate) fn others_of(
        &self,
        name: &Name,
        node: NodeNr,
        units: &[Unit],
        effects: &[Effect],
    ) -> Vec<NodeNr> {
        let owners = self.owners.get(name).into_iter().flatten().copied();
        let may_return =
            |owner: &NodeNr| *owner != node && !self.is_gone(name, *owner, units, effects);
        let mut others: Vec<NodeNr> = owners.filter(may_return).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Returns true if an inode has lost a name before the last `fsync` of the directory: the log of the
    /// directory says that the name is not there, and whatever is replayed, the inode does not get it
    /// back.
    fn is_gone(&self, name: &Name, owner: NodeNr, units: &[Unit], effects: &[Effect]) -> bool {
        let Some(synced) = self.synced.get(&name.0) else { return false };
        let takes_it = |unit: &&UnitNr| {
            let mut changes =
                units[unit.index()].effects.iter().map(|e| &effects[*e as usize].change);
            changes.any(|change| {
                matches!(change, Change::Name { dir, name: lost, before, .. }
                    if *before == Some(owner) && *dir == name.0 && *lost == name.1)
            })
        };
        let all = self.all.get(&owner).into_iter().flatten();
        all.rev().find(takes_it).is_some_and(|loss| loss.index() < *synced)
    }

    /// Ends the requirements of changes that may be in the log by way of these inodes, without the
    /// directories in which they were made.
    fn release(&mut self, logged: &[NodeNr], units: &[Unit], effects: &[Effect]) {
        if self.directories.is_empty() {
            return;
        }
        let mut todo = logged.to_vec();
        let mut seen = HashSet::new();
        while let Some(inode) = todo.pop() {
            if !seen.insert(inode) {
                continue;
            }
            if self.directories.contains(&inode) || seen.len() > RELEASED_MAX {
                return self.release_all();
            }
            for unit in self.all.get(&inode).into_iter().flatten() {
                self.held.remove(unit);
                for effect in &units[unit.index()].effects {
                    if let Change::Name { dir, name, node, before } =
                        &effects[*effect as usize].change
                    {
                        let owners = self.owners.get(&(*dir, name.clone()));
                        todo.extend(owners.into_iter().flatten());
                        todo.extend([*node, *before].into_iter().flatten());
                        todo.extend(self.made.get(dir));
                    }
                }
            }
        }
    }

    fn release_all(&mut self) {
        self.directories.clear();
        self.renames.clear();
        self.held.clear();
    }

    fn log(&mut self, mut todo: Vec<NodeNr>, units: &[Unit], effects: &[Effect]) {
        self.release(&todo, units, effects);
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
        self.holders.clear();
        self.logged.clear();
        self.made.clear();
        self.directories.clear();
        self.synced.clear();
        self.renames.clear();
        self.all.clear();
    }

    /// Adds to what each unit requires the units before it in `chain`, all units of metadata in
    /// order, but for those that may be in the log.
    pub(crate) fn finish(self, chain: &[UnitNr], units: &mut [Unit]) {
        for (unit, renames) in &self.held {
            let after = |unit: &UnitNr| units[unit.index()].durable_after;
            // Not if an `fsync` has brought the unit alone.
            let brought = |r: &&UnitNr| {
                after(unit).is_none_or(|own| after(r) <= Some(own) && after(r).is_some())
            };
            let brought: Vec<UnitNr> = renames.iter().filter(brought).copied().collect();
            let requires = &mut units[unit.index()].requires;
            requires.extend(brought);
            requires.sort_unstable();
            requires.dedup();
        }
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
